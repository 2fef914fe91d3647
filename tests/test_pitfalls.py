"""Known defects of other systems, on one wheel. docs/durability.md lists defect -> test.

What concerns sinks, intake, clients and processes is tested in their folders.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due import Chunk
from slotwheel.wheel.errors import ClockBehind, Damaged, Overloaded
from slotwheel.wheel.files import Bytes, OsFiles, OsHandle
from slotwheel.wheel.receipt import CancelAnswer, Receipt
from slotwheel.wheel.schema import times
from slotwheel.wheel.slotfile import path_of
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel
from support.wheels import Node, batch

NOW = 1_900_000_000_000
CONFIG = WheelConfig(
    chunk_rows_max=7, window_bytes_max=900, open_handles_max=1, segment_bytes=4000, slots=60
)
NewRow = tuple[int, str, bytes]
Left = tuple[bytes, int]
"""Value, and the clock when the sink got it."""


def send(node: Node, rows: Sequence[NewRow], now: int, **options: Any) -> Receipt:
    future = node.wheel.append(batch(rows), now, **options)
    node.sync()
    return future.result(0)


def accept(rows: pa.RecordBatch) -> list[bool]:
    return [True] * rows.num_rows


def deliver(
    node: Node,
    now: int,
    script: Callable[[pa.RecordBatch], list[bool]] = accept,
    *,
    sink_down: bool = False,
) -> list[Left]:
    """Everything due at ``now`` to a sink; what it accepted. It stops at the first *not now*."""
    taken: list[Left] = []

    def hand(chunk: Chunk) -> bool:
        assert int(times(chunk.rows, "due").max(initial=0)) <= now, "early"
        answers = np.array(script(chunk.rows), np.bool_)
        values = chunk.rows.column("value").to_pylist()
        taken.extend((v, now) for v, ok in zip(values, answers.tolist(), strict=True) if ok)
        down = sink_down and not answers.all()
        node.wheel.answer(chunk, answers, sink_down=down)
        return not down

    while (chunk := node.next_chunk(now)) is not None and hand(chunk):
        pass
    for topic in node.wheel.held_topics():
        while (chunk := node.wheel.next_topic_chunk(topic, now)) is not None:
            before = len(taken)
            hand(chunk)
            if len(taken) == before and chunk.rows.num_rows:
                break
    node.sync()
    return taken


def values(left: Sequence[Left]) -> list[bytes]:
    return [value for value, _ in left]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, CONFIG, NOW)
    yield node
    node.sync()
    node.stored()  # catalog and files agree, whatever happened
    node.close()


def reopen(node: Node, now: int) -> None:
    node.crash()
    node.open(now)
    node.sync()


def many(first: int, count: int, due: int, topic: str = "t") -> list[NewRow]:
    return [(due, topic, b"%d" % n) for n in range(first, first + count)]


def test_a_sink_that_refuses_everything_for_a_minute(node: Node) -> None:
    """RocketMQ (3 tries), etf1: a due message dropped after a few failed sends."""
    for second in range(60):
        send(node, many(second * 5, 5, NOW + second * 1000), NOW)
    left: list[Left] = []
    for ms in range(0, 60_000, 500):
        left += deliver(node, NOW + ms, lambda rows: [False] * rows.num_rows, sink_down=True)
    assert left == []
    assert node.wheel.status().pending == 300
    assert values(deliver(node, NOW + 60_000)) == [b"%d" % n for n in range(300)]


class FailingFiles(OsFiles):
    """The disk is full at call number ``fail_at`` that needs room."""

    fail_at = -1
    calls = 0

    def step(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(28, "No space left on device")

    def open(self, path: str, *, create: bool = False) -> OsHandle:
        if create:
            self.step()
        handle = super().open(path, create=create)
        return FailingHandle(handle._fd, path, self.step)


class FailingHandle(OsHandle):
    def __init__(self, fd: int, path: str, step: Callable[[], None]) -> None:
        super().__init__(fd, path)
        self.step = step

    __slots__ = ("step",)

    def pwrite(self, parts: Sequence[Bytes], position: int) -> int:
        self.step()
        return super().pwrite(parts, position)


def test_a_spill_that_fails_leaves_no_file_behind(tmp_path: Path) -> None:
    """A file that no catalog knows would stay when its rows are delivered before the next spill."""
    rows: list[NewRow] = [(NOW + 1000 * second, "t", b"x") for second in range(1, 5)]
    failures = 0
    for fail_at in range(1, 20):
        path = tmp_path / str(fail_at)
        files, state = FailingFiles(path), LmdbState(path)
        wheel = Wheel.open(files, state, CONFIG, NOW)
        wheel.append(batch(rows[:1]), NOW)
        wheel.write_pending(0)
        wheel.spill(NOW, everything=True)
        wheel.append(batch(rows), NOW)
        wheel.write_pending(0)
        before = {name: (path / "slots" / name).stat().st_size for name in files.list("slots")}
        assert len(before) == 1
        files.calls, files.fail_at = 0, fail_at
        try:
            wheel.spill(NOW, everything=True)
        except OSError:
            failures += 1
            assert files.list("slots") == list(before)
            files.fail_at = -1
            wheel.spill(NOW, everything=True)
        assert len(files.list("slots")) == 4
        wheel.close()
        files.close()
    assert failures >= 4


def test_a_spill_that_cannot_be_committed_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, state = OsFiles(tmp_path), LmdbState(tmp_path)
    wheel = Wheel.open(files, state, CONFIG, NOW)
    wheel.append(batch([(NOW + 1000, "t", b"x")]), NOW)
    wheel.write_pending(0)

    def full(update: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(state, "commit", full)
        with pytest.raises(OSError, match="no room"):
            wheel.spill(NOW, everything=True)
    assert files.list("slots") == []
    wheel.spill(NOW, everything=True)
    assert len(files.list("slots")) == 1
    wheel.close()
    files.close()


def test_a_failure_on_the_way_in_is_never_a_receipt(tmp_path: Path) -> None:
    """Chronos, RocketMQ: an exception on the way in acknowledged as success."""
    refused, steps = 0, 0
    for fail_at in range(1, 100):
        path = tmp_path / str(fail_at)
        files, state = FailingFiles(path), LmdbState(path)
        wheel = Wheel.open(files, state, CONFIG, NOW)
        while wheel.write_pending(0):
            pass
        files.calls, files.fail_at = 0, fail_at
        accepted: list[bytes] = []
        for n in range(12):
            future = wheel.append(batch([(NOW + 5, "t", b"%d" % n + b"." * 600)]), NOW)
            wheel.write_pending(0)
            if future.exception(0) is None:
                accepted.append(b"%d" % n)
            else:
                assert isinstance(future.exception(0), Overloaded)
                refused += 1
            if n == 5:
                try:
                    wheel.spill(NOW, everything=True)
                except OSError:
                    wheel.spill(NOW, everything=True)
        steps = files.calls
        wheel.close()
        files.close()
        node = Node(path, CONFIG, NOW)
        left = [value.rstrip(b".") for value in values(deliver(node, NOW + 5))]
        assert left == accepted, f"failed at call {fail_at}"
        node.close()
        if steps < fail_at:
            break
    assert refused > 5
    assert steps > 12


def test_down_longer_than_the_horizon(node: Node) -> None:
    """RocketMQ, down for 7 days: one revolution of the wheel taken for another."""
    send(node, many(0, 60, NOW + 1), NOW)
    for second in range(60):
        send(node, many(100 + second, 1, NOW + second * 1000), NOW)
    node.wheel.spill(NOW, everything=True)
    later = NOW + 5 * 60_000 + 17
    reopen(node, later)
    send(node, many(1000, 3, later + 59_000), later)  # the slots of the first revolution again
    node.wheel.spill(later, everything=True)
    left = values(deliver(node, later))
    assert sorted(map(int, left)) == [*range(60), *range(100, 160)]
    assert left[0] == b"100"
    assert left[-1] == b"159"
    assert deliver(node, later + 58_999) == []
    assert values(deliver(node, later + 59_000)) == [b"1000", b"1001", b"1002"]


def test_an_earlier_revolutions_file_is_not_reused(node: Node) -> None:
    """RocketMQ #10668, #9654: a reference into reused storage."""
    second = NOW // 1000 + 5
    for revolution in range(3):
        now = NOW + revolution * 60_000
        send(node, many(revolution * 10, 10, now + 5_500), now)
        node.wheel.spill(now, everything=True)
        assert (node.path / path_of(second + revolution * 60)).exists()
        assert values(deliver(node, now + 6_001)) == [
            b"%d" % n for n in range(revolution * 10, revolution * 10 + 10)
        ]
        node.wheel.tell_mark(now + 6_001, at_once=True)
        node.sync()
        assert node.wheel.clean(now + 6_001) == 1
        assert not list((node.path / "slots").iterdir())


