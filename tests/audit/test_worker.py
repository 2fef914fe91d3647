"""What is said while the audit's process is away, when it has begun anew, and when it has ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from slotwheel.account.vocabulary import AuditVerdict, Boundary
from slotwheel.audit.comparing import Comparison
from slotwheel.audit.differing import Differing
from slotwheel.audit.ledger import CellReport
from slotwheel.audit.watch.watching import STALE_MS, AuditReport, AuditSettings
from slotwheel.audit.watch.worker import AuditProcess
from support.waiting import eventually

_PLACE = "orders", Boundary.WHEEL_TOPIC, ""


def _cell(bucket_ms: int, verdict: AuditVerdict) -> CellReport:
    one = Comparison("orders", bucket_ms, Boundary.WHEEL_TOPIC, "", verdict, 1)
    return CellReport("orders", bucket_ms, verdict, [one])


def test_a_report_is_stale_after_ten_seconds() -> None:
    report = AuditReport(5_000, 0, [], {}, {})
    assert [report.stale(5_000 + STALE_MS + more) for more in (0, 1)] == [False, True]


def test_a_process_that_begins_anew_goes_on_saying_what_the_one_before_it_had_found() -> None:
    first = AuditReport(
        *(9_000, 0, [_cell(5_000, AuditVerdict.LOST), _cell(6_000, AuditVerdict.EQUAL)]),
        *({"too late": 1}, {"lost": 2}),
        differing=[Differing(*_PLACE, 1_000, 5_000, 3, lost=3)],
    )
    second = AuditReport(
        *(30_000, 20_000, [_cell(21_000, AuditVerdict.LOST)], {}, {"equal": 1}),
        differing=[Differing(*_PLACE, 21_000, 21_000, 1, lost=1)],
    )
    found = second.following(first.forgotten())
    assert found.differing == [Differing(*_PLACE, 1_000, 21_000, 4, lost=4)]
    assert found.closed == {AuditVerdict.LOST: 3, AuditVerdict.EQUAL: 2}
    assert (found.refused, found.restarts) == ({"too late": 1}, 1)
    assert (found.at_ms, found.from_ms, found.cells) == (30_000, 20_000, second.cells)
    assert second.following(found.forgotten()).restarts == 2


def test_a_process_that_was_killed_is_a_problem_until_another_one_has_begun(tmp_path: Path) -> None:
    audit = AuditProcess(AuditSettings(tmp_path / "nothing"))

    def problem() -> str:
        return audit.report.problem if audit.report is not None else ""

    try:
        eventually(lambda: "no such directory" in problem())
        begun_ms = audit.report.at_ms if audit.report is not None else 0
        assert audit.pid is not None
        os.kill(audit.pid, signal.SIGKILL)
        eventually(lambda: "has ended, and is started again" in problem())
        assert audit.report is not None
        assert (audit.report.at_ms, audit.report.restarts) == (begun_ms, 0)
        eventually(lambda: "no such directory" in problem())
        assert audit.report.restarts == 1
    finally:
        audit.close()
    assert problem() == "the audit has ended"
    assert audit.report.stale(time.time_ns() // 1_000_000 + STALE_MS)
