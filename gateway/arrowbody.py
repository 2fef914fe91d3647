"""An Arrow stream that somebody sent: read only as far as it cannot harm.

Theory: Arrow trusts what it reads. A compressed buffer becomes as large as it says, and an offset
beyond its buffer ends the process in a kernel. So compressed batches are refused before they are
read (their header says it), and each batch is checked in full before anything else looks at it.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from .errors import HttpError

_RECORD_BATCH = 3
"""Of ``MessageHeader`` in Arrow's Message.fbs."""
_HEADER_TYPE, _HEADER = 1, 2
_COMPRESSION = 3
"""Fields of ``Message`` and of ``RecordBatch``, by their number in the schema."""


def read_table(body: bytes) -> pa.Table:
    """The table in an Arrow IPC stream. Errors: ``HttpError``."""
    try:
        for number, message in enumerate(pa.ipc.MessageReader.open_stream(pa.py_buffer(body))):
            if _is_compressed(message.metadata.to_pybytes()):
                raise HttpError(
                    422,
                    "compressed batches are not taken",
                    place=f"message {number} of the stream",
                    remedy="Write the stream without compression",
                )
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            if any(pa.types.is_dictionary(field.type) for field in stream.schema):
                raise HttpError(422, "dictionaries are not taken", remedy="Send plain columns")
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            return pa.Table.from_batches(batches, stream.schema)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise HttpError(400, f"not a valid Arrow stream: {str(error)[:200]}") from None


def _is_compressed(message: bytes) -> bool:
    """Whether a message's metadata, a flatbuffer, announces compressed buffers."""
    table = struct.unpack_from("<I", message, 0)[0]
    kind = _field(message, table, _HEADER_TYPE)
    header = _field(message, table, _HEADER)
    if not kind or not header or message[kind] != _RECORD_BATCH:
        return False
    batch = header + struct.unpack_from("<I", message, header)[0]
    return _field(message, batch, _COMPRESSION) != 0


def _field(message: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0: it is not there."""
    entries = table - struct.unpack_from("<i", message, table)[0]
    size = struct.unpack_from("<H", message, entries)[0]
    at = 4 + 2 * number
    if at >= size:
        return 0
    offset = struct.unpack_from("<H", message, entries + at)[0]
    return table + offset if offset else 0
