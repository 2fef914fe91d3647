"""An Arrow stream that somebody sent: read only as far as it cannot harm.

Theory: Arrow trusts what it reads. A compressed buffer becomes as large as it says, a column of
nulls or of views as long as it says, and an offset beyond its buffer ends the process in a kernel.
So only plain types are taken, compressed batches and dictionaries are refused before they are read
(their header says it), and each batch is checked in full before anything else looks at it.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from .errors import HttpError, too_many_messages

_SCHEMA, _RECORD_BATCH = 1, 3
"""Of ``MessageHeader`` in Arrow's Message.fbs."""
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _COMPRESSION = 0, 3
"""Fields of ``Message`` and of ``RecordBatch``, by their number in the schema."""
_PLAIN = (
    *(pa.types.is_integer, pa.types.is_timestamp, pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_binary, pa.types.is_large_binary),
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map, pa.types.is_struct)


def read_table(body: bytes, rows_max: int) -> pa.Table:
    """The table in an Arrow IPC stream, of at most ``rows_max`` rows. Errors: ``HttpError``."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            schema = stream.schema
        str(schema)  # raises where a name or a time zone is no text
        for field in schema:
            if not _is_plain(field.type):
                raise HttpError(
                    422,
                    "a column of a type that is not taken",
                    place=f"column {field.name}",
                    got=field.type,
                    limit="integers, timestamps, text, binary, and lists or maps of these",
                    remedy="Cast it before it is sent; no dictionaries, views or columns of null",
                )
        _check_messages(body, rows_max)
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            return pa.Table.from_batches(batches, schema)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise HttpError(400, f"not a valid Arrow stream: {str(error)[:200]}") from None


def _is_plain(kind: pa.DataType) -> bool:
    if any(is_one(kind) for is_one in _LISTS):
        return all(_is_plain(kind.field(at).type) for at in range(kind.num_fields))
    return any(is_one(kind) for is_one in _PLAIN)


def _check_messages(body: bytes, rows_max: int) -> None:
    rows = 0
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(pa.py_buffer(body))):
        place = f"message {number} of the stream"
        metadata = message.metadata.to_pybytes()
        kind, batch = _header(metadata)
        if kind == _SCHEMA:
            continue
        if kind != _RECORD_BATCH:
            raise HttpError(422, "only record batches are taken", place=place, got=f"kind {kind}")
        if _field(metadata, batch, _COMPRESSION):
            raise HttpError(
                422,
                "compressed batches are not taken",
                place=place,
                remedy="Write the stream without compression",
            )
        length = _field(metadata, batch, _LENGTH)
        rows += struct.unpack_from("<q", metadata, length)[0] if length else 0
        if rows > rows_max:
            raise too_many_messages(rows_max, place)


def _header(message: bytes) -> tuple[int, int]:
    """The kind of a message's metadata, a flatbuffer, and where its header's table stands."""
    table = struct.unpack_from("<I", message, 0)[0]
    kind = _field(message, table, _HEADER_TYPE)
    header = _field(message, table, _HEADER)
    if not kind or not header:
        return 0, 0
    return message[kind], header + struct.unpack_from("<I", message, header)[0]


def _field(message: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0: it is not there."""
    entries = table - struct.unpack_from("<i", message, table)[0]
    size = struct.unpack_from("<H", message, entries)[0]
    at = 4 + 2 * number
    if at >= size:
        return 0
    offset = struct.unpack_from("<H", message, entries + at)[0]
    return table + offset if offset else 0
