"""A master that is stopped in the midst of delivering, and wakes when another one has gone on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwheel.client import Client
from slotwheel.wheel.ids import MessageId
from support.arrivals import EmbeddedArrivals
from support.peers import Peers
from support.proxylab import Loopback
from support.waiting import now_ms
from support.wheels import batch

NAMES = ("a", "b", "c")
TOPICS = ("one", "two")
CHUNK_ROWS = 256
SMALL = (
    *("--segment-bytes", "256K", "--tail-age", "500ms", "--tail-keep", "200ms"),
    *("--chunk-rows", str(CHUNK_ROWS), "--peer-journal", "256K"),
)
Figure = Callable[[str], None]


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with Peers(tmp_path, *SMALL, names=NAMES, lab=Loopback(NAMES)) as started:
        started.wait_until_whole()
        yield started


def send(addresses: str, first: int, due: list[int]) -> list[str]:
    """Messages with the numbers from ``first`` on as their values; their ids."""
    rows = [(at, TOPICS[n % len(TOPICS)], b"%d" % n) for n, at in enumerate(due, first)]
    with Client(addresses, timeout_s=30) as client:
        return client.send_table(batch(rows)).result(60)


def arrivals_of(peers: Peers, *names: str) -> EmbeddedArrivals:
    return EmbeddedArrivals([peers[name].data for name in names or NAMES], TOPICS)


def test_a_master_that_was_paused_inside_a_slot_sends_nothing_when_it_wakes(
    peers: Peers, figure: Figure
) -> None:
    """But for the chunk that it had handed to its sink when it was stopped."""
    count, second_ms = 30_000, now_ms() + 4_000
    ids = send(peers.addresses, 0, [second_ms + number * 3000 // count for number in range(count)])
    old = peers.wait_until_whole()
    sent = arrivals_of(peers, old)
    peers.wait("in the midst of it", lambda: len(sent.look()) > count // 10, 20)
    peers[old].pause()
    paused_at = len(sent.look())
    assert paused_at < count
    new = peers.master(other_than=old)
    everywhere = arrivals_of(peers)
    peers.wait("all delivered", lambda: _have(everywhere, count), 30)
    held = len(sent.look())
    peers[old].resume()
    peers.wait("a standby again", lambda: peers[old].hello().get("role") != "master", 15)
    assert peers.wait_until_whole() == new
    time.sleep(1.0)
    woken = len(sent.look()) - held
    found = everywhere.look()
    repeated = len(found) - count
    figure(
        f"master paused inside a slot after {held} of {count} messages: it sent {woken} more when"
        f" it woke, {repeated} came twice in all"
    )
    # What it had handed to its sink when it was stopped, and no further chunk.
    assert woken <= CHUNK_ROWS
    assert {(one.due, one.offset) for one in found} == {_place(one) for one in ids}
    assert min(one.at_ms - one.due for one in found) >= 0
    for arrivals in (sent, everywhere):
        arrivals.close()


def _have(arrivals: EmbeddedArrivals, count: int) -> bool:
    arrivals.look()
    return len(arrivals.numbers) == count


def _place(id_: str) -> tuple[int, int]:
    said = MessageId.parse(id_)
    return said.due, said.offset
