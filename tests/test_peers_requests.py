"""Requests with a key to three peers whose master is killed: sent again by others, stored once."""

from __future__ import annotations

import queue
from pathlib import Path

from slotwheel import Client, Message
from slotwheel.client.message import flatten
from slotwheel.client.receipts import Receipts
from slotwheel.wheel.request import RequestKey
from support.peers import Peers
from support.proxylab import Loopback
from support.waiting import PATIENCE_S

NAMES = ("a", "b", "c")
COUNT = 300


def ship(client: Client, number: int, done: queue.SimpleQueue[tuple[int, Receipts]]) -> None:
    two = [flatten(Message("t", b"%d" % number, delay=600)) for _ in range(2)]
    request = RequestKey.of(f"order {number}", b"%d" % number)
    client.ship(two, whole=True, request=request, done=lambda found: done.put((number, found)))


def collect(done: queue.SimpleQueue[tuple[int, Receipts]]) -> dict[int, list[str]]:
    answers = (done.get(timeout=PATIENCE_S) for _ in range(COUNT))
    return {number: receipts.result(0) for number, receipts in answers}


def test_stored_once_with_the_same_ids(tmp_path: Path) -> None:
    with Peers(tmp_path, names=NAMES, lab=Loopback(NAMES)) as peers:
        killed = peers.wait_until_whole()
        done: queue.SimpleQueue[tuple[int, Receipts]] = queue.SimpleQueue()
        with Client(peers.addresses, timeout_s=PATIENCE_S) as client:
            # One that gives up at once, as a gateway that is killed: nobody knows what is stored.
            for number in range(COUNT):
                ship(client, number, queue.SimpleQueue())
            client.close(0)
        with Client(peers.addresses, timeout_s=PATIENCE_S) as client:
            for number in range(COUNT):
                ship(client, number, done)
                if number == COUNT // 2:
                    peers[killed].kill()
            first = collect(done)
            peers[killed].start()
        peers.wait_until_whole()
        with Client(peers.addresses, timeout_s=PATIENCE_S) as client:
            for number in range(COUNT):
                ship(client, number, done)
            assert collect(done) == first
        master = peers.wait_until_whole()
        assert peers[master].status()["accepted"] == 2 * COUNT
        peers.stop()
        assert peers.disagreements() == []
