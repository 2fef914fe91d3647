"""How long do searches take beside a node that delivers, and does delivery feel them?

``--rows`` messages of ten topics, with keys and headers, wait in all slots. Beside them a paced
client sends ``--rate`` messages a second, which leave 2 to 12 s later. In turns of ``--turn``
seconds nobody searches, or one process of low priority searches without a pause; lateness
by the topic is told for both. What was found by key and header is held against a full scan of the
slot files by pyarrow. At last ``--cancel`` messages are cancelled by topic and time, and every
answer is held against what is delivered.

    python -m benchmarks.search [--rows 10000000] [--rate 20000] [--turn 10] [--turns 2]
                                [--cancel 500000]
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotwheel.client import Client
from slotwheel.reading.search.followup import Cancellation
from slotwheel.reading.search.query import Query
from slotwheel.reading.search.worker import SearchProcess, WaitingFinder
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.rows import header_lists
from slotwheel.wheel.schema import Int64s, times

from ._load import VALUE_BYTES
from ._node import BenchNode
from .harness import Report, data_directory, median_spread, options, warm_memory
from .lateness import accepted_times, send_paced, wait_until_delivered

_ESTIMATE = (
    "by id and a page: a look at the journal's end, 0.5 ms, and one slot file, 0.3 ms. Counting:"
    " 7200 records of the catalog, 10 ms when all have changed. By key or header: 7200 files of"
    " 280 KB are read at 8 GB/s, summed at 20 GB/s and decoded in 0.1 ms each: 1.3 s on a core of"
    " its own, twice that beside a node. A cancel: 7 us a message, half a million in 3.5 s."
)
_TOPICS = 10
_BATCH_ROWS = 5_000
_LEAD_MS, _LEAD_ROWS_MS = 20_000, 100
"""The first of the waiting messages is due so much later, and as much more as sending so many
messages in a millisecond takes."""
_SPAN_MS = 7_000_000
_WARM_S = 13.0
"""Until what is paced is delivered at its rate."""
_FROM_S, _LONG_S = 3_600, 600.0
_GOALS = {"by id": 20, "count by slot": 100, "first page": 200, "by key": 3_000, "by header": 3_000}


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages that wait")
    parser.add_argument("--rate", type=int, default=20_000, help="delivered a second")
    parser.add_argument("--turn", type=float, default=10.0, help="seconds")
    parser.add_argument("--turns", type=int, default=2, help="of each kind")
    parser.add_argument("--cancel", type=int, default=50_000, help="messages, about")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows, chosen.rate = min(chosen.rows, 50_000), min(chosen.rate, 2_000)
        chosen.turn, chosen.turns, chosen.cancel = min(chosen.turn, 2.0), 1, 2_000
    with data_directory(chosen.dir) as directory:
        report = Report(f"search, {chosen.rows:,} pending", _ESTIMATE, directory)
        report.begin()
        needed_gib = min(8.0, 1 + chosen.rows * 400 / 1e9)
        warm_memory(needed_gib if chosen.warm_gib is None else chosen.warm_gib)
        with BenchNode(directory / "data", "--tail-age", "5s") as node:
            bench = _Bench(report, node, SearchProcess(node.data))
            try:
                bench.fill(chosen.rows)
                bench.beside_delivery(chosen.rate, chosen.turn, chosen.turns)
                bench.against_a_full_scan()
                bench.cancel(chosen.cancel)
            finally:
                bench.search.close()
        report.end(chosen.json)
    return 0


@dataclass
class _Bench:
    report: Report
    node: BenchNode
    search: SearchProcess
    start_ms: int = 0
    """The first of the waiting messages is due then."""
    keys: int = 1
    """Different keys and headers of the waiting messages."""
    waits: dict[str, list[float]] = field(default_factory=dict)
    """How long each kind of question took, s."""

    def fill(self, rows: int) -> None:
        generator = np.random.default_rng(3)
        values = pa.array([generator.bytes(VALUE_BYTES) for _ in range(_BATCH_ROWS)], pa.binary())
        self.start_ms = time.time_ns() // 1_000_000 + _LEAD_MS + rows // _LEAD_ROWS_MS
        self.keys = max(1, rows // 100)
        begun = time.perf_counter()
        with Client(self.node.address, batch_rows=_BATCH_ROWS) as client:
            for first in range(0, rows, _BATCH_ROWS):
                many = min(_BATCH_ROWS, rows - first)
                due = generator.integers(0, _SPAN_MS, many) + self.start_ms
                client.send_table(self._batch(np.arange(first, first + many), due, values))
            client.flush()
            took = time.perf_counter() - begun
            self.report.figure("sent/s", rows / took, f"{rows / took:,.0f}")
            deadline = time.monotonic() + _LONG_S
            while client.status()["tail_rows"]:
                if time.monotonic() > deadline:
                    raise RuntimeError("the messages were not spilled")
                time.sleep(0.2)
        found = self.search.count().result()
        if found.total != rows:
            raise RuntimeError(f"{rows} messages were stored, {found.total} are pending")

    def _batch(self, number: Int64s, due: Int64s, values: pa.Array) -> pa.RecordBatch:
        texts = pa.array(number % self.keys).cast(pa.utf8())
        keys = pc.binary_join_element_wise("key", texts, "-").cast(pa.binary())
        traced = pc.equal(pa.array(number % 2), 1)
        counts = np.asarray(traced).astype(np.int64)
        traces = pc.binary_join_element_wise("trace", texts.filter(traced), "-").cast(pa.binary())
        names = pa.array(["trace-id"] * len(traces), pa.utf8())
        topics = pa.array([f"later-{one}" for one in (number % _TOPICS).tolist()], pa.utf8())
        headers = header_lists(counts, names, traces)
        columns = [pa.array(due), topics, keys, values.slice(0, len(number)), headers]
        return pa.RecordBatch.from_arrays(
            columns, names=["due", "topic", "key", "value", "headers"]
        )

    # -- beside delivery -------------------------------------------------------------------------

    def beside_delivery(self, rate: int, turn: float, turns: int) -> None:
        sent: list[int] = []
        seconds = _WARM_S + 2 * turn * turns
        sender = threading.Thread(target=lambda: sent.append(send_paced(self.node, rate, seconds)))
        with Client(self.node.address) as client:
            before = client.status()["delivered"]
        sender.start()
        time.sleep(_WARM_S)
        cpu_s = self.node.cpu_s
        quiet: list[tuple[int, int]] = []
        busy: list[tuple[int, int]] = []
        for _ in range(turns):
            quiet.append(_timed(lambda: time.sleep(turn)))
            busy.append(_timed(lambda: self._ask_for(turn)))
        cpu = (self.node.cpu_s - cpu_s) / (2 * turn * turns)
        sender.join()
        if not sent:
            raise RuntimeError("the sender failed")
        wait_until_delivered(self.node, before + sent[0])
        self._tell_lateness(quiet, busy)
        self.report.figure("node's processors in use", cpu, f"{cpu:.2f}")
        for name, waits in self.waits.items():
            middle, _ = median_spread(waits)
            text = f"{middle * 1e3:.1f} ({max(waits) * 1e3:.1f} at most, {len(waits):,} times)"
            self.report.figure(f"{name}, ms", middle * 1e3, text, f"<= {_GOALS[name]}")

    def _ask_for(self, seconds: float) -> None:
        """Each kind of question in turn, without a pause."""
        ending = time.perf_counter() + seconds
        generator = np.random.default_rng(int(ending))
        hour = self.start_ms + _SPAN_MS // 2
        page = self.search.page(Query(from_ms=hour), limit=1_000, content=False).result()
        questions: list[tuple[str, Callable[[], object]]] = [
            ("count by slot", lambda: self.search.count(by_slot=True).result()),
            ("by id", lambda: self._by_id(page.ids[int(generator.integers(len(page.ids)))])),
            ("first page", lambda: self._first_page(int(generator.integers(_SPAN_MS // 2)))),
            ("by key", lambda: self._by_content(key=int(generator.integers(self.keys)))),
            ("by id", lambda: self._by_id(page.ids[int(generator.integers(len(page.ids)))])),
            ("by header", lambda: self._by_content(trace=int(generator.integers(self.keys)))),
        ]
        while True:
            for name, ask in questions:
                begun = time.perf_counter()
                ask()
                self.waits.setdefault(name, []).append(time.perf_counter() - begun)
                if time.perf_counter() > ending and len(self.waits) == len(_GOALS):
                    return

    def _by_id(self, one: str) -> None:
        [fate] = self.search.find([one]).result()
        if fate.state != "pending":
            raise RuntimeError(f"a message of the second half: {fate}")

    def _first_page(self, after_ms: int) -> None:
        query = Query(topics=("later-7",), from_ms=self.start_ms + _SPAN_MS // 2 + after_ms)
        page = self.search.page(query).result()
        if not page.complete:
            raise RuntimeError(f"not complete: {page.problems}")

    def _by_content(self, *, key: int | None = None, trace: int | None = None) -> list[int]:
        """Offsets of all that is pending in the second half with that key or header."""
        query = Query(
            keys=() if key is None else (b"key-%d" % key,),
            headers=() if trace is None else (("trace-id", b"trace-%d" % trace),),
        )
        page = self.search.page(query, limit=10_000).result()
        if not page.complete or page.next is not None:
            raise RuntimeError(f"not complete: {page.next} {page.problems}")
        late = times(page.rows, "due") >= self.start_ms + _SPAN_MS // 2
        return sorted(times(page.rows, "offset")[late].tolist())

    def _tell_lateness(self, quiet: list[tuple[int, int]], busy: list[tuple[int, int]]) -> None:
        accepted, delivered = accepted_times(self.node.data)
        late = delivered - accepted
        found = {}
        for name, turns in (("alone", quiet), ("beside searches", busy)):
            inside = [late[(delivered >= begin) & (delivered < end)] for begin, end in turns]
            every = np.concatenate(inside)
            found[name] = value = float(np.percentile(every, 99))
            worst = int(every.max())
            text = f"{value:.0f} ({worst} at most, of {len(every):,})"
            self.report.figure(f"lateness p99 {name}, ms", value, text)
        moved = found["beside searches"] - found["alone"]
        self.report.figure("lateness p99 moves by, ms", moved, f"{moved:+.0f}", "<= 5")

    # -- against a full scan ---------------------------------------------------------------------

    def against_a_full_scan(self) -> None:
        middle = self.start_ms + _SPAN_MS // 2
        for name in ("key", "header"):
            begun = time.perf_counter()
            scanned = _scan(self.node.data, middle, name, 1)
            by_scan = time.perf_counter() - begun
            begun = time.perf_counter()
            found = self._by_content(**{"key" if name == "key" else "trace": 1})
            took = time.perf_counter() - begun
            if found != scanned or not found:
                raise RuntimeError(f"by {name}: {len(found)} found, {len(scanned)} by a full scan")
            self.report.ratio(f"time by {name}, to a full pyarrow scan", took, by_scan)

    # -- bulk cancel -----------------------------------------------------------------------------

    def cancel(self, about: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        begin = max(self.start_ms, now_ms + 30_000)
        per_ms = self.search.count(Query(topics=("later-3",), from_ms=begin)).result().total / (
            self.start_ms + _SPAN_MS - begin
        )
        end = min(self.start_ms + _SPAN_MS, begin + int(about / per_ms))
        query = Query(topics=("later-3",), from_ms=begin, to_ms=end)
        said: dict[str, str] = {}
        with Client(self.node.address) as client:

            def cancel(ids: list[str]) -> list[str]:
                answers = client.cancel(ids)
                said.update(zip(ids, answers, strict=True))
                return answers

            begun = time.perf_counter()
            bulk = Cancellation(WaitingFinder(self.search), cancel, query)
            found = bulk.count().total
            counted_s = time.perf_counter() - begun
            bulk.run()
            took = time.perf_counter() - begun
        if not bulk.complete or not bulk.answers.keys() <= {"cancelled", "already delivered"}:
            raise RuntimeError(f"{found} counted, but: {bulk.answers} {bulk.problems}")
        self.report.figure(
            f"bulk cancel of {found:,}, s",
            took,
            f"{took:.1f}, of these {counted_s:.1f} to count; {found / took:,.0f}/s",
            "<= 15 for 500,000",
        )
        if self.search.count(query).result().total:
            raise RuntimeError("cancelled messages are pending")
        self._check_answers(max(begin, time.time_ns() // 1_000_000) + 5_000, said)

    def _check_answers(self, until: int, said: dict[str, str]) -> None:
        """Each answer against what was delivered when some seconds of the range have passed."""
        with Client(self.node.address) as client:
            time.sleep(max(0.0, until - time.time_ns() / 1e6) / 1000)
            while client.status()["committed_mark_c"] < until:
                time.sleep(0.1)
        offsets: dict[str, set[int]] = {"cancelled": set(), "already delivered": set()}
        for one, answer in said.items():
            offsets[answer].add(int(one.split(".")[2]))
        passed = sum(int(one.split(".")[1]) < until for one in said)
        reader = TopicReader(OsFiles(self.node.data), "later-3")
        arrived = {one for rows in reader.batches() for one in times(rows, "offset").tolist()}
        reader.close()
        wrong = offsets["cancelled"] & arrived or offsets["already delivered"] - arrived
        if wrong:
            raise RuntimeError(f"{len(wrong)} answers were not true")
        self.report.figure("untrue answers", 0, f"0, of {passed:,} due since", "0")


def _timed(act: Callable[[], None]) -> tuple[int, int]:
    """When it began and ended, ms."""
    begun = time.time_ns() // 1_000_000
    act()
    return begun, time.time_ns() // 1_000_000


def _scan(data: Path, from_ms: int, kind: str, number: int) -> list[int]:
    """Offsets of all rows of all slot files with that key or header, due from then on."""
    found: list[int] = []
    for path in sorted((data / "slots").glob("*.arrows")):
        with pa.OSFile(str(path)) as file:
            for batch in pa.ipc.open_stream(file):
                if kind == "key":
                    mask = pc.equal(batch.column("key"), b"key-%d" % number)
                else:
                    headers = batch.column("headers")
                    flat = headers.flatten()
                    both = pc.and_(
                        pc.equal(flat.field(0), "trace-id"),
                        pc.equal(flat.field(1), b"trace-%d" % number),
                    )
                    rows = pc.list_parent_indices(headers).filter(both)
                    mask = pc.is_in(pa.array(np.arange(batch.num_rows)), rows)
                matches = batch.filter(mask)
                late = times(matches, "due") >= from_ms
                found += times(matches, "offset")[late].tolist()
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
