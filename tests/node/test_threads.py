"""A loop goes on after every error, tells of it, and ends only for what is named fatal."""

from __future__ import annotations

import threading
import time

import pytest

from slotwheel.node.threads import Loop, Threads
from slotwheel.wheel.errors import SyncFailed


class Rig:
    def __init__(
        self, *errors: BaseException | None, fatal: tuple[type, ...] = (SyncFailed,)
    ) -> None:
        self.errors = list(errors)
        self.turns = 0
        self.alarms: list[tuple[str, str]] = []
        self.fatal: list[BaseException] = []
        self.over = threading.Event()
        self.loop = Loop(
            "work",
            self.turn,
            lambda kind, error: self.alarms.append((kind, str(error))),
            self.end,
            fatal,
        )

    def turn(self) -> float:
        self.turns += 1
        if not self.errors:
            self.over.set()
            return 0.01
        error = self.errors.pop(0)
        if error is not None:
            raise error
        return 0.0

    def end(self, error: BaseException) -> None:
        self.fatal.append(error)
        self.over.set()

    def run(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self.loop.run, args=(stop,), daemon=True)
        thread.start()
        assert self.over.wait(60)
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_it_goes_on_after_errors_and_tells_each() -> None:
    rig = Rig(ValueError("one"), OSError("two"), None)
    rig.run()
    assert rig.alarms == [("work-failed", "one"), ("work-failed", "two")]
    assert rig.fatal == []
    assert rig.turns >= 4


def test_a_failed_sync_ends_it() -> None:
    rig = Rig(None, SyncFailed("disk"))
    rig.run()
    assert [type(error) for error in rig.fatal] == [SyncFailed]
    assert rig.alarms == []


def test_what_else_is_fatal_can_be_named() -> None:
    rig = Rig(ValueError("half-way"), fatal=(Exception,))
    rig.run()
    assert [str(error) for error in rig.fatal] == ["half-way"]


def test_an_error_while_telling_is_not_lost() -> None:
    rig = Rig(ValueError("one"))

    def broken(kind: str, error: Exception) -> None:
        raise RuntimeError("no alarm")

    rig.loop._alarm = broken
    rig.run()
    assert [str(error) for error in rig.fatal] == ["no alarm"]


def test_it_says_how_long_it_was_silent() -> None:
    rig = Rig()
    rig.run()
    before = rig.loop.silent_s
    assert rig.loop.silent_s >= before >= 0


def test_a_thread_that_just_starts_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health may be asked for at any moment: by its answer the process would be started again."""
    threads = Threads(lambda _kind, _error: None, lambda _error: None)
    said: list[list[str]] = []

    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        said.append(threads.unhealthy())
        real(thread)
        said.append(threads.unhealthy())

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        threads.loop("work", lambda: 0.01)
    assert said == [[], []]
    assert threads.stop(time.monotonic() + 60, last="") == []
    threads.run("brief", lambda _stop: None)
    threads._threads["brief"].join(60)
    assert threads.unhealthy() == ["thread brief has ended"]
