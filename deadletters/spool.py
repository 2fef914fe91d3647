"""Letters that are to be sent, on disk while they wait: what was counted is what is sent.

The topic is read once, whatever is asked in between, and memory does not depend on how many there
are. The file has no name, so nothing is left of it when the process is killed; few letters need no
file, and so no room in the temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa

from ..wheel.errors import NotRunning

_MEMORY_MAX = 8 << 20
"""Bytes of letters that are kept without a file."""


class Spool:
    """Batches of one schema, written once and then read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file: Any = tempfile.SpooledTemporaryFile(_MEMORY_MAX)  # noqa: SIM115  __exit__
        self._writer = pa.ipc.new_stream(self._file, schema)

    def add(self, rows: pa.RecordBatch) -> None:
        """Errors: ``NotRunning``: there is no room for it."""
        try:
            self._writer.write_batch(rows)
        except OSError as error:
            raise _no_room(error) from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them, in order. Nothing can be added any more. Errors: as of ``add``."""
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
        with suppress(OSError):  # of what it could not write before
            self._file.close()


def _no_room(error: OSError) -> NotRunning:
    return NotRunning(
        "the letters that are to be sent cannot be kept in the temporary folder; none was sent",
        got=error.strerror or str(error),
        limit=f"room for all of them, beyond {_MEMORY_MAX >> 20} MiB",
        remedy="Free room in that folder, or set TMPDIR to another one; or redrive by parts",
    )
