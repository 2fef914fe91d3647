"""What a proof says in the end, from what all tasks told: small values, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .facts.summary import FileSummary
from .judging.context import Options
from .problems import OpenPoint, Problem
from .reading.files import DUMP, TOPIC, Layout
from .report.verdict import CLASSES, Input, PairAgreement

FAILS_ONLY_IF_ASKED = {"repeated": "exactly_once", "late": "late_ms"}
NOTES_MAX = 50
"""Files of which something is noted."""


@dataclass(frozen=True)
class Conclusion:
    """``told``: one summary a file. ``sums``: of all tasks, messages by class, and ``equal:I:J``
    and ``different:I:J`` of peers. ``judged``: problems that judging found, by kind. ``own``: those
    that the driver found. ``elsewhere``: topics were read that are not in the directories."""

    layout: Layout
    options: Options
    told: Sequence[FileSummary]
    sums: Mapping[str, int]
    judged: Mapping[str, int]
    own: Sequence[Problem] = ()
    elsewhere: bool = False

    def counts(self) -> dict[str, int]:
        """As ``Verdict.counts``."""
        counts = {name: number for name, number in self.sums.items() if ":" not in name}
        return {name: counts.get(name, 0) for name in ("accepted", *CLASSES)} | counts

    def problem_counts(self) -> dict[str, int]:
        """How many problems of each kind there are, listed or not."""
        found = Counter(self.judged)
        for summary in self.told:
            found.update(summary.problems)
        found.update(problem.kind for problem in self.own)
        return dict(found)

    def reasons(self) -> list[str]:
        """Why it is not proven."""
        asked = {"exactly_once": self.options.exactly_once, "late_ms": self.options.late_ms}
        reasons = []
        for kind, number in sorted(self.problem_counts().items()):
            option = FAILS_ONLY_IF_ASKED.get(kind)
            if option is None or (asked[option] is not None and asked[option] is not False):
                hint = self._hint() if kind == "lost" else ""
                reasons.append(f"{kind}: {number:,}{hint}")
        counts = self.counts()
        if not counts["accepted"]:
            reasons.append("nothing to prove: no accepted message was found")
        total = sum(counts[name] for name in CLASSES)
        assert total == counts["accepted"], f"{counts} do not add up"
        return reasons

    def _hint(self) -> str:
        """What may have been forgotten, where messages seem to be lost."""
        given, group = len(self.layout.peers), self._group_size()
        if given >= group or self.elsewhere or self.layout.of(DUMP):
            return ""
        return (
            f" (only {given} of the group's {group} directories {'is' if given == 1 else 'are'}"
            " given, and each peer has what it delivered as the master: give all of them)"
        )

    def _group_size(self) -> int:
        return max(self.layout.group_size, *(summary.peers for summary in self.told), 0)

    def open_points(self) -> list[OpenPoint]:
        """What could not be decided, and why."""
        points, counts = [], self.counts()
        given, group = len(self.layout.peers), self._group_size()
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
        if counts.get("unaccounted"):
            points.append(
                OpenPoint(
                    f"{counts['unaccounted']:,} records that arrived",
                    "no journal given here goes back to their acceptance",
                    "Start nodes with --retain, or keep producers' receipts and give them",
                )
            )
        return points

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
        kinds: dict[str, list[int]] = {}
        files = {file.number: file for file in self.layout.files}
        for summary in self.told:
            file = files.get(summary.number)
            name = "Kafka" if file is None else file.kind
            if file is not None and file.archived:
                name = f"archived {name}"
            sums = kinds.setdefault(name, [0, 0, 0])
            sums[0] += 1
            sums[1] += file.nbytes if file is not None else 0
            sums[2] += summary.rows
        return [Input(name, *sums) for name, sums in sorted(kinds.items())]

    def notes(self) -> list[str]:
        names = {file.number: file.name for file in self.layout.files}
        noted = [summary for summary in self.told if summary.note]
        notes = [
            f"{names.get(summary.number, 'Kafka')}: {summary.note}" for summary in noted[:NOTES_MAX]
        ]
        if len(noted) > NOTES_MAX:
            notes.append(f"such is to be said of {len(noted) - NOTES_MAX:,} more files")
        counts = self.counts()
        if counts.get("overdue"):
            notes.append(
                f"{counts['overdue']:,} pending messages are overdue: the node is stopped, behind,"
                " or holds their topic back"
            )
        if counts.get("in doubt"):
            notes.append(f"{counts['in doubt']:,} messages are not known to be committed")
        return notes
