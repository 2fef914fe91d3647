"""The account of all boundaries beside a node that runs: node and job are killed, and the tables
are exact in the end.

Ten minutes of it: ``python -m pytest -m soak tests/replay/test_account_follow.py``
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from slotwheel import Consumer
from slotwheel.client import Client, Message
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.following.accounttables import AccountTables
from slotwheel.replay.judging.boundaries import BOUNDARY_ARROW, COUNTS_TABLE, IDS_TABLE
from slotwheel.replay.stream import find_group
from slotwheel.trace import Tracer, decode
from slotwheel.trace.events import EventKind, with_sender
from slotwheel.wheel.errors import SlotwheelError
from support.nodeprocess import NodeProcess, command_line, environment
from support.ports import free_address
from support.tracestore import write_segment
from support.waiting import eventually, now_ms

WINDOW_MS = 2_000
START_S = 600.0
LOOK_S = 0.5
"""Between two looks at all of a topic or a table, which take processor time."""
TOPIC, GROUP = "orders", "billing"
CLIENT, WHEEL, CONSUMER = "client to wheel", "wheel to topic", "topic to consumer"


class StoreTarget:
    """Writes each batch of a tracer as a segment. Of each kind of fault one is planted, once
    ``plant`` has the group's terms."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._flushes = itertools.count(1)
        self.plant: GroupTerms | None = None
        self.planted: dict[tuple[str, str], int] = {}

    def send(self, value: bytes) -> None:
        sender, events = decode(value)
        rows = with_sender(sender, events).to_pylist()
        if self.plant is not None:
            self._change(rows, self.plant)
        number = next(self._flushes)
        table = pa.Table.from_pylist(rows, with_sender(sender, events).schema)
        write_segment(self._root, number, number, table)

    def close(self) -> None:
        pass

    def _change(self, rows: list[dict[str, Any]], terms: GroupTerms) -> None:
        answers = [row for row in rows if row["kind"] == EventKind.PROCESSED]
        if len(answers) >= 2 and (CONSUMER, "lost") not in self.planted:
            # In the place of one answer stands another one: no number is missing.
            rows[rows.index(answers[0])] = answers[1] | {"number": answers[0]["number"]}
            self.planted[CONSUMER, "lost"] = answers[0]["id"]["offset"]
            self.planted[CONSUMER, "repeated"] = answers[1]["id"]["offset"]
        sent = [row for row in rows if row["kind"] == EventKind.PRODUCED and row["id"]]
        if sent and (CLIENT, "lost") not in self.planted and terms.mint is not None:
            due, offset = round(sent[0]["id"]["due"].timestamp() * 1000), 1 << 40
            check = int(terms.mint.checks(np.array([due]), np.array([offset]))[0])
            one = sent[0]["id"] | {"offset": offset, "check": check}
            rows.append(sent[0] | {"number": 0, "sender": "planted", "id": one})
            self.planted[CLIENT, "lost"] = offset


class Traffic:
    """Sends small batches without a pause, and consumes what arrives, both with a tracer."""

    def __init__(self, node: NodeProcess, target: StoreTarget) -> None:
        self._node, self._end = node, threading.Event()
        self.tracer = Tracer(target, client="test")
        self.acknowledged = self.taken = 0
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._consumer = threading.Thread(target=self._consume, daemon=True)
        self._consumed = threading.Event()
        for thread in (self._sender, self._consumer):
            thread.start()

    def _send(self) -> None:
        while not self._end.is_set():
            try:
                with Client(self._node.address, observer=self.tracer) as client:
                    while not self._end.wait(0.1):
                        messages = [Message(TOPIC, b"x", delay=0.5) for _ in range(10)]
                        self.acknowledged += len(client.send_many(messages).result(60))
            except (SlotwheelError, TimeoutError):
                self._end.wait(0.3)

    def _consume(self) -> None:
        node, tracer = self._node, self.tracer
        with Consumer(
            TOPIC, GROUP, data=node.data, wheel=node.address, observer=tracer
        ) as consumer:
            while not self._consumed.is_set():
                messages = consumer.take(100, 0.3)
                consumer.done(*messages)
                self.taken += len(messages)

    def stop(self) -> list[int]:
        """End the sending; when all has arrived, the consumer. Returns offsets of what arrived."""
        self._end.set()
        self._sender.join(60)
        assert not self._sender.is_alive()
        arrived: list[int] = []

        def all_arrived() -> bool:
            arrived[:] = [row["offset"] for row in self._node.delivered(TOPIC)]
            return len(set(arrived)) >= self.acknowledged

        eventually(all_arrived, every_s=LOOK_S)
        eventually(lambda: self.taken >= len(arrived))
        self._consumed.set()
        self._consumer.join(60)
        assert not self._consumer.is_alive()
        self.tracer.close()
        return arrived


class Job:
    """``slotwheel replay --follow --traces``, as a process."""

    def __init__(self, data: Path, store: Path, tables: Path, state: Path) -> None:
        self._log = state.with_suffix(".log")
        self.tables = tables
        options = ("--window", f"{WINDOW_MS}ms", "--grace", "3s", "--late-ms", "600000")
        places = ("--traces", store, "--tables", tables, "--state", state)
        spark = ("--master", "local[2]", "--driver-memory", "1g")
        self._command = command_line("replay", data, "--follow", *options, *places, *spark)
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        return self.process

    def kill(self) -> None:
        """The command, and Spark with it."""
        children = [int(one) for one in _children(self.process.pid)]
        self.process.kill()
        self.process.wait(60)
        for pid in children:
            _kill(pid)

    def log_text(self) -> str:
        return self._log.read_text()


