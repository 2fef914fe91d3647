"""Ends what a run of tests has left behind, however the run ended.

Theory: a run that is interrupted kills its workers before they tear anything down, and a run that
is killed tears nothing down at all. Their nodes, brokers and browsers would go on for ever, hold
memory, and make the next run slow. So each run is marked by a variable of its environment, which
all processes that it starts inherit. A process of its own, the warden, outlives the run: it kills
every process that still has the mark, and removes the network namespaces and disks of the run.

The warden is started by ``Warden`` in the process that the user started, and runs this file.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "RUN_OF_SLOTWHEEL_TESTS"
"""The variable whose value is the run's own; the processes of a run within a run have another."""
_LOOK_EVERY_S = 0.5
_CLEAN_S = 10.0


class Warden:
    """Watches this process from construction on."""

    def __init__(self) -> None:
        self._outer = os.environ.get(MARK)
        self.mark = os.environ[MARK] = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, __file__, self.mark, str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run
            env={key: value for key, value in os.environ.items() if key != MARK},
        )

    def close(self) -> None:
        """Return when nothing of the run is left."""
        if self._outer is not None:
            os.environ[MARK] = self._outer
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(2 * _CLEAN_S)


def processes(mark: str) -> list[int]:
    """The ids of all processes of a run that this user may look at."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
    return found


def _main(mark: str, run: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The pipe ends with the run, unless a process that it forked holds it, too.
    while os.getppid() == run and not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        pass
    end = time.monotonic() + _CLEAN_S
    while left := [pid for pid in processes(mark) if pid != run]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= end:
            break
        time.sleep(0.02)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support.namespaces import remove_abandoned

    remove_abandoned()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
