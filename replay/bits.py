"""A set of offsets that costs a bit each.

Theory: offsets are dense, and those in one set lie close together. So one piece of 32 KiB holds the
bits of 2**18 consecutive offsets, and exists only if at least one of them is in the set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..wheel.schema import Int64s, Mask

_PIECE_BITS = 18


class Bits:
    """A set of offsets, empty at first. ``count``: how many offsets are in it."""

    def __init__(self) -> None:
        self._pieces: dict[int, npt.NDArray[np.uint8]] = {}
        self.count = 0

    def add(self, offsets: Int64s) -> None:
        for number, inside in self._by_piece(np.unique(offsets)):
            empty = np.zeros((1 << _PIECE_BITS) // 8, np.uint8)
            piece = self._pieces.setdefault(number, empty)
            new = inside[(piece[inside >> 3] >> (inside & 7).astype(np.uint8)) & 1 == 0]
            np.bitwise_or.at(piece, new >> 3, np.uint8(1) << (new & 7).astype(np.uint8))
            self.count += len(new)

    def has(self, offsets: Int64s) -> Mask:
        """True for those of ``offsets``, which must ascend, that are in the set; shape (rows,)."""
        parts = [np.zeros(0, np.bool_)]
        for number, inside in self._by_piece(offsets):
            piece = self._pieces.get(number)
            if piece is None:
                parts.append(np.zeros(len(inside), np.bool_))
            else:
                bits = (piece[inside >> 3] >> (inside & 7).astype(np.uint8)) & 1
                parts.append(bits.astype(np.bool_))
        return np.concatenate(parts)

    @staticmethod
    def _by_piece(offsets: Int64s) -> Iterator[tuple[int, Int64s]]:
        numbers = offsets >> _PIECE_BITS
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for part in np.split(offsets, edges):
            if len(part):
                yield int(part[0] >> _PIECE_BITS), part & ((1 << _PIECE_BITS) - 1)
