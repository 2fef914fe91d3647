"""A stranger who is refused again and again does not fill the log."""

from __future__ import annotations

from typing import Any

from slotwheel.node.intake.ports import IntakeEvents
from slotwheel.node.intake.refusals import EVERY_S, REASONS_MAX, Refusals
from slotwheel.wheel.errors import InvalidConfiguration


class Log(IntakeEvents):
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def event(self, name: str, **fields: object) -> None:
        self.lines.append({"name": name, **fields})


def test_a_reason_is_logged_once_in_a_while_with_the_count_of_the_others() -> None:
    log, now_s = Log(), [0.0]
    refused = Refusals("refused", log, lambda: now_s[0])
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        refused(host, InvalidConfiguration("expired", got=host))
    refused("10.0.0.4", InvalidConfiguration("foreign"))
    assert [(line["host"], line["others_before"]) for line in log.lines] == [
        ("10.0.0.1", 0),
        ("10.0.0.4", 2),
    ]
    now_s[0] = EVERY_S
    refused("10.0.0.5", InvalidConfiguration("expired"))
    assert (log.lines[-1]["host"], log.lines[-1]["others_before"]) == ("10.0.0.5", 0)


def test_no_more_reasons_are_kept_than_the_limit() -> None:
    log = Log()
    refused = Refusals("refused", log, lambda: 0.0)
    for number in range(3 * REASONS_MAX):
        refused("10.0.0.1", InvalidConfiguration(f"reason {number}"))
    assert len(log.lines) == REASONS_MAX
