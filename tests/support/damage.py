"""What a disk does to bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwheel.wheel.errors import Damaged, UnsupportedVersion

_PAGE_BYTES = 4096
_LEAF = 2  # P_LEAF of lmdb.h


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def assert_every_change_is_seen(
    decode: Callable[[bytes], object],
    whole: bytes,
    *,
    of_version: Callable[[int], bool] = lambda _: False,
    match: str | None = None,
    error: type[Exception] = Damaged,
    longer: bool = True,
) -> None:
    """Each bit flipped, each cut, and a byte more (``longer``) is the ``error``, or for bits
    ``of_version`` another version."""
    for bit in range(len(whole) * 8):
        with pytest.raises(UnsupportedVersion if of_version(bit) else error, match=match):
            decode(flipped(whole, bit))
    for length in range(len(whole)):
        with pytest.raises(error, match=match):
            decode(whole[:length])
    if longer:
        with pytest.raises(error, match=match):
            decode(whole + b"\0")


def of_version_at(*places: int) -> Callable[[int], bool]:
    """Whether a bit is one of the bytes at these places."""
    return lambda bit: bit // 8 in places


def flip(path: Path, at: int = -1) -> None:
    """A bit of the byte there, or of the middle one. In place: the file stays the same one."""
    with path.open("r+b") as file:
        at = path.stat().st_size // 2 if at < 0 else at
        file.seek(at)
        changed = flipped(file.read(1), 4)
        file.seek(at)
        file.write(changed)


def cut(path: Path, nbytes: int = 1) -> None:
    """Take bytes from the end of a file."""
    path.write_bytes(path.read_bytes()[:-nbytes])


def forge_page(path: Path) -> None:
    """Let the first record of each leaf of an LMDB store lie behind the file: LMDB believes it, and
    reading it ends the process."""
    content = bytearray(path.read_bytes())
    for page in range(0, len(content), _PAGE_BYTES):
        number, flags = struct.unpack_from("<Q2xH", content, page)
        if number == page // _PAGE_BYTES and flags == _LEAF:
            struct.pack_into("<H", content, page + 16, 0xFFF0)
    path.write_bytes(content)
