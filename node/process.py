"""A node as a process: it runs until a signal.

SIGTERM and SIGINT stop it cleanly within two seconds, four with a gateway; a second one ends it at
once, with 130. A node that is starting has nothing to finish, so the first one ends it at once.

A handler may interrupt any code, also another handler, so it acquires no lock: it only counts. The
main thread waits for a byte of Python's wake-up descriptor and not for an interruption: the kernel
may deliver the signal to any thread, and does so after a pause (SIGSTOP, SIGCONT).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

from ..wheel import compute
from . import budget, descriptors, memory
from .config import NodeConfig
from .logs import event
from .node import Node

log = logging.getLogger("slotwheel.node")

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: NodeConfig) -> None:
    """Run a node until a signal. Call it in the main thread.

    Errors: those of ``Node.start``. May end the process itself, when a thread does not stop.
    """
    woken, wake = os.pipe()
    seen: list[int] = []
    running = False

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        seen.append(number)
        if len(seen) > 1:
            os._exit(EXIT_INTERRUPTED)
        if not running:
            os._exit(0)

    os.set_blocking(wake, False)
    wake_before = signal.set_wakeup_fd(wake)
    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        memory.set_up(scarce=budget.is_scarce(config.memory, gateway=config.http is not None))
        descriptors.raise_limit()
        node = Node(config)
        node.start()
        running = True
        compute.load()  # loaded with the first message, it would make that one late
        while not seen:
            os.read(woken, 1)
        event(log, logging.INFO, "stopping", signal=signal.Signals(seen[0]).name)
        if node.stop():
            _end(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wake_before)
        os.close(woken)
        os.close(wake)


def _end(code: int) -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
