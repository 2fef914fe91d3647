"""A record batch message from plain rows, without Arrow: byte for byte what Arrow would write.

Theory: for a batch of one row Arrow builds eleven arrays and a flatbuffer: 20 us in a tight loop,
and several times that where its code has left the processor's cache. But the message of a batch of
this schema always has the same shape. Its metadata has a constant length, and nothing in it changes
but the numbers: rows, the nulls of each column, where each buffer lies, the length of them all. So
the metadata is one ``struct``, and the buffers are joined lists.

    head | body length | rows | 26 buffers: offset, length | 11 nodes: length, nulls | the buffers
         8 bytes each; the flatbuffer's own constants between them                    8-byte aligned

Rules
- The bytes are a message of Arrow's format, whatever version of pyarrow is installed. A test
  compares them with those that pyarrow writes.
- The rows were checked (``plain.py``): nothing here looks at them again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

PlainHeader = tuple[bytes, bytes | None]
PlainRow = tuple[int, bytes, int | None, bytes | None, bytes | None, Sequence[PlainHeader]]
"""Due time in ms, topic, partition, key, value, headers; text as UTF-8."""

_METADATA = struct.Struct(
    "<"
    "40s"  # length of the metadata, 680; the flatbuffer's root and the table ``Message``
    "q"  # length of the body
    "24s"  # the table ``RecordBatch``
    "q"  # rows
    "4xI52q"  # 26 buffers
    "4xI22q"  # 11 nodes
)
_MESSAGE = bytes.fromhex(
    "ffffffffa802000014000000000000000c0016000600050008000c000c0000000003040018000000"
)
_RECORD_BATCH = bytes.fromhex("00000a0018000c00040008000a000000bc01000010000000")
_BUFFERS, _NODES = 26, 11
assert _METADATA.size == 8 + 680
_PADS = tuple(bytes(-size % 8) for size in range(8))

Column = tuple[bytes, bytes, bytes]
"""The buffers of a binary column: validity, ends, content."""


def encode_rows(
    rows: Sequence[PlainRow], created_ms: int | Sequence[int], cancels: Sequence[int] = ()
) -> bytes:
    """The message of at least one row, PAYLOAD schema; ``created_ms``: of all of them, or each.
    ``cancels``: of cancel rows, the offset that each of them names; empty: they are messages."""
    due, topics, partitions, keys, values, headers = zip(*rows, strict=True)
    count = len(due)
    none = bytes((count + 7) // 8)
    no_partition, partition = _numbers(partitions, none)
    _, topic = _binary(topics)
    no_key, key = _binary(keys)
    no_value, value = _binary(values)
    pairs = list(chain.from_iterable(headers))
    if pairs:
        names, contents = zip(*pairs, strict=True)
        _, name = _binary(names)
        no_content, content = _binary(contents)
        lists = _ends(map(len, headers), count)
    else:
        no_content, name, content = 0, _NOTHING, _NOTHING
        lists = bytes(4 * count + 4)
    created = (created_ms,) * count if isinstance(created_ms, int) else created_ms
    times = f"<{count}q"
    buffers = (
        *(b"", struct.pack(times, *due)),
        *(b"", struct.pack(times, *created)),
        *((b"", struct.pack(times, *cancels)) if cancels else (none, bytes(8 * count))),
        *(b"", *topic[1:]),
        *partition,
        *key,
        *value,
        *(b"", lists, b""),
        *(b"", *name[1:]),
        *content,
    )
    places: list[int] = []
    parts = [b""]
    at = 0
    for buffer in buffers:
        size = len(buffer)
        places += (at, size)
        if size:
            parts.append(buffer)
            if size & 7:
                parts.append(_PADS[size & 7])
            at += (size + 7) & ~7
    many = len(pairs)
    nulls = 0, 0, 0 if cancels else count, 0, no_partition, no_key, no_value, 0, 0, 0, no_content
    lengths = (count,) * 8 + (many,) * 3
    nodes = chain.from_iterable(zip(lengths, nulls, strict=True))
    parts[0] = _METADATA.pack(_MESSAGE, at, _RECORD_BATCH, count, _BUFFERS, *places, _NODES, *nodes)
    return b"".join(parts)


_NOTHING: Column = b"", bytes(4), b""


def _binary(values: Sequence[bytes | None]) -> tuple[int, Column]:
    """The number of missing values, and the column."""
    count = len(values)
    nulls = values.count(None)
    if not nulls:
        return 0, (b"", _ends(map(len, values), count), b"".join(values))  # type: ignore[arg-type]
    if nulls == count:
        return nulls, (bytes((count + 7) // 8), bytes(4 * count + 4), b"")
    present = [value or b"" for value in values]
    return nulls, (_validity(values), _ends(map(len, present), count), b"".join(present))


def _numbers(values: Sequence[int | None], none: bytes) -> tuple[int, tuple[bytes, bytes]]:
    """As ``_binary``, of int32: validity and content. ``none``: the validity of nulls alone."""
    count = len(values)
    nulls = values.count(None)
    if nulls == count:
        return nulls, (none, bytes(4 * count))
    content = struct.pack(f"<{count}i", *[value or 0 for value in values])
    return nulls, (_validity(values) if nulls else b"", content)


def _ends(lengths: Any, count: int) -> bytes:
    return struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0))


def _validity(values: Sequence[Any]) -> bytes:
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return int(bits, 2).to_bytes((len(values) + 7) // 8, "little")
