"""Each planted fault is named by message, file or input, once, and nothing that follows from it is
blamed; and the table of them in docs/replay.md is what was found here.

The faults are judged without Spark, by the same steps (``prove_here``), a few by Spark, too. With
``SLOTWHEEL_TABLE=1`` in the environment the table is written anew.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import slotwheel
from slotwheel.reading import layout
from slotwheel.reading.layout import find
from slotwheel.reading.problems import Problem
from slotwheel.reading.state import read_state
from slotwheel.replay.facts.kafka_topics import KafkaTopics
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.report.verdict import CLASSES, Verdict
from slotwheel.wheel.mark import Mark
from support import replayrun
from support.broker import Cluster
from support.faulttable import BY_SPARK, FAULTS, TOGETHER
from support.kafkaplanting import KAFKA_FAULTS, KafkaFault, KafkaRun, plant_in_kafka
from support.plainproof import prove_here
from support.planting import RUNS, Fault, Lab, Labs, blamed_in, matches, shown
from support.replayrun import LATER_MS, NOW_MS

WHOLE = {
    "accepted": 5995,
    "delivered": 3588,
    "pending": 2397,
    "cancelled": 5,
    "dead": 3,
    "expired": 2,
    "lost": 0,
    "undecided": 0,
}
PAGE = Path(slotwheel.__file__).parent / "docs" / "replay.md"
HEAD = ["| planted | verdict | what is blamed |", "| --- | --- | --- |"]
BEGIN, END = "<!-- faults -->\n", "<!-- end of faults -->\n"


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Labs:
    return Labs(tmp_path_factory.mktemp("runs"))


def proof_of(lab: Lab, spark: Any = None) -> Verdict:
    found = find(lab.directories, dumps=lab.dumps, receipts=lab.receipts)
    options = Options(**lab.options)
    return prove_here(found, options) if spark is None else prove(spark, found, options)


def check(lab: Lab, verdict: Verdict, *faults: Fault) -> None:
    found = blamed_in(verdict)
    assert matches(found, lab.blamed), (dict(found), lab.blamed)
    assert max(found.values(), default=1) == 1
    assert verdict.outcome == max((fault.outcome for fault in faults), key=WORST.index)
    assert sum(verdict.counts[name] for name in CLASSES) == verdict.counts["accepted"]


KAFKA_PART = "Kafka's topics, read with `--kafka --exactly-once`"


class InKafka(NamedTuple):
    """What was planted in Kafka, and the verdict as JSON."""

    planted: KafkaRun
    verdict: dict[str, Any]


WORST = ["proven", "proven in part", "not proven"]
EVERY = {f"{part}: {fault.name}": fault for part, faults in FAULTS.items() for fault in faults}
PAIRS = list(combinations(TOGETHER, 2))


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """Of the table, by the names of the faults, as far as they were planted."""
    return {}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_without_a_fault(labs: Labs, tmp_path: Path, kind: str) -> None:
    lab = labs.planted(tmp_path / "lab", Fault("nothing", lambda _: None, run=kind))
    lab.options |= {"exactly_once": True, "late_ms": 3}
    verdict = proof_of(lab)
    assert verdict.proven, (verdict.reasons, verdict.open_points)
    assert verdict.problems == []


@pytest.mark.parametrize("name", EVERY)
def test_a_fault(
    monkeypatch: pytest.MonkeyPatch, labs: Labs, rows: dict[str, str], tmp_path: Path, name: str
) -> None:
    fault = EVERY[name]
    if fault in FAULTS["state store"]:
        monkeypatch.setattr(layout, "read_state", read_state)
    lab = labs.planted(tmp_path / "lab", fault)
    verdict = proof_of(lab)
    check(lab, verdict, fault)
    rows[name] = (
        f"| {fault.name} | {verdict.outcome} | {shown(verdict.problems, verdict.open_points)} |"
    )


@pytest.fixture(scope="module")
def in_kafka(spark: Any, broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> InKafka:
    """One proof of all faults that are planted in Kafka."""
    root, name = tmp_path_factory.mktemp("kafka"), f"planted-{time.time_ns()}"
    # The messages were due some time ago, and their topics say when they got there.
    times = {"message_timestamp_type": "CreateTime", "retention_ms": -1}
    topic = broker.create_topic(name, 2, **times)
    dead = broker.create_topic(f"{name}-dead", 2, **times)
    lab, planted = plant_in_kafka(broker, topic, dead, root / "lab")
    found = replace(find(lab.directories, receipts=lab.receipts), dead_letter_topic=dead)
    kafka = KafkaTopics(broker.bootstrap, dead_letters=dead)
    verdict = prove(spark, found, Options(exactly_once=True), kafka=kafka)
    for one in (topic, dead):
        broker.delete_topic(one)
    return InKafka(planted, verdict.to_dict())


def test_all_faults_in_kafka_are_told_apart(in_kafka: InKafka) -> None:
    verdict, planted = in_kafka.verdict, in_kafka.planted
    wanted = Counter(fault.kind for fault in KAFKA_FAULTS if fault.kind)
    assert verdict["problem_counts"] == wanted
    assert verdict["reasons"] == [f"{kind}: {wanted[kind]}" for kind in sorted(wanted)]
    assert verdict["open_points"] == []
    assert verdict["options"]["exactly_once"] is True
    assert verdict["counts"]["repeated"] == wanted["repeated"]
    assert verdict["counts"]["delivered"] == len({offset for offset, _ in planted.committed})
    (lost,) = (one for one in verdict["problems"] if one["kind"] == "lost")
    assert "though a mark covers it" in lost["text"]


@pytest.mark.parametrize("fault", KAFKA_FAULTS, ids=[fault.text for fault in KAFKA_FAULTS])
def test_a_fault_in_kafka(in_kafka: InKafka, rows: dict[str, str], fault: KafkaFault) -> None:
    named = in_kafka.planted.blamed[fault.text]
    found = [Problem(**one) for one in in_kafka.verdict["problems"] if one["id"] == named]
    assert [one.kind for one in found] == ([fault.kind] if fault.kind else [])
    rows[f"{KAFKA_PART}: {fault.text}"] = f"| {fault.text} | {fault.outcome} | {shown(found)} |"


def test_the_table(rows: dict[str, str]) -> None:
    """Of the faults that were planted in this run."""
    lines = []
    parts = {part: [fault.name for fault in faults] for part, faults in FAULTS.items()}
    parts[KAFKA_PART] = [fault.text for fault in KAFKA_FAULTS]
    for part, names in parts.items():
        lines += [f"| **{part}** | | |"]
        lines += [rows.get(f"{part}: {name}", "") for name in names]
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    table, _, behind = rest.partition(END)
    if os.environ.get("SLOTWHEEL_TABLE"):
        table = "\n".join([*HEAD, *lines, ""])
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{behind}")
    assert set(filter(None, lines)) <= set(table.splitlines())
    assert len(table.splitlines()) == len(HEAD) + len(lines)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=" + ".join(one.name for one in pair), marks=marks)
        for at, pair in enumerate(PAIRS)
        for marks in ([pytest.mark.soak] if at % 5 else [],)
    ],
)
def test_two_faults(labs: Labs, tmp_path: Path, pair: tuple[Fault, Fault]) -> None:
    lab = labs.planted(tmp_path / "lab", *pair)
    check(lab, proof_of(lab), *pair)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[pytest.mark.soak] if at % 3 else [])
        for at, fault in enumerate(BY_SPARK)
    ],
)
def test_a_fault_by_spark(spark: Any, labs: Labs, tmp_path: Path, fault: Fault) -> None:
    lab = labs.planted(tmp_path / "lab", fault)
    check(lab, proof_of(lab, spark), fault)


def test_the_run_without_a_fault_by_spark(spark: Any, tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    verdict = prove(spark, find(directories), Options(exactly_once=True, late_ms=3))
    assert verdict.proven
    assert verdict.reasons == []
    assert verdict.counts == WHOLE | {"repeated": 0}
    assert verdict.problems == []
    assert [(pair.equal, pair.different) for pair in verdict.agreement] == [(6000, 0)] * 3
    whole = verdict.lateness[0]
    assert (whole.count, whole.p50, whole.p999, whole.max) == (3588, 3, 3, 3)
    assert {one.kind: one.rows for one in verdict.inputs}["topic"] == 3593
    times = [one for one in verdict.lateness if one.bucket_ms >= 0]
    assert sum(one.count for one in times) == 3588
    assert all(one.bucket_ms % verdict.interval_ms == 0 for one in times)


@pytest.mark.parametrize("name", ["repeat_delivered", "deliver_late"])
def test_it_fails_the_proof_only_if_asked(tmp_path: Path, name: str) -> None:
    run = replayrun.made()
    getattr(replayrun, name)(run)
    verdict = prove_here(find(run.write(tmp_path)), Options())
    assert verdict.proven
    assert verdict.counts.get("repeated", 0) == len(verdict.problems)


def test_nothing_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / "new" / "journal").mkdir(parents=True)
    verdict = prove_here(find([str(tmp_path / "new")]), Options())
    assert not verdict.proven
    assert verdict.reasons == ["nothing to prove: no accepted message was found"]


def test_marks_that_claim_everything_hide_nothing(tmp_path: Path) -> None:
    """The marks of all peers, in journals and checkpoints, say that every row there is has left:
    then those that did not arrive are lost, whatever lies in slot files."""
    run = replayrun.made()
    gone = replayrun.remove_delivered(run)
    replayrun.claim_everything(run)
    verdict = prove_here(find(run.write(tmp_path)), Options(problems_max=3_000))
    assert not verdict.proven
    pending = WHOLE["pending"]
    assert verdict.problem_counts == {"lost": pending + 1}
    assert not verdict.truncated
    assert len(verdict.problems) == pending + 1
    assert run.id_of(gone) in {problem.id for problem in verdict.problems}
    assert verdict.counts["delivered"] == WHOLE["delivered"] - 1
    assert verdict.counts["lost"] == pending + 1


def test_a_standby_that_died_earlier(tmp_path: Path) -> None:
    """Its newest mark is another one of the same epoch, and its journal ends before the others'."""
    run = replayrun.made()
    dead = run.peers[2]
    dead.entries = dead.entries[:-2]
    dead.marks = replace(dead.marks, main=Mark(NOW_MS - 50_000, 0, run.spilled - 1))
    for second in [one for one in dead.archived if one * 1000 >= NOW_MS - 50_000]:
        dead.live[second] = dead.archived.pop(second)
    assert min(dead.live) * 1000 < NOW_MS
    verdict = prove_here(find(run.write(tmp_path)), Options())
    assert verdict.proven, verdict.reasons
    assert verdict.counts == WHOLE


def test_a_record_from_behind_the_end_of_the_log(tmp_path: Path) -> None:
    run = replayrun.made()
    offset = run.rows.num_rows - 1
    for peer in run.peers:
        peer.entries[-1] = peer.entries[-1][:-1]
    run.peers[1].delivered.append((offset, LATER_MS + 60_000))
    found = replace(find(run.write(tmp_path)), made_ms=LATER_MS + 120_000)
    verdict = prove_here(found, Options())
    assert verdict.problem_counts == {"unknown": 1}
    assert verdict.problems[0].id == run.id_of(offset)
    assert f"behind {offset}, where the last journal ends" in verdict.problems[0].text
