"""The crash sweep with names: a life of which each batch has named rows, and what must hold of it.

The world knows a name by what its callers were told, and by nothing else. At every start, and
behind every act, at most one message of a name is pending, and the table says which one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from slotwheel.wheel.answers import AppendReceipt, Before, CancelAnswer, NamedAnswer
from slotwheel.wheel.checks import InputBatch
from slotwheel.wheel.errors import NameTaken, Overloaded, SequenceTooOld, SlotwheelError
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.named import table
from slotwheel.wheel.named.runs import DIRECTORY
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.rows import from_columns
from support.crashbook import Key, Order, covers
from support.crashlife import START_MS, Steps, World
from support.crashscript import Scene
from support.plainrows import append_together, batch_of_records
from support.wheels import master_of

REPLACE, KEEP, REFUSE = IfExists


class Row(NamedTuple):
    """A named message. ``due``: ms from the start."""

    topic: str
    due: int
    name: str
    mode: IfExists = REPLACE


class NamedWorld(World):
    """A world whose batches have names."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps, embedded=False)
        self.scenes = SCENES
        self.name_of: dict[Order, str] = {}
        self.keys: dict[str, set[Key]] = defaultdict(set)
        """By name: all messages that were ever stored under it, as far as is known."""
        self.told: dict[str, Sequence[NamedAnswer]] = {}
        """By batch: what its first receipt said of names."""
        self.said_pending: dict[Key, str] = {}
        """Messages for which others were refused, and their names."""
        self.counts: dict[str, int] = defaultdict(int)
        self._modes: dict[str, Sequence[Row]] = {}
        self._awaited: list[tuple[str, AppendReceipt]] = []

    # -- what callers do -------------------------------------------------------------------------

    def append_named(
        self, batch: str, rows: Sequence[Row], *, producer: int = 0, sequence: int = -1
    ) -> None:
        orders = self._sent(batch, rows)
        none = [None] * len(rows)
        made = from_columns(
            *([order.due for order in orders], [row.topic for row in rows], none, none),
            [order.value for order in orders],
            [_headers(row) for row in rows],
        )
        sent = InputBatch(made, producer, sequence)
        self._outcome(batch, self.wheel.append_all([sent], self.now_ms)[0])

    def append_named_together(self, turn: Sequence[tuple[str, Sequence[Row], int, int]]) -> None:
        """Batches of plain rows, each with its producer and sequence, that come in one turn."""
        batches = []
        for batch, rows, producer, sequence in turn:
            records = [
                (
                    *(order.due, order.topic.encode(), None, None, order.value),
                    [(name.encode(), value) for name, value in _headers(row)],
                )
                for order, row in zip(self._sent(batch, rows), rows, strict=True)
            ]
            batches.append(batch_of_records(records, producer, sequence))
        outcomes = append_together(self.wheel, batches, self.now_ms)
        for (batch, *_), outcome in zip(turn, outcomes, strict=True):
            self._outcome(batch, outcome)

    def _sent(self, batch: str, rows: Sequence[Row]) -> list[Order]:
        orders = self._orders(batch, [(row.topic, row.due) for row in rows])
        self._modes[batch] = rows
        for order, row in zip(orders, rows, strict=True):
            self.name_of[order] = row.name
            # Whoever has the name may be cancelled by this entry, whatever its caller is told.
            self.book.asked |= {key for key in self.keys[row.name] if self._may_wait(key)}
        return orders

    def _outcome(self, batch: str, outcome: object) -> None:
        if not isinstance(outcome, SlotwheelError):
            self._open_futures.append((batch, outcome))  # type: ignore[arg-type]
        elif isinstance(outcome, NameTaken):
            self._refused(batch, outcome)
        elif isinstance(outcome, SequenceTooOld):
            assert batch in self.bases, "a batch without an answer is called too old"
        else:
            assert isinstance(outcome, Overloaded), outcome
            self.counts["overloaded"] += 1

    def _refused(self, batch: str, error: NameTaken) -> None:
        self.counts["refused"] += 1
        assert error.row is not None
        name = self._modes[batch][error.row].name
        holder = MessageId.parse(str(error.got))
        key = holder.due, holder.offset
        is_of = key in self.keys[name] or self._is_of(name, key)
        assert is_of, f"{name} is refused for a message of another name"
        self._is_pending(name, key)
        self.said_pending[key] = name

    def _collect(self) -> None:
        left = []
        for batch, future in self._open_futures:
            if not future.done() or batch not in self._modes:
                left.append((batch, future))
            elif isinstance(error := future.exception(), NameTaken):
                self._refused(batch, error)
            else:
                self._receipt(batch, future.result())
                left.append((batch, future))
        self._open_futures = left
        super()._collect()

    def _receipt(self, batch: str, receipt: AppendReceipt) -> None:
        told = self.told.setdefault(batch, receipt.named)
        assert list(told) == list(receipt.named), f"{batch}: told something else than before"
        if batch in self.bases:
            return
        before = {answer.row: answer for answer in receipt.named}
        own: dict[str, Key] = {}
        for row, (sent, due) in enumerate(
            zip(self._modes[batch], receipt.due.tolist(), strict=True)
        ):
            key = due, receipt.base_offset + row
            answer = before.get(row)
            if answer is None:
                waits = [one for one in self.keys[sent.name] if self._waits(one) and one != key]
                assert not waits, f"{batch}: nothing is told of {waits}, which has {sent.name}"
            else:
                self.counts[answer.before] += 1
                self._told_of(sent.name, key, answer, own)
            self.keys[sent.name].add(key)
            own[sent.name] = key

    def _told_of(self, name: str, key: Key, answer: NamedAnswer, own: dict[str, Key]) -> None:
        other = answer.due, answer.offset
        assert other in self.keys[name] or self._is_of(name, other), f"{other} is not {name}"
        self.keys[name].add(other)
        if answer.before is Before.REPLACED:
            self.book.asked.add(other)
            self.book.cancel(other, CancelAnswer.CANCELLED)
        elif answer.before is Before.KEPT:
            self.book.asked.add(key)
            self.book.cancel(key, CancelAnswer.CANCELLED)
            self._is_pending(name, other)
        elif answer.before is Before.DELIVERED:
            self.book.cancel(other, CancelAnswer.DELIVERED)
            assert other not in self.book.cancelled, f"{other} was cancelled"

    def _is_of(self, name: str, key: Key) -> bool:
        """True for a message of which nobody has a receipt yet, as its name was sent."""
        known = self.book.owner.get(key[1])
        return known is None or self.name_of.get(known[1]) == name

    def _is_pending(self, name: str, key: Key) -> None:
        done = key in self.book.answered or key in self.book.cancelled
        assert not done, f"{name} is said to be pending as {key}, which is not"

    def _may_wait(self, key: Key) -> bool:
        return key not in self.book.answered and key not in self.book.cancelled

    def _waits(self, key: Key) -> bool:
        """True if by all that was told the message is pending."""
        return self._may_wait(key) and key in self.book.receipts and key not in self.book.asked

    def cancel_named(self, topic: str, name: str) -> None:
        self.book.asked |= {key for key in self.keys[name] if self._may_wait(key)}
        answer, before = self.wheel.cancel_named(topic, name, self.now_ms, 0)
        if before is None:
            return
        key = before.due, before.offset
        assert key in self.keys[name], f"{key} is not {name}"
        self.book.cancel(key, answer)
        self.commit()
        self.book.cancel(key, self.wheel.cancel([before], self.now_ms, 0)[0])

    def reschedule_named(self, topic: str, name: str, due: int) -> None:
        target = self.wheel.named(topic, name)
        if target is None or target.offset not in self.book.owner:
            return
        order = self.book.owner[target.offset][1]
        moved = Order(order.topic, order.value, START_MS + due)
        self.book.asked |= {key for key in self.keys[name] if self._may_wait(key)}
        self.book.sent.add(moved)
        self.book.moved.add(order.value)
        self.name_of[moved] = name
        first = self.wheel._log.next_offset
        answer, before, _ = self.wheel.reschedule_named(topic, name, moved.due, self.now_ms, 0)
        assert before == target
        self.book.cancel((before.due, before.offset), answer)
        queued = self.wheel._log.next_offset > first
        self.commit()
        if queued:
            key = moved.due, first + 1
            self.book.own(key, moved)
            self.book.receipts.add(key)
            self.keys[name].add(key)
            self.book.cancel(
                (before.due, before.offset), self.wheel.cancel([before], self.now_ms, 0)[0]
            )

    # -- what must hold --------------------------------------------------------------------------

    def open(self) -> None:
        # Of an entry whose receipt never came, a row may have been kept out, and is cancelled.
        self._allow_kept()
        super().open()
        anew = [line for line in self.wheel.mended if line.startswith("names of messages")]
        assert not anew, f"runs that the state names are not there: {anew}"
        runs = [info.path for run in self.wheel._storage.names.runs for info in [run.info]]
        assert sorted(f"{DIRECTORY}/{name}" for name in self.files.list(DIRECTORY)) == runs
        self.check_names()

    def _allow_kept(self) -> None:
        """A row that was to keep another one may be found cancelled by its own entry."""
        book, named = self.book, self.name_of
        check = type(book).check_recovered

        def check_recovered(rows, marks, next_offset):  # type: ignore[no-untyped-def]
            by_offset = {offset: (due, offset) for due, offset in rows}
            for key, row in rows.items():
                order = Order(row.topic, row.value or b"", key[0])
                if row.cancels is None and order in named:
                    self.keys[named[order]].add(key)
            for row in rows.values():
                target = by_offset.get(row.cancels)
                if target is not None and target not in book.receipts:
                    order = Order(rows[target].topic, rows[target].value or b"", target[0])
                    if order in named:
                        book.asked.add(target)
            check(book, rows, marks, next_offset)
            for key, name in self.said_pending.items():
                is_there = key in rows or not self._may_wait(key)
                assert is_there, f"{name} was refused for {key}, which is not stored"

        book.check_recovered = check_recovered  # type: ignore[method-assign]

    def check_names(self) -> None:
        """At most one message of a name is pending, and it is the one of the table."""
        rows = self.stored()
        cancelled = {row.cancels for row in rows.values() if row.cancels is not None}
        marks = master_of(self.wheel).due.lines.marks()
        pending: dict[tuple[str, str], list[Key]] = defaultdict(list)
        for key, row in rows.items():
            if row.cancels is not None or key[1] in cancelled or covers(marks, row.topic, key):
                continue
            if key not in self.book.answered:  # it may come again, as its mark was lost
                name = self.name_of[Order(row.topic, row.value or b"", key[0])]
                pending[row.topic, name].append(key)
        for (topic, name), keys in pending.items():
            assert len(keys) == 1, f"{name}: {len(keys)} messages are pending, {keys}"
            held = self.wheel.named(topic, name)
            assert held is not None, f"{name} is pending, and no name"
            assert (held.due, held.offset) == keys[0], f"{name} is {held.offset}, not {keys}"


