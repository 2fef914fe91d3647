"""Letters that wait to be sent, on disk, so that exactly the counted ones are sent.

The topic is read once, though a user is asked in between, and memory does not depend on the number
of letters. The file has no name, so that a killed process leaves nothing behind; few letters need
no file, and no room in the temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa

from ...wheel.errors import NotRunning

_MEMORY_MAX = 8 << 20
"""The most bytes of letters that are kept without a file."""


class Spool:
    """Batches of one schema, written once and then read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file: Any = tempfile.SpooledTemporaryFile(_MEMORY_MAX)  # noqa: SIM115  __exit__
        self._writer = pa.ipc.new_stream(self._file, schema)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add a batch. Errors: ``NotRunning``: the temporary folder has no room."""
        try:
            self._writer.write_batch(rows)
        except OSError as error:
            raise _no_room(error) from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all batches in order; none can be added any more. Errors: as of ``add``."""
        try:
            self._writer.close()
            self._file.seek(0)
        except OSError as error:
            raise _no_room(error) from None
        with pa.ipc.open_stream(self._file) as stream:
            yield from stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):  # a failed write is tried again, and raises again
            self._file.close()


def _no_room(error: OSError) -> NotRunning:
    return NotRunning(
        "the letters that are to be sent cannot be kept in the temporary folder; none was sent",
        got=error.strerror or str(error),
        limit=f"room for all of them, beyond {_MEMORY_MAX >> 20} MiB",
        remedy="Free room in that folder, or set TMPDIR to another one; or redrive by parts",
    )
