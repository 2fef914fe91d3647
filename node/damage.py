"""Damage in the data directory: found ahead of time, told in the same words wherever one looks.

Theory: whoever reads a slot file may find that it is not what was written; the storage remembers
it. Here the files are read ahead (``wheel/scrub.py``) at a low rate, and what is known to be
damaged goes to readiness, status, metrics, and once for each file to the log.

A damaged slot file holds up delivery when it is due, so a node that has one is not ready. A damaged
segment of an embedded topic holds up nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from ..wheel.wheel import Wheel
from .events import NodeEvents
from .metrics import Metrics

SCRUB_BYTES_S = 4 << 20
SCRUB_EVERY_S = 0.25
PASS_EVERY_S = 10.0
"""Few files are not read more often than that."""


class Damage:
    """``topics``: what is known of embedded topics, by path. ``remedy``: what becomes of a damaged
    slot file, or what somebody has to do about it."""

    def __init__(
        self,
        wheel: Wheel,
        topics: Callable[[], dict[str, str]],
        remedy: str,
        events: NodeEvents,
        metrics: Metrics,
    ) -> None:
        self._wheel = wheel
        self._topics = topics
        self._remedy = remedy
        self._events = events
        self._metrics = metrics
        self._told: set[str] = set()
        self._next_pass_s = 0.0
        self.heal: Callable[[Set[str]], None] = lambda _: None
        """Called each turn with the paths of all that was told: peers mend slot files."""

    def slot_files(self) -> list[str]:
        """What is wrong with each damaged slot file, and what to do."""
        return [f"{text}. {self._remedy}" for text in self._wheel.damaged().values()]

    def all(self) -> list[str]:
        """The same, and the damaged segments of topics."""
        return self.slot_files() + list(self._topics().values())

    def turn(self) -> float:
        """Read slot files on, tell of what was found, by whomever, and mend it if that can be; for
        a loop."""
        try:
            self._scrub()
        finally:
            self._tell()
            self.heal(self._told)
        return SCRUB_EVERY_S

    def _scrub(self) -> None:
        if time.monotonic() < self._next_pass_s:
            return
        scrubbed = self._wheel.scrubber.turn(int(SCRUB_BYTES_S * SCRUB_EVERY_S))
        self._metrics.scrubbed_bytes.inc(scrubbed.nbytes)
        if scrubbed.passed:
            self._metrics.scrub_passes.inc()
            self._next_pass_s = time.monotonic() + PASS_EVERY_S

    def _tell(self) -> None:
        slots, topics = self._wheel.damaged(), self._topics()
        for path, text in slots.items():
            if path not in self._told:
                self._events.alarm("slot-file-damaged", f"{text}. {self._remedy}")
        for path, text in topics.items():
            if path not in self._told:
                self._events.alarm(
                    "topic-damaged",
                    f"{text}. The segment is set aside, its topic goes on in a new one",
                )
        for path in self._told - {*slots, *topics}:
            self._events.intake.event("damage-gone", file=path)
        self._told = {*slots, *topics}


def remedy_of(data: str, *, has_peers: bool) -> str:
    """What is said of a damaged slot file."""
    if has_peers:
        return (
            "Its messages are fetched from a peer that has them; should none have them, stop the"
            f" node and see what 'slotwheel repair {data}' says"
        )
    return (
        "When it is due, delivery stops there. Stop the node, see what 'slotwheel repair"
        f" {data}' says, and repair it with --yes"
    )