def _headers(row: Row) -> list[tuple[str, bytes]]:
    return [(NAME_HEADER, row.name.encode()), (IF_EXISTS_HEADER, row.mode.encode())]


# -- the script ------------------------------------------------------------------------------------


def _first(w: NamedWorld) -> None:
    """Enough names that the first run is larger than the next ones together."""
    rows = [Row("x", 900, "a"), Row("x", 1500, "b"), Row("y", 4000, "c"), Row("x", 60_000, "far")]
    w.append_named("n0", [*rows, Row("z", 7_100_000, "wide")], producer=7, sequence=0)
    for number in range(4):
        more = [Row("z", 20_000 + row, f"more {number} {row}") for row in range(6)]
        w.append_named(f"more {number}", more, producer=9, sequence=number)
    w.commit()


def _turn(w: NamedWorld) -> None:
    """Callers of one turn: one replaces, one keeps, one is refused, and one repeats."""
    t0 = "t0", [Row("x", 950, "a"), Row("x", 2100, "d")], 11, 0
    t1 = "t1", [Row("x", 1600, "b", KEEP), Row("x", 2200, "e")], 12, 0
    t2 = "t2", [Row("x", 2300, "f"), Row("y", 4100, "c", REFUSE)], 13, 0
    t3 = "t3", [Row("x", 2400, "f", REFUSE), Row("x", 2500, "f", KEEP)], 14, 0
    w.append_named_together([t0, t1, t2, t3, t1])
    w.commit()


