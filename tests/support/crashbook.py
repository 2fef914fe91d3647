"""What the world outside a wheel knows, and what may never contradict it.

A book outlives every crash of the wheel it watches: it is the callers with their receipts, the
target topics with what arrived in them, and the people who were told "cancelled". Each method that
takes news in also checks it, so a broken promise is found at the moment it shows. I1 to I8 are
those of docs/design.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from slotwheel.wheel.answers import AppendReceipt, CancelAnswer
from slotwheel.wheel.mark import Marks

Key = tuple[int, int]
"""``(due, offset)`` of a row."""


@dataclass(frozen=True)
class Order:
    """A message as it was sent."""

    topic: str
    value: bytes
    due: int


@dataclass(frozen=True)
class Stored:
    """A row as it was found in slot files or tail. ``cancels``: the target of a cancel row."""

    topic: str
    value: bytes | None
    cancels: int | None


def covers(marks: Marks, topic: str, key: Key) -> bool:
    """Whether a row of that topic is done with: by the topic's own copy of the mark if it has one,
    which lags behind the main mark."""
    copy = marks.copies.get(topic)
    return marks.main.covers(*key) and (copy is None or copy.mark.covers(*key))


@dataclass
class Book:
    sent: set[Order] = field(default_factory=set)
    moved: set[bytes] = field(default_factory=set)
    """Values that were rescheduled, so they may exist under several keys."""
    owner: dict[int, tuple[int, Order]] = field(default_factory=dict)
    """Offset -> due and message, once committed or delivered. I8: it never changes."""
    receipts: set[Key] = field(default_factory=set)
    answered: set[Key] = field(default_factory=set)
    """The sink took it, or the dead-letter topic did."""
    offered: set[Key] = field(default_factory=set)
    asked: set[Key] = field(default_factory=set)
    """Somebody asked to cancel it; whether that came through may be unknown."""
    cancelled: set[Key] = field(default_factory=set)
    """The answer was "cancelled", or the cancel was found committed."""
    protected: set[Key] = field(default_factory=set)
    """Answered before a mark that was committed: never to be delivered again."""
    this_life: set[Key] = field(default_factory=set)
    repeats: int = 0
    may_be_lost: set[Key] = field(default_factory=set)
    """Under at-most-once: what was leaving at a crash."""
    once: bool = False
    """Nothing may be repeated."""

    def own(self, key: Key, order: Order) -> None:
        """The row at that offset is this one, for ever (I2, I8)."""
        due, offset = key
        assert order in self.sent, f"{order} at offset {offset} was never sent"
        assert due == order.due, f"due time of {order} changed to {due}"
        known = self.owner.setdefault(offset, (due, order))
        assert known == (due, order), f"offset {offset} was {known}, and is {order} now"

    def receipt(self, orders: list[Order], receipt: AppendReceipt) -> None:
        assert receipt.count == len(orders)
        for row, order in enumerate(orders):
            key = (int(receipt.due[row]), receipt.base_offset + row)
            self.own(key, order)
            self.receipts.add(key)

    def offer(self, key: Key, order: Order, now_ms: int) -> None:
        """A row reaches the sink."""
        assert key[0] <= now_ms, f"{order} is early: {key[0]} > {now_ms}"  # I3
        assert key not in self.cancelled, f"{order} was cancelled and is delivered"
        assert key not in self.protected, f"{order} was marked as delivered and is repeated"
        assert key not in self.this_life, f"{order} is delivered twice without a crash"
        self.own(key, order)
        self.offered.add(key)

    def accept(self, key: Key) -> None:
        assert not self.once or key not in self.answered, f"{key} is repeated"
        self.repeats += key in self.answered
        self.answered.add(key)
        self.this_life.add(key)

    def cancel(self, key: Key, answer: CancelAnswer) -> None:
        if answer is CancelAnswer.CANCELLED:
            assert key not in self.answered, f"{key} was delivered, and the answer is: cancelled"
            self.cancelled.add(key)
        elif answer is CancelAnswer.DELIVERED:
            assert key in self.answered, f"{key} was not delivered, and the answer says so"

    def check_marks(self, marks: Marks) -> None:
        """I4: a mark covers only what was answered or cancelled."""
        for offset, (due, order) in self.owner.items():
            key = due, offset
            if covers(marks, order.topic, key):
                assert self._settled(key), (
                    f"{marks} covers {order} at {key}, for which nobody answered"
                )

    def _settled(self, key: Key) -> bool:
        return any(key in one for one in (self.answered, self.asked, self.may_be_lost))

    def check_grown(self, before: Marks, after: Marks) -> None:
        """I4: what was covered stays covered."""
        for offset, (due, order) in self.owner.items():
            if covers(before, order.topic, (due, offset)):
                assert covers(after, order.topic, (due, offset)), (
                    f"{order} was covered by {before} and is not by {after}"
                )

    def check_recovered(self, rows: dict[Key, Stored], marks: Marks, next_offset: int) -> None:
        """Right after a restart: nothing is lost, nothing is invented, no offset comes twice."""
        for key, row in rows.items():
            if row.cancels is not None:
                target = key[0], row.cancels
                assert target in self.asked, f"nobody asked to cancel {target}"
                assert target not in self.answered, f"{target} was delivered before its cancel"
                self.cancelled.add(target)
                continue
            assert row.value is not None
            self.own(key, Order(row.topic, row.value, key[0]))
        for offset, (due, order) in self.owner.items():
            key = due, offset
            assert offset < next_offset, f"offset {offset} would be given again"
            assert key in rows or covers(marks, order.topic, key), (  # I1, I2, I5
                f"{order} at {key} is gone: neither stored nor covered by {marks}"
            )
        self.check_marks(marks)
        self.check_once()

    def check_once(self) -> None:
        """No message has two keys, unless it was rescheduled."""
        keys: dict[Order, list[int]] = defaultdict(list)
        for offset, (_, order) in self.owner.items():
            keys[order].append(offset)
        for order, offsets in keys.items():
            assert len(offsets) == 1, f"{order} was stored {len(offsets)} times: {offsets}"

    def check_end(self) -> None:
        """When all is due and done: acknowledged is delivered, unless it was cancelled."""
        for key in self.owner:
            due, order = self.owner[key]
            at = due, key
            assert self._settled(at), f"{order} never arrived"  # I1
            done = self.answered, self.cancelled, self.may_be_lost
            assert any(at in one for one in done) or at not in self.receipts, (
                f"{order} never arrived, and its cancel did not come through"
            )
        values = [order.value for _, order in self.owner.values()]
        for value in set(values):
            assert values.count(value) == 1 or value in self.moved, f"{value!r} is there twice"
