"""The running audit beside a node that runs.

Two minutes of it: ``python -m pytest -m soak tests/replay/test_follow.py``
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from slotwheel.client import Client, Message
from slotwheel.replay.facts.kafka_topics import KafkaUnreachable
from slotwheel.replay.following import follow as following
from slotwheel.replay.following.audit import Audit, Settings
from slotwheel.replay.following.audit_state import State
from slotwheel.replay.following.follow import _NO_PROCESS, _Batches, follow
from slotwheel.replay.stream import find_group
from slotwheel.wheel.errors import InvalidConfiguration
from support import replayrun
from support.broker import Cluster
from support.load import steady
from support.lossynode import LOST, LossyNode
from support.nodeprocess import NodeProcess, command_line, environment
from support.peers import PEERS, Peers
from support.scenario import SMALL
from support.spark import Replay
from support.stopwatch import Stopwatch
from support.waiting import eventually, now_ms

WINDOW_MS, GRACE_MS = 2_000, 3_000
SLACK_MS = 10_000
"""For Spark, beside what the machine makes it wait."""
START_S = 600.0
EVERY_S = 1.0
STREAM_MS = 20
"""Between two messages that nothing happens to."""


class Follower:
    """``slotwheel replay --follow`` as a process, and when it said what."""

    def __init__(self, data: Path, log: Path, *options: str) -> None:
        self.said: list[tuple[int, dict[str, Any]]] = []
        self.log = log
        arguments = ("--window", f"{WINDOW_MS}ms", "--grace", f"{GRACE_MS}ms", "--json")
        spark = ("--master", "local[2]", "--driver-memory", "1g")
        command = command_line("replay", data, "--follow", *arguments, *spark, *options)
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append((now_ms(), json.loads(line)))

    def windows(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if " accepted, " in line]

    def end(self, timeout_s: float) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(60)
        return code


@pytest.mark.timeout(1_500)  # Spark starts, on two cores with much else
@pytest.mark.parametrize("seconds", [12, pytest.param(120, marks=pytest.mark.soak)])
def test_a_planted_loss_is_flagged_within_its_window(tmp_path: Path, seconds: int) -> None:
    """A sink keeps one message to itself and says that it has delivered it."""
    with LossyNode(tmp_path / "data") as node:
        stream = steady(node.address, ("orders", "bills"), STREAM_MS)
        follower = Follower(node.data, tmp_path / "audit.log")
        try:
            eventually(follower.windows, START_S)
            began = time.monotonic()
            time.sleep(seconds / 4)
            with Client(node.address) as client:
                due_ms = now_ms() + 2_000
                planted = client.send("orders", LOST, due=due_ms).result(60)
                taken_back = client.send("orders", b"never", due=due_ms + 5).result(60)
                moved = client.send("orders", b"later", due=due_ms + 10).result(60)
                assert [str(one) for one in client.cancel([taken_back])] == ["cancelled"]
                client.reschedule(moved, due=due_ms + WINDOW_MS)
            watch = Stopwatch()
            eventually(lambda: follower.said)
            stalled_ms = 1000 * watch.stalled_s
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            follower.process.send_signal(signal.SIGINT)
            assert follower.end(60) == 130, follower.log.read_text()
        finally:
            if follower.process.poll() is None:
                follower.process.kill()
                follower.process.wait(60)
            stream.stop()
    ((at_ms, flag),) = follower.said
    assert (flag["flag"], flag["id"], flag["topic"]) == ("lost", planted, "orders")
    settled_ms = due_ms - due_ms % WINDOW_MS + WINDOW_MS + GRACE_MS
    assert 0 <= at_ms - settled_ms < SLACK_MS + stalled_ms
    log = follower.log.read_text()
    judged = [line for line in follower.windows() if not line.startswith("in all")]
    assert len(judged) >= seconds * 1_000 // WINDOW_MS - 2, log
    assert sum("1 lost" in line for line in judged) == 1
    assert sum("1 cancelled" in line or "2 cancelled" in line for line in judged) >= 1
    assert log.endswith("something is wrong\n")
    print(f"flagged {at_ms - due_ms} ms after it was due, {at_ms - settled_ms} ms after its window")


def test_a_loss_in_kafka(spark: Any, tmp_path: Path, broker: Cluster) -> None:
    topic = broker.create_topic(f"followed-{time.time_ns()}", 2)
    kafka = ("--sink", "confluent", "--bootstrap", broker.bootstrap)
    told = Told()
    with LossyNode(tmp_path / "data", *kafka) as node:
        stream = steady(node.address, (topic,), STREAM_MS)
        try:
            audit = told.audit(
                tmp_path / "audit",
                node.data,
                window_ms=WINDOW_MS,
                grace_ms=GRACE_MS,
                kafka=broker.bootstrap,
                topics=(topic,),
            )
            with Client(node.address) as client:
                planted = client.send(topic, LOST, due=now_ms() + 2_000).result(60)
            flagged = until(lambda: told.flags and len(told.windows) > 1)
            follow(spark, audit, every_s=EVERY_S, goes_on=flagged)
        finally:
            stream.stop()
    broker.delete_topic(topic)
    (flag,) = told.flags
    assert (flag["flag"], flag["id"], flag["topic"]) == ("lost", planted, topic)
    assert audit.summary()["failed"]


@pytest.mark.parametrize(
    ("answers", "ends"),
    [
        (["c/new"], False),
        (["c/old", "c/new"], False),
        (["c/newer", "c/newer"], True),
        (["c/newer", KafkaUnreachable("away")], True),
        ([KafkaUnreachable("away")], False),
    ],
)
def test_a_topic_is_another_one_if_a_broker_that_is_up_to_date_says_so(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | Exception], ends: bool
) -> None:
    class Topics:
        def __init__(self, *_about: object) -> None: ...

        def sources(self) -> dict[str, str]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return {"t": answer}

    monkeypatch.setattr(following, "KafkaTopics", Topics)
    monkeypatch.setattr(following, "_UP_TO_DATE_S", 0.0)
    answers = list(answers)
    settings = Settings((), kafka="nowhere", topics=("t",))
    audit: Any = SimpleNamespace(settings=settings, state=State(sources={"t": "c/new"}))
    with pytest.raises(InvalidConfiguration, match="made anew") if ends else nullcontext():
        following._check_sources(audit)
    assert not answers


@pytest.mark.parametrize(
    ("errors", "begun", "ends"),
    [
        ([_NO_PROCESS, None], 2, None),
        ([_NO_PROCESS] * 9, 5, _NO_PROCESS),
        (["the disk is full", None], 1, "the disk is full"),
    ],
)
def test_a_query_whose_first_process_came_late_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    errors: list[str | None],
    begun: int,
    ends: str | None,
) -> None:
    left = list(errors)

    def run(*_: object, **__: object) -> Exception | None:
        error = left.pop(0)
        return None if error is None else RuntimeError(f"Job aborted: {error}")

    monkeypatch.setattr(following, "_run", run)
    monkeypatch.setattr(following, "register", lambda _: None)
    settings = Settings((str(tmp_path),))
    audit: Any = SimpleNamespace(settings=settings, folder=tmp_path, state=State())
    with pytest.raises(RuntimeError, match=ends) if ends else nullcontext():
        follow(MagicMock(), audit, every_s=1.0, goes_on=lambda: True)
    assert len(errors) - len(left) == begun


def test_it_ends_by_itself_after_the_time_it_was_given(
    replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock on which each batch takes a second."""
    run = replayrun.made(3_000, names=["one"])
    lost = replayrun.remove_delivered(run)
    commit, batches = Audit.commit, []

    def commit_and_count(audit: Audit, number: int) -> None:
        commit(audit, number)
        batches.append(number)

    monkeypatch.setattr(Audit, "commit", commit_and_count)
    clock = SimpleNamespace(monotonic=lambda: float(len(batches)))
    monkeypatch.setattr("slotwheel.cli.replayfollow.time", clock)
    options = ("--follow", "--for", "2s", "--late-ms", "600000", "--json")
    code, out, err = replay(*run.write(tmp_path), *options)
    assert code == 1, err
    assert [json.loads(line)["id"] for line in out.splitlines()] == [run.id_of(lost)]
    *_, left, last = err.splitlines()
    assert left.startswith("not judged: whether two messages of one name were pending at once;")
    assert last == "something is wrong"
    assert batches[:2] == [0, 1]


