"""Two peers of one log: however each has spilled, dropped and fallen behind, they agree; and every
difference that is planted is found and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.reading.agreement import compare as agree
from slotwheel.reading.agreement import journals
from slotwheel.reading.agreement.compare import Agreement, PeerDirectory, compare
from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.journal.entry import PARTS_VERSION, Entry, EntryKind, EntryPart, with_parts
from slotwheel.wheel.journal.payloads import decode_rows
from slotwheel.wheel.journal.segment import segment_path
from slotwheel.wheel.mark import Mark, Marks, TopicMark
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.slot import DAY_S, SECOND_S, WIDTHS_S, path_of, slot_with
from slotwheel.wheel.state import StateUpdate
from support.damage import flipped
from support.peerdirs import (
    CONFIG,
    SECOND,
    Replica,
    Row,
    mark_entry,
    rows_entry,
    write_slots,
)

BASE = SECOND * TICK_MS
GROUP = CONFIG["group"]


@dataclass
class History:
    """A log, made entry by entry."""

    entries: list[Entry] = field(default_factory=list)
    next_offset: int = 0
    epoch: int = 1

    def rows(self, *due: int) -> None:
        """Rows due so many ms after the base."""
        index = len(self.entries) + 1
        self.entries.append(
            rows_entry(index, self.epoch, self.next_offset, [BASE + at for at in due])
        )
        self.next_offset += len(due)

    def mark(self, c: int, last: int, **copies: TopicMark) -> None:
        marks = Marks(Mark(BASE + c, 1 << 60, last), self.epoch, copies, delivered=last + 1)
        self.entries.append(mark_entry(len(self.entries) + 1, self.epoch, self.next_offset, marks))

    def marks_at(self, index: int) -> Marks:
        found = [one for one in self.entries[:index] if one.kind is EntryKind.MARK]
        return Marks.decode(bytes(found[-1].payload)) if found else Marks()

    def peer(
        self,
        *,
        spilled: int,
        first: int = 1,
        last: int | None = None,
        marked: int | None = None,
        widths: Sequence[int] = (SECOND_S,),
        changed: Callable[[dict[int, list[list[Row]]]], None] = lambda slots: None,
    ) -> Replica:
        """A peer with the entries ``first`` to ``last``, of which those up to ``spilled`` are in
        slot files, but for what the mark at entry ``marked`` covers. ``widths``: of the slots
        that the rows of the first, second, … entry lie in, and again from the first on."""
        entries = self.entries[: len(self.entries) if last is None else last]
        marks = self.marks_at(max(spilled, marked or 0))
        slots: dict[int, list[list[Row]]] = {}
        for entry in entries[:spilled]:
            if entry.kind is not EntryKind.ROWS:
                continue
            due = times(decode_rows(entry, ""), "due").tolist()
            for offset, at in enumerate(due, entry.base_offset):
                if not marks.main.covers(at, offset):
                    slot = slot_with(at // TICK_MS, widths[entry.index % len(widths)])
                    slots.setdefault(slot, []).append([(at, offset)])
        changed(slots)
        ends = [0, *(one.base_offset + one.count for one in entries[:spilled])]
        peer = Replica(store=b"%016d" % spilled)
        peer.fill(
            index=spilled,
            slots=slots,
            entries=entries[first - 1 :],
            epoch=9,
            entry_epoch=entries[spilled - 1].epoch if spilled else 0,
            marks=marks,
            first_index=first,
            next_offset=ends[-1],
            before_epoch=self.entries[first - 2].epoch if first > 1 else 0,
        )
        return peer


def history() -> History:
    made = History()
    made.rows(500, 1500, 1501, 9000)  # offsets 0-3
    made.rows(700, 9001)  # 4, 5
    made.mark(600, 5)  # entry 3 covers offset 0
    made.epoch = 2
    made.rows(1502, 20_000, 9002)  # 6-8
    made.mark(1500, 8)  # entry 5 covers 0, 1, 4
    made.rows(1500, 9003, 20_001, 30_000)  # 9-12
    made.epoch = 4
    made.mark(1501, 8)  # entry 7 covers 0, 1, 2, 4
    made.rows(9004, 40_000)  # 13, 14
    return made


def result(left: Replica, right: Replica) -> Agreement:
    return compare(
        PeerDirectory("left", left.files, left.state.load()),
        PeerDirectory("right", right.files, right.state.load()),
    )


def both_ways(left: Replica, right: Replica) -> Agreement:
    """Compared in either order, which must come to the same."""
    found, other = result(left, right), result(right, left)
    assert len(found.problems) == len(other.problems)
    assert (found.entries, found.rows, found.slots) == (other.entries, other.rows, other.slots)
    return found


def only_problem(left: Replica, right: Replica) -> str:
    found = both_ways(left, right)
    (problem,) = found.problems
    assert not found.agrees
    return problem


# -- they agree


@pytest.mark.parametrize("mine", range(9))
@pytest.mark.parametrize("theirs", range(9))
def test_peers_that_spilled_at_different_moments_agree(mine: int, theirs: int) -> None:
    made = history()
    left = made.peer(spilled=mine, marked=7)
    right = made.peer(spilled=theirs, widths=WIDTHS_S)
    assert left.faults() == right.faults() == []
    found = both_ways(left, right)
    assert found.problems == []
    assert (found.entries, found.first_index, found.last_index) == (8, 1, 8)
    assert found.next_offset == 15
    assert found.notes == []
    assert 11 <= found.rows <= 15


def test_a_peer_that_is_behind_is_not_wrong() -> None:
    made = history()
    for last in range(1, 8):
        left, right = made.peer(spilled=7), made.peer(spilled=min(2, last), last=last)
        found = both_ways(left, right)
        assert found.problems == []
        assert found.notes == [f"right is {8 - last} entries behind"]
        assert found.next_offset == made.entries[last].base_offset


def test_journals_without_a_common_entry() -> None:
    """What the one behind has at its end may be another history: only what it knows to be committed
    is compared, here by its mark up to offset 8."""
    made = history()
    left = made.peer(spilled=7, first=8)
    right = made.peer(spilled=2, last=6)
    found = both_ways(left, right)
    assert found.problems == []
    assert "the journals share no entry" in found.notes
    assert (found.entries, found.rows, found.next_offset) == (0, 5, 9)


def test_an_end_of_another_history_that_the_other_journal_does_not_reach_back_to() -> None:
    made = history()
    other = replace(made, entries=made.entries[:5], next_offset=9, epoch=3)
    other.rows(9004, 50_000)
    for first, last in ((8, 6), (7, 6), (7, 8)):  # a gap; side by side; one entry over another
        while len(other.entries) < last:
            other.rows(60_000)
        found = both_ways(made.peer(spilled=7, first=first), other.peer(spilled=5, last=last))
        assert (found.problems, found.entries, found.next_offset) == ([], 0, 9)


def test_journals_that_meet_in_the_entry_before_the_first() -> None:
    made = history()
    found = both_ways(made.peer(spilled=7, first=7), made.peer(spilled=2, last=6))
    assert (found.problems, found.next_offset, found.rows) == ([], 13, 9)


def test_an_end_that_was_not_committed_is_a_note() -> None:
    made = history()
    other = replace(made, entries=made.entries[:7], next_offset=13, epoch=5)
    other.rows(9004, 50_000)
    other.rows(60_000)
    found = both_ways(made.peer(spilled=6), other.peer(spilled=3))
    assert found.problems == []
    assert found.notes == [
        "left has entries 8 to 8, the first of epoch 4 and right has entries 8 to 9, the first of"
        " epoch 5: an uncommitted end, which one of them will cut"
    ]
    assert (found.last_index, found.next_offset) == (7, 13)


def test_a_torn_end_is_a_note() -> None:
    made = history()
    right = made.peer(spilled=4)
    path = segment_path(7)
    right.files.replace(path, right.files.content(path) + b"torn")
    found = both_ways(made.peer(spilled=4), right)
    assert found.problems == []
    assert any("ends early" in note for note in found.notes)


def test_held_back_topics_keep_their_rows() -> None:
    """A row behind the main mark, and ahead of its topic's copy, is not covered."""
    made = History()
    made.rows(100, 200)
    made.mark(500, 1, t=TopicMark(Mark(BASE + 150, 1 << 60, 1), 1))
    left = made.peer(spilled=0)

    def without(offset: int) -> Callable[[dict[int, list[list[Row]]]], None]:
        def drop(slots: dict[int, list[list[Row]]]) -> None:
            slots[SECOND] = [[(BASE + 100 * (2 - offset), 1 - offset)]]

        return drop

    right = made.peer(spilled=2, changed=without(0))
    assert both_ways(left, right).agrees
    right = made.peer(spilled=2, changed=without(1))
    assert "does not have row" in only_problem(left, right)


