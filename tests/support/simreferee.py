"""What must hold in a simulated group, checked at every step.

The referee sees more than any peer: all disks, also of stores that were taken away, and true time.
It never asks a core what is right; what was made, voted, acknowledged and committed it has noted
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slotwheel.replication.rules.messages import EntryMeta
from slotwheel.wheel.journal.entry import (
    PARTS_VERSION,
    Entry,
    EntryKind,
    EntryPart,
    decode_entry,
    with_parts,
)
from slotwheel.wheel.journal.queued import sent_of
from slotwheel.wheel.state import StoreIds
from support.simnames import ROWS, NamedEntry, NameReferee, NameRuns

Sent = tuple[int, int]
"""A caller, and the sequence of its request."""


class Violation(AssertionError):
    """A rule of replication did not hold."""


@dataclass(frozen=True, slots=True)
class Item(EntryMeta):
    """An entry: what the core sees of it, and what stands for its bytes. ``sent``: callers and the
    sequences of their requests."""

    value: int = 0
    sent: Sequence[Sent] = ()
    named: NamedEntry | None = field(default=None, compare=False)
    _read: list[Sent] = field(default_factory=list, compare=False, repr=False)

    def read(self, index: int) -> Sequence[Sent]:
        """``sent``, as a peer finds it in the entry's bytes."""
        if not self.sent or self._read:
            return self._read
        parts = [EntryPart(caller, sequence, 1) for caller, sequence in self.sent]
        kind, count = EntryKind.ROWS, len(parts)
        if count == 1:
            made = Entry(kind, self.epoch, index, index, 1, *self.sent[0], b"")
        else:
            payload = with_parts(b"", parts)
            made = Entry(
                *(kind, self.epoch, index, index, count, 0, -1, payload), version=PARTS_VERSION
            )
        entry = decode_entry(b"".join(made.encode()), "simulated", 0)
        found = sent_of(entry, entry.parts, 0)
        self._read[:] = [(caller, known.sequence) for caller, known in found]
        return self._read


class Disk:
    """What one store holds. ``items`` begin behind ``base``; behind ``durable`` they are only
    written, and a power cut may lose them."""

    __slots__ = (
        *("base", "base_epoch", "base_stores", "checkpoint", "durable", "hard", "items"),
        "name_runs",
    )

    def __init__(self, hard: object) -> None:
        self.hard = hard
        self.base = 0
        self.base_epoch = 0
        self.base_stores: StoreIds | None = None
        self.items: list[Item] = []
        self.durable = 0
        self.checkpoint = 0
        self.name_runs = NameRuns()

    @property
    def last(self) -> int:
        return self.base + len(self.items)

    def item(self, index: int) -> Item:
        return self.items[index - self.base - 1]

    def epoch_at(self, index: int) -> int:
        return self.base_epoch if index == self.base else self.item(index).epoch

    def has_durable(self, index: int, item: Item) -> bool:
        """What was dropped from a journal was committed, and compared then."""
        if index <= self.base:
            return True
        return index <= self.durable and self.item(index) is item


