"""The sink that needs no broker: embedded topics in the node's own data directory.

A chunk is split by topic with one stable sort, never row by row; each topic's rows become one
block of its log. "Accepted" means durable. A chunk for several topics is written and synced in
parallel by a few threads, so that the disk sees the syncs together.

Nothing is refused here: the wheel has checked size and topic name. An ``OSError`` (a full disk)
is NOT_NOW for its topic; when every topic fails, the sink says that it is down as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from ..wheel.config import MIB
from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.files import Files
from ..wheel.handles import HandleCache
from ..wheel.ids import IdMint
from ..wheel.schema import TIME, Int64s, times
from .sink import Answer, Answers, Sink
from .topicfile import TOPICS_DIRECTORY
from .topiclog import TopicEnd, TopicWriter

SEGMENT_BYTES = 64 * MIB
OPEN_FILES_MAX = 128
TOPICS_REMEMBERED = 65_536
"""A topic whose end is remembered is not read again when its files are reopened."""
FREE_BYTES_MIN = 16 * MIB
"""With less than this on the disk a full topic is not worth another try."""


class EmbeddedSink(Sink):
    """Topics under ``<data>/topics``. ``clock``: wall clock in ms, for the ``delivered`` column.

    Opening costs nothing: a topic is recovered when its first row comes. Errors at that moment
    (``Damaged``, ``UnsupportedVersion``) are raised by ``recover_all``, which a node calls first;
    within ``deliver`` they hold back the topic they concern, and no other.
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
        self._busy: dict[str, threading.Lock] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="embedded-topic")
        files.make_directory(TOPICS_DIRECTORY)

    def recover_all(self) -> int:
        """Recover every topic now; the number of topics. Errors: ``Damaged`` and the like."""
        topics = self._files.list(TOPICS_DIRECTORY)
        for topic in topics:
            self._end_of(topic)
        return len(topics)

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:  # noqa: ARG002
        count = rows.num_rows
        if count == 0:
            return Answers.same(0, Answer.ACCEPTED)
        topics, parts = split_by_topic(rows)
        delivered_ms = self._clock()
        if len(parts) == 1:
            failures = [self._append(topics[0], rows, delivered_ms)]
        else:
            chosen = [rows.take(pa.array(part)) for part in parts]
            stamps = [delivered_ms] * len(parts)
            failures = list(self._pool.map(self._append, topics, chosen, stamps))
        answers = Answers.same(count, Answer.ACCEPTED)
        for part, failure in zip(parts, failures, strict=True):
            if failure:
                answers.codes[part] = Answer.NOT_NOW
                answers.reasons.update(dict.fromkeys(part.tolist(), failure))
        answers.down = all(failures) and not self.healthy()
        return answers

    def probe(self, topic: str) -> bool:  # noqa: ARG002
        return self.healthy()

    def healthy(self) -> bool:
        return self._files.free_bytes() >= FREE_BYTES_MIN

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._handles.close()

    def _append(self, topic: str, rows: pa.RecordBatch, delivered_ms: int) -> str:
        """Append one topic's rows; an empty text, or why it cannot be done now."""
        columns = self._columns(rows, delivered_ms)
        with self._alone(topic):
            try:
                end = self._writer.append(topic, self._end_of(topic), columns, delivered_ms)
            except (OSError, Damaged, UnsupportedVersion) as error:
                return str(error)
            with self._lock:
                self._ends[topic] = end
        return ""

    def _columns(self, rows: pa.RecordBatch, delivered_ms: int) -> list[pa.Array]:
        due, offset = times(rows, "due"), times(rows, "offset")
        delivered = pa.array(np.full(rows.num_rows, delivered_ms, np.int64)).view(TIME)
        check = pa.array(self.mint.checks(due, offset))
        names = ("offset", "due", "created", "partition", "key", "value", "headers")
        return [delivered, check, *(rows.column(name) for name in names)]

    def _end_of(self, topic: str) -> TopicEnd | None:
        with self._lock:
            end = self._ends.get(topic)
        if end is None:
            end = self._writer.recover(topic)
            if end is not None:
                with self._lock:
                    self._ends[topic] = end
        return end

    def _alone(self, topic: str) -> threading.Lock:
        """A topic's own lock. The hand never delivers one topic twice at once; this makes sure."""
        with self._lock:
            if len(self._busy) > TOPICS_REMEMBERED:
                self._busy = {name: lock for name, lock in self._busy.items() if lock.locked()}
            return self._busy.setdefault(topic, threading.Lock())


def split_by_topic(rows: pa.RecordBatch) -> tuple[list[str], list[Int64s]]:
    """The topics of a batch (at least one row), and for each its rows in their order."""
    column = rows.column("topic")
    first = column[0]
    if pc.all(pc.equal(column, first)).as_py():
        return [first.as_py()], [np.arange(rows.num_rows, dtype=np.int64)]
    encoded = column.dictionary_encode()
    codes = np.asarray(encoded.indices)
    order = np.argsort(codes, kind="stable")
    topics = encoded.dictionary.to_pylist()
    ends = np.searchsorted(codes[order], np.arange(1, len(topics)))
    return topics, np.split(order, ends)