# -- planted differences in rows


def row_id(due: int, offset: int) -> str:
    return f"row {GROUP}.{BASE + due}.{offset}."


def test_a_row_that_is_missing_in_a_slot_file() -> None:
    made = history()

    def lose(slots: dict[int, list[list[Row]]]) -> None:
        slots[SECOND + 9].remove([(BASE + 9002, 8)])

    problem = only_problem(made.peer(spilled=8), made.peer(spilled=6, changed=lose))
    assert problem.startswith(f"right does not have {row_id(9002, 8)}")
    problem = only_problem(made.peer(spilled=6, changed=lose), made.peer(spilled=0))
    assert problem.startswith(f"left does not have {row_id(9002, 8)}")


def test_several_rows_of_a_second_are_one_problem() -> None:
    made = history()

    def lose(slots: dict[int, list[list[Row]]]) -> None:
        del slots[SECOND + 9]

    problem = only_problem(made.peer(spilled=8), made.peer(spilled=6, changed=lose))
    assert row_id(9000, 3) in problem
    assert problem.endswith("and 3 more of that second")


@pytest.mark.parametrize(
    ("second", "row", "begins", "ends"),
    [
        (35, (35_000, 2), f"left does not have {row_id(35_000, 2)}", ""),
        (40, (40_000, 14), f"right has {row_id(40_000, 14)}", "twice"),
        (30, (30_001, 12), f"{row_id(30_000, 12)}", "differs in due, created"),
    ],
    ids=["a row too many", "in a slot file and in the tail", "another due time"],
)
def test_a_slot_file_with_another_row(second: int, row: Row, begins: str, ends: str) -> None:
    made = history()

    def other(slots: dict[int, list[list[Row]]]) -> None:
        slots[SECOND + second] = [[(BASE + row[0], row[1])]]

    problem = only_problem(made.peer(spilled=8), made.peer(spilled=6, changed=other))
    assert begins in problem
    assert problem.endswith(ends)


