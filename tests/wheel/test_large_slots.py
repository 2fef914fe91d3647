"""A slot with far more bytes than a window: the others do not wait for it, and it is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.config import KIB, WheelConfig
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.slotfile import SlotFiles
from support.wheels import NOW, Node, master_of, opened

CONFIG = WheelConfig(
    disk_reserve_bytes=0, window_bytes_max=64 * KIB, chunk_bytes_max=16 * KIB, chunk_rows_max=50
)
VALUE = b"v" * 8 * KIB
DUE = NOW + 5_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes that are read of slot files, by second."""
    counts: Counter[int] = Counter()
    real = SlotFiles.read

    def counted(files: SlotFiles, second: int, info: Any, known: Any = None) -> Any:
        counts[second] += info.length - (known.length if known is not None else 0)
        return real(files, second, info, known)

    monkeypatch.setattr(SlotFiles, "read", counted)
    return counts


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path, CONFIG, NOW) as node:
        yield node


def fill(node: Node, topics: list[str], rows: int = 120, *, spill: bool = True) -> None:
    """One second with so many large rows, and a hundred small ones of another topic among them."""
    for part in range(3):
        large = [
            (DUE + n * 900 // rows, topics[n % len(topics)], VALUE) for n in range(part, rows, 3)
        ]
        small = [(DUE + n * 9, "small", b"%d" % n) for n in range(part, 100, 3)]
        node.send(large + small, NOW)
        if spill:
            node.wheel.spill(NOW, everything=True)


def all_accepted(node: Node, chunk: Any) -> Any:
    master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    return chunk.rows


@pytest.mark.parametrize("spill", [True, False], ids=["in the file", "in the tail"])
@pytest.mark.parametrize("ahead", [True, False], ids=["read ahead", "opened late"])
def test_another_topic_leaves_before_the_large_one_is_done(
    node: Node, spill: bool, ahead: bool
) -> None:
    fill(node, ["large"], spill=spill)
    master = master_of(node.wheel)
    if ahead:
        master.prepare(DUE - 1000)
        node.sync()
    now_ms = DUE + 1_000
    found = []
    while (chunk := node.next_chunk(now_ms)) is not None:
        found += all_accepted(node, chunk).column("topic").to_pylist()
    assert found == ["small"] * 100
    assert master.held_topics() == ["large"]
    assert node.wheel.status().pending == 120
    offsets: list[int] = []
    while (chunk := master.next_topic_chunk("large", now_ms)) is not None:
        rows = all_accepted(node, chunk)
        assert rows.nbytes <= 2 * CONFIG.chunk_bytes_max
        offsets += times(rows, "offset").tolist()
    assert len(offsets) == len(set(offsets)) == 120
    assert master.held_topics() == []
    assert node.wheel.status().pending == 0


def test_a_large_topic_keeps_its_line_while_its_slot_is_due(node: Node) -> None:
    """It would be given back to the main line whenever it has caught up, and taken out again."""
    fill(node, ["large"])
    master = master_of(node.wheel)
    for now_ms in range(DUE, DUE + 900, 100):
        node.delivered(now_ms)
        assert master.held_topics() == ["large"]
    assert len(node.delivered(DUE + 2_000)) > 0
    assert node.next_chunk(DUE + 3_000) is None
    node.delivered(DUE + 3_000)
    assert master.held_topics() == []


@pytest.mark.parametrize("held", [0, 1, 5])
def test_a_slot_is_read_once_however_many_topics_are_held(
    node: Node, read: Counter[int], held: int
) -> None:
    topics = [f"held-{n}" for n in range(held)] or ["large"]
    fill(node, topics)
    size = sum(path.stat().st_size for path in (node.path / "slots").iterdir())
    assert size > 8 * CONFIG.window_bytes_max
    taken = Counter(node.delivered(DUE + 1_000, lambda row: not row[0].startswith("held")))
    master = master_of(node.wheel)
    assert sorted(master.held_topics()) == sorted(topics) * bool(held)
    for _ in range(500):  # in turns, as the hand does
        for topic in master.held_topics():
            master.prepare_topic(topic)
            chunk = master.next_topic_chunk(topic, DUE + 1_000)
            if chunk is not None:
                taken.update(all_accepted(node, chunk).column("value").to_pylist())
    assert taken[VALUE] == 120
    assert taken.total() == 220
    assert master.held_topics() == []
    # Once to check it; then a window takes the bytes of its own rows alone.
    assert sum(read.values()) <= size


def test_slots_that_are_drained_side_by_side_are_read_once(node: Node, read: Counter[int]) -> None:
    """Five topics come back at once, after some seconds in which each had a little."""
    seconds = range(20)
    for second in seconds:
        node.send([(DUE + second * 1000, f"t{n}", b"v" * 100) for n in range(5)], NOW)
    node.wheel.spill(NOW, everything=True)
    size = sum(path.stat().st_size for path in (node.path / "slots").iterdir())
    now_ms = DUE + 30_000
    assert node.delivered(now_ms, lambda _: False) == []
    master, taken = master_of(node.wheel), 0
    assert len(master.held_topics()) == 5
    for _ in range(100):
        for topic in master.held_topics():
            chunk = master.next_topic_chunk(topic, now_ms)
            if chunk is not None:
                taken += all_accepted(node, chunk).num_rows
    assert taken == 100
    assert sum(read.values()) <= 2 * size


def test_topics_that_are_many_and_large_leave_places_to_those_that_fail(tmp_path: Path) -> None:
    topics = [f"t{n}" for n in range(8)]
    with opened(
        tmp_path,
        WheelConfig(
            disk_reserve_bytes=0,
            window_bytes_max=64 * KIB,
            chunk_bytes_max=16 * KIB,
            held_topics_max=6,
        ),
        NOW,
    ) as node:
        fill(node, topics)
        chunk = node.next_chunk(DUE + 1_000)
        assert chunk is not None
        assert len(master_of(node.wheel).held_topics()) == 3
        all_accepted(node, chunk)
        assert len(node.delivered(DUE + 1_000)) + chunk.rows.num_rows == 220
