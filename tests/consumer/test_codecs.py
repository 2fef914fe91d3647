"""Every codec of Kafka's protocol is read; one that is not installed is named, and nothing turns in
a circle."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import kafka.codec
import pytest
from confluent_kafka import Producer

from slotwheel.consumer.kafka_python_source import KafkaPythonSource
from slotwheel.consumer.source import ConsumerFailed
from slotwheel.gateway.rest.instance import ConsumerInstance, InstanceSettings
from slotwheel.gateway.rest.kafka_cluster import KafkaCluster
from slotwheel.reading.kafka.kafkatopic import KafkaTopic
from slotwheel.reading.kafka.tails import KafkaTails
from slotwheel.reading.tailing import TailStart
from slotwheel.wheel.errors import SlotwheelError
from support.broker import Cluster, TopicFactory
from support.nodeprocess import run_cli
from support.sourcecontract import Book, read
from support.stopwatch import Stopwatch

CODECS = ("gzip", "snappy", "lz4", "zstd")
LARGE = b"x" * 300_000


@pytest.fixture
def written(broker: Cluster, topic: TopicFactory, codec: str) -> str:
    """A topic with compressed records, as the client writes them that most others are built on."""
    name = topic(f"codec-{codec}")
    settings = {"bootstrap.servers": broker.bootstrap, "compression.type": codec}
    producer = Producer(settings | {"linger.ms": 50})
    for number in range(20):
        producer.produce(name, LARGE if number == 7 else b"%d" % number * 100)
    assert producer.flush(60) == 0
    return name


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_what_is_compressed(broker: Cluster, written: str) -> None:
    with closing(KafkaPythonSource(broker.bootstrap, written, [written], Book())) as source:
        assert [len(one.value or b"") for one in read(source, 20)].count(len(LARGE)) == 1


PACKAGES = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}


@pytest.mark.parametrize("codec", PACKAGES)
def test_a_codec_that_is_not_installed_is_named(
    broker: Cluster, written: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka.codec, f"has_{codec}", lambda: False)
    words = rf"compressed with {codec}.*pip install {PACKAGES[codec]}"
    watch = Stopwatch()
    with closing(KafkaPythonSource(broker.bootstrap, written, [written], Book())) as source:
        _fails_again(ConsumerFailed, words, lambda: source.poll(1.0, 10))
    with closing(KafkaCluster(broker.bootstrap, {})) as cluster:
        settings = InstanceSettings("one", None, False, False, 1, 1000)  # type: ignore[arg-type]
        instance = ConsumerInstance(cluster, f"{written}-rest", settings, 0.0)
        with closing(instance):
            instance.subscribe([written])
            _fails_again(ConsumerFailed, words, lambda: instance.fetch(1.0))
    with closing(KafkaTopic(broker.bootstrap, written, {})) as dump:
        _fails_again(SlotwheelError, words, lambda: list(dump.batches()))
    with closing(KafkaTails(broker.bootstrap, {}, "tail", 100)) as tail:
        tail.follow(written, TailStart())
        _fails_again(SlotwheelError, words, lambda: list(tail.read(1.0)))
    said = run_cli("consume", written, "--bootstrap", broker.bootstrap)
    assert f"pip install {PACKAGES[codec]}" in said.stderr
    assert watch.seconds < 60


def _fails_again(kind: type[Exception], words: str, call: Any) -> None:
    """The second time, too: what was fetched is not turned around for ever."""

    def until_it_fails() -> None:
        for _ in range(20):  # until the group has shared the partitions out
            call()

    for _ in range(2):
        with pytest.raises(kind, match=words):
            until_it_fails()