def test_a_row_with_another_content() -> None:
    made = history()
    left, right = made.peer(spilled=8), made.peer(spilled=6)
    catalog = dict(right.state.load().slots)
    # The same rows with longer values, in one second.
    right.files.remove(path_of(SECOND + 20))
    rows = {SECOND + 20: [[(BASE + 20_000, 7)], [(BASE + 20_001, 11)]]}
    catalog.update(write_slots(right.files, rows, pad=3))
    right.state.commit(StateUpdate(slots=catalog))
    assert right.faults() == []
    problems = both_ways(left, right).problems
    assert [problem.split(".")[2] for problem in problems] == ["7", "11"]
    assert all(problem.endswith("differs in value") for problem in problems)


def test_a_damaged_slot_file_is_named_and_the_others_are_compared() -> None:
    made = history()
    left, right = made.peer(spilled=8), made.peer(spilled=8)
    right.files.replace(path_of(SECOND + 9), b"junk" * 1000)
    right.files.remove(path_of(SECOND + 40))
    left.files.replace(path_of(SECOND + 30), left.files.content(path_of(SECOND + 30))[:-1])
    found = both_ways(left, right)
    assert len(found.problems) == 3
    for problem, second in zip(found.problems, (9, 30, 40), strict=True):
        assert path_of(SECOND + second) in problem
    assert found.rows == 4


# -- planted differences in journals


def changed_entry(index: int, **fields: object) -> History:
    made = history()
    made.entries[index - 1] = replace(made.entries[index - 1], **fields)  # type: ignore[arg-type]
    return made


