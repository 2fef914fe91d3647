"""Names through all that may happen to a wheel: the model knows only what callers were told.

At every moment at most one pending message has a name, what leaves is what the answers said, and a
repeat gets the answer of the first time.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slotwheel.wheel.answers import Before, CancelAnswer, NamedAnswer
from slotwheel.wheel.checks import InputBatch
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NameTaken, SlotwheelError
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.named import table
from slotwheel.wheel.named.runs import DIRECTORY
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.plain import PlainBatch, PlainReceipt
from slotwheel.wheel.rows import from_columns
from support.wheels import NOW, Node

CONFIG = WheelConfig(far_horizon_ms=30 * 86_400_000, chunk_rows_max=4, open_handles_max=2)
DUES_MS = [500, 1_500, 2_500, 60_000, 7_300_000, 3 * 86_400_000]
NAMES = ["a", "b", "ü" * 100]
TOPICS = ["t", "u"]

rows_of_batches = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from([*NAMES, None]),
        st.sampled_from(IfExists),
        st.sampled_from(DUES_MS),
    ),
    min_size=1,
    max_size=5,
)


@dataclass
class Sent:
    """A message as its caller knows it."""

    topic: str
    name: str | None
    value: bytes
    due: int
    offset: int
    place: tuple[int, int] = (0, 0)


class NamedMessages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.node = Node(self.directory, CONFIG, NOW)
        self.now_ms = NOW
        self.pending: dict[int, Sent] = {}
        """By offset."""
        self.holder: dict[tuple[str, str], int] = {}
        """The offset of the pending message that has a name."""
        self.left: list[bytes] = []
        self.delivered: set[int] = set()
        """Offsets of ``left``."""
        self.last: dict[tuple[str, str], int] = {}
        """The offset of the last message that had a name; empty of a table that was made anew."""
        self.count = 0
        self.sequence = 0
        self.repeats: list[tuple[Any, tuple[int, list[int], list[NamedAnswer]]]] = []

    @initialize(few=st.booleans())
    def limits(self, few: bool) -> None:
        self.few = table._FEW_NAMES
        table._FEW_NAMES = 0 if few else self.few

    def teardown(self) -> None:
        table._FEW_NAMES = self.few
        self.node.wheel.close()
        shutil.rmtree(self.directory)

    # -- sending ---------------------------------------------------------------------------------

    def _made(self, rows: list[Any]) -> list[tuple[int, str, bytes, list[tuple[str, bytes]]]]:
        made = []
        for topic, name, mode, ahead in rows:
            headers = [("x", b"y")]
            if name is not None:
                headers.append((NAME_HEADER, name.encode()))
                if mode is not IfExists.REPLACE or self.count % 2:
                    headers.append((IF_EXISTS_HEADER, mode.encode()))
            made.append((self.now_ms + ahead, topic, b"%d" % self.count, headers))
            self.count += 1
        return made

    def _expected(self, rows: list[Any]) -> list[tuple[int, Before, int]]:
        """What callers must be told, from what they were told before: row, what, offset of the one
        before or the row of the batch. Raises ``NameTaken``."""
        told: list[tuple[int, Before, int]] = []
        own: dict[tuple[str, str], int] = {}
        for row, (topic, name, mode, _) in enumerate(rows):
            if name is None:
                continue
            key = topic, name
            before = own.get(key, self.holder.get(key))
            if before is not None:
                if mode is IfExists.REFUSE:
                    raise NameTaken("expected", row=row)
                what = Before.REPLACED if mode is IfExists.REPLACE else Before.KEPT
                told.append((row, what, before))
                if mode is IfExists.KEEP:
                    continue
            own[key] = -1 - row
        return told

    def _stored(
        self, rows: list[Any], made: list[Any], base_offset: int, named: list[NamedAnswer]
    ) -> None:
        expected = self._expected(rows)
        told = [(answer.row, answer.before, answer.offset) for answer in named]
        pending = [each for each in told if each[1] in (Before.REPLACED, Before.KEPT)]
        assert pending == [
            (row, what, at if at >= 0 else base_offset - 1 - at) for row, what, at in expected
        ]
        for row, what, offset in told:
            if what is Before.DELIVERED:
                assert offset in self.delivered
            if what in (Before.DELIVERED, Before.UNKNOWN):
                assert offset not in self.pending
                assert self.last.get((rows[row][0], rows[row][1]), offset) == offset
        gone = {row for row, what, _ in told if what is Before.KEPT}
        for row, (due, topic, value, _) in enumerate(made):
            name = rows[row][1]
            offset = base_offset + row
            for at, what, before in told:
                if at == row and what is Before.REPLACED:
                    del self.pending[before]
            if row not in gone:
                self.pending[offset] = Sent(topic, name, value, due, offset)
                if name is not None:
                    self.holder[topic, name] = self.last[topic, name] = offset

    @rule(rows=rows_of_batches)
    def send(self, rows: list[Any]) -> None:
        made = self._made(rows)
        due, topics, values, headers = zip(*made, strict=True)
        none = [None] * len(made)
        batch = from_columns(due, topics, none, none, values, headers)
        self.sequence += 1
        sent = InputBatch(batch, 7, self.sequence)
        future = self.node.wheel.append_all([sent], self.now_ms)[0]
        self.node.sync()
        error = future if isinstance(future, SlotwheelError) else future.exception(0)
        if error is not None:
            with pytest.raises(NameTaken) as expected:
                self._expected(rows)
            assert isinstance(error, NameTaken)
            assert error.row == expected.value.row
            return
        assert isinstance(future, Future)
        receipt = future.result(0)
        named = list(receipt.named)
        self._stored(rows, made, receipt.base_offset, named)
        self.repeats.append((sent, (receipt.base_offset, receipt.due.tolist(), named)))
        del self.repeats[:-4]

    @rule(callers=st.lists(rows_of_batches, min_size=1, max_size=3))
    def send_plain(self, callers: list[list[Any]]) -> None:
        batches, made_of = [], []
        for number, rows in enumerate(callers):
            made = self._made(rows)
            plain = [
                (
                    due,
                    topic.encode(),
                    None,
                    None,
                    value,
                    [(name.encode(), content) for name, content in headers],
                )
                for due, topic, value, headers in made
            ]
            batches.append(PlainBatch(plain, 100, 100 + number, self.count, caller=number))
            made_of.append(made)
        answers: dict[int, Any] = {}

        def done(of: Any, answer: Any) -> None:
            first = 0
            for batch in of:
                answers[batch.caller] = (answer, first)
                first += len(batch.rows)

        self.node.wheel.append_plain(batches, self.now_ms, done)
        self.node.sync()
        for number, rows in enumerate(callers):
            answer, first = answers[number]
            if not isinstance(answer, PlainReceipt):
                assert isinstance(answer, NameTaken), answer
                continue
            count = len(rows)
            named = [
                each._replace(row=each.row - first)
                for each in answer.named
                if first <= each.row < first + count
            ]
            self._stored(rows, made_of[number], answer.base_offset + first, named)

    @rule()
    def repeat(self) -> None:
        for sent, (base_offset, due, named) in self.repeats:
            future = self.node.wheel.append(
                sent.rows, self.now_ms, producer=sent.producer, sequence=sent.sequence
            )
            self.node.sync()
            receipt = future.result(0)
            assert (receipt.base_offset, receipt.due.tolist()) == (base_offset, due)
            assert list(receipt.named) == named

    # -- by name and by id -----------------------------------------------------------------------

    def _gone(self, offset: int) -> Sent:
        sent = self.pending.pop(offset)
        if sent.name is not None:
            assert self.holder.pop((sent.topic, sent.name)) == offset
        return sent

    @rule(topic=st.sampled_from(TOPICS), name=st.sampled_from(NAMES))
    def cancel_named(self, topic: str, name: str) -> None:
        wheel = self.node.wheel
        answer, before = self.node.blocking(lambda: wheel.cancel_named(topic, name, self.now_ms))
        offset = self.holder.get((topic, name))
        if offset is None:
            assert answer is not CancelAnswer.CANCELLED
        else:
            assert answer is CancelAnswer.CANCELLED
            assert before is not None
            assert before.offset == offset
            self._gone(offset)

    @rule(
        topic=st.sampled_from(TOPICS), name=st.sampled_from(NAMES), ahead=st.sampled_from(DUES_MS)
    )
    def reschedule_named(self, topic: str, name: str, ahead: int) -> None:
        due = self.now_ms + ahead
        wheel = self.node.wheel
        answer, before, after = self.node.blocking(
            lambda: wheel.reschedule_named(topic, name, due, self.now_ms)
        )
        offset = self.holder.get((topic, name))
        if offset is None:
            assert after is None
        else:
            assert answer is CancelAnswer.CANCELLED
            assert before is not None
            assert before.offset == offset
            self._moved(offset, due, after)

    def _moved(self, offset: int, due: int, after: MessageId | None) -> None:
        assert after is not None
        sent = self._gone(offset)
        self.pending[after.offset] = replace(sent, due=due, offset=after.offset)
        if sent.name is not None:
            key = sent.topic, sent.name
            self.holder[key] = self.last[key] = after.offset

    @rule(number=st.integers(0, 1000))
    def cancel(self, number: int) -> None:
        if not self.pending:
            return
        sent = self.pending[sorted(self.pending)[number % len(self.pending)]]
        ids = [self.node.wheel.mint.one(sent.due, sent.offset)]
        (answer,) = self.node.blocking(lambda: self.node.wheel.cancel(ids, self.now_ms))
        assert answer is CancelAnswer.CANCELLED
        self._gone(sent.offset)

    @rule(number=st.integers(0, 1000), ahead=st.sampled_from(DUES_MS))
    def reschedule(self, number: int, ahead: int) -> None:
        if not self.pending:
            return
        sent = self.pending[sorted(self.pending)[number % len(self.pending)]]
        target = self.node.wheel.mint.one(sent.due, sent.offset)
        due = self.now_ms + ahead
        answer, after = self.node.blocking(
            lambda: self.node.wheel.reschedule(target, due, self.now_ms)
        )
        assert answer is CancelAnswer.CANCELLED
        self._moved(sent.offset, due, after)

    # -- time, files, crashes --------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 700, 2_000, 90_000, 8_000_000, 4 * 86_400_000]))
    def deliver(self, ms: int) -> None:
        self.now_ms += ms
        self._deliver()

    def _deliver(self) -> None:
        self.left += self.node.delivered(self.now_ms)
        for offset in [at for at, sent in self.pending.items() if sent.due <= self.now_ms]:
            value = self._gone(offset).value
            self.delivered.add(offset)
            assert self.left.count(value) == 1, value
        assert len(set(self.left)) == len(self.left)
        assert not {sent.value for sent in self.pending.values()} & set(self.left)
        self.node.mark(self.now_ms)

    @rule(everything=st.booleans())
    def spill(self, everything: bool) -> None:
        self.node.wheel.spill(self.now_ms, everything=everything)

    @rule()
    def clean(self) -> None:
        self.node.wheel.clean(self.now_ms)

    @rule(rebuilt=st.booleans())
    def crash(self, rebuilt: bool) -> None:
        self.node.crash()
        if rebuilt:
            for path in (self.node.path / DIRECTORY).glob("*"):
                path.unlink()
            self.last.clear()
        self.node.open(self.now_ms)
        self.node.sync()
        # What is due within the reach of the last mark may have left, for all the new epoch knows.
        self.now_ms += 2 * CONFIG.reach_ahead_ms
        self._deliver()

    @invariant()
    def names_stand_for_what_is_pending(self) -> None:
        for topic in TOPICS:
            for name in NAMES:
                offset = self.holder.get((topic, name))
                found = self.node.wheel.named(topic, name)
                if offset is not None:
                    assert found is not None
                    assert found.offset == offset


NamedMessages.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_names_through_all_that_may_happen = NamedMessages.TestCase
