"""Files that are exchanged while somebody uses what is in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from slotwheel.security import watched as watched_module
from slotwheel.security.watched import WatchedFiles
from slotwheel.wheel.errors import InvalidConfiguration, SlotwheelError


class Watching:
    """Two files with a number each, of which the value is the sum; ``now_s``: the time."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = folder / "first", folder / "second"
        self.first.write_text("1")
        self.second.write_text("2")
        self.now_s = 0.0
        self.loads = 0
        self.alarms: list[str] = []
        self.files = WatchedFiles(
            [self.first, self.second],
            self._load,
            lambda error: self.alarms.append(str(error)),
            lambda: self.now_s,
        )

    def _load(self, contents: Sequence[bytes]) -> int:
        self.loads += 1
        try:
            return sum(map(int, contents))
        except ValueError as error:
            raise InvalidConfiguration("not a number", got=str(error)) from None


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(tmp_path)


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_what_is_exchanged_counts_from_the_next_look_on(watching: Watching) -> None:
    replace(watching.second, "40")
    assert watching.files.value == 3
    assert watching.files.look()
    assert watching.files.value == 41
    assert not watching.files.look()
    assert watching.loads == 2


def test_a_file_that_is_only_touched_is_not_loaded_again(watching: Watching) -> None:
    os.utime(watching.first, ns=(5, 5))
    assert not watching.files.look()
    assert watching.loads == 1


def test_a_bad_file_is_one_alarm_and_the_old_value_stays(watching: Watching) -> None:
    replace(watching.first, "one")
    assert not watching.files.look()
    assert not watching.files.look()
    assert watching.files.value == 3
    assert len(watching.alarms) == 1
    assert "not a number" in watching.alarms[0]
    assert "not a number" in str(watching.files.error)
    watching.first.unlink()
    assert not watching.files.look()
    assert len(watching.alarms) == 2
    assert "no such file" in watching.alarms[1]
    replace(watching.first, "5")
    assert watching.files.look()
    assert (watching.files.value, watching.files.error) == (7, None)


def test_a_file_that_is_mended_to_what_it_was_is_in_use_again(watching: Watching) -> None:
    replace(watching.first, "one")
    watching.files.look()
    replace(watching.first, "1")
    assert not watching.files.look()
    assert watching.files.error is None


def test_a_program_without_a_thread_for_it_looks_now_and_then(watching: Watching) -> None:
    replace(watching.second, "4")
    watching.now_s = WatchedFiles.every_s - 0.1
    assert watching.files.fresh == 3
    watching.now_s = WatchedFiles.every_s
    assert watching.files.fresh == 5


def test_a_link_that_is_swapped_is_followed(tmp_path: Path) -> None:
    """So does a secret that a cluster mounts change."""
    for name in "ab":
        (tmp_path / name).write_text(name)
    link = tmp_path / "link"
    link.symlink_to("a")
    files: WatchedFiles[bytes] = WatchedFiles([link], b"".join)
    new = tmp_path / "new"
    new.symlink_to("b")
    new.replace(link)
    assert files.look()
    assert files.value == b"b"


def test_what_is_no_file_or_too_large_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(bytes(101))
    monkeypatch.setattr(watched_module, "FILE_BYTES_MAX", 100)
    for path, text in ((pipe, "regular"), (large, "limit 100 bytes"), (tmp_path / "x", "no such")):
        with pytest.raises(SlotwheelError, match=text):
            WatchedFiles([path], b"".join)