def test_a_flipped_byte_under_a_crc_that_is_right() -> None:
    payload = bytes(history().entries[3].payload)
    at = payload.index(b"6")  # the value of offset 6
    changed = changed_entry(4, payload=payload[:at] + b"X" + payload[at + 1 :])
    right = changed.peer(spilled=0)
    assert right.faults() == []
    found = both_ways(history().peer(spilled=0), right)
    assert found.problems[0] == (
        f"entry 4 of epoch 2 is not the same: rows payload, from byte {at} on"
        f" ({segment_path(3)} at byte 240, {segment_path(3)} at byte 240)"
    )
    assert found.problems[1].startswith(row_id(1502, 6))
    assert len(found.problems) == 2
    assert found.entries == 7


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"producer": 5, "sequence": 3}, "producer 0 and 5"),
        ({"sequence": 3}, "sequence -1 and 3"),
        ({"flags": 1}, "flags 0 and 1"),
    ],
)
def test_a_differing_header(fields: dict[str, int], says: str) -> None:
    right = changed_entry(6, **fields).peer(spilled=2)
    assert says in only_problem(history().peer(spilled=2), right)


def test_a_differing_table_of_parts() -> None:
    """The rows are the same, and not whose they are."""
    batch = bytes(history().entries[3].payload)

    def of_producer(number: int) -> Replica:
        parts = [EntryPart(number, 0, 1), EntryPart(9, 0, 2)]
        made = changed_entry(4, version=PARTS_VERSION, payload=with_parts(batch, parts))
        return made.peer(spilled=0)

    left, right = map(of_producer, (7, 8))
    assert left.faults() == right.faults() == []
    assert both_ways(left, of_producer(7)).problems == []
    assert f"rows payload, from byte {len(batch)} on" in only_problem(left, right)
    assert "version 1 and 2" in only_problem(history().peer(spilled=0), right)


def test_a_differing_mark() -> None:
    other = Marks(Mark(BASE + 1500, 1 << 60, 7), 2, {}, delivered=9)
    right = changed_entry(5, payload=other.encode()).peer(spilled=0)
    problem = only_problem(history().peer(spilled=0), right)
    assert problem.startswith("entry 5 of epoch 2 is not the same: mark payload, from byte 32 on")


def test_a_mark_in_a_checkpoint_that_no_journal_has() -> None:
    left, right = history().peer(spilled=8), history().peer(spilled=4)
    checkpoint = right.state.load().checkpoint
    between = replace(checkpoint.marks, main=Mark(BASE + 650, 1 << 60, 6))
    right.state.commit(StateUpdate(checkpoint=replace(checkpoint, marks=between)))
    problems = both_ways(left, right).problems
    assert any("has a mark that is not in the journal" in problem for problem in problems)
    assert f"{between.main}" in problems[0]


def test_a_mark_that_covers_more_on_one_peer_hides_no_loss_on_the_other() -> None:
    made = history()

    def lose(slots: dict[int, list[list[Row]]]) -> None:
        del slots[SECOND + 1]

    ahead = made.peer(spilled=8)
    behind = made.peer(spilled=4, last=4, changed=lose)  # its mark is that of entry 3
    assert "does not have" in only_problem(ahead, behind)


def parted() -> tuple[History, History]:
    """Two logs that part at entry 6."""
    made = history()
    other = replace(made, entries=made.entries[:5], next_offset=9, epoch=3)
    other.rows(9004, 50_000)
    return made, other


def test_two_histories_that_are_both_committed() -> None:
    """Both checkpoints say that entry 6 is."""
    made, other = parted()
    first, *rows = both_ways(made.peer(spilled=7), other.peer(spilled=6)).problems
    assert "left has entries 6 to 8, the first of epoch 2" in first
    assert "both are committed, up to 7 and 6" in first
    assert rows, "and so their slot files differ"


def test_an_end_that_others_have_outrun_is_a_note() -> None:
    """The peer was cut off when its end was overtaken, and has not come back yet."""
    made, other = parted()
    for spilled in range(9):
        found = both_ways(made.peer(spilled=spilled), other.peer(spilled=5))
        assert found.problems == []
        assert found.next_offset == 9
        (note,) = found.notes
        assert note.endswith("an uncommitted end, which one of them will cut")