def test_append_and_spill_while_the_slot_drains(tmp_path: Path) -> None:
    """QMQ, NATS #7593: a race at the slot's edge, the handle evicted. Real threads."""
    node = Node(tmp_path, CONFIG, NOW)
    wheel = node.wheel
    stop, clock = threading.Event(), [NOW]
    taken: Counter[bytes] = Counter()
    failed: list[BaseException] = []

    def loop(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
                    time.sleep(0)
            except BaseException as error:
                failed.append(error)
                stop.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def take() -> None:
        now = clock[0]
        while (chunk := wheel.next_chunk(now)) is not None:
            assert int(times(chunk.rows, "due").max(initial=0)) <= now
            taken.update(chunk.rows.column("value").to_pylist())
            wheel.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))

    threads = [
        loop(lambda: wheel.write_pending(0.001)),
        loop(take),
        loop(lambda: wheel.spill(clock[0], everything=True)),
        loop(lambda: wheel.clean(clock[0])),
        loop(lambda: wheel.prepare(clock[0])),
    ]
    sent = 0
    until = time.monotonic() + 2.0
    while time.monotonic() < until and not failed:
        now = clock[0]
        rows = [
            (now + ms, "t", b"%d" % (sent + at)) for at, ms in enumerate((-2, 0, 1, 3, 997, 999))
        ]
        sent += len(rows)
        wheel.append(batch(rows), now).result(10)
        clock[0] += 7
    clock[0] += 2000
    until = time.monotonic() + 10
    while len(taken) < sent and time.monotonic() < until and not failed:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert not failed, failed
    assert sent > 100
    assert taken == Counter(b"%d" % n for n in range(sent))
    node.stored()
    node.close()


