"""The result of a comparison of two peers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...wheel.files import Files
from ...wheel.state import StoredState

PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True)
class PeerDirectory:
    """One data directory. ``name``: for the report."""

    name: str
    files: Files
    stored: StoredState


@dataclass(slots=True)
class Agreement:
    """How much was compared, and each difference. The peers agree if there are no ``problems``."""

    problems: list[str] = field(default_factory=list)
    """Differences that are faults, the first ones of each kind first; at most 100."""
    notes: list[str] = field(default_factory=list)
    """Differences that are none: an end that was not committed, parts that only one peer has."""
    entries: int = 0
    """Entries that both journals hold, byte-equal."""
    first_index: int = 0
    """The first and the last entry that were compared; 0 if the journals share none."""
    last_index: int = 0
    slots: int = 0
    """Seconds of which one or both have rows."""
    rows: int = 0
    """Rows that both hold, equal in every column."""
    next_offset: int = 0
    """Rows below this offset were compared: both peers have received that much."""

    @property
    def agrees(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)
