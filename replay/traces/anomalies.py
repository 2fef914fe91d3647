"""Anomalies of all messages: ``trace/chains/anomalies.py``, called by Spark for many at a time.

Theory: whether a message was repeated, or waited, is decided by its own events and departures
alone. So these are brought together in one task, with those of neighbouring offsets, and judged
there as the events of one chain are. For example, offsets 0 to 16,383 of a wheel group are judged
in one call. An event that names no message is known by its place on its topic.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as f

from ...trace.chains.anomalies import LIMITS, AnomalyLimits, anomalies
from ...trace.chains.departures import LEFT, Departures
from ...trace.events import ID, STORED
from ...wheel.ids import id_texts
from ...wheel.schema import times

ANOMALIES = (
    "kind string, at timestamp, id string, topic string, group string, amount bigint, why string"
)
_RANGE_BITS = 14
_ID_PARTS = ("id_group", "due", "id_offset", "id_check")
_JUDGED = ("kind", "at", "error", "topic", "partition", "offset", "group", "attempt", "count")


def anomalies_of(
    events: DataFrame, departures: DataFrame, now_ms: int, limits: AnomalyLimits = LIMITS
) -> DataFrame:
    """Columns: ``ANOMALIES``, in any order. ``events``: those of a trace store, all columns;
    ``departures``: ``DEPARTURES``. The ids of what is known of departures alone have no check."""

    def judge(of_events: pa.Table, of_departures: pa.Table) -> pa.Table:
        return _texts(anomalies(_events(of_events), _departures(of_departures), now_ms, limits))

    owner = f.coalesce("id_group", "topic", f.lit(""))
    place = f.coalesce("id_offset", "offset", f.lit(0))
    rows = _by_range(events.select(*_ID_PARTS, *_JUDGED), owner, place)
    left = _by_range(departures, f.col("group"), f.col("offset"))
    return rows.cogroup(left).applyInArrow(judge, ANOMALIES)


def _by_range(rows: DataFrame, owner: Column, place: Column) -> GroupedData:
    return rows.groupBy(owner.alias("whose"), f.shiftright(place, _RANGE_BITS).alias("range"))


def _events(rows: pa.Table) -> pa.Table:
    group, due, offset, check = (
        rows.column(name).cast(field.type, safe=False).combine_chunks()
        for name, field in zip(_ID_PARTS, ID, strict=True)
    )
    parts = [group.fill_null(""), due.fill_null(0), offset.fill_null(0), check.fill_null(0)]
    ids = pa.StructArray.from_arrays(parts, fields=list(ID), mask=group.is_null())
    columns = {
        name: rows.column(name).cast(STORED.field(name).type, safe=False) for name in _JUDGED
    }
    return pa.table({"id": ids, **columns})


def _departures(rows: pa.Table) -> Departures:
    if not rows.num_rows:
        return Departures()
    columns = [rows.column(field.name).cast(field.type, safe=False) for field in LEFT]
    group = rows.column("group")[0].as_py()
    return Departures(group, pa.table(columns, schema=LEFT).to_batches())


def _texts(rows: pa.Table) -> pa.Table:
    ids = rows.column("id").combine_chunks()
    known = np.asarray(ids.is_valid())
    parts = pa.RecordBatch.from_struct_array(ids.filter(ids.is_valid()))
    check = np.asarray(parts.column("check"))
    texts = id_texts(parts.column("group"), times(parts, "due"), times(parts, "offset"), check)
    place = rows.schema.get_field_index("id")
    at = pa.array(np.cumsum(known) - 1, mask=~known)
    named = rows.set_column(place, "id", texts.take(at))
    place = rows.schema.get_field_index("at")
    moment = rows.column("at").cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    return named.set_column(place, "at", moment)
