"""Findings of a verifier: one ``CheckedFile`` for every file, with all that is wrong with it.

Theory: a verifier that stops at the first fault is of little use. So each file is an item of its
own, every fault in it is a ``Finding``, and what is no fault but worth knowing (bytes that were
never committed, a torn end, a foreign file) is a ``Finding`` too, kept apart as a note: a crash
leaves such things behind, and the next start cleans them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import Damaged, SlotwheelError, UnsupportedVersion


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault or a note, at byte ``position`` of the file ``path`` (from the data directory)."""

    path: str
    position: int
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: expected {self.expected}, found {self.found}"


@dataclass(slots=True)
class CheckedFile:
    """One file (or the state store). ``kind``: state, journal, slot, names, archive, topic."""

    kind: str
    path: str
    rows: int = 0
    nbytes: int = 0
    faults: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults

    def fault(self, position: int, expected: object, found: object) -> None:
        self.faults.append(Finding(self.path, position, str(expected), str(found)))

    def note(self, position: int, expected: object, found: object) -> None:
        self.notes.append(Finding(self.path, position, str(expected), str(found)))

    def expect(self, position: int, what: str, expected: object, found: object) -> None:
        """Add a fault unless both are equal."""
        if expected != found:
            self.fault(position, f"{what} {expected}", found)

    def error(self, error: SlotwheelError | OSError, position: int = 0) -> None:
        """Record an error that was raised while the file was read."""
        if isinstance(error, Damaged):
            # A decoder that is given a payload names the entry, not the file: keep our own path.
            same = error.path == self.path
            at = error.position if same else position
            where = "" if same else f" ({error.path}, byte {error.position})"
            self.faults.append(Finding(self.path, at, f"{error.expected}{where}", str(error.found)))
        elif isinstance(error, UnsupportedVersion):
            self.fault(position, f"version {error.limit}", f"{error.got}: {error.message}")
        elif isinstance(error, OSError):
            self.fault(position, "a readable file", error.strerror or error)
        else:
            self.fault(position, "a readable file", error)


UNKNOWN_FILE = "an unknown file, which slotwheel leaves alone"


def noted(kind: str, path: str, expected: str, found: str = UNKNOWN_FILE) -> CheckedFile:
    """A checked file without a fault, with one note about the whole of it."""
    item = CheckedFile(kind, path)
    item.note(0, expected, found)
    return item
