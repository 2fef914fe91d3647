"""Tokens: random texts that prove who calls. A server knows only their SHA-256.

Theory: a token is 256 random bits, so its digest needs no salt and no slow function: nobody finds
it by trying. A file of digests that is read by a stranger lets nobody in.

Rules
- A token is never an argument of a command or a value in a file of settings, which others can see:
  ``file:PATH`` names its place, and it is read when a connection is opened, so that a new token in
  the file counts without a restart.
- Nothing here shows a token in an error or a ``repr``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..wheel.errors import InvalidConfiguration
from .regularfile import read_regular

PREFIX = "swt_"
"""A token begins so, and a scanner of repositories can find one that was committed."""
TOKEN_BYTES_MAX = 8 << 10
"""A longer token is refused unread: it would not fit into a hello."""
_RANDOM_BYTES = 32
_FILE = "file:"


def new_token() -> str:
    """A new random token of 256 bits: ``swt_`` and 43 characters."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: str) -> str:
    """The SHA-256 of a token, 64 hexadecimal digits; empty for no token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest() if token else ""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """The place of a secret. Its ``repr`` shows the place alone."""

    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Decode ``file:PATH``. Errors: ``InvalidConfiguration``. The text is not shown, as it may
        be the secret itself."""
        if not text.startswith(_FILE) or text == _FILE:
            raise InvalidConfiguration(
                "a token is given by the file in which it stands",
                got="a text that names no file; it is not shown, as it may be the token",
                limit="file:PATH",
                remedy="Write it to a file with mode 0600, and give file:PATH",
            )
        return cls(text.removeprefix(_FILE))

    def read(self) -> str:
        """The secret as it is now, without white space around it. Errors: ``InvalidConfiguration``:
        it cannot be read, is empty, too long or no plain text, or others can read or write it."""
        try:
            content = read_private(self.path, TOKEN_BYTES_MAX)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be read",
                got=(error.strerror or str(error)).lower(),
                remedy="Write the token to it, with mode 0600",
            ) from None
        secret = content.decode("ascii", "replace").strip()
        if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise InvalidConfiguration(
                f"{self.path} has no usable token",
                got=f"{len(secret)} characters",
                limit=f"1 to {TOKEN_BYTES_MAX} printable ASCII characters without spaces",
                remedy="Make one with 'slotwheel token new'",
            )
        return secret


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
