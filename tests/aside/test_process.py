"""A process beside this one: what others see of it, how it ends, and what it is started from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slotwheel.aside.process import Aside, AsideEnded
from slotwheel.wheel.errors import NotRunning
from support.handlers import ends, sleeps
from support.waiting import eventually, has_ended


@pytest.fixture
def sleeping() -> Iterator[Aside]:
    aside = Aside("a sleeper", sleeps, "secret-word", {"password": "secret-word"}, nice=0)
    yield aside
    aside.close(0)


def test_what_it_is_given_is_in_no_argument_and_no_variable(sleeping: Aside) -> None:
    assert sleeping.receive() == ("secret-word", {"password": "secret-word"})
    seen = [Path(f"/proc/{sleeping.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    assert b"a sleeper" in seen[0]
    assert all(b"secret-word" not in text for text in seen)


def test_one_that_stands_still_is_ended_by_force(sleeping: Aside) -> None:
    sleeping.receive()
    pid = sleeping.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    sleeping.close(0.1)
    assert not psutil.pid_exists(pid)
    with pytest.raises(NotRunning, match="was closed"):
        sleeping.begin()


def test_one_that_is_closed_while_it_starts_is_ended(
    sleeping: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    closing = threading.Thread(target=sleeping.close, args=(0,))

    def start(*command: Any, **more: Any) -> subprocess.Popen[bytes]:
        closing.start()
        started.append(popen(*command, **more))
        return started[0]

    popen = subprocess.Popen
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", start)
        list(sleeping.messages())
    closing.join()
    assert started[0].poll() is not None
    with pytest.raises(NotRunning, match="was closed"):
        sleeping.receive()


def test_one_that_ended_says_how_and_is_started_again() -> None:
    aside = Aside("a short one", ends, nice=0)
    for starts in (1, 2):
        assert (aside.receive(), aside.starts) == ("begun", starts)
        with pytest.raises(AsideEnded, match="a short one ended with exit code 7"):
            aside.receive()
    aside.close()


_PROGRAM = """
import sys, time
from slotwheel import Received
from slotwheel.consumer.process import HandlerFailed, HandlerProcess

def handler(message):
    if message.value == b"raise":
        raise ValueError("raised")
    time.sleep(600)

{guard}
    process = HandlerProcess(handler)
    for value, limit_s in (b"raise", 60), (b"", 600):
        try:
            if not value:
                print(process.pid, flush=True)
            process.call(Received("work", 0, 0, None, value, [], 0), limit_s)
        except HandlerFailed as failed:
            print(failed, flush=True)
"""


def _program(folder: Path, guard: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(_PROGRAM.format(guard=guard))
    command = [sys.executable, str(folder / "program.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_handler_of_the_program_itself_ends_with_it(tmp_path: Path) -> None:
    with _program(tmp_path, 'if __name__ == "__main__":') as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ValueError: raised\n"
        process = psutil.Process(int(program.stdout.readline()))
        assert not has_ended(process)
        program.kill()
    eventually(lambda: has_ended(process))


def test_a_program_that_would_start_itself_without_end_is_refused(tmp_path: Path) -> None:
    with _program(tmp_path, "if True:") as program:
        printed, errors = program.communicate(timeout=120)
    assert printed.startswith("the handler's process ended: exit code 1\n")
    assert 'begin it with `if __name__ == "__main__":`' in errors
