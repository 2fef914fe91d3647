"""Looking how far journals and topics go, and reading up to there, beside somebody who writes."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.reading.events import Ended, Event, RowsSeen
from slotwheel.reading.growing.journal import look_at_journal
from slotwheel.reading.growing.parts import JournalPart, TopicPart, read_part
from slotwheel.reading.growing.positions import JournalAt, Positions, TopicAt
from slotwheel.reading.growing.topics import look_at_topic
from slotwheel.reading.problems import Problem
from slotwheel.wheel.errors import UnsupportedVersion
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.journal import Journal
from slotwheel.wheel.schema import PAYLOAD
from support.damage import flip
from support.factrows import EPOCH_MS, MINT, rows
from support.journals import open_journal

ROWS = 10
SEGMENT_BYTES = 4_000
"""A few entries fill one."""


def entry(index: int, epoch: int = 1, due: int = 0) -> Entry:
    """Rows ``(index - 1) * ROWS`` on."""
    columns = {
        "due": [due or index] * ROWS,
        "created": [index] * ROWS,
        "cancels": [None] * ROWS,
        "topic": ["orders"] * ROWS,
        "partition": [None] * ROWS,
        "key": [None] * ROWS,
        "value": [b"%d" % index] * ROWS,
        "headers": [[]] * ROWS,
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=PAYLOAD)
    base = (index - 1) * ROWS
    return Entry(EntryKind.ROWS, epoch, index, base, ROWS, 0, -1, bytes(batch.serialize()))


class Written:
    """A journal, and what a stream reads of it from look to look."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = OsFiles(root)
        self.journal = self.open()
        self.at: JournalAt | None = None

    def open(self, **options: Any) -> Journal:
        journal, _, _ = open_journal(
            self.files, segment_bytes=SEGMENT_BYTES, entry_bytes_max=1 << 20, **options
        )
        return journal

    def append(self, *entries: Entry) -> None:
        for one in entries:
            self.journal.append([one])
        self.journal.sync()

    def look(self, nbytes: int = 1 << 40) -> JournalPart | None:
        before = self.at
        self.at, _ = look_at_journal(self.root, before, archive=True, nbytes=nbytes)
        if self.at is None or self.at == before:
            return None
        return JournalPart(0, "one", str(self.root), before, self.at)

    def read(self) -> list[Event]:
        part = self.look()
        return [] if part is None else list(read_part(part))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def offsets(events: list[Event]) -> list[int]:
    """Of all rows, each entry's first."""
    found = [
        event.rows.column("offset").to_pylist() for event in events if isinstance(event, RowsSeen)
    ]
    return [offset for part in found for offset in part if offset % ROWS == 0]


def problems(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events if isinstance(event, Problem)]


def bases(first: int, last: int) -> list[int]:
    return [(index - 1) * ROWS for index in range(first, last + 1)]


def test_each_entry_once_over_many_segments(written: Written) -> None:
    found = []
    for index in range(1, 40):
        written.append(entry(index))
        if index % 7 == 0:
            found += written.read()
    found += written.read()
    assert offsets(found) == bases(1, 39)
    assert problems(found) == []
    assert written.look() is None, "nothing new"
    assert len(list(written.root.glob("journal/*.journal"))) > 5


def test_a_batch_is_bounded_and_can_be_read_again(written: Written) -> None:
    written.append(*map(entry, range(1, 30)))
    size = SEGMENT_BYTES // 2
    parts = []
    while (part := written.look(size)) is not None:
        parts.append(part)
    assert len(parts) > 5
    assert [o for part in parts for o in offsets(list(read_part(part)))] == bases(1, 29)
    again = parts[2]
    assert list(map(type, read_part(again)))[-1] is Ended
    assert offsets(list(read_part(again))) == offsets(list(read_part(again)))


def test_a_torn_end_is_not_there_yet(written: Written) -> None:
    written.append(entry(1), entry(2))
    path = max(written.root.glob("journal/*.journal"))
    whole = path.read_bytes()[: written.journal.bytes]
    for length in range(len(whole) - 200, len(whole)):
        path.write_bytes(whole[:length])
        events = written.read()
        assert offsets(events) == (bases(1, 1) if length == len(whole) - 200 else [])
        assert problems(events) == []
    path.write_bytes(whole)
    assert offsets(written.read()) == bases(2, 2)


