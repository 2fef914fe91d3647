"""Sends requests to a group - cancel, reschedule, status - and finds the peer that can answer.

Theory: a request may be repeated only if the node certainly did not get it, or if a repeat does no
harm: a repeated reschedule would move a message twice. So where there are several addresses, a
hello is sent first: a node that does not answer it has got no request, and a standby answers that
it is one. A standby's ``NotMaster`` always means that it did nothing. A master that is cut off or
stopped cannot report that it was replaced, so when it is silent another peer is asked about it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..wheel.backoff import Backoff
from ..wheel.errors import NodeUnreachable, NotMaster, NotRunning, SlotwheelError
from .addresses import Addresses
from .transport import ClientTransport

_PAUSE_S = 0.05
ANSWER_S = 15.0
"""A node that has not answered for so long, s, is asked again, or another one is."""
_SUSPECT_S = 1.0
"""Another peer is asked for a new master after so long without an answer, s."""
_ASK_EVERY_S = 0.5
"""It is asked again after so long, s."""
_ASK_TIMEOUT_S = 0.4

EpochOfMaster = Callable[[str, float], int]


class Asker:
    """Sends requests, over connections that are opened when needed. Thread-safe."""

    def __init__(self, addresses: Addresses, transport: ClientTransport, timeout_s: float) -> None:
        self._addresses = addresses
        self._transport = transport
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connections: dict[str, Any] = {}

    def ask(
        self,
        action: str,
        fields: Mapping[str, Any],
        *,
        again: bool = False,
        of_master: bool = True,
        wait_s: float | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the answer. ``again``: it may be repeated. ``of_master`` False:
        any peer can answer. ``wait_s`` takes the place of the client's ``timeout_s``.

        Errors: those that a node answers; ``NodeUnreachable``.
        """
        addresses = self._addresses
        timeout_s = self._timeout_s if wait_s is None else wait_s
        end = time.monotonic() + timeout_s
        backoff = Backoff(_PAUSE_S)
        while True:
            address = addresses.current
            reached = not addresses.several
            try:
                connection = self._connection(address)
                if addresses.several:
                    patience_s = min(addresses.attempt_s, max(0.1, end - time.monotonic()))
                    self._transport.greet(connection, patience_s, of_master=of_master)
                    reached = True
                left_s = max(0.1, end - time.monotonic())
                if again and addresses.several:
                    left_s = min(left_s, ANSWER_S)
                answer = self._transport.call(connection, action, dict(fields), left_s)
            except SlotwheelError as error:
                again_here = again and (addresses.several or not isinstance(error, NotRunning))
                if not _may_go_on(error, reached=reached, again=again_here):
                    raise
                at_once = addresses.failed(address, error)
                reason = addresses.explain(error)
                if addresses.hopeless:
                    raise reason from None
            else:
                addresses.served()
                return answer
            pause_s = 0.0 if at_once else min(addresses.pause_max_s, backoff.failed())
            if time.monotonic() + pause_s > end:
                raise reason
            time.sleep(pause_s)

    def close(self) -> None:
        with self._lock:
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            self._transport.end(connection)

    def _connection(self, address: str) -> Any:
        with self._lock:
            if address not in self._connections:
                self._connections[address] = self._transport.connect(address)
            return self._connections[address]


class Suspicion:
    """Finds out from other peers if a silent master was replaced. One thread calls it."""

    def __init__(self, addresses: Addresses, epoch_of_master: EpochOfMaster) -> None:
        self._addresses = addresses
        self._epoch_of_master = epoch_of_master
        self._ask_at = 0.0
        self._asked = 0

    def proves_true(self, epoch: int, quiet_s: float) -> bool:
        """Returns True when another peer knows a newer master than that of ``epoch``, which has
        been silent for ``quiet_s``."""
        others = self._addresses.others
        if not others or quiet_s < _SUSPECT_S or time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + _ASK_EVERY_S
        self._asked += 1
        asked = others[self._asked % len(others)]
        return self._epoch_of_master(asked, _ASK_TIMEOUT_S) > epoch


def _may_go_on(error: SlotwheelError, *, reached: bool, again: bool) -> bool:
    """True when the request may be sent again, to any node. ``reached``: the node may have it."""
    if isinstance(error, NotMaster) or not reached:
        return True
    return again and isinstance(error, NodeUnreachable | NotRunning)
