"""What is pending by prefix: whatever happens to a wheel, the table has what a recount has, and
what the wheel's users would say."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.node.pendingfile import FILE_NAME, read_counts, write_counts
from slotwheel.node.pendingtable import PendingTable
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, SECOND_S, width_s
from slotwheel.wheel.slots.storage import StockPoint
from support.wheels import NOW, TIGHT, Node, master_of, opened

HOUR_MS = 3_600_000
FAR = replace(TIGHT, slots=7_200, far_horizon_ms=96 * HOUR_MS)
PREFIXES = ("a*", "ab", "b", "*")
TOPICS = ("a", "ab", "abc", "b", "other")
Pending = dict[str, tuple[int, int]]


def brought_up(table: PendingTable, node: Node) -> StockPoint:
    """Add and count all that the node has."""
    point = node.wheel.stock_point()
    table.add_new(point)
    for second in table.stale(point):
        table.count(second, point)
    return point


def amounts(table: PendingTable) -> Pending:
    assert table.unseen_slots == 0
    return dict(zip(table.patterns, table.amounts, strict=True))


def by_prefix(messages: Sequence[tuple[str, bytes]]) -> Pending:
    """Of messages by topic and value, said with loops."""
    sums: dict[str, Counter[str]] = {prefix: Counter() for prefix in PREFIXES}
    for topic, value in messages:
        for prefix in PREFIXES:
            if topic == prefix or (prefix[-1] == "*" and topic.startswith(prefix[:-1])):
                sums[prefix] += Counter(rows=1, nbytes=len(value))
    return {prefix: (one["rows"], one["nbytes"]) for prefix, one in sums.items()}


class World:
    """A wheel, a table beside it, and a model of what its users know."""

    def __init__(self, path: Path, config: WheelConfig) -> None:
        self.now_ms = NOW
        self.node = Node(path, config, NOW)
        self.table = self.new_table()
        self.waiting: dict[bytes, tuple[str, MessageId]] = {}
        """Topic and id of what is pending, by value."""
        self.numbers = itertools.count()
        self.refused: str | None = None

    def new_table(self) -> PendingTable:
        return PendingTable(PREFIXES, self.node.wheel.read_slot, self.node.config.slots)

    def send(self, rows: Sequence[tuple[int, str, int]]) -> None:
        made = [
            (self.now_ms + after_ms, topic, b"%d." % next(self.numbers) + b"v" * size)
            for after_ms, topic, size in rows
        ]
        receipt = self.node.send(made, self.now_ms)
        for (_, topic, value), one in zip(made, self.node.ids_of(receipt), strict=True):
            self.waiting[value] = topic, one

    def cancel(self, numbers: Sequence[int]) -> None:
        values = list(self.waiting)
        chosen = {values[number % len(values)] for number in numbers} if values else set()
        ids = [self.waiting[value][1] for value in chosen]
        answers = self.node.blocking(lambda: self.node.wheel.cancel(ids, self.now_ms))
        for value, answer in zip(chosen, answers, strict=True):
            if answer == "cancelled":
                del self.waiting[value]

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def deliver(self, refused: str | None) -> None:
        self.refused = refused
        for value in self.node.delivered(self.now_ms, lambda row: row[0] != refused):
            self.waiting.pop(value, None)
        self.node.mark(self.now_ms)

    def spill(self, everything: bool) -> None:
        self.node.wheel.spill(self.now_ms, everything=everything)
        self.node.wheel.clean(self.now_ms)

    def restart(self, keeps: bool) -> None:
        """The process dies. ``keeps``: the file of the counts is newer than the last spill."""
        saved = self.table.saved() if keeps else None
        self.node.reopen(self.now_ms)
        self.table = self.new_table()
        if saved is not None:
            self.table.restore(saved)

    def check(self) -> None:
        brought_up(self.table, self.node)
        now = amounts(self.table)
        anew = self.new_table()
        brought_up(anew, self.node)
        assert now == amounts(anew)
        assert now == by_prefix([(topic, value) for value, (topic, _) in self.waiting.items()])
        assert now["*"][0] == self.node.wheel.status().pending


def steps_of(ahead_ms: st.SearchStrategy[int], passing_ms: st.SearchStrategy[int]) -> Any:
    """Steps of a world whose messages are due so far ahead, and where so much time passes."""
    row = st.tuples(ahead_ms, st.sampled_from(TOPICS), st.integers(0, 40))
    return st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.lists(row, min_size=1, max_size=12)),
            st.tuples(st.just("cancel"), st.lists(st.integers(0, 1_000), max_size=6)),
            st.tuples(st.just("pass_time"), passing_ms),
            st.tuples(st.just("deliver"), st.sampled_from([None, None, "a", "b"])),
            st.tuples(st.just("spill"), st.booleans()),
            st.tuples(st.just("restart"), st.booleans()),
            st.tuples(st.just("check"), st.none()),
        ),
        min_size=4,
        max_size=30,
    )


NEAR = st.integers(-3_000, 50_000)
# Few distinct times, so that rows of one second, hour and day come at several times.
FAR_AHEAD = st.sampled_from([0, 1, 3, 25, 47, 49, 72]).flatmap(
    lambda hours: st.sampled_from([-3_000, 0, 500, 2_000]).map(lambda ms: hours * HOUR_MS + ms)
)
WORLDS = st.one_of(
    st.tuples(st.just(TIGHT), steps_of(NEAR, st.integers(0, 9_000))),
    st.tuples(
        st.just(FAR),
        steps_of(
            NEAR | FAR_AHEAD,
            st.integers(0, 9_000) | st.sampled_from([1, 2, 24]).map(HOUR_MS.__mul__),
        ),
    ),
)


@settings(max_examples=30)
@given(life=WORLDS)
def test_it_has_what_a_recount_and_the_users_have(
    tmp_path_factory: pytest.TempPathFactory,
    life: tuple[WheelConfig, list[tuple[str, Any]]],
) -> None:
    config, steps = life
    world = World(tmp_path_factory.mktemp("pending"), config)
    try:
        for name, argument in [*steps, ("check", None)]:
            getattr(world, name)(*([] if name == "check" else [argument]))
    finally:
        world.node.close()


def test_what_was_spilled_unseen_is_known_as_unknown_until_it_is_counted(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        node.send([(NOW + 1_000 * n, "ab", b"12345") for n in range(1, 9)], NOW)
        node.wheel.spill(NOW, everything=True)
        node.send([(NOW + 3_000, "ab", b"12345")], NOW)
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        point = node.wheel.stock_point()
        table.add_new(point)
        assert table.unseen_slots == 8
        assert table.saved() is None
        stale = table.stale(point)
        assert len(stale) == 8
        for number, second in enumerate(stale, 1):
            table.count(second, point)
            assert table.unseen_slots == 8 - number
        assert amounts(table)["ab"] == (9, 45)


def test_a_second_that_cannot_be_read_stays_unknown_and_others_are_counted(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        node.send([(NOW + 1_000 * n, "ab", b"12345") for n in range(1, 4)], NOW)
        node.wheel.spill(NOW, everything=True)
        names = sorted((tmp_path / "slots").iterdir())
        names[1].write_bytes(bytes(len(names[1].read_bytes())))
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        point = node.wheel.stock_point()
        table.add_new(point)
        for second in table.stale(point):
            try:
                table.count(second, point)
            except Damaged:
                continue
        assert table.unseen_slots == 1
        assert dict(zip(table.patterns, table.amounts, strict=True))["ab"] == (2, 10)
        assert node.wheel.damaged() == {}  # who counts reports nothing to those who deliver


def test_seconds_in_which_nothing_changed_are_not_read_again(tmp_path: Path) -> None:
    read: list[int] = []
    with opened(tmp_path, TIGHT, NOW) as node:

        def read_slot(slot: int, info: Any, seconds: range) -> Any:
            read.append(slot)
            return node.wheel.read_slot(slot, info, seconds)

        table = PendingTable(PREFIXES, read_slot, TIGHT.slots)
        brought_up(table, node)
        node.send([(NOW + 1_000 * n, "b", b"x") for n in range(1, 9)], NOW)
        brought_up(table, node)
        node.wheel.spill(NOW, everything=True)
        brought_up(table, node)
        assert read == []
        assert len(node.delivered(NOW + 3_500)) == 3
        brought_up(table, node)
        brought_up(table, node)
        assert amounts(table)["b"] == (5, 5)
        assert set(read) <= {(NOW + 3_500) // 1_000}  # those before were passed whole


def test_a_far_slot_is_read_when_a_border_comes_to_it_and_not_again(tmp_path: Path) -> None:
    read: Counter[int] = Counter()
    with opened(tmp_path, FAR, NOW) as node:

        def read_slot(slot: int, info: Any, seconds: range) -> Any:
            read[slot] += 1
            return node.wheel.read_slot(slot, info, seconds)

        table = PendingTable(PREFIXES, read_slot, FAR.slots)
        assert node.delivered(NOW) == []
        brought_up(table, node)
        node.send([(NOW + hour * HOUR_MS, "b", b"x") for hour in range(1, 96)], NOW)
        brought_up(table, node)
        node.wheel.spill(NOW, everything=True)
        for _ in range(2):
            brought_up(table, node)
        assert not read
        for hour in range(1, 96):
            marks = Marks(Mark(NOW + hour * HOUR_MS - 1, 0, 1_000))
            point = replace(node.wheel.stock_point(), marks=marks)
            for _ in range(3):
                table.add_new(point)
                for slot in table.stale(point):
                    table.count(slot, point)
            assert amounts(table)["b"] == (96 - hour, 96 - hour)
    # A day is split into its hours, and each of these into its seconds.
    most = {SECOND_S: 1, HOUR_S: 2, DAY_S: 1 + 24}
    assert {width_s(slot) for slot in read} == set(most)
    assert all(times <= most[width_s(slot)] for slot, times in read.items())


def test_a_row_that_comes_while_a_border_moves_counts_once(tmp_path: Path) -> None:
    """Its hour is still one slot of the table when it comes, and has a message from before."""
    with opened(tmp_path, FAR, NOW) as node:
        table = PendingTable(PREFIXES, node.wheel.read_slot, FAR.slots)
        assert node.delivered(NOW) == []
        node.send([(NOW + 3 * HOUR_MS, "b", b"x")], NOW)
        brought_up(table, node)
        later_ms = NOW + 2 * HOUR_MS
        node.send([(NOW + 3 * HOUR_MS + 1_500, "b", b"x")], later_ms)
        point = replace(node.wheel.stock_point(), marks=Marks(Mark(later_ms, 0, 1_000)))
        for _ in range(2):
            table.add_new(point)
            for slot in table.stale(point):
                table.count(slot, point)
            assert amounts(table)["b"] == (2, 2)


def test_due_times_of_1970_and_of_the_horizon_stand_in_one_table(tmp_path: Path) -> None:
    with opened(tmp_path, FAR, NOW) as node:
        table = PendingTable(PREFIXES, node.wheel.read_slot, FAR.slots)
        node.send([(due, "b", b"x") for due in (0, NOW, NOW + 96 * HOUR_MS)], NOW)
        brought_up(table, node)
        assert amounts(table)["b"] == (3, 3)
        assert node.delivered(NOW) == [b"x"] * 2
        brought_up(table, node)
        assert amounts(table)["b"] == (1, 1)


def test_wide_files_that_a_table_has_not_seen_are_counted_in_their_hours(tmp_path: Path) -> None:
    """The table is new at a time when most of a day's file has left."""
    with opened(tmp_path, FAR, NOW) as node:
        due = [NOW + hour * HOUR_MS + 500 for hour in range(60, 85)]
        node.send([(at, "b", b"x") for at in due], NOW)
        node.wheel.spill(NOW, everything=True)
        table = PendingTable(PREFIXES, node.wheel.read_slot, FAR.slots)
        left = Marks(Mark(NOW + 77 * HOUR_MS, 0, 1_000))
        point = replace(node.wheel.stock_point(), marks=left)
        table.add_new(point)
        assert 0 < table.unseen_slots <= 2 * 24  # in two files
        for slot in table.stale(point):
            table.count(slot, point)
        assert amounts(table)["b"] == (8, 8)


