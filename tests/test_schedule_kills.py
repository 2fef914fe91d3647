"""Schedules of every 1 to 7 s while the node, or the master of three, is killed again and again: by
the log each run is exactly one row, and its time is the one behind the run before; and these rows
are what was delivered, and the proof says so.

1000 schedules and 50 kills: ``python -m pytest -m soak tests/test_schedule_kills.py``
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotwheel.client import Client
from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.wheel.schedules import FiredRun
from support.broker import Cluster, TopicFactory
from support.firedruns import delivered_runs, logged, run_of, wrong_by_the_log, wrong_deliveries
from support.kafkaread import Reader
from support.peers import PEERS, Peers
from support.plainproof import prove_here
from support.schedulelog import LoggedEntry
from support.waiting import eventually, now_ms

TOPIC = "beats"
ALONE = ("a",)


def every_of(schedules: int) -> dict[str, int]:
    """So many schedules, and the ms from run to run of each."""
    return {f"s{number}": 1000 + 1000 * (number % 7) for number in range(schedules)}


def put_all(addresses: str, topic: str, every_ms: dict[str, int]) -> None:
    with Client(addresses) as client:
        for name, ms in every_ms.items():
            template = {"topic": topic, "value": name}
            client.schedules.put({"name": name, "every_ms": ms, "template": template})


def lose_masters(peers: Peers, kills: int) -> None:
    """Kill the master so often; of several, each time until another one is master."""
    chance = random.Random(kills)
    for _ in range(kills):
        time.sleep(chance.uniform(0.1, 1.5))
        lost = peers.master()
        peers[lost].kill()
        if len(peers.names) > 1:
            peers.master(other_than=lost)
        peers.start()
    peers.wait_until_whole()


def missed_runs(addresses: str) -> int:
    with Client(addresses) as client:
        return sum(shown["missed"] for shown in client.schedules.list())


def too_few(log: Sequence[LoggedEntry], every_ms: dict[str, int], upto_ms: int) -> list[str]:
    """The schedules of which a run that is due up to ``upto_ms`` is in no entry."""
    last = {run.name: run.nominal_ms for entry in log for run in entry.rows}
    return [name for name, ms in every_ms.items() if last.get(name, 0) + ms <= upto_ms]


def assert_each_is_one_row(
    peers: Peers,
    every_ms: dict[str, int],
    ended_ms: int,
    delivered: Counter[FiredRun],
    *,
    once: bool,
) -> int:
    """By the log of each of the peers, which have stopped; returns how many runs it has."""
    counts = set()
    for name in peers.names:
        log = logged(peers[name].data)
        assert wrong_by_the_log(log) == []
        assert too_few(log, every_ms, ended_ms) == []
        counts.add(sum(len(entry.rows) for entry in log))
        assert all(run.missed == 0 for entry in log for run in entry.rows)
        # An end that its master has lost is in no other journal.
        assert wrong_deliveries(log, delivered, ended_ms, once=once) == []
    return max(counts)


@pytest.mark.parametrize(
    ("names", "schedules", "kills"),
    [
        pytest.param(ALONE, 60, 3, id="3 kills of a node alone"),
        pytest.param(PEERS, 60, 1, id="a failover"),
        pytest.param(ALONE, 1000, 50, marks=pytest.mark.soak, id="50 kills of a node alone"),
        pytest.param(PEERS, 1000, 50, marks=pytest.mark.soak, id="50 failovers"),
    ],
)
def test_each_run_is_one_row(
    tmp_path: Path,
    figure: Callable[[str], None],
    names: Sequence[str],
    schedules: int,
    kills: int,
) -> None:
    """A node alone delivers exactly once; peers may send a message again, which is the same row."""
    every_ms = every_of(schedules)
    once = names == ALONE
    options = ("--retain", "1h", *(("--delivery", "exactly-once") if once else ()))
    with Peers(tmp_path, *options, names=names) as peers:
        put_all(peers.addresses, TOPIC, every_ms)
        lose_masters(peers, kills)
        ended_ms = now_ms()

        def delivered() -> Counter[FiredRun]:
            return delivered_runs([node.data for node in peers.nodes.values()], TOPIC)

        eventually(lambda: not behind(delivered(), every_ms, ended_ms), every_s=0.3)
        assert missed_runs(peers.addresses) == 0
        peers.stop()
        found = delivered()
        runs = assert_each_is_one_row(peers, every_ms, ended_ms, found, once=once)
        verdict = prove_here(find([str(peers[name].data) for name in names]), Options())
        assert verdict.proven, (verdict.reasons, verdict.open_points, verdict.problems[:5])
        (judged,) = [note for note in verdict.notes if note.startswith("runs of schedules")]
        assert not any("not when they were due" in note for note in verdict.notes)
        assert int(judged.split(":")[1].split(";")[0].replace(",", "")) >= runs
    figure(
        f"{kills} kills of {len(names)}, {schedules} schedules: {runs} rows of as many runs,"
        f" {len(found)} delivered, {found.total() - len(found)} of them again"
    )


def behind(delivered: Counter[FiredRun], every_ms: dict[str, int], upto_ms: int) -> bool:
    """True if a message that is due up to ``upto_ms`` was not delivered."""
    last: dict[str, int] = {}
    for run in delivered:
        last[run.name] = max(run.nominal_ms, last.get(run.name, 0))
    return any(last.get(name, 0) + ms <= upto_ms for name, ms in every_ms.items())


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("schedules", "kills"),
    [(60, 1), pytest.param(1000, 20, marks=pytest.mark.soak)],
)
def test_each_run_is_read_once_from_kafka(
    tmp_path: Path,
    broker: Cluster,
    topic: TopicFactory,
    figure: Callable[[str], None],
    schedules: int,
    kills: int,
) -> None:
    """Three peers with exactly-once delivery: not even a failover explains a message that comes
    twice."""
    beats, every_ms = topic("beats"), every_of(schedules)
    options = (
        *("--sink", "confluent", "--bootstrap", broker.bootstrap),
        *("--delivery", "exactly-once", "--dead-letter-topic", topic("dead")),
    )
    with Peers(tmp_path, *options) as peers, reading(broker, beats) as delivered:
        put_all(peers.addresses, beats, every_ms)
        lose_masters(peers, kills)
        ended_ms = now_ms()
        eventually(lambda: not behind(delivered(), every_ms, ended_ms), every_s=0.3)
        assert missed_runs(peers.addresses) == 0
        peers.stop()
        found = delivered()
        runs = assert_each_is_one_row(peers, every_ms, ended_ms, found, once=True)
    figure(f"{kills} failovers with Kafka, {schedules} schedules: {runs} rows, {len(found)} read")


@contextmanager
def reading(broker: Cluster, topic: str) -> Iterator[Callable[[], Counter[FiredRun]]]:
    """What has come to a topic of Kafka so far."""
    reader = Reader(broker.bootstrap, [topic])
    found: Counter[FiredRun] = Counter()

    def delivered() -> Counter[FiredRun]:
        for record in reader.new():
            run = run_of(dict(record.headers), record.due_ms, record.offset)
            assert run is not None, record
            found[run] += 1
        return found

    try:
        yield delivered
    finally:
        reader.close()
