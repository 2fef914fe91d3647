"""``slotwheel demo-peers`` in a small variant, with real processes: the master killed twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slotwheel.cli.main import run
from slotwheel.delivery.topicreader import TopicReader, topics
from slotwheel.wheel.files import OsFiles

SMALL = ("--messages", "6000", "--kept", "400", "--seconds", "12")
NAMES = ("a", "b", "c")


def start(where: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slotwheel.cli.main", "demo-peers", *arguments]
    return subprocess.Popen(
        command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def numbers_in_topics(data: Path) -> list[int]:
    files = OsFiles(data)
    found: list[int] = []
    for topic in topics(files):
        reader = TopicReader(files, topic)
        for batch in reader.batches():
            found += [int(value[8:]) for value in batch.column("value").to_pylist()]
        reader.close()
    files.close()
    return found


def test_the_demo_proves_itself_in_text_and_in_json(tmp_path: Path) -> None:
    text = start(tmp_path, *SMALL, "--data", "peers")
    machine = start(tmp_path, *SMALL, "--json")
    try:
        output, error = text.communicate(timeout=120)
        assert (text.returncode, error) == (0, ""), output + error
        report, error = machine.communicate(timeout=120)
        assert (machine.returncode, error) == (0, ""), report + error
    finally:
        text.kill()
        machine.kill()
    _check_text(output, tmp_path / "peers")
    _check_json(json.loads(report))


def _check_text(output: str, data: Path) -> None:
    assert "The proof holds." in output
    killed = re.findall(r"SIGKILL to the master, (\w) \(process \d+\)", output)
    assert len(killed) == 2
    values = dict(re.findall(r"^(sent|early|lost) +([\d,]+) ", output, re.MULTILINE))
    assert values == {"sent": "6,400", "early": "0", "lost": "0"}
    assert len(re.findall(r"^failover +[\d,]+ ms ", output, re.MULTILINE)) == 2
    verified = r"^slotwheel verify, peer \w: \d+ ok, 0 invalid"
    assert len(re.findall(verified, output, re.MULTILINE)) == 3
    assert "the peers agree" in output
    # More than one of them has delivered, and together everything that was to come.
    delivered = [numbers_in_topics(data / name) for name in NAMES]
    assert sum(bool(numbers) for numbers in delivered) >= 2
    (said,) = re.findall(r"^delivered +([\d,]+) ", output, re.MULTILINE)
    assert len({n for numbers in delivered for n in numbers}) == int(said.replace(",", ""))


def _check_json(report: dict[str, Any]) -> None:
    assert report["ok"] is True
    assert report["differ"] == {}
    assert (report["lost"], report["early"], report["refused"]) == (0, 0, 0)
    assert report["kept_in_slot_files"] == dict.fromkeys(NAMES, 400)
    assert len(report["failover_ms"]) == len(report["killed"]) == 2


def test_an_interrupt_ends_all_peers(tmp_path: Path) -> None:
    demo = start(tmp_path, "--data", "peers")
    folder = tmp_path / "peers"
    try:
        end = time.monotonic() + 30
        while not all(_listens(folder / name / "node.log") for name in NAMES):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=40)
        assert demo.returncode == 130
    finally:
        demo.kill()
    for name in NAMES:  # each let go of its directory, so it is gone
        holder = int((folder / name / "LOCK").read_text())
        assert not Path(f"/proc/{holder}").exists()


def _listens(log: Path) -> bool:
    return log.exists() and "listening on" in log.read_text()


def test_a_directory_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    assert run(["demo-peers", "--data", str(tmp_path)]) == 1
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
