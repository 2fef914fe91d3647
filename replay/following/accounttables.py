"""The tables of an account that goes on: Parquet files that become visible when their batch counts.

Theory: a batch's files are written whole, under hidden names that no reader of Parquet takes. The
audit's state names them, and is replaced as a whole: that is when the batch counts. Then they get
their names. If the process is killed between the two, they get them at the next start; files
that no state names are deleted there. So each batch is in the tables once, or not yet.

Layout: ``TABLE/day=YYYY-MM-DD/topic=NAME/RUN-BATCH.parquet``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...wheel.schema import Int64s
from ..judging.boundaries import CLASSES, COUNTS_TABLE, IDS_TABLE

_TIME = pa.timestamp("us", tz="UTC")
_DAY_MS = 86_400_000
_COUNTS = ("boundary", "group", *CLASSES)
_IDS = ("boundary", "group", "kind", "id", "offset", "amount")


class AccountTables:
    """Tables in a directory, written by the audit ``run``. Not thread-safe."""

    def __init__(self, root: Path, run: str) -> None:
        self._root, self._run = root, run

    def settle(self, published: Sequence[str]) -> None:
        """At the start: give the files of the batch that counts their names, delete all others that
        have none."""
        self.publish(published)
        for path in self._root.rglob(f".{self._run}-*.new"):
            path.unlink()

    def write(
        self, batch: int, made_ms: int, judged: Iterable[pa.Table], topics: Mapping[int, str]
    ) -> list[str]:
        """Write the judgements of windows (schema ``BOUNDARY_ARROW``), hidden. Returns the names
        that the files will have, below the root."""
        rows = pa.concat_tables(judged)
        names: list[str] = []
        is_count = pc.is_null(rows.column("kind"))
        for table, part, columns in (
            (COUNTS_TABLE, rows.filter(is_count), _COUNTS),
            (IDS_TABLE, rows.filter(pc.invert(is_count)), _IDS),
        ):
            due = [("due", part.column("due_ms"))] if table == IDS_TABLE else []
            times = [("bucket", part.column("bucket_ms")), *due]
            whole = {"made": pa.repeat(pa.scalar(made_ms * 1000, _TIME), part.num_rows)}
            whole |= {name: pc.multiply(values, 1000).cast(_TIME) for name, values in times}
            whole |= {name: part.column(name) for name in columns}
            names += self._parted(table, batch, pa.table(whole), part, topics)
        return names

    def publish(self, names: Iterable[str]) -> None:
        """Give files their names; one that has it already is left."""
        for name in names:
            path = self._root / name
            hidden = path.with_name(f".{path.name}.new")
            if hidden.exists():
                hidden.rename(path)

    def _parted(
        self, table: str, batch: int, whole: pa.Table, part: pa.Table, topics: Mapping[int, str]
    ) -> list[str]:
        days: Int64s = np.asarray(part.column("bucket_ms")) // _DAY_MS
        crcs: Int64s = np.asarray(part.column("topic"))
        names = []
        for day, crc in sorted(set(zip(days.tolist(), crcs.tolist(), strict=True))):
            topic = quote(topics.get(crc, f"topic {crc:08x}"), safe="")
            date = datetime.fromtimestamp(day * 86_400, UTC).date()
            name = f"{table}/day={date}/topic={topic}/{self._run}-{batch:09d}.parquet"
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f".{path.name}.new")
            pq.write_table(whole.filter(pa.array((days == day) & (crcs == crc))), hidden)
            handle = os.open(hidden, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            names.append(name)
        return names
