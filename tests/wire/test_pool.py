"""The pool: a bounded number of threads, and a process that ends all the same."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from slotwheel.wire.pool import Pool
from support.waiting import eventually


def test_each_call_is_carried_out_by_few_threads() -> None:
    pool, done, hold = Pool(3, "few"), [], threading.Semaphore(0)

    def call(number: int) -> None:
        hold.acquire()
        done.append(number)

    for number in range(20):
        pool.submit(call, number)
    assert pool.started == 3
    hold.release(20)
    eventually(lambda: sorted(done) == list(range(20)))
    pool.close()
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("few-")])
    with pytest.raises(RuntimeError):
        pool.submit(call, 21)


def test_an_idle_thread_is_used_before_another_one_is_started() -> None:
    pool = Pool(30, "idle")
    for _ in range(10):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(60)
        eventually(lambda: not pool._under_way)
    assert pool.started == 1
    pool.close()


def test_without_a_thread_the_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(1, "none")

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            pool.submit(print)
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(60)
    pool.close()


def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    program = (
        "import threading\n"
        "from slotwheel.wire.pool import Pool\n"
        "begun = threading.Event()\n"
        "Pool(1, 'hangs').submit(lambda: begun.set() or threading.Event().wait())\n"
        "begun.wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=100, check=False).returncode == 0
