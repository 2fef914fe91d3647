"""What is judged by its name: rows of one share of all names, together in one task.

Theory: rows are sorted by share within a task, so a share is complete when the next one begins. A
task's memory is that of one share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from ..facts.scan import Batches

Rows = list[dict[str, Any]]


def in_shares(rows: DataFrame, column: str, partitions: int) -> DataFrame:
    """The rows, those of a share together and in one task. ``column`` has the share."""
    return rows.repartition(partitions, column).sortWithinPartitions(column)


def by_share(batches: Batches, column: str) -> Iterator[tuple[int, Rows]]:
    """Each share, and all of its rows, of what ``in_shares`` has brought together."""
    held: Rows = []
    for batch in batches:
        for row in batch.to_pylist():
            if held and row[column] != held[0][column]:
                yield held[0][column], held
                held = []
            held.append(row)
    if held:
        yield held[0][column], held
