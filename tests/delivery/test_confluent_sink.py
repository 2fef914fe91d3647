"""The fast Kafka sink: the contract, on a real broker, and what happens without the extra."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from slotwheel.delivery.kafka import confluent_client
from slotwheel.delivery.kafka.confluent import ConfluentSink
from slotwheel.delivery.kafka.confluent_client import ck_admin
from slotwheel.delivery.kafka.confluent_transactions import ConfluentTransactions
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.sink import Answer, Sink
from slotwheel.reading.kafka.confluenttopic import ConfluentTopic
from slotwheel.wheel.errors import MissingExtra
from support.broker import Cluster, TopicFactory
from support.deliveries import MINT, Sent, rows_of
from support.sinkcontract import KafkaContract


class TestConfluentSink(KafkaContract):
    def build(self, settings: KafkaSettings) -> Sink:
        return ConfluentSink(MINT, settings)


def test_a_row_over_the_topics_limit_leaves_its_topic_fast(
    broker: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused batch would be sent again record by record, and the topic's rows for a minute."""
    # Below the size of a batch a topic is sent record by record from the start.
    limit = confluent_client.BATCH_BYTES
    name = topic("limited", 1, max_message_bytes=limit)
    made: list[str] = []
    make = ConfluentSink._make

    def noted(sink: ConfluentSink, kind: str) -> object:
        made.append(kind)
        return make(sink, kind)

    monkeypatch.setattr(ConfluentSink, "_make", noted)
    with closing(ConfluentSink(MINT, KafkaSettings(broker.bootstrap))) as sink:
        answers = sink.deliver(rows_of([Sent(name, b"x" * size) for size in (10, limit + 1, 10)]))
    assert answers.codes.tolist() == [Answer.ACCEPTED, Answer.REFUSED, Answer.ACCEPTED]
    assert answers.reasons[1] == f"too large: topic {name} takes {limit} bytes"
    assert made == ["main"]


def test_records_linger_only_until_all_are_handed_over(
    broker: Cluster, topic: TopicFactory
) -> None:
    name = topic("lingering", 1)
    settings = KafkaSettings(
        broker.bootstrap, delivery_timeout_s=300.0, extra={"linger.ms": 290_000}
    )
    with closing(ConfluentSink(MINT, settings)) as sink, ThreadPoolExecutor(1) as pool:
        answers = pool.submit(sink.deliver, rows_of([Sent(name, b"x")] * 100)).result(120)
    assert answers.codes.tolist() == [Answer.ACCEPTED] * 100


def test_the_broker_measures_what_is_compressed(broker: Cluster, topic: TopicFactory) -> None:
    name = topic("limited", 1, max_message_bytes=2000)
    extra = {"compression.type": "zstd"}
    sink = ConfluentSink(MINT, KafkaSettings(broker.bootstrap, extra=extra))
    try:
        answers = sink.deliver(rows_of([Sent(name, b"x" * 3000)]))
    finally:
        sink.close()
    assert answers.codes.tolist() == [Answer.ACCEPTED], answers.reasons


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_client, "ck", None)
    with pytest.raises(MissingExtra, match=r"slotwheel\[fast\]"):
        ConfluentSink(MINT, KafkaSettings("127.0.0.1:9092"))


def test_only_what_is_shown_to_be_safe_is_asked_of_an_admin_client_of_librdkafka(
    broker: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other requests can end the process, when they run out of time while a broker comes
    back."""
    for name in dir(ck_admin.AdminClient):
        asks = name.startswith(("alter", "create", "delete", "describe", "elect", "incremental"))
        if (asks or name.startswith("list")) and name != "describe_topics":
            monkeypatch.setattr(ck_admin.AdminClient, name, None)
    name = topic("limited", max_message_bytes=5_000)
    settings = KafkaSettings(broker.bootstrap)
    with closing(ConfluentSink(MINT, settings)) as sink:
        found = sink.book.lookup(name)
        assert found is not None
        assert found.bytes_max == 5_000
    with closing(ConfluentTransactions(settings, f"{name}-mark", name)) as transactions:
        assert transactions._members(10.0) == 0
    with closing(ConfluentTopic(broker.bootstrap, name, {})) as opened:
        assert opened.ranges == {0: (0, 0)}
