"""Files whose content may be exchanged while the process runs: certificates, tokens, rights.

Theory: a value is made of one or more files, and replaced whole when they change. Whoever uses it
takes the value that stands at the moment, so a new certificate counts for the next connection and
no restart is needed.

    files --look--> changed? --read--> load --> value
                                        | error: an alarm; the value that stands, stays

Rules
- A file that cannot be read, or that ``load`` refuses, replaces nothing: an error in a file would
  otherwise lock everybody out, or let everybody in.
- A look reads nothing while time, inode and size of each file are what they were, and loads nothing
  while the content is the same: a file that is only touched ends no connection.
- A symbolic link is followed, as mounted secrets are links that are swapped; but it has to lead to
  a regular file, since a pipe would hold the reader for ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from ..wheel.errors import InvalidConfiguration, SlotwheelError
from .regularfile import read_regular

FILE_BYTES_MAX = 4 << 20
"""A larger file is refused: it holds no certificates and no rights, and would fill the memory."""

T = TypeVar("T")
_Stamp = tuple[tuple[int, int, int], ...]


def _no_alarm(_error: SlotwheelError) -> None:
    """Does nothing; ``WatchedFiles.error`` has the reason."""


class WatchedFiles(Generic[T]):
    """A value that ``load`` makes of the contents of ``paths``, in their order. Thread-safe.

    ``load`` raises ``SlotwheelError`` for a content that it refuses. ``alarm`` gets the error of a
    look, once for each content that is refused. Errors on construction: those of ``load``,
    ``InvalidConfiguration`` for a file that cannot be read.
    """

    every_s: ClassVar[float] = 10.0
    """All are looked at so often, s. Connections end within five seconds of a look, so who lost a
    right is out within fifteen."""

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        load: Callable[[Sequence[bytes]], T],
        alarm: Callable[[SlotwheelError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = tuple(Path(path) for path in paths)
        self.error: SlotwheelError | None = None
        """The reason for which the files as they are now are not in use; None: they are."""
        self._load = load
        self._alarm = alarm or _no_alarm
        self._clock = clock
        self._looking = threading.Lock()
        self._stamp, self._contents = self._read()
        self._value = load(self._contents)
        self._looked_s = clock()

    @property
    def value(self) -> T:
        """The value that stands."""
        return self._value

    @property
    def fresh(self) -> T:
        """The value that stands, after a look if the last one is ``every_s`` ago: for a
        program that has no thread to look regularly."""
        if self._clock() - self._looked_s >= self.every_s:
            self.look()
        return self._value

    def look(self) -> bool:
        """Look at the files, and load them if they changed. Returns True if the value is new."""
        with self._looking:
            self._looked_s = self._clock()
            try:
                if self._stamp == tuple(_stamp_of(path.stat()) for path in self.paths):
                    return False
                stamp, contents = self._read()
                if contents != self._contents:
                    self._value = self._load(contents)
            except (SlotwheelError, OSError) as error:
                self._refuse(error if isinstance(error, SlotwheelError) else _unreadable(error))
                return False
            changed = contents != self._contents
            self._stamp, self._contents, self.error = stamp, contents, None
            return changed

    def _refuse(self, error: SlotwheelError) -> None:
        known, self.error = self.error, error
        if known is None or str(known) != str(error):
            self._alarm(error)

    def _read(self) -> tuple[_Stamp, list[bytes]]:
        stamps, contents = [], []
        for path in self.paths:
            try:
                status, content = read_regular(path, FILE_BYTES_MAX)
            except OSError as error:
                raise _unreadable(error) from None
            stamps.append(_stamp_of(status))
            contents.append(content)
        return tuple(stamps), contents


def _stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_ino, status.st_size


def _unreadable(error: OSError) -> InvalidConfiguration:
    return InvalidConfiguration(
        "a file cannot be read",
        got=f"{error.filename}: {(error.strerror or str(error)).lower()}",
        remedy="Check the path, and that this user may read the file",
    )
