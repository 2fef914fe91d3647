"""How fast does Spark read a wheel's files, and does it grow with the data alone?

Writes a journal, an archive of slot files and an embedded topic of so many messages with the real
encoders, not through a node: each message is accepted, held and delivered once, so three rows are
read for it. Then, at a quarter, half and all of ``--rows``, in this order: a bare Arrow read of
these files in two processes, without Spark or facts (the raw limit); on ``local[2]`` the bare read,
``spark.read.format("slotwheel")`` with all columns, and the scan, which reads, checks and packs
facts, both thrown away as they come (Spark's ``noop``). Then, as often, in a session such as the
command has: the whole proof, with all validators, to its verdict. A row is a row read from a file.

    python -m benchmarks.replay --rows 20000000

Needs 500 bytes of disk a message, removed at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from crc32c import crc32c

from slotwheel.reading import layout
from slotwheel.reading.files import JOURNAL, File, Layout, PeerFiles
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import LONG_FROM, IdMint
from slotwheel.wheel.journal.entry import HEADER_BYTES, Entry, EntryKind
from slotwheel.wheel.journal.scan import ENTRY_BYTES_MAX, SegmentReader
from slotwheel.wheel.journal.segment import SEGMENT_BYTES, SegmentHeader
from slotwheel.wheel.journal.writer import SegmentWriter
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.rows import from_numpy, no_headers
from slotwheel.wheel.schema import PAYLOAD, ROW, TIME, Int64s
from slotwheel.wheel.slots.blocks import encode_blocks
from slotwheel.wheel.slots.slotfile import schema_message
from slotwheel.wheel.state import Checkpoint, LmdbState, StateUpdate
from slotwheel.wheel.topics.topicfile import (
    IndexHeader,
    IndexRecord,
    index_path,
    schema_of,
    segment_path,
)

from .harness import Report, data_directory, options, warm_memory

_ESTIMATE = (
    "a message is three rows of 150 bytes. Arrow maps a row for nothing and copies 150 bytes at"
    " 5 GB/s: 0.1 us a message on two cores. The scan takes a CRC of the files and one of each"
    " value (0.15 us a row), copies 64 bytes of facts twice, and Spark moves them through a socket"
    " at 0.5 GB/s: 0.4 us a row, 1.2 us a message, 0.6 us on two cores: 1.7 M messages/s."
)
_STEPS = (0.25, 0.5, 1.0)
_GROUP, _TOPIC, _KEY = "bench", "orders", bytes(16)
_START_MS = 1_790_000_000_000
_ENTRY, _SECOND, _SEGMENT = 1_000, 10_000, 400_000
"""Rows of an entry, of a slot file, and of a journal or topic segment."""
_VALUE_BYTES = 100


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=20_000_000)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows = min(chosen.rows, 400_000)
    with data_directory(chosen.dir) as directory:
        report = Report("replay", _ESTIMATE, directory)
        report.begin()
        warm_memory(4.0 if chosen.warm_gib is None else chosen.warm_gib)
        run(report, directory, chosen.rows)
        report.end(chosen.json)
    return 0


def run(report: Report, directory: Path, rows: int) -> None:
    from slotwheel.replay.session import BRIEF, session

    data, before = directory / "data", 0
    raw: dict[int, tuple[list[File], float]] = {}
    """By how many messages there were: the files then, and seconds of the bare Arrow read."""
    spark = _spark(directory)
    try:
        totals = {max(_SECOND, int(rows * step) // _SECOND * _SECOND) for step in _STEPS}
        for total in sorted(totals):
            write(data, before, total)
            files = layout.find([str(data)]).files
            if not before:
                _check(spark, files, total)
            before = total
            raw[total] = files, _measure_reads(report, spark, data, files, total)
    finally:
        _end(spark)
    with session("local[2]", more=BRIEF) as spark:
        for total, (files, seconds) in raw.items():
            _measure_proof(report, spark, files, total, seconds)


def _measure_reads(
    report: Report, spark: Any, data: Path, files: Sequence[File], total: int
) -> float:
    """Returns the seconds of the bare Arrow read."""
    from slotwheel.replay.facts.scan import scan, tasks, tasks_frame

    planned = tasks(files, 2)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(_bare, [[], []]))  # both are there, and have imported what they need
        raw = _timed(lambda: sum(pool.map(_bare, planned)))
    if raw.found != 3 * total:
        raise RuntimeError(f"{3 * total} rows were written, but {raw.found} read")
    terms = GroupTerms(_GROUP, _KEY.hex())

    def source() -> None:
        read = spark.read.format("slotwheel").option("topics", "true").load(str(data))
        read.write.format("noop").mode("overwrite").save()

    def scanned() -> None:
        found = scan(tasks_frame(spark, planned), terms)
        found.write.format("noop").mode("overwrite").save()

    rate = 3 * total / raw.seconds
    text = f"{rate / 1e6:.2f} M ({raw.seconds:.1f} s)"
    report.figure(f"bare Arrow read {_at(total)}, rows/s", rate, text)
    _figure(report, "bare read", _timed(source), total, raw.seconds, "2 M")
    _figure(report, "scan", _timed(scanned), total, raw.seconds)
    return raw.seconds


def _measure_proof(
    report: Report, spark: Any, files: Sequence[File], total: int, raw_s: float
) -> None:
    before = _forget_peaks()
    proof = _timed(lambda: _prove(spark, files))
    verdict = proof.found
    if not verdict.proven or verdict.counts["delivered"] != total:
        raise RuntimeError(f"{total} messages were written; {verdict.reasons}, {verdict.counts}")
    _figure(report, "all validators", proof, total, raw_s, "0.5 M")
    for name, peak in _driver_resident("VmHWM").items():
        text = f"{peak / 1e6:.0f} (before the proof {before[name] / 1e6:.0f})"
        report.figure(f"{name}'s peak {_at(total)}, MB", peak / 1e6, text, "flat")


def _at(total: int) -> str:
    return f"at {total / 1e6:g} M"


def _figure(
    report: Report, name: str, step: _Step, total: int, raw_s: float, goal: str = ""
) -> None:
    rate = 3 * total / step.seconds
    used = f"{step.seconds:.1f} s; {step.processor_s:.0f} s of processor time"
    share = f"{raw_s / step.seconds:.1%} of the bare Arrow read"
    text = f"{rate / 1e6:.2f} M ({used}; {share})"
    report.figure(f"{name} {_at(total)}, rows/s", rate, text, goal)


def _check(spark: Any, files: Sequence[File], total: int) -> None:
    """The scan finds what was written, and nothing wrong. Workers are warm then, too."""
    from slotwheel.replay.facts.scan import scan, summaries, tasks, tasks_frame

    found = scan(tasks_frame(spark, tasks(files, 2)), GroupTerms(_GROUP, _KEY.hex())).persist()
    rows = sum(one.rows for one in summaries(found)[0])
    problems = found.where("what = 'problem'").count()
    found.unpersist()
    if (rows, problems) != (3 * total, 0):
        raise RuntimeError(f"{3 * total} rows were written; scanned: {rows}, {problems} problems")


def _prove(spark: Any, files: Sequence[File]) -> Any:
    """The whole proof, as the command runs it, of the files chosen."""
    from slotwheel.replay.proof import prove

    found = [replace(file, number=number) for number, file in enumerate(files)]
    peers = [PeerFiles("wheel", "")]
    return prove(spark, Layout(_GROUP, _KEY.hex(), peers, found, made_ms=_START_MS))


@dataclass(frozen=True)
class _Step:
    """``processor_s``: of this process and all that it started; on a busy machine it says more than
    ``seconds``."""

    found: Any
    seconds: float
    processor_s: float


def _timed(work: Callable[[], Any]) -> _Step:
    used, started = _processor_s(), time.perf_counter()
    found = work()
    return _Step(found, time.perf_counter() - started, _processor_s() - used)


def _processor_s() -> float:
    me, total = psutil.Process(), 0.0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # its own, and of children that have ended
    return total


def _driver() -> dict[str, int]:
    """The driver's two processes: this one and Spark's JVM, which in local mode runs the tasks,
    too; not the workers that it started."""
    me = psutil.Process()
    (java,) = (child for child in me.children() if "java" in child.name())
    return {"driver (Python)": me.pid, "driver and tasks (JVM)": java.pid}


def _forget_peaks() -> dict[str, int]:
    """What was resident until now is not the proof's. Bytes that are resident now."""
    for pid in _driver().values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _driver_resident("VmRSS")