@pytest.mark.soak
def test_three_peers_whose_masters_are_killed(tmp_path: Path) -> None:
    """Nobody is blamed for that: some messages arrive twice, all arrive."""
    with Peers(tmp_path, *SMALL) as peers:
        peers.wait_until_whole()
        lab = [f"{peers[name].listen}" for name in PEERS]
        stream = steady(",".join(lab), ("orders", "bills"))
        others = [str(peers[name].data) for name in PEERS[1:]]
        follower = Follower(peers[PEERS[0]].data, tmp_path / "audit.log", *others)
        try:
            eventually(follower.windows, START_S)
            for _ in range(4):
                master = peers.wait_until_whole()
                peers[master].kill()
                time.sleep(5)
                peers.start()
                time.sleep(10)
            follower.process.send_signal(signal.SIGINT)
            assert follower.end(60) == 130, follower.log.read_text()
        finally:
            if follower.process.poll() is None:
                follower.process.kill()
                follower.process.wait(60)
            stream.stop()
    assert {flag["flag"] for _, flag in follower.said} <= {"repeated"}
    assert follower.log.read_text().endswith("nothing is lost\n")
    assert len(follower.windows()) > 10


class Told:
    """What an audit in this process tells."""

    def __init__(self) -> None:
        self.flags: list[Mapping[str, Any]] = []
        self.windows: list[Mapping[str, Any]] = []

    def of(self, kind: str) -> Counter[str]:
        return Counter(flag["id"] for flag in self.flags if flag["flag"] == kind)

    def audit(self, folder: Path, data: Path, **more: Any) -> Audit:
        settings = Settings((str(data),), **{"window_ms": 1_000, "grace_ms": 1_000, **more})
        group = find_group(settings.directories)
        return Audit(folder, settings, group, report=self.flags.append, note=self.windows.append)


