"""Power cuts and kills while a snapshot is received and switched to: at every step the directory is
wholly the old one or wholly the new one, its store id, epoch and vote are kept, and the verifier
finds nothing wrong in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from slotwheel.wheel import switch
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.journal.segment import SegmentHeader
from slotwheel.wheel.peers.snapshot_sink import SnapshotSink
from slotwheel.wheel.slots.slot import file_name
from slotwheel.wheel.state import StateUpdate
from slotwheel.wheel.switch import complete_switch
from support.crashfs import MODES, Mode, PowerCut, without_sync_dir
from support.peerdirs import (
    Replica,
    begin_transfer,
    install,
    new_peer,
    old_peer,
    rows_entry,
    source_for,
    transfer,
)
from support.steps import Steps

Patch = pytest.MonkeyPatch


def receive(peer: Replica, sender: Replica) -> StateUpdate:
    return transfer(peer, source_for(sender), chunk_bytes=700)


def life(peer: Replica, sender: Replica) -> None:
    """A reception that breaks off, then one that goes on from there, then the journal goes on."""
    begin_transfer(peer, source_for(sender), chunks=2, chunk_bytes=900)
    update = receive(peer, sender)
    install(peer.files, peer.state, update)
    journal, _ = peer.journal_and_entries()
    journal.append([rows_entry(10, 4, 30, [1_900_000_020_000])])
    journal.sync()
    journal.close()


class Expected:
    """The old content and the new one."""

    def __init__(self) -> None:
        self.sender = new_peer()
        old = old_peer()
        self.old_slots = old.slot_content()
        self.new_slots = self.sender.slot_content()
        self.old = old.state.load()
        self.new = self.sender.state.load()
        journal, entries = old.journal_and_entries()
        journal.close()
        self.old_entries = entries

    def check(self, peer: Replica) -> bool:
        """Open as a node does; whether it is the new one. Before that, too, nothing is wrong."""
        assert peer.faults() == []
        stored = complete_switch(peer.files, peer.state)
        assert stored == peer.state.load()
        assert not stored.incoming
        assert (stored.store_id, stored.epoch, stored.vote, stored.voter) == (
            self.old.store_id,
            self.old.epoch,
            self.old.vote,
            self.old.voter,
        )
        is_new: bool = stored.checkpoint == self.new.checkpoint
        expected = self.new if is_new else self.old
        assert stored.checkpoint == expected.checkpoint
        assert stored.slots == expected.slots
        assert stored.producers == expected.producers
        slots = self.new_slots if is_new else self.old_slots
        assert peer.slot_content() == slots
        assert peer.files.list("slots") == sorted(map(file_name, slots))
        assert peer.faults() == []
        journal, entries = peer.journal_and_entries()
        journal.close()
        if is_new:
            assert journal.first_index == self.new.checkpoint.index + 1
            assert journal.epochs.base_epoch == self.new.checkpoint.epoch
            assert [one.index for one in entries] in ([], [10])
        else:
            assert entries == self.old_entries
        return is_new


EXPECTED = Expected()


def test_spare_files_of_the_old_journal_go_with_it() -> None:
    peer = old_peer()
    peer.files.replace(f"journal/{1:020d}.spare", b"old")
    install(peer.files, peer.state, receive(peer, EXPECTED.sender))
    checkpoint = EXPECTED.new.checkpoint
    assert peer.files.list("journal") == [f"{checkpoint.index + 1:020d}.journal"]


def steps_of_a_life() -> tuple[int, int]:
    """Steps before it begins, and steps of it."""
    peer = old_peer()
    before = peer.files.steps.count
    life(peer, EXPECTED.sender)
    return before, peer.files.steps.count


def cut_at(stop_at: int) -> Replica:
    """A life cut at that step."""
    peer = old_peer()
    peer.files.steps.stop_at = stop_at
    with pytest.raises(PowerCut):
        life(peer, EXPECTED.sender)
    return peer


def survivor(cut: Replica, mode: Mode, rng: Random, again: int) -> Replica:
    """What is left of one that was cut, and perhaps was cut once more in the recovery."""
    peer = cut.crash(mode, rng, Steps(again or None))
    if again:
        try:
            complete_switch(peer.files, peer.state)
        except PowerCut:
            peer = peer.crash(mode, rng)
        peer.files.steps.stop_at = None
    return peer


def sweep(again_max: int = 0, seeds: int = 3) -> set[bool]:
    first, last = steps_of_a_life()
    assert last - first > 60
    outcomes = set()
    # All of them, in an order in which what is broken shows early.
    for stop_at in Random(1).sample(range(first + 1, last + 1), last - first):
        cut = cut_at(stop_at)
        for mode in MODES:
            for seed in range(seeds if mode == "random" else 1):
                rng = Random(seed * 1000 + stop_at)
                again = rng.randint(1, again_max) if again_max else 0
                peer = survivor(cut, mode, rng, again)
                is_new = EXPECTED.check(peer)
                outcomes.add(is_new)
                # What was found is durable by then, and a snapshot can be received again.
                later = peer.crash("durable", rng)
                assert EXPECTED.check(later) is is_new
    return outcomes


def test_a_crash_at_every_step() -> None:
    assert sweep() == {True, False}


def test_a_second_crash_while_the_switch_is_completed() -> None:
    assert sweep(again_max=30) == {True, False}


@pytest.mark.parametrize("mode", MODES)
def test_a_reception_after_a_crash_goes_on(mode: Mode) -> None:
    first, last = steps_of_a_life()
    for stop_at in range(first + 1, last + 1, 5):
        peer = cut_at(stop_at).crash(mode, Random(stop_at))
        complete_switch(peer.files, peer.state)
        install(peer.files, peer.state, receive(peer, EXPECTED.sender))
        assert EXPECTED.check(peer.crash("durable", Random(0)))


def test_without_a_crash() -> None:
    peer = old_peer()
    life(peer, EXPECTED.sender)
    assert EXPECTED.check(peer)
    assert peer.journal_and_entries()[1][0].epoch == 4


# -- the sweep can fail


def slot_files_not_synced_before_the_commit(patch: Patch) -> None:
    finish = SnapshotSink.finish

    def unsynced(self: SnapshotSink) -> StateUpdate:
        files: Any = self._files
        sync_all, files.sync_all = files.sync_all, lambda: None
        try:
            return finish(self)
        finally:
            files.sync_all = sync_all

    patch.setattr(SnapshotSink, "finish", unsynced)


def switched_in_two_commits(patch: Patch) -> None:
    def two(files: Any, state: Any, update: StateUpdate) -> Any:
        state.commit(replace(update, incoming=None, checkpoint=None))
        state.commit(StateUpdate(checkpoint=update.checkpoint, incoming=True))
        return switch.complete_switch(files, state)

    patch.setitem(globals(), "install", two)


def flag_in_a_commit_of_its_own(patch: Patch) -> None:
    def two(files: Any, state: Any, update: StateUpdate) -> Any:
        state.commit(replace(update, incoming=None))
        state.commit(StateUpdate(incoming=True))
        return switch.complete_switch(files, state)

    patch.setitem(globals(), "install", two)


def moved_before_the_commit(patch: Patch) -> None:
    def early(files: Any, state: Any, update: StateUpdate) -> Any:
        switch._move_slots(files, dict(update.slots))
        state.commit(update)
        return switch.complete_switch(files, state)

    patch.setitem(globals(), "install", early)


def moves_not_synced(patch: Patch) -> None:
    without_sync_dir(patch, switch, "_move_slots")


def old_journal_kept(patch: Patch) -> None:
    patch.setattr(switch, "_new_journal", lambda files, header: None)


def new_journal_after_the_flag(patch: Patch) -> None:
    def late(files: Any, state: Any, update: StateUpdate) -> Any:
        state.commit(update)
        stored = state.load()
        switch._move_slots(files, stored.slots)
        state.commit(StateUpdate(incoming=False))
        at = stored.checkpoint
        switch._new_journal(files, SegmentHeader(at.index + 1, at.epoch, stored.store_id))
        list(switch.removing_incoming(files))

    patch.setitem(globals(), "install", late)


def incoming_removed_before_the_flag(patch: Patch) -> None:
    """A start takes ``incoming/`` for stale without looking at the flag."""

    def careless(files: Any, state: Any) -> Any:
        list(switch.removing_incoming(files))
        return switch.complete_switch(files, state)

    patch.setitem(globals(), "complete_switch", careless)


def interrupted_switch_not_completed(patch: Patch) -> None:
    def careless(files: Any, state: Any) -> Any:
        return state.load()

    patch.setitem(globals(), "complete_switch", careless)


@pytest.mark.parametrize(
    "breakage",
    [
        slot_files_not_synced_before_the_commit,
        switched_in_two_commits,
        flag_in_a_commit_of_its_own,
        moved_before_the_commit,
        moves_not_synced,
        old_journal_kept,
        new_journal_after_the_flag,
        incoming_removed_before_the_flag,
        interrupted_switch_not_completed,
    ],
    ids=lambda one: one.__name__,
)
def test_the_sweep_finds(breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breakage(monkeypatch)
    with pytest.raises((AssertionError, Damaged)):
        sweep()
