"""Follows all tiers of one wheel and compares them.

    journal, slots ─accepted─┐
    topics ──────── delivered ┼─> ledger ─> report
    audit topic ─── produced, │
                    consumed ─┘

Theory: each step reads what is new everywhere, in the order in which messages go: read the other
way round, a message that passed between two readings would look lost. The marks of a step are
believed one step later, when topics were read behind them: a message that a mark covers and that
was not read yet would be called lost. While topics have more than a step reads, no verdict is given
about what came since.

It begins with the first whole bucket from now on, of which all tiers can be seen from their begin.
Clients send sums when messages are sent, so the audit topic is read from two hours ago
(``ahead_ms``). Of messages that are sent longer before they are due the sums of clients are not
kept: over a year each bucket of ten seconds would need a cell, and a start would read the audit
topic of a year. They are *far*, and not compared between client and wheel (``comparing``).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

import pyarrow as pa
from msgspec import Meta, field

from ...account.limits import GRACE_MS, INTERVAL_MS, LATE_MS, AccountLimits
from ...account.vocabulary import FAULTS, AuditVerdict, Boundary
from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...policy.parameters import Question
from ...policy.written import SPAN, TimeSpan, Written
from ...reading.kafka.opening import open_tails
from ...reading.problems import Problem
from ...reading.search.view import View
from ...reading.tailing import TailStart
from ...trace.events import AUDIT_TOPIC, OWN_TOPICS
from ...wheel.checks import check_topic
from ...wheel.config import TICK_MS, WheelConfig
from ...wheel.errors import (
    InvalidConfiguration,
    InvalidMessage,
    SlotwheelError,
    UnsupportedVersion,
)
from ...wheel.mark import Marks
from ...wheel.texts import time_text
from ..comparing import Comparison
from ..differing import Differing, join_differing
from ..ledger import AuditLedger, CellReport
from ..sums import decode_sums
from .accepted import LEAD_S, AcceptedTier
from .delivered import add_delivered, delivered_rows

_log = logging.getLogger("slotwheel.audit")
_RECORDS_MAX = 5_000

STEP_S = 0.5
STALE_MS = 10_000
"""A report that is older says nothing about now."""


class AuditSettings(Question, frozen=True):
    """What is compared, and what is called late. ``data``: the data directory of the node;
    ``kafka``: settings of Kafka's clients."""

    data: Path
    bootstrap: Annotated[str, Written(value_name="HOST:PORT,…")] | None = None
    """Kafka's brokers, if topics are Kafka's; else they are the embedded ones in DIR."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    topic: str = AUDIT_TOPIC
    """Where clients and consumers send their sums."""
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    """The dead-letter topic of the node."""
    interval_ms: Annotated[int, Meta(ge=1, lt=1 << 42), SPAN] = INTERVAL_MS
    """Messages due in so much time are compared together: as their auditors have it, or a
    multiple."""
    grace_ms: TimeSpan = GRACE_MS
    """So long behind a bucket its sums may still come."""
    late_ms: TimeSpan = LATE_MS
    """What takes longer at one boundary is late there."""
    ahead_ms: TimeSpan = WheelConfig().short_horizon_ms
    """What was sent longer before it is due is not compared between client and wheel."""
    others: tuple[Annotated[str, Written(value_name="TOPIC")], ...] = ()
    """Programs without an auditor send to this topic, too: that more is stored than was produced is
    no fault; may be repeated."""

    def check(self) -> None:
        """Errors: ``InvalidMessage``: no topic has such a name; as of ``Question.check``."""
        for name in (self.topic, self.dead_letter_topic, *self.others):
            check_topic(name)
        super().check()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All buckets that have begun, by time and topic. ``at_ms``: all that was written before has
    been read; ``refused``, ``closed``, ``differing``: those of ``AuditLedger``; ``problem``: why
    nothing new can be read; ``restarts``: how often the audit's process was started again."""

    at_ms: int
    from_ms: int
    cells: list[CellReport]
    refused: Mapping[str, int]
    closed: Mapping[str, int]
    problem: str = ""
    differing: Sequence[Differing] = ()
    restarts: int = 0

    def stale(self, now_ms: int) -> bool:
        """True if it is too old to say anything about now."""
        return now_ms - self.at_ms > STALE_MS

    def forgotten(self) -> Self:
        """This report with all buckets closed: of a process that has ended."""
        return replace(self, cells=[], closed=Counter(self.closed) + self.verdicts)

    def following(self, before: Self) -> Self:
        """This report of a process that was started again, with what was known before it.
        ``before``: the last report of the process before, ``forgotten``."""
        return replace(
            self,
            refused=Counter(before.refused) + Counter(self.refused),
            closed=Counter(before.closed) + Counter(self.closed),
            differing=join_differing(before.differing, self.differing),
            restarts=before.restarts + 1,
        )

    @property
    def faults(self) -> list[CellReport]:
        return [cell for cell in self.cells if cell.verdict in FAULTS]

    @property
    def verdicts(self) -> Counter[str]:
        """The number of comparisons with each verdict."""
        return Counter(comparison.verdict for cell in self.cells for comparison in cell.comparisons)

    @property
    def compared(self) -> int:
        """The number of comparisons that are not open any more, also of closed buckets."""
        every = self.verdicts + Counter(self.closed)
        return every.total() - every[AuditVerdict.OPEN]


