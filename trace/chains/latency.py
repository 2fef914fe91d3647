"""How long messages take, step by step, by topic and time: of all events of a time together.

    sent --send--> stored ... due --wheel--> on its topic --broker--> received --consumer-->
                              |---------------- arrival -----------------|

Theory: every step is a difference of two times that one event has, or that an event and the row of
a departure have; so no chain has to be put together for it, and Spark computes the same from the
same columns (``replay/traces``).

Rules
- A bucket is of the message's due time (``account.limits``), which each of its events has: so all
  steps of a message are in one bucket.
- A percentile is a value that was measured: of 10 values, p95 is the 10th and p50 the 5th.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...account.limits import bucket_of
from ...wheel.schema import Int64s
from ..events import EventKind
from .departures import Departures, due_of, integers, ready


class LatencyStep(StrEnum):
    """A step on the way of a message."""

    SEND = "send"
    """From the call of the client until the node has acknowledged it."""
    WHEEL = "wheel"
    """From its due time (or when it was accepted, if that is later) until it is on its topic."""
    BROKER = "broker"
    """From then on until the application has it."""
    ARRIVAL = "arrival"
    """``wheel`` and ``broker`` together: from its due time until the application has it."""
    CONSUMER = "consumer"
    """Until the application has answered."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long one step took for the messages to ``topic`` that were due in the interval that
    begins at ``bucket_ms``. Times in ms."""

    topic: str
    bucket_ms: int
    step: LatencyStep
    messages: int
    p50: float
    p95: float
    p99: float
    max: float


EVENT_COLUMNS = ("kind", "at", "took_us", "id", "topic", "error")


def latencies(
    events: Iterable[pa.RecordBatch], departures: Departures, interval_ms: int
) -> list[Latency]:
    """Figures in the order of topic, bucket and step. ``events``: ``EVENT_COLUMNS`` of schema
    ``STORED``."""
    parts = [*_of_events(events, departures), *_of_departures(departures.delivered)]
    if not parts:
        return []
    table = pa.concat_tables(parts).combine_chunks()
    bucket = bucket_of(np.asarray(table.column("due")), interval_ms)
    topics = table.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    steps = list(LatencyStep)
    step, us = np.asarray(table.column("step")), np.asarray(table.column("us"))
    code = np.asarray(topics.indices)
    order = np.lexsort((us, step, bucket, code))
    code, bucket, step, us = code[order], bucket[order], step[order], us[order]
    changes = np.flatnonzero((np.diff(code) != 0) | (np.diff(bucket) != 0) | (np.diff(step) != 0))
    starts = np.concatenate([[0], changes + 1])
    ends = np.concatenate([changes + 1, [len(us)]])
    figures = [
        Latency(
            names[code[start]],
            int(bucket[start]),
            steps[step[start]],
            int(end - start),
            _percentile(us[start:end], 50),
            _percentile(us[start:end], 95),
            _percentile(us[start:end], 99),
            float(us[end - 1]) / 1000,
        )
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return sorted(
        figures, key=lambda figure: (figure.topic, figure.bucket_ms, steps.index(figure.step))
    )


def _percentile(ordered_us: Int64s, percent: int) -> float:
    return float(ordered_us[-(-len(ordered_us) * percent // 100) - 1]) / 1000


def _part(
    step: LatencyStep, topic: pa.Array | pa.ChunkedArray, due: Int64s, us: Int64s
) -> pa.Table:
    number = list(LatencyStep).index(step)
    columns = {
        "topic": topic,
        "due": pa.array(due),
        "step": pa.array(np.full(len(due), number, np.int8)),
        "us": pa.array(us),
    }
    return pa.table(columns)


def _of_events(events: Iterable[pa.RecordBatch], left: Departures) -> Iterator[pa.Table]:
    for whole_batch in events:
        batch = whole_batch.select(EVENT_COLUMNS)
        named = pc.and_(batch.column("id").is_valid(), batch.column("topic").is_valid())
        sound = pc.and_(pc.is_null(batch.column("error")), pc.is_valid(batch.column("took_us")))
        sent = batch.filter(
            pc.and_(pc.and_(named, sound), pc.equal(batch.column("kind"), EventKind.PRODUCED))
        )
        if sent.num_rows:
            topic = sent.column("topic")
            yield _part(
                LatencyStep.SEND, topic, due_of(sent.column("id")), integers(sent, "took_us")
            )
        got = batch.filter(pc.and_(named, pc.equal(batch.column("kind"), EventKind.PROCESSED)))
        if not got.num_rows:
            continue
        topic, ids = got.column("topic"), got.column("id")
        due, at = due_of(ids), integers(got, "at")
        took = got.column("took_us")
        told = took.is_valid()
        yield _part(
            LatencyStep.CONSUMER,
            topic.filter(told),
            due[np.asarray(told)],
            np.asarray(took.drop_null()),
        )
        place, left_wheel = left.find(ids)
        place, could = place[left_wheel], due.copy()
        could[left_wheel] = left.ready[place]
        yield _part(LatencyStep.ARRIVAL, topic, due, (at - could) * 1000)
        yield _part(
            LatencyStep.BROKER,
            topic.filter(pa.array(left_wheel)),
            due[left_wheel],
            (at[left_wheel] - left.at[place]) * 1000,
        )


def _of_departures(left: pa.Table) -> Iterator[pa.Table]:
    named = left.filter(left.column("topic").is_valid())
    if named.num_rows:
        late_us = (integers(named, "at") - ready(named)) * 1000
        yield _part(LatencyStep.WHEEL, named.column("topic"), integers(named, "due"), late_us)
