from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from support import forkserver
from support.nodeprocess import NodeProcess, command_line, environment


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--version",), 0),
        ((), 2),
        (("node",), 2),
        (("status", "--json"), 1),
        (("node", "--data", "here", "--listen", "no address"), 1),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_a_fork_does_what_a_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for start in (forkserver.start, forkserver.execute):
        with Path("out").open("wb") as out, Path("err").open("wb") as err:
            # A variable of its own, and one that is taken away.
            variables = environment(SLOTWHEEL_NODE="127.0.0.1:1")
            variables.pop("HOME", None)
            process = start(command_line(*arguments), out, err, variables)
            assert isinstance(process, forkserver.Forked) == (start is forkserver.start)
            assert process.wait(60) == code
        printed.append((Path("out").read_text(), Path("err").read_text()))
    assert printed[0] == printed[1]
    assert any(printed[0])


def test_a_fork_is_paused_and_killed_by_its_own_id(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "a") as first, NodeProcess(tmp_path / "b") as second:
        assert first.running.pid != second.running.pid
        assert first.running.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            first.running.wait(0.01)
        first.kill()
        assert first.running.returncode == -signal.SIGKILL
        first.running.kill()  # it is gone, and nobody else is meant
        assert first.running.wait() == -signal.SIGKILL, "it is not waited for again"
        assert second.get("/healthz")[0] == 200
        second.signal()
        assert second.running.returncode == 0


def test_a_fork_holds_nothing_of_the_server(tmp_path: Path) -> None:
    held = []
    for name, forked in (("a", True), ("b", False)):
        node = NodeProcess(tmp_path / name)
        node.forked = forked
        with NodeProcess(tmp_path / f"before-{name}"), node:
            links = [Path(one).readlink() for one in Path(f"/proc/{node.running.pid}/fd").iterdir()]
            own = (str(one).replace(str(node.data), "") for one in links)
            held.append(sorted(one.partition(":")[0] for one in own))
    assert held[0] == held[1]


def test_what_only_a_new_program_reads_is_executed(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        for command, variables in (
            (command_line("--version"), {"PYTHONSAFEPATH": "1"}),
            (["sh", "-c", "exit 0", *command_line("--version")], {}),
            (command_line("replay", "--help"), {}),
        ):
            process = forkserver.start(command, log, log, environment(**variables))
            assert not isinstance(process, forkserver.Forked)
            assert process.wait(60) == 0
