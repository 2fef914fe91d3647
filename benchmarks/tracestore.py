"""The trace store: how fast events come in, how large they are, and how fast they are found.

Made events, three of each message (sent, received, processed), by one sender, over some hours; a
message has one of 20 topics, a key that 50 messages share, and one of ten has a tag that 100 share.
Each question is asked of a reader that is open, at random places, and compared with a plain scan
with pyarrow of the same files, which reads the columns of that question alone.

    python -m benchmarks.tracestore [--events 50000000]
"""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotwheel.trace.batches import encode
from slotwheel.trace.events import EVENT, ID, EventSender
from slotwheel.trace.store import StoreWriter, TracePage, TraceQuery, TraceReader
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.rows import from_numpy
from slotwheel.wheel.schema import TIME, Int64s

from .harness import Report, data_directory, options

_ESTIMATE = (
    "written once by a flush and twice or three times by merges, each 2 us an event of lz4, sorting"
    " and hashing: 150,000/s; 20 to 30 bytes of columns and 12 for each of id, key and a few tags;"
    " a lookup reads one page of hashes in each of 30 segments, 0.1 ms each, and a block for each"
    " event it finds, 2 ms; a merge holds 40 bytes a row of 2 Mi rows and the index: 300 MB"
)
_BATCH = 8192 // 3 * 3
_BEGIN_MS = 1_800_000_000_000
_HOUR_MS = 3_600_000
_EVENTS_AN_HOUR = 10_000_000
_TOPICS = [f"topic-{number}" for number in range(20)]
_KINDS = pa.array(["produced", "received", "processed"])
_ASKED = 20


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--events", type=int, default=50_000_000)
    chosen = parser.parse_args(arguments)
    with data_directory(chosen.dir) as directory:
        report = Report("tracestore", _ESTIMATE, directory)
        report.begin()
        root = directory / "trace"
        _ingest(report, root, chosen.events)
        _find(report, root, chosen.events // 3)
        report.end(chosen.json)
    return 0


def _ingest(report: Report, root: Path, events: int) -> None:
    writer = StoreWriter(root, "made")
    took_s = worst_s = 0.0
    for position, first in enumerate(range(0, events, _BATCH), 1):
        value = encode(EventSender("sender"), _made(first, min(_BATCH, events - first)))
        now_ms = _at_ms(first)
        begun = time.perf_counter()
        writer.add(0, position, value)
        if writer.full:
            began = time.perf_counter()
            writer.flush(now_ms)
            worst_s = max(worst_s, time.perf_counter() - began)
            writer.tidy(now_ms)
        took_s += time.perf_counter() - begun
    begun = time.perf_counter()
    end_ms = _at_ms(events) + _HOUR_MS
    writer.flush(end_ms)
    while writer.tidy(end_ms, wait=True):
        pass
    took_s += time.perf_counter() - begun
    if writer.counts.stored != events or writer.counts.missing:
        raise RuntimeError(f"{writer.counts} of {events} events")
    writer.close()
    files = list(root.iterdir())
    nbytes = sum(path.stat().st_size for path in files)
    index = sum(path.stat().st_size for path in files if path.suffix == ".index")
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.figure("events stored/s", events / took_s, f"{events / took_s:,.0f}")
    report.figure("bytes an event", nbytes / events, f"{nbytes / events:.1f}")
    report.figure("of it the index", index / events, f"{index / events:.1f}")
    report.figure("longest flush beside merges, s", worst_s, f"{worst_s:.1f}")
    report.figure("segments", len(files) // 2, f"{len(files) // 2}")
    report.figure("highest resident, MB", resident, f"{resident:.0f}")


def _find(report: Report, root: Path, messages: int) -> None:
    numbers = np.random.default_rng(1)
    begun = time.perf_counter()
    reader = TraceReader(root)
    reader.segments()
    opened_ms = (time.perf_counter() - begun) * 1000
    report.figure("opening the store, ms", opened_ms, f"{opened_ms:.0f}")
    some = [int(one) for one in numbers.integers(0, messages, _ASKED)]
    wanted = some[0]
    topic = _TOPICS[wanted % len(_TOPICS)]

    def in_hour(message: int) -> TraceQuery:
        start = _at_ms(message * 3) // _HOUR_MS * _HOUR_MS
        return TraceQuery(
            topic=_TOPICS[message % len(_TOPICS)], from_ms=start, to_ms=start + _HOUR_MS
        )

    hour = in_hour(wanted)

    def tag(message: int) -> str:
        return f"tag-{message // 1000}"

    for name, ask, goal_ms, scan in (
        (
            "by id",
            lambda message: reader.of_id(_id(message)),
            50,
            (("id",), lambda rows: pc.equal(pc.struct_field(rows["id"], "offset"), wanted)),
        ),
        (
            "by key",
            lambda message: reader.page(TraceQuery(key=_key(message)), limit=1000),
            1000,
            (("key",), lambda rows: pc.equal(rows["key"], _key(wanted))),
        ),
        (
            "by tag",
            lambda message: reader.page(TraceQuery(tag=tag(message)), limit=1000),
            1000,
            (("tag",), lambda rows: pc.equal(rows["tag"], tag(wanted))),
        ),
        (
            "first page by topic and hour",
            lambda message: reader.page(in_hour(message)),
            300,
            (
                ("at", "topic"),
                lambda rows: pc.and_(
                    pc.equal(rows["topic"], topic),
                    pc.and_(
                        pc.greater_equal(rows["at"].cast(pa.int64()), hour.from_ms),
                        pc.less(rows["at"].cast(pa.int64()), hour.to_ms),
                    ),
                ),
            ),
        ),
    ):
        _compare(report, root, name, ask, some, goal_ms, *scan)


def _compare(
    report: Report,
    root: Path,
    name: str,
    ask: Callable[[int], TracePage],
    messages: list[int],
    goal_ms: int,
    columns: tuple[str, ...],
    matches: Callable[[pa.RecordBatch], pa.Array],
) -> None:
    gc.collect()
    took: list[float] = []
    for message in messages:
        begun = time.perf_counter()
        page = ask(message)
        took.append((time.perf_counter() - begun) * 1000)
        if not page.complete or not page.events.num_rows:
            raise RuntimeError(f"{name}: {page.events.num_rows} events, {page.problems}")
    begun = time.perf_counter()
    scanned = sum(_scan(path, columns, matches) for path in sorted(root.glob("*.arrow")))
    scan_ms = (time.perf_counter() - begun) * 1000
    found = ask(messages[0])
    if found.next is None and found.events.num_rows != scanned:
        raise RuntimeError(f"{name}: {found.events.num_rows} events, and a scan has {scanned}")
    middle, worst = statistics.median(took), max(took)
    report.figure(f"{name}, ms", middle, f"{middle:.1f}", f"<= {goal_ms}")
    report.figure(f"{name}, longest, ms", worst, f"{worst:.1f}")
    report.figure(f"{name}, plain scan, ms", scan_ms, f"{scan_ms:,.0f}")
    report.ratio(f"{name}, to a plain scan", scan_ms, middle)


def _scan(
    path: Path, columns: tuple[str, ...], matches: Callable[[pa.RecordBatch], pa.Array]
) -> int:
    fields = pa.ipc.IpcReadOptions(included_fields=[EVENT.get_field_index(c) for c in columns])
    count = 0
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped, options=fields) as reader:
        for number in range(reader.num_record_batches):
            count += pc.sum(matches(reader.get_batch(number))).as_py() or 0
    return count


def _at_ms(event: int) -> int:
    return _BEGIN_MS + event * _HOUR_MS // _EVENTS_AN_HOUR


def _id(message: int) -> MessageId:
    return MessageId("default", _BEGIN_MS + message, message, message & 0xFFFF_FFFF)


def _key(message: int) -> bytes:
    return b"customer-%d" % (message // 50)


def _made(first: int, count: int) -> pa.RecordBatch:
    numbers: Int64s = np.arange(first, first + count)
    message = numbers // 3
    parts = [
        pa.repeat("default", count),
        from_numpy(_BEGIN_MS + message, TIME),
        from_numpy(message, pa.int64()),
        from_numpy((message & 0xFFFF_FFFF).astype(np.uint32), pa.uint32()),
    ]
    text = pa.array(message // 50).cast(pa.utf8())
    tag = pc.binary_join_element_wise("tag", pa.array(message // 1000).cast(pa.utf8()), "-")
    topics = pa.array(_TOPICS).take(pa.array(message % len(_TOPICS)))
    columns = {
        "number": from_numpy(numbers, pa.int64()),
        "at": from_numpy(_BEGIN_MS + numbers * _HOUR_MS // _EVENTS_AN_HOUR, TIME),
        "kind": _KINDS.take(pa.array(numbers % 3)),
        "took_us": pa.array(numbers * 7919 % 100_003),
        "id": pa.StructArray.from_arrays(parts, fields=list(ID)),
        "tag": pc.if_else(pa.array(message % 10 == 0), tag, None),
        "topic": topics,
        "partition": pa.array((message % 12).astype(np.int32)),
        "offset": pa.array(message // 12),
        "key": pc.binary_join_element_wise("customer", text, "-").cast(pa.binary()),
        "group": pa.repeat("billing", count),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in EVENT
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT)


if __name__ == "__main__":
    sys.exit(main())
