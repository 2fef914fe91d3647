"""Damage in the data directory: found ahead of time, and reported in the same words everywhere.

Theory: any reader of a slot file may find that it is damaged; the storage keeps the error. Here the
files are read ahead of their time (``wheel/slots/scrub.py``) at a low rate, so that a person or a
peer has time to mend them. Known damage is reported in readiness, status and metrics, and once for
each file in the log.

A damaged slot file stops delivery when it is due, so a node that has one is not ready. One of an
hour or a day does so from its first second on: each of its seconds may have a row in the damaged
part, and who delivered the others of them would skip it. A damaged segment of an embedded topic
stops nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from ..wheel.slots.slot import begins_ms, ends_ms, is_wide, path_of
from ..wheel.texts import time_text
from ..wheel.wheel import Wheel
from .events import NodeEvents
from .metrics import Metrics

SCRUB_BYTES_S = 4 << 20
SCRUB_EVERY_S = 0.25
PASS_EVERY_S = 10.0
"""The shortest time, s, between two readings of the same file."""


class Damage:
    """Finds and reports damage. ``topics`` returns the errors of embedded topics, by path.
    ``remedy`` is a sentence on who mends a damaged slot file, and how. ``clock`` returns ms."""

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
        """Called each turn with the paths of all reported damage: peers repair slot files."""

    def slot_files(self) -> list[str]:
        """A sentence for each damaged slot file: its error, the effect, and the remedy."""
        return list(self._slot_files().values())

    def all(self) -> list[str]:
        """``slot_files``, and the errors of damaged segments of topics."""
        return self.slot_files() + list(self._topics().values())

    def turn(self) -> float:
        """Read on in slot files, report all known damage, and repair it if possible; for a loop."""
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
                self._events.alarm("slot-file-damaged", reason=text)
        for path, text in topics.items():
            if path not in self._reported:
                self._events.alarm(
                    "topic-damaged",
                    reason=f"{text}. The segment is set aside, its topic goes on in a new one",
                )
        for path in self._reported - {*slots, *topics}:
            self._events.event("damage-gone", file=path)
        self._reported = {*slots, *topics}

    def _slot_files(self) -> dict[str, str]:
        return {
            path_of(slot): f"{text}. {self._effect(slot)}{self._remedy}"
            for slot, text in self._wheel.damaged().items()
        }

    def _effect(self, slot: int) -> str:
        """A sentence on the effect of a damaged slot file; empty on a standby."""
        if self._wheel.dispatcher is None:
            return ""  # another peer delivers
        begin_ms, end_ms = begins_ms(slot), ends_ms(slot)
        begin, times = "When it is due", ""
        if is_wide(slot):
            begin = f"At {time_text(begin_ms)}"
            times = f", as it may have messages due at any time until {time_text(end_ms)}"
        if begin_ms > self._clock():
            return f"{begin}, delivery stops there{times}. "
        status = self._wheel.status()
        if status.held_topics and end_ms <= status.mark_c:
            return "Messages in it of topics that are held back wait until it is mended. "
        return f"It is due, and delivery stands still until it is mended{times}. "


def remedy_of(data: str, *, has_peers: bool) -> str:
    """The remedy for a damaged slot file."""
    if has_peers:
        return (
            "Its messages are fetched from a peer that has them; should none have them, stop the"
            f" node and see what 'slotwheel repair {data}' says"
        )
    return f"Stop the node, see what 'slotwheel repair {data}' says, and repair it with --yes"
