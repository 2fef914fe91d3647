"""The hand of the wheel: takes chunks of due rows, passes them to the sink, and reports its
answers.

One loop, in a thread of its own. Each turn reads the clock, takes one chunk from the wheel, reads
the clock *again* just before the delivery (it may have stepped back meanwhile, and nothing may be
early), delivers, and answers. Between turns it sleeps until the next row is due or an earlier row
is committed.

Rules
- The loop never dies. An unexpected exception is an alarm with its text, a short wait, and the next
  turn; the chunk in flight is released unanswered. Only a failed sync ends it, through
  ``on_fatal``: after that nothing on disk can be trusted.
- At a damaged slot file delivery stops, with one alarm, and tries again until the file is repaired.
- A sink that is down pauses everything and is asked again with growing pauses. Topics that are held
  back are delivered on the side (``held.py``).
- ``allowed`` is asked again before each delivery: a deposed master may not deliver.
- At a moderate rate what becomes due while the hand waits leaves together (``pace.py``).
- When more topics fail than can be held back, the wheel pauses the main mark; the hand notices that
  it makes no progress and waits longer each time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..wheel.backoff import Backoff
from ..wheel.due.chunk import Chunk
from ..wheel.errors import ClockBehind, Damaged, SyncFailed
from ..wheel.schema import times
from .departures import DepartureKeeper
from .handover import BatchOutcome, release
from .held import HeldTopics
from .pace import Pace
from .ports import DeliveryEvents, DuePort
from .semantics import AtLeastOnce, NotReady

log = logging.getLogger(__name__)

WAIT_MAX_S = 0.1
"""The longest sleep, s: after it the clock is read again, in case it was set meanwhile."""
_BEHIND_MS = 1_000
_REASONS_MAX = 20
"""So many different reasons for dead letters of one chunk are reported singly."""
_NOT_YET_S = 0.001
_NOT_ALLOWED_S = 0.01
_ERROR_WAIT_MAX_S = 2.0
_DAMAGED_WAIT_S = 1.0


class Hand:
    """Delivers the rows of one epoch.

    ``wheel`` is the epoch's dispatcher, ``semantics`` says how its chunks are delivered, ``clock``
    returns the wall clock in ms. ``allowed`` returns True while this node may deliver: with peers,
    while its lease lasts. ``departures`` keeps which rows left. ``on_fatal`` is called once, with
    the error, when the process has to end.
    """

    def __init__(
        self,
        wheel: DuePort,
        semantics: AtLeastOnce,
        clock: Callable[[], int],
        *,
        allowed: Callable[[], bool] = lambda: True,
        events: DeliveryEvents,
        departures: DepartureKeeper | None = None,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._wheel = wheel
        self._semantics = semantics
        self._clock = clock
        self._allowed = allowed
        self._events = events
        self._departures = departures or DepartureKeeper()
        self._on_fatal = on_fatal
        self._held = HeldTopics(
            wheel,
            semantics.sink,
            self._deliver_held,
            self._settle,
            clock,
            self._events,
            self._departures,
            in_turn=semantics.in_turn,
        )
        self._begun = False
        """True once the semantics know which rows have left."""
        self._down = False
        self._why_down = ""
        self._stuck = Backoff()
        self._begins = Backoff()
        self._errors = Backoff(0.01, _ERROR_WAIT_MAX_S)
        self._pause_until_s = 0.0
        self._pace = Pace()
        self._clock_alarm = False
        self._damage_alarm = ""
        """Text of the last alarm about damage; empty once rows can be read again."""
        self._turned_s = time.monotonic()
        self.failing = ""
        """The error of the last turn, if turns fail; empty once one has gone well."""
        self.busy = False
        """True while a chunk of the main mark is being delivered."""

    @property
    def silent_s(self) -> float:
        """Seconds since the last turn began."""
        return time.monotonic() - self._turned_s

    def run(self, stop: threading.Event) -> None:
        """Deliver until ``stop`` is set. Never raises."""
        self._semantics.stopping = stop.is_set
        try:
            while not stop.is_set():
                self._turned_s = time.monotonic()
                try:
                    self._turn(stop)
                    self._errors.worked()
                    self.failing = ""
                except SyncFailed:
                    raise
                except Exception as error:
                    log.exception("delivery failed and is tried again")
                    self.failing = f"{type(error).__name__}: {error}"
                    self._events.alarm("delivery-error", reason=self.failing)
                    stop.wait(self._errors.failed())
            self._held.close()
        except BaseException as error:
            log.critical("delivery ends: %s", error)
            self._on_fatal(error)

    def _turn(self, stop: threading.Event) -> None:
        if not self._allowed():
            stop.wait(_NOT_ALLOWED_S)
            return
        if not self._begun and not self._begin(stop):
            return
        moved = self._held_topics()
        if not self._begun:  # nobody knows if a topic's chunk has left: no mark may move now
            return
        if time.monotonic() >= self._pause_until_s and (not self._down or self._is_back()):
            moved |= self._main()
        if not moved and not stop.is_set():
            try:
                self._semantics.idle(self._wheel, self._clock())
            except NotReady:
                self._begun = False
            self._sleep(stop)

    def _begin(self, stop: threading.Event) -> bool:
        """Let the semantics find out which rows have left. Returns False where that fails: nothing
        is delivered, and the next turn tries again."""
        try:
            self._semantics.begin(self._wheel, self._clock())
        except (NotReady, Damaged) as error:
            self._goes_down(str(error))
            stop.wait(self._begins.failed())
            return False
        self._begun = True
        self._begins.worked()
        if self._down:
            self._comes_back()
        return True

    def _held_topics(self) -> bool:
        """A turn for held-back topics; their errors must not stop the other topics."""
        try:
            return self._held.turn(lambda: self._begun and not self._down)
        except SyncFailed:
            raise
        except Exception as error:
            if not isinstance(error, Damaged):  # its message is enough, without a traceback
                log.exception("a held-back topic failed; delivery goes on")
            self._events.alarm("held-topic-error", reason=f"{type(error).__name__}: {error}")
            return False

    def _main(self) -> bool:
        """Deliver one chunk of the main mark. Returns True when there may be another at once."""
        began_s, spent_s = time.monotonic(), time.thread_time()
        now_ms = self._clock()
        try:
            chunk = self._wheel.next_chunk(now_ms)
        except ClockBehind as error:
            if not self._clock_alarm:
                self._clock_alarm = True
                self._events.alarm("clock-behind", reason=str(error))
            self._pause(WAIT_MAX_S)
            return False
        except Damaged as error:
            if self._damage_alarm != error.message:
                self._damage_alarm = error.message
                self._events.alarm("delivery-error", reason=f"delivery stands still: {error}")
            self._pause(_DAMAGED_WAIT_S)
            return False
        self._clock_alarm, self._damage_alarm = False, ""
        if chunk is None:
            return False
        self._departures.withdrawn(chunk, now_ms)
        if chunk.rows.num_rows == 0:
            self._settle(chunk, BatchOutcome.nothing(0, ""))
            return True
        self.busy = True
        try:
            delivered = self._deliver(chunk)
        finally:
            self.busy = False
        next_s = self._pace.next_s(began_s, chunk.rows.num_rows, time.thread_time() - spent_s)
        if not self._is_behind(chunk):
            self._pause_until_s = max(self._pause_until_s, next_s)
        return delivered

    def _deliver(self, chunk: Chunk) -> bool:
        try:
            if int(times(chunk.rows, "due").max()) > self._clock():
                release(
                    self._wheel, chunk, handed=False, sink_down=True
                )  # the clock stepped back: ask again
                self._pause(_NOT_YET_S)
                return False
            if not self._allowed():  # the thread may have been stopped for long
                release(self._wheel, chunk, handed=False, sink_down=True)
                return False
            outcome = self._semantics.deliver(self._wheel, chunk, self._clock)
        except BaseException:
            self._begun = False  # nobody knows which rows have left
            release(self._wheel, chunk, handed=True, sink_down=True)
            raise
        holds = self._settle(chunk, outcome)
        if outcome.down:
            return False
        if holds or outcome.answered.any():
            self._stuck.worked()
        else:
            self._pause(self._stuck.failed())
        return True

    def _is_behind(self, chunk: Chunk) -> bool:
        """True while the hand catches up: the chunk's newest row has waited for a second or more.
        A chunk never spans more than a second, so the pace need not wait for further rows."""
        return self._clock() - int(chunk.ready.max()) >= _BEHIND_MS

    def _deliver_held(self, chunk: Chunk) -> BatchOutcome:
        """Deliver a chunk of a held-back topic, in a worker unless ``in_turn``. A worker may have
        been stopped since the chunk was taken, so lease and clock are asked again."""
        if not self._allowed() or int(times(chunk.rows, "due").max()) > self._clock():
            return BatchOutcome.nothing(chunk.rows.num_rows, "not now")
        try:
            return self._semantics.deliver(self._wheel, chunk, self._clock, trial=True)
        except BaseException:
            self._begun = False
            raise

    def _settle(self, chunk: Chunk, outcome: BatchOutcome) -> bool:
        """Report the outcome of a chunk: first to the departures, so that no mark covers a row of
        which they know nothing; then to the wheel, which moves the mark; then as events. Returns
        True when further topics are held back now."""
        held_before = set(self._wheel.held_topics())
        self._departures.answered(chunk, outcome, self._clock())
        self._wheel.answer(
            chunk,
            outcome.answered,
            outcome.dead.total(),
            expired=outcome.expired,
            unknown=outcome.unknown,
            sink_down=outcome.down or outcome.stop,
        )
        if outcome.hold:
            self._wheel.hold(outcome.hold, self._clock())
        self._begun &= not outcome.begin_again
        late = self._clock() - chunk.ready[outcome.accepted]
        if len(late):
            self._events.delivered(late)
        for text in outcome.errors:
            self._events.alarm("delivery-error", reason=text)
        unreported = outcome.dead.total()
        for reason, count in outcome.dead.most_common(_REASONS_MAX):
            self._events.dead(count, reason)
            unreported -= count
        if unreported:
            self._events.dead(unreported, "other reasons; each dead letter names its own")
        if outcome.expired:
            self._events.expired(outcome.expired)
        held = [topic for topic in self._wheel.held_topics() if topic not in held_before]
        for topic in held:
            self._departures.held(topic, chunk)
            self._events.held(topic, outcome.why(topic))
        if outcome.down:
            self._goes_down(outcome.why_not)
            self._pause(self._stuck.failed())
        return bool(held)

    def _goes_down(self, reason: str) -> None:
        if not self._down or reason != self._why_down:
            self._down, self._why_down = True, reason
            self._events.sink_down(reason)

    def _comes_back(self) -> None:
        self._down = False
        self._events.sink_up()

    def _is_back(self) -> bool:
        """Ask a sink that was down if it is up; this takes as long as the sink's own limit."""
        if not self._semantics.sink.healthy():
            self._pause(self._stuck.failed())
            return False
        self._comes_back()
        return True

    def _pause(self, seconds: float) -> None:
        self._pause_until_s = time.monotonic() + seconds

    def _sleep(self, stop: threading.Event) -> None:
        """Sleep until the next row is due, a pause is over, or a held-back topic may be tried."""
        limit_s = WAIT_MAX_S
        side_s = self._held.wait_s()
        if side_s is not None:
            limit_s = min(limit_s, max(_NOT_YET_S, side_s))
        pause_s = self._pause_until_s - time.monotonic()
        if pause_s > 0:
            # Due rows have to wait as well, so only the time counts.
            stop.wait(max(_NOT_YET_S, min(limit_s, pause_s)))
            return
        now_ms = self._clock()
        due_ms = self._wheel.next_due_ms()
        if due_ms is not None and due_ms <= now_ms:
            due_ms = now_ms + 1  # it cannot be handed out yet: not committed, or its cancel is not
        self._wheel.wait_for_due(due_ms, now_ms, limit_s)
