"""Whoever opens a file that somebody else may have put there takes regular files alone."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwheel.consumer.embedded_source import read_positions, write_positions
from slotwheel.trace.store.making import SegmentMaker
from slotwheel.trace.store.names import SegmentName
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.files import DirectoryLock, OsFiles

NAME = SegmentName(1, 2)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


WHAT: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
}
OPENS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a node's file": ("f", lambda root: OsFiles(root).open("f")),
    "a node's new file": ("f", lambda root: OsFiles(root).open("f", create=True)),
    "a node's large file": ("f", lambda root: OsFiles(root).map("f", 1)),
    "the lock": ("LOCK", DirectoryLock),
    "a group's positions": ("p.json", lambda root: read_positions(root / "p.json")),
    "new positions": ("p.new", lambda root: write_positions(root / "p.json", {"t": 1})),
    "events of a trace": ("000000000001-000000000002.arrow.new", lambda r: SegmentMaker(r, NAME)),
}


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Who opens a pipe would wait for ever."""

    def end(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("opens", OPENS)
def test_only_regular_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, opens: str
) -> None:
    name, do = OPENS[opens]
    root = tmp_path / "d"  # a socket's path has a limit
    root.mkdir()
    monkeypatch.chdir(root)
    WHAT[what](Path(name))
    with pytest.raises((OSError, SlotwheelError)) as caught:
        do(root)
    assert what in str(caught.value) or "socket" in str(caught.value), caught.value


def test_a_new_file_is_of_nobody_else(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        OsFiles(tmp_path).open("f", create=True).close()
        DirectoryLock(tmp_path).release()
        write_positions(tmp_path / "p.json", {"t": 1})
    finally:
        os.umask(old)
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o007] == []
