"""Where dead letters are read from: a topic of a real Kafka, or an embedded one.

Both give the records as a dump has them (``kafkatopic.DUMP``), so nothing else has to know which it
is. An embedded topic is one partition, and its rows get the headers that a delivery adds in Kafka.
One that a node before a Kafka falls back to can be read, but not redriven: notes go to Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from ..delivery.kafka.confluent_client import ck
from ..delivery.kafka.settings import named
from ..policy.headers import CREATED_HEADER, DUE_HEADER, ID_HEADER
from ..reading.kafka.confluenttopic import ConfluentTopic
from ..reading.kafka.kafkatopic import DUMP, KafkaTopic, NewTopic
from ..reading.topicreader import TopicReader, check_exists, topics
from ..wheel.checks import check_topic
from ..wheel.errors import SlotwheelError
from ..wheel.files import Files
from ..wheel.ids import id_texts
from ..wheel.rows import headers_of, with_headers
from ..wheel.schema import times


class Topic(Protocol):
    """A topic that exists, to where it ended when it was opened. ``topics``: all that there are."""

    topics: frozenset[str]

    @property
    def some_deleted(self) -> bool:
        """Whether its oldest records are deleted."""
        ...

    def total(self) -> int: ...
    def narrow(self, partition: int, position: int) -> None:
        """Read from now on what stands there, and little else, however long the topic is."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...


class EmbeddedTopic:
    """An embedded topic. Errors: ``InvalidMessage``: there is no such topic."""

    some_deleted = False

    def __init__(self, files: Files, topic: str, on_damage: Callable[[str], None]) -> None:
        check_exists(files, topic)
        self.topics = frozenset(topics(files))
        self._reader = TopicReader(files, topic, 0, on_damage)
        self._blocks_max: int | None = None
        self.close = self._reader.close

    def total(self) -> int:
        return 0

    def narrow(self, partition: int, position: int) -> None:
        self._reader.position = position
        self._blocks_max = 1 if partition == 0 else 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        return map(_as_records, islice(self._reader.batches(), self._blocks_max))


@dataclass(frozen=True, slots=True)
class LetterSource:
    """One of ``data`` and ``bootstrap``; ``settings``: of the Kafka client. ``on_damage``: called
    with what is passed over."""

    files: Files | None
    bootstrap: str
    settings: Mapping[str, str]
    on_damage: Callable[[str], None]

    @property
    def is_kafka(self) -> bool:
        return self.files is None

    @contextmanager
    def opened(self, topic: str, *, whole: bool = False) -> Iterator[Topic]:
        """A topic to read. ``whole``: what is damaged in it is an error, and not passed over.
        Errors: ``InvalidMessage``: there is no such topic; ``NodeUnreachable``."""
        check_topic(topic)
        if self.files is not None:
            on_damage = _refuse_damage if whole else self.on_damage
            opened: Topic = EmbeddedTopic(self.files, topic, on_damage)
        else:
            opened = self._client()(self.bootstrap, topic, self.settings)
        with closing(opened):
            yield opened

    def exists(self, topic: str) -> bool:
        return self.files is not None and topic in topics(self.files)

    def _client(self) -> type[KafkaTopic] | type[ConfluentTopic]:
        """confluent-kafka, unless it is not installed or settings of the other one are given."""
        theirs = any("_" in name for name in named(self.settings))
        return KafkaTopic if ck is None or theirs else ConfluentTopic


def create(topic: Topic, new: NewTopic) -> None:
    """Create a topic in the Kafka of another one."""
    assert isinstance(topic, KafkaTopic | ConfluentTopic)
    topic.create(new)


def _refuse_damage(text: str) -> None:
    raise SlotwheelError(
        f"nobody knows what was redriven: {text}",
        remedy="Export the letters that are still to be sent, and send them as new messages",
    )


def _as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    count = rows.num_rows
    metadata: Mapping[bytes, bytes] = rows.schema.metadata or {}
    due, created = times(rows, "due"), times(rows, "created")
    checks = rows.column("check").to_numpy()
    group = metadata.get(b"slotwheel.group", b"").decode()
    delivery = headers_of(
        {
            ID_HEADER: id_texts(group, due, times(rows, "offset"), checks).cast(pa.binary()),
            DUE_HEADER: _decimals(due),
            CREATED_HEADER: _decimals(created),
        }
    )
    columns = [
        pa.repeat(pa.scalar(metadata[b"slotwheel.topic"].decode(), pa.utf8()), count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        *(rows.column(name) for name in ("position", "delivered", "key", "value")),
        with_headers(rows.column("headers"), delivery),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUMP)


def _decimals(values: Any) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.utf8()).cast(pa.binary())