class AuditWatch:
    """The audit of one wheel, step by step. Not thread-safe. LMDB opens a store once a process, so
    nothing else in this process may read ``data``."""

    def __init__(self, settings: AuditSettings) -> None:
        """Errors: ``InvalidConfiguration``, ``Damaged``, ``NodeUnreachable``, ``OSError``."""
        self._settings = settings
        now_ms = _now_ms()
        with ExitStack() as undo:
            self._accepted = AcceptedTier(settings.data)
            undo.callback(self._accepted.close)
            wheel = self._accepted.wheel
            if not wheel:
                raise InvalidConfiguration(
                    "the node does not have the configuration of its group yet",
                    got=str(settings.data),
                    remedy="Try again once it serves",
                )
            self._tails = open_tails(
                self._accepted.root,
                settings.bootstrap,
                settings.kafka,
                client_id="slotwheel-audit",
                records_max=_RECORDS_MAX,
            )
            undo.callback(self._tails.close)
            undo.pop_all()
        ahead_ms = settings.ahead_ms
        self._ledger = AuditLedger(
            wheel,
            AccountLimits(settings.interval_ms, settings.grace_ms, settings.late_ms),
            now_ms + (LEAD_S + 1) * TICK_MS,
            ahead_ms=ahead_ms,
            left_out=OWN_TOPICS | {settings.topic},
            others=frozenset(settings.others),
        )
        self._accepted.begin(self._ledger.from_ms)
        # What a topic got before is not audited: that some of it was deleted is no fault.
        self._begin = TailStart(now_ms - TICK_MS, earlier=False)
        self._tails.follow(settings.topic, TailStart(now_ms - ahead_ms))
        self._tails.follow(settings.dead_letter_topic, self._begin)
        self._marks = Marks()
        self._whole_ms = now_ms
        """All that was written before has been read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._tails.close()
        self._accepted.close()

    def step(self) -> AuditReport:
        """Read what is new, and compare. An error of reading becomes the report's ``problem``."""
        problem = ""
        try:
            self._read(_now_ms())
        except (SlotwheelError, OSError) as error:
            problem = str(error)
        now_ms = _now_ms()
        ledger = self._ledger
        cells = ledger.report(now_ms, self._whole_ms)
        return AuditReport(
            at_ms=self._whole_ms,
            from_ms=ledger.from_ms,
            cells=cells,
            refused=dict(ledger.refused),
            closed=dict(ledger.closed),
            problem=problem,
            differing=ledger.differing,
        )

    def _read(self, now_ms: int) -> None:
        ledger, marks = self._ledger, self._marks
        view: View = self._accepted.step(ledger, now_ms)
        settings = self._settings
        for topic in {topic for topic, _ in ledger.cells}:
            self._tails.follow(topic, self._begin)
        for event in self._tails.read():
            if isinstance(event, Problem):
                if event.file == settings.topic:
                    ledger.miss_sums(f"the audit topic: {event.text}", now_ms)
                    continue
                text = f"the topic: {event.text}"
                boundaries = [Boundary.WHEEL_TOPIC, Boundary.TOPIC_CONSUMER]
                topics = None if event.file == settings.dead_letter_topic else [event.file]
                ledger.hints.add(text, boundaries, ledger.from_ms, now_ms, topics=topics)
            elif event.topic == settings.topic:
                self._add_batches(event.rows, now_ms)
            else:
                for rows in delivered_rows(event, self._accepted.wheel):
                    add_delivered(ledger, rows, settings.dead_letter_topic, now_ms)
        if self._tails.at_end:
            ledger.pass_marks(marks, now_ms)
            self._marks, self._whole_ms = view.marks, now_ms

    def _add_batches(self, rows: pa.RecordBatch, now_ms: int) -> None:
        for value in rows.column("value").to_pylist():
            try:
                self._ledger.add_batch(decode_sums(value or b""), now_ms)
            except (InvalidMessage, UnsupportedVersion) as error:
                self._ledger.refused[error.message] += 1


class FaultLog:
    """Logs each fault once."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int, str, str, str]] = set()

    def note(self, report: AuditReport) -> None:
        faults = {
            (
                comparison.topic,
                comparison.bucket_ms,
                comparison.boundary,
                comparison.group,
                comparison.verdict,
            ): comparison
            for cell in report.cells
            for comparison in cell.comparisons
            if comparison.fault
        }
        for key in faults.keys() - self._known:
            _log.error("audit: %s", fault_text(faults[key]))
        self._known = set(faults)


def fault_text(comparison: Comparison) -> str:
    group = f" {comparison.group}" if comparison.group else ""
    count = f"{comparison.count} " if comparison.count else ""
    when = time_text(comparison.bucket_ms)
    return (
        f"{count}{comparison.verdict} {comparison.boundary}{group}, topic {comparison.topic},"
        f" due from {when}: {comparison.before} before it, {comparison.after} behind it"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
