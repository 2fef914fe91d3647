"""The sums of all tiers, side by side, for a bounded time.

Theory: sums of the wheel's files and topics come from their readers (``watch/``), those of clients
and consumers in batches. They become cells, one for each topic and bucket, which are compared at
each report. Nothing here reads a file or a clock.

Rules
- A batch counts once, by its sender and number: it is sent again if its answer was lost. A number
  that is missing for longer than the grace is a gap, and all cells that it may have been about are
  unknown: its messages would else be called repeated or lost.
- Clients send a batch when they begin, and also when nothing has happened. What was produced is
  compared when each of them has been heard since the bucket ended. A client that is silent for
  ``SILENT_MS`` without having said that it ends is taken for killed. What it produced last may have
  gone to any topic, so all of them are unknown for that time.
- A cell is dropped ``keep_ms`` after its bucket has ended if nothing is wrong with it, and
  ``hold_ms`` after that in any case; what comes for it later is refused and counted. There are
  ``cells_max`` at most. That a dropped one differed stays known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..account.limits import NEVER_MS, AccountLimits, bucket_of
from ..account.vocabulary import AuditVerdict, Boundary, Tier, worst
from ..wheel.mark import Marks
from ..wheel.schema import Int64s, Mask
from .comparing import AuditCell, Comparison, Side, compare
from .differing import Differing, differing_of, join_differing
from .hints import AuditHints
from .ranges import covered_of, merge_range
from .sums import BucketGroups, IdSum, SumBatch, Sums, add_rows

KEEP_MS = 300_000
HOLD_MS = 3_600_000
SILENT_MS = 30_000
CELLS_MAX = 100_000
_SENDERS_MAX = 10_000
_AHEAD_MAX = 1_000
_NAMES_MAX, _GROUPS_MAX = 10_000, 1_000
"""Names in all, and groups of one topic."""
_AT_ONCE = 20
"""Cells that are compared together. With hundreds fewer calls of NumPy were needed, but the garbage
collector would look through all comparisons more often, which takes longer than these calls."""


@dataclass(slots=True)
class _Sender:
    client: str
    first: int
    following: int
    """The first number above ``first`` that has not come."""
    ahead: dict[int, int] = field(default_factory=dict)
    """When each number above ``following`` came, ms; -1: a number below it that has not come, as
    the sender's first batches overtook each other."""
    groups: set[str] = field(default_factory=set)
    seen_ms: int = 0
    last: bool = False


class CellReport(NamedTuple):
    """A cell and its comparisons."""

    topic: str
    bucket_ms: int
    verdict: AuditVerdict
    comparisons: list[Comparison]


