"""Kafka's own partitioner, for a whole column of keys at once.

A record without a partition is sent where every other Kafka producer would send its key: murmur2 of
the key, sign bit cleared, modulo the number of partitions. Otherwise two producers would put a key
into two partitions, and lose its order. For example, ``customer 7`` has the hash 0xDF242E6E, and
goes to partition 2 of 6. librdkafka does so with ``murmur2_random``; kafka-python takes several
microseconds a key, so its sink uses this instead.

Source: Apache Kafka, ``org.apache.kafka.common.utils.Utils.murmur2``; the algorithm is MurmurHash2
by A. Appleby, with Kafka's seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..wheel.schema import Int64s, UInt32s

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)


def murmur2(keys: pa.Array) -> UInt32s:
    """Hashes of a binary column, shape (rows,). A null hashes like an empty key.

    Each step hashes one word of all keys that have so many, so there are as many steps as the
    longest key has words. Keys are ordered by length, so that a step touches no shorter ones.
    """
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    if keys.null_count:
        lengths[np.asarray(keys.is_null())] = 0
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    hashes = _SEED ^ lengths.astype(np.uint32)
    words = lengths // 4
    for word in range(int(words[0]) if len(words) else 0):
        live = int(np.searchsorted(-words, -word, side="left"))
        first = starts[:live] + word * 4
        k = _byte(data, first) | _byte(data, first + 1) << np.uint32(8)
        k |= _byte(data, first + 2) << np.uint32(16) | _byte(data, first + 3) << np.uint32(24)
        k *= _M
        k ^= k >> _R
        k *= _M
        hashes[:live] = hashes[:live] * _M ^ k
    tail, tail_bytes = starts + words * 4, lengths % 4
    for size in (3, 2, 1):
        longer = tail_bytes >= size
        hashes[longer] ^= _byte(data, tail[longer] + (size - 1)) << np.uint32(8 * (size - 1))
    hashes[tail_bytes >= 1] *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def partitions_of(keys: pa.Array, count: int) -> Int64s:
    """The partition of each key in a topic of ``count`` partitions, shape (rows,)."""
    positive = murmur2(keys) & np.uint32(0x7FFFFFFF)
    return positive.astype(np.int64) % count


def _byte(data: npt.NDArray[np.uint8], positions: Int64s) -> UInt32s:
    return data[positions].astype(np.uint32)
