"""Where a secret stands: ``file:PATH`` or ``env:NAME``, in the place of the secret itself.

Theory: whoever can list processes reads their command lines, and settings are copied, mailed and
committed. So a setting names the place, and the secret is read there by the one who needs it.

    sasl.password=file:/run/secrets/kafka      read anew each time
    sasl.password=env:KAFKA_PASSWORD           read once, and removed from the environment

Rules
- A file is a regular one that nobody else can read.
- A variable is removed when it is read, or every process that this one starts had it, too. What the
  kernel shows of the environment in which this process itself was started stays as it was, for its
  user and for root: a file is better.
- Nothing here shows a secret in an error or a ``repr``: errors name the file or the variable.
"""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..wheel.errors import InvalidConfiguration
from .regularfile import read_regular

SECRET_BYTES_MAX = 8 << 10
_FILE, _VARIABLE = "file:", "env:"
_taken: dict[str, str] = {}
"""Variables that were read and removed: several clients of a process may name the same one."""
_taking = threading.Lock()


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """The place of a secret, as it was written: ``text``."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Check ``file:PATH`` or ``env:NAME``. Errors: ``InvalidConfiguration``. The text is not
        shown, as it may be the secret itself."""
        if not is_place(text):
            raise InvalidConfiguration(
                "a secret is given by the place where it stands",
                got="a text that names no place; it is not shown, as it may be the secret",
                limit="file:PATH or env:NAME",
                remedy="Write it to a file with mode 0600, and give file:PATH",
            )
        return cls(text)

    @property
    def shown(self) -> str:
        """The place for people: the path, or ``the variable NAME``."""
        if self.text.startswith(_FILE):
            return self.text.removeprefix(_FILE)
        return f"the variable {self.text.removeprefix(_VARIABLE)}"

    def read(self) -> str:
        """The secret, without the end of its line. Errors: ``InvalidConfiguration``: it cannot be
        read, is empty, too long or no text, or others can read or write its file."""
        if self.text.startswith(_FILE):
            try:
                content = read_private(self.shown, SECRET_BYTES_MAX)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise self.unusable("cannot be read", reason, "Write the secret to it") from None
        else:
            content = _take(self.text.removeprefix(_VARIABLE)).encode(errors="surrogateescape")
        try:
            secret = content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise self.unusable("has a secret that is no UTF-8", "", "Write it anew") from None
        if not secret:
            raise self.unusable("is empty or not there", "", "Write the secret to it")
        return secret

    def take(self) -> None:
        """Remove a variable now, for who reads it later and starts processes before. A file stays
        what it is."""
        if self.text.startswith(_VARIABLE):
            _take(self.text.removeprefix(_VARIABLE))

    def unusable(self, what: str, got: str, remedy: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"{self.shown} {what}", got=got or None, remedy=remedy)


def is_place(text: str) -> bool:
    """Returns True for the place of a secret."""
    return text.startswith((_FILE, _VARIABLE)) and text not in (_FILE, _VARIABLE)


def _take(name: str) -> str:
    """The value of a variable, which is removed; empty if it was never there."""
    with _taking:
        value = os.environ.pop(name, None)
        if value is not None:
            _taken[name] = value
        return _taken.get(name, "")


def check_private(path: str | os.PathLike[str]) -> None:
    """Check that a file is a regular one of this process's user, or root's, which nobody else can
    read or write: whoever can write it chooses who gets in. Errors: ``InvalidConfiguration``, with
    what to do; ``OSError``."""
    _check(path, Path(path).stat())


def read_private(path: str | os.PathLike[str], bytes_max: int) -> bytes:
    """The content of a file for which ``check_private`` holds. Errors: as of ``check_private`` and
    ``read_regular``."""
    status, content = read_regular(path, bytes_max)
    _check(path, status)
    return content


def _check(path: str | os.PathLike[str], status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _unusable(path, "is no regular file", "", "Give a file")
    if status.st_uid not in (0, os.geteuid()):
        remedy = "Let the user that runs this own it"
        raise _unusable(path, "belongs to another user", f"user {status.st_uid}", remedy)
    if mode & 0o077:
        remedy = f"Run: chmod 600 {os.fspath(path)}"
        raise _unusable(path, "is open to others", f"mode {mode:04o}", remedy)


def _unusable(
    path: str | os.PathLike[str], what: str, got: str, remedy: str
) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{os.fspath(path)} {what}",
        got=got or None,
        limit="a regular file with mode 0600 that belongs to this user or to root",
        remedy=remedy,
    )