class AuditLedger:
    """The cells of one wheel. ``wheel``: the group whose messages are audited; ``from_ms``: buckets
    that begin before it are left out; ``ahead_ms``: what was accepted longer before it was due is
    far (``comparing``), and clients' sums of buckets that are further ahead are refused;
    ``left_out``: topics that are not audited; ``others``: topics that programs without an auditor
    send to, too; ``keep_ms``, ``hold_ms``, ``cells_max``: see the rules."""

    def __init__(
        self,
        wheel: str,
        limits: AccountLimits,
        from_ms: int,
        *,
        ahead_ms: int,
        left_out: frozenset[str] = frozenset(),
        others: frozenset[str] = frozenset(),
        keep_ms: int = KEEP_MS,
        hold_ms: int = HOLD_MS,
        cells_max: int = CELLS_MAX,
    ) -> None:
        self.wheel, self.limits, self.ahead_ms = wheel, limits, ahead_ms
        self.from_ms = from_ms - from_ms % -limits.interval_ms
        """Begin of the first bucket that is audited: only of a whole one all tiers were seen."""
        self._left_out, self._others = left_out, others
        self._keep_ms, self._hold_ms, self._cells_max = keep_ms, hold_ms, cells_max
        self.cells: dict[tuple[str, int], AuditCell] = {}
        self.refused: Counter[str] = Counter()
        """Numbers of batches and sums that were not taken, by the reason."""
        self.closed: Counter[str] = Counter()
        """Comparisons of cells that were dropped, by their last verdict."""
        self._dropped: list[Differing] = []
        """Where dropped cells differed."""
        self.differing: list[Differing] = []
        """Where cells differ, as of the last report, and where dropped ones did."""
        self._floor_ms = self.from_ms
        self._senders: dict[str, _Sender] = {}
        self._produced: set[str] = set()
        """Topics that audited clients send to."""
        self._groups: dict[str, set[str]] = defaultdict(set)
        """By topic."""
        self._covered: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        """Ranges of positions that are in sums, by group, topic and partition."""
        self.hints = AuditHints()
        self._heard_ms = 0
        """The earliest time, ms, at which a sender was last heard that has neither ended nor been
        killed."""
        self._killed: list[tuple[int, str]] = []
        """Killed clients, the last one first: the end of the time, ms, whose sums may be missing,
        and the client."""

    # -- the wheel's tiers

    def see(
        self,
        tier: Tier,
        topic: pa.Array,
        due: Int64s,
        offset: Int64s,
        now_ms: int,
        late_ms: Int64s | None = None,
        position: Int64s | None = None,
        partition: int = 0,
        created: Int64s | None = None,
    ) -> None:
        """Add messages that a tier of the wheel has. Arrays have shape (rows,): ``due``,
        ``late_ms`` and ``created`` (of ACCEPTED) in ms, ``position`` in ``partition`` of their
        topic."""
        wanted = due >= self.from_ms
        if not wanted.all():
            topic, due, offset = topic.filter(pa.array(wanted)), due[wanted], offset[wanted]
            late_ms = None if late_ms is None else late_ms[wanted]
            created = None if created is None else created[wanted]
            position = None if position is None else position[wanted]
        if not len(due):
            return
        sums: Sums = {}
        add_rows(sums, (tier, self.wheel, ""), self.limits.interval_ms, topic, due, offset, late_ms)
        self._add(sums, now_ms)
        groups = BucketGroups(topic, due, offset, self.limits.interval_ms)
        if tier is Tier.ACCEPTED:
            highest = groups.reduced(np.maximum, offset).tolist()
            last = zip(groups.last(due).tolist(), groups.last(offset).tolist(), strict=True)
            for key, top, row in zip(groups.keys, highest, last, strict=True):
                if (cell := self.cells.get(key)) is not None:
                    cell.highest = max(cell.highest, top)
                    cell.last = max(cell.last, row)
            if created is not None:
                self._add_far(topic, due, offset, due - created > self.ahead_ms)
        elif position is not None:
            lowest = groups.reduced(np.minimum, position).tolist()
            highest = groups.reduced(np.maximum, position).tolist()
            for key, low, high in zip(groups.keys, lowest, highest, strict=True):
                if (cell := self.cells.get(key)) is not None:
                    known = cell.places.get(partition, (low, high))
                    cell.places[partition] = min(low, known[0]), max(high, known[1])
                    cell.group_passed_ms.clear()

    def _add_far(self, topic: pa.Array, due: Int64s, offset: Int64s, far: Mask) -> None:
        sums: Sums = {}
        origin = Tier.ACCEPTED, self.wheel, ""
        topic = topic.filter(pa.array(far))
        add_rows(sums, origin, self.limits.interval_ms, topic, due[far], offset[far])
        for key, id_sum in sums.items():
            if (cell := self.cells.get((key.topic, key.bucket))) is not None:
                cell.far.add(id_sum)

    def pass_marks(self, marks: Marks, now_ms: int) -> None:
        """Note which cells the wheel's marks have passed: what is not delivered then is lost."""
        for (topic, _), cell in self.cells.items():
            copy = marks.copies.get(topic)
            mark = marks.main if copy is None else copy.mark
            passed = (mark.c, mark.r) >= cell.last and cell.highest <= mark.L
            cell.passed_ms = min(cell.passed_ms, now_ms) if passed else NEVER_MS

    # -- clients and consumers

    def add_batch(self, batch: SumBatch, now_ms: int) -> bool:
        """Add a sender's sums. Returns false, and adds nothing, if the batch came before, or its
        buckets do not divide ours."""
        if self.limits.interval_ms % batch.interval_ms:
            self.refused["another interval"] += 1
            return False
        sender = self._sender(batch, now_ms)
        if not self._is_new(sender, batch.number, now_ms):
            self.refused["repeated batch"] += 1
            return False
        sums: Sums = {}
        for key, id_sum in batch.sums.items():
            if key.wheel not in (self.wheel, ""):
                continue
            if key.tier == Tier.PRODUCED:
                if len(self._produced) < _NAMES_MAX:
                    self._produced.add(key.topic)
            else:
                self._know(sender, key.topic, key.group)
            bucket = bucket_of(key.bucket, self.limits.interval_ms)
            merged = sums.setdefault(key._replace(bucket=bucket), IdSum())
            merged.add(id_sum)
        self._add(sums, now_ms)
        for group, topic, partition, start, position in batch.ranges:
            self._know(sender, topic, group)
            place = group, topic, partition
            if place in self._covered or len(self._covered) < _NAMES_MAX:
                merge_range(self._covered.setdefault(place, []), start, position)
        if batch.missing:
            text = f"{batch.missing} messages are in no sum of {sender.client}"
            self.miss_sums(text, now_ms, sender.groups)
        sender.last = batch.last
        return True

    def _know(self, sender: _Sender, topic: str, group: str) -> None:
        if len(sender.groups) < _NAMES_MAX:
            sender.groups.add(group)
        if topic in self._groups or len(self._groups) < _NAMES_MAX:
            groups = self._groups[topic]
            if len(groups) < _GROUPS_MAX:
                groups.add(group)

    def _sender(self, batch: SumBatch, now_ms: int) -> _Sender:
        name = batch.sender.name
        sender = self._senders.pop(name, None)
        if sender is None:
            sender = _Sender(batch.sender.client, batch.number, batch.number)
            if len(self._senders) >= _SENDERS_MAX:
                gone = self._senders.pop(next(iter(self._senders)))
                if not gone.last:
                    text = f"there are more than {_SENDERS_MAX} senders"
                    self.miss_sums(text, gone.seen_ms, gone.groups)
        self._senders[name] = sender
        sender.seen_ms = now_ms
        return sender

    def _is_new(self, sender: _Sender, number: int, now_ms: int) -> bool:
        room = _AHEAD_MAX - len(sender.ahead)
        if sender.first - room <= number < sender.first:  # overtaken by the first that came
            for between in range(number + 1, sender.first):
                sender.ahead.setdefault(between, -1)
            sender.first = number
            return True
        if sender.ahead.get(number) == -1:
            del sender.ahead[number]
            return True
        if number < sender.following or number in sender.ahead:
            return False
        sender.ahead[number] = now_ms
        while sender.ahead.get(sender.following, -1) >= 0:
            del sender.ahead[sender.following]
            sender.following += 1
        return True

    def _look_for_gaps(self, now_ms: int) -> None:
        for sender in self._senders.values():
            waiting = [number for number, at in sender.ahead.items() if at >= 0]
            if not waiting:
                continue
            oldest = min(sender.ahead[number] for number in waiting)
            if now_ms - oldest < self.limits.grace_ms and len(waiting) < _AHEAD_MAX:
                continue
            count = min(waiting) - sender.following
            text = f"{count} batches of {sender.client} did not arrive"
            sender.following = min(waiting)
            while sender.ahead.get(sender.following, -1) >= 0:
                del sender.ahead[sender.following]
                sender.following += 1
            self.miss_sums(text, now_ms, sender.groups)

    def miss_sums(self, text: str, now_ms: int, groups: Collection[str] | None = None) -> None:
        """Note that sums of senders are missing. What they produced for times up to ``ahead_ms``
        from now, and what their ``groups`` consumed (None: any group; the set may still grow), is
        unknown for all topics."""
        boundary, until_ms = [Boundary.CLIENT_WHEEL], now_ms + self.ahead_ms
        self.hints.add(text, boundary, self.from_ms, until_ms, of_sums=True)
        boundary, until_ms = [Boundary.TOPIC_CONSUMER], now_ms + self.limits.interval_ms
        self.hints.add(text, boundary, self.from_ms, until_ms, groups=groups, of_sums=True)

    # -- cells

    def _add(self, sums: Sums, now_ms: int) -> None:
        for (tier, _, topic, group, bucket), id_sum in sums.items():
            cell = self._cell(topic, bucket, now_ms)
            if cell is None:
                continue
            name: str = tier
            if tier == Tier.CONSUMED:
                cell.consumed.setdefault(group, IdSum()).add(id_sum)
                name = f"{tier} {group}"
            elif tier == Tier.LEFT_OUT:
                cell.left_out.setdefault(group, IdSum()).add(id_sum)
                name = f"{tier} {group}"
            else:
                getattr(cell, tier).add(id_sum)
            cell.changed_ms[name] = now_ms

    def _cell(self, topic: str, bucket: int, now_ms: int) -> AuditCell | None:
        cell = self.cells.get((topic, bucket))
        if cell is not None:
            return cell
        if bucket < self.from_ms or topic in self._left_out:
            return None
        if bucket < self._floor_ms:
            self.refused["too late"] += 1
        elif bucket > now_ms + self.ahead_ms + self.limits.interval_ms:
            self.refused["too far ahead"] += 1
        elif len(self.cells) >= self._cells_max:
            self.refused["too many buckets"] += 1
            text = f"more than {self._cells_max} buckets at once"
            self.hints.add(text, Boundary, bucket, bucket + 1, topics=[topic])
        else:
            self.cells[topic, bucket] = cell = AuditCell()
        return cell

    def report(self, now_ms: int, whole_ms: int | None = None) -> list[CellReport]:
        """Compare the cells whose bucket has begun, in the order of time and topic, and drop those
        that are over. ``whole_ms``: all that was written before has been read; None: before now."""
        seen_ms = now_ms if whole_ms is None else whole_ms
        self._look_for_gaps(now_ms)
        self._listen(now_ms)
        reports, dropped = [], []
        for (topic, bucket), compared in self._compared(now_ms, seen_ms):
            verdict = worst(comparison.verdict for comparison in compared)
            report = CellReport(topic, bucket, verdict, compared)
            age = now_ms - bucket - self.limits.interval_ms
            fine = report.verdict in (AuditVerdict.EQUAL, AuditVerdict.LATE)
            if age > self._hold_ms or (fine and age > self._keep_ms):
                dropped += compared
                del self.cells[topic, bucket]
            else:
                reports.append(report)
        self.closed.update(comparison.verdict for comparison in dropped)
        self._dropped = join_differing(self._dropped, differing_of(dropped))
        now = (differing_of(report.comparisons) for report in reports)
        self.differing = join_differing(self._dropped, *now)
        over = now_ms - self._keep_ms - self.limits.interval_ms
        self._floor_ms = max(self._floor_ms, bucket_of(over, self.limits.interval_ms))
        self.hints.forget(now_ms - self._hold_ms)
        return reports

    def _compared(
        self, now_ms: int, seen_ms: int
    ) -> Iterator[tuple[tuple[str, int], list[Comparison]]]:
        begun = [key for key in self.cells if key[1] <= now_ms]
        begun.sort(key=lambda key: (key[1], key[0]))
        for start in range(0, len(begun), _AT_ONCE):
            keys = begun[start : start + _AT_ONCE]
            sides = [list(self._sides(*key, now_ms)) for key in keys]
            compared = iter(compare([*chain.from_iterable(sides)], seen_ms, self.limits))
            for key, of_cell in zip(keys, sides, strict=True):
                yield key, [*islice(compared, len(of_cell))]

    def _listen(self, now_ms: int) -> None:
        going = [sender for sender in self._senders.values() if not sender.last]
        alive = (sender.seen_ms for sender in going if now_ms - sender.seen_ms < SILENT_MS)
        self._heard_ms = min(alive, default=now_ms)
        self._killed = sorted(
            (
                (sender.seen_ms + self.ahead_ms, sender.client)
                for sender in going
                if now_ms - sender.seen_ms >= SILENT_MS
            ),
            reverse=True,
        )

    def _killed_of(self, bucket: int) -> frozenset[str]:
        """A line that names the killed clients whose sums of a bucket may be missing, or none."""
        if not self._killed or bucket >= self._killed[0][0]:
            return frozenset()
        client = self._killed[0][1]
        others = bisect_left(self._killed, -bucket, key=lambda killed: -killed[0]) - 1
        clients = f"{client} and {others} more" if others else client
        return frozenset({f"ended without the last sums being sent: {clients}"})

    def _sides(self, topic: str, bucket: int, now_ms: int) -> Iterator[Side]:
        cell, end = self.cells[topic, bucket], bucket + self.limits.interval_ms
        if topic in self._produced:
            hints, untold = self.hints.find(Boundary.CLIENT_WHEEL, topic, "", bucket, end)
            heard, others = self._heard_ms >= end, topic in self._others
            side = cell.client_to_wheel(topic, bucket, hints, heard=heard, others=others)
            side.untold = untold | self._killed_of(bucket)
            yield side
        hints, _ = self.hints.find(Boundary.WHEEL_TOPIC, topic, "", bucket, end)
        yield cell.wheel_to_topic(topic, bucket, hints)
        for group in sorted(self._groups.get(topic, ())):
            behind, holes = self._progress(group, topic, cell)
            if behind:
                cell.group_passed_ms.pop(group, None)
            else:
                cell.group_passed_ms.setdefault(group, now_ms)
            hints, unsent = self.hints.find(Boundary.TOPIC_CONSUMER, topic, group, bucket, end)
            hints |= unsent
            if holes:
                text = f"{holes} positions are in no sum: their consumer ended before it sent them"
                hints |= {text}
            yield cell.topic_to_consumer(topic, bucket, group, hints)

    def _progress(self, group: str, topic: str, cell: AuditCell) -> tuple[bool, int]:
        """True if the group has not come past what was delivered; and the number of positions that
        it has passed and that are in no sum."""
        behind, holes = False, 0
        for partition, (first, last) in cell.places.items():
            covered = self._covered.get((group, topic, partition), [])
            if not covered or covered[-1][1] <= last:
                behind = True
            holes += last + 1 - first - covered_of(covered, first, last + 1)
        return behind, holes
