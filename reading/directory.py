"""The paths that a user gave: refused by name if they are no data directory or file. And a data
directory opened for reading only, whether a node runs on it or not.

Rules: nothing is created or changed, not even a lock file; any other directory is refused with a
clear error, so that a wrong path is not reported as an empty wheel.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from ..wheel.errors import InvalidConfiguration
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, OsFiles, OsHandle, open_regular
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import is_segment_name
from ..wheel.slots.slot import slot_of_name
from ..wheel.state import STATE_DIRECTORY
from ..wheel.topics.topicfile import TOPICS_DIRECTORY, first_position_of
from .listing import sizes
from .strays import is_archived_slot

_OF_A_NODE = (STATE_DIRECTORY, JOURNAL_DIRECTORY, SLOT_DIRECTORY, TOPICS_DIRECTORY)


def existing(path: str) -> Path:
    """The directory at a path, resolved. Errors: ``InvalidConfiguration``: it does not exist."""
    root = Path(path).resolve()
    if not root.is_dir():
        raise InvalidConfiguration(
            "not a directory" if root.exists() else "no such directory",
            got=path,
            remedy="Name the directory that the node was given with --data, or a copy of it",
        )
    return root


def existing_file(path: str) -> Path:
    """The file at a path. Errors: ``InvalidConfiguration``: it does not exist."""
    found = Path(path)
    if not found.is_file():
        raise InvalidConfiguration(
            "not a file" if found.exists() else "no such file",
            got=path,
            remedy="Name an Arrow IPC stream that `slotwheel consume --arrow` or a client wrote",
        )
    return found


def is_data_directory(root: Path) -> bool:
    """Whether a directory has a part of a data directory, if only the archive; a node that has just
    begun may not."""
    return any((root / part).is_dir() for part in (*_OF_A_NODE, ARCHIVE_DIRECTORY))


def refuse_a_part(root: Path) -> None:
    """Refuse a folder inside a data directory, such as that of its slot files. Errors:
    ``InvalidConfiguration``."""
    names = list(sizes(root))
    kinds = {
        "slot files": any(
            slot_of_name(name) is not None or is_archived_slot(name) for name in names
        ),
        "journal segments": any(is_segment_name(name) for name in names),
        "topic segments": any(first_position_of(name) is not None for name in names),
    }
    for kind, there in kinds.items():
        if there:
            raise InvalidConfiguration(
                f"a folder of {kind}, not a data directory",
                got=str(root),
                remedy="Name the directory that it belongs to: the one given to the node as --data",
            )


def short_names(roots: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as make all of them different."""
    for parts in range(1, 20):
        names = ["/".join(root.parts[-parts:]) for root in roots]
        if len(set(names)) == len(names):
            return names
    return [str(root) for root in roots]


class ReadOnlyFiles(OsFiles):
    """``Files`` that cannot write, for a directory that must exist.

    Errors: ``InvalidConfiguration`` when ``root`` is not a data directory, or no more of it than
    the archive; ``OSError``.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        path = Path(root)
        if not any((path / part).is_dir() for part in _OF_A_NODE):
            raise InvalidConfiguration(
                "not a data directory" if path.is_dir() else "no such directory",
                got=str(path),
                remedy="Name the directory that the node was given with --data",
            )
        super().__init__(root)

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        if create:
            raise PermissionError(f"{path}: opened for reading only")
        return open_regular(Path(self.root, path))


@contextmanager
def reading(root: str | os.PathLike[str]) -> Iterator[ReadOnlyFiles]:
    with closing(ReadOnlyFiles(root)) as files:
        yield files


def running_process(root: str | os.PathLike[str]) -> str | None:
    """The process id of the node that holds the directory's lock; None: no node does."""
    try:
        fd = os.open(Path(root) / "LOCK", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # a node makes it, and can open it
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None
