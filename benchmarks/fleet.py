"""A fleet: what does choosing a wheel cost, what do two wheels carry, and how many can there be?

``routing``: the time by which a client chooses the wheel of a message; and the processor time of a
client that sends batches of 1,000 with keys to three wheels, beside one that sends them to one.

``wheels``: one core for a wheel and a client, and then two cores for two wheels and two clients of
the fleet, each pinned to one. Each client sends as fast as it can for ``--seconds``; the messages
are due within a few seconds, so that they come in and go out at the same time. The rate counts
until the last one is delivered. With ``--sink`` into a Kafka, whose broker has both cores in both
cases: with two wheels it shares them with these.

``thousand``: a fleet of 1,000 wheels and 10,000 partitions that is not there. What is measured here
by itself - choosing, one wheel's answer, Kafka's assignor, the bytes of its requests - is put
together as the fleet would.

``front``: single messages over HTTP from 64 connections, at a wheel's own gateway, and at a gateway
over the fleet; and a count of all of them at both. Needs Debian's ``wrk``.

    python -m benchmarks.fleet [--only routing,wheels,thousand,front] [--seconds 10]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import psutil
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from slotwheel.client import Client, Message
from slotwheel.client.columns import rows_of
from slotwheel.fleet.fleet import Fleet, buckets_of_rows
from slotwheel.fleet.routing import Routing

from ._node import BenchNode
from .gateway import GatewayBesideNode, message_body, wait_for_gateway
from .harness import Report, chosen_parts, data_directory, measure_parts, options
from .lateness import EMBEDDED, SINKS, start_broker

_ESTIMATE = (
    "a key is hashed in 0.1 us and found in a list, so choosing costs 0.5 us of Python a message;"
    " three batches of 333 for one of 1,000 cost 0.1 ms more each, of 2 ms. Two wheels on two cores"
    " share nothing but the disk: 1.9 times one. With 1,000 wheels a question to all takes as long"
    " as the slowest of 64 at a time: 16 rounds of some ms"
)
_ONLY = ("routing", "wheels", "thousand", "front")
_BATCH, _VALUE = 1_000, b"x" * 100
_TURNS = 3
_DELAY_S = 3.0
_WHEELS, _PARTITIONS = 1_000, 10_000
_AT_ONCE = 64


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=10.0, help="a turn of wheels")
    parser.add_argument("--only", default=",".join(_ONLY))
    parser.add_argument("--sink", choices=SINKS, default=EMBEDDED, help="of wheels")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds = min(chosen.seconds, 1.0)
    parts = chosen_parts(parser, chosen.only, _ONLY)
    with data_directory(chosen.dir) as directory:
        report = Report("a fleet of wheels", _ESTIMATE, directory)
        measures = dict(zip(_ONLY, (_routing, _wheels, _thousand, _front), strict=True))
        measure_parts(report, measures, parts, 0.2 if chosen.quick else 1.0, chosen)
    return 0


# -- the gateway over it -------------------------------------------------------------------------


class GatewayOverFleet(GatewayBesideNode):
    """A gateway over the wheels of ``gateways``, by their names."""

    def __init__(self, directory: Path, gateways: Mapping[str, GatewayBesideNode]) -> None:
        lines = ["[wheels]"]
        lines += [f'{name} = "{gateway.node.address}"' for name, gateway in gateways.items()]
        lines.append("[gateways]")
        for name, gateway in gateways.items():
            lines.append('{} = "http://{}:{}"'.format(name, *gateway.place))
        self._file = directory / "fleet.toml"
        self._file.write_text("\n".join(lines))
        self._log = directory / "front.log"
        self._scheme, self.place = "http", ("", 0)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "slotwheel.cli.main", "gateway"]
        command += ["--fleet", str(self._file), "--listen", "127.0.0.1:0"]
        with self._log.open("wb") as log:
            started = subprocess.Popen(command, stderr=log, stdout=log)
        self._process = psutil.Process(started.pid)
        self._started = started
        self.place = wait_for_gateway(self._log.read_text)
        return self

    def __exit__(self, *error: Any) -> None:
        self._started.terminate()
        self._started.wait(30)


def _front(report: Report, directory: Path, chosen: Any) -> None:
    seconds = min(chosen.seconds, 5.0)
    rates: dict[str, list[float]] = {"a wheel's own": [], "one over two wheels": []}
    with ExitStack() as running:
        wheels = {
            name: running.enter_context(GatewayBesideNode(directory / name, "--group", name))
            for name in ("north", "south")
        }
        front = running.enter_context(GatewayOverFleet(directory, wheels))
        by_name = dict(zip(rates, (wheels["north"], front), strict=True))
        for gateway in by_name.values():
            gateway.load(directory, 8, 1.0, message_body())
        for _ in range(_TURNS):
            for who, gateway in by_name.items():
                found = gateway.load(directory, 64, seconds, message_body())
                assert not found["errors"], found
                rates[who].append(found["requests"] / found["seconds"])
        for who, gateway in by_name.items():
            began = time.perf_counter()
            url = "http://{}:{}/v1/messages/count?topic=bench".format(*gateway.place)
            with urllib.request.urlopen(url) as answer:
                count = json.load(answer)["messages"]
            took_ms = (time.perf_counter() - began) * 1e3
            report.figure(f"a count of {count:,} by topic, {who}, ms", took_ms, f"{took_ms:.0f}")
    for who, turns in rates.items():
        text = " ".join(f"{turn:,.0f}" for turn in turns)
        rate = statistics.median(turns)
        report.figure(f"64 connections, {who}: messages/s", rate, f"{rate:,.0f} ({text})")
    medians = [statistics.median(turns) for turns in rates.values()]
    report.ratio("a gateway over two wheels to a wheel's own", medians[1], medians[0])


# -- routing -------------------------------------------------------------------------------------


def _routing(report: Report, directory: Path, chosen: Any) -> None:
    names = ("north", "south", "west")
    count = 20 if chosen.quick else 400
    with ExitStack() as running:
        nodes = {
            name: running.enter_context(BenchNode(directory / name, "--group", name))
            for name in names
        }
        addresses = {name: node.address for name, node in nodes.items()}
        with Fleet(addresses) as fleet, Client(addresses["north"]) as client:
            keyed = Message("t", _VALUE, key=b"order-17", delay=3600)
            alone = Message("t", _VALUE, delay=3600)
            for message, kind in ((keyed, "with a key"), (alone, "without a key")):
                us = _us_of(partial(fleet.client_of, message), 100_000)
                report.figure(f"choosing for a message {kind}, us", us, f"{us:.2f}", "<= 5 us")
            rows = rows_of(_keyed_batch(0))
            assert rows is not None
            us = _us_of(lambda: fleet.shares(buckets_of_rows(rows)), 1_000) / _BATCH
            report.figure("choosing for a batch of 1,000, us a message", us, f"{us:.2f}")
            spent: dict[str, list[float]] = {"one wheel": [], "the fleet": []}
            for _ in range(_TURNS):
                for who, sender in (("one wheel", client), ("the fleet", fleet)):
                    spent[who].append(_cpu_us_of_batches(sender, count))
            medians = {who: statistics.median(turns) for who, turns in spent.items()}
            for who, median in medians.items():
                turns = " ".join(f"{turn:.2f}" for turn in spent[who])
                report.figure(
                    f"client of {who}: us of processor a message", median, f"{median:.2f} ({turns})"
                )
            share = us / medians["one wheel"]
            report.figure(
                "choosing, of what one wheel's client does", share, f"{share:.1%}", "<= 3 %"
            )
            report.ratio(
                "batches of 1,000 with keys, a fleet's client to one wheel's",
                medians["the fleet"],
                medians["one wheel"],
                "<= 103 %",
            )


def _keyed_batch(number: int) -> list[Message]:
    return [Message("t", _VALUE, key=f"{number}-{row}", delay=3600) for row in range(_BATCH)]


def _us_of(call: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times * 1e6


def _cpu_us_of_batches(sender: Client | Fleet, count: int) -> float:
    """Processor time of this process for a message of ``count`` batches, all of them stored, us."""
    began = time.process_time()
    sent = [sender.send_many(_keyed_batch(batch)) for batch in range(count)]
    sender.flush()
    spent = time.process_time() - began
    assert not any(receipts.errors() for receipts in sent)
    return spent / (count * _BATCH) * 1e6


# -- two wheels ----------------------------------------------------------------------------------


def _wheels(report: Report, directory: Path, chosen: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        report.figure("two wheels", 0.0, "not measured: this machine has one core")
        return
    rates: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as running:
        options = ["--sink", chosen.sink]
        if chosen.sink != EMBEDDED:
            broker = running.enter_context(start_broker())
            broker.create_topic("t", partitions=4)
            options += ["--bootstrap", broker.bootstrap]
        for turn in range(_TURNS):
            for count in (1, 2):
                place = directory / f"{turn}-{count}"
                rates[count].append(_rate_of(place, cores[:count], chosen.seconds, options))
    for count, turns in rates.items():
        text = " ".join(f"{turn:,.0f}" for turn in turns)
        rate = statistics.median(turns)
        report.figure(f"{count} pinned, in and out: messages/s", rate, f"{rate:,.0f} ({text})")
    report.ratio(
        "two wheels on two cores to one on one",
        statistics.median(rates[2]),
        statistics.median(rates[1]),
        ">= 1.8" if chosen.sink == EMBEDDED else ">= 1.6",
    )


def _rate_of(directory: Path, cores: list[int], seconds: float, options: list[str]) -> float:
    """Messages a second that a wheel and a client on each core take in and deliver together."""
    directory.mkdir()
    names = [f"w{core}" for core in cores]
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(len(cores) + 1), context.Queue()
    before = os.sched_getaffinity(0)
    with ExitStack() as running:
        nodes: dict[str, BenchNode] = {}
        try:
            for name, core in zip(names, cores, strict=True):
                os.sched_setaffinity(0, {core})  # which its threads have from the beginning
                nodes[name] = running.enter_context(
                    BenchNode(directory / name, "--group", name, *options)
                )
        finally:
            os.sched_setaffinity(0, before)
        addresses = {name: node.address for name, node in nodes.items()}
        clients = [
            context.Process(
                target=_send, args=(addresses, core, seconds, ready, results), daemon=True
            )
            for core in cores
        ]
        for process in clients:
            process.start()
        ready.wait(60)
        began = time.time()
        sent = sum(results.get(timeout=seconds + 120) for _ in clients)
        for process in clients:
            process.join(30)
        with Fleet(addresses) as fleet:
            while True:
                wheels = fleet.status()["wheels"].values()
                if sum(wheel["status"]["delivered"] for wheel in wheels) >= sent:
                    return float(sent / (time.time() - began))
                time.sleep(0.02)


def _send(addresses: dict[str, str], core: int, seconds: float, ready: Any, results: Any) -> None:
    os.sched_setaffinity(0, {core})
    sent = 0
    with Fleet(addresses, buffer_bytes=4 << 20) as fleet:
        fleet.status()
        ready.wait(60)
        end = time.time() + seconds
        while time.time() < end:
            fleet.send_many(
                [
                    Message("t", _VALUE, key=b"%d-%d" % (core, sent + row), delay=_DELAY_S)
                    for row in range(_BATCH)
                ]
            )
            sent += _BATCH
        fleet.flush()
    results.put(sent)


# -- a thousand wheels ---------------------------------------------------------------------------


def _thousand(report: Report, directory: Path, chosen: Any) -> None:
    names = [f"wheel-{number:04}" for number in range(_WHEELS)]
    began = time.perf_counter()
    routing = Routing(names)
    built_s = time.perf_counter() - began
    shares = np.bincount(routing.owner, minlength=_WHEELS) / len(routing.owner) * _WHEELS
    report.figure("the table of 1,000 wheels is made in, s", built_s, f"{built_s:.2f}")
    report.figure(
        "keys of a wheel, of an equal share: least and most",
        float(shares.max()),
        f"{shares.min():.0%} to {shares.max():.0%}",
    )
    us = _us_of(lambda: routing.wheel_of(b"order-17"), 100_000)
    report.figure("messages a second that one process can choose for", 1e6 / us, f"{1e6 / us:,.0f}")
    _idle_client(report, names, 50 if chosen.quick else _WHEELS)
    with BenchNode(directory / "data") as node, Client(node.address) as client:
        client.status()
        answers_s = np.array(
            [_seconds_of(client.status) for _ in range(50 if chosen.quick else 1_000)]
        )
    chance = np.random.default_rng(7)
    rounds = -(-_WHEELS // _AT_ONCE)
    all_s = chance.choice(answers_s, (2_000, rounds, _AT_ONCE)).max(axis=2).sum(axis=1)
    for name, values in (("one wheel", answers_s), ("all 1,000 wheels", all_s)):
        low, high = np.percentile(values, [50, 99]) * 1000
        report.figure(f"a question to {name}, ms: p50, p99", float(high), f"{low:.2f}, {high:.2f}")
    _assignor(report, names if not chosen.quick else names[:100])


def _seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _idle_client(report: Report, names: list[str], count: int) -> None:
    """What a client of so many wheels takes that do not answer: threads, memory, processor."""
    process = psutil.Process()
    before, threads = process.memory_info().rss, process.num_threads()
    wheels = {name: f"127.0.0.1:{number + 1}" for number, name in enumerate(names[:count])}
    with Fleet(wheels, timeout_s=1) as fleet:
        fleet.status()
        began = time.process_time()
        time.sleep(3)
        cpu = (time.process_time() - began) / 3
        grown = (process.memory_info().rss - before) / count / 1024
        more = process.num_threads() - threads
    report.figure("a client's memory for a wheel, KiB", grown, f"{grown:.0f}")
    report.figure("threads of a client of so many wheels", more, str(more))
    report.figure("processor that it takes to greet them", cpu, f"{cpu:.1%} of a core")


class _Topics:
    """Ten topics with so many partitions together, as an assignor asks for them."""

    def __init__(self, partitions: int) -> None:
        self.names = [f"delays-{number}" for number in range(10)]
        self._each = partitions // 10

    def topics(self) -> list[str]:
        return self.names

    def partitions_for_topic(self, _: str) -> set[int]:
        return {*range(self._each)}


def _assignor(report: Report, names: list[str]) -> None:
    """Kafka's side: what the leader of a group computes, and how large its record is."""
    for count in (len(names) // 10, len(names)):
        cluster = _Topics(_PARTITIONS * count // _WHEELS)
        new = [_member(name, cluster.names, []) for name in names[:count]]
        first_s, assigned = _assigned(cluster, new)
        left = [
            _member(name, cluster.names, assigned[name].assigned_partitions)
            for name in names[1:count]
        ]
        again_s, after = _assigned(cluster, left)
        who = f"{count:,} wheels and {_PARTITIONS * count // _WHEELS:,} partitions"
        report.figure(
            f"the leader's assignment of {who}, s: at first, and when one has left",
            again_s,
            f"{first_s:.2f}, {again_s:.2f}",
        )
        whole = sum(len(member.metadata.encode()) for member in left)
        whole += sum(len(share.encode()) for share in after.values())
        report.figure(f"Kafka's record of {who}, bytes of 1,048,576", whole, f"{whole:,}")


def _assigned(cluster: _Topics, members: list[SimpleNamespace]) -> tuple[float, Any]:
    began = time.process_time()
    result = CooperativeStickyAssignor().assign(cluster, members)
    return time.process_time() - began, result


def _member(name: str, topics: list[str], owned: list[tuple[str, list[int]]]) -> SimpleNamespace:
    """A member as the leader of a group gets it."""
    pair = ConsumerProtocolSubscription.TopicPartition
    metadata = ConsumerProtocolSubscription(
        version=1,
        topics=topics,
        user_data=b"",
        owned_partitions=[pair(topic=topic, partitions=numbers) for topic, numbers in owned],
    )
    return SimpleNamespace(member_id=name, group_instance_id=name, metadata=metadata)


if __name__ == "__main__":
    sys.exit(main())
