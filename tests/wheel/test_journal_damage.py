"""Torn or damaged: what the journal makes of every way its files can be wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from slotwheel.wheel.errors import Damaged, SlotwheelError, UnsupportedVersion
from slotwheel.wheel.files import Files, OsFiles
from slotwheel.wheel.journal.segment import SEGMENT_BYTES, SegmentHeader, encode_frame, padded
from support.crashfs import CrashFiles, CrashHandle
from support.damage import flipped
from support.journals import STORE, entry, load, open_journal, payloads, store, write_journal

# Eight entries, each synced, in segments of 1-3, 4-6 and 7-8. The frame of 8 calls 7 durable.
FIRST, MIDDLE, LAST = (f"journal/{index:020d}.journal" for index in (1, 4, 7))
NEXT = f"journal/{9:020d}.journal"
SPACE = 192  # what each entry takes, with its frame of 24 and its header of 64
EIGHT = payloads([entry(index) for index in range(1, 9)])


def at(number: int, offset: int = 0) -> int:
    """Where in its segment the entry with that number (from 0) begins, and bytes into it."""
    return SEGMENT_BYTES + number * SPACE + offset


def flip(path: str, position: int) -> Callable[[Files], None]:
    return lambda files: store(files, path, flipped(load(files, path), position * 8 + 3))


def cut(path: str, length: int) -> Callable[[Files], None]:
    return lambda files: store(files, path, load(files, path)[:length])


def zero(path: str, begin: int, end: int) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        content = load(files, path)
        store(files, path, content[:begin] + bytes(end - begin) + content[end:])

    return change


def extend(path: str, extra: bytes) -> Callable[[Files], None]:
    return lambda files: store(files, path, load(files, path) + extra)


def put(path: str, content: bytes) -> Callable[[Files], None]:
    return lambda files: store(files, path, content)


def copy(source: str, target: str) -> Callable[[Files], None]:
    return lambda files: store(files, target, load(files, source))


def lose(*paths: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        for path in paths:
            files.unlink(path)

    return change


def swap_entries(files: Files) -> None:
    content = load(files, LAST)
    store(files, LAST, content[: at(0)] + content[at(1) : at(2)] + content[at(0) : at(1)])


def repeat_entry(files: Files) -> None:
    """Entry 8 once more behind itself: valid where it was, not where it is now."""
    content = load(files, LAST)
    store(files, LAST, content + content[at(1) : at(2)])


def index_out_of_order(files: Files) -> None:
    """An entry that is whole and framed for its place, but is number 8 again."""
    data = b"".join(bytes(part) for part in entry(8).encode())
    extend(LAST, framed(9, data, durable=7, position=at(2)))(files)


def epoch_that_falls(files: Files) -> None:
    data = b"".join(bytes(part) for part in entry(9, epoch=0).encode())
    extend(LAST, framed(9, data, durable=7, position=at(2)))(files)


def newer_entry(files: Files) -> None:
    data = b"".join(bytes(part) for part in entry(9).encode())
    data = data[:4] + b"\x04\x00" + data[6:]
    extend(LAST, framed(9, data, durable=7, position=at(2)))(files)


def framed(index: int, data: bytes, *, durable: int, position: int) -> bytes:
    """An entry as the last segment would hold it at that position."""
    seed = SegmentHeader(7, 1, STORE, marked=True).seed
    body = data + bytes(padded(len(data)) - len(data))
    return encode_frame(seed, position, len(data), durable) + body


NEWER_SEGMENT = b"SWJOURNL\x02\x00" + bytes(54)
Outcome = int | type[SlotwheelError]  # entries recovered, or the error
CORRUPTIONS: dict[str, tuple[Callable[[Files], None], Outcome]] = {
    # the end of the last segment: nobody knows it was durable
    "last entry cut in its frame": (cut(LAST, at(1, 10)), 7),
    "last entry cut in its header": (cut(LAST, at(1, 50)), 7),
    "last entry cut in its payload": (cut(LAST, at(1, 120)), 7),
    "last entry cut in its padding": (cut(LAST, at(1, 191)), 7),
    "last entry gone": (cut(LAST, at(1)), 7),
    "last entry's frame flipped": (flip(LAST, at(1, 8)), 7),
    "last entry's header flipped": (flip(LAST, at(1, 24 + 40)), 7),
    "last entry's payload flipped": (flip(LAST, at(1, 24 + 64)), 7),
    "last entry's padding flipped": (flip(LAST, at(1, 191)), 7),
    "last entry's middle never reached the disk": (zero(LAST, at(1, 40), at(1, 100)), 7),
    "zeros behind the end": (extend(LAST, bytes(5000)), 8),
    "one zero behind the end": (extend(LAST, b"\0"), 8),
    "garbage behind the end": (extend(LAST, Random(1).randbytes(5000)), 8),
    "a frame's magic behind the end": (extend(LAST, b"SWFR" * 500), 8),
    "entry 8 once more behind the end": (repeat_entry, 8),
    "an entry behind the end whose index is old": (index_out_of_order, 8),
    "an entry behind the end whose epoch falls": (epoch_that_falls, 8),
    # what a later frame calls durable
    "entry 7's frame flipped": (flip(LAST, at(0, 8)), Damaged),
    "entry 7's length flipped": (flip(LAST, at(0, 9)), Damaged),
    "entry 7's header flipped": (flip(LAST, at(0, 24 + 40)), Damaged),
    "entry 7's payload flipped": (flip(LAST, at(0, 24 + 64)), Damaged),
    "entry 7 all zeros": (zero(LAST, at(0), at(1)), Damaged),
    "entries 7 and 8 swapped": (swap_entries, 6),  # no frame is at its place: no witness is left
    # the last segment's header
    "last segment's header flipped": (flip(LAST, 20), Damaged),
    "last segment's header all zeros": (zero(LAST, 0, SEGMENT_BYTES), Damaged),
    "last segment has a newer version": (flip(LAST, 8), UnsupportedVersion),
    "last segment is another one's copy": (copy(MIDDLE, LAST), Damaged),
    # segments before the last: the ones behind are witnesses
    "first segment cut": (cut(FIRST, at(2, 10)), Damaged),
    "first segment cut at an entry's edge": (cut(FIRST, at(2)), Damaged),
    "first segment longer": (extend(FIRST, bytes(8)), Damaged),
    "first segment empty": (cut(FIRST, 0), Damaged),
    "middle segment cut at an entry's edge": (cut(MIDDLE, at(2)), Damaged),
    "middle segment flipped in its last entry": (flip(MIDDLE, at(2, 100)), Damaged),
    "middle segment without entries": (cut(MIDDLE, at(0)), Damaged),
    "middle segment empty": (cut(MIDDLE, 0), Damaged),
    "first segment missing": (lose(FIRST), Damaged),
    "middle segment missing": (lose(MIDDLE), Damaged),
    "first two segments missing": (lose(FIRST, MIDDLE), Damaged),
    "first segment under another name": (
        lambda files: files.rename(FIRST, f"journal/{2:020d}.journal"),
        Damaged,
    ),
    "last segment missing": (lose(LAST), 6),
    # a crash while the next segment was made
    "next segment created, nothing written": (put(NEXT, b""), 8),
    "next segment's header cut": (put(NEXT, SegmentHeader(9, 1, STORE).encode()[:63]), 8),
    "next segment's header never reached the disk": (put(NEXT, bytes(64)), 8),
    "next segment has a header and no entry": (put(NEXT, SegmentHeader(9, 1, STORE).encode()), 8),
    # what no crash makes
    "next segment's header flipped": (
        put(NEXT, flipped(SegmentHeader(9, 1, STORE).encode(), 200)),
        Damaged,
    ),
    "next segment is another store's": (
        put(NEXT, SegmentHeader(9, 1, b"o" * 16).encode()),
        Damaged,
    ),
    "next segment's epoch is not the last": (
        put(NEXT, SegmentHeader(9, 2, STORE).encode()),
        Damaged,
    ),
    "next segment has a newer version": (put(NEXT, NEWER_SEGMENT), UnsupportedVersion),
    "an unused segment behind a gap": (put(f"journal/{10:020d}.journal", b""), Damaged),
    "entry 8 cut and a next segment begun": (
        lambda files: (cut(LAST, at(1, 50))(files), put(NEXT, b"")(files))[0],
        Damaged,
    ),
    "an entry of a newer version": (newer_entry, UnsupportedVersion),
}


@pytest.fixture(params=["double", "disk"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    made: Files = (
        CrashFiles()
        if request.param == "double"
        else OsFiles(tmp_path_factory.mktemp("journal", numbered=True))
    )
    write_journal(made, 8)
    return made


def snapshot(files: Files) -> dict[str, bytes]:
    return {name: load(files, f"journal/{name}") for name in files.list("journal")}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_named_corruption(files: Files, name: str) -> None:
    corrupt, expected = CORRUPTIONS[name]
    corrupt(files)
    before = snapshot(files)
    if isinstance(expected, int):
        goes_on_after(files, expected)
    else:
        with pytest.raises(expected):
            open_journal(files)
        assert snapshot(files) == before  # evidence is not touched


def goes_on_after(files: Files, recovered: int) -> None:
    """The journal opens with that many entries, takes more, and opens without a complaint."""
    size = sum(len(content) for content in snapshot(files).values())
    journal, got, report = open_journal(files)
    assert payloads(got) == EIGHT[:recovered]
    assert report.last_index == journal.last_index == journal.durable_index == recovered
    assert size - report.torn_bytes == journal.bytes
    assert (report.torn_path is None) == (report.torn_bytes == 0 and report.torn_path != NEXT)
    journal.append([entry(recovered + 1, 33, salt=1)])
    journal.sync()
    journal.close()
    journal, got, report = open_journal(files)
    assert payloads(got) == [*EIGHT[:recovered], entry(recovered + 1, 33, salt=1).payload]
    assert report.torn_path is None


def test_a_torn_end_is_reported(files: Files) -> None:
    cut(LAST, at(1, 50))(files)
    report = open_journal(files)[2]
    assert (report.torn_path, report.torn_position, report.torn_bytes) == (LAST, at(1), 50)
    assert (report.entries, report.last_index, report.last_epoch) == (7, 7, 1)


def test_a_segment_that_was_never_used_is_reported_and_removed(files: Files) -> None:
    store(files, NEXT, b"SWJOURNL")
    report = open_journal(files)[2]
    assert (report.torn_path, report.torn_position, report.torn_bytes) == (NEXT, 0, 8)
    assert NEXT.split("/")[1] not in files.list("journal")


def test_damage_names_file_position_expected_and_found(files: Files) -> None:
    flip(MIDDLE, at(1, 100))(files)
    with pytest.raises(Damaged) as damage:
        open_journal(files)
    assert (damage.value.path, damage.value.position) == (MIDDLE, at(1, 24))
    assert "CRC-32C" in str(damage.value.expected)
    assert "slotwheel verify" in str(damage.value)


@pytest.mark.parametrize("name", ["last entry gone", "last entry's payload flipped"])
def test_what_the_checkpoint_calls_durable_is_damage(files: Files, name: str) -> None:
    CORRUPTIONS[name][0](files)
    for options in ({"durable_floor": 8}, {"first_index": 9}):
        with pytest.raises(Damaged) as damage:
            open_journal(files, **options)
        assert (damage.value.path, damage.value.position // 100) == (LAST, at(1) // 100)
    assert open_journal(files, durable_floor=7)[2].last_index == 7


def test_no_segments_although_the_checkpoint_knows_of_entries(files: Files) -> None:
    lose(FIRST, MIDDLE, LAST)(files)
    with pytest.raises(Damaged, match="up to index 8"):
        open_journal(files, first_index=8, durable_floor=8)
    assert open_journal(files, first_index=9, durable_floor=8)[2].last_index == 8


def test_segments_below_the_first_index_are_verified_too(files: Files) -> None:
    flip(FIRST, at(1, 100))(files)
    with pytest.raises(Damaged, match=FIRST):
        open_journal(files, first_index=8)


def test_recovery_writes_again_only_what_no_frame_calls_durable() -> None:
    files = CrashFiles()
    write_journal(files, 8)
    after = files.survivors("live")
    open_journal(after)
    assert [name for name in after.steps.names if "pwrite" in name] == [
        f"pwrite {LAST} {at(1)}+{SPACE}"
    ]


def test_another_stores_journal_is_refused(files: Files) -> None:
    with pytest.raises(Damaged, match="another data directory"):
        open_journal(files, store_id=b"o" * 16)


def test_an_entry_beyond_the_limit_is_not_even_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []
    pread = CrashHandle.pread

    def counting(handle: CrashHandle, length: int, position: int) -> bytes:
        lengths.append(length)
        return pread(handle, length, position)

    monkeypatch.setattr(CrashHandle, "pread", counting)
    files = CrashFiles()
    write_journal(files, 8)
    seed = SegmentHeader(7, 1, STORE, marked=True).seed
    extend(LAST, encode_frame(seed, at(2), 3_000_000_000, 7) + bytes(100))(files)
    lengths.clear()
    assert open_journal(files, entry_bytes_max=2**32)[2].last_index == 8
    assert max(lengths) < 2_000_000


def test_every_flipped_bit_of_the_whole_journal() -> None:
    """Never another exception, never an entry that was not written, never one lost unnoticed."""
    files = CrashFiles()
    write_journal(files, 8)
    good = {path: load(files, path) for path in (FIRST, MIDDLE, LAST)}
    torn = 0
    for path, content in good.items():
        for bit in range(len(content) * 8):
            files = CrashFiles()
            files.make_directory("journal")
            for other, unchanged in good.items():
                files.replace(other, unchanged)
            files.replace(path, flipped(content, bit))
            got: list[bytes] = []
            try:
                report = open_journal(
                    files, on_entry=lambda one, got=got: got.append(bytes(one.payload))
                )[2]
            except (Damaged, UnsupportedVersion):
                assert got == EIGHT[: len(got)]
                continue
            assert (path, bit // 8 // at(1)) == (LAST, 1), "only the very last entry can look torn"
            assert (got, report.torn_path) == (EIGHT[:7], LAST)
            torn += 1
    # all but the entry's own version field, which is refused by name unless it becomes 0 or 3
    assert torn == (SPACE - 2) * 8 + 2


def test_every_cut_of_the_last_segment() -> None:
    files = CrashFiles()
    write_journal(files, 8)
    good = {path: load(files, path) for path in (FIRST, MIDDLE, LAST)}
    for length in range(len(good[LAST]) + 1):
        files = CrashFiles()
        files.make_directory("journal")
        for path, content in good.items():
            files.replace(path, content[:length] if path == LAST else content)
        _, got, report = open_journal(files)
        whole = 6 + max(0, length - SEGMENT_BYTES) // SPACE
        assert payloads(got) == EIGHT[:whole]
        assert report.torn_bytes == (length if length < 64 else (length - SEGMENT_BYTES) % SPACE)


def test_a_group_that_lost_its_middle_is_torn_there(files: Files) -> None:
    """Its later frames were written before anything in the group was durable."""
    journal, _, _ = open_journal(files, segment_bytes=100_000)
    journal.append([entry(index) for index in range(9, 15)])
    zero(LAST, at(4), at(5))(files)
    _, got, report = open_journal(files)
    assert [one.index for one in got] == list(range(1, 11))
    assert (report.torn_position, report.torn_bytes) == (at(4), 100_000 - at(4))


def test_a_later_group_makes_the_same_hole_damage(files: Files) -> None:
    journal, _, _ = open_journal(files, segment_bytes=100_000)
    journal.append([entry(index) for index in range(9, 15)])
    journal.sync()
    journal.append([entry(15)])
    zero(LAST, at(4), at(5))(files)
    with pytest.raises(Damaged) as damage:
        open_journal(files)
    assert damage.value.position == at(4)


def test_a_witness_is_found_far_behind_the_bad_entry() -> None:
    """Across the windows in which the rest of the segment is searched, at every edge of them."""
    for extra in range(-400, 0, 8):
        files = CrashFiles()
        options = {"segment_bytes": 10_000_000, "entry_bytes_max": 2_000_000}
        journal, _, _ = open_journal(files, **options)
        journal.append([entry(1), entry(2, 1024 * 1024 + extra)])
        journal.sync()
        journal.append([entry(3)])
        journal.close()
        flip(FIRST, at(0, 100))(files)
        with pytest.raises(Damaged):
            open_journal(files, **options)


def test_a_message_cannot_bear_false_witness(files: Files) -> None:
    """A value that holds a copy of this very journal, in an entry that is torn."""
    copied = load(files, FIRST) + load(files, MIDDLE) + load(files, LAST)
    journal, _, _ = open_journal(files, segment_bytes=100_000)
    one = entry(9)
    object.__setattr__(one, "payload", copied)
    journal.append([one])
    flip(LAST, at(2, 24 + 30))(files)
    report = open_journal(files)[2]
    assert (report.last_index, report.torn_position) == (8, at(2))


def test_an_operating_system_error_is_never_damage() -> None:
    files = CrashFiles()
    write_journal(files, 8)
    cut(LAST, at(1, 100))(files)
    before = snapshot(files)
    for operation, calls in (("list", 1), ("open", 4), ("pread", 19)):  # of the scan
        for after in range(calls):
            failing = files.survivors("live")
            failing.fail_next(operation, OSError(errno.EIO, "Input/output error"), after=after)
            with pytest.raises(OSError, match="Input/output error"):
                open_journal(failing)
            assert snapshot(failing) == before
            assert open_journal(failing)[2].last_index == 7