def _driver_resident(measure: str) -> dict[str, int]:
    """Bytes, now (``VmRSS``), or at most since ``_forget_peaks`` (``VmHWM``)."""
    found = {}
    for name, pid in _driver().items():
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith(f"{measure}:"))
        found[name] = int(kib) << 10
    return found


def _bare(files: Sequence[File]) -> int:
    """Rows of the files, read by Arrow alone; of the journal's entries, only the payloads."""
    rows = 0
    for file in files:
        if file.kind == JOURNAL:
            rows += _bare_journal(file.path)
            continue
        with pa.memory_map(file.path) as source, pa.ipc.open_stream(source) as reader:
            rows += sum(_touch(batch) for batch in reader)
    return rows


def _bare_journal(path: str) -> int:
    handle = OsFiles(Path(path).parent).open(Path(path).name)
    try:
        reader = SegmentReader(handle, path, ENTRY_BYTES_MAX)
        position, rows = SEGMENT_BYTES, 0
        while position < reader.size:
            located = reader.entry(position)
            position = located.end
            if located.entry.kind is EntryKind.ROWS:
                data = pa.py_buffer(located.entry.batch)
                rows += _touch(pa.ipc.read_record_batch(data, PAYLOAD))
        return rows
    finally:
        handle.close()


def _touch(batch: pa.RecordBatch) -> int:
    """Look at every byte of the values: a map alone reads nothing."""
    values = batch.column("value").buffers()[2]
    np.frombuffer(values, np.uint8).sum()
    return int(batch.num_rows)


