"""Requests: found by their key alone, stored once, with the ids of the first time."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidMessage, NotMaster
from slotwheel.wheel.journal.producers import SOURCE_PRODUCER, Producers
from slotwheel.wheel.peers.snapshot_header import SnapshotHeader
from slotwheel.wheel.protocol import PRODUCER_LIMIT
from slotwheel.wheel.request import BASE_LIMIT_MS, REQUEST_PRODUCER, RequestKey, is_request
from slotwheel.wheel.state import Checkpoint, ProducerEntry
from support.handpeer import Peer
from support.wheels import NOW, Node, batch, opened

CONFIG = WheelConfig(slots=60, requests_max=3, disk_reserve_bytes=0)


def request(key: str, base_ms: int = NOW, content: bytes = b"content") -> RequestKey:
    return RequestKey.of(key, content, base_ms)


def entry(index: int) -> ProducerEntry:
    return ProducerEntry(index, index * 10, 1000, index, 3)


def number(key: int) -> int:
    return REQUEST_PRODUCER | key


def send(node: Node, key: RequestKey, delay_ms: int = 5, rows: int = 2) -> list[str]:
    """Due so long after the request's base. Returns the ids."""
    due = key.base_ms + delay_ms
    given = [(due, "t", b"%d" % row) for row in range(rows)]
    receipt = node.send(given, key.base_ms or NOW, producer=key.producer, sequence=key.sequence)
    return [str(one) for one in node.ids_of(receipt)]


def appended(to: Node | Peer, key: RequestKey) -> Future[AppendReceipt]:
    rows = batch([(key.base_ms + 500, "t", b"once")])
    return to.wheel.append(rows, NOW, producer=key.producer, sequence=key.sequence)


@given(st.text(min_size=1), st.binary(), st.integers(0, BASE_LIMIT_MS - 1))
def test_a_key_goes_through_its_numbers(key: str, content: bytes, base_ms: int) -> None:
    made = RequestKey.of(key, content, base_ms)
    assert is_request(made.producer)
    assert made.producer < 1 << 64
    assert 0 <= made.sequence < 1 << 63
    assert RequestKey.from_sequence(made.producer, made.sequence) == made
    assert made.producer == RequestKey.of(key, b"other", 0).producer
    assert made.within(b"") == made
    scoped = made.within(b"orders")
    assert is_request(scoped.producer)
    assert scoped == made.within(b"orders") != made.within(b"payments") != made
    assert scoped.sequence == made.sequence


def test_producers_of_others_are_no_requests() -> None:
    assert not is_request(PRODUCER_LIMIT - 1)
    assert not is_request(SOURCE_PRODUCER | (1 << 31))


def test_requests_push_out_the_oldest_of_their_own_kind() -> None:
    producers = Producers(1, 2)
    producers.record(1, entry(1))
    for index in range(2, 6):
        producers.record(number(index), entry(index))
    assert producers.last_sequence(1) == 1
    assert [producers.find(number(index), 99) for index in (3, 4, 5)] == [None, entry(4), entry(5)]
    assert (len(producers), len(producers.requests)) == (1, 2)
    changed, gone = producers.unsaved(100)
    assert changed == {1: [entry(1)], number(4): (entry(4),), number(5): (entry(5),)}
    assert set(gone) == {number(2), number(3)}


def test_requests_are_saved_once_they_are_committed() -> None:
    producers = Producers(5, 5)
    for index in (1, 2, 3):
        producers.record(number(index), entry(index))
    found = producers.unsaved(2)
    assert found == ({number(1): (entry(1),), number(2): (entry(2),)}, [])
    producers.record(number(1), entry(4))  # meanwhile, after it was pushed out elsewhere
    producers.saved(*found)
    assert producers.unsaved(4)[0] == {number(3): (entry(3),), number(1): (entry(4),)}


def test_requests_that_were_cut_off_are_forgotten() -> None:
    producers = Producers(5, 5)
    for index in (1, 2, 3):
        producers.record(number(index), entry(index))
    producers.roll_back(1)
    assert [producers.find(number(index), 0) for index in (1, 2, 3)] == [entry(1), None, None]
    changed, gone = producers.unsaved(9)
    assert changed == {number(1): (entry(1),)}
    assert set(gone) == {number(2), number(3)}