def test_the_file_gives_back_what_was_written_and_nothing_of_another_one(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        node.send([(NOW + 1_000 * n, topic, b"x") for n in (3, 7) for topic in TOPICS], NOW)
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        brought_up(table, node)
        saved, store = table.saved(), node.wheel.store_id
    assert saved is not None
    write_counts(tmp_path, store, PREFIXES, saved)
    again = read_counts(tmp_path, store, PREFIXES)
    assert again is not None
    assert again.offset == saved.offset
    assert np.array_equal(again.cells, saved.cells)
    assert np.array_equal(again.ends, saved.ends)
    assert read_counts(tmp_path, bytes(16), PREFIXES) is None
    assert read_counts(tmp_path, store, PREFIXES[1:]) is None
    file = tmp_path / FILE_NAME
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert (at in (6, 7)) or read_counts(tmp_path, store, PREFIXES) is None
        file.write_bytes(whole[:at])
        assert read_counts(tmp_path, store, PREFIXES) is None
    file.unlink()
    assert read_counts(tmp_path, store, PREFIXES) is None


def test_an_empty_table_is_kept_as_well(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        brought_up(table, node)
        saved = table.saved()
        assert saved is not None
        write_counts(tmp_path, node.wheel.store_id, PREFIXES, saved)
        again = read_counts(tmp_path, node.wheel.store_id, PREFIXES)
        assert again is not None
        table.restore(again)
        node.send([(NOW + 1_000, "b", b"x")], NOW)
        brought_up(table, node)
        assert amounts(table)["b"] == (1, 1)


def test_a_held_back_topic_stays_pending_and_leaves_by_its_own_mark(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        due = [NOW + 1_000 * second + ms for second in (1, 2, 3) for ms in (100, 600)]
        node.send([(at, topic, b"x") for at in due for topic in ("a", "b")], NOW)
        node.wheel.spill(NOW, everything=True)
        brought_up(table, node)
        for now_ms, of_b in (
            (NOW + 1_300, 5),
            (NOW + 1_900, 4),
            (NOW + 2_300, 3),
            (NOW + 9_000, 0),
        ):
            node.delivered(now_ms, lambda row: row[0] != "a")
            brought_up(table, node)
            assert (amounts(table)["a*"], amounts(table)["b"]) == ((6, 6), (of_b, of_b))
        assert master_of(node.wheel).held_topics() == ["a"]
        for left in range(5, -1, -1):  # behind a main mark that is past all of it
            chunk = master_of(node.wheel).next_topic_chunk("a", NOW + 9_000)
            assert chunk is not None
            answers = np.arange(chunk.rows.num_rows) == 0
            master_of(node.wheel).answer(chunk, answers)
            brought_up(table, node)
            assert amounts(table)["a*"] == (left, left)


def test_a_late_row_is_pending_though_its_second_is_past(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        node.send([(NOW + 1_000, "b", b"x")], NOW)
        assert node.delivered(NOW + 9_000) == [b"x"]
        brought_up(table, node)
        for _ in range(2):
            node.send([(NOW + 1_000, "b", b"y")], NOW + 9_000)
            brought_up(table, node)
        assert amounts(table)["b"] == (2, 2)
        assert len(node.delivered(NOW + 9_000)) == 2
        brought_up(table, node)
        assert amounts(table)["b"] == (0, 0)


def test_a_cancel_that_does_not_count_yet_is_not_kept_over_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, TIGHT, NOW) as node:
        table = PendingTable(PREFIXES, node.wheel.read_slot, TIGHT.slots)
        ids = node.ids_of(node.send([(NOW + 5_000, "b", b"x")] * 2, NOW))
        brought_up(table, node)
        assert table.saved() is not None
        node.blocking(lambda: node.wheel.cancel(ids[:1], NOW))
        table.add_new(node.wheel.stock_point())
        assert table.saved() is None  # it has the cancel, and counts both messages
        brought_up(table, node)
        saved = table.saved()
        assert saved is not None
        assert saved.cells[saved.cells[:, 0] == PREFIXES.index("b"), 2:].tolist() == [[1, 1]]
