"""A load of messages that shows every careless step on the way to Kafka, and three ways to send it.

Theory: content is made from numbers alone, so a test can make it again and compare whole multisets.
Every fifth message or so has something that is easily lost: a null or empty key or value, a header
key twice, a header that is null or empty. A message that names its partition says so in a header as
well, so what arrives can be judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import pyarrow as pa
from confluent_kafka import Producer
from kafka import KafkaProducer

from slotwheel import Client, Message
from slotwheel.wheel.rows import Header, from_columns
from support.deliveries import Sent
from support.waiting import now_ms

NAMED = "wants-partition"
"""Header of a message that names its partition, with its number."""
_KEYS = 500
_SEND_MANY, _SEND_TABLE = 2_000, 10_000


def make(
    count: int,
    topics: Sequence[str],
    partitions: int,
    due: Callable[[Random], int],
    seed: int,
    *,
    plain_client: bool = False,
) -> list[Sent]:
    """``count`` messages. ``plain_client``: only what kafka-python's ``send`` can express, which
    has no header without a value and no record with neither key nor value."""
    rng = Random(seed)
    found = []
    for number in range(count):
        key: bytes | None = b"key-%d" % rng.randrange(_KEYS)
        value: bytes | None = b"%d/%d " % (seed, number) + b"x" * rng.randrange(80)
        headers: tuple[Header, ...] = _headers(number)
        partition = None
        match number % 20:
            case 3:
                key = None
            case 5:
                key = b""
            case 7:
                value = None
            case 11:
                value = b""
            case 13:
                key = value = None
            case 17:
                partition = rng.randrange(partitions)
                headers = (*headers, (NAMED, b"%d" % partition))
            case 19:
                partition, key = rng.randrange(partitions), None
                headers = (*headers, (NAMED, b"%d" % partition))
        if plain_client:
            headers = tuple((name, content or b"") for name, content in headers)
            key = b"" if key is None and value is None else key
        topic = topics[rng.randrange(len(topics))]
        found.append(Sent(topic, value, key, headers, partition, due(rng)))
    return found


@cache
def _kinds() -> list[tuple[Header, ...]]:
    return [
        (),
        (("trace", b"4bf92f3577b34da6"),),
        (("twice", b"1"), ("other", b"\x00\xff"), ("twice", b"2"), ("twice", b"1")),
        (("null", None), ("empty", b""), ("null", None)),
        (("ünïcode ✓", "ü".encode()), ("", b"empty name")),
    ]


def _headers(number: int) -> tuple[Header, ...]:
    kinds = _kinds()
    return kinds[number % len(kinds)]


def send_by_client(address: str, sent: Sequence[Sent]) -> list[str]:
    """By ``Client``, half of them with ``send_many``, half with ``send_table``; the ids."""
    half = len(sent) // 2
    with Client(address, timeout_s=60) as client:
        receipts = [
            client.send_many(
                Message(one.topic, one.value, one.key, one.headers, one.partition, one.due)
                for one in sent[at : min(half, at + _SEND_MANY)]
            )
            for at in range(0, half, _SEND_MANY)
        ]
        receipts += [
            client.send_table(_table(sent[at : at + _SEND_TABLE]))
            for at in range(half, len(sent), _SEND_TABLE)
        ]
        return [id_ for part in receipts for id_ in part.result(60)]


def _table(sent: Sequence[Sent]) -> pa.Table:
    batch = from_columns(
        [one.due for one in sent],
        [one.topic for one in sent],
        [one.partition for one in sent],
        [one.key for one in sent],
        [one.value for one in sent],
        [one.headers for one in sent],
    )
    return pa.Table.from_batches([batch])


def _control(one: Sent, number: int, now_ms: int) -> list[Header]:
    """The headers of a record of the delay topic; its timestamp is to be ``now_ms``."""
    when = ("slotwheel-due-ms", b"%d" % one.due)
    if number % 3 == 0:
        when = ("slotwheel-delay-ms", b"%d" % (one.due - now_ms))
    control: list[Header] = [("slotwheel-topic", one.topic.encode()), when]
    if one.partition is not None:
        control.append(("slotwheel-partition", b"%d" % one.partition))
    # They may stand anywhere among the others.
    cut = number % (len(one.headers) + 1)
    return [*one.headers[:cut], *control, *one.headers[cut:]]


def send_by_kafka_python(bootstrap: str, delay_topic: str, sent: Sequence[Sent]) -> None:
    """Into partition 0 of a delay topic, by kafka-python."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, batch_size=128 << 10)
    futures = []
    for number, one in enumerate(sent):
        at_ms = now_ms()
        headers = _control(one, number, at_ms)
        futures.append(producer.send(delay_topic, one.value, one.key, headers, 0, at_ms))
    producer.flush(60)
    producer.close()
    assert all(future.succeeded() for future in futures)


def send_by_librdkafka(bootstrap: str, delay_topic: str, sent: Sequence[Sent]) -> None:
    """Into partition 0 of a delay topic, by confluent-kafka."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": len(sent) + 1,
            "delivery.report.only.error": True,
        }
    )
    for number, one in enumerate(sent):
        at_ms = now_ms()
        producer.produce(
            delay_topic,
            one.value,
            one.key,
            0,
            on_delivery=lambda error, _: failed.append(error),
            timestamp=at_ms,
            headers=list(_control(one, number, at_ms)),
        )
    assert producer.flush(60) == 0
    assert not failed, failed[:3]
