"""The verdict about several wheels: each by its own files, and the whole.

Theory: an id begins with the name of its wheel, so a message is of one wheel from its receipt on,
whichever wheel read its partition or had its key before or later. So the whole is proven when each
wheel is, and no message is counted twice.

Rule: a wheel of which only receipts are given is not proven: its messages are accepted, and nobody
can tell what became of them. It is named, and the proof is one in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...reading.groups import GroupInputs
from ...reading.problems import OpenPoint
from .verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class FleetVerdict:
    """``wheels``: the verdict about each, by its name. ``open_points``: of the whole."""

    wheels: Mapping[str, Verdict]
    open_points: tuple[OpenPoint, ...] = ()

    @classmethod
    def of(cls, verdicts: Mapping[str, Verdict], given: Mapping[str, GroupInputs]) -> FleetVerdict:
        """The whole of these. ``given``: what each verdict is about."""
        missing = [
            OpenPoint(
                f"the wheel {name}",
                "receipts of its messages were given, and no directory of it",
                "Give its data directory, too",
            )
            for name, inputs in given.items()
            if not inputs.directories
        ]
        return cls(verdicts, tuple(missing))

    @property
    def outcome(self) -> Outcome:
        """The worst of all."""
        outcomes = {verdict.outcome for verdict in self.wheels.values()}
        if Outcome.NOT_PROVEN in outcomes:
            return Outcome.NOT_PROVEN
        is_whole = not self.open_points and Outcome.IN_PART not in outcomes
        return Outcome.PROVEN if is_whole else Outcome.IN_PART

    @property
    def counts(self) -> Counter[str]:
        """The sums of the wheels' counts."""
        total: Counter[str] = Counter()
        for verdict in self.wheels.values():
            total.update(verdict.counts)
        return total

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "outcome": str(self.outcome),
            "proven": self.outcome is Outcome.PROVEN,
            "counts": dict(self.counts),
            "open_points": [
                {"subject": point.subject, "reason": point.reason, "remedy": point.remedy}
                for point in self.open_points
            ],
            "wheels": {name: verdict.to_dict() for name, verdict in self.wheels.items()},
        }
