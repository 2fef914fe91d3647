"""One record of a topic is read without the rest of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from slotwheel.reading.directory import reading
from slotwheel.reading.kafka import looking
from slotwheel.reading.kafka.confluenttopic import ConfluentTopic
from slotwheel.reading.kafka.kafkatopic import KafkaTopic
from slotwheel.reading.letters.source import LetterSource, Topic
from support.broker import Cluster, TopicFactory
from support.deadlab import EmbeddedLab, letter


def places(topic: Topic) -> list[tuple[int, int]]:
    """Partition and position of all that it gives."""
    return [
        place
        for batch in topic.batches()
        for place in zip(
            batch.column("record_partition").to_pylist(),
            batch.column("position").to_pylist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize("client", [ConfluentTopic, KafkaTopic])
def test_of_kafka(
    broker: Cluster, topic: TopicFactory, client: type[ConfluentTopic] | type[KafkaTopic]
) -> None:
    name = topic("one-record", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(40):
        producer.produce(name, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    for place, found in (
        ((1, 0), [(1, 0)]),
        ((0, 7), [(0, 7)]),
        ((1, 19), [(1, 19)]),
        ((1, 20), []),
        ((2, 0), []),
        ((0, 1 << 40), []),
    ):
        with closing(client(broker.bootstrap, name, {})) as opened:
            opened.narrow(*place)
            assert places(opened) == found, place


class Opened(Exception):
    """Has the configuration with which a consumer would be opened."""


def refuse(*given: dict[str, Any], **config: Any) -> None:
    opened = config | {name: value for part in given for name, value in part.items()}
    raise Opened({name.replace(".", "_"): value for name, value in opened.items()})


@pytest.mark.parametrize("client", [ConfluentTopic, KafkaTopic])
def test_whoever_reads_changes_nothing_whatever_the_user_sets(
    monkeypatch: pytest.MonkeyPatch, client: type[ConfluentTopic] | type[KafkaTopic]
) -> None:
    monkeypatch.setattr(looking, "KafkaConsumer", refuse)
    monkeypatch.setattr("confluent_kafka.Consumer", lambda config, **_: refuse(config))
    theirs = {
        "group.id": "theirs",
        "enable.auto.commit": "true",
        "allow.auto.create.topics": "true",
        "client.id": "theirs",
    }
    with pytest.raises(Opened) as error:
        client("127.0.0.1:1", "t", theirs)
    config = error.value.args[0]
    assert config["client_id"] == "theirs"
    assert config["group_id"] != "theirs"
    assert config["enable_auto_commit"] is config["allow_auto_create_topics"] is False


def test_of_embedded_topics(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab:
        for n in range(3):
            lab.bury([letter("a", 10 * n + k) for k in range(10)])
        with reading(lab.node.data) as files:
            source = LetterSource(files, "", {}, lambda _: None)
            for place, there in (
                ((0, 0), True),
                ((0, 25), True),
                ((0, 30), False),
                ((1, 0), False),
            ):
                with source.opened(lab.topic) as opened:
                    opened.narrow(*place)
                    found = places(opened)
                    assert (place in found) is there
                    assert len(found) <= 20  # a block, and not the topic
