"""Exactly once with embedded topics: what is in a topic is not delivered again after a crash."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.embedded.exactly_once import EmbeddedExactlyOnce
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.semantics import NotReady
from slotwheel.reading.topicreader import topics
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.schema import ROW, Int64s
from support.nodeprocess import topic_rows
from support.wheels import Node, batch, master_of

T0 = 1_900_000_000_000
NO_MARKS = WheelConfig(mark_interval_ms=3_600_000, chunk_rows_max=7)
"""After the mark with which an epoch begins none is written, so that a crash forgets everything."""


class Life:
    """One process: it delivers by ``deliver``, and ends without a further mark."""

    def __init__(self, node: Node, *, accept_repeats: bool = False) -> None:
        self.node = node
        self.now_ms = T0
        self.sink = EmbeddedSink(node.files, node.wheel.mint, lambda: self.now_ms)
        letters = DeadLetters(self.sink, None)
        self.semantics = EmbeddedExactlyOnce(
            self.sink, letters, node.files, accept_repeats=accept_repeats
        )
        self.sink.recover_all()

    def begin(self) -> None:
        self.semantics.begin(master_of(self.node.wheel), self.now_ms)

    def deliver(self, now_ms: int, chunks: int = 1 << 30) -> int:
        """Deliver what is due, in at most so many chunks; how many rows that were."""
        self.now_ms = now_ms
        master, rows = master_of(self.node.wheel), 0
        for _ in range(chunks):
            chunk = self.node.next_chunk(now_ms)
            if chunk is None:
                break
            rows += chunk.rows.num_rows
            outcome = self.semantics.deliver(master, chunk, lambda: self.now_ms)
            master.answer(chunk, outcome.answered, outcome.dead.total(), expired=outcome.expired)
        return rows

    def crash(self) -> None:
        self.sink.close()
        self.node.crash()


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Life]:
    def new_life(**options: bool) -> Life:
        node = Node(tmp_path, NO_MARKS, T0)
        node.sync()
        return Life(node, **options)

    return new_life


def part_of(chunk: Chunk, rows: Int64s) -> Chunk:
    return replace(chunk, rows=chunk.rows.take(pa.array(rows)))


def in_topics(path: Path) -> Counter[bytes]:
    with closing(OsFiles(path)) as files:
        return Counter(row["value"] for topic in topics(files) for row in topic_rows(path, topic))


def test_what_left_without_a_mark_is_not_delivered_again(
    tmp_path: Path, start: Callable[..., Life]
) -> None:
    rows = [(T0 + n % 40, f"t{n % 3}", b"%d" % n) for n in range(200)]
    life = start()
    life.begin()
    life.node.send(rows, T0)
    life.deliver(T0 + 20, chunks=9)
    done = sum(in_topics(tmp_path).values())
    assert 0 < done < 200
    for chunks in (3, 5):
        life.crash()
        life = start()
        life.begin()
        assert life.node.wheel.status().delivered == done
        assert life.node.wheel.status().pending == 200 - done
        life.deliver(T0 + 30, chunks=chunks)
        done = sum(in_topics(tmp_path).values())
    life.deliver(T0 + 40)
    assert in_topics(tmp_path) == Counter({b"%d" % n: 1 for n in range(200)})
    assert life.node.wheel.status().delivered == 200
    assert life.node.wheel.status().pending == 0
    life.crash()


def test_what_left_is_counted_once_however_often_it_is_read(start: Callable[..., Life]) -> None:
    """A mark that is written before delivery goes on counts rows that it does not cover."""
    life = start()
    life.begin()
    life.node.send([(T0 + n, "t", b"%d" % n) for n in range(20)], T0)
    life.deliver(T0 + 20, chunks=2)
    for _ in range(3):
        life.crash()
        life = start()
        life.begin()
        life.node.mark(T0 + 20)
        status = life.node.wheel.status()
        assert (status.delivered, status.pending) == (14, 6)
    life.deliver(T0 + 30)
    assert life.node.wheel.status().delivered == 20
    life.crash()


def test_what_left_before_the_mark_was_set_back_is_not_delivered_again(
    tmp_path: Path, start: Callable[..., Life]
) -> None:
    """The topic's blocks are not in the order of their times any more. One message left by the
    wrong clock behind another one that the sink did not take, so that no mark covers it."""
    life = start()
    life.begin()
    assert life.deliver(T0 + 24 * 3_600_000) == 0
    life.node.send([(T0 + 50_000, "t", b"waits"), (T0 + 50_000, "t", b"left")], T0)
    chunk = life.node.next_chunk(life.now_ms)
    assert chunk is not None
    master = master_of(life.node.wheel)
    life.semantics.deliver(master, part_of(chunk, np.array([1])), lambda: life.now_ms)
    master.answer(chunk, np.array([False, True]), sink_down=True)
    assert master.set_back(T0 + 100)
    life.node.send([(T0 + 50, "t", b"between")], T0)
    assert life.deliver(T0 + 100) == 1
    assert life.deliver(T0 + 10_000) == 0
    life.node.mark(T0 + 10_000)
    life.crash()
    life = start()
    life.begin()
    assert life.deliver(T0 + 60_000) == 1
    assert in_topics(tmp_path) == Counter({b"waits": 1, b"left": 1, b"between": 1})
    assert life.node.wheel.status().pending == 0
    life.crash()


def test_what_left_of_a_held_topic_before_a_set_back_is_found_once_the_main_mark_is_further(
    tmp_path: Path, start: Callable[..., Life]
) -> None:
    """The main mark has come where it was set back from; the topic's own has not, and the newest
    block is older than what its mark says."""
    day_on = T0 + 24 * 3_600_000
    life = start()
    life.begin()
    assert life.deliver(day_on) == 0
    life.node.send([(T0 + 50_000, "t", b"waits"), (T0 + 50_000, "t", b"left")], T0)
    chunk = life.node.next_chunk(life.now_ms)
    assert chunk is not None
    master = master_of(life.node.wheel)
    life.semantics.deliver(master, part_of(chunk, np.array([1])), lambda: life.now_ms)
    master.answer(chunk, np.array([False, True]))
    assert master.held_topics() == ["t"]
    assert master.set_back(T0 + 100)
    life.node.send([(T0 + 50, "t", b"between"), (T0 + 49_000, "t", b"dead")], T0)
    assert life.deliver(T0 + 100) == 0
    chunk = master.next_topic_chunk("t", T0 + 100)
    assert chunk is not None
    outcome = life.semantics.deliver(master, chunk, lambda: life.now_ms)
    master.answer(chunk, outcome.answered)
    assert life.deliver(day_on + 1) == 0
    chunk = master.next_topic_chunk("t", day_on + 1)
    assert chunk is not None
    assert chunk.rows.column("value").to_pylist() == [b"dead"]
    master.answer(chunk, np.array([True]), 1)
    assert not master.marks.main.former
    life.node.mark(day_on + 1)
    life.crash()
    life = start()
    life.begin()
    master = master_of(life.node.wheel)
    life.deliver(day_on + 2)
    while (chunk := master.next_topic_chunk("t", day_on + 2)) is not None:
        outcome = life.semantics.deliver(master, chunk, lambda: life.now_ms)
        master.answer(chunk, outcome.answered)
    assert in_topics(tmp_path) == Counter({b"waits": 1, b"left": 1, b"between": 1})
    life.crash()


def test_held_topics_late_rows_and_dead_letters(tmp_path: Path, start: Callable[..., Life]) -> None:
    life = start()
    life.begin()
    life.node.send([(T0 + n, f"t{n % 2}", b"%d" % n) for n in range(10)], T0)
    life.node.wheel.append(batch([(T0 + 5, "orders", b"expired")], [T0 + 6]), T0)
    life.node.sync()
    master = master_of(life.node.wheel)
    # t1 takes nothing now: its rows are held back, those behind the first one are not sent.
    life.now_ms = T0 + 9
    while (chunk := life.node.next_chunk(T0 + 9)) is not None:
        names = chunk.rows.column("topic").to_pylist()
        takes = np.array([name != "t1" for name in names], np.bool_)
        at = np.flatnonzero(takes)
        outcome = life.semantics.deliver(master, part_of(chunk, at), lambda: life.now_ms)
        answered = takes.copy()
        answered[at] = outcome.answered
        master.answer(chunk, answered, outcome.dead.total(), expired=outcome.expired)
    assert master.held_topics() == ["t1"]
    chunk = master.next_topic_chunk("t1", T0 + 9)
    assert chunk is not None
    first = np.arange(2)
    life.semantics.deliver(master, part_of(chunk, first), lambda: life.now_ms)
    life.crash()  # before it is answered
    life = start()
    life.begin()
    status = life.node.wheel.status()
    assert (status.delivered, status.expired, status.dead) == (7, 1, 0)
    life.node.send([(T0 + 1, "t0", b"late")], T0 + 1)
    life.deliver(T0 + 60)
    expected = {b"%d" % n: 1 for n in range(10)} | {b"late": 1, b"expired": 1}
    assert in_topics(tmp_path) == Counter(expected)
    life.crash()


def test_a_cancel_of_what_may_have_left_gets_a_true_answer(start: Callable[..., Life]) -> None:
    life = start()
    life.begin()
    ids = life.node.ids_of(life.node.send([(T0 + n, "t", b"%d" % n) for n in range(20)], T0))
    life.deliver(T0 + 10, chunks=1)
    life.crash()
    life = start()
    wheel = life.node.wheel
    before = life.node.blocking(lambda: wheel.cancel(ids[:1], T0 + 11))
    assert before == [CancelAnswer.UNKNOWN]
    life.begin()
    answers = life.node.blocking(lambda: wheel.cancel(ids, T0 + 11))
    assert answers == [CancelAnswer.DELIVERED] * 7 + [CancelAnswer.CANCELLED] * 13
    life.crash()


def test_rows_of_another_data_directory_do_not_count(
    tmp_path: Path, start: Callable[..., Life]
) -> None:
    """The journal was removed and the topics were kept: offsets begin again, the key is new."""
    life = start()
    other = EmbeddedSink(life.node.files, IdMint("default", b"sixteen bytes..."), lambda: T0 + 1)
    life.node.send([(T0 + n, "t", b"%d" % n) for n in range(5)], T0)
    chunk = life.node.next_chunk(T0 + 4)
    assert chunk is not None
    other.deliver(chunk.rows.select(ROW.names))  # without the checks that this life's key made
    other.close()
    life.crash()
    life = start()
    life.begin()
    assert life.deliver(T0 + 4) == 5
    assert sum(in_topics(tmp_path).values()) == 10
    life.crash()


@pytest.mark.parametrize("damaged", ["arrows", "index"], ids=["block", "record of the block"])
def test_damage_in_what_came_last_stops_delivery_until_repeats_are_accepted(
    tmp_path: Path, start: Callable[..., Life], damaged: str
) -> None:
    """Without the record nobody knows of its block; its rows may have been read."""
    life = start()
    life.begin()
    life.node.send([(T0 + n, "t", b"%d" % n) for n in range(5)], T0)
    life.deliver(T0 + 4)
    life.crash()
    (path,) = (tmp_path / "topics" / "t").glob(f"*.{damaged}")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    life = start()
    with pytest.raises(NotReady, match="Nobody knows what has left"):
        life.begin()
    life.crash()
    life = start(accept_repeats=True)
    life.begin()
    assert life.deliver(T0 + 4) == 5
    life.crash()


def test_topics_that_are_newer_than_the_journal_stop_delivery(
    tmp_path: Path, start: Callable[..., Life]
) -> None:
    """The journal is an old copy: its next messages would get numbers that have left already."""
    life = start()
    life.begin()
    life.crash()
    old = tmp_path.with_name("old")
    shutil.copytree(tmp_path, old)
    life = start()
    life.begin()
    life.node.send([(T0 + n, "t", b"%d" % n) for n in range(5)], T0)
    life.deliver(T0 + 4)
    life.crash()
    for part in ("journal", "state", "slots"):
        shutil.rmtree(tmp_path / part)
        shutil.copytree(old / part, tmp_path / part)
    life = start()
    with pytest.raises(NotReady, match="is an old copy"):
        life.begin()
    life.crash()


def test_the_marks_that_are_told_beforehand_are_those_of_the_answer(tmp_path: Path) -> None:
    """Kafka's mark is made before the answer; any difference would be a repeat or a loss."""
    node = Node(tmp_path, replace(NO_MARKS, chunk_rows_max=20, held_topics_max=2), T0)
    node.sync()
    rng = np.random.default_rng(7)
    node.send([(T0 + n // 3, f"t{n % 5}", b"%d" % n) for n in range(600)], T0)
    master = master_of(node.wheel)
    for _ in range(2_000):
        names = [None, *master.held_topics()]
        topic = names[int(rng.integers(len(names)))]
        chunk = (
            node.next_chunk(T0 + 300) if topic is None else master.next_topic_chunk(topic, T0 + 300)
        )
        if chunk is None:
            continue
        rows = chunk.rows.num_rows
        answered = rng.random(rows) < rng.choice([0.5, 0.95, 1.0])
        if rng.random() < 0.3:
            answered = np.arange(rows) < rng.integers(0, rows + 1)
        down = bool(rng.random() < 0.5)
        told = master.after(chunk, answered, sink_down=down)
        master.answer(chunk, answered, sink_down=down)
        assert told == master.marks
    assert node.wheel.status().pending == 0
    node.close()