def test_never_early_at_exact_boundaries_and_clock_steps(node: Node) -> None:
    """Pulsar #10169: delivered early."""
    edge = NOW // 1000 * 1000 + 1000  # a slot's edge
    send(node, [(edge + ms, "t", b"%d" % ms) for ms in (-1, 0, 1, 999, 1000)], NOW)
    assert deliver(node, edge - 2) == []
    assert values(deliver(node, edge - 1)) == [b"-1"]
    assert values(deliver(node, edge)) == [b"0"]
    assert deliver(node, edge) == []
    with pytest.raises(ClockBehind):
        node.next_chunk(edge - 2000)
    send(node, [(edge - 1500, "t", b"late")], edge - 2000)  # not due yet by that clock
    with pytest.raises(ClockBehind):
        node.next_chunk(edge - 2000)
    assert values(deliver(node, edge + 999)) == [b"late", b"1", b"999"]
    assert values(deliver(node, edge + 3000)) == [b"1000"]


def test_one_of_a_hundred_fails(node: Node) -> None:
    """RocketMQ #6984: the retry of a batch repeats its neighbours."""
    send(node, [(NOW, f"t{n % 3}", b"%d" % n) for n in range(100)], NOW)
    bad = b"50"

    def all_but_one(rows: pa.RecordBatch) -> list[bool]:
        return [value != bad for value in rows.column("value").to_pylist()]

    left = deliver(node, NOW, all_but_one)
    for ms in range(1, 5):
        left += deliver(node, NOW + ms, all_but_one)
    early = Counter(values(left))
    assert max(early.values()) == 1, "a neighbour was repeated"
    # Its own topic waits behind it, in order; the two others are done.
    assert {int(value) for value in early} >= {n for n in range(100) if n % 3 != 2}
    assert bad not in early
    assert node.wheel.status().pending == 100 - len(early)
    left += deliver(node, NOW + 10)
    assert Counter(values(left)) == Counter(b"%d" % n for n in range(100))


