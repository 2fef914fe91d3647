"""Calls that may wait without a limit, as those of Kafka's clients: they run on a thread of their
own, and are left behind there when they take too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


def started(call: Callable[[], object]) -> Future[None]:
    """``call`` has begun; the future is done when it ends, with its error if it raised one."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="slotwheel-limited-call", daemon=True).start()
    return done


def within(limit_s: float, call: Callable[[], object]) -> bool:
    """Call, and wait for at most ``limit_s``. Returns whether the call ended.

    Errors: those of the call."""
    done = started(call)
    try:
        done.result(limit_s)
    except TimeoutError:
        if not done.done():
            return False
        raise
    return True
