"""Parquet files, partitioned by day and topic, as Spark, DuckDB and pandas read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd


def readings(spark: Any, table: Path, columns: list[str]) -> list[list[tuple[Any, ...]]]:
    """These columns of all rows, sorted, as each of the three has them."""
    ordered = ", ".join(f'"{name}"' for name in columns)
    pattern = f"{table}/**/*.parquet"
    query = f"SELECT {ordered} FROM read_parquet('{pattern}', hive_partitioning = true)"
    frame = pd.read_parquet(table, columns=columns)
    found = [
        [tuple(row) for row in spark.read.parquet(str(table)).select(*columns).collect()],
        duckdb.connect().execute(query).fetchall(),
        list(frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)),
    ]
    return [sorted((tuple(map(_plain, row)) for row in rows), key=str) for rows in found]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
