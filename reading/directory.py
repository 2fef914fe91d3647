"""A data directory opened for reading only, whether a node runs on it or not.

Rules: nothing is created or changed, not even a lock file; a directory that is none is refused
with a clear error, so that a wrong path is not taken for an empty wheel.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from ..wheel.errors import Damaged, InvalidConfiguration
from ..wheel.files import OsFiles, OsHandle
from ..wheel.state import STATE_DIRECTORY, LmdbState, Stored

_SUBDIRECTORIES = ("state", "journal", "slots", "topics")


class ReadOnlyFiles(OsFiles):
    """``Files`` that cannot write, for a directory that must exist.

    Errors: ``InvalidConfiguration`` when ``root`` is no data directory; ``OSError``.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        path = Path(root)
        if not any((path / name).is_dir() for name in _SUBDIRECTORIES):
            raise InvalidConfiguration(
                "not a data directory" if path.is_dir() else "no such directory",
                got=str(path),
                remedy="Name the directory that the node was given with --data",
            )
        super().__init__(root)

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        if create:
            raise PermissionError(f"{path}: opened for reading only")
        full = os.path.join(self.root, path)  # noqa: PTH118
        return OsHandle(os.open(full, os.O_RDONLY | os.O_CLOEXEC), full)


@contextmanager
def reading(root: str | os.PathLike[str]) -> Iterator[ReadOnlyFiles]:
    files = ReadOnlyFiles(root)
    try:
        yield files
    finally:
        files.close()


def running_process(root: str | os.PathLike[str]) -> str | None:
    """The process id of the node that holds the directory, None if none does."""
    try:
        fd = os.open(Path(root) / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None


def load_state(root: str | os.PathLike[str]) -> Stored:
    """The state as it is now. Read until two looks agree, as a running node may be writing it.

    Errors: ``Damaged``, ``UnsupportedVersion``.
    """
    _check_length(Path(root) / STATE_DIRECTORY)
    state = LmdbState(root, readonly=True)
    try:
        stored = state.load()
        for _ in range(10):
            again = state.load()
            if again == stored:
                break
            stored = again
        return stored
    except (lmdb.Error, ValueError) as error:
        raise Damaged(state.path, 0, expected="a state store", found=str(error)) from None
    finally:
        state.close()


def _check_length(path: Path) -> None:
    """LMDB maps its file: touching a page that a cut took away would end this process."""
    data = path / "data.mdb"
    if not data.is_file():
        raise Damaged(str(data), 0, expected="a state store", found="no such file")
    try:
        with lmdb.open(str(path), readonly=True, lock=False, create=False) as env:
            wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    except lmdb.Error as error:
        raise Damaged(str(data), 0, expected="an LMDB environment", found=str(error)) from None
    size = data.stat().st_size
    # A free page at the end may never have been written: then it is short and yet whole.
    if size < wanted and not _loads(path.parent):
        raise Damaged(str(data), size, expected=f"{wanted} bytes", found=f"{size} bytes")


def _loads(root: Path) -> bool:
    """Whether a process of its own survives reading the state."""
    code = (
        "import sys; from slotwheel.wheel.state import LmdbState;"
        " LmdbState(sys.argv[1], readonly=True).load()"
    )
    command = [sys.executable, "-c", code, str(root)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode == 0
