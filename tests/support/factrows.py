"""Rows, topics and records of a wheel group, made up for the tests of replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from slotwheel.delivery.kafka.records import to_records
from slotwheel.delivery.sink import Answer, Answers, Sink
from slotwheel.replay.facts.fact import FACT, Facts, Seen
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.rows import from_numpy, header_column
from slotwheel.wheel.schema import HEADERS, ROW, TIME
from slotwheel.wheel.topics.topicfile import schema_of

GROUP = "lab"
KEY = bytes(range(16))
TERMS = GroupTerms(GROUP, KEY.hex())
MINT = IdMint(GROUP, KEY)
EPOCH_MS = 1_790_000_000_000


def rows(*some: dict[str, Any]) -> pa.RecordBatch:
    """Rows of schema ``ROW``; what is not given is made up from ``offset``."""
    whole = [
        {
            "due": EPOCH_MS + row["offset"],
            "created": EPOCH_MS - 60_000,
            "cancels": None,
            "topic": "orders",
            "partition": None,
            "key": None,
            "value": b"value %d" % row["offset"],
            "headers": [],
            **row,
        }
        for row in some
    ]
    names = [name for name in ROW.names if name != "headers"]
    columns = {name: [row[name] for row in whole] for name in names}
    arrays = {
        name: from_numpy(np.array(column, np.int64), TIME)
        if name in ("due", "created")
        else pa.array(column, ROW.field(name).type)
        for name, column in columns.items()
    }
    arrays["headers"] = header_column([row["headers"] for row in whole])
    return pa.RecordBatch.from_arrays([arrays[name] for name in ROW.names], schema=ROW)


def topic_rows(
    batch: pa.RecordBatch,
    topic: str = "orders",
    first: int = 0,
    delivered: Sequence[int] | None = None,
    group: str = GROUP,
    mint: IdMint = MINT,
) -> pa.RecordBatch:
    """The rows as an embedded topic of that name holds them."""
    count = batch.num_rows
    due = np.asarray(batch.column("due").cast(pa.int64()))
    at = due + 3 if delivered is None else np.array(delivered, np.int64)
    columns = [
        from_numpy(np.arange(first, first + count), pa.int64()),
        from_numpy(at, TIME),
        pa.array(mint.checks(due, np.asarray(batch.column("offset"))), pa.uint64()),
    ]
    schema = schema_of(topic, group)
    columns += [batch.column(name) for name in schema.names[3:]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def kafka_rows(
    batch: pa.RecordBatch, first: int = 0, partition: int = 0, mint: IdMint = MINT
) -> pa.RecordBatch:
    """The rows as a dump of Kafka topics holds them."""
    records = to_records(batch, mint)
    return dump(
        [
            {
                "topic": records.topics[row],
                "record_partition": partition,
                "position": first + row,
                "delivered": int(batch.column("due").cast(pa.int64())[row].as_py()) + 3,
                "key": records.keys[row],
                "value": records.values[row],
                "headers": records.headers[row],
            }
            for row in range(batch.num_rows)
        ]
    )


def dump(records: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = {name: [record[name] for record in records] for name in records[0]}
    arrays = {
        "topic": pa.array(columns["topic"], pa.utf8()),
        "record_partition": pa.array(columns["record_partition"], pa.int32()),
        "position": pa.array(columns["position"], pa.int64()),
        "delivered": from_numpy(np.array(columns["delivered"], np.int64), TIME),
        "key": pa.array(columns["key"], pa.binary()),
        "value": pa.array(columns["value"], pa.binary()),
        "headers": header_column(columns["headers"]).cast(HEADERS),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def as_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same with the columns of Spark's Kafka source: no headers are a null there."""
    headers = [pairs or None for pairs in batch.column("headers").to_pylist()]
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    columns = {
        "key": batch.column("key"),
        "value": batch.column("value"),
        "topic": batch.column("topic"),
        "partition": batch.column("record_partition"),
        "offset": batch.column("position"),
        "timestamp": batch.column("delivered").cast(pa.timestamp("us", "UTC")),
        "headers": pa.array(headers, kind),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class Keeps(Sink):
    """A sink that takes everything and keeps it."""

    def __init__(self) -> None:
        super().__init__(MINT)
        self.rows: list[pa.RecordBatch] = []

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        self.rows.append(rows)
        return Answers.same(rows.num_rows, Answer.ACCEPTED)

    def probe(self, topic: str) -> bool:
        return True

    def healthy(self) -> bool:
        return True

    def close(self, timeout_s: float = 0) -> None:
        pass


def made_fact(seen: Seen, offset: int, **fields: Any) -> Facts:
    """One sighting of a message for ``orders``; ``due`` and ``created`` have to be given."""
    made = np.zeros(1, FACT)
    values = {
        "offset": offset,
        "digest": 7 + offset,
        "at": 1,
        "where": offset,
        "topic": crc32c(b"orders"),
        "partition": -1,
        "seen": seen,
    } | fields
    for name, value in values.items():
        made[name] = value
    return made
