"""One broker for a run whose tests several processes share out.

The process that hands the tests out owns it, starts it when the first of the others asks, and ends
it with the run. An idle broker takes 2 % of a core and a new one seconds, so that one for each
process would cost a run more than a minute of processor time.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from multiprocessing.connection import Client, Listener

from .broker import Broker, BrokerError


class CommonBroker:
    """Answers at ``address``, a path, with the broker's ``host:port`` (``bootstrap_from``)."""

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX", backlog=64)
        self.address = str(self._listener.address)
        self._lock = threading.Lock()
        self._broker: Broker | None = None
        self._closed = False
        threading.Thread(target=self._serve, name="common-broker", daemon=True).start()

    def close(self) -> None:
        """End the broker, if one was started; one that is starting is waited for."""
        self._listener.close()
        with self._lock:
            self._closed = True
            if self._broker is not None:
                self._broker.close()

    def _serve(self) -> None:
        while True:
            try:
                asking = self._listener.accept()
            except OSError:  # closed
                return
            # A process that ends while it waits for the answer is no matter for the others.
            with asking, suppress(BrokenPipeError):
                asking.send(self._bootstrap())

    def _bootstrap(self) -> str | BrokerError:
        with self._lock:
            if self._closed:
                return BrokerError("the run is over")
            try:
                self._broker = self._broker or Broker()
            except Exception as error:
                kind = type(error).__name__
                return BrokerError(f"the common broker did not start: {kind}: {error}")
            return self._broker.bootstrap


def bootstrap_from(address: str) -> str:
    """The ``host:port`` of the broker of the ``CommonBroker`` there. Errors: ``BrokerError``: it
    does not start."""
    with Client(address) as common:
        answer: str | BrokerError = common.recv()
    if isinstance(answer, BrokerError):
        raise answer
    return answer
