"""Spark's streaming source: ``spark.readStream.format("slotwheel").load("wheel-a,wheel-b")``.

Journals and, with ``topics``, embedded topics, as nodes write them; the same columns as the batch
source. What is read follows from two ``Positions`` alone, so a batch that is repeated has the same
rows.

Rules
- Positions in journals are read first, those in topics after them: what a mark in a batch covers is
  in the topics of that batch or of one before.
- Only complete entries and records are read. Those dropped before they were read are a problem of
  the kind ``gap``; damage is a problem. Both are in ``option("view", "problems")``; neither ends
  the stream.
- A batch has about ``max_bytes`` of the journals, and as much of the topics.
- The view ``scan`` is for the audit: packed facts, a summary of each part, and, in every batch, the
  moment up to which was read. It has a batch at every trigger, also without new rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from ..reading.directory import existing, is_data_directory, short_names
from ..reading.files import JOURNAL, TOPIC, File, Layout
from ..reading.growing.journal import UNLIMITED, look_at_journal
from ..reading.growing.parts import JournalPart, Part, TopicPart, read_part
from ..reading.growing.positions import JournalAt, Positions, TopicAt
from ..reading.growing.topics import look_at_topic
from ..reading.layout import FileFilter, find
from ..reading.listing import topic_folders
from ..reading.problems import Problem, problem_batch
from ..wheel.errors import InvalidConfiguration
from .datasource.columns import PROBLEMS, SCAN
from .datasource.errors import in_one_line
from .datasource.options import SourceOptions
from .datasource.paths import check_peer, resolve
from .datasource.views import row_batches
from .facts.filescan import TaskScan
from .facts.making import GroupTerms
from .facts.onefile import OneFile


@dataclass
class _Partition(InputPartition):
    part: Part | None
    terms: GroupTerms
    text: str = ""
    """The row of a partition without a part, as JSON."""


class StreamReader(DataSourceStreamReader):
    def __init__(self, chosen: SourceOptions) -> None:
        self._chosen = chosen
        self._terms = GroupTerms()
        self._roots: dict[str, Path] = {}

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._chosen.starting == "latest":
            return self._look(Positions(), UNLIMITED).to_json()
        return Positions().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._chosen.max_bytes)

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        nbytes = UNLIMITED if isinstance(limit, ReadAllAvailable) else self._chosen.max_bytes
        return self._look(Positions.from_json(start), nbytes).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = Positions.from_json(start), Positions.from_json(end)
        scan = self._chosen.view == SCAN
        terms = self._find_terms() if scan else self._terms
        parts: list[InputPartition] = [
            _Partition(part, terms) for part in self._parts(before, after)
        ]
        if scan:
            text = json.dumps({"looked_ms": abs(after.looked_ms), "all": after.looked_ms > 0})
            parts.append(_Partition(None, terms, text))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Partition)
        if self._chosen.view == SCAN:
            yield from _facts(partition)
        elif partition.part is None:
            return
        elif self._chosen.view == PROBLEMS:
            problems = [event for event in read_part(partition.part) if isinstance(event, Problem)]
            if problems:
                yield problem_batch(problems).select(self._chosen.columns)
        else:
            part = partition.part
            yield from row_batches(read_part(part), part.name, self._chosen)

    def _look(self, start: Positions, nbytes: int) -> Positions:
        looked_ms = time.time_ns() // 1_000_000
        wanted, archive = self._chosen.wanted, self._chosen.wanted.archive
        roots = self._peers()
        journals: dict[str, JournalAt] = dict(start.journals)
        topics: dict[str, TopicAt] = dict(start.topics)
        ended = True
        if wanted.journal:
            share = max(1, nbytes // max(1, len(roots)))
            for name, root in roots.items():
                at, at_end = look_at_journal(
                    root, journals.get(name), archive=archive, nbytes=share
                )
                ended &= at_end
                if at is not None:
                    journals[name] = at
        if wanted.topics:
            names = [(name, topic) for name, root in roots.items() for topic in topic_folders(root)]
            share = max(1, nbytes // max(1, len(names)))
            for name, topic in names:
                key = f"{name}/{topic}"
                position, at_end = look_at_topic(roots[name], topic, topics.get(key), nbytes=share)
                ended &= at_end
                if position is not None:
                    topics[key] = position
        if self._chosen.view != SCAN:
            looked_ms = 0  # otherwise there would be a batch at every trigger
        return Positions(journals, topics, looked_ms if ended else -looked_ms)

    def _parts(self, start: Positions, end: Positions) -> Iterator[Part]:
        for number, (name, root) in enumerate(self._peers().items()):
            at = end.journals.get(name)
            before = start.journals.get(name)
            if at is not None and at != before:
                archive = self._chosen.wanted.archive
                yield JournalPart(number, name, str(root), before, at, archive)
            for key, position in end.topics.items():
                topic = key.removeprefix(f"{name}/")
                if f"{name}/{topic}" != key or position == start.topics.get(key):
                    continue
                yield TopicPart(number, name, str(root), topic, start.topics.get(key), position)

    def _peers(self) -> Mapping[str, Path]:
        if not self._roots:
            chosen = self._chosen
            roots = [existing(path) for path in resolve(chosen.paths, chosen.view).directories]
            for root in roots:
                if not is_data_directory(root) and any(root.iterdir()):
                    raise InvalidConfiguration("not a data directory", got=str(root))
            check_peer(chosen.peer, roots)
            peers = dict(zip(short_names(roots), roots, strict=True))
            wanted = chosen.peer
            self._roots = {n: root for n, root in peers.items() if not wanted or n == wanted}
        return self._roots

    def _find_terms(self) -> GroupTerms:
        """The terms, once a directory has them: a node that has just begun does not."""
        if not self._terms.are_whole:
            group = find_group([str(root) for root in self._peers().values()])
            self._terms = GroupTerms.of(group, self._chosen.dead_letter_topic)
        return self._terms


def find_group(paths: Sequence[str]) -> Layout:
    """The peers and the group of some directories, without any files."""
    wanted = FileFilter(slots=False, journal=False, archive=False, topics=False)
    return find(list(paths), wanted=wanted)


def _facts(partition: _Partition) -> Iterator[pa.RecordBatch]:
    task, part = TaskScan(partition.terms), partition.part
    if part is None:
        yield from task.out.text("look", -1, partition.text)
    else:
        kind = JOURNAL if isinstance(part, JournalPart) else TOPIC
        topic = part.topic if isinstance(part, TopicPart) else ""
        file = File(part.peer, kind, "", part.name, 0, part.peer, topic=topic)
        reading = OneFile(file, partition.terms)
        yield from task.events(reading, read_part(part))
        text = {"peer": part.peer, "topic": topic, "summary": reading.summary.to_json()}
        yield from task.out.text("part", part.peer, json.dumps(text))
    yield from task.end()
