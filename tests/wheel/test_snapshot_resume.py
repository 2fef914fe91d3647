"""A snapshot that breaks off goes on where it was: what is asked for, what is sent then, and that
nothing of another snapshot, and nothing that was changed, is ever installed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.peers.snapshot import CHUNK_BYTES_MAX, SnapshotSource
from slotwheel.wheel.peers.snapshot_header import SnapshotHeader
from slotwheel.wheel.peers.snapshot_request import HeldSlot, SnapshotRequest
from slotwheel.wheel.peers.snapshot_sink import SnapshotSink
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import StateUpdate
from support.damage import assert_every_change_is_seen, flipped, of_version_at
from support.peerdirs import (
    GROUP,
    SECOND,
    Replica,
    begin_transfer,
    install,
    new_peer,
    old_peer,
    source_for,
    transfer,
)
from support.wheels import rows_at

GOLDEN = Path(__file__).parent / "golden" / "snapshot-request-v1.bin"
GOLDEN_REQUEST = SnapshotRequest(
    {-1: HeldSlot(0, 0), SECOND: HeldSlot(1 << 40, 0xFFFFFFFF), SECOND + 1: HeldSlot(7, 9)}
)
KINDS = (Damaged, UnsupportedVersion)

# -- the request


def test_the_request_of_version_1_is_read_and_written() -> None:
    data = GOLDEN.read_bytes()
    assert SnapshotRequest.decode(data) == GOLDEN_REQUEST
    assert GOLDEN_REQUEST.encode() == data


held = st.builds(HeldSlot, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), held, max_size=9))
def test_round_trip(parts: dict[int, HeldSlot]) -> None:
    request = SnapshotRequest(parts)
    assert SnapshotRequest.decode(request.encode()) == request


def test_every_change_of_a_request_is_seen() -> None:
    data = GOLDEN.read_bytes()
    of_version = of_version_at(8, 9)
    assert_every_change_is_seen(
        SnapshotRequest.decode, data, of_version=of_version, match="snapshot request"
    )


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (16, struct.pack("<I", 2)),  # fewer files than follow
        (16, struct.pack("<I", 2**32 - 1)),
        (10, b"\1"),  # reserved
        (20, b"\1"),
        (24, struct.pack("<q", SECOND)),  # the same second twice
        (24, struct.pack("<q", SECOND + 9)),  # not ascending
    ],
)
def test_a_request_that_does_not_add_up_is_refused(at: int, value: bytes) -> None:
    data = bytearray(GOLDEN.read_bytes())
    data[at : at + len(value)] = value
    struct.pack_into("<I", data, 12, crc32c(bytes(data[16:])))
    with pytest.raises(Damaged, match="snapshot request"):
        SnapshotRequest.decode(bytes(data))


def test_another_version_of_a_request_is_refused_by_name() -> None:
    data = bytearray(GOLDEN.read_bytes())
    struct.pack_into("<H", data, 8, 2)
    with pytest.raises(UnsupportedVersion, match="snapshot request; got 2; expected 1"):
        SnapshotRequest.decode(bytes(data))


# -- going on


class Counted:
    """What a sender answers with, and how many bytes of chunks that comes to."""

    def __init__(self, sender: Replica) -> None:
        self.sender = sender
        self.nbytes = 0

    def __call__(self, request: SnapshotRequest) -> SnapshotSource:
        source = source_for(self.sender)(request)
        self.nbytes += sum(len(data) for _, _, data in source.chunks(500))
        return source


def size(sender: Replica) -> int:
    return sum(map(len, sender.slot_content().values()))


def installed(peer: Replica, update: StateUpdate, sender: Replica) -> None:
    install(peer.files, peer.state, update)
    assert peer.slot_content() == sender.slot_content()
    assert "incoming" not in peer.files.list(".")
    assert peer.faults() == []


def incoming_bytes(peer: Replica) -> int:
    directory = "incoming/slots"
    return sum(
        len(peer.files.content(f"{directory}/{name}")) for name in peer.files.list(directory)
    )


def test_broken_off_after_each_chunk_only_the_rest_is_sent() -> None:
    sender = new_peer()
    chunks = list(source_for(sender)(SnapshotRequest()).chunks(500))
    for count in range(len(chunks) + 1):
        peer, counted = old_peer(), Counted(sender)
        begin_transfer(peer, source_for(sender), chunks=count)
        got = sum(len(data) for _, _, data in chunks[:count])
        assert incoming_bytes(peer) == got
        sink = begin_transfer(peer, counted)
        assert counted.nbytes == size(sender) - got
        assert (sink.received, sink.expected) == (size(sender), size(sender))
        installed(peer, sink.finish(), sender)


def test_broken_off_after_every_chunk_it_ends() -> None:
    sender, peer = new_peer(), old_peer()
    attempts = 0
    while (sink := begin_transfer(peer, source_for(sender), chunks=1)).received < sink.expected:
        attempts += 1
        assert incoming_bytes(peer) == sink.received
    assert attempts == len(list(source_for(sender)(SnapshotRequest()).chunks(500))) - 1
    installed(peer, sink.finish(), sender)


# -- what the sender does between two attempts


def grows(sender: Replica) -> Replica:
    """Spills into a slot that has been sent, into one that is being sent, and into a new one."""
    slots = SlotFiles(sender.files, 8)
    stored = sender.state.load()
    catalog = dict(stored.slots)
    for second in (SECOND, SECOND + 2, SECOND + 100):
        block = block_of(second, rows_at([(second * 1000, 31)], pad=300))
        catalog[second] = slots.append(block, catalog.get(second))
    slots.close()
    at = stored.checkpoint
    later = replace(at, index=at.index + 1, next_offset=32, rows=at.rows + 3)
    sender.state.commit(StateUpdate(checkpoint=later, slots=catalog))
    return sender


def cleans(sender: Replica) -> Replica:
    """Deletes slots that were delivered meanwhile."""
    for second in (SECOND, SECOND + 2):
        sender.files.unlink(path_of(second))
    sender.state.commit(StateUpdate(slots_deleted=[SECOND, SECOND + 2]))
    return sender


def begins_a_slot_anew(sender: Replica) -> Replica:
    """Deletes a slot and writes it again: longer, and with other bytes."""
    return grows_by_hand(cleans(sender), pad=900)


def writes_less(sender: Replica) -> Replica:
    return grows_by_hand(cleans(sender), pad=1)


def grows_by_hand(sender: Replica, pad: int) -> Replica:
    slots = SlotFiles(sender.files, 8)
    added = {}
    for second in (SECOND, SECOND + 2):
        keys = [(second * 1000 + n, 20 + n) for n in range(5)]
        added[second] = slots.append(block_of(second, rows_at(keys, pad=pad)), None)
    slots.close()
    sender.state.commit(StateUpdate(slots=added))
    return sender


def other_master(_: Replica) -> Replica:
    """A peer with the same seconds, and other bytes in them."""
    return other_peer(pad=41)


def other_peer(pad: int) -> Replica:
    sender = Replica(store=b"replica-six-0000")
    slots = {
        SECOND: [[(SECOND * 1000 + n, n) for n in range(4)]],
        SECOND + 2: [[(SECOND * 1000 + 2000 + n, 20 + n) for n in range(9)]],
    }
    sender.fill(index=9, slots=slots, entries=[], epoch=5, first_index=10, pad=pad)
    return sender


@pytest.mark.parametrize("chunks", range(0, 30, 3))
@pytest.mark.parametrize("change", [grows, cleans, begins_a_slot_anew, writes_less, other_master])
def test_the_next_attempt_is_for_what_the_sender_has_then(
    change: Callable[[Replica], Replica], chunks: int
) -> None:
    sender, peer = new_peer(), old_peer()
    first = size(sender)
    begin_transfer(peer, source_for(sender), chunks=chunks)
    kept = incoming_bytes(peer)
    sender = change(sender)
    counted = Counted(sender)
    begin_transfer(peer, counted, chunks=0)
    # What no file of the new snapshot begins with may lie there, but never more than one snapshot.
    assert incoming_bytes(peer) <= min(kept, size(sender))
    if change is grows:
        assert counted.nbytes == size(sender) - kept < first + 5000
    for more in range(1, 4):  # ends in the midst of a file, also of one that began again
        assert begin_transfer(peer, counted, chunks=more).received == incoming_bytes(peer)
    installed(peer, transfer(peer, counted), sender)


# -- what happens to the receiver's files between two attempts


def leave(peer: Replica, name: str, data: bytes) -> None:
    peer.files.make_directory("incoming/slots")
    peer.files.replace(f"incoming/slots/{name}", data)


@pytest.mark.parametrize("number", range(60))
def test_what_was_changed_in_between_is_never_installed(number: int) -> None:
    rng = Random(number)
    sender, peer = new_peer(), old_peer()
    begin_transfer(peer, source_for(sender), chunks=rng.randrange(40))
    names = peer.files.list("incoming/slots")
    left = {name: peer.files.content(f"incoming/slots/{name}") for name in names}
    for name, data in left.items():
        path = f"incoming/slots/{name}"
        how = rng.randrange(6)
        if how == 0:
            peer.files.replace(path, flipped(data, rng.randrange(len(data) * 8)))
        elif how == 1:
            peer.files.replace(path, data[: rng.randrange(len(data))])
        elif how == 2:
            peer.files.replace(path, data + rng.randbytes(rng.randrange(1, 3000)))
        elif how == 3:
            peer.files.remove(path)
        elif how == 4:
            peer.files.replace(path, left[rng.choice(names)])
    leave(peer, f"{SECOND + 5000}.arrows", b"of another snapshot")
    leave(peer, "unknown", b"of no snapshot")
    sink = begin_transfer(peer, source_for(sender))
    assert f"{SECOND + 5000}.arrows" not in peer.files.list("incoming/slots")
    installed(peer, sink.finish(), sender)


def test_there_is_room_if_there_is_room_for_what_is_missing() -> None:
    sender, peer = new_peer(), old_peer()
    begin_transfer(peer, source_for(sender), chunks=3)
    missing = size(sender) - incoming_bytes(peer)
    peer.files.free = missing - 1
    with pytest.raises(OSError, match=f"no room for {missing} bytes"):
        transfer(peer, source_for(sender))
    peer.files.free = missing
    transfer(peer, source_for(sender))


# -- a sender that errs


def resumed() -> tuple[SnapshotSink, int, SnapshotHeader]:
    """A sink that has 500 bytes of the first file, and waits for what comes behind them."""
    sender, peer = new_peer(), old_peer()
    begin_transfer(peer, source_for(sender), chunks=1)
    sink = SnapshotSink(peer.files, GROUP)
    source = source_for(sender)(sink.begin())
    header = sink.header(source.header())
    return sink, min(header.slots), header


@pytest.mark.parametrize("position", [1, 499, 501, 1000])
def test_a_file_goes_on_where_it_ends_or_at_its_beginning(position: int) -> None:
    sink, second, _ = resumed()
    with pytest.raises(Damaged, match="byte 500"):
        sink.chunk(second, position, b"x")
    sink, second, _ = resumed()
    with pytest.raises(Damaged, match="byte 0"):
        sink.chunk(second + 2, position, b"x")


def test_a_file_begins_again_once() -> None:
    sink, second, _ = resumed()
    sink.chunk(second, 500, b"x" * 10)
    assert sink.received == 510
    sink.chunk(second, 0, b"x" * 10)
    assert sink.received == 10
    with pytest.raises(Damaged, match="byte 10"):
        sink.chunk(second, 0, b"x" * 10)


def test_a_file_that_went_on_is_checked_as_a_whole() -> None:
    sink, second, header = resumed()
    rest = header.slots[second].length - 500
    with pytest.raises(Damaged, match="CRC-32C"):
        sink.chunk(second, 500, bytes(rest))


def test_a_damaged_file_of_the_sender_does_not_travel_in_two_parts() -> None:
    for bit in (8 * 100, 8 * 700):  # before, and behind what was sent
        sender, peer = new_peer(), old_peer()
        begin_transfer(peer, source_for(sender), chunks=1)
        path = path_of(SECOND)
        good = sender.slot_content()[SECOND]
        sender.files.replace(path, flipped(sender.files.content(path), bit))
        if bit < 8 * 500:
            # It was sound when it was read, and is checked where it is read now.
            update = transfer(peer, source_for(sender))
            install(peer.files, peer.state, update)
            assert peer.slot_content()[SECOND] == good
        else:
            with pytest.raises(Damaged, match=path):
                transfer(peer, source_for(sender))


def test_a_step_is_a_mebibyte_and_may_end_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, peer = new_peer(), old_peer()
    begin_transfer(peer, source_for(sender))
    monkeypatch.setattr("slotwheel.wheel.peers.snapshot_sink.CHUNK_BYTES_MAX", 100)
    assert CHUNK_BYTES_MAX == 1 << 20
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > 20:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        SnapshotSink(peer.files, GROUP).begin(step)
    assert steps == 21
