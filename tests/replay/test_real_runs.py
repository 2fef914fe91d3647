"""Runs with real processes that are killed, proven afterwards from what they left behind.

Each run has an account of its own, made by other means; the proof must come to the same numbers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.report.verdict import Outcome, Verdict
from slotwheel.wheel.journal.segment import index_of
from support.arrivals import EmbeddedArrivals
from support.killing import Killing
from support.nodeprocess import command_line, environment

TOPICS = ["one", "two", "three"]


def proof_of(spark: Any, receipts: Path | None, *directories: Path) -> Verdict:
    receipt_files = [] if receipts is None else [str(receipts)]
    layout = find([str(path) for path in directories], receipts=receipt_files)
    return prove(spark, layout, Options())


def run_demo(data: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        command_line("demo", "--data", data, "--json", *options),
        capture_output=True,
        timeout=180,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr.decode()
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def same_account(verdict: Verdict, account: dict[str, Any], kept: int) -> None:
    assert verdict.proven, verdict.reasons
    counts = verdict.counts
    assert counts["accepted"] == account["sent"]
    assert counts["delivered"] == account["delivered"]
    assert counts["cancelled"] == account["cancelled"]
    assert counts.get("repeated", 0) == account["repeated"]
    assert counts["pending"] == kept
    assert counts["lost"] == counts["undecided"] == counts.get("unaccounted", 0) == 0


def test_the_demo(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "demo"
    options = ("--messages", "6000", "--kept", "400", "--seconds", "5")
    account = run_demo(data, *options)
    verdict = proof_of(spark, data / "receipts.arrows", data)
    same_account(verdict, account, 400)
    assert "receipts" in {one.kind for one in verdict.inputs}


def test_the_demo_with_peers(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "demo"
    options = ("--messages", "6000", "--kept", "400", "--seconds", "9")
    account = run_demo(data, "--peers", "3", *options)
    verdict = proof_of(spark, data / "receipts.arrows", *(data / name for name in "abc"))
    same_account(verdict, account, 400)
    assert [pair.different for pair in verdict.agreement] == [0, 0, 0]
    assert min(pair.equal for pair in verdict.agreement) >= account["sent"]


def test_a_node_killed_again_and_again(
    spark: Any, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Most of what was accepted is in the archive by then; the proof needs it, and is exact."""
    data, receipts = tmp_path / "data", tmp_path / "receipts.arrows"
    options = ("--retain", "1h", "--segment-bytes", "256K", "--tail-age", "500ms")
    killing = Killing(data, TOPICS, 7, *options, receipts=receipts)
    with EmbeddedArrivals([data], TOPICS) as arrived:
        report = killing.run(8, arrived.look)
    live = min(index_of(path.name) for path in (data / "journal").glob("*.journal"))
    assert live > 1, "no segment was dropped: the run shows nothing of the archive"
    verdict = proof_of(spark, receipts, data)
    figure(f"{report.line()}; proven from {sum(one.files for one in verdict.inputs)} files")
    assert verdict.proven, verdict.reasons
    assert verdict.counts["accepted"] == verdict.counts["delivered"] == report.sent
    assert verdict.counts.get("repeated", 0) == report.repeated
    assert verdict.counts.get("unaccounted", 0) == 0
    kinds = {one.kind for one in verdict.inputs}
    assert {"archived journal", "archived slot", "receipts", "topic"} <= kinds

    # Without receipts and archive it is not proven, and not denied: it cannot be told.
    shutil.rmtree(data / "archive")
    without = proof_of(spark, None, data)
    assert without.counts["accepted"] < report.sent
    assert without.counts["lost"] == 0
    assert without.counts["unaccounted"] > 0
    assert without.outcome is not Outcome.PROVEN
    assert " of offsets 0 to " in without.open_points[0].subject
    # With the receipts alone, each message is still held against what arrived.
    receipts_alone = proof_of(spark, receipts, data)
    assert receipts_alone.proven, receipts_alone.reasons
    assert receipts_alone.counts["accepted"] == report.sent
