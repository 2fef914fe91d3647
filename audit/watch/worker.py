"""An audit in a process of its own, for programs that do other things meanwhile.

Theory: to follow files and topics takes processor time all the while, so a process of low priority
does it, and sends reports by a pipe. A process that has ended is started again, and begins anew.
Until its first report, and when the audit has ended, the last report has that as its ``problem``,
or it would look like one of now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Thread

from ...aside.process import Aside
from ...wheel.errors import NotRunning, SlotwheelError
from .watching import STEP_S, AuditReport, AuditSettings, AuditWatch, FaultLog

_log = logging.getLogger("slotwheel.audit")

_AGAIN_S = 2.0
_END_S = 2.0


class AuditProcess:
    """Runs an audit in a process of its own, and logs each fault once. ``report``: the newest one;
    None: there is none yet. Thread-safe."""

    def __init__(self, settings: AuditSettings) -> None:
        self.report: AuditReport | None = None
        self._aside = Aside("the audit's process", _audit, settings, again_s=(_AGAIN_S, _AGAIN_S))
        self._thread = Thread(target=self._run, name="slotwheel-audit", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._aside.pid

    def close(self) -> None:
        self._aside.close()
        self._thread.join(_END_S)

    def _run(self) -> None:
        before: AuditReport | None = None
        faults = FaultLog()
        for report in self._aside.messages():
            if isinstance(report, NotRunning):
                _log.warning("audit: %s", report)
                ended = self._ended("the audit's process has ended, and is started again")
                before, faults = ended.forgotten(), FaultLog()
                continue
            try:
                self._take(report if before is None else report.following(before), faults)
            except Exception:  # a defect of ours must not end the audit unseen
                _log.exception("audit: a report could not be taken; its process is started again")
                self._aside.kill()
        self._ended("the audit has ended")

    def _take(self, report: AuditReport, faults: FaultLog) -> None:
        faults.note(report)
        problem_before = "" if self.report is None else self.report.problem
        if report.problem not in ("", problem_before):
            _log.warning("audit: %s", report.problem)
        self.report = report

    def _ended(self, problem: str) -> AuditReport:
        """Put the last report with this problem in its place."""
        self.report = replace(self.report or _empty(), problem=problem)
        return self.report


def _audit(line: Connection, settings: AuditSettings) -> None:
    with _opened(settings, line.send) as watch:
        while True:
            line.send(watch.step())
            time.sleep(STEP_S)


def _opened(settings: AuditSettings, send: Callable[[AuditReport], None]) -> AuditWatch:
    """Open the audit, again and again until that succeeds; the reports meanwhile say why."""
    begun = _empty()
    while True:
        try:
            return AuditWatch(settings)
        except (SlotwheelError, OSError) as error:
            send(replace(begun, problem=str(error)))
            time.sleep(_AGAIN_S)


def _empty() -> AuditReport:
    now_ms = time.time_ns() // 1_000_000
    return AuditReport(now_ms, now_ms, [], {}, {})
