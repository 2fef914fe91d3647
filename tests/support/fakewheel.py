"""A wheel of a few lines for tests of the ways in: keeps rows in memory, remembers sequences.

Several of them with one ``Log`` play the peers of a group: what one has stored, the others know."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from slotwheel.wheel.answers import AppendReceipt, Before, CancelAnswer, NamedAnswer
from slotwheel.wheel.checks import InputBatch, check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import (
    NameTaken,
    NotMaster,
    Overloaded,
    SequenceTooOld,
    SlotwheelError,
    UnknownId,
)
from slotwheel.wheel.ids import IdMint, MessageId
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.plain import PlainBatch, PlainDone, PlainReceipt, batch_of
from slotwheel.wheel.protocol import IN_FLIGHT_MAX
from slotwheel.wheel.request import RequestKey, is_request
from slotwheel.wheel.schema import Int64s, times
from support.served import ServedIntake


@dataclass(frozen=True)
class Status:
    pending: int
    next_offset: int


@dataclass
class Log:
    """What the peers of a group share: rows, and the last sequences of producers."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    producers: dict[int, dict[int, Future[AppendReceipt]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    names: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """By topic and name the due time and the offset of the message for which it stands."""
    next_offset: int = 0


@dataclass
class FakeWheel:
    """``commit_s``: how long a commit takes. Whoever appends with ``wake=False`` calls ``commit``.
    ``before_append``: may raise, to play any refusal. ``serving`` False: a standby; ``master`` is
    its hint."""

    config: WheelConfig = field(default_factory=WheelConfig)
    commit_s: float = 0.0
    before_append: Callable[[pa.RecordBatch], None] | None = None
    mint: IdMint = field(default_factory=lambda: IdMint("default", b"0123456789abcdef"))
    has_room: threading.Event = field(default_factory=threading.Event)
    log: Log = field(default_factory=Log)
    cancelled: set[int] = field(default_factory=set)
    duplicates: int = 0
    serving: bool = True
    doubt: Overloaded | None = None
    """Why the clock is in doubt."""
    master: str = ""
    may_commit: threading.Event = field(default_factory=threading.Event)
    """What takes ``commit_s`` waits for this, too."""
    under_way_max: int = 0
    """The most batches that had no answer yet, at once."""
    early: list[bool] = field(default_factory=list)
    """Of each append, whether it asked to be answered before a majority has it."""

    def __post_init__(self) -> None:
        self.has_room.set()
        self.may_commit.set()
        self._lock = self.log.lock
        self._producers = self.log.producers
        self.batches = self.log.batches
        self._positions: dict[int, int] = {}
        self.sources: Mapping[str, Any] = {}
        self.draining: Mapping[str, Any] = {}
        self._begun = 0
        self._answered: list[Future[AppendReceipt]] = []
        self._to_commit: list[tuple[Future[AppendReceipt], AppendReceipt]] = []

    def append_all(
        self, batches: Sequence[InputBatch], now_ms: int, *, wake: bool = True
    ) -> list[Future[AppendReceipt] | SlotwheelError]:
        outcomes: list[Future[AppendReceipt] | SlotwheelError] = []
        for rows, producer, sequence, early in batches:
            how: Any = {"producer": producer, "sequence": sequence, "early": early}
            try:
                outcomes.append(self.append(rows, now_ms, **how, wake=wake))
            except SlotwheelError as error:
                outcomes.append(copy(error))
        return outcomes

    def append_plain(
        self, batches: Sequence[PlainBatch], now_ms: int, done: PlainDone, *, wake: bool = True
    ) -> None:
        for one in batches:
            _, _, producer, sequence, early, _ = one
            how: Any = {"producer": producer, "sequence": sequence, "early": early, "wake": wake}
            try:
                future = self.append(batch_of(one.rows), now_ms, **how)
            except SlotwheelError as error:
                done([one], copy(error))
                continue

            def answer(future: Future[AppendReceipt], one: PlainBatch = one) -> None:
                error = future.exception()
                if isinstance(error, SlotwheelError):
                    done([one], error)
                    return
                receipt = future.result()
                stored = (receipt.base_offset, receipt.created_ms, receipt.due.tolist())
                done([one], PlainReceipt(*stored, receipt.sequence, receipt.named))

            future.add_done_callback(answer)

    def append(
        self,
        rows: pa.RecordBatch,
        now_ms: int,
        *,
        producer: int = 0,
        sequence: int = -1,
        early: bool = False,
        wake: bool = True,
    ) -> Future[AppendReceipt]:
        self.check_serving()
        self.early.append(early)
        known = self._producers.setdefault(producer, {})
        if is_request(producer) and known and sequence not in known:
            return self._repeated(producer, sequence, times(rows, "due"))
        with self._lock:
            if producer and sequence in known:
                self.duplicates += 1
                return known[sequence]
            if producer and len(known) >= IN_FLIGHT_MAX and sequence < min(known):
                raise SequenceTooOld("sequence too old", got=sequence, limit=min(known))
        if not self.has_room.is_set():
            raise Overloaded("the tail is full")
        rows = check_input(rows, self.config, now_ms)
        if self.before_append:
            self.before_append(rows)
        with self._lock:
            self.check_serving()
            if producer and sequence in known:
                self.duplicates += 1
                return known[sequence]
            future = self._store(rows, now_ms, sequence, wake=wake)
            if producer:
                known[sequence] = future
                while len(known) > IN_FLIGHT_MAX:
                    del known[min(known)]
            return future

    def _repeated(self, producer: int, sequence: int, due: Int64s) -> Future[AppendReceipt]:
        """A request that came at another time before, and was stored."""
        self.duplicates += 1
        [(first, future)] = self._producers[producer].items()
        shift_ms = RequestKey.from_sequence(producer, sequence).shift_ms(first)
        again: Future[AppendReceipt] = Future()
        again.set_result(replace(future.result(60), due=due + shift_ms))
        return again

    def _store(
        self, rows: pa.RecordBatch, now_ms: int, sequence: int = -1, *, wake: bool = True
    ) -> Future[AppendReceipt]:
        # As the real one does: its own copy, so that what was received is free again.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        rows = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
        due = times(rows, "due")
        base = self.log.next_offset
        named = self._name(rows, base, now_ms)
        receipt = AppendReceipt(base, rows.num_rows, now_ms, due, sequence, named)
        self.log.next_offset += rows.num_rows
        self.batches.append(rows)
        future: Future[AppendReceipt] = Future()
        future.add_done_callback(self._answered.append)
        self._begun += 1
        self.under_way_max = max(self.under_way_max, self._begun - len(self._answered))
        if not wake:
            self._to_commit.append((future, receipt))
        elif self.commit_s:
            timer = threading.Timer(self.commit_s, self._commit_one, [future, receipt])
            timer.daemon = True
            timer.start()
        else:
            future.set_result(receipt)
        return future

    def _name(self, rows: pa.RecordBatch, base: int, now_ms: int) -> list[NamedAnswer]:
        """Decide on the names of rows as the real one does: all of them, or none."""
        if not len(rows.column("headers").values):
            return []
        names = dict(self.log.names)
        answers: list[NamedAnswer] = []
        for row, (due, topic, headers) in enumerate(
            zip(
                times(rows, "due").tolist(),
                rows.column("topic").to_pylist(),
                rows.column("headers").to_pylist(),
                strict=True,
            )
        ):
            given = {
                header["key"]: header["value"].decode() for header in headers if header["value"]
            }
            if NAME_HEADER not in given:
                continue
            place = topic, given[NAME_HEADER]
            if (before := names.get(place)) is None:
                names[place] = due, base + row
                continue
            rule = given.get(IF_EXISTS_HEADER, IfExists.REPLACE)
            if before[0] <= now_ms:
                what = Before.DELIVERED
            elif rule == IfExists.REFUSE:
                raise NameTaken("the name is taken", got=repr(place[1]), row=row)
            else:
                what = Before.KEPT if rule == IfExists.KEEP else Before.REPLACED
            self.cancelled.add(base + row if what is Before.KEPT else before[1])
            answers.append(NamedAnswer(row, what, *before))
            if what is not Before.KEPT:
                names[place] = due, base + row
        self.log.names = names
        return answers

    def named(self, topic: str, name: str) -> MessageId | None:
        place = self.log.names.get((topic, name))
        return None if place is None else self.mint.one(*place)

    def cancel_named(
        self, topic: str, name: str, now_ms: int, timeout_s: float = 10.0
    ) -> tuple[CancelAnswer, MessageId | None]:
        message_id = self.named(topic, name)
        if message_id is None:
            return CancelAnswer.UNKNOWN, None
        [answer] = self.cancel([message_id], now_ms)
        self.log.names.pop((topic, name))
        return answer, message_id

    def reschedule_named(
        self, topic: str, name: str, due_ms: int, now_ms: int, timeout_s: float = 10.0
    ) -> tuple[CancelAnswer, MessageId | None, MessageId | None]:
        message_id = self.named(topic, name)
        if message_id is None:
            return CancelAnswer.UNKNOWN, None, None
        answer, moved = self.reschedule(message_id, due_ms, now_ms)
        if moved is not None:
            self.log.names[topic, name] = moved.due, moved.offset
        return answer, message_id, moved

    def _commit_one(self, future: Future[AppendReceipt], receipt: AppendReceipt) -> None:
        self.may_commit.wait(60)
        future.set_result(receipt)

    def commit(self) -> bool:
        """Commit what was appended without waking anybody. Returns whether there was anything."""
        with self._lock:
            found, self._to_commit = self._to_commit, []
        if found:
            time.sleep(self.commit_s)
        for future, receipt in found:
            future.set_result(receipt)
        return bool(found)

    def check_serving(self) -> None:
        if not self.serving:
            raise NotMaster(master=self.master)

    def stored_before(self, producer: int, sequence: int) -> bool:
        return sequence in self._producers.get(producer, {})

    def check_clock(self, now_ms: int) -> None:
        if self.doubt is not None:
            raise copy(self.doubt)

    def wait_for_room(self, timeout_s: float) -> bool:
        return self.has_room.wait(timeout_s)

    def change_sources(self, known: Mapping[str, Any], sources: Mapping[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if known != self.sources:
                raise Overloaded("the configuration is changing")
            # As the real one: through JSON.
            self.sources = json.loads(json.dumps(sources))
        future.set_result(None)
        return future

    def change_draining(self, known: Mapping[str, Any], draining: Mapping[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        assert known == self.draining
        self.draining = draining
        future.set_result(None)
        return future

    def source_position(self, source: int) -> int:
        return self._positions.get(source, -1)

    def append_source(
        self, rows: pa.RecordBatch, now_ms: int, *, source: int, first: int, last: int
    ) -> Future[AppendReceipt]:
        if not self.has_room.is_set():
            raise Overloaded("the tail is full")
        rows = check_input(rows, self.config, now_ms, reserved=True)
        if self.before_append:
            self.before_append(rows)
        with self._lock:
            assert first > self.source_position(source), "the caller trims overlaps"
            assert last >= first
            future = self._store(rows, now_ms)
            self._positions[source] = last
            return future

    def cancel(
        self,
        ids: Sequence[MessageId | str],
        now_ms: int,
        timeout_s: float = 10.0,
        *,
        may: Callable[[str], bool] | None = None,
    ) -> list[CancelAnswer]:
        parsed = [MessageId.parse(str(one)) for one in ids]
        for message_id in parsed:
            if not self.mint.genuine(message_id):
                raise UnknownId("not an id of this wheel group", got=str(message_id))
        answers = []
        for message_id in parsed:
            done = message_id.due <= now_ms
            answers.append(CancelAnswer.DELIVERED if done else CancelAnswer.CANCELLED)
            self.cancelled.add(message_id.offset)
        return answers

    def reschedule(
        self,
        message_id: MessageId,
        due_ms: int,
        now_ms: int,
        timeout_s: float = 10.0,
        *,
        may: Callable[[str], bool] | None = None,
    ) -> tuple[CancelAnswer, MessageId | None]:
        answer = self.cancel([message_id], now_ms)[0]
        if answer is not CancelAnswer.CANCELLED:
            return answer, None
        self.log.next_offset += 1
        return answer, self.mint.one(due_ms, self.log.next_offset - 1)

    def status(self) -> Status:
        return Status(pending=self.log.next_offset, next_offset=self.log.next_offset)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every stored row, in offset order."""
        with self._lock:
            batches = list(self.batches)
        return [row for batch in batches for row in batch.to_pylist()]

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows]


@contextmanager
def served(wheel: FakeWheel, **options: Any) -> Iterator[str]:
    """The wheel behind a real server; its address. ``options``: further ones of ``WireIntake``."""
    server = ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05, **options)
    yield f"127.0.0.1:{server.port}"
    server.close()