def _after_a_spill(w: NamedWorld) -> None:
    rows = [
        Row("x", 1000, "a"),
        Row("x", 1700, "b", KEEP),
        Row("y", 4200, "g", REFUSE),
        Row("x", 60_100, "far"),
        Row("z", 7_100_100, "wide", KEEP),
        Row("y", 4300, "g"),
    ]
    w.append_named("n1", rows, producer=7, sequence=1)
    w.commit()


def _refused(w: NamedWorld) -> None:
    w.append_named("n2", [Row("x", 5000, "free"), Row("x", 2000, "far", REFUSE)])
    w.append_named("n3", [Row("x", 5001, "free", REFUSE)])
    w.commit()


def _refused_at_once(w: NamedWorld) -> None:
    """They are refused for messages that are not on disk yet."""
    w.append_named("n8", [Row("x", 5100, "fresh")], producer=15, sequence=0)
    w.append_named("n9", [Row("x", 5101, "fresh", REFUSE)])
    t4 = "t4", [Row("x", 5200, "fresher")], 16, 0
    t5 = "t5", [Row("x", 5201, "fresher", REFUSE)], 17, 0
    t6 = "t6", [Row("x", 5202, "fresh", REFUSE)], 18, 0
    w.append_named_together([t4, t5, t6])
    w.commit()


