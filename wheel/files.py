"""The file seam: all that the engine asks of a file system, and its real implementation.

Theory: crash safety can only be tested if every write, sync, rename and unlink goes through one
narrow place that a test can replace by a double with *live* and *durable* bytes. ``Files`` and
``Handle`` are that place. Paths are relative to the data directory, with ``/`` between parts.

Rules
- Writes name their position. There is no append mode: after a crash there may be junk at the end.
- ``sync`` or ``write_back`` that fails raises ``SyncFailed``; the process must end (the kernel may
  have dropped the dirty pages and will report success next time).
- One process a data directory (``DirectoryLock``): two would write over each other's journal.
- Only regular files are opened (``regular``): a pipe in a file's place would hold a node for ever.
- Creating, linking, renaming or deleting is durable only after ``sync_dir`` (or ``sync_all``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from crc32c import crc32c

from .errors import DirectoryInUse, SyncFailed

Bytes = bytes | bytearray | memoryview

SLOT_DIRECTORY = "slots"
ARCHIVE_DIRECTORY = "archive"

_READ_BYTES = 256 << 10
"""A file is read through in shares of this size, which stay in the processor's cache: 320 MB take
0.35 s, in shares of 4 MiB twice that."""
_TRIES = 20_000
"""A lock is tried so often while others share it, who only ask for it: some tenths of a second."""


class Handle(Protocol):
    """An open file."""

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes at ``position``; fewer only at the end of the file."""

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        """Write all ``parts`` one after the other at ``position``; the number of bytes written."""

    def truncate(self, length: int) -> None: ...

    def write_back(self) -> None:
        """Start handing to the disk what was written, once it has what it was given before: others
        that sync meanwhile wait behind that much at most. Durable only after ``sync``."""

    def sync(self) -> None:
        """Make the content durable (fdatasync)."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Files(Protocol):
    """One data directory."""

    def open(self, path: str, *, create: bool = False) -> Handle:
        """Open for reading and writing. Without ``create`` a missing file is FileNotFoundError."""

    def map(self, path: str, length: int) -> pa.Buffer:
        """The first ``length`` bytes as a buffer that costs address space, not memory."""

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Errors: ``FileExistsError``."""

    def unlink(self, path: str) -> None: ...

    def set_modified(self, path: str, at_ms: int) -> None:
        """Set the time of the last write; durable once the file is synced."""

    def modified_ms(self, path: str) -> int:
        """The time of the last write to a file, in ms since the epoch."""

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty if there is none."""

    def make_directory(self, directory: str) -> None: ...

    def remove_directory(self, directory: str) -> None:
        """Remove an empty directory."""

    def sync_dir(self, directory: str) -> None: ...

    def sync_all(self) -> None:
        """Make everything written so far durable, in one call for many files (syncfs)."""

    def free_bytes(self) -> int: ...


_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_WAIT_BEFORE_AND_WRITE = 1 | 2
_WRITE_PARTS_MAX = 1024  # IOV_MAX on Linux


def read_shares(handle: Handle, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of a file between two positions, share by share; fewer if it ends."""
    while start < stop and (data := handle.pread(min(_READ_BYTES, stop - start), start)):
        yield data
        start += len(data)


def checksum(handle: Handle, start: int, stop: int) -> tuple[int, int]:
    """The number of bytes that a file has between two positions, and their CRC-32C. They are read a
    share after the other: if the checksum were that of a mapping, all of the file would become
    resident, and not only the pages that are looked at; and a sector that cannot be read would end
    the process, while it is an ``OSError`` here."""
    size = crc = 0
    for data in read_shares(handle, start, stop):
        size, crc = size + len(data), crc32c(data, crc)
    return size, crc


class OsHandle:
    """``Handle`` over a file descriptor."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def advise(self, length: int) -> None:
        """Announce that the first ``length`` bytes will be read soon."""
        os.posix_fadvise(self._fd, 0, length, os.POSIX_FADV_WILLNEED)

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        start = position
        for at in range(0, len(parts), _WRITE_PARTS_MAX):
            group = parts[at : at + _WRITE_PARTS_MAX]
            total = sum(len(part) for part in group)
            written = os.pwritev(self._fd, group, position)
            while written < total:  # a full disk or a signal cut the write short: go on or fail
                rest = memoryview(b"".join(group))[written:]
                written += os.pwrite(self._fd, rest, position + written)
            position += total
        return position - start

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def write_back(self) -> None:
        if _libc.sync_file_range(self._fd, 0, 0, _WAIT_BEFORE_AND_WRITE) == 0:
            return
        number = ctypes.get_errno()
        # Not every kernel has it. Another error is not reported to ``sync`` any more.
        if number != errno.ENOSYS:
            reason = os.strerror(number)
            raise SyncFailed(f"sync_file_range of {self._path} failed: {reason}")

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise SyncFailed(f"fdatasync of {self._path} failed: {error}") from error

    @property
    def inode(self) -> int:
        """The file's number, which stays whatever name it gets."""
        return os.fstat(self._fd).st_ino

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