def test_damage_is_passed_when_a_later_entry_calls_it_durable(written: Written) -> None:
    written.append(entry(1), entry(2))
    path = max(written.root.glob("journal/*.journal"))
    flip(path, written.journal.bytes - 100)
    events = written.read()
    assert (offsets(events), problems(events)) == (bases(1, 1), []), "it may be torn"
    written.append(entry(3), entry(4))
    events = written.read()
    assert offsets(events) == bases(3, 4)
    assert [kind for kind, _ in problems(events)] == ["damaged"]
    written.append(entry(5))
    events = written.read()
    assert (offsets(events), problems(events)) == (bases(5, 5), []), "it is told once"


def test_dropped_segments_are_a_gap(written: Written) -> None:
    written.append(*map(entry, range(1, 4)))
    assert offsets(written.read()) == bases(1, 3)
    written.append(*map(entry, range(4, 40)))
    assert written.journal.drop_below(30) > 3
    first = written.journal.first_index
    events = written.read()
    assert offsets(events) == bases(first, 39)
    ((kind, text),) = problems(events)
    assert (kind, text) == ("gap", f"entries 4 to {first - 1} were dropped before they were read")
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert ended.damaged


def test_dropped_between_looking_and_reading(written: Written) -> None:
    written.append(*map(entry, range(1, 40)))
    part = written.look()
    assert part is not None
    written.journal.drop_below(20)
    first = written.journal.first_index
    events = list(read_part(part))
    assert offsets(events) == bases(first, 39)
    assert [kind for kind, _ in problems(events)] == ["gap"]


def test_a_gap_that_grows_between_looking_and_reading_is_told_once(written: Written) -> None:
    written.append(*map(entry, range(1, 40)))
    segments = sorted(written.root.glob("journal/*.journal"))
    segments[3].unlink()
    part = written.look()
    assert part is not None
    for path in segments[1:3]:
        path.unlink()
    events = list(read_part(part))
    missing = set(bases(1, 39)) - set(offsets(events))
    (told,) = problems(events)
    assert _entries_of(told[1]) == len(missing) > 0


@pytest.mark.parametrize("nbytes", [1, 9_000])
def test_each_entry_is_read_or_reported_when_the_end_of_a_part_is_dropped(
    written: Written, nbytes: int
) -> None:
    written.append(*map(entry, range(1, 40)))
    first, part = written.look(1), written.look(nbytes)
    assert first is not None
    assert part is not None
    written.journal.drop_below(30)
    found, told = offsets(list(read_part(first))), problems(list(read_part(first)))
    for one in (part, written.look()):
        assert one is not None
        events = list(read_part(one))
        found += offsets(events)
        told += problems(events)
    assert told
    assert len(found) + sum(_entries_of(text) for _, text in told) == 39


def test_a_damaged_end_of_a_segment_in_the_middle(written: Written) -> None:
    written.append(*map(entry, range(1, 40)))
    path = sorted(written.root.glob("journal/*.journal"))[1]
    content = bytearray(path.read_bytes().rstrip(b"\0"))
    content[-20] ^= 1
    path.write_bytes(content)
    events = written.read()
    assert len(offsets(events)) == 38
    assert [kind for kind, _ in problems(events)] == ["damaged", "gap"]


def test_a_file_that_serves_again_has_no_wrong_rows(written: Written) -> None:
    """Spares are taken for new segments: the same bytes on disk, under another name."""
    found, last = [], 0
    for index in range(1, 120):
        written.append(entry(index))
        if index % 5 == 0:
            found += written.read()
            written.journal.drop_below(index - 8)
        last = index
    found += written.read()
    assert offsets(found) == bases(1, last)
    assert problems(found) == []
    assert list(written.root.glob("journal/*.spare"))


def test_what_is_in_the_archive_is_read_there(written: Written) -> None:
    written.append(*map(entry, range(1, 4)))
    found = written.read()
    written.append(*map(entry, range(4, 40)))
    folder = written.root / "archive" / "2026-11-21" / "journal"
    folder.mkdir(parents=True)
    for path in sorted(written.root.glob("journal/*.journal"))[:-2]:
        shutil.move(path, folder / path.name)
    found += written.read()
    assert offsets(found) == bases(1, 39)
    assert problems(found) == []


def test_entries_that_were_cut_off_and_replaced(written: Written) -> None:
    written.append(*map(entry, range(1, 8)))
    assert offsets(written.read()) == bases(1, 7)
    written.journal.truncate_after(5)
    written.append(*(entry(index, epoch=2) for index in range(6, 12)))
    events = written.read()
    assert offsets(events)[-6:] == bases(6, 11)
    epochs = [event.epoch for event in events if isinstance(event, RowsSeen)]
    assert np.concatenate(epochs)[-1] == 2
    ((kind, text),) = problems(events)
    assert kind == "gap"
    assert "cut off and replaced" in text
    assert written.look() is None


