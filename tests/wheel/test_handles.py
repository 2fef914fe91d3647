"""The bounded set of handles: with a capacity of one, a handle in use stays open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.slots.handles import HandleCache
from slotwheel.wheel.slots.slot import begins_ms, ends_ms, path_of, slot_of_name
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import SlotInfo
from support.wheels import keys_of, rows_at


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OsFiles]:
    files = OsFiles(tmp_path)
    yield files
    files.close()


def put(slots: SlotFiles, second: int, info: SlotInfo | None, *offsets: int) -> SlotInfo:
    keys = [(second * 1000, offset) for offset in offsets]
    return slots.append(block_of(second, rows_at(keys)), info)


def test_a_handle_in_use_survives_its_eviction(files: OsFiles) -> None:
    cache = HandleCache(files, 1)
    with cache.use("a", create=True) as a:
        a.pwrite([b"first"], 0)
        with cache.use("b", create=True) as b:
            assert len(cache) == 1
            with cache.use("a") as again:
                assert again.pread(5, 0) == b"first"
            a.pwrite([b"later"], 0)
            b.pwrite([b"b"], 0)
        assert a.pread(5, 0) == b"later"
    with pytest.raises(OSError, match="Bad file descriptor"):
        a.pread(1, 0)
    cache.close()


def test_the_longest_unused_is_closed_first(files: OsFiles) -> None:
    cache = HandleCache(files, 2)
    handles = []
    for path in ("a", "b", "a", "c"):
        with cache.use(path, create=True) as handle:
            handles.append(handle)
    a, b, again, c = handles
    assert a is again
    assert (a.size(), c.size()) == (0, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        b.size()
    assert len(cache) == 2
    cache.close()
    assert len(cache) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        a.size()


def test_who_comes_behind_the_end_leaves_nothing_open(files: OsFiles) -> None:
    """A peer asks for rows of a slot while a snapshot takes the place of the storage."""
    cache = HandleCache(files, 4)
    with cache.use("a", create=True) as early:
        cache.close()
        with cache.use("a") as late:
            late.pwrite([b"x"], 0)
            assert early.size() == 1
    for handle in (early, late):
        with pytest.raises(OSError, match="Bad file descriptor"):
            handle.size()


def test_a_forgotten_path_is_opened_anew(files: OsFiles) -> None:
    cache = HandleCache(files, 4)
    with cache.use("a", create=True) as handle:
        handle.pwrite([b"old"], 0)
    cache.forget("a")
    cache.forget("never seen")
    files.unlink("a")
    with cache.use("a", create=True) as handle:
        assert handle.size() == 0
    cache.close()


def test_a_missing_file_leaves_no_entry(files: OsFiles) -> None:
    cache = HandleCache(files, 1)
    with pytest.raises(FileNotFoundError), cache.use("missing"):
        pass
    assert len(cache) == 0


def test_append_to_the_slot_being_read_with_one_handle(files: OsFiles) -> None:
    """The append needs the handle, which was evicted meanwhile."""
    slots = SlotFiles(files, 1)
    first = put(slots, 5, None, 1, 2)
    (block,) = slots.read(5, first)
    other = put(slots, 6, None, 3)  # evicts the handle of slot 5
    second = put(slots, 5, first, 4)
    assert keys_of(block) == [(5000, 1), (5000, 2)]  # what was read stays what it was
    assert [keys_of(one) for one in slots.read(5, second, first)] == [[(5000, 4)]]
    assert [keys_of(one) for one in slots.read(5, first)] == [[(5000, 1), (5000, 2)]]
    assert len(slots.read(5, second)) == 2
    assert slots.read(5, second, second) == []
    assert keys_of(slots.read(6, other)[0]) == [(6000, 3)]
    assert len(slots.handles) == 1
    slots.close()


def test_what_a_crash_left_behind_the_committed_length_is_cut(files: OsFiles) -> None:
    slots = SlotFiles(files, 1)
    info = put(slots, 5, None, 1)
    put(slots, 5, info, 2)  # written, never committed
    longer = put(slots, 5, info, 3)
    assert [keys_of(one) for one in slots.read(5, longer)] == [[(5000, 1)], [(5000, 3)]]
    put(slots, 5, longer, 4)
    assert slots.cut(5, longer) > 0
    assert slots.cut(5, longer) == 0
    slots.close()


def test_a_file_that_is_too_short_or_missing_is_damage(files: OsFiles, tmp_path: Path) -> None:
    slots = SlotFiles(files, 1)
    info = put(slots, 5, None, 1, 2)
    with (tmp_path / path_of(5)).open("r+b") as file:
        file.truncate(info.length - 1)
    with pytest.raises(Damaged, match="the end"):
        slots.read(5, info)
    with pytest.raises(Damaged, match=f"expected {info.length} bytes"):
        slots.cut(5, info)
    slots.remove(5)
    slots.remove(5)  # a crash may have come between commit and unlink
    with pytest.raises(Damaged, match="no such file"):
        slots.cut(5, info)
    slots.close()


@pytest.mark.parametrize("name", ["x.arrows", "5", "05.arrows", "5.arrow", "+5.arrows", ".arrows"])
def test_other_names_are_no_slot_files(name: str) -> None:
    assert slot_of_name(name) is None


@pytest.mark.parametrize("second", [0, 7, -3, 1_900_000_000])
def test_names_are_absolute_seconds(second: int) -> None:
    """So no second is taken for the same place of another revolution."""
    assert slot_of_name(path_of(second).split("/")[1]) == second


@pytest.mark.parametrize("second", [0, 7, 1_900_000_000])
def test_a_slot_ends_where_the_next_one_begins(second: int) -> None:
    assert begins_ms(second) == 1000 * second
    assert ends_ms(second) == begins_ms(second + 1) == 1000 * second + 1000


def test_a_data_directory_that_nobody_closed_costs_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        OsFiles(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
    files = OsFiles(tmp_path)
    files.close()
    files.close()