def test_loaded_requests_keep_their_order_and_a_smaller_bound() -> None:
    producers = Producers(5, 2)
    stored = {number(9): [entry(1)], number(1): [entry(3)], number(5): [entry(2)]}
    producers.load(stored)
    producers.record(number(1), entry(3))  # found again in the journal
    assert producers.unsaved(9)[1] == [number(9)]
    producers.record(number(2), entry(4))
    assert [producers.find(number(one), 0) for one in (5, 1, 2)] == [None, entry(3), entry(4)]


def test_a_hundred_thousand_requests_fit_a_snapshot() -> None:
    stored = {number(index): [entry(index)] for index in range(100_000)}
    header = SnapshotHeader(Checkpoint(), {}, stored)
    assert SnapshotHeader.decode(header.encode()) == header


def test_a_repeat_gets_the_ids_of_the_first_time(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        first = send(node, request("k"))
        assert send(node, request("k", NOW + 700)) == first
        absolute = send(node, request("absolute", 0), NOW + 5)
        node.reopen(NOW + 1000)
        assert send(node, request("k", NOW + 2_000_000)) == first
        assert send(node, request("absolute", 0), NOW + 5) == absolute
        node.wheel.spill(NOW, everything=True)
        node.reopen(NOW + 1000)
        assert send(node, request("k", NOW - 700)) == first
        assert len(node.delivered(NOW + 5)) == 4
        assert send(node, request("k")) == first
        assert node.wheel.status().accepted == 4
        assert node.wheel.status().requests == 2


def test_a_repeat_that_overtakes_the_commit_waits_for_it(tmp_path: Path) -> None:
    first, again = request("k"), request("k", NOW + 50)
    with opened(tmp_path, CONFIG, NOW) as node:
        futures = [appended(node, one) for one in (first, again)]
        assert not any(future.done() for future in futures)
        node.sync()
        one, other = (future.result(0) for future in futures)
        assert one.base_offset == other.base_offset
        assert other.due.tolist() == [NOW + 500]
        assert other.sequence == first.sequence


@pytest.mark.parametrize(
    ("other", "rows"),
    [
        (request("k", content=b"other"), 2),
        (request("k", content=b"other"), 3),
    ],
    ids=["other content", "other number of messages"],
)
def test_a_key_stands_for_one_request(tmp_path: Path, other: RequestKey, rows: int) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        send(node, request("k"))
        with pytest.raises(InvalidMessage, match="Idempotency-Key was used"):
            send(node, other, NOW + 5 - other.base_ms, rows)
        assert node.wheel.status().pending == 2


def test_what_was_refused_leaves_its_key_free(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        with pytest.raises(InvalidMessage, match="horizon"):
            send(node, request("k"), 10_000_000)
        assert len(send(node, request("k", content=b"repaired"))) == 2


def test_a_key_is_forgotten_after_so_many_others(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        first = send(node, request("k"))
        for other in "ab":
            send(node, request(other))
        node.wheel.spill(NOW, everything=True)
        node.reopen(NOW)
        assert send(node, request("k")) == first
        send(node, request("c"))
        node.wheel.spill(NOW, everything=True)
        node.reopen(NOW)
        assert node.wheel.status().requests == 3
        assert set(send(node, request("k"))).isdisjoint(first)


@pytest.mark.parametrize("shipped", [False, True], ids=["it had it alone", "its peer had it"])
def test_a_master_that_is_gone_had_it_uncommitted(peers: tuple[Peer, Peer], shipped: bool) -> None:
    """The repeat goes to the next master. The old one comes back and gets the same."""
    first, again = request("k"), request("k", NOW + 50)
    a, b = peers
    a.lead(1)
    a.ship(b)
    before = a.wheel.commit_index
    appended(a, first)
    a.sync()
    if shipped:
        a.ship(b, before)
    a.reopen()  # as after a kill; what it has is not committed
    with pytest.raises(NotMaster):
        appended(a, first)
    b.lead(2)
    receipts = []
    for _ in range(2):
        future = appended(b, again)
        b.commit()
        receipts.append(future.result(0))
    due = NOW + 500 if shipped else NOW + 550
    assert [receipt.due.tolist() for receipt in receipts] == [[due], [due]]
    assert receipts[0].base_offset == receipts[1].base_offset
    assert b.wheel.status().pending == 1
    a.wheel.promise(2, "", True)
    if not shipped:
        a.wheel.cut_after(before)
    b.ship(a)
    a.lead(3)
    assert a.wheel.status().pending == 1
    assert appended(a, again).result(0).base_offset == receipts[0].base_offset