def test_a_restart_restarts_no_due_time(node: Node) -> None:
    """NSQ #674, beanstalkd #62, Pulsar #22716: the due time begins anew after a restart."""
    dues = [NOW + ms for ms in (1, 700, 1500, 20_000, 59_999)]
    first = send(node, [(due, "t", b"%d" % due) for due in dues], NOW)
    offsets = np.arange(first.base_offset, first.base_offset + first.count)
    ids = node.wheel.mint.many(first.due, offsets)
    now = NOW
    for spill in (False, True, True):
        now += 300
        if spill:
            node.wheel.spill(now, everything=True)
        reopen(node, now)
        assert node.wheel.mint.many(first.due, offsets) == ids
    left: list[Left] = []
    for due in dues:
        assert [value for value, _ in deliver(node, max(due - 1, now)) if due > now + 1] == []
        left += deliver(node, max(due, now))
    taken = {int(value): at for value, at in left}
    assert all(taken.get(due, now) == max(due, now) for due in dues)
    assert node.wheel.status().pending == 0


@pytest.mark.parametrize("delay", [-60_000, -1, 0, 1])
def test_due_around_now(node: Node, delay: int) -> None:
    """etf1 #28: a message due in the past deleted or refused silently."""
    deliver(node, NOW)
    send(node, [(NOW + delay, "t", b"x")], NOW)
    assert values(deliver(node, NOW)) == ([b"x"] if delay <= 0 else [])
    assert values(deliver(node, NOW + 1)) == ([] if delay <= 0 else [b"x"])


def test_cancel_before_during_after_twice_and_unknown(node: Node) -> None:
    """RocketMQ #8974, #7991: a cancel that says yes without knowing."""
    receipt = send(node, many(0, 4, NOW + 10), NOW)
    mint = node.wheel.mint
    ids = [mint.one(NOW + 10, receipt.base_offset + n) for n in range(4)]

    def cancel(*which: int) -> list[CancelAnswer]:
        asked = [ids[n] for n in which]
        return node.blocking(lambda: node.wheel.cancel(asked, NOW + 10))

    assert cancel(0, 0) == [CancelAnswer.CANCELLED] * 2
    assert cancel(0) == [CancelAnswer.CANCELLED]
    chunk = node.next_chunk(NOW + 10)
    assert chunk is not None
    answers: list[CancelAnswer] = []
    asking = threading.Thread(
        target=lambda: answers.extend(node.wheel.cancel([ids[1]], NOW + 10, 10)), daemon=True
    )
    asking.start()
    time.sleep(0.05)
    assert answers == [], "it answered while the sink still had the row"
    node.wheel.answer(chunk, np.ones(3, np.bool_))
    asking.join(5)
    assert answers == [CancelAnswer.DELIVERED]
    assert cancel(2, 0) == [CancelAnswer.DELIVERED, CancelAnswer.CANCELLED]
    never = mint.one(NOW + 10, 10_000)
    forged = type(never)(never.group, never.due, 0, never.check)
    assert node.wheel.cancel([forged], NOW + 10) == [CancelAnswer.UNKNOWN]
    reopen(node, NOW + 20)
    assert cancel(3) == [CancelAnswer.UNKNOWN], "it may have left without a mark: not guessed"


def test_no_id_twice(node: Node) -> None:
    """RocketMQ #9945: one id for two messages. The same key to two topics, a batch sent twice."""
    rows = [(NOW + 5, "a", b"same"), (NOW + 5, "b", b"same")]
    seen: set[str] = set()
    for producer, sequence, fresh in ((0, -1, 2), (0, -1, 2), (9, 1, 2), (9, 1, 0), (9, 2, 2)):
        receipt = send(node, rows, NOW, producer=producer, sequence=sequence)
        offsets = np.arange(receipt.base_offset, receipt.base_offset + 2)
        ids = set(node.wheel.mint.many(receipt.due, offsets))
        assert len(ids) == 2
        assert len(ids - seen) == fresh
        seen |= ids
    reopen(node, NOW)
    receipt = send(node, rows, NOW)
    assert receipt.base_offset >= len(seen)
    assert len(deliver(node, NOW + 5)) == len(seen) + 2


