"""Damage in the data directory: found ahead of time, told in the same words wherever one looks.

Theory: whoever reads a slot file may find that it is not what was written; the storage remembers
it. Here the files are read ahead (``wheel/slots/scrub.py``) at a low rate, and what is known to be
damaged goes to readiness, status, metrics, and once for each file to the log.

A damaged slot file holds up delivery when it is due, so a node that has one is not ready. A damaged
segment of an embedded topic holds up nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from ..wheel.config import TICK_MS
from ..wheel.slots.slotfile import path_of
from ..wheel.wheel import Wheel
from .events import NodeEvents
from .metrics import Metrics

SCRUB_BYTES_S = 4 << 20
SCRUB_EVERY_S = 0.25
PASS_EVERY_S = 10.0
"""Few files are not read more often than that."""


class Damage:
    """``topics``: what is known of embedded topics, by path. ``remedy``: what becomes of a damaged
    slot file, or what somebody has to do about it. ``clock``: wall clock in ms."""

    def __init__(
        self,
        wheel: Wheel,
        topics: Callable[[], dict[str, str]],
        remedy: str,
        clock: Callable[[], int],
        events: NodeEvents,
        metrics: Metrics,
    ) -> None:
        self._wheel = wheel
        self._topics = topics
        self._remedy = remedy
        self._clock = clock
        self._events = events
        self._metrics = metrics
        self._reported: set[str] = set()
        self._next_pass_s = 0.0
        self.heal: Callable[[Set[str]], None] = lambda _: None
        """Called each turn with the paths of all that was told: peers mend slot files."""

    def slot_files(self) -> list[str]:
        """What is wrong with each damaged slot file, what comes of it, and what to do."""
        return list(self._slot_files().values())

    def all(self) -> list[str]:
        """The same, and the damaged segments of topics."""
        return self.slot_files() + list(self._topics().values())

    def turn(self) -> float:
        """Read slot files on, tell of what was found, by whomever, and mend it if that can be; for
        a loop."""
        try:
            self._scrub()
        finally:
            self._report()
            self.heal(self._reported)
        return SCRUB_EVERY_S

    def _scrub(self) -> None:
        if time.monotonic() < self._next_pass_s:
            return
        scrubbed = self._wheel.scrubber.turn(int(SCRUB_BYTES_S * SCRUB_EVERY_S))
        self._metrics.scrubbed_bytes.inc(scrubbed.nbytes)
        if scrubbed.passed:
            self._metrics.scrub_passes.inc()
            self._next_pass_s = time.monotonic() + PASS_EVERY_S

    def _report(self) -> None:
        slots, topics = self._slot_files(), self._topics()
        for path, text in slots.items():
            if path not in self._reported:
                self._events.alarm("slot-file-damaged", text)
        for path, text in topics.items():
            if path not in self._reported:
                self._events.alarm(
                    "topic-damaged",
                    f"{text}. The segment is set aside, its topic goes on in a new one",
                )
        for path in self._reported - {*slots, *topics}:
            self._events.intake.event("damage-gone", file=path)
        self._reported = {*slots, *topics}

    def _slot_files(self) -> dict[str, str]:
        """By path."""
        return {
            path_of(second): f"{text}. {self._effect(second)}{self._remedy}"
            for second, text in self._wheel.damaged().items()
        }

    def _effect(self, second: int) -> str:
        """What comes of a damaged slot file of that second, now or later."""
        if self._wheel.dispatcher is None:
            return ""  # another peer delivers
        if second * TICK_MS > self._clock():
            return "When it is due, delivery stops there. "
        status = self._wheel.status()
        if status.held_topics and second < status.mark_c // TICK_MS:
            return "What topics that are held back have in it waits for that. "
        return "It is due, and delivery stands still until it is mended. "


def remedy_of(data: str, *, has_peers: bool) -> str:
    """What is said of a damaged slot file."""
    if has_peers:
        return (
            "Its messages are fetched from a peer that has them; should none have them, stop the"
            f" node and see what 'slotwheel repair {data}' says"
        )
    return f"Stop the node, see what 'slotwheel repair {data}' says, and repair it with --yes"