def write(root: Path, start: int, end: int) -> None:
    """Add the messages of offsets ``start`` to ``end``, multiples of a slot's; the state store says
    what is there by then."""
    files = OsFiles(root)
    files.make_directory("journal")
    store = bytes(16)
    config = {"version": 1, "group": _GROUP, "slots": 7200, "key": _KEY.hex(), LONG_FROM: 0}
    mint = IdMint(_GROUP, _KEY)
    index = 1 + start // _ENTRY
    if not start:
        _write_segment(
            files, store, 1, [_entry(EntryKind.CONFIG, 1, 0, 0, json.dumps(config).encode())]
        )
    for first in range(start, end, _SEGMENT):
        last = min(end, first + _SEGMENT)
        entries = []
        for base in range(first, last, _ENTRY):
            index += 1
            rows = _rows(np.arange(base, min(last, base + _ENTRY), dtype=np.int64))
            payload = pa.RecordBatch.from_arrays(rows.columns[1:], schema=PAYLOAD)
            entries.append(
                _entry(EntryKind.ROWS, index, base, len(rows), bytes(payload.serialize()))
            )
        _write_segment(files, store, entries[0].index, entries)
        _write_topic(root, mint, first, last)
    for base in range(start, end, _SECOND):
        _write_slot(root, _rows(np.arange(base, base + _SECOND, dtype=np.int64)))
    files.close()
    marks = Marks(Mark(_START_MS + end, 0, end - 1), 1, {}, end, 0, end)
    state = LmdbState(root)
    checkpoint = Checkpoint(index, 1, end, end, 0, marks, config)
    state.commit(StateUpdate(1, "", store, checkpoint, voter=True))
    state.close()


def _entry(kind: EntryKind, index: int, base: int, count: int, payload: bytes) -> Entry:
    return Entry(kind, 1, index, base, count, 0, -1, payload)


def _write_segment(files: OsFiles, store: bytes, index: int, entries: Sequence[Entry]) -> None:
    writer = SegmentWriter.create(files, SegmentHeader(index, 1 if index > 1 else 0, store))
    for entry in entries:
        writer.append([entry], index - 1, HEADER_BYTES + len(entry.payload), 0)
    writer.finish()
    writer.close()


def _rows(offset: Int64s) -> pa.RecordBatch:
    """Ten messages a due millisecond, each with a value of its own, the same in every file.
    ``offset``: of whole entries."""
    count = len(offset)
    due = _START_MS + offset // 10
    entries = offset[::_ENTRY].tolist()
    values = b"".join(
        np.random.default_rng(entry).bytes(_ENTRY * _VALUE_BYTES) for entry in entries
    )
    ends = np.arange(count + 1, dtype=np.int32) * _VALUE_BYTES
    value = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(values)]
    )
    columns = [
        pa.array(offset),
        from_numpy(due, TIME),
        from_numpy(np.full(count, _START_MS - 60_000), TIME),
        pa.nulls(count, pa.int64()),
        pa.array([_TOPIC] * count, pa.utf8()),
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.binary()),
        value,
        no_headers(count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


def _write_slot(root: Path, rows: pa.RecordBatch) -> None:
    data = schema_message() + bytes(encode_blocks(rows, [0])[0])
    second = rows.column("due")[0].value // 1000
    directory = root / "archive" / "2026-09-21" / "slots"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{second}.{len(data)}.{crc32c(data):08x}.arrows").write_bytes(data)


def _write_topic(root: Path, mint: IdMint, first: int, last: int) -> None:
    schema = schema_of(_TOPIC, _GROUP)
    message = bytes(schema.serialize())
    index, crc, end = [], crc32c(message), len(message)
    index.append(IndexHeader(first, len(message), crc).encode())
    path = root / segment_path(_TOPIC, first)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(message)
        for base in range(first, last, _SECOND):
            offset = np.arange(base, min(last, base + _SECOND), dtype=np.int64)
            rows = _rows(offset)
            due = _START_MS + offset // 10
            columns = [
                pa.array(offset),
                from_numpy(due + 3, TIME),
                pa.array(mint.checks(due, offset), pa.uint64()),
                *(rows.column(name) for name in schema.names[3:]),
            ]
            data = bytes(pa.RecordBatch.from_arrays(columns, schema=schema).serialize())
            stream.write(data)
            crc, end = crc32c(data, crc), end + len(data)
            index.append(IndexRecord(base, end, len(offset), crc, int(due[-1]) + 3).encode())
    (root / index_path(_TOPIC, first)).write_bytes(b"".join(index))


def _spark(directory: Path) -> Any:
    from pyspark.sql import SparkSession

    from slotwheel.replay.source import register

    builder = SparkSession.builder.master("local[2]").appName("slotwheel benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.sparkContext.pythonExec = sys.executable
    register(session)
    return session


def _end(spark: Any) -> None:
    """End its Java process, too, whose options are not those of the next session."""
    from pyspark import SparkContext

    spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


if __name__ == "__main__":
    sys.exit(main())
