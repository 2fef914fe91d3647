"""A state machine over real files: anything may happen to a wheel, in any order.

Each rule is something a node, a caller, a sink, a clock or a power switch does. The model is in
``support.wheelmodel``; after each rule the wheel's own count of what is pending must be the model's
(the bounded run takes the same histories each time, the soak new ones). Limits are tiny, so that
every bound is met: chunks of a few rows, windows of a few bytes, one open handle, segments of a few
entries, one held-back topic. So are wide slots, of 4 and 16 seconds instead of an hour and a day:
a message, its cancel and others of its second lie in files of three widths by when they were
spilled.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slotwheel.wheel.answers import AppendReceipt, CancelAnswer
from slotwheel.wheel.checks import InputBatch
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import (
    ClockBehind,
    InvalidMessage,
    Overloaded,
    SequenceTooOld,
    SlotwheelError,
)
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.mark import Marks
from slotwheel.wheel.protocol import IN_FLIGHT_MAX
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.schema import Mask
from support.plainrows import append_together, plain_batch
from support.wheelmodel import Model, NewRow, Row
from support.wheels import Node, batch, master_of, next_chunk

START_MS = 1_000_000
TOPICS = ("a", "b", "c")
NOBODY = 0

configs = st.builds(
    WheelConfig,
    slots=st.sampled_from([2, 6, 30]),
    far_horizon_ms=st.sampled_from([0, 30_000, 60_000]),
    chunk_rows_max=st.sampled_from([1, 2, 3, 7, 1000]),
    chunk_bytes_max=st.sampled_from([1, 300, 8 << 20]),
    window_bytes_max=st.sampled_from([1, 200, 900, 32 << 20]),
    open_handles_max=st.sampled_from([1, 2]),
    segment_bytes=st.sampled_from([600, 4000, 64 << 20]),
    held_topics_max=st.sampled_from([0, 1, 2, 64]),
    mark_interval_ms=st.sampled_from([0, 100]),
    tail_keep_ms=st.sampled_from([0, 300]),
    tail_bytes_refuse=st.sampled_from([60_000, 256 << 20]),
    cancels_remembered_max=st.sampled_from([2, 500_000]),
    disk_reserve_bytes=st.just(0),
)
# Due times relative to the clock: past, now and its neighbours, the next slots, the horizon's end.
delays = st.one_of(
    st.sampled_from([-3000, -1000, -1, 0, 0, 1, 999, 1000, 1001]),
    st.integers(-500, 500),
    st.integers(0, 60_000),
    st.just(1 << 40),
)
batches = st.lists(st.tuples(delays, st.sampled_from(TOPICS)), min_size=1, max_size=12)
salts = st.integers(0, 1 << 16)


@dataclass
class Outbox:
    """An entry whose receipt is still to come, or has come."""

    producer: int
    sequence: int
    rows: list[NewRow]
    future: Future[AppendReceipt]
    seen: bool = False


@dataclass(frozen=True)
class Sink:
    """How the sink answers, by topic, and for ``some`` by row."""

    accepts: frozenset[str] = frozenset(TOPICS)
    some: frozenset[str] = frozenset()
    dead_one_in: int = 0
    down_one_in: int = 0
    salt: int = 0
    unknown_one_in: int = 0

    def answer(self, rows: list[Row]) -> tuple[Mask, Mask, int, int, bool]:
        """Which rows are answered, which of the others arrive all the same, how many are dead
        letters and how many have expired, and whether the sink is down."""
        yes = [
            row.topic in self.accepts
            and not (row.topic in self.some and (row.offset * 7919 + self.salt) % 3 == 0)
            for row in rows
        ]
        gone = [
            row.offset
            for row, ok in zip(rows, yes, strict=True)
            if self.dead_one_in > 0 and ok and row.offset % self.dead_one_in == 0
        ]
        expired = sum(offset % 2 for offset in gone)
        down = self.down_one_in > 0 and (len(rows) * 31 + self.salt) % self.down_one_in == 0
        lost = [
            not ok
            and self.unknown_one_in > 0
            and (row.offset + self.salt) % self.unknown_one_in == 0
            for row, ok in zip(rows, yes, strict=True)
        ]
        return np.array(yes, np.bool_), np.array(lost, np.bool_), len(gone) - expired, expired, down


sinks = st.builds(
    Sink,
    accepts=st.frozensets(st.sampled_from(TOPICS), min_size=1),
    some=st.frozensets(st.sampled_from(TOPICS), max_size=2),
    dead_one_in=st.sampled_from([0, 0, 3]),
    down_one_in=st.sampled_from([0, 0, 0, 2]),
    salt=salts,
    unknown_one_in=st.sampled_from([0, 1, 2]),
)


class WheelMachine(RuleBasedStateMachine):
    """See the module's head. ``now`` is the wall clock, ``latest`` the highest it ever showed."""

    node: Node

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="slotwheel-machine-"))
        self.model = Model()
        self.now = self.latest = START_MS
        self.values = 0
        self.outbox: list[Outbox] = []
        self.again: list[tuple[Future[AppendReceipt], Future[AppendReceipt]]] = []
        self.sequences = {1: 0, 2: 0}
        self.recorded: dict[int, dict[int, Outbox]] = {1: {}, 2: {}}
        self.requests: dict[int, tuple[RequestKey, Outbox]] = {}
        self.late_cancels: list[tuple[int, int]] = []  # (target, own offset), not committed yet
        self.delivered = self.dead = self.expired = 0
        self.is_open = False
        self.in_flight = False

    @initialize(config=configs)
    def start(self, config: WheelConfig) -> None:
        self.node = Node(self.path, config, self.now)
        self._opened()

    def teardown(self) -> None:
        try:
            if self.is_open and not self.in_flight:  # in flight still: a rule has failed
                self._finish()
                self.node.close()
        finally:
            shutil.rmtree(self.path, ignore_errors=True)

    # -- intake ----------------------------------------------------------------------------------

    @rule(
        shape=batches,
        producer=st.sampled_from([NOBODY, 1, 2]),
        sync=st.booleans(),
        same_ms=st.booleans(),
        plain=st.booleans(),
    )
    def append(
        self, shape: list[tuple[int, str]], producer: int, sync: bool, same_ms: bool, plain: bool
    ) -> None:
        rows = self._rows([(shape[0][0], topic) for _, topic in shape] if same_ms else shape)
        sequence = -1
        if producer:
            self.sequences[producer] += 1
            sequence = self.sequences[producer]
        self._send(rows, producer, sequence, plain=plain)
        if sync:
            self._sync()

    @rule(count=st.integers(20, 120), delay=st.sampled_from([-1, 0, 1, 700]))
    def append_many_at_one_millisecond(self, count: int, delay: int) -> None:
        first, self.values = self.values + 1, self.values + count
        due = self.now + delay
        self._send([(due, TOPICS[n % 3], b"%d" % n) for n in range(first, first + count)])
        self._sync()

    @rule(
        shapes=st.lists(batches, min_size=2, max_size=4),
        again=st.booleans(),
        plain=st.booleans(),
        sync=st.booleans(),
    )
    def append_several_at_once(
        self, shapes: list[list[tuple[int, str]]], again: bool, plain: bool, sync: bool
    ) -> None:
        """Two are those of producers, one of which may send it twice."""
        sent = [(self._rows(shape), NOBODY, -1) for shape in shapes]
        for producer in (1, 2):
            self.sequences[producer] += 1
            sent.append((self._rows(shapes[-producer]), producer, self.sequences[producer]))
        self._send_all(sent + sent[-1:] * again, plain=plain)
        if sync:
            self._sync()

    @precondition(lambda self: any(self.recorded.values()))
    @rule(data=st.data(), plain=st.booleans())
    def append_again(self, data: st.DataObject, plain: bool) -> None:
        """A producer that got no answer sends the same entry again."""
        producer = data.draw(st.sampled_from([p for p, sent in self.recorded.items() if sent]))
        known = self.recorded[producer]
        sequence = data.draw(st.sampled_from(sorted(known)))
        first = known[sequence]
        [again] = self._append([(first.rows, producer, sequence)], plain=plain)
        if sequence not in sorted(known)[-IN_FLIGHT_MAX:]:
            assert isinstance(again, SequenceTooOld)
            return
        assert isinstance(again, Future)
        self._sync()
        receipt, original = again.result(0), first.future.result(0)
        assert receipt.base_offset == original.base_offset
        assert receipt.count == original.count
        assert receipt.due.tolist() == original.due.tolist()

    @rule(shape=batches, number=st.integers(0, 2), sync=st.booleans(), plain=st.booleans())
    def request(self, shape: list[tuple[int, str]], number: int, sync: bool, plain: bool) -> None:
        """A caller sends under its key, or again under it, with delays counted from now."""
        known = self.requests.get(number)
        asked = RequestKey.of(str(number), b"", self.now)
        if known is None:
            self._send(self._rows(shape), asked.producer, asked.sequence, plain=plain)
            if self.outbox and self.outbox[-1].producer == asked.producer:
                self.requests[number] = asked, self.outbox[-1]
        else:
            first, sent = known
            later = self.now - first.base_ms
            rows = [(due + later, topic, value) for due, topic, value in sent.rows]
            [again] = self._append([(rows, asked.producer, asked.sequence)], plain=plain)
            assert isinstance(again, Future)
            self._sync()
            receipt, original = again.result(0), sent.future.result(0)
            assert receipt.base_offset == original.base_offset
            assert receipt.due.tolist() == original.due.tolist()
        if sync:
            self._sync()

    @rule(beyond=st.integers(1, 100_000))
    def append_beyond_the_horizon(self, beyond: int) -> None:
        due = self.now + self.node.config.horizon_ms + beyond
        with pytest.raises(InvalidMessage, match="horizon"):
            self.node.wheel.append(batch([(self.now, "a", b""), (due, "b", b"")]), self.now)

    @rule()
    def sync(self) -> None:
        self._sync()

    # -- clock -----------------------------------------------------------------------------------

    @rule(by=st.one_of(st.sampled_from([1, 999, 1000]), st.integers(0, 3000)))
    def time_passes(self, by: int) -> None:
        self._set_clock(self.now + by)

    @rule(by=st.sampled_from([-10_000, -2000, -1, 2000, 10_000]))
    def clock_steps(self, by: int) -> None:
        self._set_clock(self.now + by)

    @rule(reopen=st.booleans())
    def the_mark_is_set_back(self, reopen: bool) -> None:
        """The clock was ahead, and is right now, says an operator."""
        assert master_of(self.node.wheel).set_back(self.now)
        self._sync()
        main = master_of(self.node.wheel).due.lines.main.mark
        assert main.c <= self.now
        if reopen:
            self._stop()
            self.node.open(self.now)
            self._opened()

    # -- delivery --------------------------------------------------------------------------------

    @rule(sink=sinks, sync=st.booleans())
    def deliver(self, sink: Sink, sync: bool) -> None:
        self._deliver(sink, sync)

    @rule(sync=st.booleans())
    def deliver_to_a_healthy_sink(self, sync: bool) -> None:
        self._deliver(Sink(), sync)

    @rule(
        sink=sinks,
        tick_ms=st.sampled_from([300, 1000, 1700]),
        shape=batches,
        spill_first=st.booleans(),
    )
    def node_runs(
        self, sink: Sink, tick_ms: int, shape: list[tuple[int, str]], spill_first: bool
    ) -> None:
        """What all the threads of a node do in some seconds, with a sink that stays as it is."""
        for _ in range(4):
            self._send(self._rows(shape))
            self._sync()
            if spill_first:
                self.node.wheel.spill(self.now, everything=True)
            self._set_clock(self.now + tick_ms)
            master_of(self.node.wheel).prepare(self.now)
            self._deliver(sink, sync=True)
            if not spill_first:
                self.node.wheel.spill(self.now, everything=False)
            master_of(self.node.wheel).append_mark(self.now, at_once=True)
            self._sync()
            self.node.wheel.clean(self.now)
        self._check_files()

    @rule(salt=salts, refused=st.sampled_from(TOPICS))
    def sink_goes_down_then_refuses_a_topic(self, salt: int, refused: str) -> None:
        """Rows answered behind the one that stopped delivery belong to a topic held back later."""
        self._deliver(Sink(some=frozenset(TOPICS), down_one_in=1, salt=salt), sync=False)
        self._deliver(Sink(accepts=frozenset(TOPICS) - {refused}), sync=True)

    @rule(sink=sinks, shape=batches, spill=st.booleans())
    def append_while_a_chunk_is_in_flight(
        self, sink: Sink, shape: list[tuple[int, str]], spill: bool
    ) -> None:
        chunk = self._next_chunk()
        if chunk is None:
            return
        rows = self.model.hand_out(chunk, self.now, master_of(self.node.wheel).held_topics())
        self._send(self._rows(shape))
        self._sync()
        if spill:
            self.node.wheel.spill(self.now, everything=True)
        self._answer(chunk, rows, sink)

    # -- slot files ------------------------------------------------------------------------------

    @rule(everything=st.booleans())
    def spill(self, everything: bool) -> None:
        self.node.wheel.spill(self.now, everything=everything)
        self._check_files()

    @rule(tell=st.booleans())
    def clean(self, tell: bool) -> None:
        if tell:
            master_of(self.node.wheel).append_mark(self.now, at_once=True)
            self._sync()
        self.node.wheel.clean(self.now)
        self._check_files()

    @rule(ahead=st.sampled_from([0, 1000, 2000, 10_000]))
    def prepare(self, ahead: int) -> None:
        master = master_of(self.node.wheel)
        master.prepare(self.now, ahead)
        for topic in master.held_topics():
            master.prepare_topic(topic)

    # -- cancel and reschedule -------------------------------------------------------------------

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), twice=st.booleans())
    def cancel(self, data: st.DataObject, twice: bool) -> None:
        offsets = data.draw(
            st.lists(st.sampled_from(sorted(self.model.rows)), min_size=1, max_size=4)
        )
        self._cancel(offsets)
        if twice:
            self._cancel(offsets)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def cancel_one_that_waits(self, data: st.DataObject) -> None:
        self._cancel([data.draw(st.sampled_from(sorted(self.model.waiting)))])

    @precondition(lambda self: self.model.doubtful | self.model.may_repeat)
    @rule(data=st.data())
    def cancel_what_may_have_left(self, data: st.DataObject) -> None:
        """The sink could not say, or a crash came before the mark."""
        left = sorted(self.model.doubtful | self.model.may_repeat)
        self._cancel(data.draw(st.lists(st.sampled_from(left), min_size=1, max_size=4)))

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def cancel_without_waiting_for_the_answer(self, data: st.DataObject) -> None:
        """The caller gives up before the commit: *unknown*, whatever becomes of it."""
        row = self.model.waiting[data.draw(st.sampled_from(sorted(self.model.waiting)))]
        own = self.node.wheel._log.next_offset
        try:
            (answer,) = self.node.wheel.cancel([self._id(row)], self.now, timeout_s=0.0)
        except Overloaded:
            return
        assert answer is CancelAnswer.UNKNOWN
        if self.node.wheel._log.next_offset > own:
            self.late_cancels.append((row.offset, own))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), sink=sinks, refuse_it=st.booleans())
    def cancel_a_row_in_flight(self, data: st.DataObject, sink: Sink, refuse_it: bool) -> None:
        """The question waits for the sink, then gets a true answer."""
        chunk = self._next_chunk()
        if chunk is None:
            return
        rows = self.model.hand_out(chunk, self.now, master_of(self.node.wheel).held_topics())
        if not rows:
            self._answer(chunk, rows, sink)
            return
        target = data.draw(st.sampled_from(rows))
        if refuse_it:
            sink = replace(sink, accepts=frozenset(TOPICS) - {target.topic}, down_one_in=0)
        asked = threading.Event()
        answers: list[CancelAnswer] = []

        def ask() -> None:
            asked.set()
            answers.extend(self.node.wheel.cancel([self._id(target)], self.now, 5.0))

        thread = threading.Thread(target=ask, daemon=True)
        own = self.node.wheel._log.next_offset
        thread.start()
        asked.wait(60)
        certain = self._certain(target)
        if certain:
            thread.join(0.001)
            assert not answers, "answered while the sink still has the row"
        self._answer(chunk, rows, sink)
        while thread.is_alive():
            self.node.wheel.write_pending(0.0005)
        thread.join()
        self._sync()
        if self.node.wheel._log.next_offset > own:
            self._cancelled([target.offset], own)
        certain = certain and target.offset not in self.model.doubtful
        self.model.check_answer(target.offset, answers[0], certain=certain)

    @rule(data=st.data(), offset=st.integers(0, 10_000), check=st.integers(0, (1 << 32) - 1))
    def cancel_a_forged_id(self, data: st.DataObject, offset: int, check: int) -> None:
        wheel = self.node.wheel
        due = self.now + data.draw(st.integers(-1000, 1000))
        if data.draw(st.booleans()) and self.model.rows:
            row = self.model.rows[data.draw(st.sampled_from(sorted(self.model.rows)))]
            due, offset = row.due, row.offset
        real = wheel.mint.one(due, offset)
        forged = replace(real, check=check if check != real.check else check ^ 1)
        foreign = replace(real, group="other")
        before = wheel._log.next_offset
        assert wheel.cancel([forged, foreign], self.now) == [CancelAnswer.UNKNOWN] * 2
        assert wheel.reschedule(forged, due, self.now) == (CancelAnswer.UNKNOWN, None)
        assert wheel._log.next_offset == before

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), delay=st.integers(-1000, 10_000))
    def reschedule(self, data: st.DataObject, delay: int) -> None:
        row = self.model.rows[data.draw(st.sampled_from(sorted(self.model.rows)))]
        due = self.now + min(delay, self.node.config.horizon_ms)
        certain = self._certain(row)
        own = self._next_offset()
        try:
            answer, fresh = self.node.blocking(
                lambda: self.node.wheel.reschedule(self._id(row), due, self.now)
            )
        except Overloaded:
            return
        self._sync()
        if fresh is not None:
            self._cancelled([row.offset], own)
            self.model.commit(fresh.offset, [(due, row.topic, row.value)])
            assert fresh == self.node.wheel.mint.one(due, own + 1)
        self.model.check_answer(row.offset, answer, certain=certain)

    # -- stops -----------------------------------------------------------------------------------

    @rule(
        junk=st.sampled_from([b"", b"\0" * 40, b"SWFR", b"junk" * 30]),
        by=st.sampled_from([0, 0, -10_000, -300, 10_000]),
    )
    def crash_and_reopen(self, junk: bytes, by: int) -> None:
        """``by``: how far the clock steps meanwhile, ms."""
        self._stop(junk=junk)
        self._set_clock(self.now + by)
        self.node.open(self.now)
        self._opened()

    @rule(graceful=st.booleans())
    def close_and_reopen(self, graceful: bool) -> None:
        if graceful:
            master_of(self.node.wheel).append_mark(self.now, at_once=True)
            self._sync()
        self._stop()
        self.node.open(self.now)
        self._opened()

    @rule(revolutions=st.sampled_from([1, 2]), more=st.integers(-1500, 1500))
    def down_for_revolutions(self, revolutions: int, more: int) -> None:
        self._stop(junk=b"")
        self._set_clock(self.now + revolutions * self.node.config.horizon_ms + more)
        self.node.open(self.now)
        self._opened()

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def pending_is_exact(self) -> None:
        if not self.is_open:
            return
        status = self.node.wheel.status()
        assert status.pending == len(self.model.waiting)
        found = status.delivered, status.dead, status.expired
        assert found == (self.delivered, self.dead, self.expired)
        assert status.open_handles <= self.node.config.open_handles_max
        assert len(status.held_topics) <= self.node.config.held_topics_max

    # -- inside ----------------------------------------------------------------------------------

    def _rows(self, shape: list[tuple[int, str]]) -> list[NewRow]:
        """New messages from (delay in ms, at most the horizon; topic)."""
        first, self.values = self.values, self.values + len(shape)
        return [
            (self.now + min(delay, self.node.config.horizon_ms), topic, b"%d" % (first + at))
            for at, (delay, topic) in enumerate(shape)
        ]

    def _id(self, row: Row) -> MessageId:
        return self.node.wheel.mint.one(row.due, row.offset)

    def _set_clock(self, now: int) -> None:
        self.now = now
        self.latest = max(self.latest, now)

    def _next_offset(self) -> int:
        self._sync()
        return self.node.wheel._log.next_offset

    def _append(
        self, asked: list[tuple[list[NewRow], int, int]], *, plain: bool
    ) -> list[Future[AppendReceipt] | SlotwheelError]:
        """``plain``: as plain rows, which share an entry."""
        if plain:
            return append_together(self.node.wheel, [plain_batch(*one) for one in asked], self.now)
        batches = [InputBatch(batch(rows), who, number) for rows, who, number in asked]
        return self.node.wheel.append_all(batches, self.now)

    def _send(
        self,
        rows: list[NewRow],
        producer: int = NOBODY,
        sequence: int = -1,
        *,
        plain: bool = False,
    ) -> None:
        self._send_all([(rows, producer, sequence)], plain=plain)

    def _send_all(self, asked: list[tuple[list[NewRow], int, int]], *, plain: bool = False) -> None:
        before = self.node.wheel._log.next_offset
        outcomes = self._append(asked, plain=plain)
        repeated: dict[tuple[int, int], Future[AppendReceipt]] = {}
        for (rows, producer, sequence), outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, Overloaded):
                status = self.node.wheel.status()
                held = status.tail_bytes + status.queued_bytes
                assert held >= self.node.config.tail_bytes_refuse
                continue
            assert isinstance(outcome, Future)
            if producer and (producer, sequence) in repeated:  # the same batch again
                self.again.append((repeated[producer, sequence], outcome))
                continue
            repeated[producer, sequence] = outcome
            before += len(rows)
            sent = Outbox(producer, sequence, rows, outcome)
            self.outbox.append(sent)
            if producer in self.recorded:
                self.recorded[producer][sequence] = sent
        assert self.node.wheel._log.next_offset == before

    def _sync(self) -> None:
        self.node.sync()
        for sent in self.outbox:
            receipt = sent.future.result(0)
            assert receipt.count == len(sent.rows)
            assert receipt.due.tolist() == [row[0] for row in sent.rows]
            self.model.commit(receipt.base_offset, sent.rows)
        self.outbox.clear()
        for first, second in self.again:
            assert first.result(0).base_offset == second.result(0).base_offset
        self.again.clear()
        for target, own in self.late_cancels:
            self.model.commit_cancel(target, own)
        self.late_cancels.clear()

    def _next_chunk(self) -> Chunk | None:
        mark = master_of(self.node.wheel).due.lines.main.mark
        try:
            chunk = next_chunk(self.node.wheel, self.now, self._sync)
        except ClockBehind:
            assert self.now < mark.c
            return None
        assert chunk is None or mark.c <= self.now
        self.in_flight = chunk is not None
        return chunk

    def _deliver(self, sink: Sink, sync: bool, chunks_max: int = 200) -> None:
        for _ in range(chunks_max):
            chunk = self._next_chunk()
            if chunk is None or not self._take(chunk, sink):
                break
        if sync:
            self._sync()
        for topic in master_of(self.node.wheel).held_topics():
            for _ in range(chunks_max):
                chunk = master_of(self.node.wheel).next_topic_chunk(topic, self.now)
                if chunk is None or not self._take(chunk, sink):
                    break

    def _take(self, chunk: Chunk, sink: Sink) -> bool:
        """Whether to go on."""
        rows = self.model.hand_out(chunk, self.now, master_of(self.node.wheel).held_topics())
        return self._answer(chunk, rows, sink)

    def _answer(self, chunk: Chunk, rows: list[Row], sink: Sink) -> bool:
        answered, unknown, dead, expired, down = sink.answer(rows)
        wheel = self.node.wheel
        before = set(master_of(wheel).held_topics())
        master_of(wheel).answer(
            chunk, answered, dead, expired=expired, unknown=unknown, sink_down=down
        )
        self.in_flight = False
        self.model.settle(rows, answered, unknown)
        self.delivered += int(answered.sum()) - dead - expired
        self.dead += dead
        self.expired += expired
        left = {row.topic for row, ok in zip(rows, answered.tolist(), strict=True) if not ok}
        if chunk.topic is None and not down:
            room = self.node.config.held_topics_max - len(before)
            fresh = set(master_of(wheel).held_topics()) - before
            assert fresh <= left
            assert len(fresh) == min(len(left), room), "a topic was held back without need, or not"
        return not left

    def _certain(self, row: Row) -> bool:
        """Whether the engine must know about a row; else the answer may be *unknown*."""
        wheel = self.node.wheel
        canceller = master_of(wheel).canceller
        old = row.offset < canceller._epoch_offset and row.due <= canceller._reach_ms
        old &= row.offset not in self.model.cancelled
        [known] = wheel._storage.cancelled.known(np.array([row.due]))
        return not old and bool(known) and row.offset not in self.model.doubtful

    def _cancel(self, offsets: list[int]) -> None:
        own = self._next_offset()
        rows = [self.model.rows[offset] for offset in offsets]
        certain = [self._certain(row) for row in rows]
        try:
            answers = self.node.blocking(
                lambda: self.node.wheel.cancel([self._id(row) for row in rows], self.now)
            )
        except Overloaded:
            return
        self._sync()
        new = self.node.wheel._log.next_offset - own
        fresh = dict.fromkeys(
            offset
            for offset, answer in zip(offsets, answers, strict=True)
            if answer is CancelAnswer.CANCELLED and offset not in self.model.cancelled
        )
        assert len(fresh) == new
        self._cancelled(list(fresh), own)
        for row, answer, sure in zip(rows, answers, certain, strict=True):
            self.model.check_answer(row.offset, answer, certain=sure)

    def _cancelled(self, offsets: list[int], own: int) -> None:
        for at, offset in enumerate(offsets):
            self.model.commit_cancel(offset, own + at)

    def _stop(self, junk: bytes | None = None) -> None:
        """Crash (``junk``: what is left at the ends of files) or close."""
        found: Any = self.node.wheel
        self.last_marks: Marks = found._committed_marks
        if junk is None:
            self.node.close()
            for sent in self.outbox:
                assert sent.future.exception(0) is not None
        else:
            self.node.crash()
            self.node.litter(junk)
        self.is_open = False
        for sent in self.outbox:
            if sent.producer in self.recorded:
                del self.recorded[sent.producer][sent.sequence]
        lost = [one for one, (_, sent) in self.requests.items() if sent in self.outbox]
        for one in lost:
            del self.requests[one]
        self.outbox.clear()
        self.again.clear()
        self.late_cancels.clear()

    def _opened(self) -> None:
        wheel = self.node.wheel
        marks = wheel._committed_marks
        if hasattr(self, "last_marks"):
            assert replace(marks, epoch=0) == replace(self.last_marks, epoch=0)
        self.is_open = True
        self.model.restart(marks)
        self.delivered, self.dead, self.expired = marks.delivered, marks.dead, marks.expired
        self._sync()
        self._check_files()

    def _check_files(self) -> None:
        """Catalog and files agree, and each row that some mark does not cover is there once."""
        self._sync()
        stored = self.node.stored()
        for offset in self.model.uncovered(self.node.wheel._committed_marks):
            assert stored.get(offset) == self.model.rows[offset].due, f"row {offset} is not stored"

    def _finish(self) -> None:
        """All that was accepted leaves in the end, and nothing is left on the disk.

        Rules have delivered under the small limits. The rest leaves under the usual ones: a row at
        a time it would take most of a run.
        """
        self._sync()
        self._set_clock(max(self.now, self.latest))
        self._deliver(Sink(), sync=True, chunks_max=25)
        self._stop()
        usual = WheelConfig()
        self.node.config = replace(
            self.node.config,
            chunk_rows_max=usual.chunk_rows_max,
            chunk_bytes_max=usual.chunk_bytes_max,
            window_bytes_max=usual.window_bytes_max,
        )
        self.node.open(self.now)
        self._opened()
        for _ in range(500):
            due = self.model.next_due()
            if due is None:
                break
            self._deliver(Sink(), sync=True, chunks_max=100_000)
            self._set_clock(max(self.now + 1, due))
        assert not self.model.waiting, "rows that never left"
        self.pending_is_exact()
        self._set_clock(self.now + self.node.config.horizon_ms + 2000)
        self._deliver(Sink(), sync=True)
        wheel = self.node.wheel
        assert master_of(wheel).held_topics() == []
        master_of(wheel).append_mark(self.now, at_once=True)
        self._sync()
        wheel.spill(self.now, everything=True)
        wheel.clean(self.now)
        self._check_files()
        assert not list((self.path / "slots").iterdir())
        assert self.model.answered | self.model.cancelled == set(self.model.rows)


_COMMON = settings(
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@pytest.mark.usefixtures("small_widths")
def test_any_history() -> None:
    """The same bounded set of histories in every run (`make test`)."""
    run_state_machine_as_test(
        WheelMachine,
        settings=settings(_COMMON, derandomize=True, max_examples=20, stateful_step_count=40),
    )


@pytest.mark.soak
@pytest.mark.usefixtures("small_widths")
def test_any_history_for_long() -> None:
    """New histories in every run; `SLOTWHEEL_SOAK_EXAMPLES` says how many."""
    examples = int(os.environ.get("SLOTWHEEL_SOAK_EXAMPLES", "2000"))
    run_state_machine_as_test(
        WheelMachine, settings=settings(_COMMON, max_examples=examples, stateful_step_count=100)
    )
