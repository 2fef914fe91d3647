"""A whole group of peers in one thread, with every fault there is, by a seed.

Theory: the core has no clock and no socket, so its world can be made up: time jumps from event to
event, the network loses, delays, repeats and reorders, disks fill up or are taken away, power fails
between any two steps. The same seed gives the same story. The referee looks at every step; at the
end everything is healed, and the group must come to agree again within a bounded time.

What is not modelled: peers that lie, disks that forget what they have synced, and more stores lost
than a group can lose (the world takes another disk only when a majority of voters stays).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.messages import HardState, PeerMessage
from slotwheel.replication.rules.timing import Timing
from support.simpeer import SimPeer
from support.simreferee import Disk, Item, Referee, Sent, Violation

# Shorter than in life, so that more happens in a schedule; the proportions are alike.
TIMING = Timing(
    heartbeat_s=0.1, lease_s=0.3, promise_s=0.4, election_spread_s=0.25, hand_over_s=0.15
)
DRIFT = 0.05
HEALED_WITHIN_S = 12.0
"""After the faults: a master, and a new entry committed everywhere."""


@dataclass(frozen=True)
class Scene:
    """What may happen, and how often. Rates are faults a second."""

    peers: int = 3
    seconds: float = 4.0
    founded: bool = True
    """The group begins with a first entry everywhere; otherwise it must be founded."""
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    """Share of messages that take up to a second."""
    power_in_step: float = 0.0
    """Probability of a power cut between any two steps of a driver."""
    cut: float = 0.0
    one_way: float = 0.0
    crash: float = 0.0
    power: float = 0.0
    pause: float = 0.0
    wipe: float = 0.0
    put_back: float = 0.0
    full: float = 0.0
    hand_over: float = 0.0
    compact: float = 0.0
    propose: float = 8.0
    slow_disk: float = 0.0
    """Share of disk operations that take up to 0.2 s."""
    slow_fetch: float = 0.0
    """Share of snapshots that take up to 3 s."""
    at_master: float = 0.0
    """Share of faults that hit a master, if there is one."""
    newborn: float = 0.0
    """Probability that a new master is cut off soon after it has won."""
    blink: float = 0.0
    """Probability that a standby is started anew just before it is asked for its vote."""
    restart_s: float = 1.5
    """A peer that crashed is back after at most so long."""


RATES = (
    "cut",
    "one_way",
    "crash",
    "power",
    "pause",
    "wipe",
    "put_back",
    "full",
    "hand_over",
    "compact",
    "propose",
)
MOST = Scene(
    loss=0.2,
    repeat=0.2,
    late=0.2,
    power_in_step=0.004,
    cut=1.0,
    one_way=1.0,
    crash=1.0,
    power=1.0,
    pause=0.8,
    wipe=0.5,
    put_back=0.5,
    full=0.5,
    hand_over=0.6,
    compact=2.0,
    propose=10.0,
    slow_disk=0.2,
    slow_fetch=0.3,
    at_master=0.7,
    newborn=0.5,
    blink=0.2,
)


def any_scene(rng: Random) -> Scene:
    """Some of the faults, each as often as chance will have it."""
    chosen: dict[str, Any] = {}
    for field in fields(Scene):
        most = getattr(MOST, field.name)
        if field.name in {"peers", "seconds", "founded", "propose", "restart_s"}:
            continue
        chosen[field.name] = most * rng.random() if rng.random() < 0.5 else 0.0
    return Scene(
        peers=5 if rng.random() < 0.2 else 3,
        seconds=rng.uniform(2.0, 5.0),
        founded=rng.random() < 0.75,
        **chosen,
    )


class Callers:
    """Programs that send a request and wait. Those that reach a master in one turn share an entry.
    Each sends the same again, to any master, until it has the receipt, which may be lost."""

    def __init__(self, rng: Random, referee: Referee) -> None:
        self._rng = rng
        self._referee = referee
        self._sequences = dict.fromkeys(range(1, 6), 0)

    def sent(self, known: Collection[Sent]) -> Sequence[Sent]:
        """What a master takes in one turn that has ``known`` in its log."""
        rng, found = self._rng, []
        for caller in rng.sample(list(self._sequences), rng.randint(1, 4)):
            if (caller, self._sequences[caller]) in self._referee.stored and rng.random() < 0.7:
                self._sequences[caller] += 1
            one = caller, self._sequences[caller]
            if one not in known:
                found.append(one)
        return found


class World:
    def __init__(self, seed: int, scene: Scene, core_class: type[Core] = Core) -> None:
        self.rng = Random(seed)
        self.scene = scene
        self.now = 0.0
        self.timing = TIMING
        self.tick_s = 0.04
        self.names = list("abcde"[: scene.peers])
        self.referee = Referee(self.names)
        self.leases: dict[str, float] = {}
        self.notes: list[str] | None = None
        self.steps = 0
        self.healed = False
        self._cuts: set[tuple[str, str]] = set()
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self._values = 0
        self._stores = 0
        self.callers = Callers(Random(seed), self.referee)
        self.names_rng = Random(seed)
        self.peers = {name: SimPeer(self, name, core_class) for name in self.names}
        for peer in self.peers.values():
            self._new_store(peer)
            self._new_clock(peer)
        if scene.founded:
            self._found()
        for peer in self.peers.values():
            peer.start()
        self._rates = [getattr(scene, name) for name in RATES]
        self._rate = sum(self._rates)
        self._next_fault()

    # The story

    def run(self) -> None:
        """Errors: ``Violation``."""
        self._until(self.scene.seconds)
        self._heal()
        end = self.now + HEALED_WITHIN_S
        self._values += 1
        mark = -self._values
        while not self._agree(mark):
            if self.now > end:
                raise Violation("no agreement after all was healed")
            self._until(min(self.now + 0.25, end + 0.01))

    def _until(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, do, what = heapq.heappop(events)
            self.steps += 1
            do(what)
        self.now = end

    def _heal(self) -> None:
        self.healed = True
        self.scene = replace(
            self.scene,
            loss=0.0,
            repeat=0.0,
            late=0.0,
            power_in_step=0.0,
            slow_disk=0.0,
            slow_fetch=0.0,
            newborn=0.0,
            blink=0.0,
        )
        self._cuts.clear()
        for peer in self.peers.values():
            peer.full = False
            peer.paused_until = 0.0
            if not peer.up:
                peer.start()

    def _agree(self, mark: int) -> bool:
        """Whether all peers have committed the entry ``mark``; it is proposed when possible."""
        committed = self.referee.committed
        where = next((i for i, item in enumerate(committed, 1) if item.value == mark), 0)
        if where:
            return all(peer.core.commit >= where for peer in self.peers.values()) and all(
                peer.core.hard.voter and self.referee.admitted[name] == peer.store
                for name, peer in self.peers.items()
            )
        for peer in self.peers.values():
            if peer.core.may_propose and peer.core.leased(peer.clock()):
                peer.own.append((None, mark, (), None))
                peer._write_soon()
        return False

    # What peers ask of the world

    def at(self, time: float, do: Callable[[Any], None], what: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, do, what))

    def after(self, delay: float, do: Callable[[Any], None], what: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, do, what))

    def new_value(self) -> int:
        self._values += 1
        return self._values

    def note(self, text: str) -> None:
        if self.notes is not None:
            self.notes.append(f"{self.now:.3f} {text}")

    def send(self, message: PeerMessage) -> None:
        rng, scene = self.rng, self.scene
        if self.notes is not None:
            self.note(f"    {message}")
        if (message.sender, message.to) in self._cuts or rng.random() < scene.loss:
            return
        to = self.peers[message.to]
        delay = 0.001 + 0.01 * rng.random()
        if rng.random() < scene.late:
            delay = rng.random()
        self.after(delay, to.deliver, message)
        if scene.repeat and rng.random() < scene.repeat:
            self.after(rng.random() ** 3, to.deliver, message)

    def is_cut(self, sender: str, to: str) -> bool:
        return (sender, to) in self._cuts

    def cuts_power(self) -> bool:
        return self.scene.power_in_step > 0 and self.rng.random() < self.scene.power_in_step

    def disk_delay(self) -> float:
        if self.scene.slow_disk and self.rng.random() < self.scene.slow_disk:
            return self.rng.random() * 0.2
        return 0.002 + 0.01 * self.rng.random()

    def notice_delay(self) -> float:
        return 0.0 if self.rng.random() < 0.7 else self.rng.random() * 0.02

    def fetch_delay(self) -> float:
        if self.scene.slow_fetch and self.rng.random() < self.scene.slow_fetch:
            return self.rng.random() * 3.0
        return self.rng.random() ** 2

    def crash(self, peer: SimPeer, *, power: bool) -> None:
        self.note(f"{peer.name} {'loses power' if power else 'is killed'}")
        peer.stop(power=power)
        self._new_clock(peer)
        self.after(self.rng.random() ** 2 * self.scene.restart_s, self._restart, (peer, peer.boot))

    def won(self, peer: SimPeer) -> None:
        """There is a new master."""
        if self.scene.newborn and self.rng.random() < self.scene.newborn:
            others = [name for name in self.names if name != peer.name]
            links = {(peer.name, name) for name in others} | {(name, peer.name) for name in others}
            self.after(self.rng.random() * 0.15, self._cut, links)

    def blinks(self) -> bool:
        return self.scene.blink > 0 and self.rng.random() < self.scene.blink

    # Faults

    def _next_fault(self) -> None:
        if self._rate:
            self.after(self.rng.expovariate(self._rate), self._fault, None)

    def _fault(self, _: None) -> None:
        if self.healed:
            return
        kind = self.rng.choices(RATES, self._rates)[0]
        peer = self.peers[self.rng.choice(self.names)]
        if self.scene.at_master and self.rng.random() < self.scene.at_master:
            masters = [one for one in self.peers.values() if one.up and one.core.progress]
            peer = self.rng.choice(masters or [peer])
        if kind != "propose":
            self.note(f"fault: {kind} {peer.name}")
        getattr(self, f"_do_{kind}")(peer)
        self._next_fault()

    def _do_propose(self, _: SimPeer) -> None:
        for peer in self.peers.values():
            peer.propose(self.rng.randint(1, 3))

    def _do_cut(self, peer: SimPeer) -> None:
        """Some peers on one side, the others on the other."""
        side = {name for name in self.names if self.rng.random() < 0.4} or {peer.name}
        self._cut({(a, b) for a in self.names for b in self.names if (a in side) != (b in side)})

    def _do_one_way(self, peer: SimPeer) -> None:
        others = [name for name in self.names if name != peer.name and self.rng.random() < 0.6]
        if self.rng.random() < 0.5:
            self._cut({(peer.name, other) for other in others})
        else:
            self._cut({(other, peer.name) for other in others})

    def _cut(self, links: set[tuple[str, str]]) -> None:
        if self.healed:
            return
        self._cuts |= links
        self.after(self.rng.random() * 1.5, self._mend, links)

    def _mend(self, links: set[tuple[str, str]]) -> None:
        self._cuts -= links

    def _do_crash(self, peer: SimPeer) -> None:
        if peer.up:
            self.crash(peer, power=False)

    def _do_power(self, peer: SimPeer) -> None:
        if peer.up:
            self.crash(peer, power=True)

    def _do_pause(self, peer: SimPeer) -> None:
        peer.paused_until = max(peer.paused_until, self.now + self.rng.random() * 1.2)

    def _do_hand_over(self, _: SimPeer) -> None:
        for peer in self.peers.values():
            peer.hand_over()

    def _do_compact(self, peer: SimPeer) -> None:
        peer.compact()

    def _do_full(self, peer: SimPeer) -> None:
        peer.full = True
        self.after(self.rng.random(), self._has_room, peer)

    def _has_room(self, peer: SimPeer) -> None:
        peer.full = False

    def _do_wipe(self, peer: SimPeer) -> None:
        """Its machine is replaced."""
        if self._may_lose(peer):
            self._take_out(peer)
            self._new_store(peer)
            self.note(f"{peer.name} is {peer.store.hex()[:4]} now")

    def _do_put_back(self, peer: SimPeer) -> None:
        """A disk that was taken out before comes back."""
        if peer.old and self._may_lose(peer):
            chosen = peer.old.pop(self.rng.randrange(len(peer.old)))
            self._take_out(peer)
            peer.store, peer.disk = chosen
            self.note(f"{peer.name} is {peer.store.hex()[:4]} again")

    def _take_out(self, peer: SimPeer) -> None:
        if peer.up:
            self.crash(peer, power=True)
        peer.old.append((peer.store, peer.disk))

    def _may_lose(self, peer: SimPeer) -> bool:
        """Whether the group survives the loss of this peer's store: without it, and without those
        that are not admitted voters now, or by an admission under way, there must be a majority."""
        admitted = self.referee.admitted
        under_way = [admitted] if admitted else []
        for other in self.peers.values():
            under_way += other.configurations_behind(len(self.referee.committed))
        lost = {peer.name}
        for other in self.peers.values():
            hard = other.disk.hard
            assert isinstance(hard, HardState)
            if any(stores.get(other.name) != other.store for stores in under_way):
                lost.add(other.name)
            # A disk that was put back may not know yet that it was left out meanwhile.
            if admitted and not (hard.voter and other.disk.last >= self.referee.admitted_at):
                lost.add(other.name)
            if not admitted and other.old:
                lost.add(other.name)
        return len(lost) <= (len(self.names) - 1) // 2

    def _restart(self, what: tuple[SimPeer, int]) -> None:
        peer, boot = what
        if not peer.up and peer.boot == boot:
            peer.start()

    # Beginnings

    def _new_store(self, peer: SimPeer) -> None:
        self._stores += 1
        peer.store = self._stores.to_bytes(16, "big")
        peer.disk = Disk(HardState())
        self.referee.disks[peer.store] = peer.disk

    def _new_clock(self, peer: SimPeer) -> None:
        peer.offset = self.rng.random() * 1000 - self.now
        peer.rate = 1.0 + DRIFT * (2 * self.rng.random() - 1)

    def _found(self) -> None:
        stores = {name: peer.store for name, peer in self.peers.items()}
        first = Item(1, stores, 0)
        self.referee.made(1, first, 0)
        for peer in self.peers.values():
            peer.disk.hard = HardState(1, "a", True)
            peer.disk.items.append(first)
            peer.disk.durable = 1
            self.referee.voted(peer.store, 1, "a", founding=True, disk=peer.disk)
        self.referee.won("a", 1, self.peers["a"].disk, stores, founding=True)
        self.referee.advanced("a", self.peers["a"].disk, 1, 0, 1)


def play(seed: int, core_class: type[Core] = Core, scene: Scene | None = None) -> World:
    """One schedule from beginning to end. Errors: ``Violation``, or what broke, with the seed."""
    rng = Random(seed)
    number = rng.getrandbits(60)
    chosen = scene or any_scene(rng)
    world = World(number, chosen, core_class)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}, after {world.now:.3f} s: {chosen}")
        raise
    return world
