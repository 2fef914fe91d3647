"""Workers, on a consumer that is made up."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from slotwheel import Received
from slotwheel.consumer.process import HandlerFailed, HandlerProcess
from slotwheel.consumer.running import ProcessWorker, run
from support import handlers
from support.stopwatch import Stopwatch
from support.waiting import eventually


def message(number: int, value: bytes = b"") -> Received:
    return Received("work", 0, number, None, value, [], 0)


class Made:
    """A consumer that notes its answers."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self.finished: list[int] = []
        self.failed: list[tuple[int, str]] = []
        self.defect: Exception | None = None
        self.closed = False

    def take(self, count: int, timeout_s: float | None = None) -> list[Received]:
        if self.defect is not None:
            raise self.defect
        try:
            return [self.waiting.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def handling(self, message: Received) -> None: ...

    def done(self, *messages: Received) -> None:
        self.finished += [one.offset for one in messages]

    def retry(self, message: Received, error: BaseException | str = "") -> None:
        self.failed.append((message.offset, str(error)))

    def check(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def process() -> Iterator[HandlerProcess]:
    made = HandlerProcess(handlers.nothing)
    yield made
    made.kill()


@pytest.mark.parametrize("processes", [False, True])
def test_what_ends_a_worker_is_raised_by_run(processes: bool) -> None:
    made = Made()
    made.defect = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        run(made, handlers.nothing, workers=2, limit_s=5, processes=processes)
    assert made.closed


def test_a_message_that_comes_while_all_ends_is_no_attempt() -> None:
    made = Made()
    worker = ProcessWorker(made, handlers.nothing, 5)
    made.waiting.put(message(0))
    eventually(lambda: made.finished == [0])
    worker.stop()
    made.waiting.put(message(1))
    time.sleep(0.3)
    worker.abandon()
    assert made.failed == []
    assert made.finished in ([0], [0, 1])


def test_a_process_that_stands_still_is_killed_also_before_it_has_its_message(
    process: HandlerProcess,
) -> None:
    process.call(message(0), 5)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    watch = Stopwatch()
    # Should it wait for ever, the test does not.
    guard = threading.Timer(10, os.kill, (pid, signal.SIGKILL))
    guard.start()
    with pytest.raises(HandlerFailed, match="took longer"):
        process.call(message(1, bytes(5 << 20)), 0.3)
    guard.cancel()
    assert watch.seconds < 5
    process.call(message(2), 5)
