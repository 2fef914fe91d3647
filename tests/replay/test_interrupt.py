"""Ctrl-C ends a proof at once, whatever it is doing, and nothing of Spark stays behind."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from support import replayrun
from support.nodeprocess import command_line, environment
from support.waiting import PATIENCE_S

ENDS_S = 15.0


STARTING = "pyspark-shell"
"""Spark's Java process is there."""
WORKING = "slotwheel.replay.daemon"
"""It has started Python, to run tasks."""


@pytest.mark.parametrize("moment", [STARTING, WORKING])
def test_an_interrupt(tmp_path: Path, moment: str) -> None:
    peers = replayrun.made().write(tmp_path)
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command_line("replay", *peers, "--master", "local[2]"),
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=environment(TMPDIR=str(tmp_path)),
        )
    try:
        started = wait_for(process, moment)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait(ENDS_S) == 130, errors.read_text()
        _, alive = psutil.wait_procs(started, ENDS_S - (time.monotonic() - began))
        assert not alive
        assert "Traceback" not in errors.read_text()
        assert not list(tmp_path.glob("slotwheel-replay-*"))
    finally:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], moment: str) -> list[psutil.Process]:
    """All processes it has started, when one of them has that in its command line."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None
        started = psutil.Process(process.pid).children(recursive=True)
        if any(moment in command_of(one) for one in started):
            return started
        time.sleep(0.1)
    raise AssertionError(f"not so within {PATIENCE_S} s")


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return ""
