"""What do a group's schedules cost, and are they punctual when all of them fire at one instant?

``instant``: ``--schedules`` are put by one caller and by sixteen, and the node is started again
and lists them. Half of them say ``every_ms``, half are cron in four zones, and all are due at one
instant. When was the last of their rows committed, how late did each message leave, and what did
somebody feel who sent messages meanwhile, one by one? Lateness is judged by what the topic holds:
``delivered`` (embedded topics) or the broker's LogAppendTime, less due.

``many``: the engine writes ``--many`` schedules, ten times as many as a group may have, and a node
is started on them. *Anonymous* memory is what the node holds; *resident* also counts pages of
mapped files, which the kernel drops when others need memory.

    python -m benchmarks.schedules [--only instant,many] [--sink embedded|kafka-python|confluent]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import numpy as np

from slotwheel.client import Client
from slotwheel.policy.schedules.missed import AHEAD_MS
from slotwheel.policy.schedules.spec import Schedule
from slotwheel.wheel import scheduletable
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schedules import SchedulePut
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel

from ._farstore import spill, write
from ._load import TOPIC, VALUE_BYTES, delivered_times
from ._node import BenchNode
from .burst import kafka_times
from .harness import Report, chosen_parts, data_directory, measure_parts, options
from .lateness import EMBEDDED, SINKS, create_topic, start_broker
from .spill import Repeated

_ESTIMATE = (
    "a run is planned in 40 us and stored in 10, half a minute ahead: 5 s of processor for 100,000,"
    " of which the thread takes two thirds, so the last row is committed 20 s before its time; all"
    " leave as any burst of 100,000, in 0.2 s. A schedule of 200 B takes 0.7 KB in memory"
)
_ONLY = ("instant", "many")
_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo")
_CALLERS = 16
_ALONE = 1_000
_STARTS = 3
_MINUTE_S, _MINUTE_MS, _HOUR_MS = 60, 60_000, 3_600_000
_QUIET_MS, _LEAVING_MS = 5_000, 2_000
_PUT_AT_ONCE = 1_000
_BESIDE, _BESIDE_DELAY_S = "beside", 3_600.0
_POLL_S = 0.05
_DONE_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=SINKS, default=EMBEDDED)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--ahead", type=float, default=210.0, help="seconds until all are due")
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(_ONLY))
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.schedules, chosen.many = min(chosen.schedules, 300), min(chosen.many, 3_000)
        chosen.ahead = min(chosen.ahead, 14.0)
    parts = chosen_parts(parser, chosen.only, _ONLY)
    with data_directory(chosen.dir) as directory:
        report = Report(f"schedules, {chosen.sink}", _ESTIMATE, directory)
        measures = dict(zip(_ONLY, (_instant, _many), strict=True))
        measure_parts(report, measures, parts, 0.2 if chosen.quick else 2.0, chosen)
    return 0


# -- instant -------------------------------------------------------------------------------------


def _instant(report: Report, directory: Path, chosen: Any) -> None:
    data, count = directory / "data", chosen.schedules
    starts = 1 if chosen.quick else _STARTS
    with ExitStack() as stack:
        node_options = ["--sink", chosen.sink]
        broker: Any = None
        if chosen.sink != EMBEDDED:
            broker = stack.enter_context(start_broker())
            create_topic(broker, TOPIC)
            node_options += ["--bootstrap", broker.bootstrap]
        due_ms = _instant_ms(chosen)
        with BenchNode(data, *node_options) as node:
            empty = node.anonymous, node.rss
            put_s = _put(report, node, _schedules(count, due_ms, with_cron=not chosen.quick))
            _tell_memory(report, "put", node, empty, count)
            report.figure("put by all: us of the node each", put_s, f"{put_s:.0f}")
        starts_s = []
        for number in range(starts):
            with BenchNode(data, *node_options) as node:
                starts_s.append(node.ready_s)
                if number == starts - 1:
                    _tell_started(report, node, starts_s, empty, count)
                    _fire(report, node, due_ms, count)
        if broker is None:
            due, _, at = delivered_times(data, TOPIC)
        else:
            due, at = kafka_times(broker.bootstrap, TOPIC, count)
    if len(at) != count or set(due.tolist()) != {due_ms}:
        raise RuntimeError(f"{count} are due at {due_ms}, but {len(at)} came: {set(due.tolist())}")
    for name, share in (("p50", 50), ("p99", 99), ("last", 100)):
        late = float(np.percentile(at - due, share))
        goal = "<= 1000" if name == "last" else ""
        report.figure(f"lateness, {name}, ms", late, f"{late:,.0f}", goal)
    report.figure("early", early := int((at < due).sum()), f"{early}", "0")


def _instant_ms(chosen: Any) -> int:
    """When all are due: at a full minute, for cron."""
    at_s = time.time() + chosen.ahead
    return int(at_s if chosen.quick else at_s // _MINUTE_S * _MINUTE_S) * 1000


def _schedules(count: int, due_ms: int, *, with_cron: bool) -> list[dict[str, Any]]:
    """So many schedules that are due at an instant and then every hour, or every day."""
    crons = []
    for zone in _ZONES:
        local = datetime.fromtimestamp(due_ms / 1000, UTC).astimezone(ZoneInfo(zone))
        crons.append({"cron": f"{local.minute} {local.hour} * * *", "zone": zone})
    rhythm: dict[str, Any] = {"every_ms": _HOUR_MS, "anchor_ms": due_ms, "start_ms": due_ms}
    value = "v" * VALUE_BYTES
    return [
        {
            "name": f"schedule-{number}",
            "template": {"topic": TOPIC, "key": f"k{number}", "value": value},
            **(crons[number // 2 % len(crons)] if with_cron and number % 2 else rhythm),
        }
        for number in range(count)
    ]


def _put(report: Report, node: BenchNode, schedules: Sequence[dict[str, Any]]) -> float:
    """Put all of them. Returns how much processor time of the node each took, us."""
    few = min(_ALONE, len(schedules) // 2)
    alone, rest = schedules[:few], schedules[few:]
    waits: list[float] = []

    def put(share: Sequence[dict[str, Any]]) -> None:
        with Client(node.address) as client:
            for schedule in share:
                begun = time.perf_counter()
                client.schedules.put(schedule)
                waits.append(time.perf_counter() - begun)

    put(alone)
    text = f"{len(alone) / sum(waits):,.0f} (p99 {np.percentile(waits, 99) * 1000:.1f} ms)"
    report.figure("put by one caller, 1/s", len(alone) / sum(waits), text)
    waits.clear()
    begun, begun_cpu_s = time.perf_counter(), node.cpu_s
    with ThreadPoolExecutor(_CALLERS) as callers:
        list(callers.map(put, [rest[number::_CALLERS] for number in range(_CALLERS)]))
    took_s = time.perf_counter() - begun
    text = f"{len(rest) / took_s:,.0f} (p99 {np.percentile(waits, 99) * 1000:.1f} ms)"
    report.figure(f"put by {_CALLERS} callers, 1/s", len(rest) / took_s, text)
    return (node.cpu_s - begun_cpu_s) / len(rest) * 1e6


def _tell_memory(
    report: Report, when: str, node: BenchNode, empty: tuple[int, int], count: int
) -> None:
    for name, before, nbytes in zip(
        ("anonymous", "resident"), empty, (node.anonymous, node.rss), strict=True
    ):
        text = f"{nbytes / 1e6:.0f} (empty {before / 1e6:.0f}, {(nbytes - before) / count:,.0f} B"
        report.figure(f"{when}: {name}, MB", nbytes / 1e6, f"{text} a schedule)")


def _tell_started(
    report: Report, node: BenchNode, starts_s: list[float], empty: tuple[int, int], count: int
) -> None:
    """A node that was just started, and lists its schedules; it looks through them meanwhile."""
    middle = statistics.median(starts_s)
    report.figure("start, s", middle, f"{middle:.2f} ({max(starts_s):.2f} at most)")
    begun = time.perf_counter()
    with Client(node.address) as client:
        listed = sum(1 for _ in client.schedules.list())
    took_s = time.perf_counter() - begun
    if listed != count:
        raise RuntimeError(f"{count} schedules were put, {listed} are listed")
    report.figure("list of all, s", took_s, f"{took_s:.1f} ({listed / took_s:,.0f}/s)")
    _tell_memory(report, "started and listed", node, empty, count)


def _fire(report: Report, node: BenchNode, due_ms: int, count: int) -> None:
    """All of them fire, while somebody sends one by one."""
    first_ms = due_ms - AHEAD_MS
    _sleep_until(first_ms - _QUIET_MS)
    with (
        Client(node.address) as client,
        Client(node.address) as sender,
        Repeated(lambda: _send(sender)) as sending,
    ):
        _sleep_until(first_ms)
        quiet_s = sending.since_last()
        before_cpu_s = node.cpu_s
        status = _wait_for(client, "schedule_runs", count, due_ms)
        committed_ms = time.time_ns() // 1_000_000
        firing_s, cpu_s = sending.since_last(), node.cpu_s - before_cpu_s
        ahead_s = (due_ms - committed_ms) / 1000
        report.figure("last row committed ahead, s", ahead_s, f"{ahead_s:.1f}", "> 0")
        took_s = (committed_ms - first_ms) / 1000
        text = f"{took_s:.1f} (processor of the node {cpu_s:.1f})"
        report.figure("half a minute ahead until all are committed, s", took_s, text)
        _sleep_until(due_ms)
        sending.since_last()
        status = _wait_for(client, "delivered", count, due_ms)
        _sleep_until(due_ms + _LEAVING_MS)
        leaving_s = sending.since_last()
    for when, waits in (("before", quiet_s), ("firing", firing_s), ("leaving", leaving_s)):
        each = np.array(waits or [0.0]) * 1000
        text = f"{np.percentile(each, 99):.1f} (p50 {np.percentile(each, 50):.1f},"
        text += f" longest {each.max():.1f}, {len(waits):,} sends)"
        report.figure(f"a send, {when}: p99, ms", float(np.percentile(each, 99)), text)
    missed = status["schedule_missed"]
    report.figure("missed", missed, f"{missed}", "0")
    report.figure("peak resident, MB", node.rss_max / 1e6, f"{node.rss_max / 1e6:.0f}")


def _send(client: Client) -> float:
    begun = time.perf_counter()
    client.store(_BESIDE, b"beside", delay=_BESIDE_DELAY_S)
    return time.perf_counter() - begun


def _sleep_until(at_ms: int) -> None:
    time.sleep(max(0.0, at_ms / 1000 - time.time()))


def _wait_for(client: Client, name: str, count: int, due_ms: int) -> dict[str, Any]:
    while (status := client.status())[name] < count:
        if time.time() > due_ms / 1000 + _DONE_S:
            raise RuntimeError(f"{name} is not {count} in time: {status}")
        time.sleep(_POLL_S)
    return status


# -- many ----------------------------------------------------------------------------------------


def _many(report: Report, directory: Path, chosen: Any) -> None:
    data, count = directory / "data", chosen.many
    with BenchNode(data) as node:
        empty, empty_s = (node.anonymous, node.rss), node.ready_s
    now_ms = time.time_ns() // 1_000_000
    schedules = _schedules(count, now_ms + _HOUR_MS // _MINUTE_MS * _MINUTE_MS, with_cron=True)
    begun_s = time.process_time()
    with (
        closing(OsFiles(data)) as files,
        closing(Wheel.open(files, LmdbState(data), WheelConfig(), now_ms)) as wheel,
        patch.object(scheduletable, "SCHEDULES_MAX", count),
        patch.object(scheduletable, "SCHEDULE_BYTES_MAX", 1 << 62),
    ):
        for first in range(0, count, _PUT_AT_ONCE):
            share = [Schedule.from_json(each) for each in schedules[first : first + _PUT_AT_ONCE]]
            puts = [SchedulePut(each.name, each.encoded(), now_ms) for each in share]
            wheel.change_schedules([(put, 0) for put in puts], now_ms)
            write(wheel)
            if wheel.spill_needed(now_ms):
                spill(wheel, now_ms)
        spill(wheel, now_ms)
    each_us = (time.process_time() - begun_s) / count * 1e6
    report.figure(f"{count:,} written by the engine, us each", each_us, f"{each_us:.0f}")
    with BenchNode(data) as node:
        text = f"{node.ready_s:.2f} (empty {empty_s:.2f})"
        report.figure(f"{count:,}: start, s", node.ready_s, text)
        _tell_memory(report, f"{count:,}: started", node, empty, count)
        begun, cpu_s = time.perf_counter(), node.cpu_s
        with Client(node.address) as client:
            listed = sum(1 for _ in client.schedules.list())
        took_s = time.perf_counter() - begun
        if listed != count:
            raise RuntimeError(f"{count} schedules were written, {listed} are listed")
        text = f"{took_s:.1f} ({listed / took_s:,.0f}/s)"
        report.figure(f"{count:,}: list of all, s", took_s, text)
        used_s = node.cpu_s - cpu_s
        report.figure(f"{count:,}: processor of the node meanwhile, s", used_s, f"{used_s:.1f}")
        _tell_memory(report, f"{count:,}: listed", node, empty, count)


if __name__ == "__main__":
    sys.exit(main())
