"""Counts what is in the topics: delivered messages, and dead letters of the sink.

Theory: both kinds of topic give batches of rows with a position and, in the id, due time and
offset; a dead letter that the sink made has the topic that it was meant for in a header. From
there on they are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...account.limits import ready_ms
from ...account.vocabulary import Tier
from ...policy.deadletters import EXPIRED
from ...policy.headercolumns import HeaderColumn, decimals
from ...policy.headers import CREATED_HEADER, ID_HEADER
from ...policy.lettercolumns import sink_letters
from ...reading.kafka.dump import DUMP
from ...reading.tailing import TailRows
from ...wheel.checks import TOPIC_PATTERN
from ...wheel.ids import id_parts
from ...wheel.schema import Int64s, Mask, times
from ..ledger import AuditLedger


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows of one partition of a topic, shape (rows,) each; times in ms. ``headers`` without those
    of a delivery."""

    topic: str
    partition: int
    position: Int64s
    due: Int64s
    offset: Int64s
    created: Int64s
    delivered: Int64s
    headers: pa.Array


def delivered_rows(new: TailRows, wheel: str) -> Iterator[TopicRows]:
    """The rows that the wheel delivered; in an embedded topic these are all rows."""
    if new.rows.schema.names == DUMP.names:
        yield from from_records(new.rows, wheel)
        return
    names = ("position", "due", "offset", "created", "delivered")
    columns = {name: times(new.rows, name) for name in names}
    headers = new.rows.column("headers")
    yield TopicRows(topic=new.topic, partition=new.partition, headers=headers, **columns)


def from_records(rows: pa.RecordBatch, wheel: str) -> Iterator[TopicRows]:
    """Records of Kafka (schema ``DUMP``) of one partition that a wheel delivered."""
    column = HeaderColumn(rows.column("headers"))
    headers = {name: column.last_values(name) for name in (ID_HEADER, CREATED_HEADER)}
    parts = id_parts(headers[ID_HEADER])
    own = np.asarray(pc.fill_null(pc.equal(pc.struct_field(parts, "group"), wheel), False))
    if not own.any():
        return
    picked = pa.array(own)
    parts, rows = parts.filter(picked), rows.filter(picked)
    delivered = np.asarray(pc.fill_null(rows.column("delivered").cast(pa.int64()), 0))
    yield TopicRows(
        rows.column("topic")[0].as_py(),
        int(rows.column("record_partition")[0].as_py()),
        np.asarray(rows.column("position")),
        np.asarray(parts.field("due")),
        np.asarray(parts.field("offset")),
        decimals(headers[CREATED_HEADER].filter(picked)),
        delivered,
        rows.column("headers"),
    )


def add_delivered(
    ledger: AuditLedger, rows: TopicRows, dead_letter_topic: str, now_ms: int
) -> None:
    """Count rows of a topic; a dead letter of the sink counts in the topic that it was meant for,
    or every dead message would be called lost there."""
    late = rows.delivered - ready_ms(rows.due, rows.created)
    plain: Mask = np.ones(len(rows.due), np.bool_)
    if rows.topic == dead_letter_topic:
        column = HeaderColumn(rows.headers)
        starts, ends = column.starts, column.ends
        letters = sink_letters(column.flat, starts, ends, np.arange(len(rows.due)))
        plain[letters.rows] = False
        expired = np.asarray(pc.equal(letters.reason, EXPIRED.encode()))
        # Anybody can write to the topic, and call it a letter.
        legal = pc.match_substring_regex(letters.topic, TOPIC_PATTERN)
        legal = np.asarray(pc.fill_null(legal, False))
        topics = pc.if_else(legal, letters.topic, b"").cast(pa.utf8())
        for tier, mask in (
            (Tier.EXPIRED, expired & legal),
            (Tier.DEAD, ~expired & legal),
        ):
            at = letters.rows[mask]
            named = topics.filter(pa.array(mask))
            ledger.see(tier, named, rows.due[at], rows.offset[at], now_ms, late[at])
    topic = pa.DictionaryArray.from_arrays(np.zeros(int(plain.sum()), np.int32), [rows.topic])
    columns = topic, rows.due[plain], rows.offset[plain], now_ms, late[plain]
    ledger.see(Tier.DELIVERED, *columns, rows.position[plain], rows.partition)
