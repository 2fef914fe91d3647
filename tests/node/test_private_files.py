"""Who may read what a node and its gateway write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotwheel import Client, Message
from support.nodeprocess import NodeProcess
from support.waiting import eventually


@pytest.mark.parametrize(("options", "mode"), [((), 0o700), (("--data-mode", "0750"), 0o750)])
def test_nobody_else_may_read_the_files(
    tmp_path: Path, options: tuple[str, ...], mode: int
) -> None:
    """Also where a directory is there that everybody may read."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    more = ["--http", "127.0.0.1:0", "--trace-retain", "1h", "--tail-age", "100ms"]
    old = os.umask(0o022)
    try:
        with NodeProcess(data, *more, "--tail-keep", "0s", *options) as node:
            with Client(node.address) as client:
                client.send(Message("orders", b"at once", delay=0)).id  # noqa: B018
                client.send(Message("orders", b"later", delay=600)).id  # noqa: B018
            folders = [data / name for name in ("slots", "topics/orders", "departures")]
            eventually(lambda: all(any(one.glob("*")) for one in folders))
    finally:
        os.umask(old)
    paths = [data, *data.rglob("*")]
    assert len(paths) > 10
    for path in paths:
        found = path.stat().st_mode & 0o777
        assert found & ~mode == 0, f"{path}: {found:o}"
        assert found & mode == (mode if path.is_dir() else mode & 0o666), f"{path}: {found:o}"


def test_what_any_command_writes_is_nobody_elses() -> None:
    code = """
import os
from slotwheel.cli import main
os.umask(0o022)
main.run = lambda arguments: print(f"{os.umask(0):o}")
main.main(["replay"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "77\n"
