"""What every sink must do. Each sink's tests inherit ``SinkContract``; those of a real Kafka
``KafkaContract``, which adds what only a broker can refuse or delay.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from slotwheel.broker.murmur2 import partitions_of
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.sink import Answer, Answers, Sink
from slotwheel.wheel.rows import Header
from support.broker import Broker, Cluster, TopicFactory
from support.deliveries import Sent, id_of, odd, rows_of
from support.kafkaread import OURS, Record, read_committed
from support.stopwatch import Stopwatch
from support.waiting import PATIENCE_S

_WAITS = ("delivery_timeout_s", "trial_timeout_s", "metadata_timeout_s")


def patient(bootstrap: str, **more: Any) -> KafkaSettings:
    """Of a sink whose broker is there: on a busy machine it takes its time."""
    waits: dict[str, Any] = dict.fromkeys(_WAITS, 60.0)
    return KafkaSettings(bootstrap, **waits, **more)


@dataclass(frozen=True)
class Got:
    """One row as a consumer sees it. ``headers`` without, ``ours`` with only slotwheel's own."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    id: str


class SinkContract:
    """Needs the fixture ``sink``, and ``topics`` to make topics and read them."""

    def test_every_byte_arrives(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("odd")
        sent = odd(topic)
        assert_accepted(sink.deliver(rows_of(sent, 40)))
        got = topics.read(topic, len(sent))
        assert [(g.key, g.value, g.headers) for g in got] == [
            (s.key, s.value, s.headers) for s in sent
        ]
        assert [g.id for g in got] == [id_of(s, 40 + at) for at, s in enumerate(sent)]

    def test_a_slice_of_a_batch_is_what_arrives(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("slice")
        sent = odd(topic) * 3
        assert_accepted(sink.deliver(rows_of(sent).slice(5, 11)))
        got = topics.read(topic, 11)
        wanted = [(s.key, s.value, s.headers) for s in sent[5:16]]
        assert [(g.key, g.value, g.headers) for g in got] == wanted

    def test_order_is_kept_over_chunks_and_topics(self, sink: Sink, topics: Topics) -> None:
        names = [topics.make("order") for _ in range(3)]
        sent = [Sent(names[n % 3], str(n).encode()) for n in range(3000)]
        for start in range(0, 3000, 700):
            assert_accepted(sink.deliver(rows_of(sent[start : start + 700], start)))
        for number, name in enumerate(names):
            got = [g.value for g in topics.read(name, 1000)]
            assert got == [str(n).encode() for n in range(number, 3000, 3)]

    def test_a_large_chunk(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("large")
        sent = [Sent(topic, b"%07d" % n * 14, key=b"%d" % (n % 50)) for n in range(40_000)]
        assert_accepted(sink.deliver(rows_of(sent)))
        got = topics.read(topic, len(sent))
        assert [g.value for g in got] == [s.value for s in sent]

    def test_an_empty_chunk(self, sink: Sink, topics: Topics) -> None:
        answers = sink.deliver(rows_of([]))
        assert answers.codes.shape == (0,)
        assert not answers.down

    def test_a_trial_delivers_too(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("trial")
        assert sink.probe(topic)
        assert_accepted(sink.deliver(rows_of([Sent(topic)]), trial=True))
        assert len(topics.read(topic, 1)) == 1
        assert sink.healthy()

    def test_close_twice(self, sink: Sink, topics: Topics) -> None:
        sink.deliver(rows_of([Sent(topics.make("close"))]))
        sink.close()
        sink.close()


class Topics:
    """Makes topics and reads them back."""

    @abstractmethod
    def make(self, name: str, partitions: int = 1, **config: object) -> str: ...

    @abstractmethod
    def read(self, topic: str, count: int) -> list[Got]:
        """All rows, by partition and position; fails if they are not exactly ``count``."""


class KafkaTopics(Topics):
    def __init__(self, bootstrap: str, factory: TopicFactory) -> None:
        self._bootstrap = bootstrap
        self._factory = factory

    def make(self, name: str, partitions: int = 1, **config: object) -> str:
        return self._factory(name, partitions, **config)

    def read(self, topic: str, count: int) -> list[Got]:
        return read_topic(self._bootstrap, topic, count)


def read_topic(bootstrap: str, topic: str, count: int, *, more: bool = False) -> list[Got]:
    """What a topic holds up to now; waits for ``count`` rows, and allows more only if told so."""
    records = read_committed(bootstrap, topic, count, settle_s=0.0)
    assert more or len(records) == count, len(records)
    return [_got(record) for record in sorted(records, key=lambda r: (r.partition, r.offset))]


def lower_limit(bootstrap: str, topic: str, limit: int) -> None:
    """Give a topic another limit of bytes, and wait until the broker goes by it."""
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        name = "max.message.bytes"
        admin.alter_configs([ConfigResource("TOPIC", topic, {name: str(limit)})])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = admin.describe_configs([ConfigResource("TOPIC", topic, [name])])
            if int(found["topic"][topic][name]["value"]) == limit:
                return
            time.sleep(0.05)
    pytest.fail("the limit was not lowered")


def _got(record: Record) -> Got:
    ours = {name: value or b"" for name, value in record.headers[-3:]}
    assert tuple(ours) == OURS
    id_ = ours["slotwheel-id"].decode("ascii")
    due, created = int(ours["slotwheel-due-ms"]), int(ours["slotwheel-created-ms"])
    assert id_.split(".")[1] == str(due)
    assert created == due - 1000
    return Got(record.partition, record.key, record.value, record.headers[:-3], id_)


class KafkaContract(SinkContract):
    """For sinks to a real Kafka; ``build`` makes one."""

    @abstractmethod
    def build(self, settings: KafkaSettings) -> Sink: ...

    @pytest.fixture
    def topics(self, broker: Cluster, topic: TopicFactory) -> Topics:
        return KafkaTopics(broker.bootstrap, topic)

    @pytest.fixture
    def sink(self, broker: Cluster) -> Iterator[Sink]:
        sink = self.build(patient(broker.bootstrap, unknown_topic_after_s=0.0))
        yield sink
        sink.close()

    def test_a_key_goes_where_kafka_would_send_it(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("keys", 7)
        keys = [b"k%d" % n * (n % 9) for n in range(500)]  # among them empty ones
        sent = [Sent(topic, str(n).encode(), key=key) for n, key in enumerate(keys)]
        assert_accepted(sink.deliver(rows_of(sent)))
        wanted = partitions_of(rows_of(sent).column("key"), 7)
        for got in topics.read(topic, len(sent)):
            assert got.value is not None
            assert got.partition == wanted[int(got.value)]

    def test_a_named_partition_wins_over_the_key(self, sink: Sink, topics: Topics) -> None:
        topic = topics.make("named", 3)
        sent = [Sent(topic, str(n).encode(), key=b"same", partition=n % 3) for n in range(30)]
        assert_accepted(sink.deliver(rows_of(sent)))
        for got in topics.read(topic, 30):
            assert got.value is not None
            assert got.partition == int(got.value) % 3

    def test_bad_rows_are_refused_alone(self, sink: Sink, topics: Topics) -> None:
        """One oversized, one for a missing topic, one for a missing partition among many."""
        topic = topics.make("some-bad", max_message_bytes=300_000)
        other = topics.make("small", max_message_bytes=2000)
        sent = [Sent(topic, b"%d" % n) for n in range(1000)]
        sent += [Sent(other, b"%d" % n) for n in range(1000)]
        sent[500] = Sent(topic, b"x" * 400_000)
        sent[600] = Sent("no-such-topic", b"lost?")
        sent[700] = Sent(topic, b"nowhere", partition=9)
        sent[1500] = Sent(other, b"x" * 3000)
        answers = sink.deliver(rows_of(sent))
        refused = np.flatnonzero(answers.which(Answer.REFUSED)).tolist()
        assert refused == [500, 600, 700, 1500]
        assert not answers.which(Answer.NOT_NOW).any()
        assert "no-such-topic does not exist" in answers.reasons[600]
        assert "only 1 partitions" in answers.reasons[700]
        assert [g.value for g in topics.read(topic, 997)] == [
            s.value for n, s in enumerate(sent[:1000]) if n not in refused
        ]
        got = sorted(g.value or b"" for g in topics.read(other, 999))
        assert got == sorted(s.value or b"" for n, s in enumerate(sent) if n >= 1000 and n != 1500)
        # The sink goes on as if nothing had been.
        assert_accepted(sink.deliver(rows_of([Sent(topic, b"after"), Sent(other, b"after")])))

    def test_the_broker_refuses_rows_alone(
        self, broker: Cluster, sink: Sink, topics: Topics
    ) -> None:
        """What only the broker can know: a limit that has just been lowered, and a compacted topic,
        which takes no record without a key."""
        lowered = topics.make("lowered", max_message_bytes=300_000)
        compacted = topics.make("compacted", cleanup_policy="compact")
        assert_accepted(sink.deliver(rows_of([Sent(lowered, b"first", key=b"k")])))
        lower_limit(broker.bootstrap, lowered, 5000)
        sent = [Sent((lowered, compacted)[n % 2], b"%d" % n, key=b"k%d" % n) for n in range(400)]
        sent[100] = Sent(lowered, b"x" * 6000)
        sent[300] = Sent(lowered, b"x" * 7000)
        sent[201] = Sent(compacted, b"no key")
        answers = sink.deliver(rows_of(sent))
        refused = np.flatnonzero(answers.which(Answer.REFUSED)).tolist()
        assert refused == [100, 201, 300]
        assert (answers.codes < Answer.NOT_NOW).all(), answers.why_not
        for first, name in ((0, lowered), (1, compacted)):
            wanted = {sent[n].value for n in range(first, 400, 2) if n not in refused}
            got = {g.value for g in read_topic(broker.bootstrap, name, len(wanted), more=True)}
            assert got - {b"first"} == wanted

    def test_a_topic_made_a_moment_later_is_not_refused(
        self, broker: Cluster, topics: Topics
    ) -> None:
        sink = self.build(patient(broker.bootstrap, unknown_topic_after_s=30.0))
        name = topics.make("template") + "-late"
        rows = rows_of([Sent(name)])
        assert sink.deliver(rows).codes.tolist() == [Answer.NOT_NOW]
        assert not sink.probe(name)
        broker.create_topic(name)
        assert sink.probe(name)
        assert_accepted(sink.deliver(rows))
        broker.delete_topic(name)
        sink.close()

    def test_a_missing_topic_is_refused_after_its_time(
        self, broker: Cluster, topics: Topics
    ) -> None:
        sink = self.build(patient(broker.bootstrap, unknown_topic_after_s=0.2))
        there = topics.make("there")
        rows = rows_of([Sent("missing"), Sent(there)])
        first = sink.deliver(rows)
        assert first.codes.tolist() == [Answer.NOT_NOW, Answer.ACCEPTED]
        assert not first.down
        time.sleep(0.25)
        assert sink.deliver(rows).codes.tolist() == [Answer.REFUSED, Answer.ACCEPTED]
        sink.close()

    def test_small_bounds_in_flight(self, broker: Cluster, topics: Topics) -> None:
        bounds = {"rows_in_flight_max": 7, "bytes_in_flight_max": 2000}
        sink = self.build(patient(broker.bootstrap, **bounds))
        topic = topics.make("bounds")
        sent = [Sent(topic, b"%d" % n * (500 if n == 20 else 1)) for n in range(50)]
        assert_accepted(sink.deliver(rows_of(sent)))
        assert [g.value for g in topics.read(topic, 50)] == [s.value for s in sent]
        sink.close()

    def test_no_broker_at_start(self) -> None:
        started = Stopwatch()
        sink = self.build(KafkaSettings("127.0.0.1:9", metadata_timeout_s=0.3))
        answers = sink.deliver(rows_of([Sent("t")] * 5))
        assert (answers.codes == Answer.NOT_NOW).all()
        assert answers.down
        assert "127.0.0.1:9" in answers.why_not
        assert not sink.healthy()
        assert not sink.probe("t")
        sink.close()
        assert started.seconds < 5

    def test_outages_lose_nothing(self, own_broker: Broker) -> None:
        """Paused, then killed, under one sink; every row is tried until it is accepted."""
        topic = own_broker.create_topic("outage")
        settings = KafkaSettings(
            own_broker.bootstrap, delivery_timeout_s=2.0, metadata_timeout_s=0.5
        )
        self._close_while_paused(own_broker, topic)
        sink = self.build(settings)
        self._deliver(sink, topic, 0, own_broker.pause, own_broker.resume)
        self._deliver(sink, topic, 1, own_broker.kill, own_broker.start)
        got = {g.value for g in read_topic(own_broker.bootstrap, topic, 300, more=True)}
        sink.close()
        assert got == {b"%d" % n for n in range(2 * 150)}

    def _close_while_paused(self, broker: Broker, topic: str) -> None:
        """A node must be able to stop at once, also while a delivery waits for the broker."""
        sink = self.build(KafkaSettings(broker.bootstrap, delivery_timeout_s=20.0))
        assert_accepted(sink.deliver(rows_of([Sent(topic, b"0")])))
        broker.pause()
        with ThreadPoolExecutor(1) as thread:
            answers = thread.submit(sink.deliver, rows_of([Sent(topic, b"0")] * 10))
            time.sleep(0.3)
            began = Stopwatch()
            sink.close()
            assert (answers.result(60).codes == Answer.UNKNOWN).all(), "they may arrive yet"
        assert began.seconds < 3
        assert (sink.deliver(rows_of([Sent(topic, b"0")])).codes == Answer.NOT_NOW).all()
        broker.resume()

    def _deliver(self, sink: Sink, topic: str, round_: int, stop: Any, start: Any) -> None:
        sent = [Sent(topic, b"%d" % n) for n in range(round_ * 150, round_ * 150 + 150)]
        deliver_until_accepted(sink, sent[:50])  # the broker may not have found its feet yet
        stop()
        began = time.monotonic()
        answers = sink.deliver(rows_of(sent[50:]))
        assert (answers.codes >= Answer.NOT_NOW).all()
        assert answers.down
        assert not sink.healthy()
        assert time.monotonic() - began < 20, "an answer must come within the limits"
        start()
        deliver_until_accepted(sink, sent[50:])


def deliver_until_accepted(sink: Sink, sent: list[Sent], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if sink.healthy() and (sink.deliver(rows_of(sent)).codes == Answer.ACCEPTED).all():
            return
        time.sleep(0.1)
    pytest.fail("the sink did not come back")


def assert_accepted(answers: Answers) -> None:
    assert (answers.codes == Answer.ACCEPTED).all(), dict(list(answers.reasons.items())[:3])
    assert not answers.down