@pytest.mark.parametrize(("count", "said"), [(3, "were cut off"), (11, "is another one by now")])
def test_another_store_is_told(written: Written, tmp_path: Path, count: int, said: str) -> None:
    written.append(*map(entry, range(1, 8)))
    written.read()
    written.journal.close()
    shutil.rmtree(tmp_path / "journal")
    written.journal = written.open(store_id=b"another store id")
    written.append(*map(entry, range(1, count + 1)))
    events = written.read()
    assert offsets(events) == bases(1, count)
    ((kind, text),) = problems(events)
    assert kind == "gap"
    assert said in text


def test_beside_a_writer(written: Written) -> None:
    """It rolls, drops and uses files again as fast as it can; nothing wrong is ever read."""
    ending = threading.Event()
    seen = 0

    def write() -> None:
        for index in range(1, 1_500):
            written.journal.append([entry(index)])
            if index % 3 == 0:
                written.journal.sync()
            if index % 50 == 0:
                written.journal.drop_below(index - 400)
        written.journal.sync()
        ending.set()

    writer = threading.Thread(target=write)
    writer.start()
    found: list[int] = []
    told: list[tuple[str, str]] = []
    while True:
        last = ending.is_set()
        events = written.read()
        found += offsets(events)
        told += problems(events)
        seen += 1
        if last:
            break
    writer.join()
    assert found == sorted(set(found))
    assert found[-1] == bases(1_499, 1_499)[0]
    assert {kind for kind, _ in told} <= {"gap"}
    missing = 1_499 - len(found)
    assert missing == sum(_entries_of(text) for _, text in told)
    assert seen > 5


def _entries_of(text: str) -> int:
    """How many entries a gap says that it has."""
    words = text.split()
    return int(words[3]) - int(words[1]) + 1


def sink(root: Path) -> EmbeddedSink:
    return EmbeddedSink(OsFiles(root), MINT, lambda: EPOCH_MS + 9_000, segment_bytes=3_000)


def test_a_topic_grows_over_segments(tmp_path: Path) -> None:
    embedded = sink(tmp_path)
    at: TopicAt | None = None
    found: list[int] = []
    for turn in range(12):
        embedded.deliver(rows(*({"offset": turn * 5 + n} for n in range(5))))
        if turn % 3 == 1:
            before, (at, at_end) = at, look_at_topic(tmp_path, "orders", at, nbytes=1 << 40)
            assert at is not None
            assert at_end
            part = TopicPart(0, "one", str(tmp_path), "orders", before, at)
            events = list(read_part(part))
            assert problems(events) == []
            found += positions(events)
    assert found == list(range(55))
    assert len(list(tmp_path.glob("topics/orders/*.index"))) > 2
    assert look_at_topic(tmp_path, "orders", at)[0] != at
    embedded.close()


def test_a_torn_record_is_not_there_yet(tmp_path: Path) -> None:
    embedded = sink(tmp_path)
    embedded.deliver(rows({"offset": 1}))
    embedded.deliver(rows({"offset": 2}))
    path = next(tmp_path.glob("topics/orders/*.index"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    at, _ = look_at_topic(tmp_path, "orders", None)
    assert at is not None
    assert at.position == 1
    path.write_bytes(whole)
    after, _ = look_at_topic(tmp_path, "orders", at)
    assert after is not None
    part = TopicPart(0, "one", str(tmp_path), "orders", at, after)
    assert positions(list(read_part(part))) == [1]


def test_a_damaged_block_is_told_and_the_next_one_read(tmp_path: Path) -> None:
    embedded = sink(tmp_path)
    for offset in range(3):
        embedded.deliver(rows({"offset": offset}))
    path = next(tmp_path.glob("topics/orders/*.arrows"))
    flip(path, path.stat().st_size // 2 + 300)
    at, _ = look_at_topic(tmp_path, "orders", None)
    assert at is not None
    events = list(read_part(TopicPart(0, "one", str(tmp_path), "orders", None, at)))
    assert positions(events) == [0, 2]
    assert [kind for kind, _ in problems(events)] == ["damaged"]


def positions(events: list[Event]) -> list[int]:
    found = [
        event.rows.column("position").to_pylist() for event in events if isinstance(event, RowsSeen)
    ]
    return [position for part in found for position in part]


def test_positions_are_json_of_a_version() -> None:
    at = Positions(
        {"one": JournalAt(4, 640, 9, 2, 448, 77, "ab", note="told")},
        {"one/orders": TopicAt(0, 72, 5)},
        1234,
    )
    said = at.to_json()
    assert Positions.from_json(said) == at
    with pytest.raises(UnsupportedVersion, match="positions"):
        Positions.from_json(said | {"slotwheel": 2})
