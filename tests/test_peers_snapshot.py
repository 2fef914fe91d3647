"""A snapshot over a slow link that breaks again and again: real processes, a link shaped like that
of a branch office, and a peer with a new disk behind it.

60 MB at 8 Mbit/s with a break of 3 s every 17 s:
``python -m pytest -m soak tests/test_peers_snapshot.py``
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from slotwheel.client import Client
from slotwheel.wheel.rows import from_columns
from support.peers import Peers

NAMES = ("a", "b", "c")
SMALL = (
    *("--segment-bytes", "1M", "--tail-age", "500ms", "--tail-keep", "200ms"),
    *("--peer-journal", "256K"),
)
LINK_BYTES_S = 1_000_000
BREAK_S = 3.0
"""Longer than a lane may be silent."""
VALUE_BYTES = 4_000
FAR_MS, SLOTS = 3_600_000, 60

Figure = Callable[[str], None]


class Branch:
    """The peer ``name`` behind a slow link to all others."""

    def __init__(self, peers: Peers, name: str) -> None:
        self.peers = peers
        self.name = name
        self._links = [
            link
            for other in peers.names
            if other != name
            for link in ((other, name), (name, other))
        ]
        self.open()

    def open(self) -> None:
        for link in self._links:
            self.peers.lab.slow(*link, LINK_BYTES_S)

    def cut(self) -> None:
        for link in self._links:
            self.peers.lab.cut(*link)

    def told(self, event: str) -> list[str]:
        """The fields of each event of that name in the peer's log."""
        return re.findall(rf" {event}(.*)$", self.peers[self.name].log_text(), re.MULTILINE)

    @property
    def received(self) -> int:
        """Bytes of the snapshot so far, by its log."""
        found = re.findall(r" bytes=(\d+)", "\n".join(self.told("snapshot-progress")))
        return int(found[-1]) if found else 0

    @property
    def lost(self) -> list[str]:
        """Attempts that ended early; not those that an offer asked for which came late."""
        return [one for one in self.told("snapshot-lost") if "is committed here" not in one]

    @property
    def installed(self) -> bool:
        return bool(self.told("snapshot-installed"))


def fill(peers: Peers, nbytes: int) -> str:
    """Slot files of about ``nbytes``, and nothing of them in a journal; the master."""
    count, batch = nbytes // VALUE_BYTES, 250
    begin = time.time_ns() // 1_000_000 + FAR_MS
    with Client(peers.addresses, timeout_s=60) as client:
        for first in range(0, count, batch):
            due = [begin + (first + row) % SLOTS * 1000 for row in range(batch)]
            values = [os.urandom(VALUE_BYTES) for _ in range(batch)]
            nothing = [None] * batch
            client.send_table(
                from_columns(due, ["t"] * batch, nothing, nothing, values, [()] * batch)
            )
        client.flush(60)
    master = peers.wait_until_whole()
    peers.wait("in slot files", lambda: peers[master].status().get("slot_rows", 0) >= count, 60)
    return master


def test_a_break_longer_than_a_lane_may_be_silent_does_not_end_a_snapshot(
    tmp_path: Path, figure: Figure
) -> None:
    size = 6_000_000
    with Peers(tmp_path, *SMALL, names=NAMES) as peers:
        master = fill(peers, size)
        name = peers.standbys(master)[0]
        peers.wipe(name)
        branch = Branch(peers, name)
        peers[name].start()
        began = time.monotonic()
        peers.wait("on its way", lambda: branch.received > size // 4, 20)
        branch.cut()
        time.sleep(BREAK_S)
        branch.open()
        peers.wait("installed", lambda: branch.installed, 60)
        took_s = time.monotonic() - began
        lanes = len(branch.told("peer-lost"))
        lost = branch.lost
        peers.lab.heal()
        peers.wait_until_whole()
        peers.stop()
        assert peers.disagreements() == []
    figure(
        f"{size} B at 8 Mbit/s, a break of 3 s: installed after {took_s:.1f} s, {lanes} lanes lost"
    )
    assert lanes > 0
    assert lost == []
