"""The program of a process beside another one, which ``aside/process.py`` starts.

It is run by its file's path, as maybe only the parent knows where this package is found; it sends
its ``sys.path``.

Standard input is the line to the parent. Its end is a SIGTERM: however the parent ends, no process
stays behind that holds a port or a lock, also while a function runs that never looks at the line.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from multiprocessing import spawn
from multiprocessing.connection import Connection
from threading import Thread


def begin() -> None:
    line = Connection(os.dup(0))
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the whole group; we end behind it
    Thread(target=_end_with, args=(line.fileno(),), daemon=True).start()
    try:
        path, nice, program = line.recv()
        os.nice(nice)
        sys.path[:] = path
        from slotwheel.aside import process

        if program is None:
            from slotwheel.wheel.withoutpandas import hide_pandas

            hide_pandas()
        else:
            process.preparing = True
            spawn.prepare(program)
            process.preparing = False
        function, given = line.recv()
        function(line, *given)
    except (EOFError, ConnectionError):
        return  # the parent is gone


def _end_with(line: int) -> None:
    poll = select.poll()
    poll.register(line, 0)  # poll reports a hang-up in any case
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    begin()
