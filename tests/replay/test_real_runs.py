"""Runs with real processes that are killed, proven afterwards from what they left behind.

Each run has an account of its own, made by other means; the proof must come to the same numbers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.report.verdict import Outcome, Verdict
from slotwheel.wheel.journal.segment import index_of
from support.arrivals import numbers_in_topics
from support.nodeprocess import run_process
from support.plainproof import prove_here
from support.scenario import Scenario

TOPICS = ["one", "two", "three"]


def proof_of(spark: Any, receipts: Path | None, *directories: Path) -> Verdict:
    """``spark``: None: without it."""
    receipt_files = [] if receipts is None else [str(receipts)]
    layout = find([str(path) for path in directories], receipts=receipt_files)
    return prove_here(layout, Options()) if spark is None else prove(spark, layout, Options())


def run_demo(data: Path, *options: str) -> dict[str, Any]:
    done = run_process("demo", "--data", data, "--json", *options, timeout_s=180)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def check_report(report: dict[str, Any], data: list[Path], names: str) -> None:
    """Against what stands in the directories, counted by other means than Spark."""
    assert report["ok"] is True
    assert report["differ"] == {}
    assert (report["lost"], report["early"], report["refused"]) == (0, 0, 0)
    assert report["kept_in_slot_files"] == dict.fromkeys(names or ["node"], 400)
    assert report["cancelled"] > 0
    assert len(report["outages"]) == 2
    assert {one["killed"] for one in report["outages"]} <= set(report["verify"])
    numbers = [number for path in data for number in numbers_in_topics(path)]
    assert len(numbers) == report["delivered"] + report["repeated"]
    assert len(set(numbers)) == report["delivered"]
    assert min(numbers) == 400  # the kept ones come first, and none of them has arrived
    for one in data:
        kept: list[int] = []
        for path in (one / "slots").iterdir():
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                values = stream.read_all()["value"].to_pylist()
                kept += [int(value[8:]) for value in values if value is not None]  # no cancels
        assert set(range(400)) <= set(kept)


def same_account(verdict: Verdict, account: dict[str, Any], kept: int) -> None:
    assert verdict.proven, verdict.reasons
    counts = verdict.counts
    assert counts["accepted"] == account["sent"]
    assert counts["delivered"] == account["delivered"]
    assert counts["cancelled"] == account["cancelled"]
    assert counts.get("repeated", 0) == account["repeated"]
    assert counts["pending"] == kept
    assert counts["lost"] == counts["undecided"] == counts.get("unaccounted", 0) == 0


@pytest.mark.soak
def test_the_demo(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "demo"
    options = ("--messages", "6000", "--kept", "400", "--seconds", "5")
    account = run_demo(data, *options)
    check_report(account, [data], "")
    verdict = proof_of(spark, data / "receipts.arrows", data)
    same_account(verdict, account, 400)
    assert "receipts" in {one.kind for one in verdict.inputs}


@pytest.mark.soak
def test_the_demo_with_peers(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "demo"
    options = ("--messages", "6000", "--kept", "400", "--seconds", "9")
    account = run_demo(data, "--peers", "3", *options)
    peers = [data / name for name in "abc"]
    check_report(account, peers, "abc")
    verdict = proof_of(spark, data / "receipts.arrows", *peers)
    same_account(verdict, account, 400)
    assert [pair.different for pair in verdict.agreement] == [0, 0, 0]
    assert min(pair.equal for pair in verdict.agreement) >= account["sent"]


def test_a_node_killed_again_and_again(
    spark: Any, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Most of what was accepted is in the archive by then; the proof needs it, and is exact."""
    receipts = tmp_path / "receipts.arrows"
    options = ("--retain", "1h", "--segment-bytes", "256K", "--tail-age", "500ms")
    with Scenario(tmp_path, TOPICS, *options, seed=7) as scene:
        scene.send(receipts=receipts)
        scene.kill_alone(5)
        report = scene.finish()
        scene.check_agreement()
    assert report.violations() == {}
    data = scene.node.data
    live = min(index_of(path.name) for path in (data / "journal").glob("*.journal"))
    assert live > 1, "no segment was dropped: the run shows nothing of the archive"
    verdict = proof_of(spark, receipts, data)
    figure(f"{report.line()}; proven from {sum(one.files for one in verdict.inputs)} files")
    assert verdict.proven, verdict.reasons
    assert verdict.counts["accepted"] == verdict.counts["delivered"] == report.promised
    assert verdict.counts.get("repeated", 0) == report.repeated
    assert verdict.counts.get("unaccounted", 0) == 0
    kinds = {one.kind for one in verdict.inputs}
    assert {"archived journal", "archived slot", "receipts", "topic"} <= kinds

    # Without receipts and archive it is not proven, and not denied: it cannot be told.
    shutil.rmtree(data / "archive")
    without = proof_of(None, None, data)
    assert without.counts["accepted"] < report.promised
    assert without.counts["lost"] == 0
    assert without.counts["unaccounted"] > 0
    assert without.outcome is not Outcome.PROVEN
    assert " of offsets 0 to " in without.open_points[0].subject
    # With the receipts alone, each message is still held against what arrived.
    receipts_alone = proof_of(None, receipts, data)
    assert receipts_alone.proven, receipts_alone.reasons
    assert receipts_alone.counts["accepted"] == report.promised
