"""The events that a part of a node tells, kept in their order."""

from __future__ import annotations

from typing import Any

from slotwheel.node.intake.ports import IntakeEvents


class ToldEvents(IntakeEvents):
    """``told``: name and fields of each event, alarms among them; ``alarms``: these alone."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.alarms: list[tuple[str, dict[str, Any]]] = []

    def appended(self, rows: int, nbytes: int, seconds: float) -> None:
        self.event("appended", rows=rows)

    def refused(self, code: str, rows: int) -> None:
        self.event(code, rows=rows)

    def event(self, name: str, **fields: object) -> None:
        self.told.append((name, fields))

    def alarm(self, name: str, **fields: object) -> None:
        self.alarms.append((name, fields))
        self.event(name, **fields)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def of(self, name: str) -> dict[str, Any]:
        """The fields of the first event of that name."""
        return next(fields for told, fields in self.told if told == name)

    def alarmed(self, name: str, text: str) -> bool:
        return any(told == name and text in str(fields["error"]) for told, fields in self.alarms)
