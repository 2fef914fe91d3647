"""A snapshot over a slow link that breaks again and again: real processes, a link shaped like that
of a branch office, and a peer with a new disk behind it.

60 MB at 8 Mbit/s with a break of 3 s every 17 s, and with breaks that no connection survives:
``python -m pytest -m soak tests/test_peers_snapshot.py``
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotwheel.client import Client
from support.peers import PEERS, Peers, lab_of
from support.waiting import now_ms
from support.wheels import batch

SMALL = (
    *("--segment-bytes", "1M", "--tail-age", "500ms", "--tail-keep", "200ms"),
    *("--peer-journal", "256K"),
)
LINK_BYTES_S = 1_000_000
BREAK_S = 3.0
"""Longer than a lane may be silent, shorter than a snapshot may be."""
VALUE_BYTES = 4_000
FAR_MS, SLOTS = 3_600_000, 60

Figure = Callable[[str], None]


class Branch:
    """The peer ``name``, which is down, behind a slow link to all others; it is started."""

    def __init__(self, peers: Peers, name: str) -> None:
        self.peers = peers
        self.node = peers[name]
        self._links = [
            link
            for other in peers.names
            if other != name
            for link in ((other, name), (name, other))
        ]
        self.open()
        self.node.start()

    def open(self, bytes_s: int = LINK_BYTES_S) -> None:
        for link in self._links:
            self.peers.lab.slow(*link, bytes_s)

    def cut(self) -> None:
        for link in self._links:
            self.peers.lab.cut(*link)

    def breaks(self, seconds: float, then_bytes_s: int = LINK_BYTES_S) -> None:
        self.cut()
        time.sleep(seconds)
        self.open(then_bytes_s)

    def told(self, event: str) -> list[str]:
        """The fields of each event of that name in the peer's log."""
        return re.findall(rf" {event} (.*)$", self.node.log_text(), re.MULTILINE)

    @property
    def received(self) -> list[int]:
        """Bytes of the snapshot by its log: at the beginning of each attempt, and every second."""
        return [int(one) for one in re.findall(r" bytes=(\d+)", "\n".join(self.told(PROGRESS)))]

    def wait_for(self, nbytes: int) -> int:
        """Until so much has come in; how many lines of progress there are by then."""
        self.peers.wait(f"{nbytes} bytes there", lambda: max(self.received, default=0) >= nbytes)
        return len(self.received)

    @property
    def lost(self) -> list[str]:
        """Attempts that ended early; not those that an offer asked for which came late."""
        return [one for one in self.told("snapshot-lost") if "is committed here" not in one]

    @property
    def installed(self) -> bool:
        return bool(self.told("snapshot-installed"))

    def finish(self) -> None:
        """Until it has all; then nothing is left of the way there, and the peers agree."""
        self.peers.wait("installed", lambda: self.installed)
        self.peers.lab.heal()
        self.peers.wait_until_whole()
        # What a late attempt has left is removed a few files at a time.
        self.peers.wait("removed", lambda: not (self.node.data / "incoming").exists())
        self.peers.stop()
        assert self.peers.disagreements() == []


PROGRESS = "snapshot-progress"


def wiped(peers: Peers, master: str) -> Branch:
    """A standby with a new disk."""
    name = peers.standbys(master)[0]
    peers.wipe(name)
    return Branch(peers, name)


@contextmanager
def filled(path: Path, nbytes: int) -> Iterator[tuple[Peers, str]]:
    """A group with slot files of about ``nbytes``, and nothing of them in a journal; its master."""
    with Peers(path, *SMALL, lab=lab_of(PEERS)) as peers:
        peers.wait_until_whole()
        send(peers, nbytes, FAR_MS)
        master = peers.wait_until_whole()
        rows = nbytes // VALUE_BYTES
        peers.wait("in slots", lambda: peers[master].status().get("slot_rows", 0) >= rows)
        yield peers, master


def send(peers: Peers, nbytes: int, after_ms: int) -> None:
    count = 250
    begin = now_ms() + after_ms
    with Client(peers.addresses, timeout_s=60) as client:
        for first in range(0, nbytes // VALUE_BYTES, count):
            rows = range(first, first + count)
            due = [begin + row % SLOTS * 1000 for row in rows]
            client.send_table(batch([(at, "t", os.urandom(VALUE_BYTES)) for at in due]))
        client.flush(60)


def test_a_snapshot_outlives_a_break_a_kill_and_its_sender(tmp_path: Path, figure: Figure) -> None:
    """The break is too long for the lanes. The kill is of the receiver. The new master's slot files
    have other bytes, perhaps; some were deleted meanwhile, others have grown."""
    size = 3_500_000
    with filled(tmp_path, size) as (peers, master):
        send(peers, size // 10, 4_000 - SLOTS * 500)  # a half of it is due soon
        branch = wiped(peers, master)
        branch.wait_for(size // 5)
        # So slow that it has not everything yet where a busy machine kills it seconds late.
        branch.breaks(BREAK_S, LINK_BYTES_S // 4)
        seen = branch.wait_for(size * 2 // 5)
        assert len(branch.told("peer-lost")) > 0
        assert branch.lost == []
        branch.node.kill()
        before = branch.received[-1]
        branch.open()
        branch.node.start()
        peers.wait("asked again", lambda: len(branch.received) > seen)
        kept = branch.received[seen]
        branch.wait_for(size * 3 // 5)
        answer = peers.step_down(master)
        assert answer is not None
        assert answer["done"], answer
        new = peers.master(other_than=master)
        send(peers, size // 10, FAR_MS + SLOTS * 500)
        peers.wait("asked the new one", lambda: _asks(branch, new))
        branch.finish()
    figure(
        f"{size} B at 8 Mbit/s: no attempt was lost in a break of 3 s; SIGKILL at {before} B, went"
        f" on at {kept} B; master {master}, then {new}, which sent the rest"
    )
    # What was delivered in between is not wanted any more.
    assert kept >= before - size // 10


def _asks(branch: Branch, sender: str) -> bool:
    return branch.told("snapshot-fetch")[-1] == f"peer={sender}"


@pytest.mark.soak
@pytest.mark.parametrize(("flows_s", "break_s"), [(14.0, 3.0), (20.0, 15.0)])
def test_sixty_megabytes_over_a_link_that_breaks_all_the_time(
    tmp_path: Path, figure: Figure, flows_s: float, break_s: float
) -> None:
    """The second kind of break is longer than a snapshot may stall: each ends an attempt."""
    size = 60_000_000
    with filled(tmp_path, size) as (peers, master):
        branch = wiped(peers, master)
        began, breaks = time.monotonic(), 0
        while not branch.installed:
            assert time.monotonic() - began < 300, peers.log_ends()
            time.sleep(flows_s)
            if not branch.installed:
                branch.breaks(break_s)
                breaks += 1
        took_s = time.monotonic() - began
        lost, lanes = branch.lost, len(branch.told("peer-lost"))
        branch.finish()
    figure(
        f"{size} B at 8 Mbit/s, a break of {break_s:g} s every {flows_s + break_s:g} s:"
        f" {took_s:.0f} s, {breaks} breaks, {lanes} lanes and {len(lost)} attempts lost"
    )
    received = branch.received
    assert received == sorted(received)
    assert (len(lost) == 0) is (break_s < 10)
