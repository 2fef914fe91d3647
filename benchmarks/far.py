"""What do messages cost that are due in weeks, beside those of the usual two hours?

The engine writes ``--rows`` messages that are due over ``--days``, and in the same run as many that
are due within two hours (``--near-rows`` at most). Of both: bytes a row, slot files, how long an
append waited while they were spilled. Then a node on each: start, resident memory, single sends in
turns, searches by id and by topic, a bulk cancel of a topic with ``--cancel`` messages.

Then what is due: a steady topic of ``--rate`` messages a second and a second of ``--second``
messages that were sent forty days before, in the file of a day, and the same out of files of a
second. At last ``--minutes`` of a given clock at 50 messages a second, with small tails spilled
every ten seconds and as they are by default, and a failover of three peers.

    python -m benchmarks.far [--rows 10000000] [--days 60] [--only stores,due,steady,failover]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slotwheel.client import Client
from slotwheel.node import memory
from slotwheel.reading.search.followup import Cancellation
from slotwheel.reading.search.query import Query
from slotwheel.reading.search.worker import SearchProcess, WaitingFinder
from slotwheel.wheel.config import WheelConfig

from ._farpeers import failover
from ._farstore import Built, Wave, build, steady
from ._load import VALUE_BYTES, delivered_times
from ._node import BenchNode
from .harness import Report, chosen_parts, data_directory, measure_parts, options

_ESTIMATE = (
    "100 bytes of value and 60 of columns: 165 B a row, and a block's 900 B on top of however many"
    " rows a spill adds to a file. A file is a row of the catalog, so 60 days are 7200 + 48 + 58"
    " of them. Nothing in memory grows with the time ahead"
)
_DAY_MS = 86_400_000
_HOURS_2_MS = 7_150_000
_NEAR_FROM_MS = 1_500_000
"""The first of the near messages is due so much later, so that they wait as long as this runs."""
_CANCELLED = "later-0"
_STEADY, _LARGE = "steady", "large"
_SENDS, _TURNS = 500, 4
_REST_S = 4.0
_SENT_AGO_MS = 40 * _DAY_MS
_AHEAD_S = 12
_BACKGROUND_ROWS = 500_000
_ONLY = ("stores", "due", "steady", "failover")


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--near-rows", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--cancel", type=int, default=500_000, help="messages, about")
    parser.add_argument("--rate", type=int, default=1_000, help="of the steady topic, a second")
    parser.add_argument("--seconds", type=int, default=20, help="of the steady topic")
    parser.add_argument("--second", type=int, default=1_000_000, help="messages due in one second")
    parser.add_argument("--minutes", type=int, default=60, help="of the steady arrival")
    parser.add_argument("--peer-rows", type=int, default=2_000_000, help="far, in the group")
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES, help="there")
    parser.add_argument("--only", default=",".join(_ONLY))
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows = chosen.near_rows = min(chosen.rows, 60_000)
        chosen.cancel = min(chosen.cancel, 3_000)
        chosen.second, chosen.seconds = min(chosen.second, 20_000), min(chosen.seconds, 2)
        chosen.minutes, chosen.peer_rows = min(chosen.minutes, 2), min(chosen.peer_rows, 20_000)
    parts = chosen_parts(parser, chosen.only, _ONLY)
    memory.set_up()  # as a node does, or Python's collector is seen in locks that it never holds up
    with data_directory(chosen.dir) as directory:
        report = Report(f"far: {chosen.rows:,} over {chosen.days} days", _ESTIMATE, directory)
        measures = dict(zip(_ONLY, (_stores, _due, _steady, failover), strict=True))
        measure_parts(report, measures, parts, min(4.0, 1 + chosen.rows * 200 / 1e9), chosen)
    return 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _topics(count: int) -> list[str]:
    return [f"later-{number}" for number in range(max(1, count))]


# -- stores, and nodes on them -------------------------------------------------------------------


def _stores(report: Report, directory: Path, chosen: Any) -> None:
    horizon_ms = chosen.days * _DAY_MS
    far_config = WheelConfig(far_horizon_ms=horizon_ms, disk_reserve_bytes=0)
    near_config = WheelConfig(disk_reserve_bytes=0)
    now_ms = _now_ms()
    topics = _topics(chosen.rows // chosen.cancel)
    far_wave = Wave(chosen.rows, now_ms + _NEAR_FROM_MS, horizon_ms - 2 * _NEAR_FROM_MS, topics)
    _tell_store(report, "far", build(directory / "far", far_config, now_ms, [far_wave]))
    now_ms = _now_ms()
    rows = min(chosen.rows, chosen.near_rows)
    topics = _topics(rows // chosen.cancel)
    near_wave = Wave(rows, now_ms + _NEAR_FROM_MS, _HOURS_2_MS - _NEAR_FROM_MS, topics)
    _tell_store(report, "near", build(directory / "near", near_config, now_ms, [near_wave]))
    nodes = {
        "far": BenchNode(directory / "far", "--horizon", f"{chosen.days}d"),
        "near": BenchNode(directory / "near"),
    }
    spans = {"far": horizon_ms - 2 * _NEAR_FROM_MS, "near": _HOURS_2_MS - 2 * _NEAR_FROM_MS}
    rss: dict[str, int] = {}
    with nodes["near"], nodes["far"]:
        time.sleep(_REST_S)
        for name, node in nodes.items():
            report.figure(f"{name}: start, s", node.ready_s, f"{node.ready_s:.2f}", "<= 1.5")
            rss[name] = node.rss
            report.figure(f"{name}: resident, MB", node.rss / 1e6, f"{node.rss / 1e6:.0f}")
        above = (rss["far"] - 1.1 * rss["near"]) / (1 << 20)
        report.figure("far: resident above 110 % of near, MiB", above, f"{above:.0f}", "<= 64")
        _tell_sends(report, nodes, spans)
        for name, node in nodes.items():
            _questions(report, name, node)
            peak = node.rss_max / 1e6
            report.figure(f"{name}: peak resident, MB", peak, f"{peak:.0f}")


def _tell_store(report: Report, name: str, built: Built) -> None:
    rate = built.rows / built.seconds
    report.figure(f"{name}: written, rows/s", rate, f"{rate:,.0f} ({built.rows:,} rows)")
    report.figure(f"{name}: slot files", built.slot_files, f"{built.slot_files:,}", "<= 11000")
    report.figure(f"{name}: bytes a row", built.row_bytes, f"{built.row_bytes:.0f}", "<= 250")
    spills = built.spills_s
    text = f"{np.median(spills):.2f} ({max(spills):.2f} at most, {len(spills)} of them)"
    report.figure(f"{name}: a spill, s", float(np.median(spills)), text)
    p99, longest = np.percentile(built.appends_s or [0.0], [99, 100]) * 1000
    text = f"{longest:.1f} (p99 {p99:.1f}, of {len(built.appends_s):,})"
    report.figure(f"{name}: an append beside spills, ms, longest", float(longest), text)
    text = f"{built.lock_s * 1000:.1f}"
    report.figure(f"{name}: lock held, ms of processor time", built.lock_s * 1000, text, "<= 20")


def _tell_sends(report: Report, nodes: dict[str, BenchNode], spans: dict[str, int]) -> None:
    """Single sends by one caller, a turn on each node after the other."""
    waits: dict[str, list[float]] = {name: [] for name in nodes}
    generator = np.random.default_rng(11)
    for _ in range(_TURNS):
        for name, node in nodes.items():
            with Client(node.address) as client:
                client.status()
                for ahead_ms in generator.integers(0, spans[name], _SENDS).tolist():
                    begun = time.perf_counter()
                    client.store(_STEADY, bytes(VALUE_BYTES), delay=(ahead_ms + 1e6) / 1000)
                    waits[name].append(time.perf_counter() - begun)
    p99 = {name: float(np.percentile(each, 99)) * 1000 for name, each in waits.items()}
    for name, each in waits.items():
        text = f"{p99[name]:.2f} (p50 {np.median(each) * 1000:.2f})"
        report.figure(f"{name}: a send, ms, p99", p99[name], text)
    report.ratio("a send's p99, far to near", p99["far"], p99["near"])


def _questions(report: Report, name: str, node: BenchNode) -> None:
    search = SearchProcess(node.data)
    try:
        topic = Query(topics=(_CANCELLED,))
        counted_s, counted = _timed(lambda: search.count(topic).result())
        text = f"{counted_s:.2f} (of {counted.total:,})"
        report.figure(f"{name}: count by topic, s", counted_s, text, "<= 10")
        page_s, page = _timed(lambda: search.page(topic, content=False).result())
        report.figure(f"{name}: first page by topic, s", page_s, f"{page_s:.2f}", "<= 10")
        find_s, fates = _timed(lambda: search.find([page.ids[-1]]).result())
        if [fate.state for fate in fates] != ["pending"]:
            raise RuntimeError(f"pending by its topic, but {fates}")
        report.figure(f"{name}: by id, s", find_s, f"{find_s:.3f}", "<= 0.5")
        with Client(node.address) as client:
            before = client.status()
            bulk = Cancellation(WaitingFinder(search), client.cancel, topic)
            took_s, _ = _timed(bulk.run)
            after = client.status()
        if not bulk.complete or set(bulk.answers) != {"cancelled"}:
            raise RuntimeError(f"{counted.total} counted, but: {bulk.answers} {bulk.problems}")
        cancelled = after["cancelled"] - before["cancelled"]
        if cancelled != counted.total:
            raise RuntimeError(f"{counted.total} counted, {cancelled} cancelled")
        text = f"{took_s:.1f} (of {cancelled:,})"
        report.figure(f"{name}: bulk cancel, s", took_s, text, "<= 60 for 500,000")
        left = search.count(topic).result().total
        report.figure(f"{name}: found although cancelled", left, f"{left:,}", "0")
    finally:
        search.close()


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = act()
    return time.perf_counter() - begun, answer


# -- what is due ---------------------------------------------------------------------------------


def _due(report: Report, directory: Path, chosen: Any) -> None:
    build_s = 8.0 + (chosen.second + chosen.rate * chosen.seconds + _BACKGROUND_ROWS) / 100_000
    for name, ago_ms in (("far", _SENT_AGO_MS), ("near", 0)):
        data = directory / name
        begun_ms = _now_ms()
        base_ms = (begun_ms // 1000 + int(build_s) + _AHEAD_S) * 1000
        steady_ms = chosen.seconds * 1000
        large_ms = base_ms + steady_ms
        background = 15 * _DAY_MS if ago_ms else 3_600_000
        later_ms = large_ms + 120_000
        waves = [
            Wave(min(_BACKGROUND_ROWS, chosen.rows), later_ms, background, _topics(20)),
            Wave(chosen.rate * chosen.seconds, base_ms, steady_ms, [_STEADY]),
            Wave(chosen.second, large_ms, 1_000, [_LARGE]),
        ]
        horizon_ms = 60 * _DAY_MS if ago_ms else 0
        config = WheelConfig(far_horizon_ms=horizon_ms, disk_reserve_bytes=0)
        build(data, config, begun_ms - ago_ms, waves)
        horizon = ["--horizon", "60d"] if ago_ms else []
        with BenchNode(data, *horizon) as node:
            if (spare_s := base_ms / 1000 - time.time()) < 0:
                raise RuntimeError(f"writing the store took {-spare_s:.1f} s too long")
            _wait_until_delivered(node, chosen.second + chosen.rate * chosen.seconds, large_ms)
            peak, cpu_s = node.rss_max, node.cpu_s
        due, _, at = delivered_times(data, _STEADY)
        _tell_lateness(report, f"{name}, steady", at - due, chosen.rate * chosen.seconds)
        due, _, at = delivered_times(data, _LARGE)
        _tell_lateness(report, f"{name}, large second", at - due, chosen.second)
        last_ms = int(at.max()) - large_ms
        title = f"{name}, large second: last one after it began, ms"
        report.figure(title, last_ms, f"{last_ms:,}", "<= 1500")
        report.figure(f"{name}, due: peak resident, MB", peak / 1e6, f"{peak / 1e6:.0f}")
        report.figure(f"{name}, due: node CPU, s", cpu_s, f"{cpu_s:.1f}")


def _wait_until_delivered(node: BenchNode, messages: int, large_ms: int) -> None:
    deadline = large_ms / 1000 + 120
    with Client(node.address) as client:
        while (status := client.status())["delivered"] < messages:
            if time.time() > deadline:
                raise RuntimeError(f"{messages} were due, not delivered in time: {status}")
            time.sleep(0.5)


def _tell_lateness(report: Report, name: str, late: Any, messages: int) -> None:
    if len(late) != messages:
        raise RuntimeError(f"{name}: {messages} messages were due, {len(late)} were delivered")
    p50, p99, longest = np.percentile(late, [50, 99, 100])
    text = f"{p99:.0f} (p50 {p50:.0f}, max {longest:.0f})"
    goal = "<= 20 at 1,000/s" if name.endswith(_STEADY) else ""
    report.figure(f"{name}: lateness, ms, p99", float(p99), text, goal)
    early = int(np.count_nonzero(late < 0))
    report.figure(f"{name}: early", early, f"{early}", "0")


# -- a steady arrival ----------------------------------------------------------------------------


def _steady(report: Report, directory: Path, chosen: Any) -> None:
    usual = WheelConfig(disk_reserve_bytes=0)
    far_config = replace(usual, far_horizon_ms=60 * _DAY_MS)
    spans = {"60 days": (far_config, 60 * _DAY_MS - 1000), "two hours": (usual, _HOURS_2_MS)}
    ages = {"every 10 s": 10_000, "by default": usual.tail_age_ms}
    for far, (limits, span_ms) in spans.items():
        for spills, age_ms in ages.items():
            config = replace(limits, tail_age_ms=age_ms)
            built = steady(directory / f"{far} {spills}", config, chosen.minutes, span_ms)
            name = f"50/s over {far}, spilled {spills}"
            text = f"{built.row_bytes:.0f} ({built.slot_rows:,} rows)"
            report.figure(f"{name}: bytes a row", built.row_bytes, text)
            report.figure(f"{name}: slot files", built.slot_files, f"{built.slot_files:,}")
            spilled_s = sum(built.spills_s)
            text = f"{spilled_s:.2f} ({len(built.spills_s)} spills)"
            report.figure(f"{name}: all spills, s", spilled_s, text)


if __name__ == "__main__":
    sys.exit(main())
