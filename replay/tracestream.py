"""The events of a trace store as a stream, for the running audit alone: packed facts, and what they
say of groups of consumers.

Theory: a position is the number of the last flush that was read. Where a segment was merged from
flushes on both sides of a position, all of it is read, some of its events for a second time: the
facts of an event have its sender and number, so that it counts once (``facts/traced.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..trace.store.names import list_segments
from .datasource.errors import in_one_line
from .datasource.options import SourceOptions
from .datasource.paths import resolve
from .datasource.segments import ListedSegment
from .facts.making import GroupTerms
from .sparkaccount import facts_of_segments
from .stream import find_group


@dataclass
class _EventsPart(InputPartition):
    segments: Sequence[ListedSegment]
    terms: GroupTerms


class TraceStreamReader(DataSourceStreamReader):
    """Reads a store, whose directory ``root`` may come into being later."""

    def __init__(self, root: str, chosen: SourceOptions) -> None:
        self._root = root
        self._chosen = chosen
        self._terms = GroupTerms()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"flush": -1}

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802
        if not self._find_terms().key:
            return start  # ids cannot be told from others yet
        names = list_segments(self._root)
        return {"flush": max([start["flush"], *(name.last for name in names)])}

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        names = list_segments(self._root)
        segments = [
            ListedSegment(self._root, name)
            for name in names
            if name.last > start["flush"] and name.first <= end["flush"]
        ]
        return [_EventsPart(segments, self._find_terms())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _EventsPart)
        yield from facts_of_segments(partition.segments, partition.terms)

    def _find_terms(self) -> GroupTerms:
        if not self._terms.are_whole:
            group = find_group(resolve(self._chosen.paths, self._chosen.view).directories)
            self._terms = GroupTerms.of(group, self._chosen.dead_letter_topic)
        return self._terms
