"""``slotwheel demo`` in a small variant, with real processes: a node killed and started again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.cli.main import run
from slotwheel.delivery.topicreader import TopicReader, topics
from slotwheel.wheel.files import OsFiles

SMALL = ("--messages", "6000", "--kept", "400", "--seconds", "5")


def start(where: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slotwheel.cli.main", "demo", *arguments]
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
    folders = [tmp_path / "text", tmp_path / "json"]
    for folder in folders:
        folder.mkdir()
    text = start(folders[0], *SMALL)
    machine = start(folders[1], *SMALL, "--json", "--data", "wheel")
    try:
        output, error = text.communicate(timeout=120)
        assert (text.returncode, error) == (0, "")
        report, error = machine.communicate(timeout=120)
        assert (machine.returncode, error) == (0, "")
    finally:
        text.kill()
        machine.kill()
    _check_text(output, folders[0])
    _check_json(json.loads(report), folders[1] / "wheel")


def _check_text(output: str, folder: Path) -> None:
    assert "\x1b" not in output
    assert "\r" not in output
    assert "The proof holds." in output
    assert re.search(r"SIGKILL to the node \(process \d+\)", output)
    assert re.search(r"slotwheel verify: \d+ ok, 0 invalid", output)
    values = dict(re.findall(r"^(sent|early|lost) +([\d,]+) ", output, re.MULTILINE))
    assert values == {"sent": "6,400", "early": "0", "lost": "0"}
    # The line that opens a slot file does.
    (line,) = re.findall(r"^  \S+ -c \"(.*)\"$", output, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, timeout=60, check=True
    )
    assert b"message 0000".hex().upper() in done.stdout
    (data,) = folder.iterdir()
    assert data.name.startswith("slotwheel-demo-")


def _check_json(report: dict[str, object], data: Path) -> None:
    assert report["ok"] is True
    assert report["kept_in_slot_files"] == 400
    assert report["cancelled"] > 0  # type: ignore[operator]
    # Counted once more, by other means.
    numbers = numbers_in_topics(data)
    assert len(numbers) == report["delivered"] + report["repeated"]  # type: ignore[operator]
    assert len(set(numbers)) == report["delivered"]
    assert min(numbers) == 400  # the kept ones come first, and none of them has arrived
    kept: list[int] = []
    for path in (data / "slots").iterdir():
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            kept += [int(value[8:]) for value in stream.read_all()["value"].to_pylist()]
    assert set(range(400)) <= set(kept)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_node_too(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path, "--data", "wheel")
    log = tmp_path / "wheel/node.log"
    try:
        end = time.monotonic() + 30
        while not log.exists() or "listening on" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)
        demo.send_signal(number)
        demo.communicate(timeout=20)
        assert demo.returncode == 130
    finally:
        demo.kill()
    # The node let go of its directory, so it is gone.
    assert run(["verify", str(tmp_path / "wheel"), "--json"]) == 0
    holder = int((tmp_path / "wheel/LOCK").read_text())
    assert not Path(f"/proc/{holder}").exists()


def test_a_directory_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    assert run(["demo", "--data", str(tmp_path)]) == 1
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
