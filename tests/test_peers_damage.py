"""Files of running peers are damaged: they are made anew from what the others have."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from slotwheel.client import Client
from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.journal.segment import SEGMENT_BYTES
from slotwheel.wheel.protocol import CLOCK, CLOCK_ACCEPT
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, nested, path_of, slot_with, stem_of
from slotwheel.wheel.state import LmdbState, SlotInfo
from support.arrivals import EmbeddedArrivals
from support.damage import flip
from support.fardirs import FarGroup, far_group
from support.nodeprocess import run_cli
from support.peers import PEERS, PeerProcess, Peers
from support.promises import Arrival
from support.stopwatch import Stopwatch
from support.waiting import now_ms
from support.wallclock import WallClock
from support.wheels import batch

SMALL = (
    *("--segment-bytes", "64K", "--tail-age", "500ms", "--tail-keep", "200ms"),
    *("--peer-journal", "64K"),
)

AWAKE_MS = 4_000
"""So long before it is due a slot is not being read yet."""


@pytest.fixture
def clocks(tmp_path: Path) -> dict[str, WallClock]:
    return {name: WallClock(tmp_path / f"clock-{name}") for name in PEERS}


@pytest.fixture
def peers(tmp_path: Path, clocks: dict[str, WallClock]) -> Iterator[Peers]:
    variables = {name: clock.variables for name, clock in clocks.items()}
    with Peers(tmp_path, *SMALL, variables=variables) as started:
        started.wait_until_whole()
        yield started


class Sender:
    """Messages of one second, numbered on."""

    def __init__(self, peers: Peers, second: int, first: int = 0) -> None:
        self._peers = peers
        self.second = second
        self.count = first

    def send(self, count: int) -> None:
        numbers = range(self.count, self.count + count)
        rows = [(self.second * 1000 + n % 1000, "t", b"%d" % n) for n in numbers]
        with Client(self._peers.addresses, timeout_s=30) as client:
            client.send_table(batch(rows)).result(60)
        self.count += count

    def spilled(self, node: PeerProcess) -> SlotInfo:
        state = LmdbState(node.data, readonly=True)
        try:
            return state.load().slots.get(self.second, SlotInfo(0, 0, 0, -1, 0))
        finally:
            state.close()

    def wait_until_spilled(self) -> None:
        nodes = self._peers.nodes.values()
        all_have = lambda: all(self.spilled(node).rows == self.count for node in nodes)  # noqa: E731
        self._peers.wait("in slot files", all_have)

    def path(self, node: PeerProcess) -> Path:
        return node.data / "slots" / f"{self.second}.arrows"

    def arrivals(self, wanted: int) -> list[int]:
        arrivals = EmbeddedArrivals([self._peers[name].data for name in PEERS], ["t"])
        have = lambda: len({one.number for one in arrivals.look()}) >= wanted  # noqa: E731
        try:
            self._peers.wait("delivered", have)
            assert all(one.at_ms >= one.due for one in arrivals.all)
            return [one.number for one in arrivals.all]
        finally:
            arrivals.close()


def is_ready(node: PeerProcess) -> bool:
    return node.get("/readyz")[0] == 200


def wait_until_mended(peers: Peers, name: str, slot: int) -> None:
    node, told = peers[name], f"slot file mended slot={stem_of(slot)} "
    peers.wait("mended", lambda: told in node.log_text())
    peers.wait("ready", lambda: is_ready(node))


def test_damage_on_two_of_three_peers_is_mended_before_it_is_due(
    peers: Peers, clocks: dict[str, WallClock]
) -> None:
    """On the master, and on a standby that spills at other moments; nobody does anything."""
    messages = Sender(peers, int(time.time()) + 120)
    messages.send(3000)
    messages.wait_until_spilled()
    master = peers.master()
    standby, sound = peers.standbys(master)
    for name in (master, standby):
        flip(messages.path(peers[name]))
    messages.send(500)  # some of them are in files and some in tails when they are asked for
    for name in (master, standby):
        wait_until_mended(peers, name, messages.second)
        assert "slot-file-damaged" in peers[name].log_text()
        assert peers[name].status()["damaged_files"] == []
    assert "slot file mended" not in peers[sound].log_text()
    messages.send(500)
    # Nobody waits for the second: the machines sleep until shortly before it.
    for clock in clocks.values():
        clock.sleep(messages.second * 1000 - AWAKE_MS - now_ms())
    numbers = messages.arrivals(4000)
    assert sorted(numbers) == list(range(4000)), "each once"
    peers.stop()
    assert peers.disagreements() == []


@pytest.mark.soak
def test_damage_again_and_again_under_load_and_kills(peers: Peers) -> None:
    """Forty rounds: messages, a bit of a file that is due soon flips on one peer, now and then a
    peer is killed. All is delivered, and in the end the peers agree."""
    rng = Random(7)
    senders: list[Sender] = []
    flipped = 0
    for number in range(40):
        for ahead in (12, 20):
            messages = Sender(peers, int(time.time()) + ahead, len(senders) * 300)
            messages.send(300)
            senders.append(messages)
        time.sleep(1.5)
        victim = peers[rng.choice(PEERS)]
        files = [one for one in (victim.data / "slots").iterdir() if _is_ahead(one, 4)]
        if files:
            flipped += 1
            flip(rng.choice(files))
        if number % 8 == 7:
            peers.wait("ready", lambda: all(map(is_ready, peers.nodes.values())))
            victim.kill()
            victim.start()
            peers.wait_until_whole()
    assert flipped > 20
    total = 300 * len(senders)
    numbers = senders[0].arrivals(total)
    assert set(numbers) == set(range(total))
    peers.wait("ready", lambda: all(map(is_ready, peers.nodes.values())))
    peers.stop()
    assert peers.disagreements() == []


def _is_ahead(path: Path, seconds: int) -> bool:
    return int(path.stem) > time.time() + seconds


def test_damage_of_a_peer_that_was_away_while_more_came_for_the_slot(peers: Peers) -> None:
    messages = Sender(peers, int(time.time()) + 3600)
    messages.send(1000)
    messages.wait_until_spilled()
    away = peers.standbys(peers.master())[0]
    peers[away].signal()
    flip(messages.path(peers[away]))
    messages.send(1000)
    peers[away].start()
    wait_until_mended(peers, away, messages.second)
    messages.wait_until_spilled()
    peers.stop()
    assert peers.disagreements() == []


def test_a_damaged_journal_is_set_aside_and_copied_from_the_others(peers: Peers) -> None:
    messages = Sender(peers, int(time.time()) + 3600)
    messages.send(20_000)
    # The end of a journal that nothing else names as durable may be torn by right.
    messages.wait_until_spilled()
    bad = peers.standbys(peers.master())[0]
    peers[bad].signal()
    flip(min((peers[bad].data / "journal").glob("*.journal")), SEGMENT_BYTES + 50)
    peers[bad].start()
    peers.wait_until_whole()
    messages.send(1000)
    messages.wait_until_spilled()
    assert len(list(peers[bad].data.glob("damaged-*"))) == 1
    peers.stop()
    assert peers.disagreements() == []


def test_what_no_peer_has_sound_is_repaired_on_one_and_mended_on_the_others(peers: Peers) -> None:
    messages = Sender(peers, int(time.time()) + 3600)
    for _ in range(2):  # two blocks of the file
        messages.send(200)
        messages.wait_until_spilled()
    peers.stop()
    for name in PEERS:
        size = messages.path(peers[name]).stat().st_size
        flip(messages.path(peers[name]), size - 40)
    peers.start()
    nodes = peers.nodes.values()
    peers.wait("told", lambda: all(node.status().get("damaged_files") for node in nodes))
    assert "slotwheel repair" in json.loads(peers["a"].get("/readyz")[1])["reasons"][-1]
    peers.stop()
    done = run_cli("repair", peers["a"].data, "--yes", "--json")
    [did] = json.loads(done.stdout)["slots"]
    lost = did["lost_ids"]
    assert did["lost"] == len(lost) == did["rows"] - did["sound"] - did["from_journal"]
    peers.start()
    peers.wait("ready", lambda: all(map(is_ready, nodes)))
    peers.stop()
    assert peers.disagreements() == []
    for name in PEERS:
        report = json.loads(run_cli("verify", peers[name].data, "--json").stdout)
        assert report["kinds"]["slot"]["rows"] == 400 - len(lost)
        told = any("a repair that lost" in one["found"] for one in report["notes"])
        assert told is bool(lost)


# -- files of hours and of days ------------------------------------------------------------------


def first_bit(path: Path) -> None:
    """Of the rows of the first block."""
    flip(path, 2_000)


def last_bit(path: Path) -> None:
    """Of the rows of the last block."""
    flip(path, path.stat().st_size - 40)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def header(path: Path) -> None:
    """The schema at the beginning is gone."""
    with path.open("r+b") as file:
        file.write(bytes(64))


@dataclass(frozen=True)
class WideDamage:
    """Damage of one peer's file of an hour or a day (``width``, s) with messages of ``day``."""

    peer: str
    day: int
    width: int
    damage: Callable[[Path], None]

    def slot(self, group: FarGroup) -> int:
        return slot_with(group.due_ms[self.day] // TICK_MS, self.width)


WIDE_DAMAGE = (
    # The first day's messages lie in files of seconds alone with the third peer.
    WideDamage("a", 0, DAY_S, first_bit),
    WideDamage("a", 0, HOUR_S, Path.unlink),  # in the time of the file before
    WideDamage("b", 0, DAY_S, last_bit),
    WideDamage("b", 1, DAY_S, half),
    WideDamage("c", 1, HOUR_S, header),
    WideDamage("c", 2, DAY_S, Path.unlink),
    WideDamage("a", 3, DAY_S, header),
    WideDamage("b", 3, DAY_S, last_bit),
)


def test_files_of_hours_and_days_are_mended_whenever_each_peer_has_spilled(
    tmp_path: Path, clocks: dict[str, WallClock]
) -> None:
    """All at once, on the master and on standbys, while more comes for these files. Then another
    peer becomes master and delivers, on time; and on later days what is due then."""
    due_ms = (now_ms() // 10_000 + 3 * 60) * 10_000
    group = far_group(tmp_path, due_ms, days=4)
    options = ("--horizon", "60d", "--tail-age", "500ms", "--tail-keep", "200ms")
    variables = {name: clock.variables for name, clock in clocks.items()}
    with Peers(tmp_path, *options, variables=variables) as peers:
        peers.wait_until_whole()
        for wide in WIDE_DAMAGE:
            wide.damage(peers[wide.peer].data / path_of(wide.slot(group)))
        count = send_more(peers, group)
        for name in PEERS:
            for slot in nested([wide.slot(group) for wide in WIDE_DAMAGE if wide.peer == name]):
                wait_until_mended(peers, name, slot)
            assert peers[name].status()["damaged_files"] == []
        first = peers.master()
        peers[first].kill()
        peers.master(other_than=first)
        peers[first].start()
        peers.wait_until_whole()
        assert not list(tmp_path.glob("*/damaged-*")), "a whole directory was set aside"
        watch = Stopwatch()
        set_clocks(clocks, due_ms - TICK_MS)
        arrivals = arrived(peers, range(0, count, len(group.due_ms)))
        late_ms = max(arrival.at_ms - arrival.due for arrival in arrivals)
        assert late_ms < 1000 * (1 + watch.stalled_s)
        set_clocks(clocks, group.due_ms[-1] + 3 * TICK_MS)
        for node in peers.nodes.values():
            assert node.ask(CLOCK, {"do": CLOCK_ACCEPT}, 60)
        arrived(peers, range(count))
        peers.stop()
        assert peers.disagreements() == []


def send_more(peers: Peers, group: FarGroup) -> int:
    """Some messages for each day of a group; returns the number of messages that it has then."""
    first = group.count
    numbers = range(first, first + 20 * len(group.due_ms))
    with Client(peers.addresses, timeout_s=30) as client:
        rows = [group.message(number) for number in numbers]
        client.send_table(batch(rows)).result(60)
    return numbers.stop


def set_clocks(clocks: dict[str, WallClock], to_ms: int) -> None:
    offset_ms = to_ms - now_ms()
    for clock in clocks.values():
        clock.set(offset_ms)


def arrived(peers: Peers, numbers: Sequence[int]) -> list[Arrival]:
    """What has been delivered once all of these messages were: they and no others, none early, and
    each once."""
    with EmbeddedArrivals([peers[name].data for name in PEERS], ["t"]) as arrivals:
        arrivals.wait_for(set(numbers))
        assert sorted(arrival.number for arrival in arrivals.all) == list(numbers)
        assert all(arrival.at_ms >= arrival.due for arrival in arrivals.all)
        return arrivals.all
