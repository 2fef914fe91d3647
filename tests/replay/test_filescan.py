"""What one task says of the files of a real data directory, whole and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.reading import layout
from slotwheel.reading.files import JOURNAL, SLOT, TOPIC, File, Layout
from slotwheel.replay.facts import onefile
from slotwheel.replay.facts.fact import OUT_OF_ORDER, Seen
from slotwheel.replay.facts.filescan import TaskScan
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.wheel.mark import Marks
from slotwheel.wheel.schema import ROW
from support.damage import flip
from support.datadirs import filled
from support.factrows import TERMS, as_spark, kafka_rows, rows
from support.told import Told, scan


@pytest.fixture
def there(tmp_path: Path) -> Layout:
    filled(tmp_path / "d", segment_bytes=1 << 20)
    return layout.find([str(tmp_path / "d")])


def terms_of(there: Layout) -> GroupTerms:
    return GroupTerms(there.group, there.key)


def test_a_whole_directory(there: Layout) -> None:
    told = scan(there.files, terms_of(there))
    assert told.problems == []
    assert told.offsets(Seen.ACCEPTED) == list(range(406))
    # What is in no slot file yet is the tail; what was delivered has left with its slot, or not.
    assert told.offsets(Seen.DELIVERED) == list(range(6))
    assert set(told.offsets(Seen.SLOT)) <= set(range(86))
    for seen in (Seen.SLOT, Seen.DELIVERED):
        for fact in told.facts[told.facts["seen"] == seen]:
            (accepted,) = told.facts[
                (told.facts["seen"] == Seen.ACCEPTED) & (told.facts["offset"] == fact["offset"])
            ]
            for name in ("due", "created", "digest", "topic", "partition"):
                assert fact[name] == accepted[name]
    assert not told.facts["flags"].any()

    assert [one.number for one in told.files] == [file.number for file in there.files]
    by_kind: dict[str, list[FileSummary]] = {}
    for one in told.files:
        by_kind.setdefault(there.files[one.number].kind, []).append(one)
    journal = by_kind[JOURNAL]
    assert [one.offsets for one in journal] == [[[0, 406]]]
    assert not any(one.damaged for one in told.files)
    assert (journal[0].group, journal[0].key) == (there.group, there.key)
    marks = Marks.decode(bytes.fromhex(journal[0].marks))
    assert marks.delivered == 6
    assert journal[0].max_l == marks.main.L == 85
    assert journal[0].first_index == 1
    assert journal[0].last_index > journal[0].marks_index > 0
    # Every name once a task.
    assert [list(one.topics.values()) for one in told.files if one.topics] == [["orders"]]
    # The first rows were accepted less than five seconds before they were due.
    assert told.chunks == []


def test_a_directory_of_another_group_is_foreign(there: Layout) -> None:
    told = scan(there.of(TOPIC), GroupTerms("other"))
    assert (told.files[0].foreign, len(told.facts)) == (6, 0)


def write_slot(path: Path, batches: list[pa.RecordBatch]) -> File:
    path.write_bytes(b"".join(map(bytes, (ROW.serialize(), *(b.serialize() for b in batches)))))
    second = int(path.stem)
    return File(0, SLOT, str(path), path.name, path.stat().st_size, 0, slot=second)


def slot(*some: dict[str, Any]) -> pa.RecordBatch:
    return rows(*({"due": 5_000 + row["offset"], **row} for row in some))


def test_a_row_in_the_slot_file_of_another_second(tmp_path: Path) -> None:
    batch = slot({"offset": 1}, {"offset": 2, "due": 6_000}, {"offset": 3, "due": 6_001})
    told = scan([write_slot(tmp_path / "5.arrows", [batch])], TERMS)
    assert [(one.validator, one.kind, one.id, one.file) for one in told.problems] == [
        ("placement", "misplaced", TERMS.id_of(6_000, 2), "5.arrows"),
        ("placement", "misplaced", TERMS.id_of(6_001, 3), "5.arrows"),
    ]
    assert told.offsets(Seen.SLOT) == [1, 2, 3]


def test_a_row_twice_in_a_slot_file(tmp_path: Path) -> None:
    batch = slot({"offset": 1}, {"offset": 2}, {"offset": 2, "value": b"other"})
    told = scan([write_slot(tmp_path / "5.arrows", [batch])], TERMS)
    assert [(one.kind, one.offset, one.due_ms) for one in told.problems] == [
        ("offset twice", 2, 5_002)
    ]


def test_zeros_behind_a_slot_file_whose_length_is_not_known(tmp_path: Path) -> None:
    """A power cut leaves them, and with the state it is gone how long the file was."""
    file = write_slot(tmp_path / "5.arrows", [slot({"offset": 1}), slot({"offset": 2})])
    with Path(file.path).open("ab") as more:
        more.write(bytes(4096))
    told = scan([file], TERMS)
    assert told.problems == []
    assert told.offsets(Seen.SLOT) == [1, 2]


def test_problems_of_a_file_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onefile, "PROBLEMS_MAX", 10)
    batch = slot(*({"offset": at, "due": 7_000 + 100 * at} for at in range(25)))
    told = scan([write_slot(tmp_path / "5.arrows", [batch])], TERMS)
    assert len(told.problems) == 10
    assert told.files[0].problems == {"misplaced": 25}


def test_damage_costs_what_it_hits(there: Layout) -> None:
    (journal,) = there.of(JOURNAL)
    path = Path(journal.path)
    data = path.read_bytes()
    # In the second of the small entries at the end.
    place = data.rindex(b"value-39", 0, data.rindex(b"value-39", 0, data.rindex(b"value-39")))
    flip(path, place)
    told = scan([journal], terms_of(there))
    (problem,) = told.problems
    assert (problem.validator, problem.file) == ("integrity", journal.name)
    (summary,) = told.files
    ((first, base), (following, end)) = summary.offsets
    assert (first, following - base, end) == (0, 40, 406)
    assert summary.damaged
    assert told.offsets(Seen.ACCEPTED) == [*range(base), *range(following, 406)]


def test_records_of_kafka() -> None:
    # Each second one changes places with the one before it.
    sent = rows(*({"offset": at, "due": 9_000 + (at ^ 1), "created": 0} for at in range(6)))
    batch = as_spark(kafka_rows(sent, first=10))
    task = TaskScan(TERMS)
    pieces = [batch.slice(0, 2), batch.slice(2)]
    told = Told([*task.records(pieces, File(9, "dump", "", "Kafka", 0)), *task.end()])
    (summary,) = told.files
    assert (summary.number, summary.rows, summary.foreign) == (9, 6, 0)
    assert told.offsets(Seen.DELIVERED) == list(range(6))
    (chunk,) = told.chunks
    assert (chunk.source, chunk.topic, chunk.first, chunk.last) == ("Kafka", "orders", 10, 15)
    assert chunk.named == [[11, 9_001, 0], [13, 9_003, 2], [15, 9_005, 4]]
    marked = told.facts[told.facts["flags"] & OUT_OF_ORDER != 0]
    assert sorted(marked["offset"].tolist()) == [1, 3, 5]


def test_a_text_that_begins_like_an_id_is_told_of() -> None:
    batch = kafka_rows(rows({"offset": 1}))
    headers = batch.column("headers").to_pylist()
    headers[0][0]["value"] = b"lab.1.1.nonsense"
    field = batch.schema.field(6)
    batch = batch.set_column(6, field, pa.array(headers, field.type))
    task = TaskScan(TERMS)
    file = File(9, "dump", "", "Kafka", 0)
    more = kafka_rows(rows({"offset": 2}), first=1)
    told = Told([*task.records([batch, more], file), *task.end()])
    assert [(one.kind, one.position, one.file) for one in told.problems] == [("forged", 0, "Kafka")]
