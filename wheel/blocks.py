"""Many blocks of slot files, encoded at once.

Theory: a spill makes thousands of small blocks. Encoded one by one each pays for memory of its own
and for winning the interpreter back; that is two thirds of the cost. Here Arrow writes all of them
one after the other into one piece of memory, in a single call, and where each ends follows from the
messages themselves:

    +------------+-----------------+----------+---------+
    | 0xFFFFFFFF | metadata length | metadata | body    |
    | u32        | i32             |          |         |
    +------------+-----------------+----------+---------+
    0            4                 8          a multiple of 8, its length stands in the metadata

The metadata is a FlatBuffer whose root is Arrow's ``Message``; its fourth field is the length of
the body. The bytes are the same as of ``RecordBatch.serialize``, block by block.

Source: "Encapsulated message format" and ``Message.fbs`` in the Arrow columnar format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from .rows import without_slack

_PREFIX = struct.Struct("<Ii")
_OFFSET = struct.Struct("<I")
_VTABLE = struct.Struct("<i")
_FIELD = struct.Struct("<H")
_LENGTH = struct.Struct("<q")
_CONTINUATION = 0xFFFFFFFF
_BODY_LENGTH_AT = 4 + 2 * 3
"""In the vtable: behind its own two lengths and the three fields before."""
_OVERHEAD_BYTES = 4096
"""More than what metadata and padding of one block take."""


def encode_blocks(rows: pa.RecordBatch, starts: Sequence[int]) -> list[memoryview]:
    """The blocks that begin at ``starts`` (ascending, the first is 0), as views of one buffer."""
    borders = [*starts, rows.num_rows]
    blocks = [rows.slice(start, stop - start) for start, stop in pairwise(borders)]
    if len(rows.column("headers").values):
        blocks = [without_slack(block) for block in blocks]
    table = pa.Table.from_batches(blocks)
    # What is not written of it costs nothing.
    buffer = pa.allocate_buffer(rows.nbytes + _OVERHEAD_BYTES * (len(blocks) + 1))
    try:
        _write(pa.FixedSizeBufferWriter(buffer), table)
    except OSError:  # an estimate must not stop a spill, which would take it for a full disk
        grown = pa.BufferOutputStream()
        _write(grown, table)
        buffer = grown.getvalue()
    view = memoryview(buffer)
    ends = [message_end(view, 0)]  # of the schema, which stands in the file already
    for _ in blocks:
        ends.append(message_end(view, ends[-1]))
    return [view[start:end] for start, end in pairwise(ends)]


def _write(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def message_end(data: memoryview, start: int) -> int:
    """Where the encapsulated message that begins at ``start`` ends."""
    marker, metadata_bytes = _PREFIX.unpack_from(data, start)
    assert marker == _CONTINUATION, "not an Arrow IPC message"
    metadata = start + _PREFIX.size
    root = metadata + _OFFSET.unpack_from(data, metadata)[0]
    vtable = root - _VTABLE.unpack_from(data, root)[0]
    body = 0
    if _FIELD.unpack_from(data, vtable)[0] > _BODY_LENGTH_AT:
        field = _FIELD.unpack_from(data, vtable + _BODY_LENGTH_AT)[0]
        body = _LENGTH.unpack_from(data, root + field)[0] if field else 0
    return int(metadata + metadata_bytes + body)
