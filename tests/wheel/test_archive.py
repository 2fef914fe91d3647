"""The archive on its own: what is kept, what is evicted, and what happens when nothing can be."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from crc32c import crc32c

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import Files, OsFiles
from slotwheel.wheel.journal.segment import segment_path
from slotwheel.wheel.slots.archive import Archive, archived_slot_name, parse_archived_slot
from slotwheel.wheel.slots.slot import DAY_S, ends_ms, path_of, slot_with
from slotwheel.wheel.state import SlotInfo
from support.archives import kept
from support.crashfs import CrashFiles

NOW = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) * 1000
DAY_MS = 86_400_000
CONFIG = WheelConfig(disk_reserve_bytes=0, segment_bytes=1000)


def slot(files: Files, second: int, nbytes: int = 100) -> SlotInfo:
    """A slot file with something in it."""
    content = b"%d" % (second % 10) * nbytes
    files.make_directory("slots")
    handle = files.open(path_of(second), create=True)
    handle.pwrite([content], 0)
    handle.close()
    return SlotInfo(nbytes, 1, 0, 0, crc32c(content))


def segment(files: Files, first: int, nbytes: int = 100) -> str:
    files.make_directory("journal")
    path = segment_path(first)
    handle = files.open(path, create=True)
    handle.pwrite([b"j" * nbytes], 0)
    handle.close()
    return path


def keep(archive: Archive, files: Files, seconds: range, now_ms: int = NOW) -> None:
    """As the cleaner does: second names, then the first ones go."""
    archive.keep_slots({second: slot(files, second) for second in seconds}, now_ms)
    for second in seconds:
        files.unlink(path_of(second))


def names(files: Files, part: str = "slots") -> list[int]:
    return [int(path.rpartition("/")[2].split(".")[0]) for path in kept(files, part)]


def test_the_file_of_a_day_is_as_old_as_its_last_second(files: Files) -> None:
    """By its first one it would go a day before its last messages have been kept for long enough,
    and before files of seconds in which its messages left."""
    archive = Archive(files, replace(CONFIG, retain_ms=10_000))
    day = slot_with(NOW // 1000 - DAY_S, DAY_S)
    end_ms = ends_ms(day)
    second = end_ms // 1000 - 5
    archive.keep_slots({at: slot(files, at) for at in (day, second)}, end_ms)
    path = f"archive/{datetime.fromtimestamp(end_ms / 1000, UTC):%Y-%m-%d}/slots"
    assert {parse_archived_slot(name)[0] for name in files.list(path)} == {day, second}
    for reopened in (False, True):
        if reopened:
            archive = Archive(files, replace(CONFIG, retain_ms=10_000))
            archive.recover({day: SlotInfo(7, 1, 0, 0, 0)})
        archive.trim(end_ms + 5_001)
        assert [parse_archived_slot(name)[0] for name in files.list(path)] == [day]
    archive.recover({day: slot(files, day)})
    assert files.list(path) == [], "of a living slot the second name is taken back"


def test_without_a_limit_nothing_is_kept(files: Files) -> None:
    archive = Archive(files, CONFIG)
    info = slot(files, 5)
    assert not archive.keeps
    assert archive.keep_slots({5: info}, NOW) == []
    assert archive.recover({}) == []
    assert archive.trim(NOW) == 0
    assert "archive" not in files.list(".")


def test_names_carry_length_and_checksum(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    info = slot(files, 17)
    archive.keep_slots({17: info}, NOW)
    (path,) = kept(files, "slots")
    assert path == f"archive/2026-11-21/slots/17.100.{info.crc:08x}.arrows"
    assert parse_archived_slot(archived_slot_name(17, info)) == (17, 100, info.crc)
    for wrong in ("17.arrows", "017.100.0000000a.arrows", "17.100.A.arrows", "x.1.00000000.arrows"):
        with pytest.raises(ValueError, match=wrong):
            parse_archived_slot(wrong)


def test_a_kept_file_outlives_its_first_name_and_what_is_written_there_later(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    keep(archive, files, range(3, 4))
    slot(files, 3, 7)
    (path,) = kept(files, "slots")
    assert files.open(path).pread(1000, 0) == b"3" * 100


def test_what_was_never_committed_is_cut_off(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    info = replace(slot(files, 3), length=40)
    archive.keep_slots({3: info}, NOW)
    (path,) = kept(files, "slots")
    assert files.open(path).size() == 40


def test_segments_are_moved(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    assert archive.keep_segment(segment(files, 7), 100, NOW, -1)
    assert kept(files, "journal") == ["archive/2026-11-21/journal/00000000000000000007.journal"]
    assert files.list("journal") == []
    assert archive.bytes == 100


@pytest.mark.parametrize("reopened", [False, True])
def test_the_oldest_goes_first_when_there_are_too_many_bytes(
    files: Files, *, reopened: bool
) -> None:
    config = replace(CONFIG, retain_bytes=500)
    archive = Archive(files, config)
    keep(archive, files, range(100, 104), NOW - DAY_MS)
    keep(archive, files, range(104, 110))
    if reopened:
        archive = Archive(files, config)
        archive.recover({})
    assert archive.bytes == 1000
    assert archive.trim(NOW) == 5
    assert (names(files), archive.bytes) == ([105, 106, 107, 108, 109], 500)
    assert files.list("archive") == ["2026-11-21"], "an empty day folder stays"
    assert archive.trim(NOW) == 0


@pytest.mark.parametrize("reopened", [False, True])
def test_what_is_too_old_goes(files: Files, *, reopened: bool) -> None:
    config = replace(CONFIG, retain_ms=10_000)
    archive = Archive(files, config)
    second = NOW // 1000
    keep(archive, files, range(second - 20, second))
    if reopened:
        archive = Archive(files, config)
        archive.recover({})
    archive.trim(NOW)
    assert names(files) == list(range(second - 10, second))
    archive.trim(NOW + 60_000)
    assert (names(files), archive.bytes) == ([], 0)
    assert files.list("archive") == []
    keep(archive, files, range(second, second + 1), NOW + 60_000)
    assert names(files) == [second], "the day's folders are made again"


def test_segments_and_slots_go_in_the_order_of_their_times() -> None:
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_ms=10_000))
    second = NOW // 1000
    keep(archive, files, range(second - 9, second - 7))
    files.clock_ms = NOW - 8_500
    archive.keep_segment(segment(files, 1), 100, NOW, -1)
    archive.trim(NOW + 1_000)
    assert (names(files), names(files, "journal")) == ([second - 9, second - 8], [1])
    archive.trim(NOW + 1_001)
    assert (names(files), names(files, "journal")) == ([second - 8], [1])
    archive.trim(NOW + 1_501)
    assert (names(files), names(files, "journal")) == ([second - 8], [])


def test_a_call_evicts_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwheel.wheel.slots.archive._EVICTED_MAX", 3)
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=100))
    keep(archive, files, range(10))
    assert [archive.trim(NOW) for _ in range(4)] == [3, 3, 3, 0]


def test_the_archive_makes_room_before_appends_are_refused() -> None:
    files = CrashFiles()
    config = replace(CONFIG, retain_bytes=1 << 30, disk_reserve_bytes=10_000)
    archive = Archive(files, config)
    keep(archive, files, range(10))
    files.free = 12_000
    assert archive.trim(NOW) == 0
    files.free = 11_750
    assert archive.trim(NOW) == 3
    assert names(files) == list(range(3, 10))


def test_a_clock_that_was_set_back(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=300))
    keep(archive, files, range(10, 13))
    assert archive.trim(NOW) == 0  # the day in front is that of NOW
    keep(archive, files, range(5, 7), NOW - DAY_MS)
    archive.trim(NOW)
    assert names(files) == [10, 11, 12]


@pytest.mark.parametrize("operation", ["link", "make_directory", "open"])
def test_a_full_disk_costs_what_cannot_be_kept_and_nothing_else(operation: str) -> None:
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    slots = {second: slot(files, second) for second in range(4)}
    files.fail_next(operation, OSError(errno.ENOSPC, "no room"), after=1)
    found = archive.keep_slots(slots, NOW)
    assert archive.missed == 4 - len(found) > 0
    assert len(kept(files, "slots")) == len(found)
    assert archive.bytes == 100 * len(found)


def test_a_segment_that_cannot_be_moved_stays() -> None:
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    files.fail_next("rename", OSError(errno.ENOSPC, "no room"))
    assert not archive.keep_segment(segment(files, 1), 100, NOW, -1)
    assert (archive.missed, files.list("journal")) == (1, ["00000000000000000001.journal"])


def test_slots_that_are_not_deleted_after_all_lose_their_second_names(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    keep(archive, files, range(2))
    archive.unlink_kept(archive.keep_slots({7: slot(files, 7)}, NOW))
    assert (names(files), archive.bytes) == ([0, 1], 200)
    assert files.open(path_of(7)).size() == 100


def test_a_second_name_of_a_living_slot_is_taken_back_at_open(files: Files) -> None:
    config = replace(CONFIG, retain_bytes=1 << 30)
    alive = slot(files, 7)
    Archive(files, config).keep_slots({7: alive}, NOW)
    for again in (Archive(files, CONFIG), Archive(files, config)):
        mended = again.recover({7: alive})
        assert kept(files, "slots") == []
        assert len(mended) == (not again.keeps)
    assert files.open(path_of(7)).size() == 100


def test_a_slot_of_the_same_second_that_was_kept_before_stays(files: Files) -> None:
    config = replace(CONFIG, retain_bytes=1 << 30)
    keep(Archive(files, config), files, range(7, 8))
    alive = slot(files, 7, 50)
    assert Archive(files, config).recover({7: alive}) == []
    assert names(files) == [7]


def test_what_is_foreign_is_left_alone(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_ms=1))
    keep(archive, files, range(3))
    for path in ("archive/2026-11-21/slots/notes.txt", "archive/readme"):
        files.open(path, create=True).close()
    archive.recover({})
    archive.trim(NOW)
    assert files.list("archive/2026-11-21/slots") == ["notes.txt"]
    assert files.list("archive") == ["2026-11-21", "readme"]


def test_what_somebody_has_tidied_up_is_no_error(files: Files) -> None:
    archive = Archive(files, replace(CONFIG, retain_bytes=100))
    keep(archive, files, range(3))
    assert archive._oldest() is not None
    files.unlink(kept(files, "slots")[0])
    assert archive.trim(NOW) == 2
    assert names(files) == [2]


@pytest.mark.parametrize("place", ["archive", "archive/2026-11-21", "archive/2026-11-21/slots"])
@pytest.mark.parametrize("retain_bytes", [0, 1 << 30])
def test_a_file_in_the_place_of_a_folder_stops_nothing(
    tmp_path: Path, place: str, retain_bytes: int
) -> None:
    files = OsFiles(tmp_path)
    archive = Archive(files, replace(CONFIG, retain_bytes=retain_bytes))
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).touch()
    path = segment(files, 1)
    slots = {second: slot(files, second) for second in range(3)}
    assert archive.recover(slots) == []
    assert archive.keep_slots(slots, NOW) == []
    if archive.keeps:
        assert not archive.keep_segment(path, 100, NOW, -1)
    assert archive.trim(NOW) == 0
    assert archive.missed == (4 if archive.keeps else 0)
    assert (tmp_path / path).exists()


def test_what_is_foreign_among_segments_is_left_alone(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    config = replace(CONFIG, retain_ms=1)
    archive = Archive(files, config)
    keep(archive, files, range(3))
    folder = tmp_path / "archive/2026-11-21/journal"
    (folder / "notes.txt").touch()
    (folder / "copies").mkdir()
    again = Archive(files, config)
    again.recover({})
    assert again.trim(NOW + DAY_MS) == 3
    assert files.list("archive/2026-11-21/journal") == ["copies", "notes.txt"]


@pytest.mark.parametrize("part", ["", "/slots", "/journal"])
def test_a_day_that_somebody_deletes_while_it_is_used_is_made_again(
    tmp_path: Path, part: str
) -> None:
    files = OsFiles(tmp_path)
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    keep(archive, files, range(3))
    shutil.rmtree(tmp_path / f"archive/2026-11-21{part}")
    assert archive.keep_segment(segment(files, 7), 100, NOW, -1)
    shutil.rmtree(tmp_path / f"archive/2026-11-21{part}")
    keep(archive, files, range(3, 5))
    assert {3, 4} <= set(names(files))
    assert archive.missed == 0


@pytest.mark.parametrize("operation", ["link", "make_directory", "rename"])
def test_after_a_failure_the_folders_are_looked_after_again(operation: str) -> None:
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    first, one = segment(files, 1), slot(files, 1)
    files.fail_next(operation, OSError(errno.EIO, "broken"))
    kept_first = archive.keep_segment(first, 100, NOW, -1)
    archive.keep_slots({1: one}, NOW)
    assert (archive.missed, "broken" in archive.missed_why) == (1, True)
    assert kept_first is (operation == "link")
    assert archive.keep_segment(segment(files, 2), 100, NOW, -1)
    archive.keep_slots({2: slot(files, 2)}, NOW)
    assert archive.missed == 1


def test_second_names_that_cannot_be_made_durable_are_taken_back() -> None:
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    keep(archive, files, range(1))
    files.fail_next("open_directory", OSError(errno.EMFILE, "too many open files"))
    assert archive.keep_slots({7: slot(files, 7)}, NOW) == []
    assert (names(files), archive.bytes, archive.missed) == ([0], 100, 1)


def test_a_segment_that_has_moved_is_kept_even_if_its_folder_cannot_be_opened() -> None:
    """Else the journal would look for it for ever, and drop nothing any more."""
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    keep(archive, files, range(1))
    files.fail_next("open_directory", OSError(errno.EMFILE, "too many open files"))
    assert archive.keep_segment(segment(files, 1), 100, NOW, -1)
    assert (names(files, "journal"), archive.missed) == ([1], 0)


def test_what_is_taken_back_is_so_durably() -> None:
    """Or the name comes back with a power cut, of a file that has grown meanwhile."""
    files = CrashFiles()
    archive = Archive(files, replace(CONFIG, retain_bytes=1 << 30))
    archive.unlink_kept(archive.keep_slots({7: slot(files, 7)}, NOW))
    assert kept(files.survivors("durable"), "slots") == []


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_the_bytes_of_a_deleted_day_cost_nothing_else(tmp_path: Path, deleted: int) -> None:
    files = OsFiles(tmp_path)
    archive = Archive(files, replace(CONFIG, retain_bytes=2_400))
    for day in range(3):
        keep(archive, files, range(day * 10, day * 10 + 8), NOW + day * DAY_MS)
    assert archive.trim(NOW) == 0
    archive._oldest()
    shutil.rmtree(tmp_path / f"archive/2026-11-{21 + deleted}")
    keep(archive, files, range(30, 38), NOW + 3 * DAY_MS)
    assert archive.trim(NOW + 3 * DAY_MS) == 0
    assert (archive.bytes, len(names(files))) == (2_400, 24)
    keep(archive, files, range(38, 40), NOW + 3 * DAY_MS)
    assert archive.trim(NOW + 3 * DAY_MS) == 2
