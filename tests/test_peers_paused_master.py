"""A master that is stopped in the midst of delivering, and wakes when another one has gone on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from slotwheel.client import Client
from support.arrivals import EmbeddedArrivals
from support.peers import PEERS
from support.promises import Promised
from support.scenario import Scenario
from support.waiting import now_ms
from support.wheels import batch

TOPICS = ("one", "two")
CHUNK_ROWS = 256
SMALLER = (
    *("--segment-bytes", "256K", "--tail-age", "500ms", "--tail-keep", "200ms"),
    *("--chunk-rows", str(CHUNK_ROWS), "--peer-journal", "256K"),
)


def test_a_master_that_was_paused_inside_a_slot_sends_nothing_when_it_wakes(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """But for the chunk that it had handed to its sink when it was stopped."""
    count = 30_000
    with Scenario(tmp_path, TOPICS, *SMALLER, seed=0, names=PEERS) as scene:
        peers, second_ms = scene.peers, now_ms() + 4_000
        due = [second_ms + number * 3000 // count for number in range(count)]
        rows = [(at, TOPICS[n % len(TOPICS)], b"%d" % n) for n, at in enumerate(due)]
        with Client(peers.addresses, timeout_s=30) as client:
            receipts = client.send_table(batch(rows))
            receipts.result(60)
        promised = Promised(np.array(due, np.int64), receipts.offsets(0), topics=TOPICS)
        old = peers.wait_until_whole()
        with EmbeddedArrivals([peers[old].data], TOPICS) as sent:
            peers.wait("in the midst of it", lambda: len(sent.look()) > count // 10)
            pause = scene.faults.begin("SIGSTOP")
            pause.held = True
            peers[old].pause()
            assert len(sent.look()) < count
            new = peers.master(other_than=old)
            scene.arrivals.wait_for(set(range(count)))
            held = len(sent.look())
            pause.end_ms = now_ms()
            peers[old].resume()
            peers.wait("a standby again", lambda: peers[old].hello().get("role") != "master")
            assert peers.wait_until_whole() == new
            found = scene.finish(promised)
            woken = len(sent.look()) - held
    figure(
        f"master paused inside a slot after {held} of {count} messages: it sent {woken} more when"
        f" it woke; {found.line()}"
    )
    # What it had handed to its sink when it was stopped, and no further chunk.
    assert woken <= CHUNK_ROWS
    assert found.violations() == {}
