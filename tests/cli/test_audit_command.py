"""``slotwheel replay --follow`` from the outside. What it finds: tests/replay/test_follow.py."""

from __future__ import annotations

import fcntl
from pathlib import Path

from support.nodeprocess import run_cli


def test_wrong_usage(tmp_path: Path) -> None:
    path = str(tmp_path)
    for arguments, text in (
        ((path, "--state", path), "belong to --follow"),
        ((path, "--for", "10s"), "belong to --follow"),
        ((path, "--follow", "--report", path), "not for --follow"),
        ((path, "--follow", "--receipts", "receipts.arrow"), "not for --follow"),
        ((path, "--follow", "--kafka", "127.0.0.1:9"), "needs each --topic"),
        ((path, "--follow", "--window", "soon"), "not a time span"),
    ):
        done = run_cli("replay", *arguments)
        assert done.returncode == 2, done.stderr
        assert text in done.stderr


def test_what_is_not_there(tmp_path: Path) -> None:
    done = run_cli("replay", str(tmp_path / "nowhere"), "--follow")
    assert done.returncode == 1
    assert "no such directory" in done.stderr


def test_two_audits_do_not_share_a_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_cli("replay", str(tmp_path), "--follow", "--state", str(state))
    assert done.returncode == 1
    assert "another audit uses this --state" in done.stderr
