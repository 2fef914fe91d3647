"""``slotwheel demo`` in a small variant, with real processes: alone, and three peers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from slotwheel.cli.demo.story import rows_so_far
from slotwheel.cli.main import run
from slotwheel.wheel.slots.slot import path_of
from support.arrivals import numbers_in_topics
from support.nodeprocess import command_line
from support.waiting import PATIENCE_S

SMALL = ("--messages", "6000", "--kept", "400")
ALONE = (*SMALL, "--seconds", "6")
THREE = ("--peers", "3", *SMALL, "--seconds", "12")


def start(where: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line("demo", *arguments),
        cwd=where,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def folders(data: Path, names: str) -> list[Path]:
    return [data / name for name in names] or [data]


def test_the_demo_proves_itself_in_text_and_by_tls(tmp_path: Path) -> None:
    """In JSON, and without TLS: tests/replay/test_real_runs.py."""
    text = start(tmp_path, "--tls", *THREE)
    try:
        output, error = text.communicate(timeout=120)
        assert (text.returncode, error) == (0, ""), output + error
    finally:
        text.kill()
    (data,) = tmp_path.iterdir()
    assert data.name.startswith("slotwheel-demo-")
    _check_text(output, folders(data, "abc"))
    made = data / "secured"
    assert {path.stat().st_mode & 0o077 for path in (made, *made.iterdir())} <= {0, 0o044}
    assert not [path for path in made.glob("*.key") if path.stat().st_mode & 0o077]
    assert not list(made.glob("nodes.key")) + list(made.glob("peers.key"))
    # The line that looks at them by hand is one that works, as far as nobody listens any more.
    (by_hand,) = re.findall(r"^with TLS; while they run: slotwheel (.+)$", output, re.MULTILINE)
    looked = run([*shlex.split(by_hand), "--timeout", "100ms"])
    assert looked == 1


def test_the_wheels_of_a_fleet_prove_themselves_each_exactly_once(tmp_path: Path) -> None:
    text = start(tmp_path, "--wheels", "2", *ALONE)
    try:
        output, error = text.communicate(timeout=120)
        assert text.returncode == 0, output + error
    finally:
        text.kill()
    (data,) = tmp_path.iterdir()
    _check_text(output, [data / "w1", data / "w2"])
    assert re.search(r"^repeated +0 +exactly once", output, re.MULTILINE)
    numbers = [numbers_in_topics(data / name) for name in ("w1", "w2")]
    assert not set(numbers[0]) & set(numbers[1])
    for options in (("--peers", "3"), ("--tls",), ("--stay",)):
        assert run(["demo", "--wheels", "2", *options]) == 2


def test_without_openssl_the_demo_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["demo", "--tls", "--data", str(tmp_path / "data")]) == 1
    assert "Install the package openssl" in capsys.readouterr().err


def _check_text(output: str, data: list[Path]) -> None:
    assert "\x1b" not in output
    assert "\r" not in output
    assert "The proof holds." in output
    killed = r"SIGKILL to (?:the node|the master, \w|the wheel \w+) \(process \d+\)"
    assert len(re.findall(killed, output)) == 2
    values = dict(re.findall(r"^(sent|early|lost) +([\d,]+) ", output, re.MULTILINE))
    assert values == {"sent": "6,400", "early": "0", "lost": "0"}
    assert len(re.findall(r"^outage +[\d,]+ ms ", output, re.MULTILINE)) == 2
    verified = re.findall(r"^slotwheel verify (.+): \d+ ok, 0 invalid$", output, re.MULTILINE)
    assert verified == [str(path) for path in data]
    are_peers = len(data) > 1 and "the wheel" not in output
    assert ("the peers agree" in output) == are_peers
    # More than one of several has delivered, and together everything that was to come.
    delivered = [numbers_in_topics(path) for path in data]
    assert sum(bool(numbers) for numbers in delivered) >= min(2, len(data))
    (said,) = re.findall(r"^delivered +([\d,]+) ", output, re.MULTILINE)
    assert len({n for numbers in delivered for n in numbers}) == int(said.replace(",", ""))
    # The line that opens a slot file does.
    (line,) = re.findall(r"^  \S+ -c \"(.*)\"$", output, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, timeout=60, check=True
    )
    assert b"message 0000".hex().upper() in done.stdout


def test_alone_it_proves_itself_too_and_stays_with_a_console_until_it_is_interrupted(
    tmp_path: Path,
) -> None:
    demo = start(tmp_path, "--data", "data", "--stay", *ALONE)
    assert demo.stdout is not None
    try:
        shown = ""
        while not (found := re.search(r"^The console: (\S+/console)", shown, re.MULTILINE)):
            line = demo.stdout.readline()
            assert line, shown + demo.communicate()[1]
            shown += line
        _check_text(shown, [tmp_path / "data"])
        page = httpx.get(f"{found[1]}?whole=true", timeout=60)
        assert page.status_code == 200
        assert "400</strong> messages wait" in page.text
        demo.send_signal(signal.SIGINT)
        _, error = demo.communicate(timeout=PATIENCE_S)
        assert (demo.returncode, error) == (0, "")
    finally:
        demo.kill()
    holder = int((tmp_path / "data" / "LOCK").read_text())
    assert not Path(f"/proc/{holder}").exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(found[1])


@pytest.mark.parametrize(
    ("number", "options", "names"),
    [(signal.SIGTERM, (), ""), (signal.SIGINT, ("--peers", "3"), "abc")],
)
def test_an_interrupt_ends_the_nodes_too(
    tmp_path: Path, number: signal.Signals, options: tuple[str, ...], names: str
) -> None:
    demo = start(tmp_path, "--data", "data", *options)
    data = folders(tmp_path / "data", names)
    try:
        end = time.monotonic() + PATIENCE_S
        while not all(_listens(path / "node.log") for path in data):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)
        demo.send_signal(number)
        demo.communicate(timeout=PATIENCE_S)
        assert demo.returncode == 130
    finally:
        demo.kill()
    for path in data:  # each let go of its directory, so it is gone
        assert run(["verify", str(path), "--json"]) == 0
        holder = int((path / "LOCK").read_text())
        assert not Path(f"/proc/{holder}").exists()


def _listens(log: Path) -> bool:
    return log.exists() and "listening on" in log.read_text()


@pytest.mark.parametrize("missing", [0, 1, 8, 100, 300, 1_000])
def test_kept_messages_are_counted_beside_a_node_that_writes(tmp_path: Path, missing: int) -> None:
    path = tmp_path / path_of(7)
    path.parent.mkdir()
    batch = pa.record_batch({"offset": pa.array(range(50))})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)
        nbytes = file.tell()
    os.truncate(path, nbytes - missing)
    assert rows_so_far(tmp_path, [7]) == (0 if missing else 100)


def test_a_directory_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    assert run(["demo", "--data", str(tmp_path)]) == 1
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
