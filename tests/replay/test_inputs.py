"""A proof of too few directories, of a folder inside one, of the same records twice."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.report.verdict import Outcome
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.segment import SegmentHeader, segment_path
from slotwheel.wheel.journal.writer import SegmentWriter
from slotwheel.wheel.mark import Marks
from slotwheel.wheel.topics.topicfile import SEGMENT_SUFFIX
from support import replayrun
from support.damage import flip
from support.plainproof import prove_here


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("slots", "slot files"),
        (f"archive/{replayrun.DAY}/slots", "slot files"),
        ("journal", "journal segments"),
        ("topics/orders", "topic segments"),
    ],
)
def test_a_part_of_a_data_directory(tmp_path: Path, part: str, kind: str) -> None:
    directories = replayrun.made().write(tmp_path)
    with pytest.raises(InvalidConfiguration, match=f"a folder of {kind}") as raised:
        find([f"{directories[0]}/{part}"])
    assert "--data" in str(raised.value)


def test_the_configuration_is_found_in_a_later_segment(tmp_path: Path) -> None:
    """There is no state store, and the begin of the journal is gone, or damaged."""
    config = {
        "version": 1,
        "group": "lab",
        "key": "00" * 16,
        "slots": 60,
        "stores": {"a": "00" * 16},
    }
    said = Entry(EntryKind.CONFIG, 1, 21, 0, 0, 0, -1, json.dumps(config).encode())
    files = OsFiles(tmp_path / "d")
    files.make_directory("journal")
    for entry in (Entry(EntryKind.MARK, 1, 7, 0, 0, 0, -1, Marks().encode()), said):
        header = SegmentHeader(entry.index, 1, bytes(16))
        writer = SegmentWriter.create(files, header)
        writer.append([entry], entry.index - 1, 1_000, 0)
        writer.finish()
        writer.close()
    files.close()
    for damaged in (False, True):
        if damaged:
            flip(tmp_path / "d" / segment_path(7), 20)
        found = find([str(tmp_path / "d")])
        assert (found.group, found.key, found.group_size) == ("lab", "00" * 16, 1)


def dumped(directory: Path, to: Path) -> str:
    """As `slotwheel consume --arrow` writes an embedded topic: its rows and its schema."""
    (segment,) = (directory / "topics" / "orders").glob(f"*{SEGMENT_SUFFIX}")
    with pa.memory_map(str(segment)) as source:
        table = pa.ipc.open_stream(source).read_all()
    with pa.OSFile(str(to), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return str(to)


def test_a_dump_beside_its_own_directory(tmp_path: Path) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path)
    dumps = [dumped(tmp_path / name, tmp_path / f"{name}.arrows") for name in ("one", "two")]
    verdict = prove_here(find(directories, dumps=dumps), Options(exactly_once=True))
    assert verdict.proven, verdict.reasons
    assert verdict.counts.get("repeated", 0) == 0
    assert {one.kind for one in verdict.inputs} >= {"dump", "topic"}
    # What did come twice is found all the same.
    again = replayrun.repeat_delivered(run)
    directories = run.write(tmp_path / "again")
    verdict = prove_here(find(directories, dumps=dumps), Options(exactly_once=True))
    assert [one.id for one in verdict.problems] == [run.id_of(again)]


def test_one_directory_of_three(tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    layout = find(directories[:1])
    assert layout.group_size == 3
    verdict = prove_here(layout, Options())
    assert verdict.outcome is Outcome.IN_PART
    assert verdict.counts["undecided"] > 1_000
    (point,) = verdict.open_points
    assert point.subject == "2 of the group's 3 directories"
    whole = prove_here(find(directories), Options())
    assert whole.proven
    assert whole.open_points == []
