"""One simulated peer: a core, a disk, and what a driver does between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.messages import (
    Ack,
    Append,
    HardState,
    PeerMessage,
    RequestVote,
    Vote,
)
from slotwheel.replication.rules.ready import Ready
from slotwheel.wheel.journal.epochs import Epochs
from slotwheel.wheel.state import StoreIds
from support.simnames import NamedEntry, SimNames
from support.simreferee import Disk, Item, Sent, Violation

if TYPE_CHECKING:
    from support.simulation import World


class SimPeer:
    def __init__(self, world: World, name: str, core_class: type[Core]) -> None:
        self.world = world
        self.name = name
        self.core_class = core_class
        self.disk = Disk(HardState())
        self.store = b""
        self.old: list[tuple[bytes, Disk]] = []
        """Disks that were taken out."""
        self.boot = 0
        self.up = False
        self.paused_until = 0.0
        self.full = False
        self.offset = 0.0
        self.rate = 1.0
        self.lease_seen = float("-inf")

    def clock(self) -> float:
        return self.offset + self.world.now * self.rate

    def start(self) -> None:
        """Recovery: all that was found is durable."""
        disk, world = self.disk, self.world
        disk.durable = disk.last
        self.boot += 1
        self.up = True
        self.queued: list[Item] = []
        self.own: list[tuple[StoreIds | None, int, Sequence[Sent], NamedEntry | None]] = []
        self.notices: list[tuple[int, Item]] = []
        self.writing = False
        self.sync_to = disk.durable
        self.fetching = False
        self.said = disk.checkpoint
        self.lease_seen = float("-inf")
        self.names = SimNames(disk.name_runs, world.referee.names, world.names_rng)
        epochs = Epochs(disk.base, disk.base_epoch)
        stores = [] if disk.base_stores is None else [(disk.base, disk.base_stores)]
        for index, item in enumerate(disk.items, disk.base + 1):
            epochs.append(index, item.epoch)
            if item.stores is not None:
                stores.append((index, item.stores))
        self.core = self.core_class(
            self.name,
            world.names,
            world.timing,
            store=self.store,
            hard=disk.hard,  # type: ignore[arg-type]
            epochs=epochs,
            stores=stores,
            commit=disk.checkpoint,
            now=self.clock(),
            random=random.Random(world.rng.random()),
        )
        world.after(world.rng.random() * world.tick_s, self.tick, self.boot)

    def stop(self, *, power: bool) -> None:
        """The process ends. A power cut may lose what was not synced."""
        self.up = False
        self.world.leases.pop(self.name, None)
        disk = self.disk
        if power and disk.durable < disk.last:
            keep = self.world.rng.randint(disk.durable, disk.last)
            del disk.items[keep - disk.base :]

    def configurations_behind(self, index: int) -> list[StoreIds]:
        """Those that are written, or on their way there, and not known to be committed."""
        written = [item.stores for item in self.disk.items[max(0, index - self.disk.base) :]]
        if self.up:
            written += [item.stores for item in self.queued]
            written += [stores for stores, *_ in self.own]
        return [stores for stores in written if stores is not None]

    # Events

    def tick(self, boot: int) -> None:
        if not self._can(boot, self.tick, boot):
            return
        self.core.tick(self.clock())
        self.drive()
        self.world.after(self.world.tick_s, self.tick, boot)

    def deliver(self, message: PeerMessage) -> None:
        if not self._can(self.boot, self.deliver, message):
            return
        if isinstance(message, RequestVote) and not self.core.progress and self.world.blinks():
            self.world.note(f"{self.name} blinks")
            self.stop(power=False)
            self.start()
        self.core.step(message, self.clock())
        self.drive(message)

    def propose(self, count: int) -> None:
        if self.up and self.core.may_propose and self.paused_until <= self.world.now:
            for _ in range(count):
                sent = self.world.callers.sent(self._known())
                self.own.append((None, self.world.new_value(), sent, self._decide_names()))
            self._write_soon()

    def _decide_names(self) -> NamedEntry | None:
        """What the next entry does to names. A master decides once an entry of its epoch is
        committed: until then its table lacks what the last master has committed."""
        commit, placed = self.core.commit, self.disk.last + len(self.queued) + len(self.own)
        if not self.serves_names:
            return None
        return self.names.decide(placed + 1, commit)

    @property
    def serves_names(self) -> bool:
        return self.said == self.core.commit and self.disk.epoch_at(self.said) == self.core.epoch

    def _known(self) -> set[Sent]:
        """The requests in the log of this master: it stores none of them again. What a snapshot
        holds was committed."""
        disk, own = self.disk, [one for _, _, sent, _ in self.own for one in sent]
        known = {one for item in self.world.referee.committed[: disk.base] for one in item.sent}
        log = [*disk.items, *self.queued]
        found = {one for index, item in enumerate(log, disk.base + 1) for one in item.read(index)}
        return known | found | set(own)

    def hand_over(self) -> None:
        if self.up and self.paused_until <= self.world.now:
            self.core.hand_over(self.clock())
            self.drive()

    def compact(self) -> None:
        """A checkpoint, and maybe a shorter journal."""
        if not self.up or self.paused_until > self.world.now:
            return
        disk = self.disk
        index = min(self.core.commit, disk.durable)
        if index <= disk.checkpoint:
            return
        disk.checkpoint = index
        self.names.checkpoint(index)
        keep = self.world.rng.randint(disk.base, index)
        if keep == disk.base:
            return
        for item in disk.items[: keep - disk.base]:
            if item.stores is not None:
                disk.base_stores = item.stores
        disk.base_epoch = disk.epoch_at(keep)
        del disk.items[: keep - disk.base]
        disk.base = keep
        self.core.log_begins(keep + 1)
        self.drive()

    def _can(self, boot: int, do: Callable[[Any], None], what: Any) -> bool:
        """Whether the process of that start does something now. One that is gone never does, one
        that stands still does it when it goes on."""
        if self._ended(boot):
            return False
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, do, what)
            return False
        return True

    def _ended(self, boot: int) -> bool:
        """The process that an event was meant for is gone."""
        return boot != self.boot or not self.up

    def _write_soon(self) -> None:
        if not self.writing:
            self.writing = True
            self.world.after(self.world.disk_delay(), self._write, self.boot)

    def _write(self, boot: int) -> None:
        """What was written at the last call is durable now; what was queued is written."""
        if not self._can(boot, self._write, boot):
            return
        disk = self.disk
        self.writing = False
        if self.sync_to > disk.durable:
            disk.durable = self.sync_to
            self.core.persisted(disk.durable, self.clock())
            self.drive()
            if self._ended(boot):
                return
        if self.full:
            self._cannot_write()
        else:
            disk.items += self.queued
            self.queued.clear()
            self._write_own()
        if self._ended(boot):
            return
        self.sync_to = disk.last
        if disk.durable < disk.last or self.queued or self.own:
            self._write_soon()

    def _write_own(self) -> None:
        disk = self.disk
        epoch = self.core.epoch
        for stores, value, sent, named in self.own:
            item = Item(epoch, stores, value, sent, named)
            self.world.referee.made(disk.last + 1, item, disk.epoch_at(disk.last))
            disk.items.append(item)
            self.notices.append((disk.last, item))
        if self.own:
            self.own.clear()
            self.world.after(self.world.notice_delay(), self._notice, self.boot)

    def _cannot_write(self) -> None:
        self.own = [own for own in self.own if own[0] is not None]
        self.names.lost_after(self.disk.last)
        if self.queued:
            self.queued.clear()
            self.core.write_failed(self.disk.last, self.clock())
            self.drive()

    def _notice(self, boot: int) -> None:
        """The core learns what was written; maybe too late."""
        if not self._can(boot, self._notice, boot):
            return
        for index, item in self.notices:
            self.core.appended(index, item, self.clock())
        self.notices.clear()
        self.core.persisted(self.disk.durable, self.clock())
        self.drive()

    # The driver

    def drive(self, message: PeerMessage | None = None) -> None:
        world = self.world
        while self.up and (ready := self.core.ready()) is not None:
            self._do(ready, message)
            message = None
        if self.up and self.core.lease_until != self.lease_seen:
            self.lease_seen = self.core.lease_until
            world.leases[self.name] = (self.lease_seen - self.offset) / self.rate
            world.referee.leased(world.now, world.leases)

    def _do(self, ready: Ready, message: PeerMessage | None) -> None:
        world, disk = self.world, self.disk
        if ready.hard is not None:
            disk.hard = ready.hard
        if ready.events:
            self._look(ready)
        if world.cuts_power():
            world.crash(self, power=True)
            return
        if ready.deposed:
            self.own.clear()
            self.names.lost_after(disk.last)
        if ready.truncate_after is not None:
            self._truncate(ready.truncate_after)
        if ready.receive is not None:
            assert isinstance(message, Append)
            self._receive(message, *ready.receive)
        for outgoing in ready.send:
            self._send(outgoing)
        if ready.commit is not None:
            self._commit(ready.commit)
        if ready.elected is not None:
            won = ready.elected
            world.referee.won(
                self.name, won.epoch, disk, won.stores, founding=disk.last + len(self.queued) == 0
            )
            world.won(self)
            world.note(f"{self.name} is master of {won.epoch}")
            self.own.append((won.stores, 0, (), None))
            self._write_soon()
        if ready.admit is not None:
            self.own.append((ready.admit.stores, 0, (), None))
            self._write_soon()
        if ready.fetch_from is not None and not self.fetching:
            self.fetching = True
            world.after(world.fetch_delay(), self._fetch, (self.boot, ready.fetch_from))

    def _look(self, ready: Ready) -> None:
        for name, fields in ready.events:
            self.world.note(f"{self.name} {name} {dict(fields)}")
            if name == "fault":
                raise Violation(f"{self.name} calls a message faulty: {dict(fields)}")

    def _commit(self, index: int) -> None:
        disk = self.disk
        standby = not self.core.may_propose and self.core.master != self.name
        if standby and index > disk.durable:
            raise Violation(f"{self.name}, a standby, commits {index} before it is durable")
        self.world.referee.advanced(self.name, disk, self.core.epoch, self.said, index)
        for each in range(max(self.said, disk.base) + 1, index + 1):
            self.names.committed(each, disk.item(each).named)
        self.said = index
        self.world.note(f"{self.name} commit {index}")

    def _truncate(self, index: int) -> None:
        disk = self.disk
        self.world.referee.cut(self.name, disk, index)
        self.names.lost_after(index)
        if index < disk.last:
            del disk.items[index - disk.base :]
            self.queued.clear()
        else:
            del self.queued[index - disk.last :]
        disk.durable = min(disk.durable, index)
        self.sync_to = min(self.sync_to, index)

    def _receive(self, append: Append, first: int, last: int) -> None:
        position = self.disk.last + len(self.queued)
        if first != position + 1:
            raise Violation(f"{self.name} is to write {first} behind {position}")
        before = self.queued[-1].epoch if self.queued else self.disk.epoch_at(self.disk.last)
        for index in range(first, last + 1):
            item = append.entries[index - append.prev_index - 1]
            assert isinstance(item, Item)
            self.world.referee.received(index, item, before)
            self.queued.append(item)
            before = item.epoch
        self._write_soon()

    def _send(self, message: PeerMessage) -> None:
        world = self.world
        if world.cuts_power():
            world.crash(self, power=True)
        if not self.up:
            return
        if isinstance(message, Append):
            if message.entries:
                loaded = self._load(message)
                if loaded is None:
                    return
                message = loaded
        elif isinstance(message, Ack):
            self._look_at_ack(message)
        elif isinstance(message, Vote):
            if message.granted and not message.pre:
                world.referee.voted(
                    self.store,
                    message.epoch,
                    message.to,
                    founding=message.founding,
                    disk=self.disk,
                )
        elif isinstance(message, RequestVote) and not message.pre:
            world.referee.voted(
                self.store, message.epoch, self.name, founding=message.founding, disk=self.disk
            )
        world.send(message)

    def _load(self, append: Append) -> Append | None:
        """The entries themselves in place of what the core knew of them."""
        disk = self.disk
        first, last = append.prev_index + 1, append.last_index
        if first <= disk.base:
            self.core.unsent(append.to, first, self.clock())
            return None
        items = tuple(disk.items[first - disk.base - 1 : last - disk.base])
        if [item.epoch for item in items] != [meta.epoch for meta in append.entries]:
            raise Violation(f"{self.name} ships entries it does not have")
        return Append(
            append.sender,
            append.to,
            append.store,
            append.epoch,
            append.prev_index,
            append.prev_epoch,
            items,
            append.commit,
            append.sent_at,
        )

    def _look_at_ack(self, ack: Ack) -> None:
        self.world.referee.acknowledged(self.name, self.disk, ack.durable)
        master = self.world.peers[ack.to]
        if master.up and master.core.epoch == ack.epoch and master.core.master == ack.to:
            self.world.referee.verified(self.name, self.disk, master.disk, ack.durable)

    def _fetch(self, what: tuple[int, str]) -> None:
        """A snapshot arrives, if its sender is still there."""
        boot, name = what
        if not self._can(boot, self._fetch, what):
            return
        self.fetching = False
        source = self.world.peers[name]
        if not source.up or self.world.is_cut(name, self.name):
            return
        theirs, disk = source.disk, self.disk
        index, stores = theirs.checkpoint, theirs.base_stores
        if not index:
            return
        for item in theirs.items[: index - theirs.base]:
            stores = item.stores if item.stores is not None else stores
        epoch = theirs.epoch_at(index)
        if stores is None or not self.core.wants_snapshot(index, epoch):
            return
        self.world.note(f"{self.name} installs {index} of {epoch}")
        self.world.referee.replaced(self.name, disk, index)
        disk.items.clear()
        self.queued.clear()
        disk.base = disk.durable = disk.checkpoint = self.sync_to = index
        disk.base_epoch, disk.base_stores = epoch, stores
        disk.name_runs = theirs.name_runs.copy()
        self.names.install(disk.name_runs)
        self.core.snapshot_installed(index, epoch, stores, self.clock())
        self.drive()
