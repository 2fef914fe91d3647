"""Hashes that events are found by, and masks of the topics, clients and groups in a block.

Theory: hashes only narrow down where to look. Each event is compared with the question, so two
values with one hash cost time, and never make a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ...wheel.digest import id_hashes, key_hashes
from ...wheel.ids import MessageId
from ...wheel.schema import UInt32s, UInt64s, times
from ..events import STORED

HASHED = ("id", "key", "tag")
"""The names of the hash columns. ``id`` has the hashes of ``id`` and of ``origin``."""
MASKED = ("topic", "client", "group")
"""Columns that have a mask in each block."""
MASK_WORDS = 4
"""Words of 64 bits in a mask; a value sets one bit."""

Entries = tuple[UInt64s, UInt32s]
"""Hashes and their rows, shape (entries,) each."""


def entries_of(rows: pa.RecordBatch, first_row: int) -> dict[str, Entries]:
    """The hashes of a batch of events by the names in ``HASHED``. ``first_row``: number of the
    first."""
    numbers = np.arange(first_row, first_row + rows.num_rows, dtype=np.uint32)
    ids = [_entries(rows.column(name), numbers, _hashes_of_ids) for name in ("id", "origin")]
    entries = {"id": (np.concatenate([h for h, _ in ids]), np.concatenate([r for _, r in ids]))}
    for name in ("key", "tag"):
        entries[name] = _entries(rows.column(name), numbers, key_hashes)
    return entries


def hash_of_id(wanted: MessageId) -> int:
    return int(id_hashes(pa.array([wanted.group]), np.array([wanted.offset], np.int64))[0])


def hash_of_value(value: bytes | str) -> int:
    """The hash of a key, a tag, or a value of one of ``MASKED``."""
    return int(key_hashes(pa.array([value]))[0])


def mask_of(column: pa.Array) -> UInt64s:
    """A mask with the bits of all values of a column, shape (``MASK_WORDS``,)."""
    if pa.types.is_dictionary(column.type):
        used = column.indices.unique()
        values = column.dictionary.take(used)
    else:
        values = column.unique().drop_null()
    bits = np.zeros(64 * MASK_WORDS, np.uint8)
    bits[(key_hashes(values) % np.uint64(64 * MASK_WORDS)).astype(np.int64)] = 1
    mask: UInt64s = np.packbits(bits, bitorder="little").view("<u8")
    return mask


def may_have(masks: UInt64s, value: str) -> np.typing.NDArray[np.bool_]:
    """True for blocks that may have a value. ``masks``: shape (blocks, ``MASK_WORDS``)."""
    bit = hash_of_value(value) % (64 * MASK_WORDS)
    word = masks[:, bit // 64] >> np.uint64(bit % 64)
    return (word & np.uint64(1)).astype(np.bool_)


def _entries(column: pa.Array, numbers: UInt32s, hashes: Callable[[pa.Array], UInt64s]) -> Entries:
    if column.null_count == len(column):
        return np.empty(0, np.uint64), np.empty(0, np.uint32)
    if column.null_count:
        numbers = numbers[np.asarray(column.is_valid())]
        column = column.drop_null()
    return hashes(column), numbers


def _hashes_of_ids(ids: pa.StructArray) -> UInt64s:
    batch = pa.RecordBatch.from_struct_array(ids)
    return id_hashes(batch.column("group"), times(batch, "offset"))


assert set(HASHED) <= set(STORED.names)
assert set(MASKED) <= set(STORED.names)
