"""Letters that are to be sent, on disk while they wait: what was counted is what is sent.

The topic is read once, whatever is asked in between, and memory does not depend on how many there
are. The file has no name, so nothing is left of it when the process is killed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, Self

import pyarrow as pa


class Spool:
    """Batches of one schema, written once and then read."""

    def __init__(self, schema: pa.Schema) -> None:
        """Errors: ``OSError``."""
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__
        self._writer = pa.ipc.new_stream(self._file, schema)

    def add(self, rows: pa.RecordBatch) -> None:
        """Errors: ``OSError``."""
        self._writer.write_batch(rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them, in order. Nothing can be added any more. Errors: ``OSError``."""
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as stream:
            yield from stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
