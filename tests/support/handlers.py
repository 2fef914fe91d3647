"""What a process beside another one imports: handlers, and functions that it runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from slotwheel import Received


def dies_or_hangs(message: Received) -> None:
    """Leaves a file for each message that it has processed. At their first attempt 1 kills the
    process, 2 hangs, and 3 raises."""
    number, attempt = int(message.value or b""), message.attempt
    if attempt == 1 and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == 1 and number == 2:
        time.sleep(60)
    if attempt == 1 and number == 3:
        raise ValueError("three")
    folder = next(value for name, value in message.headers if name == "lines")
    assert folder is not None
    (Path(folder.decode()) / f"{number}-{attempt}").touch()


def nothing(message: Received) -> None:
    """All is well."""


def sleeps(line: Connection, *given: object) -> None:
    """Never looks at its line again."""
    line.send(given)
    time.sleep(600)


def ends(line: Connection) -> None:
    line.send("begun")
    sys.exit(7)
