"""Judging one window of the running audit: all messages due in it, by all their facts.

Theory: the proof's judge decides what is lost, altered, repeated. Here the node is running: every
message in a journal counts as held until a mark covers it; one that a mark covers and no topic has
is lost; one that no mark covers is *overdue*, as the wheel will still send it.

A window is judged again whenever facts arrive for it, from all its facts. What was reported is
kept, as kinds for each offset, so that only what is new is reported; a message that was reported as
lost or overdue, and arrived after all, is reported once more.

Rules
- Whether a message is lost between wheel and topic is what the account of that boundary says
  (``judging.boundaries.wheel_crossings``). One that waits there, and whose grace is over, is
  overdue. What arrived is judged at once.
- Peers write the entries of a deposed master, and cut them off again: of several rows with one
  offset in one journal, that of the latest epoch counts.
- In a window that was dropped and is opened again, no record is reported as unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ...account.judging import judge
from ...account.vocabulary import AuditVerdict
from ...wheel.schema import Int64s, Mask
from ..facts.fact import Facts, Seen
from ..facts.traced import TraceSummary, distinct_events
from ..judging.board import Board
from ..judging.boundaries import CLIENT, CONSUMER, Boundaries, wheel_crossings
from ..judging.conservation import judge_conservation, wanted
from ..judging.context import Context
from ..judging.judged import Judged
from ..judging.punctuality import judge_arrivals

LOST, REPEATED = AuditVerdict.LOST.value, AuditVerdict.REPEATED.value
OVERDUE, AFTER_ALL = "overdue", "late after all"
UNKNOWN = "unknown"
"""A record of no accepted message, and not the verdict of that name."""
KINDS = (
    LOST,
    OVERDUE,
    AFTER_ALL,
    "early",
    "late",
    REPEATED,
    "altered",
    "forged",
    UNKNOWN,
    "cancelled but delivered",
    "dead and delivered",
    "expired but delivered",
    "dead too soon",
    "never accepted",
    "never consumed",
)
"""The place of a kind is its bit in ``TOLD``: append only."""
NEVER = {CLIENT: "never accepted", CONSUMER: "never consumed"}
"""Kinds of losses outside the wheel, by their boundary."""
_BIT = {kind: 1 << place for place, kind in enumerate(KINDS)}
TOLD = np.dtype([("offset", "<i8"), ("kinds", "<u4")])
COUNTED = (
    *("accepted", "delivered", "pending", "cancelled", "dead", "expired"),
    *("lost", "undecided", "in doubt"),
)


@dataclass(slots=True)
class Judgement:
    """The judgement of one window; small, but for ``told``."""

    start: int
    counts: dict[str, int] = field(default_factory=dict)
    flags: list[dict[str, Any]] = field(default_factory=list)
    """Each says what is wrong with one message: ``flag`` (one of ``KINDS``), ``id``, ``offset``,
    ``due_ms``, ``topic``, ``text``."""
    flagged: dict[str, int] = field(default_factory=dict)
    """Numbers of new flags by kind, listed or not."""
    told: bytes = b""
    """All kinds that were reported in this window so far; packed ``TOLD``, by offset."""
    waiting: int = 0
    """Messages whose class is not settled yet."""
    settles_ms: int = 0
    """When the last of them is settled, ms."""
    has_lost: bool = False
    """A message is missing still; it may arrive after all."""
    lateness_ms: tuple[int, int, int] | None = None
    """p50, p99 and the maximum, of first arrivals; None: nothing arrived."""
    boundaries: pa.Table | None = None
    """Schema ``BOUNDARY_ARROW``; None: they were not judged."""


def judge_window(
    start: int,
    facts: Facts,
    told: bytes,
    context: Context,
    events: TraceSummary | None = None,
    *,
    forgotten: bool = False,
) -> Judgement:
    """Judge a window by all that was written before ``context.made_ms``. ``start``: ms; ``facts``:
    all of its messages'; ``told``: that of its last judgement, empty: none. ``events``: for the
    account of all boundaries; None: there are no traces. ``forgotten``: the window was dropped
    before."""
    return _Window(start, facts, told, context, events, forgotten=forgotten).judged()


@dataclass(slots=True)
class _Collected(Judged):
    """Keeps every message with a problem: one that the limit left out would be reported as new in
    the next judgement of its window."""

    told: list[tuple[str, Int64s, Int64s, str | Callable[[int], str]]] = field(default_factory=list)

    def report(
        self,
        board: Board,
        validator: str,  # noqa: ARG002
        kind: str,
        messages: Int64s,
        text: str | Callable[[int], str],
        *,
        due: Int64s | None = None,
        **_: Any,
    ) -> None:
        if len(messages):
            self.told.append((kind, messages, board.due[messages] if due is None else due, text))


class _Window:
    def __init__(
        self,
        start: int,
        facts: Facts,
        told: bytes,
        context: Context,
        events: TraceSummary | None,
        *,
        forgotten: bool,
    ) -> None:
        self._context, self._events, self._forgotten = context, events, forgotten
        self._board = Board(distinct_events(_latest(facts)), context)
        self._before = self._bits(np.frombuffer(told, TOLD))
        self._bits_now = self._before.copy()
        self._judgement = Judgement(start)

    def judged(self) -> Judgement:
        board, context, judgement = self._board, self._context, self._judgement
        now_ms, limits = context.made_ms, context.options.limits
        result = _Collected()
        arrived, late_ms = judge_arrivals(board, result)
        judge_conservation(board, result)
        missing = judge(wheel_crossings(board, result), limits)[AuditVerdict.LOST]
        settled = limits.settled(board.ready_ms, now_ms)
        lateness = np.full(board.n, -1, np.int64)
        lateness[arrived] = late_ms
        if len(arrived):
            p50, p99 = np.percentile(late_ms, (50, 99), method="higher").tolist()
            judgement.lateness_ms = int(p50), int(p99), int(late_ms.max())
        seen = board.count(board.of(Seen.DELIVERED, Seen.DEAD, Seen.CANCELLED)) > 0
        held = board.known & board.committed & ~board.is_cancel & wanted(board) & ~seen
        held &= ~board.claimed
        for kind, messages, due, text in result.told:
            if kind == LOST:
                keep = missing[messages]
                places = np.flatnonzero(keep)
                self._flag(LOST, messages[keep], due[keep], _at(text, places))
            elif kind == UNKNOWN and self._forgotten:
                again = "arrived after its window was settled: again, or it was never accepted"
                self._flag(REPEATED, messages, due, again)
            elif kind in _BIT:
                self._flag(kind, messages, due, text)
        overdue = np.flatnonzero(held & settled)
        behind = now_ms - board.due[overdue]
        self._flag(
            OVERDUE,
            overdue,
            board.due[overdue],
            lambda at: f"not delivered {behind[at]} ms after it was due; no mark covers it",
        )
        self._after_all(seen, lateness)
        waits = self._boundaries(result)
        judgement.counts = {name: result.counts.get(name, 0) for name in COUNTED}
        judgement.counts[OVERDUE] = len(overdue)
        judgement.counts["repeated"] = result.counts.get("repeated", 0)
        judgement.counts["unaccounted"] = result.counts.get("unaccounted", 0)
        open_ = board.known & ~board.is_cancel & ~seen & ~settled
        doubt = result.counts.get("in doubt", 0)
        judgement.waiting = int(open_.sum()) + len(overdue) + doubt + waits
        if open_.any():
            judgement.settles_ms = int(board.ready_ms[open_].max()) + limits.grace_ms
        missed = self._bits_now & (_BIT[LOST] | _BIT[OVERDUE])
        judgement.has_lost = bool((missed[~seen] != 0).any())
        kept = self._bits_now != 0
        table = np.zeros(int(kept.sum()), TOLD)
        table["offset"], table["kinds"] = board.offset[kept], self._bits_now[kept]
        judgement.told = table.tobytes()
        return judgement

    def _boundaries(self, conserved: Judged) -> int:
        """Judge all boundaries. Returns the number of messages that may still pass one."""
        board = self._board
        if self._events is None or self._forgotten:
            return 0
        boundaries = Boundaries(board, conserved, self._events)
        self._judgement.boundaries = boundaries.judged()
        for boundary, lost in boundaries.lost.items():
            messages = np.flatnonzero(lost)
            text = f"lost, {boundary}"
            self._flag(NEVER[boundary], messages, board.due_anywhere[messages], text)
        return int(boundaries.waiting.sum())

    def _after_all(self, seen: Mask, lateness: Int64s) -> None:
        """Flag what was missed and has come. ``lateness``: of each message, ms; -1: it did not
        arrive."""
        missed = self._before & (_BIT[LOST] | _BIT[OVERDUE]) != 0
        back = np.flatnonzero(missed & seen)

        def text(at: int) -> str:
            late = lateness[back[at]]
            return f"arrived {late} ms late" if late >= 0 else "it is cancelled, dead or expired"

        self._flag(AFTER_ALL, back, self._board.due[back], text)

    def _flag(
        self, kind: str, messages: Int64s, due: Int64s, text: str | Callable[[int], str]
    ) -> None:
        bit = np.uint32(_BIT[kind])
        new = np.flatnonzero(self._bits_now[messages] & bit == 0)
        self._bits_now[messages] |= bit
        if not len(new):
            return
        judgement, board = self._judgement, self._board
        judgement.flagged[kind] = judgement.flagged.get(kind, 0) + len(new)
        listed = Counter(flag["flag"] for flag in judgement.flags)[kind]
        for at in new[: max(0, self._context.options.problems_max - listed)].tolist():
            message, when = int(messages[at]), int(due[at])
            offset = int(board.offset[message])
            judgement.flags.append(
                {
                    "flag": kind,
                    "id": self._context.terms.id_of(when, offset),
                    "offset": offset,
                    "due_ms": when,
                    "topic": self._topic(message),
                    "text": text if isinstance(text, str) else text(at),
                }
            )

    def _topic(self, message: int) -> str:
        board = self._board
        if board.known[message]:
            return self._context.topic_name(int(board.topic[message]))
        fact = int(np.searchsorted(board.place, message))
        return self._context.topic_name(int(board.facts["topic"][fact]))

    def _bits(self, told: Any) -> Any:
        bits = np.zeros(self._board.n, np.uint32)
        at = np.searchsorted(self._board.offset, told["offset"])
        bits[at] = told["kinds"]
        return bits


def _at(text: str | Callable[[int], str], places: Int64s) -> str | Callable[[int], str]:
    """The text for a selection of places: of all, or of each place."""
    if isinstance(text, str):
        return text
    return lambda at: text(int(places[at]))


def _latest(facts: Facts) -> Facts:
    """Drop older epochs' rows: one row remains for each offset in a peer's journal."""
    rows = np.flatnonzero((facts["seen"] == Seen.ACCEPTED) | (facts["seen"] == Seen.CANCEL))
    order = rows[np.lexsort((facts["at"][rows], facts["offset"][rows], facts["peer"][rows]))]
    same = (facts["peer"][order][1:] == facts["peer"][order][:-1]) & (
        facts["offset"][order][1:] == facts["offset"][order][:-1]
    )
    if not same.any():
        return facts
    keep = np.ones(len(facts), np.bool_)
    keep[order[:-1][same]] = False
    return facts[keep]
