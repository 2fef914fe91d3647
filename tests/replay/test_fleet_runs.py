"""A fleet is proven as a whole: real wheels, one of which was emptied and taken away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Message
from slotwheel.fleet.fleet import Fleet, receipts_of
from slotwheel.reading.files import Layout
from slotwheel.replay.judging.context import Options
from slotwheel.replay.report.verdict import Verdict
from slotwheel.wheel.topics.topicfile import TOPICS_DIRECTORY
from support.fakefleet import NAMES
from support.nodeprocess import NodeProcess, run_cli
from support.plainproof import prove_here
from support.spark import Replay
from support.waiting import eventually

SENT = 600


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories and receipts of three wheels; ``south`` was drained under load and stopped."""
    root = tmp_path_factory.mktemp("fleet")
    nodes = {
        name: NodeProcess(root / name, "--group", name, "--retain", "1h").start() for name in NAMES
    }
    try:
        wheels = {name: node.address for name, node in nodes.items()}
        with Fleet(wheels, receipts=root / "sent.arrows") as fleet:
            send(fleet, SENT // 2)
            fleet.wheel("south").drain()
            eventually(lambda: "south" not in fleet.turns)
            send(fleet, SENT // 2)
            eventually(lambda: fleet.wheel("south").status()["pending"] == 0)
            nodes["south"].signal()
            of_others = [name for name in NAMES if name != "south"]
            eventually(lambda: not any(fleet.wheel(name).status()["pending"] for name in of_others))
    finally:
        for node in nodes.values():
            node.signal()
    return root


def send(fleet: Fleet, count: int) -> None:
    messages = [
        Message("t", b"x" * 20, key=f"k{n}" if n % 3 else None, delay=0.5 + n % 10 / 10)
        for n in range(count)
    ]
    fleet.send_many(messages).result(30)


@pytest.fixture
def root(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "fleet")


@pytest.fixture(autouse=True)
def without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(layouts: dict[str, Layout], options: Options, *_: object) -> dict[str, Verdict]:
        return {group: prove_here(layout, options) for group, layout in layouts.items()}

    if "spark" not in request.node.name:
        monkeypatch.setattr("slotwheel.cli.replay._prove", prove)


def replayed(root: Path, names: Sequence[str] = NAMES, *more: str) -> tuple[int, dict[str, Any]]:
    receipts = [str(receipts_of(root / "sent.arrows", name)) for name in NAMES]
    given = [word for path in receipts for word in ("--receipts", path)]
    done = run_cli("replay", *(str(root / name) for name in names), *given, "--json", *more)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_whole_is_proven_also_a_wheel_that_was_taken_away(root: Path, tmp_path: Path) -> None:
    code, found = replayed(root, NAMES, "--report", str(tmp_path / "out"))
    assert (code, found["outcome"], found["proven"]) == (0, "proven", True), found
    assert found["counts"]["accepted"] == found["counts"]["delivered"] == SENT
    assert set(found["wheels"]) == set(NAMES)
    assert all(wheel["counts"]["accepted"] for wheel in found["wheels"].values())
    for name in NAMES:
        assert (tmp_path / "out" / name / "report.html").exists()
    done = run_cli("replay", *(str(root / name) for name in NAMES))
    assert done.stdout.startswith("PROVEN\n")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert next(row[-1] for row in rows if row[:1] == ["accepted"]) == f"{SENT}"
    assert "wheel south: PROVEN" in done.stdout


def test_one_spark_proves_all(root: Path, replay: Replay) -> None:
    code, out, err = replay(*(root / name for name in NAMES), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["outcome"], found["counts"]["delivered"]) == ("proven", SENT)


def test_a_wheel_that_is_not_proven_is_named_and_the_others_are_proven(root: Path) -> None:
    shutil.rmtree(root / "south" / TOPICS_DIRECTORY / "t")
    code, found = replayed(root)
    outcomes = {name: wheel["outcome"] for name, wheel in found["wheels"].items()}
    assert outcomes == {"north": "proven", "south": "proven in part", "west": "proven"}
    assert (code, found["outcome"]) == (4, "proven in part")
    # Receipts of another run: what was promised is in no journal.
    shutil.rmtree(root / "west")
    with NodeProcess(root / "west", "--group", "west", "--retain", "1h"):
        pass
    code, found = replayed(root)
    assert (code, found["outcome"]) == (1, "not proven")
    assert found["wheels"]["west"]["outcome"] == "not proven"
    assert found["wheels"]["north"]["outcome"] == "proven"


def test_a_wheel_whose_directory_was_not_given_is_named(root: Path) -> None:
    code, found = replayed(root, ["north", "west"])
    assert (code, found["outcome"]) == (4, "proven in part")
    assert [point["subject"] for point in found["open_points"]] == ["the wheel south"]
    assert set(found["wheels"]) == {"north", "west"}


def test_a_directory_that_is_given_twice_is_refused(root: Path) -> None:
    done = run_cli("replay", str(root / "north"), str(root / "south"), str(root / "north"))
    assert done.returncode == 1
    assert "given twice" in done.stderr


def test_two_wheels_of_one_name_are_not_proven_together(root: Path, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "other", "--group", "north") as node:
        run_cli("send", "t", "x", "--delay", "1h", "--node", node.address)
    done = run_cli("replay", *(str(root / name) for name in NAMES), str(tmp_path / "other"))
    assert done.returncode == 1
    assert "a group of the same name, another key" in done.stdout


def test_several_wheels_are_not_followed_by_one_command(root: Path) -> None:
    done = run_cli("replay", "--follow", str(root / "north"), str(root / "south"))
    assert done.returncode == 2
    assert "--follow watches one wheel, and these are of north, south" in done.stderr
