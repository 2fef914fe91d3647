"""A data directory opened for reading only, whether a node runs on it or not.

Rules: nothing is created or changed, not even a lock file; any other directory is refused with a
clear error, so that a wrong path is not reported as an empty wheel.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..wheel.errors import InvalidConfiguration
from ..wheel.files import OsFiles, OsHandle
from .inputs import is_data_directory


class ReadOnlyFiles(OsFiles):
    """``Files`` that cannot write, for a directory that must exist.

    Errors: ``InvalidConfiguration`` when ``root`` is not a data directory; ``OSError``.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        path = Path(root)
        if not is_data_directory(path):
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
    with closing(ReadOnlyFiles(root)) as files:
        yield files


def running_process(root: str | os.PathLike[str]) -> str | None:
    """The process id of the node that holds the directory's lock; None: no node does."""
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
