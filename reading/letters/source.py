"""The source of dead letters: a topic of a real Kafka, or an embedded one.

Both give the records with the columns of a dump (``kafkatopic.DUMP``), so no other module has to
tell them apart. An embedded topic is one partition, and its rows get the headers that a delivery
adds in Kafka. Letters in the embedded topic of a node before a Kafka have their notes in Kafka,
beside those of letters in Kafka: so they count as letters of a partition that no topic in Kafka has
(``OWN_PARTITION``), or a note on one could be taken for one on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from ...broker.settings import named
from ...policy.deadletters import DEAD_LETTER_TOPIC, notes_topic
from ...policy.headers import CREATED_HEADER, DUE_HEADER, ID_HEADER
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidMessage, SlotwheelError
from ...wheel.files import Files
from ...wheel.ids import id_texts
from ...wheel.rows import headers_of, with_headers
from ...wheel.schema import times
from ..kafka.dump import DUMP, NewTopic
from ..topicreader import TopicReader, check_exists, topics
from .letters import OWN_PARTITION

if TYPE_CHECKING:
    from ..kafka.confluenttopic import ConfluentTopic
    from ..kafka.kafkatopic import KafkaTopic


class Topic(Protocol):
    """An opened topic, up to its end at that time. ``topics``: the names of all topics there."""

    topics: frozenset[str]

    @property
    def some_deleted(self) -> bool:
        """True when its oldest records are deleted."""
        ...

    def total(self) -> int: ...
    def narrow(self, partition: int, position: int) -> None:
        """Read the record at ``position`` from now on, with few others, however long the topic."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...


class EmbeddedTopic:
    """An embedded topic. ``kafka``: the topic of Kafka whose refused letters the node keeps in this
    one. Errors: ``InvalidMessage``: there is no such topic."""

    some_deleted = False

    def __init__(
        self,
        files: Files,
        topic: str,
        on_damage: Callable[[str], None],
        kafka: KafkaTopic | ConfluentTopic | None = None,
    ) -> None:
        if topic != DEAD_LETTER_TOPIC:  # that topic is made with the first letter
            check_exists(files, topic)
        self.topics = frozenset(topics(files)) if kafka is None else kafka.topics
        self._partition = 0 if kafka is None else OWN_PARTITION
        self._reader = TopicReader(files, topic, 0, on_damage)
        self._blocks_max: int | None = None
        self.close = self._reader.close

    def total(self) -> int:
        return 0

    def narrow(self, partition: int, position: int) -> None:
        self._reader.seek(position)
        self._blocks_max = 1 if partition == self._partition else 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        for rows in islice(self._reader.batches(), self._blocks_max):
            yield _as_records(rows, self._partition)


@dataclass(frozen=True, slots=True)
class LetterSource:
    """Letters in the data directory of ``files``, or else in the Kafka at ``bootstrap``; with both,
    the notes are in Kafka. ``settings``: of the Kafka client. ``on_damage`` is called with a text
    about each damage that is passed over."""

    files: Files | None
    bootstrap: str
    settings: Mapping[str, str]
    on_damage: Callable[[str], None]

    @property
    def is_kafka(self) -> bool:
        """True when letters are sent to Kafka, and the notes are there."""
        return bool(self.bootstrap)

    @property
    def notes(self) -> LetterSource:
        """The source of the notes."""
        return replace(self, files=None) if self.bootstrap else self

    @contextmanager
    def opened(self, topic: str, *, whole: bool = False) -> Iterator[Topic]:
        """Open a topic to read. ``whole``: damage in it is an error, and not passed over. Errors:
        ``InvalidMessage``: there is no such topic; ``NodeUnreachable``."""
        check_topic(topic)
        with ExitStack() as stack:
            if self.files is None:
                yield stack.enter_context(closing(self._in_kafka(topic)))
                return
            kafka = None
            if self.bootstrap:
                try:
                    kafka = stack.enter_context(closing(self._in_kafka(notes_topic(topic))))
                except InvalidMessage as error:
                    error.remedy = (
                        "Create it with one partition, cleanup.policy=delete and retention.ms=-1:"
                        f" what was redriven is noted there. {error.remedy}"
                    )
                    raise
            on_damage = _refuse_damage if whole else self.on_damage
            embedded = EmbeddedTopic(self.files, topic, on_damage, kafka)
            yield stack.enter_context(closing(embedded))

    def exists(self, topic: str) -> bool:
        return self.files is not None and topic in topics(self.files)

    def _in_kafka(self, topic: str) -> KafkaTopic | ConfluentTopic:
        return self._client()(self.bootstrap, topic, self.settings)

    def _client(self) -> type[KafkaTopic] | type[ConfluentTopic]:
        """confluent-kafka's, unless it is not installed, or settings are kafka-python's."""
        if find_spec("confluent_kafka") is None or any(
            "_" in name for name in named(self.settings)
        ):
            from ..kafka.kafkatopic import KafkaTopic

            return KafkaTopic
        from ..kafka.confluenttopic import ConfluentTopic

        return ConfluentTopic


def purge(topic: Topic) -> None:
    """Delete the records that a topic of Kafka had when it was opened. Letters that came since were
    neither counted nor confirmed, and stay, as the topic does."""
    _of_kafka(topic).purge()


def create(topic: Topic, new: NewTopic) -> None:
    """Create a topic in the Kafka of ``topic``."""
    _of_kafka(topic).create(new)


def _of_kafka(topic: Topic) -> KafkaTopic | ConfluentTopic:
    assert not isinstance(topic, EmbeddedTopic)
    return cast("KafkaTopic | ConfluentTopic", topic)


def _refuse_damage(text: str) -> None:
    raise SlotwheelError(
        f"nobody knows what was redriven: {text}",
        remedy="Export the letters that are still to be sent, and send them as new messages",
    )


def _as_records(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
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
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        *(rows.column(name) for name in ("position", "delivered", "key", "value")),
        with_headers(rows.column("headers"), delivery),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUMP)


def _decimals(values: Any) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.utf8()).cast(pa.binary())
