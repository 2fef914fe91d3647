"""Search of what lies in files of seconds, hours and days: a second is judged over all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slotwheel.reading.recordedblocks import archived_rows
from slotwheel.reading.search import pending
from slotwheel.reading.search.fate import MessageState, find
from slotwheel.reading.search.pending import PendingPage, PendingReader
from slotwheel.reading.search.query import Query
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.archive import archived_slot_name
from slotwheel.wheel.slots.slot import (
    DAY_S,
    HOUR_S,
    begins_ms,
    path_of,
    seconds_of,
    slot_with,
    slots_with,
)
from support.damage import flipped
from support.datadirs import state_of
from support.fardirs import CONFIG, DAY, DUE, LAST, SECOND, SENT, FarDirectory, far_directory
from support.wheels import Node


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> FarDirectory:
    return far_directory(tmp_path_factory.mktemp("far"))


@pytest.fixture
def copied(far: FarDirectory, tmp_path: Path) -> Path:
    return shutil.copytree(far.root, tmp_path / "copied")


def pages(reader: PendingReader, query: Query, limit: int) -> list[PendingPage]:
    found = [reader.page(query, limit=limit)]
    while found[-1].next is not None:
        found.append(reader.page(query, found[-1].next, limit=limit))
    assert all(page.complete for page in found)
    return found


@pytest.mark.parametrize("strip_bytes", [1, 700, 32 << 20])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_go_on_within_a_day(
    far: FarDirectory, monkeypatch: pytest.MonkeyPatch, strip_bytes: int, limit: int
) -> None:
    monkeypatch.setattr(pending, "STRIP_BYTES", strip_bytes)
    with PendingReader(far.root) as reader:
        found = pages(reader, Query(), limit)
        assert [id_ for page in found for id_ in page.ids] == far.kept
        assert all(len(page.ids) <= limit for page in found)


def test_each_condition_is_held_against_all_files_of_a_second(far: FarDirectory) -> None:
    due = [int(id_.split(".")[1]) for id_ in far.kept]
    ranges = [(None, None), (DUE, DUE + 1), (DUE + 1, None), (None, DUE), (DAY, LAST), (LAST, None)]
    with PendingReader(far.root) as reader:
        for from_ms, to_ms in ranges:
            expected = [
                id_
                for id_, at in zip(far.kept, due, strict=True)
                if (from_ms is None or at >= from_ms) and (to_ms is None or at < to_ms)
            ]
            query = Query(from_ms=from_ms, to_ms=to_ms)
            assert [id_ for page in pages(reader, query, 100) for id_ in page.ids] == expected
            assert reader.count(query).total == len(expected)
            assert sum(reader.count(query, by_slot=True).by_slot.values()) == len(expected)
        by_topic = reader.count(by_topic=True)
        assert by_topic.by_topic == {"begin": 1, "end": 1, "t0": 5, "t1": 5}
        assert by_topic.looked_through == 18


def test_a_day_far_ahead_is_one_number_and_one_nearby_is_counted_by_second(
    far: FarDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = seconds_of(slot_with(SECOND, DAY_S))
    with PendingReader(far.root) as reader:
        count = reader.count(by_slot=True)
        assert count.by_slot == {day: len(far.kept)}
        assert count.looked_through == 0
        monkeypatch.setattr(pending, "_BY_SECOND_MS", DAY)
        near = reader.count(by_slot=True)
        seconds = [range(second, second + 1) for second in (DAY // 1000, SECOND, LAST // 1000)]
        assert near.by_slot == dict(zip(seconds, (1, len(far.kept) - 2, 1), strict=True))
        assert near.total == count.total
        assert near.looked_through == 11, "the second's own file was not read"
        again = reader.count(by_slot=True)
        assert (again.by_slot, again.looked_through) == (near.by_slot, 0)


def test_messages_count_for_their_day_wherever_they_lie(tmp_path: Path) -> None:
    """As rows of the tail, by topic, and out of the file of the day."""
    node = Node(tmp_path, CONFIG, SENT[0])
    node.send([(DUE, "t", b""), (DUE + 1_000, "t", b""), (LAST, "u", b"")], SENT[0])
    day = seconds_of(slot_with(SECOND, DAY_S))
    for spills in (False, True):
        if spills:
            node.open(SENT[0])
            node.wheel.spill(SENT[0], everything=True)
        node.close()
        with PendingReader(tmp_path) as reader:
            assert reader.count(by_slot=True).by_slot == {day: 3}
            assert reader.count(Query(topics=("t",)), by_slot=True).by_slot == {day: 2}
            later = reader.count(Query(from_ms=DUE + 1), by_slot=True)
            assert later.by_slot == {day: 2}


def test_a_day_within_48_hours_is_counted_by_hour_and_read_again_when_its_file_grew(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "HOURS_UNTIL_MS", DAY)
    first, mine, last = (
        seconds_of(slot_with(second, HOUR_S)) for second in (DAY // 1000, SECOND, LAST // 1000)
    )
    with PendingReader(copied) as reader:
        assert reader.count(by_slot=True).by_slot == {first: 1, mine: 10, last: 1}
        assert reader.count(by_slot=True).looked_through == 0
    node = Node(copied, CONFIG, SENT[0])
    ids = node.ids_of(node.send([(DUE, "new", b"")] * 3, SENT[0]))
    node.wheel.spill(SENT[0], everything=True)
    node.blocking(lambda: node.wheel.cancel(ids[:1], SENT[2]))
    node.close()
    with PendingReader(copied) as again:  # a process has a store open once
        again._signed = reader._signed
        count = again.count(by_slot=True)
        assert count.by_slot == {first: 1, mine: 12, last: 1}
        assert count.looked_through == 6 + 1 + 3, "the file of the day alone has grown"


def test_ids_are_found_in_whichever_file_they_lie(far: FarDirectory) -> None:
    with PendingReader(far.root) as reader:
        fates = find(reader, [*far.kept, *far.cancelled])
        states = [MessageState.PENDING] * len(far.kept) + [MessageState.CANCELLED] * 3
        assert [fate.state for fate in fates] == states
        assert not reader._wide, "nothing stays open behind a question"
        page = reader.page(Query(ids=(far.kept[0], *far.cancelled)))
        assert page.ids == far.kept[:1]
        assert page.looked_through == 17, "what is due at the day's end is not looked at"


@pytest.mark.parametrize("slot", slots_with(SECOND))
def test_a_file_of_a_second_that_is_damaged_or_missing_is_named(
    far: FarDirectory, copied: Path, slot: int
) -> None:
    path = copied / path_of(slot)
    whole = path.read_bytes()
    for content in (flipped(whole, len(whole) * 8 - 80), None):
        path.write_bytes(content) if content is not None else path.unlink()
        with PendingReader(copied) as reader:
            for answer in (reader.page(), reader.count(by_topic=True)):
                assert [problem.file for problem in answer.problems] == [path_of(slot)]
            [fate] = find(reader, far.kept[1:2])
            assert fate.state is not MessageState.DELIVERED


def test_archived_rows_of_a_second_are_those_of_all_widths(copied: Path) -> None:
    slots = state_of(copied).slots
    kept = copied / "archive/2030-01-01/slots"
    kept.mkdir(parents=True)
    for slot, info in slots.items():
        (copied / path_of(slot)).rename(kept / archived_slot_name(slot, info))
    rows = archived_rows(copied, SECOND)
    assert sum(batch.num_rows for batch in rows) == 15
    assert {int(due) // 1000 for batch in rows for due in times(batch, "due")} == {SECOND}
    last = archived_rows(copied, LAST // 1000)
    assert [int(due) for batch in last for due in times(batch, "due")] == [LAST]
    assert begins_ms(slot_with(SECOND, DAY_S)) == DAY
