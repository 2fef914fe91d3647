"""The disk is full at one call, whichever: no receipt for what is not stored, no file left over."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Overloaded
from slotwheel.wheel.files import Bytes, OsFiles, OsHandle
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel
from support.wheels import NOW, TIGHT, Node, batch, opened


class FailingFiles(OsFiles):
    """The disk is full at call number ``fail_at`` that needs room."""

    fail_at = -1
    calls = 0

    def step(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        if create:
            self.step()
        handle = super().open(path, create=create)
        return FailingHandle(handle._fd, path, self.step)


class FailingHandle(OsHandle):
    def __init__(self, fd: int, path: str, step: Callable[[], None]) -> None:
        super().__init__(fd, path)
        self.step = step

    __slots__ = ("step",)

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        self.step()
        return super().pwrite(parts, position)


def test_a_spill_that_fails_leaves_no_file_behind(tmp_path: Path) -> None:
    """A file that no catalog knows would stay when its rows are delivered before the next spill."""
    rows = [(NOW + 1000 * second, "t", b"x") for second in range(1, 5)]
    failures = 0
    for fail_at in range(1, 20):
        path = tmp_path / str(fail_at)
        files, state = FailingFiles(path), LmdbState(path)
        wheel = Wheel.open(files, state, TIGHT, NOW)
        wheel.append(batch(rows[:1]), NOW)
        wheel.write_pending(0)
        wheel.spill(NOW, everything=True)
        wheel.append(batch(rows), NOW)
        wheel.write_pending(0)
        before = {name: (path / "slots" / name).stat().st_size for name in files.list("slots")}
        assert len(before) == 1
        files.calls, files.fail_at = 0, fail_at
        try:
            wheel.spill(NOW, everything=True)
        except OSError:
            failures += 1
            assert files.list("slots") == list(before)
            files.fail_at = -1
            wheel.spill(NOW, everything=True)
        assert len(files.list("slots")) == 4
        wheel.close()
        files.close()
    assert failures >= 4


def test_a_spill_that_cannot_be_committed_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, state = OsFiles(tmp_path), LmdbState(tmp_path)
    wheel = Wheel.open(files, state, TIGHT, NOW)
    wheel.append(batch([(NOW + 1000, "t", b"x")]), NOW)
    wheel.write_pending(0)

    def full(update: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(state, "commit", full)
        with pytest.raises(OSError, match="no room"):
            wheel.spill(NOW, everything=True)
    assert files.list("slots") == []
    wheel.spill(NOW, everything=True)
    assert len(files.list("slots")) == 1
    wheel.close()
    files.close()


def test_a_failure_on_the_way_in_is_never_a_receipt(tmp_path: Path) -> None:
    refused, steps = 0, 0
    for fail_at in range(1, 100):
        path = tmp_path / str(fail_at)
        files, state = FailingFiles(path), LmdbState(path)
        wheel = Wheel.open(files, state, TIGHT, NOW)
        while wheel.write_pending(0):
            pass
        files.calls, files.fail_at = 0, fail_at
        accepted: list[bytes] = []
        for n in range(12):
            future = wheel.append(batch([(NOW + 5, "t", b"%d" % n + b"." * 600)]), NOW)
            wheel.write_pending(0)
            if future.exception(0) is None:
                accepted.append(b"%d" % n)
            else:
                assert isinstance(future.exception(0), Overloaded)
                refused += 1
            if n == 5:
                try:
                    wheel.spill(NOW, everything=True)
                except OSError:
                    wheel.spill(NOW, everything=True)
        steps = files.calls
        wheel.close()
        files.close()
        with opened(path, TIGHT, NOW) as node:
            left = [value.rstrip(b".") for value in node.delivered(NOW + 5)]
        assert left == accepted, f"failed at call {fail_at}"
        if steps < fail_at:
            break
    assert refused > 5
    assert steps > 12


def test_the_key_of_the_ids_survives_a_first_write_that_failed(tmp_path: Path) -> None:
    config = WheelConfig(disk_reserve_bytes=0)
    node = Node(tmp_path, config, NOW)
    journal: Any = node.wheel._log.journal
    append = journal.append

    def full(_entries: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    journal.append = full
    node.wheel.write_pending(0)
    journal.append = append
    [one] = node.ids_of(node.send([(NOW + 5_000, "t", b"v")], NOW))
    node.close()
    with opened(tmp_path, config, NOW) as node:
        assert node.wheel.mint.genuine(one)
