"""An audit in a process of its own, for programs that do other things meanwhile.

Theory: to follow files and topics takes processor time all the while, so it is done in a process of
low priority, and what it finds comes through a pipe. The process ends when the pipe does, however
its parent ends; one that has ended is started again, and begins anew. Until then, and when the
audit has ended, the last report is a problem.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Event, Thread

from ...wheel.errors import SlotwheelError
from ...wheel.withoutpandas import hide_pandas
from .watching import STEP_S, AuditReport, AuditSettings, AuditWatch, FaultLog

_log = logging.getLogger("slotwheel.audit")

NICE = 10
"""As of a search: how much lower the process's priority is."""
_AGAIN_S = 2.0
_END_S = 2.0


class AuditProcess:
    """``report``: the newest; None: there is none yet. Thread-safe. Each fault is logged once."""

    def __init__(self, settings: AuditSettings, *, nice: int = NICE) -> None:
        self._settings, self._nice = settings, nice
        self._closing = Event()
        self.report: AuditReport | None = None
        self._before: AuditReport | None = None
        """What the processes before this one have found."""
        self._thread = Thread(target=self._run, name="slotwheel-audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        self._thread.join(2 * _END_S)

    def _run(self) -> None:
        context = multiprocessing.get_context("spawn")  # locks of threads stay locked in a fork
        while not self._closing.is_set():
            near, far = context.Pipe(duplex=False)
            process = context.Process(
                target=_audit, args=(self._settings, self._nice, far), daemon=True
            )
            try:
                process.start()
                far.close()
                self._receive(near)
            except (EOFError, OSError):
                _log.warning("audit: its process has ended, and is started again")
            except Exception:  # a defect of ours must not end the audit unseen
                _log.exception("audit: a report could not be taken; its process is started again")
            near.close()
            if process.pid is not None:
                process.join(_END_S)
                if process.is_alive():
                    process.kill()
            ended = self._ended("the audit's process has ended, and is started again")
            self._before = ended.forgotten()
            self._closing.wait(_AGAIN_S)
        self._ended("the audit has ended")

    def _ended(self, problem: str) -> AuditReport:
        """What was found so far, which nothing follows now."""
        self.report = replace(self.report or _empty(), problem=problem)
        return self.report

    def _receive(self, near: Connection) -> None:
        """Errors: ``EOFError``: the process has ended."""
        faults, problem = FaultLog(), ""
        while not self._closing.is_set():
            if near.poll(0.2):
                report: AuditReport = near.recv()
                if self._before is not None:
                    report = report.following(self._before)
                faults.note(report)
                if report.problem not in ("", problem):
                    _log.warning("audit: %s", report.problem)
                problem = report.problem
                self.report = report


def _audit(settings: AuditSettings, nice: int, far: Connection) -> None:
    """In the process: send a report twice a second until nobody is there any more."""
    hide_pandas()
    os.nice(nice)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the whole group; it ends behind us
    try:
        with _opened(settings, far.send) as watch:
            while True:
                far.send(watch.step())
                time.sleep(STEP_S)
    except BrokenPipeError:
        return


def _opened(settings: AuditSettings, send: Callable[[AuditReport], None]) -> AuditWatch:
    """Wait until everything is there."""
    begun = _empty()
    while True:
        try:
            return AuditWatch(settings)
        except (SlotwheelError, OSError) as error:
            send(replace(begun, problem=str(error)))
            time.sleep(_AGAIN_S)


def _empty() -> AuditReport:
    """Nothing was read yet."""
    now_ms = time.time_ns() // 1_000_000
    return AuditReport(now_ms, now_ms, [], {}, {})
