"""Limits the time of calls that may wait for ever, as those of Kafka's clients: each runs on a
thread of its own, and is left behind there when it takes too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


def started(call: Callable[[], object]) -> Future[None]:
    """Begin ``call`` on a thread. The future is done when it ends, with its error if it raised."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="slotwheel-limited-call", daemon=True).start()
    return future


def within(limit_s: float, call: Callable[[], object]) -> bool:
    """Call, and wait for at most ``limit_s``. Returns False when the call was left behind.

    Errors: those of the call."""
    future = started(call)
    try:
        future.result(limit_s)
    except TimeoutError:
        if not future.done():
            return False
        raise
    return True