def _delivered_before(w: NamedWorld) -> None:
    w.append_named("n4", [Row("x", 3000, "a", KEEP), Row("x", 3001, "h", REFUSE)], producer=8)
    w.commit()


def _again(w: NamedWorld) -> None:
    """Callers that got no answers repeat."""
    _first(w)
    _turn(w)
    _after_a_spill(w)


def _while_it_leaves(w: NamedWorld) -> None:
    """The sink has the message, and then refuses it: what comes meanwhile is not taken."""
    done: list[str] = []

    def between() -> None:
        if not done:
            done.append("once")
            w.append_named("n5", [Row("x", w.now_ms - START_MS + 900, "leaves")])
            w.append_named("n6", [Row("x", w.now_ms - START_MS + 901, "leaves", KEEP)])
            w.commit()
            w.spill(everything=True)

    due = w.now_ms - START_MS
    w.append_named("l0", [Row("x", due + 1, "goes"), Row("x", due + 2, "leaves")])
    w.commit()
    w.is_down_after = 1
    w.wait(10)
    w.deliver(between)
    w.commit()
    w.is_down_after = None
    w.deliver()
    w.commit()


def _by_name(w: NamedWorld) -> None:
    w.cancel_named("x", "far")
    w.cancel_named("z", "more 0 3")
    w.reschedule_named("z", "wide", 7_000_000)
    w.reschedule_named("y", "c", 4600)
    w.cancel_named("x", "nobody")


def _again_by_name(number: int) -> Any:
    def act(w: NamedWorld) -> None:
        w.reschedule_named("z", "wide", 6_900_000 + number)
        rows = [Row("x", 61_000, "far", KEEP), Row("z", 21_000, "more 0 3", REFUSE)]
        w.append_named(f"n7 {number}", rows)
        w.commit()

    return act


def _young(w: NamedWorld) -> None:
    """Some are old enough to be spilled, and some names are taken by younger ones."""
    due = w.now_ms - START_MS
    w.append_named("y0", [Row("x", due + 30_000, "young"), Row("x", due + 31_000, "b")])
    w.commit()
    w.wait(2_100)
    w.append_named("y1", [Row("x", due + 32_000, "young"), Row("x", due + 33_000, "b", KEEP)])
    w.commit()
    w.spill()


def _spill(w: NamedWorld) -> None:
    w.spill(everything=True)


def _clean(w: NamedWorld) -> None:
    """With it go runs of similar size, which are merged."""
    with patch.object(table, "_FEW_NAMES", 0):
        w.clean()


def _tick(ms: int) -> Any:
    def act(w: NamedWorld) -> None:
        w.wait(ms)
        w.deliver()
        w.commit()

    return act


def _scene(name: str, act: Any, *, again: bool = False) -> Scene:
    def checked(w: Any) -> None:
        act(w)
        w.check_names()

    return Scene(name, checked, again)


SCENES: Sequence[Scene] = [
    _scene("many names", _first, again=True),
    _scene("callers of one turn", _turn, again=True),
    _scene("spill all", _spill),
    _scene("names that are in files", _after_a_spill, again=True),
    _scene("refused", _refused),
    _scene("refused at once", _refused_at_once),
    _scene("a and b leave", _tick(1_200)),
    _scene("a again", _delivered_before),
    _scene("spill once more", _spill),
    _scene("a message is leaving", _while_it_leaves),
    _scene("cancels by name", _by_name),
    _scene("clean", _clean),
    _scene("spill cancels", _spill),
    _scene("clean and merge", _clean),
    _scene("everything is sent again", _again, again=True),
    _scene("stop and start", lambda w: w.restart()),
    _scene("by name again", _again_by_name(0)),
    _scene("spill by age", _young),
    _scene("time passes", _tick(1_500)),
    _scene("spill behind it", _spill),
    _scene("clean again", _clean),
    _scene("everything is sent once more", _again, again=True),
    _scene("stop and start again", lambda w: w.restart()),
    _scene("by name once more", _again_by_name(1)),
]