def until(done: Callable[[], object], timeout_s: float = 240.0) -> Callable[[], bool]:
    deadline = time.monotonic() + timeout_s

    def goes_on() -> bool:
        assert time.monotonic() < deadline, "it did not come"
        return not done()

    return goes_on


def test_a_node_that_is_killed_and_an_audit_that_is_begun_again(spark: Any, tmp_path: Path) -> None:
    """What it does not deliver is overdue, not lost, and is late after all; each told once."""
    told = Told()
    node = NodeProcess(tmp_path / "data")
    with node:
        audit = told.audit(tmp_path / "audit", node.data)
        with Client(node.address) as client:
            first = now_ms()
            soon = [client.send("orders", b"soon", due=first + 500) for _ in range(20)]
            later = [client.send("orders", b"later", due=first + 5_000) for _ in range(10)]
            in_time = {one.result(60) for one in soon}
            overdue = {one.result(60) for one in later}
        node.wait_for("orders", 20)
        node.kill()
        follow(spark, audit, every_s=EVERY_S, goes_on=until(lambda: len(told.of("overdue")) == 10))
        assert set(told.of("overdue")) == overdue
        assert audit.summary()["delivered"] == len(in_time)
        again = told.audit(tmp_path / "audit", node.data)
        node.start()
        node.wait_for("orders", 30)
        follow(
            spark,
            again,
            every_s=EVERY_S,
            goes_on=until(lambda: len(told.of("late after all")) == 10),
        )
    assert set(told.of("late after all")) == overdue
    found = {flag["flag"] for flag in told.flags}
    # What was delivered in the instant before the kill may come again.
    assert found - {"repeated"} == {"overdue", "late after all"}
    assert max(told.of("overdue").values()) == 1
    summary = again.summary()
    assert (summary["accepted"], summary["delivered"], summary["overdue"]) == (30, 30, 0)
    assert summary["failed"]
    shutil.rmtree(tmp_path / "audit" / "checkpoint")
    with pytest.raises(InvalidConfiguration, match="checkpoint is not there"):
        follow(spark, again, every_s=EVERY_S, goes_on=lambda: True)


def test_a_batch_that_comes_as_the_audit_ends_is_left_for_the_next_one(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark begins one a moment before it is stopped: that is no failure, and nothing is lost."""
    end, refused, sent = _Batches.end, list[bool](), list[int]()

    def end_slowly(batches: _Batches) -> None:
        end(batches)
        if audit.summary()["delivered"] != 5:
            return  # the query has failed, as it does on a busy machine, and is begun again
        send(node)
        eventually(lambda: batches.refused)
        refused.append(True)

    def send(node: NodeProcess) -> None:
        sent.append(5)
        with Client(node.address) as client:
            client.send_many([Message("orders", b"soon", delay=0.5)] * 5).result(60)

    told = Told()
    with NodeProcess(tmp_path / "data") as node:
        send(node)
        node.wait_for("orders", 5)
        audit = told.audit(tmp_path / "audit", node.data)
        with monkeypatch.context() as patch:
            patch.setattr(_Batches, "end", end_slowly)
            all_there = until(lambda: audit.summary()["delivered"] == 5)
            follow(spark, audit, every_s=EVERY_S, goes_on=all_there)
        send(node)
        node.wait_for("orders", sum(sent))
        again = told.audit(tmp_path / "audit", node.data)
        all_there = until(lambda: again.summary()["delivered"] == sum(sent))
        follow(spark, again, every_s=EVERY_S, goes_on=all_there)
    assert refused
    assert told.flags == []
    assert again.summary()["accepted"] == sum(sent)


def test_what_a_node_keeps_in_its_archive(spark: Any, tmp_path: Path) -> None:
    """Most of the journal has left it before the audit begins."""
    count = 40_000
    told = Told()
    with NodeProcess(tmp_path / "data", *SMALL, "--retain", "1h") as node:
        with Client(node.address) as client:
            due_ms = now_ms() + 1_000
            some = (Message("orders", bytes(100), due=due_ms + at // 20) for at in range(count))
            client.send_many(some)
            client.flush(60)
        node.wait_for("orders", count)
        eventually(lambda: list(node.data.glob("archive/*/journal/*.journal")))
        audit = told.audit(tmp_path / "audit", node.data)

        def all_judged() -> bool:
            return audit.summary()["accepted"] >= count and not audit.summary()["windows_open"]

        follow(spark, audit, every_s=EVERY_S, goes_on=until(all_judged))
    assert told.flags == []
    summary = audit.summary()
    assert (summary["accepted"], summary["delivered"], summary["unaccounted"]) == (count, count, 0)