def test_a_mark_proves_what_was_committed() -> None:
    """No checkpoint says so, but a later mark speaks of the rows as delivered or seen."""
    made, other = parted()
    made.mark(1501, 12)  # entry 9: all rows of entry 6
    other.mark(1501, 9)  # entry 7: not yet all rows of its entry 6
    assert both_ways(made.peer(spilled=2), other.peer(spilled=3)).agrees
    other.mark(1501, 10)
    problem = only_problem(made.peer(spilled=2), other.peer(spilled=3))
    assert "both are committed, up to 6 and 6" in problem


def test_a_mark_behind_the_parting_excuses_what_it_covers() -> None:
    """Its peer was right to delete the slot file; which end was committed is not known."""
    made, other = parted()
    other.mark(9_999, 10)

    def cleaned(slots: dict[int, list[list[Row]]]) -> None:
        slots.clear()

    assert both_ways(made.peer(spilled=4), other.peer(spilled=5, changed=cleaned)).agrees is False
    other.entries.pop()
    other.mark(20_500, 10)
    assert both_ways(made.peer(spilled=4), other.peer(spilled=5, changed=cleaned)).agrees


def test_a_damaged_segment_that_is_not_the_last() -> None:
    made = history()
    left, right = made.peer(spilled=0), made.peer(spilled=0)
    path = segment_path(3)
    right.files.replace(path, flipped(right.files.content(path), 3000))
    found = both_ways(left, right)
    (problem,) = found.problems
    assert problem.startswith(f"right: {path} is damaged")
    assert (found.entries, found.next_offset) == (3, 6)


def test_a_segment_that_is_missing() -> None:
    made = history()
    left, right = made.peer(spilled=0), made.peer(spilled=0)
    right.files.remove(segment_path(3))
    (problem,) = both_ways(left, right).problems
    assert "expected first index 3" in problem


def test_checkpoints_that_contradict_the_other_journal() -> None:
    left, right = history().peer(spilled=0), history().peer(spilled=4)
    checkpoint = right.state.load().checkpoint
    right.state.commit(StateUpdate(checkpoint=replace(checkpoint, epoch=1)))
    assert "entry 4 of epoch 1, which left has of epoch 2" in result(left, right).problems[0]
    right.state.commit(StateUpdate(checkpoint=replace(checkpoint, next_offset=10)))
    assert "ends before offset 10, entry 4 in the journal of left before 9" in "\n".join(
        result(left, right).problems
    )


def test_another_group_and_another_key() -> None:
    left, right = history().peer(spilled=1), history().peer(spilled=1)
    checkpoint = right.state.load().checkpoint
    for name, says in (("group", "of orders, right of x"), ("key", "with different keys")):
        config = {**checkpoint.config, name: "x"}
        right.state.commit(StateUpdate(checkpoint=replace(checkpoint, config=config)))
        assert says in only_problem(left, right) or name == "group"
        assert result(left, right).rows == 0


def test_a_switch_that_is_not_completed() -> None:
    left, right = history().peer(spilled=1), history().peer(spilled=1)
    right.state.commit(StateUpdate(incoming=True))
    assert "a switch to a snapshot is not completed" in only_problem(left, right)


def test_it_stops_after_so_many_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    made = History()
    made.rows(*(at * 1000 for at in range(40)))

    def lose(slots: dict[int, list[list[Row]]]) -> None:
        slots.clear()

    monkeypatch.setattr(journals, "PROBLEMS_MAX", 10)
    monkeypatch.setattr(agree, "PROBLEMS_MAX", 10)
    found = both_ways(made.peer(spilled=1), made.peer(spilled=1, changed=lose))
    assert len(found.problems) == 10
    assert found.notes == [f"stopped in second {SECOND + 9}, after so many problems"]


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    peer = history().peer(spilled=4)
    one = PeerDirectory("one", peer.files, peer.state.load())
    compare(one, one, lambda done, total: told.append((done, total)))
    assert told[0] == (1, len(told))
    assert told[-1] == (len(told), len(told))


