"""A node as a process: signals, and how it ends.

SIGTERM and SIGINT stop it cleanly within two seconds; a second one ends it at once, with 130. While
it is still starting there is nothing to finish, so the first one ends it at once, too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType

from .config import NodeConfig
from .logs import event
from .node import Node

log = logging.getLogger("slotwheel.node")

EXIT_INTERRUPTED = 130


def run(config: NodeConfig) -> None:
    """Run a node until a signal comes. To be called from the main thread.

    Errors: those of ``Node.start``. May end the process itself, when a thread does not stop.
    """
    node = Node(config)
    stop = threading.Event()
    running = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stop.is_set():
            os._exit(EXIT_INTERRUPTED)
        stop.set()
        if not running.is_set():
            os._exit(0)

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        node.start()
        running.set()
        node.run_until(stop)
        event(log, logging.INFO, "stopping")
        if node.stop():
            _end(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(code: int) -> None:
    """End without waiting for threads that do not end."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
