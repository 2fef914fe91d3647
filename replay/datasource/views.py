"""How the events of a file become rows of a view, column by column (``columns.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from ...policy.headercolumns import HeaderColumn, split_identity, texts
from ...reading.events import ROWS_MAX, Event, RowsSeen
from ...reading.files import TOPIC, File, due_within
from ...reading.problems import Problem, problem_batch
from ...reading.read import read
from ...wheel.ids import id_texts
from ...wheel.rows import from_numpy
from ...wheel.schema import TIME, times
from ..facts.fact import FORGED, NO_DIGEST, Facts, Seen
from ..facts.making import GroupTerms
from ..facts.onefile import OneFile
from ..facts.records import parse_ids
from ..facts.scan import Batches
from .columns import DELIVERED, FACTS, PROBLEMS, RECEIPTS, SCHEMAS
from .options import SourceOptions, schema_of


def view_batches(file: File, peer: str, chosen: SourceOptions, terms: GroupTerms) -> Batches:
    """A file's rows in a view, in Spark's types. ``peer``: the directory that the file belongs to;
    empty: none."""
    if chosen.view == PROBLEMS:
        problems = [event for event in read(file) if isinstance(event, Problem)]
        yield from _as_spark([problem_batch(problems)] if problems else [], chosen)
    elif chosen.view == FACTS:
        yield from _as_spark(_facts(file, peer, terms), chosen)
    else:
        yield from row_batches(read(file), peer, chosen)


def row_batches(events: Iterable[Event], peer: str, chosen: SourceOptions) -> Batches:
    """Rows of events in a view that shows rows as they were read."""
    yield from _as_spark(_rows(events, peer, chosen), chosen)


def _as_spark(batches: Iterable[pa.RecordBatch], chosen: SourceOptions) -> Batches:
    """Cut batches to ``ROWS_MAX`` rows and cast them to Spark's own types: times in microseconds,
    and Spark's name for the items of lists."""
    types = to_arrow_schema(from_arrow_schema(schema_of(chosen)), timezone="UTC")
    for batch in batches:
        columns = batch.select(chosen.columns)
        for at in range(0, columns.num_rows, ROWS_MAX):
            yield columns.slice(at, ROWS_MAX).cast(types)


def _rows(events: Iterable[Event], peer: str, chosen: SourceOptions) -> Batches:
    for event in events:
        if not isinstance(event, RowsSeen):
            continue
        if chosen.view == RECEIPTS:
            batch = _receipts(event)
        elif chosen.view == DELIVERED:
            batch = _delivered(event, peer)
        else:
            batch = _placed(event, peer, schema_of(chosen))
        yield _wanted(batch, event, chosen)


def _wanted(batch: pa.RecordBatch, event: RowsSeen, chosen: SourceOptions) -> pa.RecordBatch:
    rows, wanted = event.rows, chosen.wanted
    if wanted.start_ms is not None or wanted.end_ms is not None:
        due = batch.column("due") if "due" in batch.schema.names else rows.column("due")
        due_ms = np.asarray(pc.fill_null(due.cast(pa.int64()), -1))
        keep = pa.array(due_within(due_ms, wanted.start_ms, wanted.end_ms))
        batch, rows = batch.filter(keep), rows.filter(keep)
    if chosen.topic and not event.topic:
        keep = pc.is_in(rows.column("topic"), pa.array(sorted(chosen.topic)))
        batch = batch.filter(keep)
    return batch


def _placed(event: RowsSeen, peer: str, schema: pa.Schema) -> pa.RecordBatch:
    rows, count = event.rows, event.rows.num_rows
    columns = []
    for field in schema:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name))
        elif field.name == "topic":
            columns.append(_repeated(event.topic, field.type, count))
        else:
            columns.append(_place(field, event, peer, count))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _place(field: pa.Field, event: RowsSeen, peer: str, count: int) -> pa.Array:
    file = event.file
    values: dict[str, str | bool] = {
        "peer": peer,
        "file": file.name,
        "kind": file.kind,
        "archived": file.archived,
    }
    if field.name in values:
        return _repeated(values[field.name], field.type, count)
    numbers = {"entry_index": event.index, "epoch": event.epoch}.get(field.name, -1)
    if not isinstance(numbers, int):
        return pa.array(numbers, field.type)
    known = numbers >= 0 and file.kind != TOPIC
    return _repeated(numbers if known else None, field.type, count)


