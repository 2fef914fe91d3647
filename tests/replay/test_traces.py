"""Spark over traces: the data source of events, and the same figures as ``trace/chains``."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.replay.datasource.options import parse_trace
from slotwheel.replay.datasource.segments import (
    EVENTS,
    listed_segments,
    read_events,
    stored_batches,
)
from slotwheel.replay.source import register
from slotwheel.replay.traces.anomalies import ANOMALIES, anomalies_of
from slotwheel.replay.traces.departures import DEPARTURES, departures_of
from slotwheel.replay.traces.latency import LATENCIES, latency
from slotwheel.replay.traces.slowest import CHAINS, slowest
from slotwheel.trace.chains.anomalies import AnomalyKind, anomalies
from slotwheel.trace.chains.departures import Departures
from slotwheel.trace.chains.latency import latencies
from slotwheel.wheel.errors import Damaged, InvalidConfiguration
from support import replayrun, tracestore
from support.tracestore import GROUP, START_MS, event, id_parts, table_of, write_segment

INTERVAL_MS = 10_000
NOW_MS = START_MS + 500_000


@pytest.fixture(scope="module")
def run() -> tuple[pa.Table, pa.RecordBatch]:
    return tracestore.random_run(1_000, 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, run: tuple[pa.Table, pa.RecordBatch]) -> Path:
    """Four segments, one of them merged, with what was merged into it left over."""
    root, events = tmp_path_factory.mktemp("traces"), run[0]
    quarter = len(events) // 4
    write_segment(root, 1, 1, events.slice(0, quarter))
    write_segment(root, 2, 9, events.slice(quarter, quarter))
    write_segment(root, 5, 6, events.slice(quarter, 100))
    write_segment(root, 10, 10, events.slice(2 * quarter, quarter))
    write_segment(root, 11, 12, events.slice(3 * quarter))
    (root / "000000000013-000000000013.arrow.new").write_bytes(b"half a segment")
    return root


def frame_of(spark: Any, root: Path, **options: str) -> Any:
    register(spark)
    return spark.read.format("slotwheel").options(trace=str(root), **options).load()


def departures_frame(spark: Any, left: pa.RecordBatch) -> Any:
    table = pa.Table.from_batches([left])
    zoned = [
        pa.field(one.name, pa.timestamp("us", "UTC")) if pa.types.is_timestamp(one.type) else one
        for one in table.schema
    ]
    rows = spark.createDataFrame(table.cast(pa.schema(zoned)))
    names = [one.split()[0] for one in DEPARTURES.split(", ")]
    return rows.selectExpr(f"'{GROUP}' as group", "*").select(*names)


def ms(moment: Any) -> int:
    return round(float(moment.timestamp()) * 1000)


def declared(frame: Any, columns: str) -> bool:
    return [f"{one.name} {one.dataType.simpleString()}" for one in frame.schema] == columns.split(
        ", "
    )


def test_every_event_once(spark: Any, store: Path, run: tuple[pa.Table, pa.RecordBatch]) -> None:
    frame = frame_of(spark, store)
    assert frame.columns == EVENTS.names
    rows = frame.collect()
    expected = {(one["sender"], one["number"]): one for one in run[0].to_pylist()}
    assert len(rows) == len(expected) > 3_000
    for row in rows:
        one = expected.pop((row.sender, row.number))
        assert ms(row.at) == ms(one["at"])
        assert (row.kind, row.topic, row.partition, row.offset, row.group, row.error) == tuple(
            one[name] for name in ("kind", "topic", "partition", "offset", "group", "error")
        )
        assert (row.client, row.sender_tags, row.took_us) == ("till", "{}", one["took_us"])
        for text, parts, values in (
            (row.id, one["id"], (row.id_group, row.due, row.id_offset, row.id_check)),
            (
                row.origin,
                one["origin"],
                (row.origin_group, row.origin_due, row.origin_offset, row.origin_check),
            ),
        ):
            if parts is None:
                assert (text, *values) == (None,) * 5
                continue
            due = ms(parts["due"])
            assert text == f"{parts['group']}.{due}.{parts['offset']}.{parts['check']:08x}"
            assert (values[0], ms(values[1]), *values[2:]) == (
                *(parts["group"], due),
                *(parts["offset"], parts["check"] - (1 << 64)),  # Spark's numbers are signed
            )


def test_events_of_a_time_and_some_columns(
    spark: Any, store: Path, run: tuple[pa.Table, pa.RecordBatch]
) -> None:
    start, end = START_MS + 20_000, START_MS + 30_000
    frame = frame_of(
        spark, store, **{"from": str(start), "to": str(end)}, columns="at,origin_offset"
    )
    assert frame.columns == ["at", "origin_offset"]
    found = sorted(ms(row.at) for row in frame.collect())
    at = [ms(one) for one in run[0].column("at").to_pylist()]
    assert found == sorted(one for one in at if start <= one < end)
    assert len(found) > 150


def test_a_segment_that_is_merged_away_before_it_is_read(
    tmp_path: Path, run: tuple[pa.Table, pa.RecordBatch]
) -> None:
    some = run[0].slice(0, 900)
    parts = [some.slice(at, 300) for at in (0, 300, 600)]
    old = [write_segment(tmp_path, 1 + at, 1 + at, part) for at, part in enumerate(parts)]
    listed = listed_segments(str(tmp_path))
    write_segment(tmp_path, 1, 4, run[0].slice(0, 1_200))
    for path in old[1:]:
        path.unlink()
    for segment, part in zip(listed, parts, strict=True):
        rows = [row for batch in stored_batches(segment) for row in batch.to_pylist()]
        numbers = sorted((row["sender"], row["number"]) for row in rows)
        assert numbers == sorted((row["sender"], row["number"]) for row in part.to_pylist())
    (tmp_path / "000000000001-000000000004.arrow").unlink()
    assert list(stored_batches(listed[1])) == [], "retention has deleted it"


def test_what_is_damaged_is_named(tmp_path: Path, run: tuple[pa.Table, pa.RecordBatch]) -> None:
    path = write_segment(tmp_path, 1, 1, run[0].slice(0, 500))
    whole = path.read_bytes()
    for content in (b"", b"no arrow", whole[:-20], whole[:5_000] + b"!" + whole[5_001:]):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=path.name):
            list(read_events(listed_segments(str(tmp_path)), EVENTS.names, None, None))


def test_wrong_options_of_a_trace_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="'slots'"):
        parse_trace({"trace": "x", "slots": "true"})
    with pytest.raises(InvalidConfiguration, match="'columns'"):
        parse_trace({"trace": "x", "columns": "due,nothing"})
    with pytest.raises(InvalidConfiguration, match="the trace store is not there"):
        listed_segments(str(tmp_path / "nowhere"))


def test_latency_is_that_of_the_chains(
    spark: Any, store: Path, run: tuple[pa.Table, pa.RecordBatch]
) -> None:
    expected = latencies(run[0].to_batches(), Departures(GROUP, [run[1]]), INTERVAL_MS)
    departures = departures_frame(spark, run[1])
    frame = latency(frame_of(spark, store), departures, INTERVAL_MS)
    assert declared(frame, LATENCIES)
    found = {
        (row.topic, ms(row.bucket), row.step): (row.messages, row.p50, row.p95, row.p99, row.max)
        for row in frame.collect()
    }
    assert found == {
        (one.topic, one.bucket_ms, one.step): (one.messages, one.p50, one.p95, one.p99, one.max)
        for one in expected
    }
    assert len(found) > 80


def test_anomalies_are_those_of_the_chains(
    spark: Any, store: Path, run: tuple[pa.Table, pa.RecordBatch]
) -> None:
    expected = anomalies(run[0], Departures(GROUP, [run[1]]), NOW_MS)
    departures = departures_frame(spark, run[1])
    frame = anomalies_of(frame_of(spark, store), departures, NOW_MS)
    assert declared(frame, ANOMALIES)
    rows = [
        (row.kind, ms(row.at), row.id, row.topic, row.group, row.amount, row.why)
        for row in frame.collect()
    ]

    def text(parts: Any) -> str | None:
        if parts is None:
            return None
        return f"{parts['group']}.{ms(parts['due'])}.{parts['offset']}.{parts['check']:08x}"

    wanted = [
        (
            *(one["kind"], one["at"], text(one["id"])),
            *(one["topic"], one["group"], one["amount"], one["why"]),
        )
        for one in expected.to_pylist()
    ]
    assert Counter(rows) == Counter(wanted)
    assert {row[0] for row in rows} == set(AnomalyKind)


def test_the_slowest_chains(spark: Any, tmp_path: Path) -> None:
    """A message that was tried three times, one that was processed at once, and a circle."""
    due, topic = START_MS, {"topic": "orders"}
    first, second, third, fast, one, two = (id_parts(offset, due) for offset in range(6))
    rows = [
        event(1, "produced", due - 50, id=first, **topic),
        event(2, "processed", due, id=first, took_us=1_000, error="busy", **topic),
        event(3, "produced", due + 10, id=second, origin=first, topic="again"),
        event(4, "processed", due + 500, id=second, origin=first, took_us=0, topic="again"),
        event(5, "produced", due + 510, id=third, origin=second, topic="again"),
        event(6, "processed", due + 900, id=third, origin=second, took_us=2_500, topic="again"),
        event(7, "produced", due, id=fast, **topic),
        event(8, "processed", due + 20, id=fast, **topic),
        event(9, "produced", due, id=one, origin=two, **topic),
        event(10, "produced", due, id=two, origin=one, **topic),
        event(11, "produced", due - 9_000, error="no node", **topic),
    ]
    write_segment(tmp_path, 1, 1, table_of(rows))
    frame = slowest(frame_of(spark, tmp_path), 10)
    assert declared(frame, CHAINS)
    slow, quick = frame.collect()
    assert (slow.id, slow.topic) == (f"{GROUP}.{due}.0.f1a9c07d2b86e457", "orders")
    assert math.isclose(slow.total_ms, 952.5)
    assert (slow.messages, slow.answers) == (3, 3)
    assert (ms(slow.sent), ms(quick.sent), quick.total_ms) == (due - 50, due, 20.0)
    (shallow, *_) = slowest(frame_of(spark, tmp_path), 10, depth=1).collect()
    assert shallow.messages == 2, "the third is two links from the first"


def test_departures_of_what_arrived(spark: Any, tmp_path: Path) -> None:
    run = replayrun.made(1_000)
    directories = run.write(tmp_path)
    register(spark)
    reader = spark.read.format("slotwheel").option("view", "delivered")
    frame = departures_of(reader.load(",".join(directories)).where("topic = 'orders'"))
    assert declared(frame, DEPARTURES)
    found = {row.offset: (row.group, ms(row.due), ms(row.at)) for row in frame.collect()}
    assert found == {
        offset: (replayrun.GROUP, int(run.due[offset]), at)
        for peer in run.peers
        for offset, at in peer.delivered
    }