_NOT_REGULAR = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> OsHandle:
    """Open a file for reading. Errors: as of ``regular``, among them ``FileNotFoundError``."""
    return OsHandle(regular(path, os.O_RDONLY), os.fspath(path))


def regular(path: str | os.PathLike[str], flags: int, dir_fd: int | None = None) -> int:
    """A descriptor of a file that somebody else may have put there; also an ``opener`` for
    ``open``. Anything but a regular file is refused before it is read or written: a pipe would hold
    the caller for ever, a device has no end, and a symbolic link leads out of the directory. A new
    file can be used by its owner alone and, if the umask lets it, read by its group. Errors:
    ``OSError``."""
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    shown = os.fspath(path)
    try:
        fd = os.open(path, flags, 0o640, dir_fd=dir_fd)
    except OSError as error:
        refused = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a socket or a pipe"}
        if error.errno not in refused:
            raise
        raise _not_regular(shown, refused[error.errno]) from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise _not_regular(shown, _NOT_REGULAR.get(kind, "another kind"))
    return fd


def _not_regular(path: str, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"not a regular file but {kind}", path)


def mapped(path: str | os.PathLike[str]) -> pa.Buffer:
    """A whole file as a buffer, without memory or a descriptor. Errors: as of ``open_regular``."""
    open_regular(path).close()
    with pa.memory_map(os.fspath(path)) as source:
        return source.read_buffer() if source.size() else pa.py_buffer(b"")


class OsFiles:
    """``Files`` over a real directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        os.makedirs(self.root, exist_ok=True)
        self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        # Whoever forgets to close it must not use up the process's descriptors.
        self._closing = weakref.finalize(self, os.close, self._root_fd)
        self._closing.atexit = False

    def _absolute(self, path: str) -> str:
        return os.path.join(self.root, path)

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return OsHandle(regular(path, flags, self._root_fd), self._absolute(path))

    def map(self, path: str, length: int) -> pa.Buffer:
        os.close(regular(path, os.O_RDONLY, self._root_fd))
        with pa.memory_map(self._absolute(path)) as mapped:
            return mapped.read_buffer(length)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target, src_dir_fd=self._root_fd, dst_dir_fd=self._root_fd)

    def link(self, source: str, target: str) -> None:
        os.link(source, target, src_dir_fd=self._root_fd, dst_dir_fd=self._root_fd)

    def unlink(self, path: str) -> None:
        os.unlink(path, dir_fd=self._root_fd)

    def set_modified(self, path: str, at_ms: int) -> None:
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000), dir_fd=self._root_fd)

    def modified_ms(self, path: str) -> int:
        return os.stat(path, dir_fd=self._root_fd).st_mtime_ns // 1_000_000

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._absolute(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, directory: str) -> None:
        os.makedirs(self._absolute(directory), exist_ok=True)

    def remove_directory(self, directory: str) -> None:
        os.rmdir(directory, dir_fd=self._root_fd)

    def sync_dir(self, directory: str) -> None:
        fd = os.open(self._absolute(directory), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailed(f"fsync of {self._absolute(directory)} failed: {error}") from error
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        if _libc.syncfs(self._root_fd) != 0:
            code = ctypes.get_errno()
            raise SyncFailed(f"syncfs of {self.root} failed: {os.strerror(code)}")

    def free_bytes(self) -> int:
        stat = os.fstatvfs(self._root_fd)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        self._closing()


class DirectoryLock:
    """Holds a data directory for one process, until ``release`` or the end of the process.

    The kernel drops the lock with the process, so a SIGKILL leaves nothing to clean up.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._path = os.path.join(os.fspath(root), "LOCK")
        os.makedirs(os.fspath(root), exist_ok=True)
        self._fd = regular(self._path, os.O_RDWR | os.O_CREAT)
        try:
            _hold(self._fd)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise DirectoryInUse(
                "the data directory is in use by another node",
                got=f"{os.fspath(root)} (process {holder or 'unknown'})",
                remedy="Stop that node, or give this one a --data directory of its own",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


def _hold(fd: int) -> None:
    """Lock a file. Who asks whether it is locked (``reading/directory.py``) shares it for a moment,
    and keeps nobody out. Errors: ``BlockingIOError``: another one has it."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.sched_yield()  # the other one goes on
        else:
            return
