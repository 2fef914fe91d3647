"""Three real wheels live through the same log, by hand and at random: appends, cancels, deliveries,
spills, cleaning, cuts, failovers, power cuts, wiped peers, snapshots. Whatever happened, each
directory is sound, all agree, and in the end everything that was promised has been delivered.

What replication decides is decided here by its rules: who leads has a log not behind that of one
other; an entry is committed when two hold it on disk and it is of the master's epoch; a wiped peer
counts for nothing before it has everything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from slotwheel.reading.agreement.compare import Agreement, compare
from slotwheel.reading.agreement.compare import PeerDirectory as Side
from slotwheel.wheel.answers import AppendReceipt, Before, CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NameTaken, NotMaster, Overloaded
from slotwheel.wheel.journal import queued
from slotwheel.wheel.journal.entry import Entry, decode_entry
from slotwheel.wheel.named.table import NameTable
from slotwheel.wheel.names import (
    IF_EXISTS_HEADER,
    NAME_HEADER,
    IfExists,
    NameKeys,
    due_and_offset,
    key_of,
)
from slotwheel.wheel.peers.peer import PeerWheel
from slotwheel.wheel.rows import from_columns
from support.crashbook import covers
from support.crashfs import MODES, CrashFiles
from support.memstate import MemoryState
from support.peerdirs import Replica
from support.wheels import batch, keys_of, master_of

START = 1_800_000_000_000
CONFIG = WheelConfig(segment_bytes=2500, peer_journal_bytes_max=4000, disk_reserve_bytes=0)
STORES = {name: name.encode() * 16 for name in "abc"}


NAMES = ["a", "b", "c", "d", "e"]


class NamedValue(NamedTuple):
    """A message that was sent under a name."""

    name: str
    mode: IfExists
    value: bytes


class NamedRow(NamedTuple):
    """A row as a peer holds it; ``name`` is empty for one without."""

    due: int
    offset: int
    value: bytes | None
    name: str
    cancels: int | None


class Node:
    """One peer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.files = CrashFiles()
        self.state = MemoryState()
        self.wheel: Any = None

    def open(self, now_ms: int) -> None:
        self.wheel = PeerWheel.open(self.files, self.state, CONFIG, now_ms, node_id=self.name)

    def crash(self, rng: Random, now_ms: int) -> None:
        self.files = self.files.survivors(rng.choice(MODES), rng)
        self.state = MemoryState(self.state.durable)
        self.open(now_ms)

    def sync(self) -> None:
        while self.wheel.write_pending(0):
            pass

    @property
    def newest(self) -> tuple[int, int]:
        """How far its log goes, as an election compares it."""
        epochs = self.wheel.epochs()
        return epochs.last_epoch, epochs.last_index

    def directory(self) -> Replica:
        return Replica(self.files, self.state)


