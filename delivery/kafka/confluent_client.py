"""The common part of all clients of confluent-kafka (librdkafka, the extra ``fast``).

It has their settings, sends records and waits for them, ends a client, and translates an error.

A record costs one call of ``produce`` and, when it succeeds, no Python at all: only failures are
called back (``delivery.report.only.error``), and ``flush`` returns whether everything was reported.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ...broker.settings import ClientKind, for_confluent
from ...wheel.errors import MissingExtra
from ..sink import Answer
from .plan import KafkaSettings, SendFailure, SendPlan

ck: Any = None  # None when the extra is not installed, which is reported when a sink is made
ck_admin: Any = None
with suppress(ImportError):
    ck = importlib.import_module("confluent_kafka")
    ck_admin = importlib.import_module("confluent_kafka.admin")

client_log = logging.getLogger("slotwheel.librdkafka")

BATCH_BYTES = 256 * 1024
LINGER_MS = 100
"""It is longer than a chunk takes to be handed over; ``flush`` ends it. A record for a partition
has to wait while the broker has not answered an earlier batch of it, and once it has lingered,
librdkafka spins until that answer: a shorter time would cost a core."""
_LATE_S = 0.5
"""librdkafka gives up a record by itself, and gets so much longer, s, to report that."""


def need_extra() -> None:
    """Errors: ``MissingExtra`` when confluent-kafka is not installed."""
    if ck is None:
        raise MissingExtra(
            "the confluent sink needs confluent-kafka, which is not installed",
            remedy="Run: pip install 'slotwheel[fast]', or use --sink kafka-python",
        )


def client_config(settings: KafkaSettings, kind: ClientKind) -> dict[str, Any]:
    """The settings of every client, also one that sends nothing; the user's override ours."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": "slotwheel",
        "reconnect.backoff.max.ms": 1000,
        "log.connection.close": False,
    } | for_confluent(settings.extra, kind)


def producer_config(settings: KafkaSettings, timeout_s: float) -> dict[str, Any]:
    """Further settings of every producer. After ``timeout_s`` it gives up a record."""
    return {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "allow.auto.create.topics": False,
        "delivery.report.only.error": True,
        "message.timeout.ms": int(timeout_s * 1000),
        "request.timeout.ms": int(timeout_s * 500),
        "message.max.bytes": settings.record_bytes_max,
        "batch.size": BATCH_BYTES,
        "linger.ms": LINGER_MS,
        "queue.buffering.max.messages": settings.rows_in_flight_max * 2,
        "queue.buffering.max.kbytes": settings.bytes_in_flight_max * 2 // 1024,
        "socket.timeout.ms": max(1000, int(timeout_s * 1000)),
    }


def send_by(
    producer: Any, plan: SendPlan, rows: list[int], timeout_s: float
) -> dict[int, SendFailure]:
    """Send ``rows`` of the plan by one producer and wait until each is reported, for ``timeout_s``
    and a moment. Returns those that failed."""
    failures: dict[int, SendFailure] = {}

    def note(row: int, error: Any, _message: Any) -> None:
        failures[row] = classify(error)

    deadline = time.monotonic() + timeout_s + _LATE_S
    produce, records = producer.produce, plan.records
    topics, keys, values, headers = (
        records.topics,
        records.keys,
        records.values,
        records.headers,
    )
    partitions = plan.partitions.tolist()
    for row in rows:
        report = partial(note, row)
        while True:
            try:
                produce(
                    topics[row],
                    values[row],
                    keys[row],
                    partitions[row],
                    report,
                    headers=headers[row],
                )
            except BufferError:
                if time.monotonic() < deadline:
                    producer.poll(0.05)
                    continue
                failures[row] = SendFailure(Answer.NOT_NOW, "the client's queue is full")
            except ck.KafkaException as error:  # the client did not accept it
                failure = classify(error.args[0])
                unsent = failure.answer is Answer.UNKNOWN
                failures[row] = replace(failure, answer=Answer.NOT_NOW) if unsent else failure
            break
    if producer.flush(max(0.0, deadline - time.monotonic())) > 0:
        producer.purge()
        if producer.flush(_LATE_S) > 0:  # still not all: the outcome of every row is unknown
            late = SendFailure(Answer.UNKNOWN, "no acknowledgement in time")
            return dict.fromkeys(rows, late) | failures
    return dict(failures)  # the client may go on to report into the original


def end_producer(producer: Any) -> None:
    """End a producer without sending what it still holds."""
    producer.purge()
    producer.flush(0)

    def close() -> None:
        with suppress(ck.KafkaException):  # the error that ended it is raised once more
            producer.close()

    # Destroying it waits for its threads, in a thread that nothing waits for.
    threading.Thread(target=close, name="confluent-close", daemon=True).start()


def classify(error: Any) -> SendFailure:
    """The answer for a record, from librdkafka's error. A record that the client gave up may arrive
    yet, whatever the error: the broker still reads the bytes in its socket's buffer."""
    reason = f"{error.name()}: {error.str()}"
    if error.name() == "_INVALID_DIFFERENT_RECORD":
        return SendFailure(Answer.UNKNOWN, reason, bystander=True)
    return SendFailure.by_code(error.code(), reason)
