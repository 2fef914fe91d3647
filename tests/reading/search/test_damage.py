"""Files that are damaged, that vanish, or change while they are read: said, or looked at again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading import journal as journal_reading
from slotwheel.reading.directory import is_data_directory
from slotwheel.reading.search import pending, watch
from slotwheel.reading.search.fate import MessageState, find
from slotwheel.reading.search.pending import PendingReader
from slotwheel.reading.search.query import Query
from slotwheel.wheel.errors import Damaged, InvalidConfiguration
from slotwheel.wheel.mark import RowKey
from support.damage import flip
from support.datadirs import START_MS, SinkNode, messages, state_of

LATER = [START_MS + 60_000 + 250 * step for step in range(40)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SinkNode]:
    node = SinkNode(tmp_path / "data")
    node.append(messages(LATER))
    node.spill()
    node.append(messages(LATER[:8]))
    node.append(messages(LATER[9:10]))
    yield node
    node.close()


@pytest.fixture
def copied(node: SinkNode, tmp_path: Path) -> Path:
    """A copy of the directory, which this process does not have open."""
    return Path(shutil.copytree(node.path, tmp_path / "copy"))


def ids_of(reader: PendingReader, **options: Any) -> list[str]:
    """Of all pages together."""
    found: list[str] = []
    after: RowKey | None = None
    while True:
        page = reader.page(None, after, **options)
        found += page.ids
        after = page.next
        if after is None:
            return found


def test_a_damaged_slot_file_is_said_and_the_rest_is_found(copied: Path) -> None:
    second = LATER[0] // 1000
    with PendingReader(copied) as reader:
        whole = reader.page()
        assert whole.complete
        flip(copied / f"slots/{second}.arrows")
        page = reader.page()
        assert not page.complete
        assert [one.file for one in page.problems] == [f"slots/{second}.arrows"]
        assert "CRC-32C" in page.problems[0].text
        # What is not in the file is there: the slot's four rows that were not spilled.
        assert page.ids == [one for one in whole.ids if one in set(page.ids)]
        assert len(page.ids) == len(whole.ids) - 4
        assert not reader.count(Query(topics=("orders",))).complete
        lost = next(one for one in whole.ids if one not in page.ids)
        [fate] = find(reader, [lost])
        assert fate.state is MessageState.UNKNOWN
        assert "CRC-32C" in fate.why
        later = Query(from_ms=(second + 1) * 1000)
        assert reader.page(later).complete  # it does not look there


def test_a_slot_file_that_is_missing_is_said(copied: Path) -> None:
    (copied / f"slots/{LATER[0] // 1000}.arrows").unlink()
    with PendingReader(copied) as reader:
        assert [one.kind for one in reader.page().problems] == ["missing"]


def test_a_damaged_journal_is_said(copied: Path) -> None:
    [segment] = (copied / "journal").glob("*.journal")
    content = segment.read_bytes()
    flip(segment, content.rindex(b"SWEN", 0, content.rindex(b"value-7")) + 40)
    with PendingReader(copied) as reader:
        for _ in range(2):
            page = reader.page()
            assert not page.complete
            assert page.problems


def test_a_state_that_cannot_be_read_is_an_error(copied: Path) -> None:
    (copied / "state/data.mdb").write_bytes(b"\xff" * 8192)
    with PendingReader(copied) as reader, pytest.raises(Damaged):
        reader.count()
    shutil.rmtree(copied / "state")
    with PendingReader(copied) as reader, pytest.raises(Damaged):
        reader.count()


def test_other_directories_are_refused(tmp_path: Path, copied: Path) -> None:
    assert is_data_directory(copied)
    for path in (tmp_path, tmp_path / "nothing", copied / "slots"):
        with pytest.raises(InvalidConfiguration):
            PendingReader(path)


def test_pages_are_bounded_and_together_they_are_all(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PendingReader(copied) as reader:
        whole = reader.page(limit=1000)
        assert whole.next is None
        assert len(whole.ids) == 49
        assert whole.rows.column("due").to_pylist() == sorted(whole.rows.column("due").to_pylist())
        assert ids_of(reader, limit=7) == whole.ids
        assert ids_of(reader, rows_max=1) == whole.ids
        first = reader.page(Query(keys=(b"no such key",)), rows_max=9)
        assert (first.ids, first.looked_through) == ([], 16)  # whole slots
        assert first.next is not None
        monkeypatch.setattr(pending, "_BYTES_MAX", 30)
        assert len(reader.page(limit=1000).ids) < 5
        assert ids_of(reader, limit=1000) == whole.ids


def test_a_slot_file_is_replaced_by_another_while_it_is_searched(
    node: SinkNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view is old: all rows of its file have left, and late ones are in a new file of that
    name. These were not asked about, and are found once when they are."""
    before = shutil.copytree(node.path, tmp_path / "before")
    node.deliver(LATER[3] + 2_000)
    node.spill()
    node.wheel.clean(node.now)
    [late] = node.append(messages([LATER[0]]))
    node.spill()
    after = shutil.copytree(node.path, tmp_path / "after")
    second = LATER[0] // 1000
    assert state_of(after).slots[second] != state_of(before).slots[second]
    with PendingReader(before) as old, PendingReader(after) as new:
        stale, fresh = old.view(), new.view()
        monkeypatch.setattr(new, "view", lambda: fresh)
        view, rows, problem = new.rows_of(stale, range(second, second + 1))
        assert view is fresh
        assert problem is None
        assert sum(map(len, rows)) == 1
        assert new.page().ids[0] == late


def test_a_tail_of_many_pieces(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PendingReader(copied) as reader:
        whole = reader.page()
        assert len(reader.view().tail) == 1
    monkeypatch.setattr(watch, "_PIECE_BYTES_MAX", 1)
    monkeypatch.setattr(journal_reading, "ROWS_MAX", 1)
    with PendingReader(copied) as reader:
        assert len(reader.view().tail) == 2
        assert reader.page().ids == whole.ids
        assert reader.count().total == len(whole.ids)


def test_the_state_of_another_directory_is_said(copied: Path, tmp_path: Path) -> None:
    other = SinkNode(tmp_path / "other")
    other.append(messages(LATER))
    other.spill()
    other.close()
    shutil.rmtree(copied / "state")
    shutil.copytree(tmp_path / "other/state", copied / "state")
    with PendingReader(copied) as reader:
        found = reader.count()
        assert not found.complete
        assert "state/" in found.problems[-1].text