def _children(pid: int) -> list[str]:
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    own = [one for text in lists for one in text.split()]
    return own + [further for one in own for further in _children(int(one))]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def newest(tables: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows that hold: of each bucket those that were made last."""
    if not list((tables / COUNTS_TABLE).rglob("*.parquet")):
        return pd.DataFrame(), pd.DataFrame()
    counts = pd.read_parquet(tables / COUNTS_TABLE)
    last = counts.groupby("bucket")["made"].max()
    counts = counts[counts["made"] == counts["bucket"].map(last)]
    if not list((tables / IDS_TABLE).rglob("*.parquet")):
        return counts, pd.DataFrame()
    ids = pd.read_parquet(tables / IDS_TABLE)
    return counts, ids[ids["made"] == ids["bucket"].map(last)]


def sums(counts: pd.DataFrame, boundary: str) -> dict[str, int]:
    if counts.empty:
        return Counter()
    mine = counts[counts["boundary"] == boundary].select_dtypes("number").sum()
    return {str(name): int(value) for name, value in mine.items()}


@contextmanager
def ended(job: Job) -> Iterator[Job]:
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.kill()


@pytest.mark.timeout(1_500)  # Spark starts twice, on two cores with much else
@pytest.mark.parametrize("seconds", [6, pytest.param(600, marks=pytest.mark.soak)])
def test_exact_in_the_end_although_node_and_job_are_killed(
    tmp_path: Path, seconds: int, figure: Callable[[str], None]
) -> None:
    store, tables = tmp_path / "traces", tmp_path / "tables"
    target = StoreTarget(store)
    # Clients find it again when it was killed.
    with NodeProcess(tmp_path / "data", "--listen", free_address()) as node:
        traffic = Traffic(node, target)
        eventually(lambda: len(node.delivered(TOPIC)) > 0)
        with ended(Job(node.data, store, tables, tmp_path / "state")) as job:
            eventually(lambda: len(newest(tables)[0]) > 0, START_S, every_s=LOOK_S)
            group = find_group([str(node.data)])
            target.plant = GroupTerms(group.group, group.key)
            time.sleep(seconds / 2)
            node.kill()
            node.start()
            job.kill()
            job.start()
            time.sleep(seconds / 2)
            arrived = traffic.stop()
            stopped_ms = now_ms()

            def settled() -> bool:
                counts, _ = newest(tables)
                there = sums(counts, CONSUMER)
                sent = sums(counts, CLIENT).get("sent", 0)
                return sent > traffic.acknowledged and (
                    there["arrived"] + there["lost"] == len(set(arrived))
                )

            eventually(settled, START_S, every_s=LOOK_S)
            took_ms = now_ms() - stopped_ms
            job.process.send_signal(signal.SIGINT)
            assert job.process.wait(60) == 130, job.log_text()
    counts, ids = newest(tables)
    client, wheel, consumer = (sums(counts, one) for one in (CLIENT, WHEEL, CONSUMER))
    delivered, again = len(set(arrived)), Counter(arrived)
    assert client["sent"] == traffic.acknowledged + 1
    assert (client["arrived"], client["lost"]) == (traffic.acknowledged, 1)
    assert client["untraced"] == delivered - traffic.acknowledged
    assert (wheel["sent"], wheel["arrived"], wheel["lost"]) == (delivered, delivered, 0)
    assert (consumer["sent"], consumer["lost"]) == (delivered, 1)
    assert consumer["arrived"] == delivered - 1
    for one in (client, wheel, consumer):
        assert one["waiting"] == one["undecided"] == one["late"] == 0
    named = set(zip(ids["boundary"], ids["kind"], ids["offset"], strict=True))
    repeats = {(WHEEL, "repeated", one) for one, times in again.items() if times > 1}
    assert named - repeats == {(*what, one) for what, one in target.planted.items()}
    assert repeats <= named
    figure(
        f"account: {delivered:,} messages, {len(repeats)} repeated by the wheel, exact"
        f" {took_ms / 1000:.1f} s after the last one was consumed"
    )


def test_a_batch_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    """Killed before its batch counted: the files go. Killed behind that: they get their names."""
    row = {"boundary": CLIENT, "group": "", "topic": 5, "bucket_ms": 86_400_000 * 3, "sent": 1}
    rows = pa.Table.from_pylist([row, row | {"topic": 6}], BOUNDARY_ARROW)

    def visible() -> list[str]:
        return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))

    first = AccountTables(tmp_path, "run")
    names = first.write(1, 7, [rows], {5: "or/ders"})
    assert visible() == []
    AccountTables(tmp_path, "another").settle([])
    AccountTables(tmp_path, "run").settle(names)
    assert (
        visible()
        == sorted(names)
        == [
            "boundaries/day=1970-01-04/topic=or%2Fders/run-000000001.parquet",
            "boundaries/day=1970-01-04/topic=topic%2000000006/run-000000001.parquet",
        ]
    )
    first.write(2, 8, [rows], {5: "or/ders"})
    AccountTables(tmp_path, "run").settle(names)
    assert visible() == sorted(names)
    assert not list(tmp_path.rglob("*.new"))
    assert len(pd.read_parquet(tmp_path / COUNTS_TABLE)) == 2
