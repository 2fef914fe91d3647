"""The guard of the wall clock: a jump ahead by more than an hour is not believed.

Theory: what a wheel does by its clock cannot be undone: messages leave, a mark says up to when,
archives are deleted. If a clock stood a day ahead for a few seconds, a day's messages would leave
early, and then nothing would leave for a day. A second clock, which only counts from the machine's
start (with the time that it sleeps), tells a jump from time that passes. While the wall clock is
more than an hour ahead of what the second one has counted, time goes on as if the wall clock had
not jumped. A step back, and a small one ahead, is followed.

Messages that have left prove that their time has come, so a clock at that time, or up to an hour
beyond, has not jumped there. A clock that was behind that time at its first reading was started
wrong, and nobody knows how far it has to go: it is followed, and the first reading that is not
behind is believed, however far it went.

*Example.* It is 12:00, and the clock is set to 12:00 of the next day. For this guard it is 12:00:04
four seconds later. If the clock is set right, nothing has happened; if a person accepts the jump,
it is the next day.

*Example.* A machine begins with a clock of last year, and messages have left until yesterday. It is
last year until NTP has set the clock; then it is today.
"""

from __future__ import annotations

JUMP_MS = 3_600_000
"""A wall clock that goes ahead by more than this, beyond the time that has passed, has jumped."""
RETURN_MS = 6 * 3_600_000
"""For so long after a step back the clock may return to where it was."""


class JumpGuard:
    """``offset_ms``: wall clock minus the other one, when the wall clock was believed last; None:
    nothing is known, and the first reading is believed."""

    def __init__(self, offset_ms: int | None = None) -> None:
        self.offset_ms = offset_ms
        self._before_step_back: tuple[int, int] | None = None
        """The offset before the clock stepped back by more than ``JUMP_MS``, and until when, by the
        other clock, a return to it is believed: one bad answer of NTP is corrected soon."""
        self.ahead_ms = 0
        """The wall clock has jumped ahead by so much and is not believed; 0: it is."""

    def time(self, wall_ms: int, passed_ms: int, proven_ms: int = -1) -> int:
        """The time to go by, ms. ``passed_ms``: the other clock; ``proven_ms``: surely past."""
        offset_ms = wall_ms - passed_ms
        known_ms = self.offset_ms
        if known_ms is None:
            if wall_ms < proven_ms:
                return wall_ms
        elif wall_ms - max(passed_ms + known_ms, proven_ms) > JUMP_MS:
            if not self._returns_to(offset_ms, passed_ms):
                self.ahead_ms = offset_ms - known_ms
                return passed_ms + known_ms
        elif known_ms - offset_ms > JUMP_MS:
            self._before_step_back = known_ms, passed_ms + RETURN_MS
        self.offset_ms, self.ahead_ms = offset_ms, 0
        return wall_ms

    def _returns_to(self, offset_ms: int, passed_ms: int) -> bool:
        if self._before_step_back is None:
            return False
        before_ms, until_ms = self._before_step_back
        return passed_ms <= until_ms and offset_ms - before_ms <= JUMP_MS

    @property
    def stepped_back(self) -> bool:
        """True if the clock has stepped back, so that what was done before may be ahead of it."""
        return self._before_step_back is not None

    def accept(self, wall_ms: int, passed_ms: int) -> None:
        """Believe the wall clock as it is, since a person says that it is right."""
        self.offset_ms, self.ahead_ms = wall_ms - passed_ms, 0
