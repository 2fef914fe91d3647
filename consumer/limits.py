"""Calls of Kafka's clients that may wait without a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


def within(limit_s: float, call: Callable[[], object]) -> bool:
    """Call on a thread that is left behind after ``limit_s``. Returns whether the call ended.

    Errors: those of the call."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="slotwheel-consumer-call", daemon=True).start()
    try:
        done.result(limit_s)
    except TimeoutError:
        if not done.done():
            return False
        raise
    return True
