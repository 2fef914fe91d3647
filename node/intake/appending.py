"""Appends the records of all sources to the wheel side by side, those of each source in order.

Rules
- An append of a source is awaited before its next one. Otherwise one that fails later would leave a
  gap: the position would be behind records that are in no entry.
- Records that the wheel cannot accept now are tried again, unchanged, until it can.
- Records over a quota wait as well, and all sources with them: they are no bad records, and become
  good ones when messages have left.
- A record with ``slotwheel-if-exists: refuse`` becomes a dead letter when another message has its
  name.
- So does a record whose name has a message that is just leaving, if its source has waited for such
  names for ``LEAVING_S`` since it was polled. *Example.* ``order-17`` is with a sink that does not
  answer: an hour long all other records would wait behind the next ``order-17``.
- A message to a topic that Kafka does not have becomes a dead letter now, as the other ways in
  refuse it now (``Door``), and not hours later, when it is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...security.pending import PendingOffer
from ...security.principals import Authenticator
from ...wheel.errors import NameTaken, NotMaster, NotRunning, Overloaded, OverQuota
from .agreeing import is_done
from .amounts import amounts_of, settle
from .delay_source import DelaySource
from .door import Door
from .ports import Clock, IntakeEvents, PoliciesPort, WheelPort
from .records import ConsumerRecords, rows_of

OFF_INTERVAL_S = 60.0
"""The least time, s, between two events about timestamps that are far from the node's clock."""
SLOW_COMMIT_S = 60.0
"""An append that is not committed after this time, s, is an alarm, once."""
LEAVING_S = 10.0
"""The longest time, s, for which records of one poll of a source wait, in all, because messages
with their names are just leaving. It is longer than Kafka mostly takes to elect a leader."""
_ROOM_WAIT_S = 0.5
_WAIT_S = 0.05

GiveUp = Callable[[DelaySource, Exception], None]


class ClockInDoubt(Exception):
    """The node's clock is in doubt: records that are appended now would leave too early, or seem to
    be due beyond the horizon."""


class _Queued(NamedTuple):
    source: DelaySource
    part: ConsumerRecords
    future: Future[Any]
    rows: int
    nbytes: int
    dead: int
    off: tuple[int, ...]
    started: float
    offer: PendingOffer | None


