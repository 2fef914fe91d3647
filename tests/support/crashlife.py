"""The life of a wheel over disks that lose power: one world, driven step by step, no threads.

A ``World`` is a data directory, a clock, a sink and the book of what was promised. Its wheel can be
stopped by a ``PowerCut`` at any step and opened again over what survived. Every step of files,
state store and sink is counted by one ``Steps``, so that "the moment between the sink's answer and
the mark" is as much a point of the sweep as a write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.handover import BatchOutcome, hand_over
from slotwheel.delivery.sink import Answer, Answers, Sink
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC, EXPIRED, REASON, TOPIC
from slotwheel.reading.topicreader import TopicReader, topics, walk
from slotwheel.wheel.answers import AppendReceipt, CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import ClockBehind, SequenceTooOld
from slotwheel.wheel.mark import Marks
from slotwheel.wheel.schema import ROW
from slotwheel.wheel.slots import slot as slot_module
from slotwheel.wheel.slots.slot import Widths, begins_ms, ends_ms, file_name, path_of, stem_of
from slotwheel.wheel.slots.slotfile import decode_blocks
from slotwheel.wheel.wheel import Wheel
from support.crashbook import Book, Key, Order, Stored, covers
from support.crashfs import CrashFiles, Mode
from support.fakekafka import POISON
from support.memstate import MemoryState
from support.plainrows import append_together, plain_batch
from support.steps import PowerCut, Steps
from support.wheels import batch, keys_of, master_of, next_chunk

START_MS = 1_900_000_000_000
EXPIRING, TTL_MS = b"expiring ", 100
"""A value that begins so expires so long after it is due, ms."""
CONFIG = WheelConfig(
    segment_bytes=2_500,
    tail_age_ms=2_000,
    tail_keep_ms=500,
    open_handles_max=2,
    chunk_rows_max=4,
    window_bytes_max=600,
    batch_rows_max=6,
    far_horizon_ms=8_000_000,
)


def shorten_widths(patch: pytest.MonkeyPatch) -> None:
    """Slots of an hour have 4 seconds, those of a day 16, and both are near: so the rows of each
    scene lie in files of all widths, and some of one second in three. With the true lengths a life
    would need days, and a step for each of their seconds."""
    for name, length in (("HOUR_S", 4), ("DAY_S", 16), ("WIDTHS_S", (1, 4, 16))):
        patch.setattr(slot_module, name, length)
    near = classmethod(
        lambda cls, now_ms, _: cls((now_ms // 1000 + 3) * 1000, (now_ms // 1000 + 4) * 1000)
    )
    patch.setattr(Widths, "at", near)


class Target(Sink):
    """Tells the book what arrives. Refuses poison; blocked topics get NOT_NOW."""

    def __init__(self, world: World, inner: Sink | None) -> None:
        super().__init__(world.wheel.mint)
        self._world = world
        self._inner = inner

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        world = self._world
        world.steps.hit("hand over")
        answers = Answers.same(rows.num_rows, Answer.ACCEPTED)
        if world.is_down_after is not None:
            answers.down = True
            for row in range(world.is_down_after, rows.num_rows):
                answers.set(row, Answer.NOT_NOW, "down")
        found = zip(rows.column("topic").to_pylist(), rows.column("value").to_pylist(), strict=True)
        for row, (topic, value) in enumerate(found):
            if topic in world.blocked:
                answers.set(row, Answer.NOT_NOW, "blocked")
            elif value.startswith(POISON) and topic != DEAD_LETTER_TOPIC:
                answers.set(row, Answer.REFUSED, "poison")
        taken = answers.which(Answer.ACCEPTED)
        with self._findings():
            self._offer(rows)
        if self._inner is not None and taken.any():
            inner = self._inner.deliver(rows.filter(pa.array(taken)), trial=trial)
            answers.codes[taken] = inner.codes
        with self._findings():
            for key in keys_of(rows.filter(pa.array(answers.which(Answer.ACCEPTED)))):
                world.book.accept(key)
        world.steps.hit("handed over")
        return answers

    @contextmanager
    def _findings(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as finding:
            self._world.finding = finding
            raise

    def _offer(self, rows: pa.RecordBatch) -> None:
        columns = (rows.column(name).to_pylist() for name in ("topic", "value", "headers"))
        for key, topic, value, headers in zip(keys_of(rows), *columns, strict=True):
            own = {header["key"]: header["value"] for header in headers}
            self._world.offer(key, topic, value, own)

    def probe(self, topic: str) -> bool:
        return topic not in self._world.blocked

    def healthy(self) -> bool:
        return True

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


class World:
    """``embedded``: deliver into embedded topics over the same files, else only into the book."""

    def __init__(self, steps: Steps, *, embedded: bool, config: WheelConfig = CONFIG) -> None:
        self.steps = steps
        self.files = CrashFiles(steps=steps)
        self.state = MemoryState(step=steps.hit)
        self.embedded = embedded
        self.config = config
        self.now_ms = START_MS
        self.book = Book()
        self.blocked: set[str] = set()
        self.is_down_after: int | None = None
        self.slots: set[int] = set()
        """All slots that were ever in the catalog."""
        self.names: dict[str, list[Order]] = {}
        """Batches by name."""
        self.bases: dict[str, int] = {}
        """Base offset of a batch, once there is a receipt."""
        self._open_futures: list[tuple[str, Future[AppendReceipt]]] = []
        self._told: list[tuple[Marks, int, frozenset[int]]] = []
        self._answers: list[tuple[Key, str]] = []
        self._last_marks: Marks | None = None
        self.finding: AssertionError | None = None
        """What the sink had to object to, which the hand takes for a failure of the sink."""
        self.scenes: Sequence[Any] = ()
        """The script; empty: that of ``crashscript``."""
        self.scene = -1
        """The scene of the script that is being played."""
        self.wheel: Any = None
        self.target: Any = None

    # -- opening and crashing --------------------------------------------------------------------

    def open(self) -> None:
        self.wheel = Wheel.open(self.files, self.state, self.config, self.now_ms)
        self.check_floor()
        self._told, self._answers = [], []
        self.book.this_life.clear()
        queue_mark = self.wheel._dispatcher.queue_mark

        def queue_and_note(now_ms: int) -> None:
            queue_mark(now_ms)
            marks = self.wheel._log.uncommitted()[-1].marks
            self.book.check_marks(marks)
            ahead = frozenset(master_of(self.wheel).due.lines.main.ahead)
            self._told.append((marks, len(self._answers), ahead))

        self.wheel._dispatcher.queue_mark = queue_and_note
        inner = None
        if self.embedded:
            inner = EmbeddedSink(
                self.files, self.wheel.mint, lambda: self.now_ms, segment_bytes=2_000, threads=1
            )
            inner.recover_all()
        self.target = Target(self, inner)
        self.dead = DeadLetters(self.target, None)
        self.choose_semantics()
        self.check_disk()
        marks = master_of(self.wheel).due.lines.marks()
        if self._last_marks is not None:
            self.book.check_grown(self._last_marks, marks)
        next_offset = self.wheel._log.next_offset
        self.book.check_recovered(self.stored(), marks, next_offset)
        for key in self.book.protected:
            order = self.book.owner[key[1]][1]
            assert covers(marks, order.topic, key), f"{order}: its mark was committed and is lost"
        if self.embedded:
            self.check_topics()

    def choose_semantics(self) -> None:
        """Another target, or another hand-over, for another delivery mode."""

    def ready(self) -> bool:
        """Whether it is known what has left, and delivery may begin."""
        return True

    def let_go(self) -> None:
        """The process ends: note what callers and the journal know at that moment."""
        self._collect()
        if self.target is not None:
            self.target.close()
        if self.wheel is None:
            return
        committed = self.wheel._committed_marks
        self._last_marks = committed
        for marks, answers, ahead in self._told:
            if marks is committed:
                for key, topic in self._answers[:answers]:
                    # What was answered ahead of a mark is not told by it, and may be repeated.
                    if topic not in marks.copies and key[1] not in ahead:
                        self.book.protected.add(key)
        self.wheel = self.target = None

    def crash(self, mode: Mode, rng: Random, steps: Steps | None = None) -> None:
        self._raise_finding()  # the power may have failed before the hand had its answer
        self.let_go()
        self.steps = steps or Steps()
        self.files = self.files.survivors(mode, rng, steps=self.steps)
        self.state = MemoryState(self.state.durable, self.steps.hit)
        self.is_down_after = None

    def restart(self) -> None:
        """A clean stop and a new start over the same files."""
        wheel = self.wheel
        self.let_go()
        wheel.close()
        self.open()

    # -- what the outside does -------------------------------------------------------------------

    def append(
        self,
        name: str,
        rows: Sequence[tuple[str, int]],
        *,
        producer: int = 0,
        sequence: int = -1,
        value: bytes = b"",
    ) -> None:
        """Queue a batch of (topic, due relative to the start). The same name is the same batch."""
        orders = self._orders(name, rows, value)
        rows_sent = batch(
            [(order.due, order.topic, order.value) for order in orders],
            [order.due + TTL_MS if value == EXPIRING else None for order in orders],
        )
        try:
            future = self.wheel.append(rows_sent, self.now_ms, producer=producer, sequence=sequence)
        except SequenceTooOld:
            assert name in self.bases, "a batch without an answer is called too old"
            return
        self._open_futures.append((name, future))

    def append_together(
        self, turn: Sequence[tuple[str, Sequence[tuple[str, int]], int, int]]
    ) -> None:
        """Queue batches of plain rows, each with its name, rows, producer and sequence, that come
        in one turn."""
        batches = [
            plain_batch(
                [(order.due, order.topic, order.value) for order in self._orders(name, rows)],
                *sent_by,
            )
            for name, rows, *sent_by in turn
        ]
        outcomes = append_together(self.wheel, batches, self.now_ms)
        for (name, *_), outcome in zip(turn, outcomes, strict=True):
            if isinstance(outcome, SequenceTooOld):
                assert name in self.bases, "a batch without an answer is called too old"
                continue
            assert isinstance(outcome, Future), outcome
            self._open_futures.append((name, outcome))
        for queued in self.wheel._log.uncommitted():
            assert queued.entry.count <= CONFIG.batch_rows_max, "a turn without bound"

    def _orders(
        self, name: str, rows: Sequence[tuple[str, int]], value: bytes = b""
    ) -> list[Order]:
        orders = self.names.get(name)
        if orders is None:
            orders = [
                Order(topic, value + f"{name}-{row}".encode(), START_MS + due)
                for row, (topic, due) in enumerate(rows)
            ]
            self.names[name] = orders
        self.book.sent.update(orders)
        return orders

    def commit(self) -> None:
        while self.wheel.write_pending(0):
            pass
        self._collect()

    def _collect(self) -> None:
        for name, future in self._open_futures:
            if future.done():
                receipt = future.result()
                self.book.receipt(self.names[name], receipt)
                base = self.bases.setdefault(name, receipt.base_offset)
                assert base == receipt.base_offset, f"{name} was stored twice"
        self._open_futures = [pair for pair in self._open_futures if not pair[1].done()]

    def cancel(self, name: str, row: int) -> CancelAnswer | None:
        """Ask twice, since nothing here may wait: the second answer is the one that counts."""
        if name not in self.bases:
            return None  # the crash came before the receipt: nobody has an id
        key = self.names[name][row].due, self.bases[name] + row
        self.book.asked.add(key)
        one = self.wheel.mint.one(*key)
        self.book.cancel(key, self.wheel.cancel([one], self.now_ms, 0)[0])
        self.commit()
        answer: CancelAnswer = self.wheel.cancel([one], self.now_ms, 0)[0]
        self.book.cancel(key, answer)
        return answer

    def reschedule(self, name: str, row: int, due: int) -> None:
        if name not in self.bases:
            return
        order = self.names[name][row]
        key = order.due, self.bases[name] + row
        moved = Order(order.topic, order.value, START_MS + due)
        self.book.asked.add(key)
        self.book.sent.add(moved)
        self.book.moved.add(order.value)
        before = self.wheel._log.next_offset
        one = self.wheel.mint.one(*key)
        answer, _ = self.wheel.reschedule(one, moved.due, self.now_ms, 0)
        self.book.cancel(key, answer)
        queued = self.wheel._log.next_offset > before
        self.commit()
        if queued:
            self.book.own((moved.due, before + 1), moved)
            self.book.receipts.add((moved.due, before + 1))
            self.book.cancel(key, self.wheel.cancel([one], self.now_ms, 0)[0])

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    # -- the wheel's own threads, one call at a time ---------------------------------------------

    def deliver(self, between: Callable[[], None] = lambda: None) -> int:
        """Hand out what is due; ``between`` runs while a chunk is in flight. Rows answered."""
        count = 0
        for _ in range(200):
            if not self.ready():
                return count
            try:
                chunk = next_chunk(self.wheel, self.now_ms, self.commit)
            except ClockBehind:
                return count
            if chunk is None:
                return count + self._deliver_held()
            between()
            done = self._settle(chunk)
            count += done
            self.commit()
            if self.is_down_after is not None and done < chunk.rows.num_rows:
                return count
        raise AssertionError("delivery does not come to an end")

    def _deliver_held(self) -> int:
        count = 0
        for topic in master_of(self.wheel).held_topics():
            for _ in range(100):
                if topic in self.blocked:
                    break
                chunk = master_of(self.wheel).next_topic_chunk(topic, self.now_ms)
                if chunk is None:
                    break
                done = self._settle(chunk)
                count += done
                self.commit()
                if done < chunk.rows.num_rows or not self.ready():
                    break
        return count

    def _settle(self, chunk: Chunk) -> int:
        outcome = None
        if chunk.rows.num_rows:
            outcome = self.hand_over(chunk)
        self._raise_finding()
        answered = outcome.answered if outcome else np.empty(0, np.bool_)
        names = chunk.rows.column("topic").to_pylist()
        pairs = zip(keys_of(chunk.rows), names, answered, strict=True)
        self._answers += [(key, name) for key, name, yes in pairs if yes]
        master_of(self.wheel).answer(
            chunk,
            answered,
            outcome.dead.total() if outcome else 0,
            expired=outcome.expired if outcome else 0,
            unknown=outcome.unknown if outcome else None,
            sink_down=outcome.down or outcome.stop if outcome else False,
        )
        if outcome is not None and outcome.hold:
            master_of(self.wheel).hold(outcome.hold, self.now_ms)
        return int(np.count_nonzero(answered))

    def hand_over(self, chunk: Chunk) -> BatchOutcome:
        return hand_over(self.target, self.dead, chunk.rows, self.now_ms)

    def offer(self, key: Key, topic: str, value: bytes, headers: dict[str, bytes]) -> None:
        """A row reaches a topic."""
        order = Order(headers.get(TOPIC, topic.encode()).decode(), value, key[0])
        over = value.startswith(EXPIRING) and key[0] + TTL_MS <= self.now_ms
        died = headers.get(REASON) == EXPIRED.encode()
        assert over == died, f"{order} at {self.now_ms}: expired {over}, told {died}"
        self.book.offer(key, order, self.now_ms)

    def _raise_finding(self) -> None:
        if self.finding is not None:
            raise self.finding

    def spill(self, *, everything: bool = False) -> None:
        self.wheel.spill(self.now_ms, everything=everything)
        self.check_floor()

    def clean(self) -> None:
        master_of(self.wheel).append_mark(self.now_ms, at_once=True)
        self.commit()
        self.wheel.clean(self.now_ms)
        self.check_floor()

    def finish(self) -> None:
        """Everything becomes due, leaves, and is cleaned away; then the book is balanced."""
        self.blocked.clear()
        self.is_down_after = None
        self.commit()
        for _ in range(200):
            self.deliver()
            self.commit()
            due = master_of(self.wheel).next_due_ms()
            if due is None and not master_of(self.wheel).held_topics():
                break
            self.now_ms = max(self.now_ms + 1, due or 0)
        self.book.check_end()
        status = self.wheel.status()
        assert status.pending == 0, status
        self.now_ms += 20_000  # the end of a slot of any width
        self.deliver()
        self.clean()
        assert not self.wheel._storage.catalog, "covered slots stay on disk"
        self.check_disk()
        self.spill(everything=True)
        self.restart()
        assert self.deliver() == 0, "delivered again after a clean stop"
        if self.embedded:
            self.check_topics()
        self.let_go()
        self._raise_finding()

    # -- what is on disk -------------------------------------------------------------------------

    def check_floor(self) -> None:
        """What was deleted ended by the floor; what was archived does not raise it."""
        stored = self.state.durable
        self.slots |= stored.slots.keys()
        gone = self.slots - stored.slots.keys()
        floor_ms = stored.deleted_floor
        if self.wheel._storage.archive.keeps:
            assert floor_ms == -1, "nothing was deleted"
        else:
            ended_ms = max((ends_ms(slot) - 1 for slot in gone), default=-1)
            assert (-1 if floor_ms is None else floor_ms) >= ended_ms, "a file is gone unnoticed"

    def stored(self) -> dict[Key, Stored]:
        """Every row in slot files and tail, each once."""
        rows: dict[Key, Stored] = {}
        offsets: set[int] = set()

        def add(batch: pa.RecordBatch) -> None:
            names = ("topic", "value", "cancels")
            columns = [batch.column(name).to_pylist() for name in names]
            for key, topic, value, cancels in zip(keys_of(batch), *columns, strict=True):
                assert key[1] not in offsets, f"offset {key[1]} is stored twice"
                offsets.add(key[1])
                rows[key] = Stored(topic, value, cancels)

        storage = self.wheel._storage
        for slot, info in storage.catalog.items():
            for block in storage.read_blocks(slot, info):
                add(block)
        for piece in storage.tail.pieces:
            if piece.next_offset <= storage.spilled:
                raise AssertionError("the tail holds rows that were spilled")
            add(piece.take(np.arange(piece.rows.num_rows)))
        return rows

    def check_disk(self) -> None:
        """I6: the catalog is a full scan of the files; the catalog in memory is the one on disk."""
        catalog = self.wheel._storage.catalog
        assert catalog == self.state.durable.slots
        assert self.files.list("slots") == sorted(file_name(slot) for slot in catalog)
        for slot, info in catalog.items():
            content, stem = self.files.content(path_of(slot)), stem_of(slot)
            assert len(content) == info.length, f"{stem}: {len(content)} bytes, {info}"
            assert crc32c(content) == info.crc, f"{stem}: checksum"
            blocks = decode_blocks(pa.py_buffer(content), stem, with_schema=True)
            highest = -1
            for block in blocks:
                keys = keys_of(block)
                assert block.schema == ROW
                assert keys == sorted(keys), f"{stem}: a block is not in order"
                assert begins_ms(slot) <= keys[0][0], f"{stem}: foreign rows"
                assert keys[-1][0] < ends_ms(slot), f"{stem}: foreign rows"
                offsets = [offset for _, offset in keys]
                assert min(offsets) > highest, f"{stem}: blocks overlap"
                highest = max(offsets)
            assert highest == info.highest
            assert sum(block.num_rows for block in blocks) == info.rows
            assert sum(len(b) - b.column("cancels").null_count for b in blocks) == info.cancels

    def check_topics(self) -> Counter[Key]:
        """Embedded topics hold everything that was accepted, and nothing that was not offered.

        Returns how often each row is in them.
        """
        found: Counter[Key] = Counter()
        for topic in topics(self.files):
            for _ in walk(self.files, topic):
                pass
            reader = TopicReader(self.files, topic)
            for rows in reader.batches():
                assert rows.num_rows
                keys = keys_of(rows)
                found.update(keys)
                for key, value in zip(keys, rows.column("value").to_pylist(), strict=True):
                    assert self.book.owner[key[1]][1].value == value
            reader.close()
        assert found.keys() <= self.book.offered, "a topic has what was never offered"
        assert self.book.answered <= found.keys(), "an accepted row is not in its topic"
        return found


__all__ = ["CONFIG", "EXPIRING", "POISON", "START_MS", "PowerCut", "Steps", "World"]