class Referee:
    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes
        self.disks: dict[bytes, Disk] = {}
        """By store id; also those that were replaced."""
        self.committed: list[Item] = []
        self.stored: set[Sent] = set()
        self.names = NameReferee(self._require)
        self._committed_in: list[int] = []
        """The epoch of the first peer that knew."""
        self.masters: dict[int, str] = {}
        self.checks = 0
        self._configurations: list[tuple[int, StoreIds]] = []
        self._made: dict[tuple[int, int], tuple[Item, int]] = {}
        self._votes: dict[tuple[bytes, int], str] = {}
        self._may_vote: set[bytes] = set()

    # Logs

    def made(self, index: int, item: Item, before: int) -> None:
        """A master has made this entry behind one of the epoch ``before``."""
        old = self._made.setdefault((index, item.epoch), (item, before))
        self._require(old[0] is item, f"two entries {index} of epoch {item.epoch}")

    def received(self, index: int, item: Item, before: int) -> None:
        """Log matching, one entry at a time."""
        self._require(
            self._made.get((index, item.epoch)) == (item, before),
            f"entry {index} of epoch {item.epoch} behind one of epoch {before}: so it was not made",
        )

    def cut(self, node: str, disk: Disk, index: int) -> None:
        """A log is about to end at ``index``; not by a power cut or a full disk."""
        self._lose(disk, index, f"{node} cuts committed")
        self._require(index >= disk.base, f"{node} cuts what a snapshot holds")

    def replaced(self, node: str, disk: Disk, index: int) -> None:
        """A snapshot up to ``index`` takes the place of the log."""
        self._lose(disk, index, f"{node} loses to a snapshot committed")

    def _lose(self, disk: Disk, index: int, what: str) -> None:
        """All that is behind ``index`` goes; nothing of it may be durable there and committed."""
        for gone in range(max(index, disk.base) + 1, min(disk.durable, len(self.committed)) + 1):
            self._require(disk.item(gone) is not self.committed[gone - 1], f"{what} {gone}")

    # Elections

    def voted(self, store: bytes, epoch: int, to: str, *, founding: bool, disk: Disk) -> None:
        """A vote leaves, or a candidate asks for others' votes having given its own."""
        self._require(
            self._votes.setdefault((store, epoch), to) == to,
            f"two votes of one store in epoch {epoch}",
        )
        hard = disk.hard
        self._require(
            (getattr(hard, "epoch", -1), getattr(hard, "vote", "")) == (epoch, to),
            f"a vote in epoch {epoch} that is not on disk",
        )
        if founding:
            self._may_vote.add(store)
        self._require(store in self._may_vote, "a store votes that was never admitted")

    def won(self, node: str, epoch: int, disk: Disk, stores: StoreIds, *, founding: bool) -> None:
        self._require(
            self.masters.setdefault(epoch, node) == node,
            f"{node} and {self.masters[epoch]} are masters in epoch {epoch}",
        )
        votes = sum(self._votes.get((store, epoch)) == node for store in stores.values())
        needed = len(self.nodes) if founding else len(self.nodes) // 2 + 1
        self._require(votes >= needed, f"{node} is master with {votes} votes of admitted stores")
        for index in range(disk.base + 1, len(self.committed) + 1):
            if self._committed_in[index - 1] >= epoch:
                break  # in a later epoch: this master comes too late, and will not be heard
            self._require(
                index <= disk.last and disk.item(index) is self.committed[index - 1],
                f"{node} is master in epoch {epoch} without the committed {index}",
            )

    # Commit

    def advanced(self, node: str, disk: Disk, epoch: int, old: int, new: int) -> None:
        """A peer in ``epoch`` takes the entries ``old`` + 1 to ``new`` for committed."""
        self._require(new > old, f"{node}: commit from {old} to {new}")
        for index in range(old + 1, new + 1):
            if index <= disk.base:
                continue
            item = disk.item(index)
            if index <= len(self.committed):
                self._require(
                    item is self.committed[index - 1], f"{node} commits another entry {index}"
                )
            else:
                self._commit(index, item, epoch)

    def _commit(self, index: int, item: Item, epoch: int) -> None:
        """The first peer to take ``index`` for committed."""
        self._require(index == len(self.committed) + 1, f"{index} committed before those below")
        stores = self._configurations[-1][1] if self._configurations else item.stores
        self._require(stores is not None, "the first entry is no configuration")
        assert stores is not None
        holders = sum(self.disks[store].has_durable(index, item) for store in stores.values())
        self._require(
            holders >= len(stores) // 2 + 1, f"{index} committed with {holders} of {len(stores)}"
        )
        self._require(
            self.stored.isdisjoint(item.sent), f"{index}: what a caller sent again is stored twice"
        )
        self.stored.update(item.sent)
        if item.named is not None:
            self.names.committed(item.named, index * ROWS)
        self.committed.append(item)
        self._committed_in.append(max(epoch, self._committed_in[-1] if index > 1 else 0))
        if item.stores is not None:
            changed = {store for store in item.stores.values() if store not in stores.values()}
            self._require(len(changed) <= 1, "two stores admitted at once")
            self._configurations.append((index, item.stores))
            self._may_vote.update(item.stores.values())

    @property
    def admitted(self) -> StoreIds:
        return self._configurations[-1][1] if self._configurations else {}

    @property
    def admitted_at(self) -> int:
        return self._configurations[-1][0] if self._configurations else 0

    def acknowledged(self, node: str, disk: Disk, durable: int) -> None:
        self._require(
            durable <= disk.durable, f"{node} acknowledges {durable}, durable {disk.durable}"
        )

    def verified(self, node: str, disk: Disk, master: Disk, index: int) -> None:
        """Both logs up to ``index`` are claimed to be equal."""
        if max(disk.base, master.base) < index <= disk.last:
            self._require(
                index <= master.last and master.item(index) is disk.item(index),
                f"{node} takes {index} for verified, which its master does not have",
            )

    def leased(self, now: float, leases: Mapping[str, float]) -> None:
        """``leases``: when each peer's lease ends, in true time."""
        holders = [node for node, end in leases.items() if end > now]
        self._require(len(holders) <= 1, f"{' and '.join(holders)} act as master at {now:.3f}")

    def _require(self, holds: bool, what: str) -> None:
        self.checks += 1
        if not holds:
            raise Violation(what)
