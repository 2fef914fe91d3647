"""What the suite has to show. The page (``benchmarks.page``) compares it with what was measured.

A goal names a run of the suite (``benchmarks.suite``) and one of its figures; the median of that
figure is judged. ``why`` is for a goal that is not reached: where the time goes, and what was
tried. It names no figure that the page itself has from the run; docs/performance.md says more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AT_LEAST: Literal[">="] = ">="
AT_MOST: Literal["<="] = "<="


@dataclass(frozen=True)
class Goal:
    text: str
    run: str
    figure: str
    comparison: Literal[">=", "<="]
    limit: float
    why: str = ""

    def is_reached(self, value: float) -> bool:
        return value >= self.limit if self.comparison == AT_LEAST else value <= self.limit


_SUSTAINED = "durable ingest"
_INGEST = "durable ingest, 1000-row batches of 100 B, two clients, 60 s"
_SIDE_BY_SIDE = "delay queues side by side"
_64_CALLERS = "delay queues, 64 callers with connections of their own"
_TO_KAFKA = "lateness into Kafka at 50,000/s"
_AT_10K = "lateness at 10,000/s"
_AT_100K = "lateness at 100,000/s"
_SINGLE = "single sends"
_HTTP = "HTTP"
_EMPTY = "empty node"
_PENDING = "pending"
_CPU = "node CPU, us/message"

_OF_ONE_CALLER = (
    "A sync empties the processor's caches, so what stands between a message and its sync, and"
    " between the sync and its answer, runs from memory; the rest is the sync and two wake-ups."
)
_OF_64_CALLERS = (
    "Node and callers share two cores, and each caller is a thread, so threads change at every"
    " message."
)
_OF_HTTP = (
    "One thread of the gateway reads, checks and answers all requests; node and load generator"
    " share the other core. Redis is fed by its own load generator, which is one thread of C."
)

GOALS = (
    Goal(
        "50,000/s into Kafka, ingest beside it: p99, ms", _TO_KAFKA, "lateness p99, ms", AT_MOST, 20
    ),
    Goal(
        "50,000/s into Kafka: processor time of the node, us/message",
        _TO_KAFKA,
        _CPU,
        AT_MOST,
        12,
        "One thread alone would take 8.9 us in and out, 3.2 for the records and 3 in librdkafka;"
        " the rest is threads that wait for each other. Tried: ids and headers in plain Python"
        " take 2 to 3 us less, but messages were late.",
    ),
    # A rate that was not kept up would make lateness look better than it is.
    Goal(
        "100,000/s in and out, embedded: messages in 20 s",
        _AT_100K,
        "messages",
        AT_LEAST,
        1_980_000,
    ),
    Goal("100,000/s in and out, embedded: p99, ms", _AT_100K, "lateness p99, ms", AT_MOST, 15),
    Goal("100,000/s in and out, embedded: early", _AT_100K, "early", AT_MOST, 0),
    Goal("100,000/s in and out, embedded: us/message", _AT_100K, _CPU, AT_MOST, 8),
    Goal(
        "100,000/s in and out, embedded: p99 while a spill runs, to p99 without",
        _AT_100K,
        "ratio: p99 while a spill runs, to p99 without",
        AT_MOST,
        1.5,
    ),
    Goal(
        "10,000/s in and out, embedded: us/message",
        _AT_10K,
        _CPU,
        AT_MOST,
        20,
        "Chunks are small, so each message pays a share of two syncs and of threads that wake each"
        " other.",
    ),
    Goal("10,000/s in and out, embedded: p99, ms", _AT_10K, "lateness p99, ms", AT_MOST, 12),
    Goal(
        "highest steady rate into Kafka with p99 of 100 ms, messages/s",
        "highest rate into Kafka",
        "highest steady rate, messages/s",
        AT_LEAST,
        150_000,
    ),
    Goal(
        "one waiting caller, to NATS",
        _SIDE_BY_SIDE,
        "ratio: NATS, batches of 1",
        AT_LEAST,
        1,
        _OF_ONE_CALLER,
    ),
    Goal(
        "one waiting caller, to Redis",
        _SIDE_BY_SIDE,
        "ratio: Redis, batches of 1",
        AT_LEAST,
        0.75,
        _OF_ONE_CALLER,
    ),
    Goal(
        "one waiting caller: us of the client a message",
        _SINGLE,
        "us of the client a message, 1 clients",
        AT_MOST,
        60,
        _OF_ONE_CALLER,
    ),
    Goal(
        "one waiting caller: us of the node a message",
        _SINGLE,
        "us of the node a message, 1 clients",
        AT_MOST,
        230,
        _OF_ONE_CALLER,
    ),
    Goal(
        "64 waiting callers, to NATS",
        _64_CALLERS,
        "ratio: NATS, batches of 1",
        AT_LEAST,
        4,
        _OF_64_CALLERS,
    ),
    Goal(
        "64 waiting callers, to Redis",
        _64_CALLERS,
        "ratio: Redis, batches of 1",
        AT_LEAST,
        1.5,
        _OF_64_CALLERS,
    ),
    Goal(
        "64 waiting callers, to RocketMQ",
        _64_CALLERS,
        "ratio: RocketMQ, batches of 1",
        AT_LEAST,
        3,
        _OF_64_CALLERS,
    ),
    Goal(
        "HTTP, 64 connections: messages/s",
        _HTTP,
        "messages/s, 64 connections",
        AT_LEAST,
        18_000,
        _OF_HTTP,
    ),
    Goal(
        "HTTP, 64 connections, to Redis' ZADD from 64 connections",
        _HTTP,
        "ratio: 64 connections to Redis",
        AT_LEAST,
        1,
        _OF_HTTP,
    ),
    Goal("5,000 idle connections, MB", _SINGLE, "5,000 idle connections, MB", AT_MOST, 40),
    Goal(
        f"{_INGEST}: to raw write + sync",
        _SUSTAINED,
        "ratio: to the raw limit",
        AT_LEAST,
        0.5,
        "The processor is busy before the disk is: node and clients take both cores, and appends"
        " wait for spills besides. Tried, and no faster: spills by a process of their own, or at a"
        " lower priority; larger tails.",
    ),
    Goal(
        f"{_INGEST}: to Redis (always, pipelines of 1000)",
        "delay queues, two clients",
        "ratio: Redis, batches of 1000",
        AT_LEAST,
        4,
    ),
    Goal(
        "three peers, to one node",
        "replication",
        "ratio: three peers to one node",
        AT_LEAST,
        0.6,
        "Three nodes and two clients share two cores and one disk. Not measured on three machines.",
    ),
    Goal(
        "1,000,000 due in one second, embedded: the last one after that second began, ms",
        "burst of a million, embedded",
        "last one after the second began, ms",
        AT_MOST,
        1_200,
    ),
    Goal(
        "a burst into Kafka, kafka-python: to the bare producer",
        "burst, kafka-python",
        "ratio: to the raw limit",
        AT_LEAST,
        0.9,
    ),
    Goal(
        "a burst into Kafka, confluent-kafka: to the bare producer",
        "burst, confluent",
        "ratio: to the raw limit",
        AT_LEAST,
        0.75,
    ),
    Goal(
        "catch-up, 5 M overdue, embedded: messages/s",
        "catching up",
        "delivered/s",
        AT_LEAST,
        3e6,
        "The thread that delivers waits for the disk for almost half of the time. Tried and kept:"
        " the next window of a large slot is read ahead. Tried without a difference: blocks handed"
        " to the disk in shares, no spill of what is overdue. Larger chunks bring a quarter, but"
        " more is in flight at a crash.",
    ),
    Goal("memory with 100 M pending, MB", _PENDING, "resident at 100 M, MB", AT_MOST, 250),
    Goal("restart with 100 M pending, s", _PENDING, "restart at 100 M, s", AT_MOST, 1.5),
    Goal("status with 100 M pending, ms", _PENDING, "status at 100 M, ms", AT_MOST, 10),
    Goal("empty node: memory, MB", _EMPTY, "resident with nothing pending, MB", AT_MOST, 90),
    Goal("empty node: listens after, s", _EMPTY, "start with nothing pending, s", AT_MOST, 0.3),
    Goal(
        "all validators on Spark, local[2]: rows/s",
        "replay",
        "all validators at 5 M, rows/s",
        AT_LEAST,
        3e6,
        "Reading and judging take 0.7 to 0.9 us of Python's processor time a row, which alone is"
        " 2.2 to 2.9 M rows/s on two cores. Tried without a difference: facts pressed by LZ4 or"
        " column by column, workers forked from a process that has imported what they need.",
    ),
    Goal(
        "bare read by the data source: rows/s",
        "replay",
        "bare read at 5 M, rows/s",
        AT_LEAST,
        2.5e6,
        "The JVM makes a row of Spark of each row of a batch, twice: 0.7 us of 0.85 a row. Tried"
        " and kept: columns that are not asked for are not made. Without Java's second compiler it"
        " would take three times as much.",
    ),
    Goal(
        "delay-topic intake, kafka-python: to the bare consumer",
        "delay topic, kafka-python",
        "ratio: to the bare consumer",
        AT_LEAST,
        0.75,
    ),
    Goal(
        "delay-topic intake, confluent-kafka: to the bare consumer",
        "delay topic, confluent",
        "ratio: to the bare consumer",
        AT_LEAST,
        0.5,
    ),
)
