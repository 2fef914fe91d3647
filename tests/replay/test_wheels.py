"""``slotwheel replay`` of several wheels: each is judged by its own files, and whatever is planted
in one of them is found there and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.client.receiptfile import BatchReceipts, ReceiptFile
from slotwheel.reading.files import Layout
from slotwheel.replay.judging.context import Options
from slotwheel.replay.report.verdict import Verdict
from slotwheel.wheel.digest import digests
from slotwheel.wheel.schema import times
from support import replayrun
from support.nodeprocess import run_cli
from support.plainproof import prove_here

ACCEPTED = 5995
"""Messages of each wheel."""


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes to the verdicts does not change which files are whose."""

    def prove(layouts: dict[str, Layout], options: Options, *_: object) -> dict[str, Verdict]:
        return {group: prove_here(layout, options) for group, layout in layouts.items()}

    monkeypatch.setattr("slotwheel.cli.replay._prove", prove)


def two_wheels() -> tuple[replayrun.Run, replayrun.Run]:
    """``lab`` and ``south``, not written yet."""
    return replayrun.made(), replace(replayrun.made(), group="south", store="store of south")


def judged(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = run_cli("replay", *arguments, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def written(root: Path, *wheels: replayrun.Run) -> list[str]:
    """The directories of all peers of these, below ``root``."""
    return [path for wheel in wheels for path in wheel.write(root / wheel.group)]


def write_receipts(run: replayrun.Run, path: Path, offset: int, group: str) -> str:
    """A receipt by this group of one of the run's messages."""
    assert replayrun.TERMS.mint is not None
    row = run.pick([offset])
    due = times(row, "due")
    file = ReceiptFile(path)
    file.start(lambda _: None)
    file.put(
        BatchReceipts(
            group=group,
            base_offset=offset,
            due=due,
            check=replayrun.TERMS.mint.checks(due, np.array([offset])),
            topic=row.column("topic"),
            digest=digests(*(row.column(n) for n in ("topic", "key", "value", "headers"))),
            sent_ms=1,
            received_ms=2,
        )
    )
    file.close()
    return str(path)


def test_all_are_proven_and_counted_once(tmp_path: Path) -> None:
    lab, south = two_wheels()
    at = lab.a_delivered()
    receipts = [write_receipts(lab, tmp_path / name, at, name) for name in ("lab", "south")]
    directories = written(tmp_path / "data", lab, south)
    code, fleet = judged(*directories, *(f"--receipts={path}" for path in receipts))
    assert (code, fleet["outcome"], fleet["open_points"]) == (0, "proven", [])
    counts = {name: wheel["counts"]["accepted"] for name, wheel in fleet["wheels"].items()}
    assert counts == {"lab": ACCEPTED, "south": ACCEPTED}
    assert fleet["counts"]["accepted"] == 2 * ACCEPTED


def test_what_one_lost_is_found_there_alone(tmp_path: Path) -> None:
    """Both wheels have a message of that offset, and the other's arrival does not stand for it."""
    lab, south = two_wheels()
    lost = replayrun.remove_delivered(south)
    code, fleet = judged(*written(tmp_path, lab, south))
    assert (code, fleet["outcome"], fleet["counts"]["lost"]) == (1, "not proven", 1)
    assert fleet["wheels"]["lab"]["proven"]
    (problem,) = fleet["wheels"]["south"]["problems"]
    assert (problem["kind"], problem["offset"]) == ("lost", lost)
