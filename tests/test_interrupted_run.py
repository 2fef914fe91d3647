"""A run of tests that is ended early leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import eventually
from support.warden import MARK, processes

_TEST = """
import time
from pathlib import Path
from support.nodeprocess import NodeProcess

def test_that_takes_long(tmp_path):
    node = NodeProcess(tmp_path / "data").start()
    Path(__file__).with_name("started").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGKILL, 0)])
def test_nothing_is_left_of_a_run_that_is_ended(
    number: signal.Signals, workers: int, tmp_path: Path
) -> None:
    (tmp_path / "test_long.py").write_text(_TEST)
    begun = tmp_path / "started"
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), "-p", "conftest", "-n", str(workers)]
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            eventually(lambda: begun.exists() or run.poll() is not None)
            mark = _mark_of(run.pid)
            before = processes(mark)
            assert len(before) >= workers + 1, before
            run.send_signal(number)
            said, _ = run.communicate(timeout=60)
        finally:
            run.kill()
    eventually(lambda: not processes(mark))
    if number is not signal.SIGKILL:
        assert "KeyboardInterrupt" in said, said


def _mark_of(run: int) -> str:
    """What the processes that a run started are marked by."""
    for place in Path(f"/proc/{run}/task/{run}/children").read_text().split():
        for entry in Path(f"/proc/{place}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.decode(errors="replace").partition("=")
            if name == MARK and value != os.environ.get(MARK):
                return value
    raise AssertionError("no process of the run is marked")
