"""The verifier over directories of peers: what only they have is not a fault, what is wrong is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.payloads import decode_config
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.peers.snapshot_sink import SnapshotSink
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.state import StateUpdate
from support.damage import flipped
from support.peerdirs import (
    CONFIG,
    HOUR,
    SECOND,
    Replica,
    begin_transfer,
    due_in,
    mark_entry,
    new_peer,
    old_peer,
    rows_entry,
    source_for,
)

STORES = {"a": "11" * 16, "b": "22" * 16}


def config_entry(index: int, epoch: int, next_offset: int, stores: Any = STORES) -> Entry:
    payload = json.dumps({**CONFIG, "stores": stores}).encode()
    return Entry(EntryKind.CONFIG, epoch, index, next_offset, 0, 0, -1, payload)


def test_the_replicas_of_these_tests_are_sound() -> None:
    for peer in (old_peer(), new_peer()):
        assert (peer.faults(), peer.notes()) == ([], [])


def test_an_end_that_was_cut_and_went_on_in_other_epochs() -> None:
    """Offsets are given out again, under a later epoch; some of the new ones are not committed."""
    peer = old_peer()
    journal, _ = peer.journal_and_entries()
    journal.truncate_after(6)
    journal.append([config_entry(7, 3, 6), rows_entry(8, 3, 6, due_in(SECOND + 20, 1, 2, 3))])
    journal.append([rows_entry(9, 3, 9, due_in(SECOND + 21, 1)), config_entry(10, 5, 12)])
    journal.append([rows_entry(11, 5, 12, due_in(SECOND + 22, 1))])
    journal.sync()
    assert (peer.faults(), peer.notes()) == ([], [])


def test_an_epoch_that_was_never_promised_is_a_fault() -> None:
    peer = old_peer()
    journal, _ = peer.journal_and_entries()
    journal.append([config_entry(13, 7, 12)])
    journal.sync()
    (fault,) = peer.faults()
    assert "epochs up to 6, found 7" in fault


@pytest.mark.parametrize(
    "stores",
    [["a"], {"a": 7}, {"a": "11" * 15}, {"a": "zz" * 16}, "a", {"a": None}],
)
def test_a_configuration_with_stores_that_are_none(stores: Any) -> None:
    entry = config_entry(1, 1, 0, stores)
    with pytest.raises(Damaged, match="a store id of each peer"):
        decode_config(entry, "journal")
    good = decode_config(config_entry(1, 1, 0), "journal")
    assert good["stores"] == STORES


def test_marks_that_came_with_a_snapshot_may_be_ahead_of_the_journal() -> None:
    peer = new_peer()
    older = Marks(Mark(SECOND * 1000 - 500, 0, 5))
    journal, _ = peer.journal_and_entries()
    journal.append([mark_entry(12, 4, 32, older)])
    journal.sync()
    (fault,) = peer.faults()  # alone it would be one
    assert "a mark at or beyond" in fault
    checkpoint = peer.state.load().checkpoint
    config = {**CONFIG, "stores": STORES}
    peer.state.commit(StateUpdate(checkpoint=replace(checkpoint, config=config)))
    assert peer.faults() == []
    (note,) = peer.notes()
    assert "a mark at or beyond" in note


# -- snapshots


def receive(peer: Replica, *, chunks: int = 1000) -> SnapshotSink:
    return begin_transfer(peer, source_for(new_peer()), chunks=chunks, chunk_bytes=700)


def test_a_reception_under_way_is_a_note() -> None:
    peer = old_peer()
    receive(peer, chunks=3)
    assert peer.faults() == []
    (note,) = peer.notes()
    assert note.startswith("incoming at byte 0")


def switched_half() -> Replica:
    """The commit is done, one file is in place, the old journal and old slot files are there."""
    peer = old_peer()
    peer.state.commit(receive(peer).finish())
    peer.files.rename(f"incoming/{path_of(SECOND)}", path_of(SECOND))
    return peer


def test_a_switch_that_is_not_completed_is_no_fault() -> None:
    peer = switched_half()
    assert peer.faults() == []
    notes = "\n".join(peer.notes())
    assert "a switch to a snapshot" in notes
    assert "it is replaced" in notes


@pytest.mark.parametrize(
    "path", [path_of(SECOND), f"incoming/{path_of(SECOND + 2)}", f"incoming/{path_of(HOUR)}"]
)
def test_damage_is_found_where_the_file_lies(path: str) -> None:
    peer = switched_half()
    peer.files.replace(path, flipped(peer.files.content(path), 4000))
    faults = peer.faults()
    assert faults
    assert all(fault.startswith(f"{path} at byte") for fault in faults)
