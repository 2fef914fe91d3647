"""Faults that only a real Kafka can have: they are planted in its topics, by transactions.

Theory: all of them are planted into one run, each at a message of its own, so that one proof has to
tell them apart. What was delivered goes to Kafka in a committed transaction, what is repeated in a
second one; the third is aborted: its records stand at the end of the topics and do not count.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import confluent_kafka
import pyarrow as pa

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.kafka.records import ProducerRecords, to_records
from slotwheel.replay.report.verdict import Outcome
from slotwheel.wheel.schema import ROW
from support.broker import Cluster
from support.factrows import MINT, Keeps
from support.planting import KAFKA_RUN, Lab, made_run
from support.replayrun import TTL_MS, Deliveries, Run
from support.waiting import PATIENCE_S

_IN_ORDER = itemgetter(1, 0)
"""The key of deliveries: by time, then by offset."""


@dataclass
class KafkaRun:
    """A run, and the deliveries of each transaction."""

    run: Run
    committed: Deliveries
    again: Deliveries = field(default_factory=list)
    aborted: Deliveries = field(default_factory=list)
    blamed: dict[str, str] = field(default_factory=dict)
    """The id of the message that each fault is planted at, by the fault's text."""


@dataclass(frozen=True)
class KafkaFault:
    """``text``: what is planted; ``plant``: does so, and returns the message's offset; ``kind``:
    the problem that it must be found as; empty: none."""

    text: str
    plant: Callable[[KafkaRun], int]
    kind: str

    @property
    def outcome(self) -> Outcome:
        return Outcome.NOT_PROVEN if self.kind else Outcome.PROVEN


def _repeat(made: KafkaRun) -> int:
    made.again.append(made.committed[100])
    return made.again[-1][0]


def _abort_only(made: KafkaRun) -> int:
    made.aborted.append(made.committed.pop(200))
    return made.aborted[-1][0]


def _abort_too(made: KafkaRun) -> int:
    made.aborted.append(made.committed[300])
    return made.aborted[-1][0]


def _deliver_dead(made: KafkaRun) -> int:
    return _deliver(made, next(one for one in made.run.buried if one not in made.run.expired))


def _deliver_expired(made: KafkaRun) -> int:
    return _deliver(made, made.run.expired[0])


def _deliver(made: KafkaRun, offset: int) -> int:
    insort(made.committed, (offset, int(made.run.due[offset]) + TTL_MS), key=_IN_ORDER)
    return offset


KAFKA_FAULTS = [
    KafkaFault("a record was committed twice", _repeat, "repeated"),
    KafkaFault("a record stands in an aborted transaction alone", _abort_only, "lost"),
    KafkaFault("a record stands in an aborted transaction, too", _abort_too, ""),
    KafkaFault("a message is there, and a dead letter, too", _deliver_dead, "dead and delivered"),
    KafkaFault("a message is there, and a dead letter that expired", _deliver_expired, "repeated"),
]


def plant_in_kafka(
    cluster: Cluster, topic: str, dead_letters: str, root: Path
) -> tuple[Lab, KafkaRun]:
    """The files of a run below ``root``, and its deliveries in two topics that exist, with all of
    these faults."""
    run = made_run(KAFKA_RUN)
    run.rows = _renamed(run.rows, topic)
    lab = Lab(KAFKA_RUN, run, root)
    lab.write()
    lab.given()
    lab.dumps = []
    delivered = [one for peer in run.peers for one in peer.delivered]
    made = KafkaRun(run, sorted(delivered, key=_IN_ORDER))
    for fault in KAFKA_FAULTS:
        made.blamed[fault.text] = run.id_of(fault.plant(made))
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": topic,
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(PATIENCE_S)
    dead = [one for peer in run.peers for one in peer.dead]
    letters = _letters(run, [offset for offset, _ in dead], dead_letters)
    producer.begin_transaction()
    _produce(producer, letters, [at for _, at in dead])
    _produce(producer, *_messages(run, made.committed))
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    _produce(producer, *_messages(run, made.again))
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    _produce(producer, *_messages(run, made.aborted))
    # What the client has not sent yet it would drop.
    assert producer.flush(PATIENCE_S) == 0
    producer.abort_transaction(PATIENCE_S)
    return lab, made


def _renamed(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """The rows for another topic; those of cancels are for none."""
    names = [topic if one else one for one in rows.column("topic").to_pylist()]
    return rows.set_column(ROW.names.index("topic"), ROW.field("topic"), pa.array(names))


def _letters(run: Run, offsets: list[int], topic: str) -> ProducerRecords:
    keeps = Keeps()
    DeadLetters(keeps, None, topic).bury(run.pick(offsets), run.reasons(offsets), [])
    return to_records(keeps.rows[0], MINT)


def _messages(run: Run, deliveries: Deliveries) -> tuple[ProducerRecords, list[int]]:
    offsets = [offset for offset, _ in deliveries]
    return to_records(run.pick(offsets), MINT), [at for _, at in deliveries]


def _produce(
    producer: confluent_kafka.Producer, records: ProducerRecords, at_ms: Iterable[int]
) -> None:
    columns = (records.topics, records.keys, records.values, records.headers, at_ms)
    for topic, key, value, headers, at in zip(*columns, strict=True):
        producer.produce(topic, value, key, headers=list(headers), timestamp=at)
