"""The sink that needs no broker: embedded topics in the node's own data directory.

A chunk is split by topic with one stable sort, never row by row; each topic's rows become one block
of its log. New topics are made ahead (``newtopics.py``). "Accepted" means durable. The blocks of a
chunk for several topics are written by one thread; a few threads sync and commit them in parallel,
so that the disk sees the syncs together. The files of very many topics are synced in one call.

Nothing is refused here: the wheel has checked size and topic name. An ``OSError`` (a full disk)
makes its topic NOT_NOW; once the block may have been committed, UNKNOWN. When every topic fails and
the disk is full, the sink answers that it is down as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from ...wheel.config import MIB
from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import Files
from ...wheel.ids import IdMint
from ...wheel.rows import from_numpy
from ...wheel.schema import TIME, Int64s
from ...wheel.slots.handles import HandleCache
from ...wheel.topics.topicdamage import damaged_segments
from ...wheel.topics.topicfile import TOPIC_SCHEMA, TOPICS_DIRECTORY
from ...wheel.topics.topiclog import PendingAppend, TopicEnd, TopicWriter, segments
from ..sink import Answer, Answers, Sink, split_by_topic
from .newtopics import NewTopics

SEGMENT_BYTES = 64 * MIB
OPEN_FILES_MAX = 128
SYNCED_ONE_BY_ONE = 32
"""Up to so many topics of a chunk are synced one by one, beside each other; more of them by one
syncfs for all: a sync of its own for each new file and folder takes 20 ms a topic."""
TOPICS_REMEMBERED = 65_536
"""Topics whose ends are kept in memory: they are not read again when files are reopened."""
FREE_BYTES_MIN = 16 * MIB
"""A topic that failed is not tried again while the disk has less free than these bytes."""


_TOPIC_ERRORS = (OSError, Damaged, UnsupportedVersion)
"""Errors that concern one topic alone. A failed sync is none of them: it ends the process."""


class EmbeddedSink(Sink):
    """Topics under ``<data>/topics``. ``clock``: wall clock in ms, for the ``delivered`` column.

    Opening costs nothing: a topic is recovered with its first row. An error of that
    (``UnsupportedVersion``) is raised by ``recover_all``, which a node calls first; within
    ``deliver`` it holds back its own topic, and no other.
    """

    def __init__(
        self,
        files: Files,
        mint: IdMint,
        clock: Callable[[], int],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        open_files_max: int = OPEN_FILES_MAX,
        threads: int = 4,
    ) -> None:
        super().__init__(mint)
        self._files = files
        self._clock = clock
        self._handles = HandleCache(files, open_files_max)
        self._writer = TopicWriter(files, self._handles, mint.group, segment_bytes)
        self._ends: LRUCache[str, TopicEnd] = LRUCache(TOPICS_REMEMBERED)
        self._lock = threading.Lock()  # guards _ends and _busy
        self._busy = WeakValueDictionary[str, threading.Lock]()
        """The lock of each topic, while a thread has it or waits for it."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="embedded-topic")
        self.topics = NewTopics(self._make)
        files.make_directory(TOPICS_DIRECTORY)

    def recover_all(self) -> int:
        """Recover every topic now, from what is on disk. Returns the number of topics.

        Errors: ``UnsupportedVersion``."""
        topics = self._files.list(TOPICS_DIRECTORY)
        with self._lock:
            self._ends.clear()
        for topic in topics:
            with self._alone(topic):  # it may be made at this moment
                self._end_of(topic)
        self.topics.found(topics)
        self._writer.damaged.update(damaged_segments(self._files))
        return len(topics)

    def damaged(self) -> dict[str, str]:
        """The errors of segments that were set aside, by path."""
        return dict(self._writer.damaged)

    def count(self, topic: str) -> int:
        """The number of rows in the files of a topic. Errors: as of ``recover_all``."""
        firsts = segments(self._files, topic)
        if not firsts:
            return 0
        with self._lock:
            end = self._ends.get(topic)
        if end is None:
            with self._alone(topic):  # recovery would cut off the block of an append in progress
                end = self._end_of(topic)
        return 0 if end is None else end.block.next_position - firsts[0]

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:  # noqa: ARG002
        if rows.num_rows == 0:
            return Answers.same(0, Answer.ACCEPTED)
        topics, parts = split_by_topic(rows)
        with ExitStack() as alone:
            for topic in sorted(topics):
                alone.enter_context(self._alone(topic))
            failures, unwritten = self._append_all(rows, topics, parts)
        self.topics.found(topic for topic in topics if topic not in failures)
        answers = Answers.same(rows.num_rows, Answer.ACCEPTED)
        for topic, part in zip(topics, parts, strict=True):
            if topic in failures:
                answers.codes[part] = Answer.NOT_NOW if topic in unwritten else Answer.UNKNOWN
                answers.reasons.update(dict.fromkeys(part.tolist(), failures[topic]))
        answers.down = len(failures) == len(topics) and not self.healthy()
        return answers

    def expect(self, topics: Collection[str]) -> None:
        self.topics.expect(topics)

    def probe(self, topic: str) -> bool:  # noqa: ARG002
        return self.healthy()

    def healthy(self) -> bool:
        return self._files.free_bytes() >= FREE_BYTES_MIN

    def close(self) -> None:
        self.topics.close()
        self._pool.shutdown(wait=True)
        self._handles.close()

    def _append_all(
        self, rows: pa.RecordBatch, topics: list[str], parts: list[Int64s]
    ) -> tuple[dict[str, str], set[str]]:
        """Do the steps of an append for all topics together. Returns the topics that failed, each
        with its reason, and the set of those whose rows no reader can ever find."""
        failures: dict[str, str] = {}
        appends: list[PendingAppend] = []
        delivered_ms = self._clock()
        if len(topics) > 1:  # once for all of them: a call a topic would cost more than its write
            rows = rows.take(pa.array(np.concatenate(parts)))
        ends: dict[str, TopicEnd | None] = {}
        for topic in topics:
            try:
                ends[topic] = self._end_of(topic)
            except _TOPIC_ERRORS as error:
                failures[topic] = str(error)
        positions = [end.block.next_position if (end := ends.get(topic)) else 0 for topic in topics]
        counts = np.array([len(part) for part in parts])
        starts = np.cumsum(counts) - counts
        numbers = np.arange(rows.num_rows) + np.repeat(np.array(positions) - starts, counts)
        blocks = self._blocks(rows, numbers, delivered_ms)
        for topic, start, count in zip(topics, starts.tolist(), counts.tolist(), strict=True):
            if topic in failures:
                continue
            block = blocks.slice(start, count)
            try:
                append = self._writer.write_block(topic, ends[topic], block, delivered_ms)
                appends.append(append)
            except _TOPIC_ERRORS as error:
                failures[topic] = str(error)
        many = len(appends) > SYNCED_ONE_BY_ONE
        if many:
            self._files.sync_all()
        else:
            appends = self._each(self._writer.sync_block, appends, failures)
        unwritten = set(failures)
        if many:
            appends = self._each(self._writer.write_record, appends, failures, alone=True)
            self._files.sync_all()
        else:
            appends = self._each(self._record, appends, failures)
        with self._lock:
            for append in appends:
                self._ends[append.topic] = append.end
        return failures, unwritten

    def _record(self, append: PendingAppend) -> None:
        self._writer.write_record(append)
        self._writer.sync_record(append)

    def _each(
        self,
        step: Callable[[PendingAppend], None],
        appends: list[PendingAppend],
        failures: dict[str, str],
        *,
        alone: bool = False,
    ) -> list[PendingAppend]:
        """Do one step for each topic, in this thread if ``alone``; add the reasons of those that
        fail to ``failures``. Returns the others. Errors: ``SyncFailed``."""

        def attempt(append: PendingAppend) -> str | None:
            try:
                step(append)
            except _TOPIC_ERRORS as error:
                return str(error)
            return None

        # With one topic, a thread would only cost time.
        alone |= len(appends) < 2
        errors = list((map if alone else self._pool.map)(attempt, appends))
        results = list(zip(appends, errors, strict=True))
        failures.update({append.topic: error for append, error in results if error is not None})
        return [append for append, error in results if error is None]

    def _blocks(self, rows: pa.RecordBatch, positions: Int64s, delivered_ms: int) -> pa.RecordBatch:
        delivered = from_numpy(np.full(rows.num_rows, delivered_ms, np.int64), TIME)
        check = from_numpy(self.mint.checks_of(rows), pa.uint64())
        names = ("offset", "due", "created", "partition", "key", "value", "headers")
        columns = [from_numpy(positions, pa.int64()), delivered, check, *map(rows.column, names)]
        return pa.RecordBatch.from_arrays(columns, schema=TOPIC_SCHEMA)

    def _end_of(self, topic: str) -> TopicEnd | None:
        """A topic's end, recovered if need be; None without a segment. The caller has its lock."""
        with self._lock:
            end = self._ends.get(topic)
        if end is None:
            end = self._writer.recover(topic)
            if end is not None:
                with self._lock:
                    self._ends[topic] = end
        return end

    def _make(self, topic: str) -> None:
        """Make a topic without a row, unless it exists."""
        with self._alone(topic):
            if not segments(self._files, topic):
                end = self._writer.begin(topic)
                with self._lock:
                    self._ends[topic] = end

    def _alone(self, topic: str) -> threading.Lock:
        """A topic's own lock. The hand never delivers a topic twice at once; this enforces it."""
        with self._lock:
            return self._busy.setdefault(topic, threading.Lock())
