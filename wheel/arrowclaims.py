"""The sizes that messages of an Arrow stream claim, read from their metadata alone.

Theory: Arrow trusts what it reads. A compressed buffer becomes as large as it says, a column as
long as it says. So who reads what somebody sent looks at these numbers first: nothing is
decompressed, and nothing allocated, to find them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
"""Values of ``MessageHeader`` in Arrow's Message.fbs."""
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
"""Fields of ``Message`` and of ``RecordBatch``, by their number in the schema."""
_BUFFER = struct.Struct("<qq")


_PLAIN = (
    *(pa.types.is_integer, pa.types.is_timestamp, pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_binary, pa.types.is_large_binary),
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map, pa.types.is_struct)


class ArrowClaim(NamedTuple):
    """One message of a stream. ``rows``, ``compressed``, ``nbytes``: of a record batch; ``nbytes``:
    of all its buffers as they will be in memory."""

    kind: int
    rows: int = 0
    compressed: bool = False
    nbytes: int = 0


def claims(stream: bytes) -> Iterator[ArrowClaim]:
    """The claim of each message of a stream. Errors: those in ``CLAIM_ERRORS``."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)):
        metadata = message.metadata.to_pybytes()
        kind, batch = _header(metadata)
        if kind != RECORD_BATCH:
            yield ArrowClaim(kind)
            continue
        length = _field(metadata, batch, _LENGTH)
        rows = struct.unpack_from("<q", metadata, length)[0] if length else 0
        if rows < 0:
            raise ValueError(f"a batch of {rows} rows")
        if not _field(metadata, batch, _COMPRESSION):
            _check_buffers(metadata, batch, message.body)
            yield ArrowClaim(kind, rows, False, len(message.body or b""))
            continue
        sizes = _claimed_sizes(metadata, batch, message.body or pa.py_buffer(b""))
        yield ArrowClaim(kind, rows, True, sum(sizes))


def is_plain_batch(message: pa.Message) -> bool:
    """True if a message is a record batch that is not compressed, with its buffers in its body.
    Errors: those in ``CLAIM_ERRORS``."""
    content = message.metadata.to_pybytes()
    kind, batch = _header(content)
    if kind != RECORD_BATCH or _field(content, batch, _COMPRESSION):
        return False
    _check_buffers(content, batch, message.body)
    return True


def plain_rows(data: pa.Buffer | pa.Message, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a record batch message that somebody else may have written; ``schema`` has plain
    types. Errors: ``ValueError``: it is compressed, and could claim to be gigabytes; ``EOFError``,
    ``OSError``, and those of Arrow: it is no record batch."""
    message = data if isinstance(data, pa.Message) else pa.ipc.read_message(data)
    try:
        plain = is_plain_batch(message)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a message of Arrow: {error}") from None
    if not plain:
        raise ValueError(f"a {message.type} where one that is not compressed is expected")
    return pa.ipc.read_record_batch(message, schema)


def plain_stream(data: pa.Buffer) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of a stream that somebody else may have written. Errors, also while the
    batches are read: as of ``plain_rows``; ``ValueError``, too, for a type that is not plain."""
    schema = pa.ipc.open_stream(data).schema
    for field in schema:
        if not is_plain_type(field.type):
            raise ValueError(f"column {field.name} has type {field.type}, not one of {PLAIN_TYPES}")
    messages = pa.ipc.MessageReader.open_stream(data)
    next(messages)
    return schema, (plain_rows(message, schema) for message in messages)


def is_plain_type(kind: pa.DataType) -> bool:
    """True if a column of that type is as large as its buffers. A dictionary, a view, a run or a
    null stands for a value as often as it likes: 4 MB of views of one text become gigabytes of it
    when they are cast."""
    if any(is_of(kind) for is_of in _LISTS):
        return all(is_plain_type(kind.field(at).type) for at in range(kind.num_fields))
    return any(is_of(kind) for is_of in _PLAIN)


PLAIN_TYPES = "integers, timestamps, text, binary, and lists or maps of these"
CLAIM_ERRORS = (pa.ArrowException, OSError, ValueError, struct.error, IndexError)
"""Errors that reading a stream from outside may raise."""


def _claimed_sizes(metadata: bytes, batch: int, body: pa.Buffer) -> Iterator[int]:
    """The sizes of a compressed batch's buffers, each before its content; -1: not compressed."""
    content = memoryview(body)
    for at, length in _buffers(metadata, batch):
        if not length:
            continue
        if at < 0 or length < 8 or at + length > len(content):
            raise ValueError(f"a buffer of {length} bytes at {at} of {len(content)}")
        size = struct.unpack_from("<q", content, at)[0]
        if size < -1:
            raise ValueError(f"a buffer of {size} bytes")
        yield length - 8 if size == -1 else size


def _check_buffers(metadata: bytes, batch: int, body: pa.Buffer | None) -> None:
    """Errors: ``ValueError`` for a buffer outside of the body. Arrow takes -8 bytes for none."""
    size = 0 if body is None else body.size
    for at, length in _buffers(metadata, batch):
        if at < 0 or length < 0 or at + length > size:
            raise ValueError(f"a buffer of {length} bytes at {at} of {size}")


def _buffers(metadata: bytes, batch: int) -> Iterator[tuple[int, int]]:
    """The position of each buffer of a batch in the body, and its length."""
    field = _field(metadata, batch, _BUFFERS)
    if not field:
        return
    vector = field + struct.unpack_from("<I", metadata, field)[0]
    count = struct.unpack_from("<I", metadata, vector)[0]
    for number in range(count):
        yield _BUFFER.unpack_from(metadata, vector + 4 + number * _BUFFER.size)


def _header(message: bytes) -> tuple[int, int]:
    """The kind of a message's metadata, a flatbuffer, and the position of its header's table."""
    table = struct.unpack_from("<I", message, 0)[0]
    kind = _field(message, table, _HEADER_TYPE)
    header = _field(message, table, _HEADER)
    if not kind or not header:
        return 0, 0
    return message[kind], header + struct.unpack_from("<I", message, header)[0]


def _field(message: bytes, table: int, number: int) -> int:
    """The position of a field of a flatbuffer's table; 0: it is not there."""
    entries = table - struct.unpack_from("<i", message, table)[0]
    size = struct.unpack_from("<H", message, entries)[0]
    at = 4 + 2 * number
    if at >= size:
        return 0
    offset = struct.unpack_from("<H", message, entries + at)[0]
    return table + offset if offset else 0