def _delivered(event: RowsSeen, peer: str) -> pa.RecordBatch:
    """Rows of the view ``delivered``: records with offset, due and creation time of their
    messages."""
    rows, count = event.rows, event.rows.num_rows
    columns = {name: rows.column(name) for name in ("position", "delivered", "key", "value")}
    columns["headers"] = rows.column("headers")
    columns["peer"] = _repeated(peer or None, pa.utf8(), count)
    columns["file"] = _repeated(event.file.name, pa.utf8(), count)
    if event.topic:
        columns |= {name: rows.column(name) for name in ("offset", "due", "created", "partition")}
        columns["topic"] = _repeated(event.topic, pa.utf8(), count)
        checks = np.asarray(rows.column("check"), dtype=np.uint64)
        columns["id"] = id_texts(event.group, times(rows, "due"), times(rows, "offset"), checks)
    else:
        columns["topic"], columns["partition"] = (
            rows.column("topic"),
            rows.column("record_partition"),
        )
        columns |= _identities(rows.column("headers"), count)
    return _batch(DELIVERED, columns)


def _identities(headers: pa.Array, count: int) -> dict[str, pa.Array]:
    identity = split_identity(HeaderColumn(headers))
    ids = parse_ids(identity.id, "")
    place = np.full(count, -1, np.int64)
    place[identity.rows[ids.rows]] = np.arange(len(ids.rows))
    # The row at place -1 becomes a null.
    at = pa.array(place, mask=place < 0)
    return {
        "id": texts(identity.id).take(pa.array(ids.rows)).take(at),
        "offset": pa.array(ids.offset).take(at),
        "due": from_numpy(identity.due[ids.rows], TIME).take(at),
        "created": from_numpy(identity.created[ids.rows], TIME).take(at),
    }


def _receipts(event: RowsSeen) -> pa.RecordBatch:
    rows, count = event.rows, event.rows.num_rows
    columns = {name: rows.column(name) for name in ("offset", "due", "sent", "received")}
    for name in ("topic", "group"):
        column = rows.column(name)
        coded = pa.types.is_dictionary(column.type)
        columns[name] = column.dictionary_decode() if coded else column
    checks = np.asarray(rows.column("check"), dtype=np.uint64)
    due, offset = times(rows, "due"), times(rows, "offset")
    columns["id"] = id_texts(columns.pop("group"), due, offset, checks)
    digest = np.asarray(rows.column("digest"), dtype=np.uint64)
    columns["digest"] = pa.array(digest.view(np.int64))
    columns["file"] = _repeated(event.file.name, pa.utf8(), count)
    return _batch(RECEIPTS, columns)


def _facts(file: File, peer: str, terms: GroupTerms) -> Batches:
    reading = OneFile(file, terms)
    for event in read(file):
        made = reading.facts_of(event)
        reading.new_problems()
        if made is not None and len(made.facts):
            yield _fact_rows(made.facts, made.topics, file, peer)


def _fact_rows(facts: Facts, topics: dict[int, str], file: File, peer: str) -> pa.RecordBatch:
    count, names = len(facts), {seen.value: seen.name.lower() for seen in Seen}
    columns = {name: pa.array(facts[name]) for name in ("offset", "at", "where")}
    columns["seen"] = _named(facts["seen"], names)
    columns["topic"] = _named(facts["topic"], topics)
    columns["due"] = from_numpy(np.ascontiguousarray(facts["due"]), TIME)
    created, partition = facts["created"], facts["partition"]
    columns["created"] = pa.array(created, mask=created < 0).cast(TIME)
    columns["partition"] = pa.array(partition, mask=partition < 0)
    silent = facts["flags"] & NO_DIGEST != 0
    digest = np.ascontiguousarray(facts["digest"]).view(np.int64)
    columns["digest"] = pa.array(digest, mask=silent)
    columns["forged"] = pa.array(facts["flags"] & FORGED != 0)
    columns["peer"] = _repeated(peer or None, pa.utf8(), count)
    columns["file"] = _repeated(file.name, pa.utf8(), count)
    return _batch(FACTS, columns)


def _named(codes: np.ndarray, names: dict[int, str]) -> pa.Array:
    """Numbers replaced by their names; null for a number without a name."""
    known, places = np.unique(codes, return_inverse=True)
    texts = pa.array([names.get(code) for code in known.tolist()], pa.utf8())
    return texts.take(pa.array(places.ravel()))


def _batch(view: str, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    schema = SCHEMAS[view]
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _repeated(value: str | bool | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """One value, repeated ``count`` times. Thousands of batches share the same column."""
    if count > ROWS_MAX:
        return pa.repeat(pa.scalar(value, kind), count)
    return _full(value, kind).slice(0, count)


@lru_cache(64)
def _full(value: str | bool | int | None, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), ROWS_MAX)
