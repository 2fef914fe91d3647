"""What does a message's name cost, and what does it bring?

``sends``: callers that wait, one and many, and two clients with batches of 1,000; with a new name
for each message and without names, in turns on the same node. In the second kind of batches each
travels by itself, in the first those that wait may leave together, as a client does it.

``pending``: the engine writes ``--rows`` messages over ``--days``, with names and without, and a
node is started on each in turns. Of both: start and memory. *Anonymous* is what the node holds;
*resident* also counts pages of mapped files, which the kernel drops when others need memory. Then
one caller cancels by name, and replaces by name; the first thousand names are looked up on the
disk, later ones mostly in the page cache.

``debounce``: ``--replacements`` of ``--names`` in a minute, each due ``--delay`` seconds later, as
of a form that is saved when its writer pauses. Each has to arrive once, with its last value, at its
last time.

    python -m benchmarks.named [--only sends,pending,debounce] [--rows 10000000]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slotwheel.client import Client, Message
from slotwheel.client.predecessor import NamedId
from slotwheel.node import memory
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import times

from . import _load
from ._farstore import Wave, build
from ._load import VALUE_BYTES, Load
from ._node import BenchNode
from .harness import Report, chosen_parts, data_directory, measure_parts, options
from .servers.clients import Clients
from .servers.ours import At
from .single import _waits

_ESTIMATE = (
    "a name is a header of 40 B: 10 us more of a client and 5 of the node for a message by itself,"
    " 2 us in a batch of 1,000, which costs 1 without. On disk a name takes 32 B in a run, which is"
    " read once at the start, 3 GB/s: 0.1 s for 10 M. In memory it takes 2 B, or 48"
    " until it is spilled"
)
_ONLY = ("sends", "pending", "debounce")
_DAY_MS = 86_400_000
_FROM_MS = 1_500_000
"""The first pending message is due so much later, so that they wait as long as this runs."""
_TURNS, _STARTS = 2, 3
_REST_S = 2.0
_CALLS = 1_000
_TICK_S = 0.01
_TOPIC = "named"
_CANCEL, _CANCEL_COLD, _REPLACE = "cancel by name", "cancel by name, cold", "replace by name"


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=4.0, help="a turn of sends")
    parser.add_argument("--rows", type=int, default=10_000_000, help="pending")
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--replacements", type=int, default=200_000)
    parser.add_argument("--names", type=int, default=1_000, help="that are replaced")
    parser.add_argument("--minute", type=float, default=60.0, help="seconds for all of them")
    parser.add_argument("--delay", type=float, default=5.0, help="seconds until one is due")
    parser.add_argument("--only", default=",".join(_ONLY))
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds, chosen.rows = min(chosen.seconds, 0.5), min(chosen.rows, 50_000)
        chosen.replacements, chosen.names = min(chosen.replacements, 3_000), min(chosen.names, 100)
        chosen.minute = min(chosen.minute, 1.0)
    parts = chosen_parts(parser, chosen.only, _ONLY)
    memory.set_up()  # as a node does, or Python's collector is seen in locks that it never holds up
    with data_directory(chosen.dir) as directory:
        report = Report("names", _ESTIMATE, directory)
        measures = dict(zip(_ONLY, (_sends, _pending, _debounce), strict=True))
        measure_parts(report, measures, parts, 0.2 if chosen.quick else 4.0, chosen)
    return 0


# -- sends ---------------------------------------------------------------------------------------


def _sends(report: Report, directory: Path, chosen: Any) -> None:
    with BenchNode(directory / "data") as node:
        for count in (1, 64):
            clients = Clients(min(2, count), max(1, count // 2))
            waits = partial(_waits, value_bytes=VALUE_BYTES, seconds=chosen.seconds)
            rates: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2 * _TURNS):
                named = turn % 2 == 1
                ran = clients.run(At(node.address, named), waits)
                rates[named].append(sum(map(len, ran.found)) / chosen.seconds)
            _tell_rates(report, f"{count} callers", rates, ">= 90 %")
        for kind, apart in (("batches of 1,000", False), ("batches of 1,000 apart", True)):
            rates, cpu_us = {False: [], True: []}, {False: [0.0] * 2, True: [0.0] * 2}
            for turn in range(2 * _TURNS):
                named = turn % 2 == 1
                load = Load(node.address, seconds=chosen.seconds, apart=apart, named=named)
                batching = _load.Clients(load, 2)
                batching.go()
                begun_s = node.cpu_s
                results = batching.results(chosen.seconds + 60)
                messages = sum(sent.messages - sent.refused for sent in results)
                began, ended = (
                    min(sent.started for sent in results),
                    max(sent.ended for sent in results),
                )
                rates[named].append(messages / (ended - began))
                spent_s = node.cpu_s - begun_s, sum(sent.cpu_s for sent in results)
                cpu_us[named] = [seconds / messages * 1e6 for seconds in spent_s]
            _tell_rates(report, kind, rates, ">= 60 %")
            for named, micros in cpu_us.items():
                name = f"{kind}, {_kind(named)}: us of the node and of the client a message"
                report.figure(name, sum(micros), "{:.2f} and {:.2f}".format(*micros))


def _tell_rates(report: Report, who: str, rates: dict[bool, list[float]], goal: str) -> None:
    medians = {named: statistics.median(turns) for named, turns in rates.items()}
    for named, rate in medians.items():
        spread = " ".join(f"{turn:,.0f}" for turn in rates[named])
        report.figure(f"{who}, {_kind(named)}: messages/s", rate, f"{rate:,.0f} ({spread})")
    report.ratio(f"{who}, named to unnamed", medians[True], medians[False], goal)


def _kind(named: bool) -> str:
    return "named" if named else "unnamed"


# -- pending -------------------------------------------------------------------------------------


def _pending(report: Report, directory: Path, chosen: Any) -> None:
    horizon_ms = chosen.days * _DAY_MS
    config = WheelConfig(far_horizon_ms=horizon_ms, disk_reserve_bytes=0)
    span_ms = horizon_ms - 2 * _FROM_MS
    for named in (False, True):
        now_ms = time.time_ns() // 1_000_000
        wave = Wave(chosen.rows, now_ms + _FROM_MS, span_ms, [_TOPIC], named=named)
        built = build(directory / _kind(named), config, now_ms, [wave])
        rate = built.rows / built.seconds
        report.figure(f"{_kind(named)}: written, rows/s", rate, f"{rate:,.0f} ({built.rows:,})")
        text = f"{np.median(built.spills_s):.2f} ({max(built.spills_s):.2f} at most)"
        report.figure(f"{_kind(named)}: a spill, s", float(np.median(built.spills_s)), text)
        longest = float(np.percentile(built.appends_s or [0.0], 99)) * 1000
        text = f"{longest:.1f} (longest {max(built.appends_s or [0.0]) * 1000:.1f})"
        report.figure(f"{_kind(named)}: an append beside spills, ms, p99", longest, text)
        text = f"{built.lock_s * 1000:.1f}"
        report.figure(f"{_kind(named)}: lock held, ms of processor time", built.lock_s * 1000, text)
    starts: dict[bool, list[float]] = {False: [], True: []}
    resident: dict[bool, tuple[int, int]] = {}
    for _ in range(_STARTS):
        for named in (False, True):
            with BenchNode(directory / _kind(named), "--horizon", f"{chosen.days}d") as node:
                starts[named].append(node.ready_s)
                time.sleep(_REST_S)
                resident[named] = node.anonymous, node.rss
    for named, seconds in starts.items():
        middle = statistics.median(seconds)
        text = f"{middle:.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        report.figure(f"{_kind(named)}: start, s", middle, text)
        for name, nbytes in zip(("anonymous", "resident"), resident[named], strict=True):
            report.figure(f"{_kind(named)}: {name}, MB", nbytes / 1e6, f"{nbytes / 1e6:.0f}")
    more_s = statistics.median(starts[True]) - statistics.median(starts[False])
    report.figure("names: start takes longer by, s", more_s, f"{more_s:.2f}", "<= 0.5")
    for place, name in enumerate(("anonymous", "resident")):
        more = (resident[True][place] - resident[False][place]) / (1 << 20)
        report.figure(f"names: more {name}, MiB", more, f"{more:.0f}", "<= 64")
    _tell_calls(report, directory, chosen)


def _tell_calls(report: Report, directory: Path, chosen: Any) -> None:
    """Single calls by one caller: by name, and beside them by id, of as many pending messages. Cold
    is what has to be read from the disk: of the runs of names nothing is in the page cache."""
    generator = np.random.default_rng(3)
    drawn = generator.choice(chosen.rows, min(3 * _CALLS, chosen.rows), replace=False)
    cold, warm, replaced = (share.tolist() for share in np.array_split(drawn, 3))
    calls = ((_CANCEL_COLD, cold), (_CANCEL, warm), (_REPLACE, replaced))
    delay_s = chosen.days * 40_000.0
    waits: dict[str, list[float]] = {}
    with (
        BenchNode(directory / _kind(True), "--horizon", f"{chosen.days}d") as node,
        Client(node.address) as client,
    ):
        at_first = node.anonymous, node.rss
        _forget_pages(directory / _kind(True) / "names")
        for call, numbers in calls:
            for number in numbers:
                name = f"pending-{number}"
                begun = time.perf_counter()
                if call != _REPLACE:
                    became, _ = client.cancel(topic=_TOPIC, name=name)
                else:
                    stored = client.store(_TOPIC, b"again", delay=delay_s, name=name)
                    before = stored.before if isinstance(stored, NamedId) else None
                    became = "unknown" if before is None else before.what
                waits.setdefault(call, []).append(time.perf_counter() - begun)
                if became not in ("cancelled", "replaced"):
                    raise RuntimeError(f"{name} is pending, but {call}: {became}")
        for number in range(len(replaced)):
            begun = time.perf_counter()
            client.store(_TOPIC, b"new", delay=delay_s, name=f"new-{number}")
            waits.setdefault("a new name", []).append(time.perf_counter() - begun)
        for _ in replaced:
            begun = time.perf_counter()
            message_id = client.store(_TOPIC, b"unnamed", delay=delay_s)
            waits.setdefault("no name", []).append(time.perf_counter() - begun)
            begun = time.perf_counter()
            client.cancel(message_id)
            waits.setdefault("cancel by id, just sent", []).append(time.perf_counter() - begun)
        grown = (node.anonymous - at_first[0]) / 1e6, (node.rss - at_first[1]) / 1e6
    for call, each in waits.items():
        p50, p99 = np.percentile(each, [50, 99]) * 1000
        goal = "<= 1" if call == _CANCEL else ""
        report.figure(f"{call}, ms, p99", float(p99), f"{p99:.2f} (p50 {p50:.2f})", goal)
    report.figure(
        "anonymous and resident grew by, MB", grown[1], "{:.0f} and {:.0f}".format(*grown)
    )


def _forget_pages(directory: Path) -> None:
    """Let the kernel drop what it has of the files in a directory, as it does when others need the
    memory."""
    os.sync()
    for path in directory.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


# -- debounce ------------------------------------------------------------------------------------


def _debounce(report: Report, directory: Path, chosen: Any) -> None:
    data = directory / "data"
    last: dict[bytes, int] = {}
    with BenchNode(data) as node, Client(node.address) as client:
        client.status()
        handed = []
        begun, sent = time.monotonic(), 0
        rate = chosen.replacements / chosen.minute
        while sent < chosen.replacements:
            time.sleep(_TICK_S)
            until = min(chosen.replacements, int((time.monotonic() - begun) * rate))
            due = time.time_ns() // 1_000_000 + int(chosen.delay * 1000)
            messages = [
                Message(_TOPIC, b"%d" % number, due=due, name=f"form-{number % chosen.names}")
                for number in range(sent, until)
            ]
            last.update((b"%d" % number, due) for number in range(sent, until))
            handed.append(client.send_many(messages))
            sent = until
        client.flush()
        took_s = time.monotonic() - begun
        refused = sum(len(receipts.errors()) for receipts in handed)
        deadline = time.monotonic() + chosen.delay + 60
        while (status := client.status())["delivered"] < chosen.names:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{chosen.names} names, not delivered in time: {status}")
            time.sleep(0.1)
        time.sleep(1.0)  # what should not come would be here
        cpu_us = node.cpu_s / sent * 1e6
    reader = TopicReader(OsFiles(data), _TOPIC)
    batches = list(reader.batches())
    reader.close()
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    due_ms = np.concatenate([times(batch, "due") for batch in batches])
    late = np.concatenate([times(batch, "delivered") for batch in batches]) - due_ms
    newest = {b"%d" % number for number in range(sent - chosen.names, sent)}
    wrong = len(set(values) ^ newest) + len(values) - len(set(values))
    wrong += sum(last[value] != due for value, due in zip(values, due_ms.tolist(), strict=True))
    text = f"{sent / took_s:,.0f} ({sent:,} in {took_s:.1f} s)"
    report.figure("debounce: replacements/s", sent / took_s, text, f">= {rate:,.0f}")
    report.figure("debounce: refused", refused, f"{refused}", "0")
    report.figure("debounce: us of the node a replacement", cpu_us, f"{cpu_us:.0f}")
    text = f"{len(values):,} ({wrong} not once, not the last value or not at its time)"
    report.figure("debounce: arrived", len(values), text, f"{chosen.names:,}")
    p50, p99 = np.percentile(late, [50, 99])
    report.figure("debounce: lateness, ms, p99", float(p99), f"{p99:.0f} (p50 {p50:.0f})", "<= 20")
    report.figure("debounce: early", int((late < 0).sum()), f"{int((late < 0).sum())}", "0")


if __name__ == "__main__":
    sys.exit(main())
