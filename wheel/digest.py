"""A 64-bit digest of a message's content: topic, key, value and headers.

Theory: to check later whether a message arrived as it was sent, it is enough to keep a number that
two different messages hardly ever share. Each field becomes one word of 64 bits:

    null            all ones
    up to 128 B     length + sum over its 8-byte pieces, little-endian, the last one filled up with
                    zeros, of mix(piece ^ number of the piece * step)
    longer          length << 32 | CRC-32C

and the words are chained, ``digest = mix(digest ^ word)``: topic (its CRC-32C alone), key, value
and, if there are any, headers (the sum over them of mix(mix(number * step ^ key) ^ value)). Pieces
are mixed for all rows at once: 0.02 us for a key, where a call of CRC-32C a key takes 0.15 us; long
values are where the processor's CRC is faster. It finds faults, not forgeries: two messages with
one digest can be made on purpose.

Rules
- It depends on the content alone: not on the row's place in a batch, nor on the batch's buffers.
- Offset, times and partition are not in it: they are compared by themselves.

Source: the mixing function is the finalizer of G. Steele, D. Lea, C. Flood, "Fast splittable
pseudorandom number generators" (SplitMix).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from . import compute as pc
from .schema import Int64s, UInt32s, UInt64s

_NULL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""In place of length and CRC; no value is that long."""
_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)
_SHORT_MAX = 128
"""Longer values, in bytes, go through CRC-32C one by one."""
_ROWS = 8192
"""Rows at a time, so that what is worked on stays in the processor's cache."""


def digests(topic: pa.Array, key: pa.Array, value: pa.Array, headers: pa.Array) -> UInt64s:
    """Digests of many rows, shape (rows,). The columns have the types of ``schema.ROW``, or those
    with 64-bit lengths; ``topic`` may be a dictionary. No headers may be null or an empty list."""
    return content_digests(topic_crcs(topic), key, value, headers)


def content_digests(
    topics: UInt32s, key: pa.Array, value: pa.Array, headers: pa.Array | None
) -> UInt64s:
    """As ``digests``, by the CRCs of the topics. ``headers`` None: no row has any."""
    digest = _mix(topics.astype(np.uint64))
    digest = _mix(digest ^ _words(key))
    digest = _mix(digest ^ _words(value))
    if headers is None or headers.null_count == len(headers):
        return digest
    flat = headers.flatten()
    if not len(flat):
        return digest
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0), dtype=np.int64)
    ends = np.cumsum(counts)
    starts = ends - counts
    # Each header's number in its row goes in, so a plain sum keeps their order apart.
    number = np.arange(len(flat)) - np.repeat(starts, counts)
    pairs = _mix(number.astype(np.uint64) * _STEP ^ _few(flat.field(0)))
    pairs = _mix(pairs ^ _words(flat.field(1)))
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(pairs)])
    rows = np.flatnonzero(counts)
    digest[rows] = _mix(digest[rows] ^ (running[ends[rows]] - running[starts[rows]]))
    return digest


def key_hashes(key: pa.Array) -> UInt64s:
    """A hash of each key, shape (rows,), by which a key is looked for; a null has one of its own.
    Two keys with one hash can be made on purpose."""
    return _mix(_words(key))


def id_hashes(group: pa.Array, offset: Int64s) -> UInt64s:
    """A hash of each message id, by its group and its offset; no group is null."""
    return _mix(_few(group) ^ _mix(offset.view(np.uint64)))


def topic_crcs(topic: pa.Array) -> UInt32s:
    """CRC-32C of each name, shape (rows,); cheap because names repeat. A null is an empty name."""
    names, indices = _distinct(topic)
    crcs = np.array([crc32c(name.encode()) for name in names.to_pylist()], np.uint32)
    return crcs[indices]


def _few(array: pa.Array) -> UInt64s:
    """As ``_words``, for strings that repeat: each different one is worked on once."""
    distinct, indices = _distinct(array)
    return _words(distinct)[indices]


def _distinct(array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Distinct values, the empty one last, and for each row which of them it has."""
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    values = encoded.dictionary
    indices = encoded.indices
    if indices.null_count:
        indices = pc.fill_null(indices, pa.scalar(len(values), indices.type))
    values = pa.concat_arrays([values, pa.array([""], values.type)])
    return values, np.asarray(indices, dtype=np.int64)


def _words(array: pa.Array) -> UInt64s:
    """One word for each value, shape (rows,)."""
    rows = len(array)
    if array.null_count == rows:
        return np.full(rows, _NULL)
    _, lengths, data = array.buffers()
    kind = np.dtype(np.int64 if array.type in (pa.large_binary(), pa.large_utf8()) else np.int32)
    bounds = np.frombuffer(lengths, kind, rows + 1, array.offset * kind.itemsize).astype(np.int64)
    content = np.frombuffer(data or b"", np.uint8)
    if len(content) < 8:
        content = np.concatenate([content, np.zeros(8, np.uint8)])
    words = np.empty(rows, np.uint64)
    for row in range(0, rows, _ROWS):
        words[row : row + _ROWS] = _short(content, bounds[row : row + _ROWS + 1])
    view = content.data
    for row in np.flatnonzero(np.diff(bounds) > _SHORT_MAX).tolist():
        start, end = int(bounds[row]), int(bounds[row + 1])
        words[row] = (end - start) << 32 | crc32c(view[start:end])
    if array.null_count:
        words[np.asarray(array.is_null())] = _NULL
    return words


def _short(content: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> UInt64s:
    """The words of values up to ``_SHORT_MAX`` bytes; of longer ones, anything."""
    # The eight bytes from each position on, as a number.
    last = len(content) - 8
    eights = np.lib.stride_tricks.as_strided(content[:8].view("<u8"), (last + 1,), (1,))
    starts, lengths = bounds[:-1], np.diff(bounds)
    total = lengths.astype(np.uint64)
    lengths = np.where(lengths > _SHORT_MAX, 0, lengths)
    shortest, longest = int(lengths.min()), int(lengths.max())
    keys = np.arange(_SHORT_MAX // 8, dtype=np.uint64) * _STEP
    for key, at in zip(keys[: -(-longest // 8)], range(0, longest, 8), strict=True):
        if shortest >= at + 8:
            total += _mix(eights[starts + at] ^ key)
            continue
        reaching = np.flatnonzero(lengths > at)
        place = starts[reaching] + at
        # Neither bytes behind the value nor bytes behind the buffer.
        before = np.minimum(place, last)
        piece = eights[before] >> (8 * (place - before)).astype(np.uint64)
        bits = 8 * np.minimum(lengths[reaching] - at, 8).astype(np.uint64)
        total[reaching] += _mix(piece & (_NULL >> (64 - bits)) ^ key)
    return total


def _mix(word: UInt64s) -> UInt64s:
    """A bijection of 64 bits in which each bit of the input flips half of the output's."""
    word = word + _STEP
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed: UInt64s = word ^ (word >> np.uint64(31))
    return mixed
