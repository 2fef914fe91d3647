"""The driver's conclusions from all tasks' sums. Without Spark.

Rules
- A *reason* fails the proof. An *open point* says what could not be decided, and what to give: a
  proof from two of three peers' directories would else read like one from all.
- A *note* changes no verdict. What is never judged is a note, with the number of its messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..reading.files import SLOT, TOPIC, Layout
from ..reading.problems import STRAY, OpenPoint, Problem
from ..wheel.journal.segment import segment_name
from ..wheel.texts import counted
from .facts.chunks import IN_TIME_MS
from .facts.summary import FileSummary
from .judging.again import RETRIES, RETRIES_UNJUDGED
from .judging.conservation import OTHER_PARTITION, PARTITION_UNJUDGED, UNREAD_KNOWN
from .judging.context import Context
from .judging.order import ORDER_UNJUDGED
from .judging.reach import group_size
from .judging.schedules import SCHEDULED, SCHEDULED_UNJUDGED
from .report.verdict import CLASSES, Input, PairAgreement
from .storeaccount import BoundaryAccount

FAILS_NOTHING = {OTHER_PARTITION, STRAY}
FAILS_ONLY_IF_ASKED = {"repeated": "exactly_once", "late": "late_ms"}
NAMED_MAX = 10
"""Topics that an open point names at most."""
NOTES_MAX = 50
"""Files whose notes are listed at most."""
RANGES_MAX = 5
"""Ranges of offsets that an open point names at most."""


@dataclass(frozen=True)
class Conclusion:
    """The parts of a verdict that the driver computes. ``summaries``: one a file. ``sums``: of all
    tasks, messages by class, and ``equal:I:J`` and ``different:I:J`` of peers. ``judged``: how many
    problems judging found, by kind."""

    layout: Layout
    context: Context
    summaries: Sequence[FileSummary]
    sums: Mapping[str, int]
    judged: Mapping[str, int]
    boundaries: BoundaryAccount | None = None
    """With traces."""

    def own(self) -> list[Problem]:
        """Problems that were found on the driver: in the layout, in the context and in the store of
        events."""
        of_store = self.boundaries.problems if self.boundaries is not None else ()
        return [*self.layout.problems, *self.context.problems, *of_store]

    def counts(self) -> dict[str, int]:
        """Messages by class, as in ``Verdict.counts``."""
        counts = {name: number for name, number in self.sums.items() if ":" not in name}
        asked = ("repeated",) if self.context.options.exactly_once else ()
        return {name: counts.get(name, 0) for name in ("accepted", *CLASSES, *asked)} | counts

    def problem_counts(self) -> dict[str, int]:
        """The number of problems of each kind, listed or not."""
        numbers = Counter(self.judged)
        for summary in self.summaries:
            numbers.update(summary.problems)
        numbers.update(problem.kind for problem in self.own())
        numbers.update(self.boundaries.lost if self.boundaries is not None else {})
        return dict(numbers)

    def reasons(self) -> list[str]:
        """Why the proof fails, a line for each kind of problem; empty if it does not."""
        options = self.context.options
        asked = {"exactly_once": options.exactly_once, "late_ms": options.late_ms}
        reasons = []
        for kind, number in sorted(self.problem_counts().items()):
            if kind in FAILS_NOTHING:
                continue
            option = FAILS_ONLY_IF_ASKED.get(kind)
            if option is None or (asked[option] is not None and asked[option] is not False):
                reasons.append(f"{kind}: {number:,}")
        counts = self.counts()
        if not counts["accepted"]:
            reasons.append("nothing to prove: no accepted message was found")
        total = sum(counts[name] for name in CLASSES)
        assert total == counts["accepted"], f"{counts} do not add up"
        return reasons

    def open_points(self) -> list[OpenPoint]:
        """What could not be decided, and why."""
        points, counts = [], self.counts()
        given, group = len(self.layout.peers), group_size(self.layout, self.summaries)
        unseen = self.layout.of(TOPIC) or counts.get("in doubt") or 2 * given <= group
        if 0 < given < group and unseen:
            points.append(
                OpenPoint(
                    f"{group - given} of the group's {group} directories",
                    "not given, so what these peers hold, and delivered to embedded topics, was"
                    " not seen",
                    "Give the directories of all peers",
                )
            )
        points += [*self._unread(), *self._not_given()]
        points += self.boundaries.open_points if self.boundaries is not None else []
        elsewhere = self.problem_counts().get(OTHER_PARTITION)
        if elsewhere:
            points.append(
                OpenPoint(
                    f"{counted(elsewhere, 'message')} in another partition than their key's",
                    "they were moved, or their topic had fewer partitions when they were sent",
                    "Look whether partitions were added to it since",
                )
            )
        not_given = (n for name, n in self.sums.items() if name.startswith("not given:"))
        unclear = counts["undecided"] - sum(not_given)
        if unclear:
            reason = "what would show what became of them is damaged or missing"
            if self.context.older:
                why = "; ".join(self.context.older)
                reason += f", or came to be after a directory was copied: {why}"
            remedy = "Give copies of those files, or dumps of the topics"
            points.append(OpenPoint(counted(unclear, "accepted message"), reason, remedy))
        return points

    def _unread(self) -> list[OpenPoint]:
        pairs = self.context.unread.T.tolist()
        number = sum(end - base for base, end in pairs) - self.sums.get(UNREAD_KNOWN, 0)
        if not number:
            return []
        complete_ms, start_ms = self.context.complete_ms, self.context.options.start_ms
        if complete_ms is not None and start_ms is not None and start_ms >= complete_ms:
            return []
        remedy = f"{self._segments_back(pairs)}, and give producers' receipts for what is gone"
        if complete_ms is not None and complete_ms < self.layout.made_ms:
            since = datetime.fromtimestamp(-(-complete_ms // 1000), UTC).isoformat()
            remedy += f"; or judge with --from {since} what is due since, of which all is there"
        shown = ", ".join(f"{base:,} to {end - 1:,}" for base, end in pairs[:RANGES_MAX])
        left = len(pairs) - RANGES_MAX
        more = f" and {counted(left, 'more range')}" if left > 0 else ""
        arrived = self.sums.get("unaccounted", 0)
        return [
            OpenPoint(
                f"{counted(number, 'message')} or cancels of offsets {shown}{more}",
                "no journal segment that was given holds them, and no receipt, so they were not"
                f" judged ({counted(arrived, 'record')} with such offsets arrived)",
                remedy,
            )
        ]

    def _segments_back(self, pairs: Sequence[Sequence[int]]) -> str:
        """A remedy for missing segments with these offsets. If any file was archived, they were
        removed since, or were too old or too many for ``--retain``."""
        if not any(file.archived for file in self.layout.files):
            return "Start nodes with --retain"
        missing = []
        for base, end in pairs[:RANGES_MAX]:
            before = (
                [summary.last_index for summary in self.summaries if summary.next_offset == base]
                if base
                else [0]
            )
            behind = [
                summary.first_index for summary in self.summaries if summary.first_offset == end
            ]
            start = f"segment {segment_name(max(before) + 1)}" if before else f"offset {base:,}"
            until = f" up to {segment_name(min(behind))}, which is there" if behind else ""
            missing.append(f"from {start} on{until}")
        return (
            f"The journal is missing {'; and '.join(missing)}: put it back into archive/ from a"
            " backup or another peer; if --retain had it deleted, keep more"
        )

    def _limits(self) -> list[str]:
        limits = []
        number = self.sums.get(ORDER_UNJUDGED, 0)
        if number:
            limits.append(
                f"the order of {counted(number, 'message')} that arrived was not judged: accepted"
                f" less than {IN_TIME_MS / 1000:g} s before they were due, or later"
            )
        number = self.sums.get(PARTITION_UNJUDGED, 0)
        if number:
            limits.append(
                f"{counted(number, 'message')} asked for no partition: whether each arrived in the"
                " one of its key was not judged"
            )
        number = self.sums.get(RETRIES, 0)
        if number:
            unjudged = self.sums.get(RETRIES_UNJUDGED, 0)
            unknown = f" ({unjudged:,} not, as journals are missing)" if unjudged else ""
            limits.append(
                f"retries: {number:,}; that no attempt was left out was judged{unknown}; whether"
                " each waited as long as its policy says, and whether messages went where a route's"
                " rules say, was not: no file has the policies of that time"
            )
        number = self.sums.get(SCHEDULED, 0)
        if number:
            unjudged = self.sums.get(SCHEDULED_UNJUDGED, 0)
            unknown = (
                f", of {unjudged:,} of them not when they were due: no journal and no state that"
                " was given has what their schedule was then"
                if unjudged
                else ""
            )
            limits.append(
                f"runs of schedules: {number:,}; that none is missing, none came twice, and each"
                f" was the next one of its schedule was judged{unknown}"
            )
        kept = {file.number for file in self.layout.of(SLOT) if file.archived}
        rows = sum(summary.rows for summary in self.summaries if summary.number in kept)
        if rows:
            limits.append(
                f"compared with the journals: {counted(rows, 'row')} of kept slot files; whether"
                " any was taken out of these files was not judged"
            )
        return limits

    def _not_given(self) -> Iterator[OpenPoint]:
        """Open points for inputs that were probably forgotten: messages may have gone there."""
        topics = {topic for summary in self.summaries for topic in summary.topics.items()}
        names = {f"{crc:08x}": topic for crc, topic in topics}
        unseen = {
            name.removeprefix("not given:topic:"): number
            for name, number in self.sums.items()
            if name.startswith("not given:topic:")
        }
        if unseen:
            shown = sorted(names.get(crc, crc) for crc in unseen)
            more = f" and {len(shown) - NAMED_MAX:,} more" if len(shown) > NAMED_MAX else ""
            yield OpenPoint(
                f"topic {', '.join(shown[:NAMED_MAX])}{more}",
                f"it is the topic of {counted(sum(unseen.values()), 'message')}, and nothing that"
                " was given has any record of it",
                "Give what it holds: --kafka HOST:PORT, a dump of it (--dump), or, when it is"
                " embedded, the directories of all peers with their topics/",
            )
        dead = self.sums.get("not given:dead letters")
        if dead:
            yield OpenPoint(
                f"topic {self.layout.dead_letter_topic}",
                f"{counted(dead, 'message')} did not arrive, and none of the dumps is of the dead"
                " letters",
                "Give a dump of it, too (--dump)",
            )

    def agreement(self) -> list[PairAgreement]:
        names = [peer.name for peer in self.layout.peers]
        return [
            PairAgreement(
                names[left],
                names[right],
                self.sums.get(f"equal:{left}:{right}", 0),
                self.sums.get(f"different:{left}:{right}", 0),
            )
            for left in range(len(names))
            for right in range(left + 1, len(names))
        ]

    def inputs(self) -> list[Input]:
        kinds: dict[str, Input] = {}
        files = {file.number: file for file in self.layout.files}
        for summary in self.summaries:
            file = files.get(summary.number)
            name = "Kafka" if file is None else file.kind
            if file is not None and file.archived:
                name = f"archived {name}"
            known = kinds.get(name) or Input(name, files=0, nbytes=0, rows=0)
            kinds[name] = replace(
                known,
                files=known.files + 1,
                nbytes=known.nbytes + (0 if file is None else file.nbytes),
                rows=known.rows + summary.rows,
            )
        return [kinds[name] for name in sorted(kinds)]

    def notes(self) -> list[str]:
        names = {file.number: file.name for file in self.layout.files}
        noted = [summary for summary in self.summaries if summary.note]
        notes = [
            f"{names.get(summary.number, 'Kafka')}: {summary.note}" for summary in noted[:NOTES_MAX]
        ]
        if len(noted) > NOTES_MAX:
            notes.append(f"not shown: the notes on {counted(len(noted) - NOTES_MAX, 'more file')}")
        counts = self.counts()
        if counts.get("overdue"):
            notes.append(
                f"overdue: {counted(counts['overdue'], 'pending message')}; the node is stopped,"
                " behind, or holds their topic back"
            )
        if counts.get("newer"):
            notes.append(
                f"not judged: {counted(counts['newer'], 'record')}, receipts among them, of"
                " messages that were accepted after the directories were looked at"
            )
        notes += self._limits()
        if counts.get("in doubt"):
            notes.append(f"not known to be committed: {counted(counts['in doubt'], 'message')}")
        notes += self.boundaries.sentences if self.boundaries is not None else []
        return notes
