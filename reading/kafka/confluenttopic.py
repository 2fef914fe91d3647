"""A topic of a real Kafka as Arrow batches, read with confluent-kafka: several times as fast as
``kafkatopic`` reads with kafka-python, to where the topic ends now.

The rules are those of ``kafkatopic``. That the end of a partition is reached is an event of its own
in librdkafka: there may be positions without a record behind the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ...broker.collection import without_collection
from ...broker.header_names import headers_of
from ...broker.reach import is_kept_out
from ...broker.settings import ClientKind, for_confluent, refused
from ...delivery.kafka.confluent_client import ck, ck_admin, client_log
from ...wheel.errors import InvalidConfiguration, NodeUnreachable
from ...wheel.rows import header_column
from ...wheel.schema import TIME
from .dump import CALL_S, DUMP, STALLED_S, NewTopic, no_such_topic, not_purged
from .looking import SOON_S, unreachable

_ROWS_MAX = 5_000
_POLL_S = 0.2
_FIRST, _LAST = -2, -1
"""Times that stand for the first and the last offset, by the protocol."""
_ELECTING = {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART"}


class ConfluentTopic:
    """A topic that exists. ``settings``: further ones of the Kafka client.

    Errors: ``NodeUnreachable``; ``InvalidMessage``: there is no such topic.
    """

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._trouble = ""
        self._settings = settings
        self._give_up_s = time.monotonic() + CALL_S
        ours = {
            "client.id": "slotwheel-read",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # It stops fetching when enough is queued, and looks again only after this, ms.
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.max.bytes": 16 << 20,
        }
        harmless = {  # whatever the user sets, nothing in Kafka is changed
            "group.id": "slotwheel-read",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
        try:
            config = ours | self._config(ClientKind.CONSUMER) | harmless
            self._consumer = ck.Consumer(config, logger=client_log)
        except ck.KafkaException as error:
            raise refused(error.args[0]) or self._unreachable(error.args[0].str()) from None
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def _config(self, kind: ClientKind) -> dict[str, Any]:
        return {"bootstrap.servers": self._bootstrap} | for_confluent(self._settings, kind)

    def _find(self) -> None:
        try:
            found = self._list_topics()
            self.topics = frozenset(found)
            if self.topic not in found:
                raise no_such_topic(self.topic, found)
            parts = [ck.TopicPartition(self.topic, one) for one in found[self.topic].partitions]
            starts, ends = self._offsets(parts)
            self.ranges: dict[int, tuple[int, int]] = {
                one: (starts[one], ends[one]) for one in ends
            }
        except ck.KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None

    def _list_topics(self) -> dict[str, Any]:
        """All topics: one alone that does not exist might be made by asking for it. Brokers have
        ``CALL_S`` to answer; whoever gave a wrong password hears so without waiting for that.
        Errors: confluent-kafka's."""
        topics: dict[str, Any]
        try:
            topics = self._consumer.list_topics(timeout=SOON_S).topics
        except ck.KafkaException:
            if is_kept_out(self._bootstrap, self._settings):
                raise
            topics = self._consumer.list_topics(timeout=CALL_S - SOON_S).topics
        return topics

    def _offsets(self, parts: list[Any]) -> tuple[dict[int, int], dict[int, int]]:
        """Where partitions begin and end, all asked for at once. Errors: confluent-kafka's."""
        found = []
        for at in (_FIRST, _LAST):
            asked = [ck.TopicPartition(self.topic, one.partition, at) for one in parts]
            told = self._consumer.offsets_for_times(asked, timeout=CALL_S) if asked else []
            for one in told:
                if one.error is None:
                    continue
                # Such as of a topic whose leaders are just elected
                if one.error.name() not in _ELECTING or time.monotonic() > self._give_up_s:
                    raise ck.KafkaException(one.error)
                time.sleep(_POLL_S)
                return self._offsets(parts)
            found.append({one.partition: one.offset for one in told})
        return found[0], found[1]

    def close(self) -> None:
        self._consumer.close()

    @property
    def some_deleted(self) -> bool:
        """Whether its oldest records are deleted."""
        return any(start > 0 for start, _ in self.ranges.values())

    def total(self) -> int:
        """How many positions there are; there are at most as many records."""
        return sum(end - start for start, end in self.ranges.values())

    def narrow(self, partition: int, position: int) -> None:
        """Read from now on only what stands there."""
        start, end = self.ranges.get(partition, (0, 0))
        there = start <= position < end
        self.ranges = {partition: (position, position + 1)} if there else {}

    def create(self, new: NewTopic) -> None:
        """Create another topic. Errors: ``NodeUnreachable``."""
        admin = ck_admin.AdminClient(self._config(ClientKind.ADMIN), logger=client_log)
        topic = ck_admin.NewTopic(new.name, new.partitions, -1, config=new.config)
        try:
            for made in admin.create_topics([topic], operation_timeout=CALL_S).values():
                made.result(CALL_S)
        except ck.KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None

    def purge(self) -> None:
        """Delete all records up to where it ended when it was opened; the topic itself, and what
        consumer groups have stored for it, stay. Errors: ``NodeUnreachable``; ``SlotwheelError``:
        Kafka refuses it."""
        admin = ck_admin.AdminClient(self._config(ClientKind.ADMIN), logger=client_log)
        upto = [ck.TopicPartition(self.topic, part, end) for part, (_, end) in self.ranges.items()]
        try:
            for done in admin.delete_records(upto, operation_timeout=CALL_S).values():
                done.result(CALL_S)
        except ck.KafkaException as error:
            raise not_purged(self.topic, error.args[0].str()) from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Committed records, schema ``DUMP``; those of a partition in its order.

        Errors: ``NodeUnreachable``, also when records were deleted before they were read.
        """
        ends = {number: end for number, (start, end) in self.ranges.items() if start < end}
        self._consumer.assign(
            [ck.TopicPartition(self.topic, one, self.ranges[one][0]) for one in ends]
        )
        left = set(ends)
        moved = time.monotonic()
        while left:
            with without_collection():
                messages = self._consumer.consume(_ROWS_MAX, _POLL_S)
                left -= self._ended(messages)
                found = to_batch(self.topic, [one for one in messages if one.error() is None])
                del messages
            found, at_end = _before(found, ends)
            left -= at_end
            if found.num_rows:
                yield found
                moved = time.monotonic()
            elif left and time.monotonic() - moved > STALLED_S:
                silent = f"nothing of partition {min(left)} for {STALLED_S:.0f} s"
                raise self._unreachable(f"{silent}; {self._trouble or 'it may have no leader'}")

    def _ended(self, messages: list[Any]) -> set[int]:
        """The partitions whose end is reported. Errors: ``NodeUnreachable`` for what does not pass
        by itself; of anything else the text is kept."""
        ended = set()
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == ck.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif error.code() == ck.KafkaError._AUTO_OFFSET_RESET or error.fatal():
                raise self._unreachable(error.str())
            else:
                self._trouble = error.str()
        return ended

    def _unreachable(self, why: str) -> NodeUnreachable | InvalidConfiguration:
        return unreachable(self._bootstrap, self._settings, why)


def _before(records: pa.RecordBatch, ends: Mapping[int, int]) -> tuple[pa.RecordBatch, set[int]]:
    """The records that stand before their partition's end, and the partitions that are read."""
    partition = np.asarray(records.column("record_partition"))
    position = np.asarray(records.column("position"))
    wanted, read = np.ones(len(position), np.bool_), set[int]()
    for number in np.unique(partition).tolist():
        mine = partition == number
        if position[mine].max() + 1 >= ends[number]:
            read.add(number)
            wanted &= ~mine | (position < ends[number])
    return (records if wanted.all() else records.filter(pa.array(wanted))), read


def to_batch(topic: str, records: list[Any]) -> pa.RecordBatch:
    """Records of confluent-kafka, unchanged, in the schema ``DUMP``."""
    stamps = [stamp if kind else None for kind, stamp in (one.timestamp() for one in records)]
    columns = [
        pa.repeat(pa.scalar(topic, pa.utf8()), len(records)),
        pa.array([one.partition() for one in records], pa.int32()),
        pa.array([one.offset() for one in records], pa.int64()),
        pa.array(stamps, pa.int64()).cast(TIME),
        pa.array([one.key() for one in records], pa.binary()),
        pa.array([one.value() for one in records], pa.binary()),
        header_column([headers_of(one) for one in records]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUMP)
