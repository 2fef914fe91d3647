"""The files of departures: what was written is read, and what is damaged is never believed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel.reading import departureframes
from slotwheel.reading.departureframes import KnownFrames
from slotwheel.reading.departures import Departure, DepartureReader
from slotwheel.wheel.departurefile import (
    DEPARTURES,
    FRAME_BYTES,
    HEADER_BYTES,
    STATES,
    DepartureFrame,
    How,
    check_file_header,
    encode,
    file_header,
    first_ms_of,
    frames,
    path_of,
)
from slotwheel.wheel.digest import key_hashes
from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import times

GOLDEN = Path(__file__).parent / "golden" / "departures-v1.departures"
T0 = 1_900_000_000_000
KEYS = [b"a", None, b"", b"long key " * 30]
TOPICS = ["orders", "mail", "orders", "orders"]
HOW = [How.DELIVERED, How.DEAD, How.EXPIRED, How.UNCLEAR]


def frame(first: int, left_ms: int, rows: int = 4) -> bytes:
    offset = np.arange(first, first + rows)
    due = T0 + 10 * offset
    how = np.array(HOW[:rows], np.uint8)
    topics, keys = pa.array(TOPICS[:rows], pa.utf8()), pa.array(KEYS[:rows], pa.binary())
    return encode(due, offset, due - 5, how, topics, key_hashes(keys), left_ms)


FRAMES = [frame(0, T0 + 100), frame(4, T0 + 200, 1), frame(5, T0 + 300)]
WHOLE = file_header() + b"".join(FRAMES)
EXPECTED = {
    (T0 + 10 * (first + row), first + row): [
        Departure(STATES[HOW[row]], left_ms, T0 + 10 * (first + row) - 5, TOPICS[row])
    ]
    for first, left_ms, rows in ((0, T0 + 100, 4), (4, T0 + 200, 1), (5, T0 + 300, 4))
    for row in range(rows)
}


def written(root: Path, data: bytes, first_ms: int = T0) -> DepartureReader:
    path = root / path_of(first_ms)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return DepartureReader(root)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    reader = written(tmp_path, WHOLE)
    assert reader.find(EXPECTED.keys()) == EXPECTED
    batches = list(reader.batches())
    assert [batch.schema for batch in batches] == [DEPARTURES]
    assert times(batches[0], "offset").tolist() == list(range(9))
    assert batches[0].column("topic").to_pylist() == [*TOPICS, "orders", *TOPICS]
    hashes = batches[0].column("key_hash").to_pylist()
    assert hashes[:4] == hashes[5:]
    assert len(set(hashes)) == 4
    assert [b.num_rows for b in reader.batches(T0 + 150, T0 + 300)] == [1]
    assert reader.problems == []


def test_version_1_is_read_by_every_later_version(tmp_path: Path) -> None:
    """And the same rows give the same bytes: whoever changes the layout has to change the
    version."""
    assert GOLDEN.read_bytes() == WHOLE
    assert written(tmp_path, GOLDEN.read_bytes()).find(EXPECTED.keys()) == EXPECTED


def test_an_end_that_was_cut_is_no_damage(tmp_path: Path) -> None:
    ends = np.cumsum([HEADER_BYTES, *map(len, FRAMES)]).tolist()
    for length in range(len(WHOLE)):
        reader = written(tmp_path, WHOLE[:length])
        whole = sum(end <= length for end in ends[1:])
        rows = sum((4, 1, 4)[:whole])
        assert len(reader.find(EXPECTED.keys())) == rows, length
        assert reader.problems == [], length


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_takes_away_and_makes_nothing_up(tmp_path: Path, bit: int) -> None:
    for at in range(len(WHOLE)):
        data = bytearray(WHOLE)
        data[at] ^= 1 << bit
        reader = written(tmp_path, bytes(data))
        found = reader.find(EXPECTED.keys())
        assert found.items() <= EXPECTED.items(), at
        assert len(found) < len(EXPECTED), at
        [problem] = reader.problems
        assert problem.file == path_of(T0), at


def test_a_damaged_body_takes_only_its_frame(tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    data[HEADER_BYTES + FRAME_BYTES] ^= 1
    reader = written(tmp_path, bytes(data))
    assert sorted(key[1] for key in reader.find(EXPECTED.keys())) == [4, 5, 6, 7, 8]
    assert "CRC-32C" in reader.problems[0].text


def test_frames_of_another_file_are_found_behind_a_damaged_one(tmp_path: Path) -> None:
    written(tmp_path, file_header() + b"\xff" * 100)
    reader = written(tmp_path, WHOLE, T0 + 1)
    assert reader.find(EXPECTED.keys()) == EXPECTED
    assert len(reader.problems) == 1


def test_another_version_says_so() -> None:
    other = bytearray(file_header())
    other[8] = 2
    with pytest.raises(Damaged):
        check_file_header(bytes(other), "x")
    other[12:] = crc32c(bytes(other[:12])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion):
        check_file_header(bytes(other), "x")
    with pytest.raises(Damaged):
        check_file_header(b"", "x")


def test_a_message_that_left_twice_is_there_twice(tmp_path: Path) -> None:
    """The second time, after a kill, is in the next file."""
    written(tmp_path, file_header() + FRAMES[0])
    reader = written(tmp_path, file_header() + frame(0, T0 + 900, 2), T0 + 800)
    found = reader.find([(T0, 0), (T0 + 20, 2)])
    assert [one.left_ms for one in found[T0, 0]] == [T0 + 100, T0 + 900]
    assert [one.left_ms for one in found[T0 + 20, 2]] == [T0 + 100]


def test_a_file_that_grows_between_questions_is_read_on(tmp_path: Path) -> None:
    """At every length that the file has for a moment, also in the midst of a frame."""
    ends = np.cumsum([HEADER_BYTES, *map(len, FRAMES)]).tolist()
    reader = DepartureReader(tmp_path)
    assert reader.find(EXPECTED.keys()) == {}
    for length in range(len(WHOLE) + 1):
        written(tmp_path, WHOLE[:length])
        whole = sum(end <= length for end in ends[1:])
        found = reader.find(EXPECTED.keys())
        assert found.items() <= EXPECTED.items(), length
        assert len(found) == sum((4, 1, 4)[:whole]), length
    assert reader.problems == []


def test_what_is_damaged_behind_what_was_read_hides_only_that(tmp_path: Path) -> None:
    reader = written(tmp_path, WHOLE[: -len(FRAMES[2])])
    before = reader.find(EXPECTED.keys())
    assert len(before) == 5
    for _ in range(2):
        written(tmp_path, WHOLE[: -len(FRAMES[2])] + b"\xff" * 100)
        assert reader.find(EXPECTED.keys()) == before
        assert len(reader.problems) == 1


def test_a_file_that_is_deleted_between_questions_says_nothing_any_more(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    reader = written(tmp_path, file_header() + frame(20, T0 + 900), T0 + 800)
    later = {(T0 + 10 * offset, offset) for offset in range(20, 24)}
    assert reader.find({*EXPECTED, *later}).keys() == {*EXPECTED, *later}
    (tmp_path / path_of(T0)).unlink()
    assert reader.find({*EXPECTED, *later}).keys() == later
    (tmp_path / path_of(T0 + 800)).unlink()
    assert reader.find({*EXPECTED, *later}) == {}
    # One that comes back shorter, as of a directory that was restored, is another one.
    written(tmp_path, file_header() + FRAMES[1])
    assert reader.find(EXPECTED.keys()).keys() == {(T0 + 40, 4)}
    assert reader.problems == []


def test_headers_are_found_across_the_pieces_that_are_read(tmp_path: Path) -> None:
    """Small frames, of which many are in one piece, between some that are larger than a piece."""
    due = T0 + np.arange(5000)
    parts = [file_header()]
    for first, rows in ((0, 1), (1, 2000), (2001, 1), (2002, 1), (2003, 2990)):
        some = np.arange(first, first + rows)
        topics = pa.array(["t" * (first + 1)] * rows, pa.utf8())
        how, hashes = np.zeros(rows, np.uint8), np.zeros(rows, np.uint64)
        parts.append(encode(due[some], some, due[some], how, topics, hashes, int(due[some[-1]])))
    parts += [frame(first, T0 + 6000, 1) for first in range(6000, 9000)]
    reader = written(tmp_path, b"".join(parts))
    known = [0, 1, 2000, 2001, 2002, 2003, 4992]
    one_rows = [(T0 + 10 * offset, offset) for offset in range(6000, 9000)]
    wanted = {(T0 + offset, offset) for offset in known} | set(one_rows)
    assert reader.find(wanted).keys() == wanted
    assert sum(batch.num_rows for batch in reader.batches()) == 4993 + 3000
    assert reader.problems == []


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    """Of the files that were asked for last; of the one that is asked for, whatever it needs."""
    known = KnownFrames(kept_max=7)
    paths = []
    for at in range(4):
        written(tmp_path, WHOLE, T0 + at)
        paths.append(tmp_path / path_of(T0 + at))
        known.grow(paths[-1], len(WHOLE), "x")
    assert [len(known.known(path)) for path in paths] == [0, 0, 3, 3]
    known.grow(paths[2], len(WHOLE), "x")
    known.grow(paths[0], len(WHOLE), "x")
    assert [len(known.known(path)) for path in paths] == [3, 0, 3, 0]
    known.forget_all_but(paths[:1])
    assert known.count == 3
    small = KnownFrames(kept_max=2)
    small.grow(paths[0], len(WHOLE), "x")
    assert small.count == 3


def test_a_second_question_reads_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = written(tmp_path, WHOLE)
    assert reader.find(EXPECTED.keys()) == EXPECTED
    monkeypatch.delattr(departureframes, "frame_tables")
    assert reader.find(EXPECTED.keys()) == EXPECTED


def test_an_id_with_the_offset_of_another_message_finds_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, WHOLE).find([(T0 + 1, 0), (T0, 1)]) == {}


def test_files_that_ended_before_it_was_due_are_not_opened(tmp_path: Path) -> None:
    written(tmp_path, b"rubbish" * 9, T0 - 100)
    reader = written(tmp_path, WHOLE, T0)
    assert reader.find([(T0 + 10, 1)]).keys() == {(T0 + 10, 1)}
    assert reader.problems == []


def test_only_file_names_of_ours_count() -> None:
    assert first_ms_of(path_of(T0).partition("/")[2]) == T0
    for name in ("notes.txt", "1.departures", "x" * 16 + ".departures", "٣" * 16 + ".departures"):
        assert first_ms_of(name) is None


def test_a_frame_says_what_is_in_it(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    with closing(OsFiles(tmp_path)) as files, closing(files.open(path_of(T0))) as handle:
        found = list(frames(handle, "x"))
    assert [one.rows for one in found] == [4, 1, 4]
    assert (found[0].due_from_ms, found[0].due_to_ms) == (T0, T0 + 30)
    assert isinstance(found[0], DepartureFrame)
    assert found[-1].end == len(WHOLE)
