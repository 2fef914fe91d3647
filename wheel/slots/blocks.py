"""Many blocks of slot files, encoded at once.

Theory: a spill makes thousands of small blocks. Encoded one by one, each pays for memory of its own
and for acquiring the interpreter lock again; that is two thirds of the cost. Here Arrow writes all
of them one after the other into one piece of memory, in a single call, and where each ends follows
from the messages themselves:

    +------------+-----------------+----------+---------+
    | 0xFFFFFFFF | metadata length | metadata | body    |
    | u32        | i32             |          |         |
    +------------+-----------------+----------+---------+
    0            4                 8          a multiple of 8, its length stands in the metadata

The metadata is a FlatBuffer whose root is Arrow's ``Message``; its fourth field is the length of
the body. The bytes are the same as of ``RecordBatch.serialize``, block by block.

In a slot file each block is *sealed*: its body is eight bytes longer, and they hold the block's own
checksum. Arrow readers skip them. So it can be decided block by block what of a damaged file is
sound. The checksum covers the block's position, too: a slot file that was sent as the value of a
message is not mistaken for blocks of the file that holds the message.

Source: "Encapsulated message format" and ``Message.fbs`` in the Arrow columnar format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ..files import Bytes
from ..findings import CheckedFile
from ..rows import without_slack
from ..schema import times
from .slot import begins_ms, ends_ms, stem_of

_PREFIX = struct.Struct("<Ii")
_OFFSET = struct.Struct("<I")
_VTABLE = struct.Struct("<i")
_FIELD = struct.Struct("<H")
_LENGTH = struct.Struct("<q")
_CONTINUATION = 0xFFFFFFFF
# +-------+--------------------------------------------------------------+
# | magic | crc                                                          |
# | SWBK  | u32, CRC-32C of the block's position (i64) and of all before |
# +-------+--------------------------------------------------------------+
_SEAL = struct.Struct("<4sI")
_POSITION = struct.Struct("<q")
_SEAL_MAGIC = b"SWBK"
MARKER = b"\xff\xff\xff\xff"
assert _SEAL.size == 8  # or what follows in the file would not be aligned
_BODY_LENGTH_AT = 4 + 2 * 3
"""Place of the body length's entry in the vtable: behind its two lengths and three fields."""
_OVERHEAD_BYTES = 4096
"""A bound on what metadata and padding of one block take."""


def encode_blocks(rows: pa.RecordBatch, starts: Sequence[int]) -> list[memoryview]:
    """The blocks that begin at ``starts`` (ascending, the first is 0), as views of one buffer."""
    borders = [*starts, rows.num_rows]
    blocks = [rows.slice(start, stop - start) for start, stop in pairwise(borders)]
    if len(rows.column("headers").values):
        blocks = [without_slack(block) for block in blocks]
    table = pa.Table.from_batches(blocks)
    # Pages that nothing is written to cost nothing.
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
    """The position behind the encapsulated message that begins at ``start``."""
    return _end_and_length(data, start)[0]


def _end_and_length(data: memoryview, start: int) -> tuple[int, int]:
    """The positions behind a message and of the encoded length of its body; 0: it has no body."""
    marker, metadata_bytes = _PREFIX.unpack_from(data, start)
    assert marker == _CONTINUATION, "not an Arrow IPC message"
    metadata = start + _PREFIX.size
    root = metadata + _OFFSET.unpack_from(data, metadata)[0]
    vtable = root - _VTABLE.unpack_from(data, root)[0]
    field = 0
    if _FIELD.unpack_from(data, vtable)[0] > _BODY_LENGTH_AT:
        field = _FIELD.unpack_from(data, vtable + _BODY_LENGTH_AT)[0]
    body = _LENGTH.unpack_from(data, root + field)[0] if field else 0
    return int(metadata + metadata_bytes + body), root + field if field else 0


def seal(block: Bytes, at: int) -> tuple[memoryview, bytes]:
    """A block of ``encode_blocks`` with the length that includes its seal, and the seal, for a slot
    file in which it begins at ``at``. The length is written in place where that is possible."""
    view = memoryview(block)
    if view.readonly:
        view = memoryview(bytearray(view))
    _, length_at = _end_and_length(view, 0)
    assert length_at, "a block without rows"
    [length] = _LENGTH.unpack_from(view, length_at)
    _LENGTH.pack_into(view, length_at, length + _SEAL.size)
    return view, _SEAL.pack(_SEAL_MAGIC, _crc(view, at))


def _crc(block: memoryview, at: int) -> int:
    return int(crc32c(block, crc32c(_POSITION.pack(at))))


def sound_end(data: memoryview, start: int) -> int | None:
    """The position behind the sealed block that begins at ``start``; None when there is none, or
    its checksum is wrong. ``data`` may be anything."""
    try:
        end = message_end(data, start)
        if not start < end - _SEAL.size or end > len(data):
            return None
        return end if is_sound(data[start:end], start) else None
    except (struct.error, AssertionError, OverflowError):
        return None


def is_sound(block: memoryview, at: int) -> bool:
    """True if these bytes end with the seal of a block that begins at position ``at`` of its file.
    Who reads a block by a position that he remembers would else decode what a repair, or a bad
    sector, has put there since."""
    magic, crc = _SEAL.unpack_from(block, len(block) - _SEAL.size)
    return bool(magic == _SEAL_MAGIC and _crc(block[: -_SEAL.size], at) == crc)


def sound_blocks(data: memoryview) -> Iterator[tuple[int, int]]:
    """Beginning and end of each sound block in the bytes of a slot file, whatever else is there."""
    whole = bytes(data)
    at = whole.find(MARKER)
    while at >= 0:
        end = sound_end(data, at) if at % 8 == 0 else None
        if end is not None:
            yield at, end
        at = whole.find(MARKER, end or _behind_damage(data, at))


def _behind_damage(data: memoryview, at: int) -> int:
    """The position at which the search for sound blocks goes on: behind the message at ``at``, if
    what follows confirms its end, as blocks inside of it are only part of a message's value."""
    try:
        end = message_end(data, at)
    except (struct.error, AssertionError, OverflowError):
        return at + 1
    ends = end == len(data) or bytes(data[max(0, end) : end + len(MARKER)]) == MARKER
    return end if end > at and ends else at + 1


def check_block(
    item: CheckedFile, position: int, batch: pa.RecordBatch, slot: int, highest: int
) -> int:
    """Report to ``item`` what is wrong with one block's rows; returns the highest offset so far.
    ``highest``: that of the blocks before."""
    if batch.num_rows == 0:
        item.fault(position, "a block with rows", "none")
        return highest
    offset, due = times(batch, "offset"), times(batch, "due")
    strays = np.flatnonzero((due < begins_ms(slot)) | (due >= ends_ms(slot)))
    if len(strays):
        row = int(strays[0])
        item.fault(
            position,
            f"rows due in slot {stem_of(slot)}",
            f"{len(strays)} others, the first of offset {offset[row]}, due {due[row]} ms",
        )
    step, later = np.diff(offset), np.diff(due)
    wrong = np.flatnonzero((later < 0) | ((later == 0) & (step <= 0)))
    if len(wrong):
        row = int(wrong[0])
        item.fault(
            position,
            f"rows in (due, offset) order behind ({due[row]}, {offset[row]})",
            f"({due[row + 1]}, {offset[row + 1]})",
        )
    lowest = int(offset.min())
    if lowest <= highest:
        item.fault(position, f"offsets above {highest}, that of the block before", lowest)
    return max(highest, int(offset.max()))
