"""An Arrow stream that somebody sent: read only as far as it cannot harm.

Theory: Arrow trusts what it reads. A compressed buffer becomes as large as it says, a column of
nulls or of views as long as it says, and an offset beyond its buffer ends the process in a kernel.
So only plain types are taken, compressed batches and dictionaries are refused before they are read
(their header says it), and each batch is checked in full before anything else looks at it.
"""

from __future__ import annotations

import pyarrow as pa

from ..wheel.arrowclaims import (
    CLAIM_ERRORS,
    PLAIN_TYPES,
    RECORD_BATCH,
    SCHEMA,
    claims,
    is_plain_type,
)
from .errors import HttpError, too_many_messages


def read_table(body: bytes, rows_max: int) -> pa.Table:
    """The table in an Arrow IPC stream, of at most ``rows_max`` rows. Errors: ``HttpError``."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            schema = stream.schema
        str(schema)  # raises where a name or a time zone is no text
        for field in schema:
            if not is_plain_type(field.type):
                raise HttpError(
                    422,
                    "a column of a type that is not taken",
                    place=f"column {field.name}",
                    got=field.type,
                    limit=PLAIN_TYPES,
                    remedy="Cast it before it is sent; no dictionaries, views or columns of null",
                )
        _check_messages(body, rows_max)
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            return pa.Table.from_batches(batches, schema)
    except CLAIM_ERRORS as error:
        raise HttpError(400, f"not a valid Arrow stream: {str(error)[:200]}") from None


def _check_messages(body: bytes, rows_max: int) -> None:
    rows = 0
    for number, claim in enumerate(claims(body)):
        place = f"message {number} of the stream"
        if claim.kind == SCHEMA:
            continue
        if claim.kind != RECORD_BATCH:
            got = f"kind {claim.kind}"
            raise HttpError(422, "only record batches are taken", place=place, got=got)
        if claim.compressed:
            raise HttpError(
                422,
                "compressed batches are not taken",
                place=place,
                remedy="Write the stream without compression",
            )
        rows += claim.rows
        if rows > rows_max:
            raise too_many_messages(rows_max, place)
