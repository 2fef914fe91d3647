"""The consumer's own thread: it reads, lets the outbox send, and commits.

It waits for brokers that are away. An error that does not pass ends the consumer, and is raised in
the thread that takes the next message.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from .inflight import CommitBatch
from .message import Received, SourcePartition
from .observing import HELD_S
from .parts import Parts
from .source import POLL_INTERVAL_S, ConsumerFailed, SourceAway
from .transactions import TransactionFailed

_log = logging.getLogger("slotwheel.consumer")

COMMIT_EVERY_S = 0.5
TRANSACTION_EVERY_S = 0.1
CLOSE_S = 1.9
_SETTLE_S = 0.5
_POLL_COUNT = 2000
_PAUSE_S = 0.2
HOLD_AFTER_S = 1.0
"""Partitions are paused when there has been no room for so long, s: a member must poll to keep its
place in the group."""
_ROOM_WAIT_S = 0.02
_TELL_EVERY_S = 0.1
_FENCED_MAX, _FENCED_WITHIN_S = 4, 60.0
"""The transactional id is taken back from another process at most so often within so long, s."""
_LETTERS = 2
"""So many dead letters are tried for a message: a whole one, and one without content."""


class Pump:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._inflight, self._outbox = parts.inflight, parts.outbox
        self._source, self._transactor = parts.source, parts.transactor
        self.refused: dict[tuple[SourcePartition, int], list[str]] = {}
        """Messages whose output the brokers have refused, with the reason of each refusal."""
        self._fenced_s: list[float] = []
        """The times at which another process had taken the transactional id."""
        self._every_s = COMMIT_EVERY_S if parts.transactor is None else TRANSACTION_EVERY_S
        self._error: Exception | None = None
        self._uncommitted = False
        """True when a transaction failed while the consumer stops: no other one is tried."""
        self._stopping = threading.Event()
        self._asked = threading.Condition()
        self._requests, self._answered = 0, 0
        self._ended = False
        self._told_s = 0.0
        """The observer has the messages that the application got until then."""
        self._full_s: float | None = None
        """The time since which there has been no room; None: there is room."""
        self._held: set[SourcePartition] = set()
        self._thread = threading.Thread(target=self._run, name="slotwheel-consumer", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._stopping.is_set()

    def check(self) -> None:
        """Errors: ``ConsumerFailed``, or another error that has ended the thread."""
        if self._error is not None:
            raise self._error

    def commit(self, timeout_s: float) -> None:
        with self._asked:
            self._requests += 1
            number = self._requests
            self._asked.wait_for(lambda: self._answered >= number or self._ended, timeout_s)
        self.check()
        if self._answered < number:
            reason = "the consumer is closed" if self._ended else f"not within {timeout_s:g} s"
            raise TimeoutError(f"not committed: {reason}")

    def close(self) -> None:
        self._stopping.set()
        self._inflight.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        next_s = time.monotonic() + self._every_s
        try:
            while not self._stopping.is_set():
                try:
                    self._tell_held(time.monotonic() - HELD_S)
                    self._round()
                    with self._asked:
                        asked = self._requests
                    if asked > self._answered or time.monotonic() >= next_s:
                        worked = self._commit()
                        next_s = time.monotonic() + self._every_s
                        if worked:
                            self._answer(asked)
                except SourceAway as error:
                    _log.warning("slotwheel consumer: %s", error)
                    self._stopping.wait(_PAUSE_S)
        except Exception as error:
            if not isinstance(error, ConsumerFailed):
                _log.exception("slotwheel consumer: a defect of slotwheel")
            self._error = error
            self._inflight.end()
        finally:
            self._end()

    def _round(self) -> None:
        half = max(1, self._parts.wanted.messages_max // 2)
        room, now = self._inflight.room(), time.monotonic()
        if room and (self._full_s is None or self._inflight.enough(half)):
            self._full_s = None
        elif self._full_s is None:
            self._full_s = now
        for_long = self._full_s is not None and now - self._full_s > HOLD_AFTER_S
        if self._full_s is not None and not for_long:
            # A pause would lose the records that the client has fetched ahead, so it comes later.
            self._inflight.wait_for_room(half, _ROOM_WAIT_S)
            self._outbox.settle()
            return
        held = set(self._inflight.partitions()) if for_long else self._inflight.held_back()
        if held or self._held:
            self._source.hold(held)
            self._held = held
        source = self._source
        messages = source.poll(POLL_INTERVAL_S, max(1, min(room, _POLL_COUNT)))
        by_partition: dict[tuple[str, int], list[Received]]
        by_partition = {partition: [] for partition in source.seen}
        for message in messages:
            by_partition[message.topic, message.partition].append(message)
        for partition, seen in source.seen.items():
            self._inflight.receive(partition, by_partition[partition], seen)
        self._outbox.settle()

    def _tell_held(self, until_s: float) -> None:
        """Report to the observer unanswered messages that the application got until ``until_s``."""
        observer = self._parts.wanted.observer
        if observer is None or until_s < self._told_s + _TELL_EVERY_S:
            return
        messages = self._inflight.given(self._told_s, until_s)
        self._told_s = until_s
        if messages:
            observer.held(self._parts.wanted.group, messages)

    def _commit(self) -> bool:
        """Commit finished messages. Returns False when a transaction failed: reading begins again.
        Errors: ``SourceAway``, ``ConsumerFailed``."""
        batch = self._inflight.batch()
        if not batch.positions:
            return True
        if self._transactor is None:
            self._source.commit(batch.positions)
        else:
            try:
                self._transactor.commit(batch)
            except TransactionFailed as error:
                if self._stopping.is_set():
                    _log.warning("slotwheel consumer: not committed at the end: %s", error)
                    self._uncommitted = True
                else:
                    self._start_again(error, batch)
                return False
            self._source.stored(batch.positions)
        self._inflight.committed(batch.positions)
        if (observer := self._parts.wanted.observer) is not None:
            observer.committed(self._parts.wanted.group, batch.positions)
        if self.refused:
            self.refused = {
                (partition, offset): reasons
                for (partition, offset), reasons in self.refused.items()
                if offset >= batch.positions.get(partition, 0)
            }
        return True

    def _start_again(self, error: TransactionFailed, batch: CommitBatch) -> None:
        """Read on from the committed positions: nobody knows if the transaction was committed."""
        assert self._transactor is not None
        _log.warning("slotwheel consumer: a transaction failed, begins again: %s", error)
        if error.fenced:
            self._note_fenced()
        if error.refused is not None:
            self._note_refused(error.refused, str(error), batch)
        starts = self._inflight.restart()
        while not self._stopping.is_set():
            try:
                self._transactor.start()
                self._source.rewind(starts)
            except SourceAway as away:
                _log.warning("slotwheel consumer: %s", away)
                self._stopping.wait(_PAUSE_S)
            else:
                return

    def _note_fenced(self) -> None:
        now = time.monotonic()
        self._fenced_s = [at for at in self._fenced_s if now - at < _FENCED_WITHIN_S] + [now]
        if len(self._fenced_s) > _FENCED_MAX:
            raise ConsumerFailed(
                "another consumer takes the transactional id again and again",
                got=self._parts.wanted.transactional_id,
                remedy="Give each member a transactional_id of its own, or none",
            )

    def _note_refused(
        self, place: tuple[SourcePartition, int], reason: str, batch: CommitBatch
    ) -> None:
        """Note that an output of the message at ``place`` is refused: that becomes a dead letter,
        then a short one. Errors: ``ConsumerFailed``: the short one is refused, too."""
        reasons = self.refused.setdefault(place, [])
        reasons.append(reason)
        if len(reasons) > _LETTERS:
            topics = {output.topic for *of, output in batch.outputs if tuple(of) == place}
            raise ConsumerFailed(
                f"a dead letter is refused: {reason}",
                got=f"of {place[0].topic}/{place[0].partition}/{place[1]}, for {' '.join(topics)}",
                remedy="Create that topic, or let it take records of some kB (max.message.bytes)",
            )

    def _answer(self, number: int) -> None:
        with self._asked:
            self._answered = number
            self._asked.notify_all()

    def _end(self) -> None:
        """Commit finished messages, and close all parts."""
        deadline = time.monotonic() + _SETTLE_S
        self._tell_held(math.inf)
        try:
            if self._error is None and not self._uncommitted:
                while self._outbox.settle() and time.monotonic() < deadline:
                    time.sleep(0.005)
                with self._asked:
                    asked = self._requests
                if self._commit():
                    self._answer(asked)
        except (SourceAway, ConsumerFailed) as error:
            _log.warning("slotwheel consumer: not committed at the end: %s", error)
        except Exception:
            _log.exception("slotwheel consumer: a defect of slotwheel")
        finally:
            self._source.close()
            if self._transactor is not None:
                self._transactor.close()
            self._outbox.close(0.3)
            self._parts.close()
            with self._asked:
                self._ended = True
                self._asked.notify_all()
