"""``slotwheel replay`` from the outside: its exit codes, and what it prints where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from slotwheel.cli import main
from slotwheel.reading.files import Layout
from slotwheel.replay.judging.context import Options
from slotwheel.replay.report.verdict import Verdict
from support import replayrun
from support.nodeprocess import run_cli, run_process
from support.plainproof import prove_here
from support.spark import Replay


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command says of a verdict does not depend on who has come to it."""

    def prove(layouts: dict[str, Layout], options: Options, *_: object) -> dict[str, Verdict]:
        return {group: prove_here(layout, options) for group, layout in layouts.items()}

    monkeypatch.setattr("slotwheel.cli.replay._prove", prove)


def test_a_proven_run(replay: Replay, tmp_path: Path) -> None:
    """With a Spark of its own: test_real_kafka.py."""
    directories = replayrun.made().write(tmp_path)
    code, out, err = replay(*directories, "--report", tmp_path / "out", "--json")
    assert code == 0, err
    verdict = json.loads(out)
    assert (verdict["outcome"], verdict["proven"]) == ("proven", True)
    assert verdict["counts"]["accepted"] == 5995
    assert verdict["problems"] == []
    assert json.loads((tmp_path / "out/report.json").read_text("utf-8"))["proven"] is True
    assert "Proven" in (tmp_path / "out/report.html").read_text("utf-8")


@pytest.mark.usefixtures("without_spark")
def test_a_lost_message(tmp_path: Path) -> None:
    run = replayrun.made()
    offset = replayrun.remove_delivered(run)
    done = run_cli("replay", *run.write(tmp_path))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("NOT PROVEN\n  lost: 1\n")
    assert f"lost: {run.id_of(offset)}: accepted for orders, and did not arrive" in done.stdout


@pytest.mark.usefixtures("without_spark")
def test_a_run_of_which_a_part_was_not_kept(tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    for directory in directories:
        shutil.rmtree(Path(directory) / "archive")
    done = run_cli("replay", *directories)
    assert done.returncode == 4, done.stderr
    assert done.stdout.startswith("PROVEN IN PART\n  not decided: ")
    assert "--retain" in done.stdout


def test_a_variable_for_the_nodes_kafka_client_is_not_for_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWHEEL_KAFKA", "linger_ms=5")
    assert main.run(["replay", str(tmp_path / "nowhere")]) == 1
    monkeypatch.setenv("SLOTWHEEL_REPLAY_KAFKA", "linger_ms=5")
    assert main.run(["replay", str(tmp_path / "nowhere")]) == 2


def test_what_is_not_there(tmp_path: Path) -> None:
    done = run_cli("replay", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "no such directory" in done.stderr
    assert "--data" in done.stderr
    (tmp_path / "one").mkdir()
    done = run_cli("replay", str(tmp_path / "one"), str(tmp_path / "one"))
    assert done.returncode == 1
    assert "given twice" in done.stderr
    done = run_cli("replay", str(tmp_path / "one"), "--dump", str(tmp_path / "dump.arrow"))
    assert done.returncode == 1
    assert "no such file" in done.stderr


def test_wrong_usage(tmp_path: Path) -> None:
    day = ("--from", "2026-11-21T00:00:00Z", "--to", "2026-11-20T00:00:00Z")
    for arguments, text in (
        ((), "Missing argument"),
        ((str(tmp_path), *day), "--from is not before --to"),
        ((str(tmp_path), "--interval", "0.1ms"), "shorter than a millisecond"),
        ((str(tmp_path), "--late-ms", "-1"), "--late-ms"),
    ):
        done = run_cli("replay", *arguments)
        assert done.returncode == 2, done.stderr
        assert text in done.stderr


def test_a_java_that_is_not_there_or_does_not_start(tmp_path: Path) -> None:
    done = run_process("replay", str(tmp_path), JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "no bin/java where JAVA_HOME says" in done.stderr
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this one is too old >&2\nexit 1\n", "utf-8")
    java.chmod(0o755)
    done = run_process("replay", str(tmp_path), JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "this one is too old" in done.stderr
    assert "Spark's Java process did not start" in done.stderr
    assert "defect" not in done.stderr