class _Parts:
    """The unappended records of a source, as a stack of parts, the next one last. ``asked``: the
    time at which Kafka was asked for the topics of that part; None: it was not. ``waits``: the next
    part could not be appended just now. ``refused``: the error for which the next part, a single
    record, becomes a dead letter."""

    def __init__(self, records: ConsumerRecords) -> None:
        self.left = [records]
        self.asked: float | None = None
        self.waits = False
        self.refused: NameTaken | None = None
        self._patient_until: float | None = None
        """The monotonic time up to which records wait for messages that are just leaving."""

    def cut(self) -> bool:
        """Cut the next part in two; False: it is a single record."""
        part = self.left[-1]
        count = len(part.offsets)
        if count > 1:
            self.left[-1:] = [part.part(count // 2), part.part(0, count // 2)]
        return count > 1

    def refuse(self, error: NameTaken) -> None:
        """Cut the next part in two, as one of its records has a name that another message has; a
        single one becomes a dead letter. So the records beside it are stored, and of n records,
        whichever are refused, each is tried about log n times."""
        if not self.cut():
            self.refused = copy(error)
            self.refused.row = None  # its number in a batch that nobody knows

    def wait_for_name(self, error: Overloaded) -> None:
        """Cut the next part in two, as a message that has the name of one of its records is just
        leaving; a single one waits, or becomes a dead letter when records have waited enough."""
        if self.cut():
            return
        now = time.monotonic()
        if self._patient_until is None:
            self._patient_until = now + LEAVING_S
        if now < self._patient_until:
            self.waits = True
            return
        self.refused = NameTaken(
            error.message,
            got=f"records that have waited for it for {LEAVING_S:g} s",
            limit=f"{LEAVING_S:g} s for all records that were read at once",
            remedy="Look why the sink does not answer. A letter that is redriven has no name",
        )


class SourceAppender:
    """Appends records of delay topics, in the thread of the intake. ``authenticator``: as of
    ``DelayTopicIntake``. ``of_fleet``: each row gets the header ``slotwheel-source``. ``may_go_on``
    is asked before each round of appends; False ends them. ``grace_s``: how long after a stop the
    append under way is waited for."""

    def __init__(
        self,
        wheel: WheelPort,
        clock: Clock,
        events: IntakeEvents,
        *,
        dead_topic: str = DEAD_LETTER_TOPIC,
        policies: PoliciesPort | None = None,
        door: Door | None = None,
        authenticator: Authenticator,
        of_fleet: bool = False,
        may_go_on: Callable[[], bool] = lambda: True,
        grace_s: float = 0.0,
    ) -> None:
        self._of_fleet = of_fleet
        self._may_go_on = may_go_on
        self._grace_s = grace_s
        self._grace_end = float("inf")
        self.settled = True
        """False: the outcome of an append is not known, as the stop came before it."""
        self._wheel = wheel
        self._clock = clock
        self._events = events
        self._dead_topic = dead_topic
        self._policies = policies
        self._door = door
        self._authenticator = authenticator
        self._next_off = 0.0

    def time(self) -> int:
        """The clock's time, ms since the epoch. Errors: ``ClockInDoubt``."""
        now_ms = self._clock()
        try:
            self._wheel.check_clock(now_ms)
        except Overloaded as error:
            raise ClockInDoubt(error.message) from None
        return now_ms

    def append(
        self,
        records: Mapping[DelaySource, ConsumerRecords],
        stop: threading.Event,
        give_up: GiveUp,
    ) -> bool:
        """Append all records; those of a source are cut until each batch is within the limits.
        Returns False when ``stop`` came first, or ``may_go_on`` said so. ``give_up`` is called with
        each source whose records cannot be appended, and the error.

        Errors: ``NotMaster``, ``NotRunning``, ``ClockInDoubt``; those of ``may_go_on``."""
        pending = {source: _Parts(batch) for source, batch in records.items()}
        while pending and not stop.is_set() and self._may_go_on():
            queued: list[_Queued] = []
            for source, parts in list(pending.items()):
                try:
                    append = self._queue_next(source, parts)
                except (NotMaster, NotRunning, ClockInDoubt):
                    raise
                except Overloaded as error:
                    self._events.refused(error.code, len(parts.left[-1].offsets))
                    # After a stop between two tries the next start reads these records again.
                    if self._wheel.wait_for_room(_ROOM_WAIT_S):
                        stop.wait(0.02)
                    break
                except OverQuota as error:
                    self._events.refused(error.code, len(parts.left[-1].offsets))
                    stop.wait(error.retry_after_ms / 1000)
                    break
                except Exception as error:
                    give_up(source, error)
                    del pending[source]
                else:
                    if append is not None:
                        queued.append(append)
                    elif not parts.left:
                        del pending[source]
            for append in queued:
                self._wait_for(append, pending, stop, give_up)
            if pending and all(parts.waits for parts in pending.values()):
                stop.wait(_WAIT_S)
        return not pending

    def _queue_next(self, source: DelaySource, parts: _Parts) -> _Queued | None:
        """Append the source's next part. Returns None if it was in the log already, is cut in two,
        or waits: until Kafka has answered for its topics, or for a name."""
        parts.waits = False
        part = self._trimmed(source, parts.left[-1])
        if not part.offsets:
            parts.left.pop()
            return None
        config = self._wheel.config
        count = len(part.offsets)
        started = time.perf_counter()
        now_ms = self.time()
        settings = None if self._policies is None else self._policies.current
        topic = source.place.topic
        made = partial(
            rows_of,
            part,
            str(source.place),
            config,
            now_ms,
            self._dead_topic,
            settings,
            rights=self._authenticator.rights_of_delay_topic(topic),
            refused=parts.refused,
            of_fleet=self._of_fleet,
        )
        rows, dead, off = made()
        if self._door is not None:
            parts.asked = parts.asked or started
            absent = self._door.absent(rows, started - parts.asked, settled=True)
            if absent is None:
                parts.waits = True
                return None
            parts.asked = None
            if absent:
                rows, dead, off = made(absent)
        too_much = rows.num_rows > config.batch_rows_max or rows.nbytes > config.batch_bytes_max
        offer = None
        if not (too_much and count > 1):
            try:
                offer = self._authenticator.offer_of_delay_topic(topic, amounts_of(rows))
            except OverQuota:  # the first records of the part may be within it
                if count == 1:
                    raise
                too_much = True
        parts.left[-1] = part
        if too_much and count > 1:
            parts.cut()
            return None
        try:
            future = self._wheel.append_source(
                rows, now_ms, source=source.number, first=part.offsets[0], last=part.offsets[-1]
            )
        except Exception as error:
            if offer is not None:
                offer.settle(-1)
            if isinstance(error, NameTaken):
                parts.refuse(error)
            elif isinstance(error, Overloaded) and error.row is not None:
                self._events.refused(error.code, count)
                parts.wait_for_name(error)
            else:
                raise
            return None
        parts.left.pop()
        parts.refused = None
        return _Queued(source, part, future, count, rows.nbytes, dead, off, started, offer)

    def _wait_for(
        self,
        queued: _Queued,
        pending: dict[DelaySource, _Parts],
        stop: threading.Event,
        give_up: GiveUp,
    ) -> None:
        if queued.offer is not None:
            settle(queued.offer, queued.future)
        try:
            if not self._committed(queued.future, stop):
                self.settled = False
                return  # records that were not stored are read again after the start
        except (NotMaster, NotRunning):
            raise
        except Overloaded as error:
            self._events.refused(error.code, queued.rows)
            pending[queued.source].left.append(queued.part)
            return
        except NameTaken as error:
            parts = pending[queued.source]
            parts.left.append(queued.part)
            parts.refuse(error)
            return
        except Exception as error:
            give_up(queued.source, error)
            del pending[queued.source]
            return
        queued.source.backoff.worked()
        self._events.appended(queued.rows, queued.nbytes, time.perf_counter() - queued.started)
        if queued.dead:
            self._events.event(
                "delay-topic-dead-letters", source=str(queued.source.place), count=queued.dead
            )
        if queued.off and time.monotonic() >= self._next_off:
            self._next_off = time.monotonic() + OFF_INTERVAL_S
            self._events.event(
                "delay-topic-timestamps-far",
                source=str(queued.source.place),
                count=len(queued.off),
                behind_ms=max(0, -min(queued.off)),
                ahead_ms=max(0, *queued.off),
            )
        if not pending[queued.source].left:
            del pending[queued.source]

    def _committed(self, future: Future[Any], stop: threading.Event) -> bool:
        """Wait until an append is committed; False on ``stop``. Errors: those of the future."""
        slow_at = time.monotonic() + SLOW_COMMIT_S
        while not self._is_over(stop) or future.done():
            if is_done(future):
                return True
            if time.monotonic() >= slow_at:
                slow_at = float("inf")
                self._events.alarm("delay-topic-commit-slow")
        return False

    def _is_over(self, stop: threading.Event) -> bool:
        """Returns True when ``stop`` is set, and the time after it is over."""
        if not stop.is_set():
            return False
        self._grace_end = min(self._grace_end, time.monotonic() + self._grace_s)
        return time.monotonic() >= self._grace_end

    def _trimmed(self, source: DelaySource, records: ConsumerRecords) -> ConsumerRecords:
        position, start = source.position(self._wheel), 0
        while start < len(records.offsets) and records.offsets[start] <= position:
            start += 1
        return records.part(start) if start else records
