"""A wheel that is one of several, driven by hand: what replication decides, the wheel obeys."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import ClockBehind, Damaged, InvalidConfiguration, NotMaster
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.journal.entry import EntryKind
from slotwheel.wheel.mark import Marks
from slotwheel.wheel.peers.heal import SlotRows
from slotwheel.wheel.peers.peer import PeerWheel
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.state import LmdbState, Loss
from slotwheel.wheel.wheel import Wheel
from support import wheels
from support.damage import flip
from support.handpeer import NOW, STORES, Peer, over_the_wire
from support.mending import find_damage, heal
from support.wheels import as_version_1, batch, master_of


def next_chunk(peer: Peer, now_ms: int) -> Chunk | None:
    return wheels.next_chunk(peer.wheel, now_ms, peer.commit)


def delivered(peer: Peer, now_ms: int) -> list[bytes]:
    values: list[bytes] = []
    while (chunk := next_chunk(peer, now_ms)) is not None:
        values += chunk.rows.column("value").to_pylist()
        master_of(peer.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    return values


def test_a_standby_takes_nothing_and_says_who_does(peers: tuple[Peer, Peer]) -> None:
    a, _ = peers
    a.wheel.stand_by("10.0.0.2:7200")
    with pytest.raises(NotMaster, match=r"10\.0\.0\.2:7200"):
        a.send((NOW, "t", b"x"))
    with pytest.raises(NotMaster):
        a.wheel.cancel([MessageId("default", NOW, 0, 0)], NOW)
    assert not a.wheel.serving
    assert a.wheel.status().pending == 0


def test_an_epoch_begins_with_an_entry_that_names_the_stores(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.wheel.promise(1, "a", True)
    a.wheel.lead(1, STORES, NOW)
    with pytest.raises(NotMaster, match="starting"):
        a.send((NOW, "t", b"too soon"))
    a.sync()
    assert not a.wheel.serving, "durable is not committed"
    assert a.wheel.written_after(0) == [(1, 1, STORES)]
    a.wheel.commit(1)
    a.send((NOW, "t", b"in time"))
    a.ship(b)
    assert b.wheel.admitted_stores() == [(1, STORES)]
    assert b.wheel.epochs().last_epoch == 1
    one = MessageId("default", NOW, 3, 0)
    assert b.wheel.mint.one(one.due, one.offset) == a.wheel.mint.one(one.due, one.offset)


def test_a_caller_waits_for_the_commit_and_early_ones_for_the_disk(
    peers: tuple[Peer, Peer],
) -> None:
    a, _ = peers
    a.lead(1)
    late = a.send((NOW, "t", b"1"))
    early = a.wheel.append(batch([(NOW, "t", b"2")]), NOW, early=True)
    a.sync()
    assert early.done()
    assert not late.done()
    assert master_of(a.wheel).next_chunk(NOW + 5) is None, "what is not committed is not delivered"
    a.wheel.commit(a.wheel.log_view().durable)
    assert late.result(0).base_offset == 0
    assert delivered(a, NOW + 5) == [b"1", b"2"]


def test_only_a_masters_own_entries_are_reported_before_their_sync(
    peers: tuple[Peer, Peer],
) -> None:
    """They are shipped meanwhile; a standby has nothing to do before it can acknowledge."""
    a, b = peers
    a.lead(1)
    synced: dict[str, list[bool]] = {"a": [], "b": []}
    for one in peers:

        def note(one: Peer = one) -> None:
            view = one.wheel.log_view()
            synced[one.name].append(view.durable == view.written)

        one.wheel.log_changed = note
    a.send((NOW, "t", b"x"))
    a.sync()
    a.ship(b)
    assert synced == {"a": [False, True], "b": [True]}


def test_a_standby_takes_over_where_the_committed_mark_stands(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    a.send((NOW + 1, "t", b"first"), (NOW + 9_000, "t", b"later"))
    a.commit()
    assert delivered(a, NOW + 2) == [b"first"]
    a.mark(NOW + 500)
    a.ship(b)
    assert b.wheel.status().pending == 1
    assert b.wheel.status().delivered == 1
    b.lead(2)
    assert delivered(b, NOW + 9_001) == [b"later"]


def test_a_suffix_that_another_master_never_had_is_cut(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    kept = a.send((NOW + 1, "t", b"kept"), sequence=1)
    a.commit()
    a.ship(b)
    assert kept.done()
    lost = a.send((NOW + 1, "t", b"lost"), sequence=2)
    a.sync()
    queued = a.send((NOW + 1, "t", b"never written"), sequence=3)
    a.wheel.stand_by("b:1")
    for future in (lost, queued):
        with pytest.raises(NotMaster):
            future.result(0)
    b.lead(2)
    other = b.send((NOW + 1, "t", b"other"), sequence=2)
    b.commit()
    assert other.result(0).base_offset == 1, "the offset that was never committed"
    a.wheel.cut_after(a.wheel.commit_index)
    b.ship(a)
    a.reopen()
    a.wheel.commit(b.wheel.commit_index)
    assert a.wheel.epochs().last_epoch == 2
    a.lead(3)
    assert delivered(a, NOW + 5) == [b"kept", b"other"]
    again = a.send((NOW + 1, "t", b"other"), sequence=2)
    assert again.result(0).base_offset == 1, "the next master knows what the last one stored"


def test_a_restart_believes_nothing_behind_the_checkpoint(peers: tuple[Peer, Peer]) -> None:
    a, _ = peers
    a.lead(1)
    a.send((NOW + 1, "t", b"x"))
    a.sync()
    a.reopen()
    assert a.wheel.commit_index == 0
    assert a.wheel.status().accepted == 0
    a.wheel.commit(2)
    assert a.wheel.status().accepted == 1


def test_a_cancel_of_the_last_master_holds_for_the_next(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    receipt = a.send((NOW + 50, "t", b"x"), (NOW + 50, "t", b"y"))
    a.commit()
    target = a.wheel.mint.one(NOW + 50, receipt.result(0).base_offset)
    assert a.wheel.cancel([target], NOW, 0.0) == [CancelAnswer.UNKNOWN], "not committed in time"
    a.sync()
    a.ship(b)
    a.wheel.stand_by()
    b.lead(2)
    assert delivered(b, NOW + 60) == [b"y"]
    assert b.wheel.cancel([target], NOW, 0.0) == [CancelAnswer.CANCELLED]


def test_a_master_that_lost_its_epoch_books_nothing_more(peers: tuple[Peer, Peer]) -> None:
    a, _ = peers
    a.lead(1)
    a.send((NOW, "t", b"x"))
    a.commit()
    master = a.wheel.dispatcher
    assert master is not None
    chunk = next_chunk(a, NOW + 1)
    assert chunk is not None
    a.wheel.stand_by()
    master.answer(chunk, np.ones(1, np.bool_))
    assert master.next_chunk(NOW + 2) is None
    assert a.wheel.status().delivered == 0
    a.lead(2)
    assert delivered(a, NOW + 2) == [b"x"], "the next epoch delivers what no mark tells of"


def test_old_entries_come_from_the_journal_and_dropped_ones_are_named(
    peers: tuple[Peer, Peer],
) -> None:
    a, b = peers
    a.lead(1)
    for number in range(40):
        a.send((NOW + 60_000 + number, "t", bytes(400)))
        a.commit()
    a.reopen()  # nothing is in memory now
    a.wheel.commit(41)
    a.ship(b, commit=41)
    assert b.wheel.log_view().durable == 41
    a.wheel.spill(NOW + 60_000, everything=True)
    first = a.wheel.log_view().first
    assert 1 < first < 41, "the newest part stays"
    with pytest.raises(LookupError):
        a.wheel.entries(first - 1, 41, 1000)
    assert a.wheel.entries(first, 41, 1)[0].index == first


def test_a_journal_that_is_kept_for_peers_is_no_reason_for_a_spill(
    peers: tuple[Peer, Peer],
) -> None:
    """Else a peer without traffic would write and sync a checkpoint twenty times a second."""
    a, _ = peers
    a.lead(1)
    for _ in range(30):
        a.send((NOW + 60_000, "t", b"v" * 1000))
        a.commit()
    a.wheel.spill(NOW, everything=True)
    assert a.wheel.status().journal_bytes > 2 * a.wheel.config.segment_bytes
    assert not a.wheel.spill_needed(NOW + 3_600_000)
    for _ in range(150):  # marks alone
        master_of(a.wheel).queue_mark(NOW)
        a.commit()
    assert a.wheel.spill_needed(NOW)
    a.wheel.spill(NOW, everything=True)
    assert not a.wheel.spill_needed(NOW)


def test_a_snapshot_fills_an_empty_peer(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    for number in range(40):
        a.send((NOW + 1_000 * number, "t", b"%d" % number))
        a.commit()
    assert len(delivered(a, NOW + 10_000)) == 11
    a.mark(NOW + 10_000)
    a.wheel.spill(NOW + 60_000, everything=True)
    b.wheel.promise(1, "a", False)
    sink = b.wheel.snapshot_sink()
    with a.wheel.snapshot() as source:
        assert a.wheel.clean(NOW + 60_000) == 0, "the cleaner waits"
        sink.begin()
        sink.header(source.header())
        for second, position, data in source.chunks(100):
            sink.chunk(second, position, data)
        index, epoch, stores = b.wheel.install(sink.finish())
    assert (index, epoch, stores) == (a.wheel.status().checkpoint_index, 1, STORES)
    assert b.wheel.hard() == (1, "a", False), "the promise is kept"
    assert b.wheel.commit_index == index
    assert b.wheel.status().pending == 29
    a.send((NOW + 5, "t", b"and on"))
    a.commit()
    a.ship(b)
    b.reopen()
    b.wheel.commit(a.wheel.commit_index)
    b.lead(2)
    assert delivered(b, NOW + 12_000) == [b"and on", b"11", b"12"]


def test_alone_and_among_peers_are_two_kinds_of_directories(
    tmp_path: Path, config: WheelConfig
) -> None:
    for first, second in ((Wheel, PeerWheel), (PeerWheel, Wheel)):
        path = tmp_path / first.__name__
        path.mkdir()
        wheel = first.open(OsFiles(path), LmdbState(path), config, NOW, node_id="a")
        if isinstance(wheel, PeerWheel):
            wheel.lead(1, STORES, NOW)
        wheel.write_pending(0)
        wheel.append(batch([(NOW, "t", b"x")]), NOW) if first is Wheel else None
        wheel.write_pending(0)
        wheel.close()
        state = LmdbState(path)
        with pytest.raises(InvalidConfiguration, match="peers"):
            second.open(OsFiles(path), state, config, NOW, node_id="a")
        state.close()


def test_marks_and_configurations_are_entries_like_others(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.lead(1)
    a.wheel.admit_stores({**STORES, "c": b"c" * 16})
    master_of(a.wheel).append_mark(NOW + 1_000, at_once=True)
    a.sync()
    kinds = [entry.kind for entry in a.wheel.entries(1, 9, 1 << 20)]
    assert kinds == [EntryKind.CONFIG, EntryKind.CONFIG]
    assert a.wheel.admitted_stores()[-1] == (2, {**STORES, "c": b"c" * 16})
    a.wheel.commit(2)
    a.ship(b)
    assert b.wheel.admitted_stores() == [(2, {**STORES, "c": b"c" * 16})]


def test_a_directory_knows_its_group_from_the_first_commit_on(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    assert [one.wheel.group_key for one in peers] == [None, None]
    a.lead(1)
    a.ship(b, commit=0)
    key = a.wheel.group_key
    assert [key is None, b.wheel.group_key] == [False, None]
    b.wheel.commit(a.wheel.commit_index)
    for one in peers:
        assert one.wheel.group_key == key
        one.reopen()
        assert one.wheel.commit_index == 0
        assert one.wheel.group_key == key


def test_no_epoch_begins_on_a_log_that_lost_its_end(
    peers: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes back what was received, in the moment in which this peer is elected."""
    a, b = peers
    a.lead(1)
    a.ship(b)
    a.send((NOW + 1, "t", b"x"))
    a.sync()
    b.wheel.receive([over_the_wire(entry) for entry in a.wheel.entries(2, 2, 1000)])
    with monkeypatch.context() as patch:
        journal = b.wheel._log.journal

        def full(entries: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        patch.setattr(journal, "append", full)
        b.wheel.write_pending(0)
    with pytest.raises(LookupError, match="ends at 1, not at 2"):
        b.wheel.lead(2, STORES, NOW, after=2)
    assert b.wheel.log_view().placed == 1, "its place was not given to another"
    b.wheel.lead(2, STORES, NOW, after=1)


def test_an_early_receipt_is_none_for_who_waits_for_the_majority(
    peers: tuple[Peer, Peer],
) -> None:
    a, _ = peers
    a.lead(1)
    rows = batch([(NOW, "t", b"x")])
    early = a.wheel.append(rows, NOW, producer=7, sequence=0, early=True)
    a.sync()
    assert early.done()
    for _ in range(2):
        again = a.wheel.append(rows, NOW, producer=7, sequence=0)
        assert not again.done()
    assert a.wheel.append(rows, NOW, producer=7, sequence=0, early=True).done()
    a.wheel.commit(a.wheel.log_view().durable)
    assert again.result(0) == early.result(0)


def test_a_cancel_that_outlives_its_epoch_decides_nothing(peers: tuple[Peer, Peer]) -> None:
    """It waits for the sink's answer while another master delivers the row and hands back."""
    a, b = peers
    a.lead(1)
    sent = a.send((NOW + 100, "t", b"x"))
    a.commit()
    target = a.wheel.mint.one(NOW + 100, sent.result(0).base_offset)
    first = a.wheel.dispatcher
    chunk = next_chunk(a, NOW + 200)
    assert first is not None
    assert chunk is not None
    a.ship(b)
    failed: list[BaseException] = []

    def cancel() -> None:
        try:
            a.wheel.cancel([target], NOW + 200)
        except NotMaster as error:
            failed.append(error)

    asked = threading.Thread(target=cancel, daemon=True)
    asked.start()
    time.sleep(0.2)
    a.wheel.stand_by("b")
    b.lead(2)
    assert delivered(b, NOW + 200) == [b"x"]
    b.mark(NOW + 500)
    b.ship(a)
    b.wheel.stand_by("a")
    a.lead(3)
    first.answer(chunk, np.zeros(1, np.bool_), sink_down=True)
    asked.join(60)
    assert failed
    a.commit()
    assert a.wheel.status().cancelled == 0


def test_late_rows_of_an_older_epoch_find_a_mark_that_reaches_them(
    peers: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks found have no reach, and no row is to come that would extend it."""
    a, b = peers
    encode = Marks.encode
    with monkeypatch.context() as patch:
        patch.setattr(Marks, "encode", lambda marks: as_version_1(encode(marks)))
        a.lead(1)
        master_of(a.wheel).next_chunk(NOW + 5_000)
        master_of(a.wheel).append_mark(NOW + 5_000, at_once=True)
        a.send((NOW - 1_000, "t", b"late"))
        a.commit()
        a.ship(b)
    b.lead(2)
    assert delivered(b, NOW + 6_000) == [b"late"]


def spilled_slot(peer: Peer, second: int, *values: bytes) -> None:
    peer.send(*((second * TICK_MS + n, "t", value) for n, value in enumerate(values)))
    peer.commit()
    peer.wheel.spill(NOW, everything=True)


def test_a_slot_is_made_anew_though_others_were_spilled_meanwhile(
    peers: tuple[Peer, Peer],
) -> None:
    a, b = peers
    second = NOW // TICK_MS + 60
    a.lead(1)
    spilled_slot(a, second, b"1", b"2")
    a.ship(b)
    damaged = find_damage(a, second)
    rows = b.wheel.slot_rows(second, damaged.upto)
    spilled_slot(a, second + 1, b"another slot")
    assert heal(a, damaged, rows)
    assert a.wheel.damaged() == {}


def test_a_slot_that_grows_while_it_is_made_anew_keeps_what_it_got(
    peers: tuple[Peer, Peer],
) -> None:
    """Else the file of a day, to which each spill adds, would never be mended."""
    a, b = peers
    second = NOW // TICK_MS + 60
    a.lead(1)
    spilled_slot(a, second, b"1", b"2")
    a.ship(b)
    damaged = find_damage(a, second)
    rows = b.wheel.slot_rows(second, damaged.upto)
    for value in (b"3", b"4"):
        spilled_slot(a, second, value)
    assert heal(a, damaged, rows)
    assert a.wheel.damaged() == {}
    a.ship(b)
    whole = list(b.wheel.slot_rows(second, damaged.upto + 2).blocks)
    assert list(a.wheel.slot_rows(second, damaged.upto + 2).blocks) == whole
    damaged = find_damage(a, second)
    spilled_slot(a, second, b"5")
    path = a.path / path_of(second)
    flip(path, path.stat().st_size - 20)
    with pytest.raises(Damaged, match="CRC-32C"):
        heal(a, damaged, b.wheel.slot_rows(second, damaged.upto))
    a.ship(b)
    [damaged] = a.wheel.damaged_ranges()
    assert heal(a, damaged, b.wheel.slot_rows(second, damaged.upto)), "all of it anew"


def test_a_slot_with_a_loss_is_made_anew_again_with_it_and_without(
    peers: tuple[Peer, Peer],
) -> None:
    a, b = peers
    second = NOW // TICK_MS + 60
    a.lead(1)
    spilled_slot(a, second, b"1", b"2", b"3")
    a.ship(b)
    lost = Loss(second, 1, 0, "damaged/there")
    for _ in range(2):
        damaged = find_damage(a, second)
        [whole] = b.wheel.slot_rows(second, damaged.upto).blocks
        assert heal(a, damaged, SlotRows(second, [whole.slice(1)], [lost]))
        assert a.wheel.status().pending == 2
        assert a.state.load().losses == [replace(lost, kept="")]
    assert heal(a, find_damage(a, second), SlotRows(second, [whole]))
    assert a.wheel.status().pending == 3
    assert a.state.load().losses == []
    assert a.state.load().checkpoint.rows == 3


def test_a_file_that_grew_while_it_was_read_is_not_called_sound(peers: tuple[Peer, Peer]) -> None:
    a, _ = peers
    second = NOW // TICK_MS + 60
    a.lead(1)
    spilled_slot(a, second, b"x" * 40_000)
    a.wheel.scrubber.turn(20_000)  # half of it
    spilled_slot(a, second, b"y")
    storage = a.wheel._storage
    info = storage.catalog[second]
    storage.note_damage(second, info, Damaged("there", info.length - 9, expected="y", found="z"))
    a.wheel.scrubber.turn(30_000)
    assert list(a.wheel.damaged()) == [second]


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_what_was_cancelled_is_known_to_the_next_master_though_its_slot_is_gone(
    peers: tuple[Peer, Peer], *, by_snapshot: bool
) -> None:
    """A standby spills and cleans for itself, and keeps what was cancelled; a snapshot has it."""
    a, b = peers
    a.lead(1)
    first = a.send((NOW + 50, "t", b"x"), (NOW + 50, "t", b"y"))
    a.commit()
    targets = [a.wheel.mint.one(NOW + 50, first.result(0).base_offset + n) for n in range(2)]
    assert a.wheel.cancel(targets[:1], NOW, 0.0) == [CancelAnswer.UNKNOWN], "not committed in time"
    a.commit()
    assert delivered(a, NOW + 5_000) == [b"y"]
    a.mark(NOW + 5_000)
    if not by_snapshot:
        a.ship(b)
    for one in (a, b):
        one.wheel.spill(NOW + 5_000, everything=True)
        one.wheel.clean(NOW + 5_000)
        assert not any((one.path / "slots").iterdir())
    if by_snapshot:
        b.wheel.promise(1, "a", False)
        sink = b.wheel.snapshot_sink()
        with a.wheel.snapshot() as source:
            sink.begin()
            sink.header(source.header())
            b.wheel.install(sink.finish())
    b.reopen()
    b.wheel.commit(a.wheel.commit_index)
    b.lead(2)
    answers = b.wheel.cancel(targets, NOW + 5_000, 0.0)
    assert answers == [CancelAnswer.CANCELLED, CancelAnswer.UNKNOWN]


def test_a_mark_that_is_set_back_is_so_for_all_peers(peers: tuple[Peer, Peer]) -> None:
    """The master's clock was a day ahead; the next one's is right, and its operator says so."""
    a, b = peers
    day = 24 * 3_600_000
    a.lead(1)
    a.send((NOW + 1, "t", b"early"))
    a.commit()
    assert delivered(a, NOW + day) == [b"early"]
    master_of(a.wheel).queue_mark(NOW + day)
    a.commit()
    a.ship(b)
    a.wheel.stand_by()
    b.lead(2)
    b.send((NOW + 10, "t", b"x"))
    b.commit()
    with pytest.raises(ClockBehind):
        master_of(b.wheel).next_chunk(NOW + 10)
    assert master_of(b.wheel).set_back(NOW + 10)
    assert delivered(b, NOW + 10) == [b"x"]
    master_of(b.wheel).queue_mark(NOW + 500)
    b.commit()
    a.wheel.cut_after(a.wheel.commit_index)
    b.ship(a)
    b.wheel.stand_by()
    a.lead(3)
    a.send((NOW + 20, "t", b"y"))
    a.commit()
    assert delivered(a, NOW + 600) == [b"y"]