class Group:
    """All three, and the world around them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = START
        self.nodes = [Node(name) for name in STORES]
        for node in self.nodes:
            node.open(self.now)
        self.epoch = 0
        self.count = 0
        self.asked: list[tuple[bytes, int, Future[AppendReceipt]]] = []
        self.delivered: list[bytes] = []
        self.cancelled: set[bytes] = set()
        self.maybe_cancelled: set[bytes] = set()
        self.named: list[tuple[list[NamedValue], Future[AppendReceipt]]] = []
        self.name_of: dict[bytes, str] = {}
        self.value_at: dict[int, bytes] = {}
        """Values of named messages, by offset, as far as there are receipts."""
        self.told: Counter[Before] = Counter()
        self.snapshots = self.cuts = self.failovers = 0
        self.master = self.nodes[0]
        self.acked: dict[str, int] = {}
        self.elect(self.master)
        self.ship_all()

    @property
    def standbys(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.master]

    # -- what replication does

    def elect(self, node: Node) -> None:
        """A node that is not behind both others leads from here on."""
        if node.newest < sorted(one.newest for one in self.nodes)[1]:
            node = max(self.nodes, key=lambda one: one.newest)
        self.epoch += 1
        for one in self.nodes:
            one.wheel.stand_by()
            one.wheel.promise(self.epoch, node.name, True)
        self.master = node
        self.acked = {}
        node.wheel.lead(self.epoch, STORES, self.now)
        node.sync()
        self.failovers += 1

    def ship(self, standby: Node, entries_max: int = 1000) -> None:
        """The standby gets what it lacks, perhaps not all; both learn what is committed."""
        master, wheel = self.master.wheel, standby.wheel
        match = self.match(standby)
        if match is None:
            self.snapshot(standby)
            match = self.match(standby)
            assert match is not None
        if wheel.log_view().placed > match:
            wheel.cut_after(match)
            self.cuts += 1
        last = min(master.log_view().written, match + entries_max)
        while match < last:
            found = master.entries(match + 1, last, 2000)
            wheel.receive([over_the_wire(entry) for entry in found])
            match = found[-1].index
        standby.sync()
        self.acked[standby.name] = min(match, wheel.log_view().durable)
        self.commit()
        upto = min(match, master.commit_index)
        wheel.commit(upto if entries_max > 100 else self.rng.randint(0, upto))

    def commit(self) -> None:
        master = self.master.wheel
        held = [master.log_view().durable, *self.acked.values(), 0, 0]
        index = sorted(held, reverse=True)[1]
        if master.epochs().epoch_at(index) == self.epoch:
            master.commit(index)

    def ship_all(self) -> None:
        for _ in range(2):  # the first learns of commits that the second brings about
            for standby in self.standbys:
                self.ship(standby)
        assert self.master.wheel.serving

    def match(self, standby: Node) -> int | None:
        """The last entry that both have; None if the master has dropped what comes behind it."""
        mine, theirs = self.master.wheel.epochs(), standby.wheel.epochs()
        for index in range(min(mine.last_index, theirs.last_index), -1, -1):
            epoch = mine.epoch_at(index)
            if epoch is None:
                return None
            if epoch == theirs.epoch_at(index):
                return index
        raise AssertionError("no entry in common")

    def snapshot(self, standby: Node) -> None:
        sink = standby.wheel.snapshot_sink()
        with self.master.wheel.snapshot() as source:
            sink.begin()
            sink.header(source.header())
            for chunk in source.chunks(500):
                sink.chunk(*chunk)
                if self.master.wheel.serving and self.rng.random() < 0.2:  # it goes on meanwhile
                    self.rng.choice((self.deliver, self.send_and_sync, self.wait))()
                    self.commit()
                    self.master.wheel.spill(self.now, everything=True)
                    self.master.wheel.clean(self.now)
            index, epoch, stores = standby.wheel.install(sink.finish())
        assert self.master.wheel.epochs().epoch_at(index) in (epoch, None)
        assert stores == STORES
        self.snapshots += 1

    # -- what the world does

    def send(self) -> None:
        rows = []
        for _ in range(self.rng.randint(1, 8)):
            self.count += 1
            due = self.now + self.rng.choice((-100, 5, 300, 1000, 2500, 9000, 60_000))
            rows.append((due + self.rng.randint(0, 9), "t", b"m%d" % self.count))
        try:
            future = self.master.wheel.append(batch(rows), self.now)
        except (NotMaster, Overloaded):
            return
        self.asked += [(row[2], number, future) for number, row in enumerate(rows)]

    def send_named(self) -> None:
        """Some messages of few names, each in one of the three ways."""
        sent, dues = [], []
        for _ in range(self.rng.randint(1, 4)):
            self.count += 1
            mode = self.rng.choice(list(IfExists))
            sent.append(NamedValue(self.rng.choice(NAMES), mode, b"n%d" % self.count))
            dues.append(self.now + self.rng.choice((5, 300, 2500, 9000)))
        none = [None] * len(sent)
        headers = [
            [(NAME_HEADER, row.name.encode()), (IF_EXISTS_HEADER, row.mode.encode())]
            for row in sent
        ]
        rows = from_columns(dues, ["t"] * len(sent), none, none, [r.value for r in sent], headers)
        try:
            future = self.master.wheel.append(rows, self.now)
        except (NotMaster, Overloaded, NameTaken):
            return
        self.named.append((sent, future))
        self.name_of |= {row.value: row.name for row in sent}
        self.asked += [(row.value, number, future) for number, row in enumerate(sent)]
        if self.rng.random() < 0.8:
            self.master.sync()

    def read_receipts(self) -> None:
        """Take what callers were told of names, and hold it against what has left."""
        left = []
        for sent, future in self.named:
            if not future.done():
                left.append((sent, future))
                continue
            names = {row.name for row in sent}
            if future.exception():  # it may be stored, and then others were cancelled
                self.maybe_cancelled |= {v for v, name in self.name_of.items() if name in names}
                continue
            receipt = future.result(0)
            for number, row in enumerate(sent):
                self.value_at[receipt.base_offset + number] = row.value
            for answer in receipt.named:
                self.told[answer.before] += 1
                own, before = sent[answer.row].value, self.value_at.get(answer.offset)
                if answer.before is Before.KEPT:
                    self.cancelled.add(own)
                elif answer.before is Before.REPLACED and before is not None:
                    self.cancelled.add(before)
                elif answer.before is Before.DELIVERED and before is not None:
                    assert before in self.delivered, f"{before!r} is told to be delivered"
        self.named = left

    def check_names(self) -> None:
        """On each peer at most one message of a name is pending, and its table has that one."""
        self.read_receipts()
        for node in self.nodes:
            rows = named_in(node)
            cancelled = {row.cancels for row in rows}
            marks = node.wheel._committed_marks
            pending: dict[str, list[int]] = defaultdict(list)
            for row in rows:
                gone = row.offset in cancelled or row.value in self.delivered
                if row.name and not gone and not covers(marks, "t", (row.due, row.offset)):
                    pending[row.name].append(row.offset)
            for name, offsets in pending.items():
                assert len(offsets) == 1, f"{node.name}: {offsets} are pending as {name}"
                keys = NameKeys([key_of(b"t", name.encode())])
                names = node.wheel._storage.names
                if any(queued.own and queued.names for queued in node.wheel._log.uncommitted()):
                    continue  # a master's of its next entries, which may yet be cut off
                place = names.places(keys, names.stored(keys)).get(keys[0])
                assert place is not None, f"{node.name} does not know {name}"
                at = due_and_offset(place)[1]
                assert at == offsets[0], f"{node.name}: {name} is {at}, not {offsets}"

    def send_and_sync(self) -> None:
        self.send()
        self.master.sync()

    def deliver(self) -> None:
        wheel = self.master.wheel
        for _ in range(self.rng.randint(1, 4)):
            chunk = master_of(wheel).next_chunk(self.now)
            if chunk is None:
                break
            self.delivered += chunk.rows.column("value").to_pylist()
            master_of(wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
        master_of(wheel).append_mark(self.now, at_once=True)
        self.master.sync()

    def cancel(self) -> None:
        done = [one for one in self.asked if one[2].done() and not one[2].exception()]
        if not done:
            return
        value, row, future = self.rng.choice(done)
        receipt = future.result(0)
        target = self.master.wheel.mint.one(int(receipt.due[row]), receipt.base_offset + row)
        was_delivered = value in self.delivered
        (answer,) = self.master.wheel.cancel([target], self.now, 0.0)
        assert answer is not CancelAnswer.DELIVERED or was_delivered or value in self.cancelled
        if answer is CancelAnswer.CANCELLED:
            self.cancelled.add(value)
        else:
            self.maybe_cancelled.add(value)
        self.master.sync()

    def spill(self) -> None:
        self.rng.choice(self.nodes).wheel.spill(self.now, everything=self.rng.random() < 0.6)

    def clean(self) -> None:
        self.rng.choice(self.nodes).wheel.clean(self.now)

    def wait(self) -> None:
        self.now += self.rng.choice((50, 500, 1500, 4000))

    def crash_standby(self) -> None:
        self.rng.choice(self.standbys).crash(self.rng, self.now)

    def crash_master(self) -> None:
        self.master.crash(self.rng, self.now)
        self.elect(self.rng.choice(self.nodes))

    def wipe(self) -> None:
        """A new disk: it gets everything before it counts."""
        at = self.nodes.index(self.rng.choice(self.standbys))
        for node in self.standbys:
            self.ship(node)
        self.nodes[at] = fresh = Node(self.nodes[at].name)
        self.acked.pop(fresh.name)
        fresh.open(self.now)
        fresh.wheel.promise(self.epoch, "", False)
        self.ship(fresh)

    def fail_over(self) -> None:
        if self.rng.random() < 0.7:
            self.send_and_sync()  # written, and perhaps never committed
        self.elect(self.rng.choice(self.standbys))
        if self.rng.random() < 0.5:
            self.send_and_sync()
            self.elect(self.rng.choice(self.nodes))  # and again, before anybody followed

    def ship_one(self) -> None:
        self.ship(self.rng.choice(self.standbys))

    def ship_some(self) -> None:
        self.ship(self.rng.choice(self.standbys), self.rng.randint(1, 5))

    def go_on_without_one(self) -> None:
        """One gets nothing for so long that only a snapshot can help it."""
        other = self.rng.choice(self.standbys)
        for _ in range(8):
            self.send_and_sync()
            self.ship(other)
        self.deliver()
        self.ship(other)
        self.master.wheel.spill(self.now, everything=True)

    # -- what must hold

    def agreements(self) -> list[Agreement]:
        sides = [Side(one.name, one.files, one.state.load()) for one in self.nodes]
        return [compare(one, other) for one, other in combinations(sides, 2)]

    def check(self) -> list[Agreement]:
        for node in self.nodes:
            assert node.directory().faults() == []
        self.check_names()
        found = self.agreements()
        assert [one.problems for one in found] == [[], [], []]
        return found

    def finish(self) -> None:
        self.ship_all()
        self.check()
        self.now += 100_000
        idle = 0
        while idle < 3:  # a chunk may have to wait for the mark before it, and that for the peers
            before = len(self.delivered)
            self.deliver()
            self.ship_all()
            idle = idle + 1 if before == len(self.delivered) else 0
        for found in self.check():
            assert found.last_index == self.master.wheel.log_view().written
        promised = {
            value for value, _, future in self.asked if future.done() and not future.exception()
        }
        lost = promised - set(self.delivered) - self.cancelled - self.maybe_cancelled
        assert not lost, f"never delivered: {sorted(lost)}"
        twice = self.cancelled & set(self.delivered)
        assert not twice, f"cancelled, and delivered: {sorted(twice)}"


def named_in(node: Node) -> list[NamedRow]:
    """The rows that a peer holds, of its files and its tail."""
    storage = node.wheel._storage
    blocks = [b for slot, info in storage.catalog.items() for b in storage.read_blocks(slot, info)]
    blocks += [piece.take(np.arange(piece.rows.num_rows)) for piece in storage.tail.pieces]
    rows = []
    for block in blocks:
        columns = (block.column(name).to_pylist() for name in ("value", "headers", "cancels"))
        for (due, offset), value, headers, cancels in zip(keys_of(block), *columns, strict=True):
            given = {each["key"]: each["value"] for each in headers}
            name = given.get(NAME_HEADER, b"").decode()
            rows.append(NamedRow(due, offset, value, name, cancels))
    return rows


def over_the_wire(entry: Entry) -> Entry:
    return decode_entry(b"".join(bytes(part) for part in entry.encode()), "the wire", 0)


ACTS: dict[Any, int] = {
    Group.send: 6,
    Group.send_and_sync: 12,
    Group.send_named: 12,
    Group.ship_one: 7,
    Group.ship_some: 9,
    Group.deliver: 8,
    Group.cancel: 4,
    Group.spill: 7,
    Group.clean: 4,
    Group.wait: 8,
    Group.crash_standby: 3,
    Group.crash_master: 1,
    Group.wipe: 1,
    Group.fail_over: 2,
    Group.go_on_without_one: 2,
}


def live(seed: int, acts: int) -> Group:
    group = Group(seed)
    chosen = group.rng.choices(list(ACTS), list(ACTS.values()), k=acts)
    for number, act in enumerate(chosen):
        if not group.master.wheel.serving and act in NEEDS_A_MASTER:
            group.ship_all()
        act(group)
        if number % 11 == 0:
            group.check()
    group.finish()
    return group


def live_all(seeds: range) -> None:
    for seed in seeds:
        live(seed, 60)


NEEDS_A_MASTER = (Group.deliver, Group.cancel, Group.go_on_without_one, Group.wipe)


@pytest.mark.parametrize("seed", range(8))
def test_wheels_of_one_log_agree(seed: int) -> None:
    live(seed, 60)


def test_these_lives_are_eventful() -> None:
    groups = [live(seed, 60) for seed in range(110, 113)]
    for what in ("snapshots", "cuts", "cancelled", "delivered"):
        assert any(getattr(group, what) for group in groups), what
    for before in (Before.REPLACED, Before.KEPT):
        assert any(group.told[before] for group in groups), before
    assert all(group.failovers > 1 for group in groups)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_lives(seed: int) -> None:
    live(seed, 200)


Patch = pytest.MonkeyPatch


def standbys_forget_names(patch: Patch) -> None:
    patch.setattr(queued, "_names_of", lambda piece, cancels: {})


def names_of_a_snapshot_not_read(patch: Patch) -> None:
    patch.setattr(NameTable, "rebuild", lambda self, blocks, *more: b"[]")


def kept_rows_have_the_name_on_standbys(patch: Patch) -> None:
    names_of = queued._names_of
    patch.setattr(queued, "_names_of", lambda piece, cancels: names_of(piece, None))


@pytest.mark.parametrize(
    "breakage",
    [
        standbys_forget_names,
        names_of_a_snapshot_not_read,
        kept_rows_have_the_name_on_standbys,
    ],
    ids=lambda breakage: breakage.__name__,
)
def test_a_rule_of_names_that_is_taken_out_is_noticed(
    breakage: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    breakage(monkeypatch)
    with pytest.raises(AssertionError):
        live_all(range(200, 260))