def test_one_long_item_a_slot_frees_the_disk_all_the_same(node: Node) -> None:
    """beanstalkd #570: one undeliverable message keeps a whole segment."""
    for second in range(10):
        send(node, many(second * 20, 20, NOW + second * 1000), NOW)
        send(node, [(NOW + second * 1000, "bad", b"%d" % second)], NOW)
    node.wheel.spill(NOW, everything=True)

    def refuse_bad(rows: pa.RecordBatch) -> list[bool]:
        return [topic != "bad" for topic in rows.column("topic").to_pylist()]

    now = NOW + 12_000
    while (chunk := node.next_chunk(now)) is not None:  # refused for good: dead letters
        dead = chunk.rows.num_rows - sum(refuse_bad(chunk.rows))
        node.wheel.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_), dead)
    node.wheel.tell_mark(now, at_once=True)
    node.sync()
    assert node.wheel.clean(now) == 10
    assert node.wheel.status().dead == 10
    assert list((node.path / "slots").iterdir()) == []
    # Not now, for as long as it takes: no journal is kept for it, and its slots go once it is gone.
    send(node, [(now + 1, "bad", b"waits")], now)
    for second in range(1, 10):
        send(node, many(1000, 20, now + second * 1000), now)
    later = now + 11_000
    deliver(node, later, refuse_bad)
    for _ in range(2):
        node.wheel.spill(later, everything=True)
        node.wheel.tell_mark(later, at_once=True)
        node.sync()
    assert node.wheel.held_topics() == ["bad"]
    assert node.wheel.status().journal_bytes <= 2 * CONFIG.segment_bytes
    assert values(deliver(node, later + 1)) == [b"waits"]
    deliver(node, later + 2000)
    node.wheel.tell_mark(later + 2000, at_once=True)
    node.sync()
    node.wheel.clean(later + 2000)
    assert list((node.path / "slots").iterdir()) == []


def test_counting_what_is_pending_takes_no_time(tmp_path: Path) -> None:
    """RabbitMQ plugin #228: O(n). Also: memory stays flat (RabbitMQ: 17 GB for 3 million)."""
    node = Node(tmp_path, WheelConfig(), NOW)
    rows, held = 0, []
    column = np.arange(50_000)
    for part in range(8):
        due = NOW + 60_000 + (column * 137 + part) % 600_000
        send(node, [(int(at), "t", b"x" * 50) for at in due], NOW)
        rows += len(due)
        if part % 4 == 3:
            node.wheel.spill(NOW, everything=True)
            pa.default_memory_pool().release_unused()
            held.append(pa.total_allocated_bytes())
    times_s = []
    for _ in range(50):
        began = time.thread_time()
        assert node.wheel.status().pending == rows
        times_s.append(time.thread_time() - began)
    assert np.median(times_s) < 0.005
    assert held[1] - held[0] < 4 << 20, "memory grew with what is pending"
    node.close()


def test_a_burst_at_one_millisecond_leaves_in_bounded_chunks(tmp_path: Path) -> None:
    """RocketMQ #6566: 500 000 due in one second take half a minute (the rest: benchmarks)."""
    node = Node(tmp_path, WheelConfig(window_bytes_max=1 << 20, chunk_rows_max=5_000), NOW)
    for part in range(4):
        send(node, many(part * 25_000, 25_000, NOW + 5_000), NOW)
    node.wheel.spill(NOW, everything=True)
    assert node.next_chunk(NOW + 4_999) is None
    began, got = time.perf_counter(), []
    while (chunk := node.next_chunk(NOW + 5_000)) is not None:
        assert chunk.rows.num_rows <= 5_000
        got.append(times(chunk.rows, "offset"))
        node.wheel.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    assert time.perf_counter() - began < 20
    assert np.array_equal(np.concatenate(got), np.arange(100_000))
    node.close()


def test_a_damaged_slot_file_is_never_delivered_from(node: Node) -> None:
    """NATS #7549, #7556, #8269: a damaged record taken as valid."""
    send(node, many(0, 5, NOW + 5), NOW)
    node.wheel.spill(NOW, everything=True)
    path = node.path / path_of((NOW + 5) // 1000)
    good = path.read_bytes()
    path.write_bytes(good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    with pytest.raises(Damaged, match=path.name):
        node.next_chunk(NOW + 5)
    send(node, [(NOW + 6, "t", b"intake goes on")], NOW)
    path.write_bytes(good)
    assert values(deliver(node, NOW + 6)) == [b"0", b"1", b"2", b"3", b"4", b"intake goes on"]