@pytest.mark.parametrize(("strip_bytes", "problems"), [(1, 2), (32 << 20, 1)])
def test_rows_that_one_peer_has_in_a_days_file_are_found_where_they_are_missing(
    monkeypatch: pytest.MonkeyPatch, strip_bytes: int, problems: int
) -> None:
    def lose(slots: dict[int, list[list[Row]]]) -> None:
        [day] = slots
        slots[day] = [block for block in slots[day] if block[0][1] not in (3, 7)]

    monkeypatch.setattr(agree, "STRIP_BYTES", strip_bytes)
    made = history()
    whole = made.peer(spilled=5)
    found = both_ways(whole, made.peer(spilled=5, widths=(DAY_S,)))
    assert found.problems == []
    lacking = both_ways(whole, made.peer(spilled=5, widths=(DAY_S,), changed=lose))
    assert len(lacking.problems) == problems
    assert f"right does not have {row_id(9000, 3)}" in lacking.problems[0]
    assert lacking.rows == found.rows - 2


# -- any history


@st.composite
def histories(draw: st.DrawFn) -> History:
    made = History()
    c = last = -1
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 4)) == 0:
            made.epoch += draw(st.integers(1, 3))
        if made.next_offset and draw(st.integers(0, 3)) == 0:
            c = draw(st.integers(c, 5000))
            last = draw(st.integers(last, made.next_offset - 1))
            made.mark(c, last)
        else:
            made.rows(*draw(st.lists(st.integers(0, 6000), min_size=1, max_size=6)))
    return made


def drawn_peer(data: st.DataObject, made: History) -> Replica:
    last = data.draw(st.integers(1, len(made.entries)))
    spilled, marked = (data.draw(st.integers(0, last)) for _ in range(2))
    widths = data.draw(st.lists(st.sampled_from(WIDTHS_S), min_size=1, max_size=3))
    return made.peer(spilled=spilled, last=last, marked=marked, widths=widths)


@settings(max_examples=60)
@given(st.data())
def test_peers_of_any_history_agree(data: st.DataObject) -> None:
    made = data.draw(histories())
    left, right = (drawn_peer(data, made) for _ in range(2))
    assert both_ways(left, right).problems == []


@settings(max_examples=60)
@given(st.data())
def test_any_uncovered_row_that_is_lost_is_found(data: st.DataObject) -> None:
    made = data.draw(histories())
    lost: list[Row] = []

    def lose(slots: dict[int, list[list[Row]]]) -> None:
        rows = [(second, block) for second, blocks in sorted(slots.items()) for block in blocks]
        if rows:
            second, block = data.draw(st.sampled_from(rows))
            slots[second].remove(block)
            if not slots[second]:
                del slots[second]
            lost.extend(block)

    left = made.peer(spilled=data.draw(st.integers(0, len(made.entries))), widths=WIDTHS_S)
    right = made.peer(spilled=data.draw(st.integers(0, len(made.entries))), changed=lose)
    newest = made.marks_at(len(made.entries)).main
    missed: Sequence[Row] = [row for row in lost if not newest.covers(*row)]
    found = both_ways(left, right)
    assert len(found.problems) == len(missed)
    for (due, offset), problem in zip(missed, found.problems, strict=True):
        assert f"right does not have row {GROUP}.{due}.{offset}." in problem


def test_a_second_that_the_other_has_not_reached() -> None:
    """All of one second's rows lie beyond what the other has: nothing to compare, nothing wrong."""
    made = History()
    made.rows(100)
    made.rows(5000)
    found = both_ways(made.peer(spilled=2), made.peer(spilled=1, last=1))
    assert (found.problems, found.rows, found.next_offset) == ([], 1, 1)


def test_a_mark_that_was_set_back_is_newer_than_those_before_it() -> None:
    before = Marks(Mark(BASE + 5_000, 1, 6), delivered=7)
    after = replace(before, main=before.main.set_back(BASE, 0), resets=1)
    assert (
        journals.progress(before)
        < journals.progress(after)
        < journals.progress(replace(after, delivered=8))
    )
