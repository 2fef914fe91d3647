"""What a disk does to bytes."""

from __future__ import annotations

from pathlib import Path


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


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
