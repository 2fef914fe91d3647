"""The core's view of this peer's log: epochs, positions, and the stores that it admits.

Theory: four positions grow along the log, and every rule of replication is about one of them.
*commit*: a majority has it; it never moves back. *durable*: on this disk. *verified*: known to be
the same as in the log of the current epoch's master; up to there both logs are equal, behind it
this log may have entries that will be cut off. *last*: written, or about to be. *Example.* With
commit 5, verified 7, durable 9 and last 10 a standby acknowledges 7; its master may still cut off 8
to 10.

Rules
- A standby's commit never passes ``min(verified, durable)``: what it has announced as committed
  cannot be lost to a full disk or a power cut. A master's may be ahead of its own disk.
- Nothing at or below commit is ever cut off.
- A new epoch puts ``verified`` back to commit, as all masters agree on what is committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...wheel.journal.epochs import Epochs
from ...wheel.state import StoreIds
from .messages import EntryMeta


class LogView:
    def __init__(self, epochs: Epochs, stores: Sequence[tuple[int, StoreIds]], commit: int) -> None:
        """``stores``: the configuration entries with admitted stores, ascending: the last committed
        one and all later ones. All of ``epochs`` is durable."""
        self.epochs = epochs
        self.durable = epochs.last_index
        # Entries dropped from the journal were committed.
        self.commit = max(commit, epochs.base_index)
        self.verified = self.commit
        self.configurations = list(stores)
        self._prune()

    @property
    def last_index(self) -> int:
        return self.epochs.last_index

    @property
    def last_epoch(self) -> int:
        return self.epochs.last_epoch

    @property
    def empty(self) -> bool:
        return self.epochs.last_index == 0

    @property
    def latest(self) -> StoreIds:
        """The stores admitted by the last configuration in the log, committed or not."""
        return self.configurations[-1][1] if self.configurations else {}

    @property
    def committed(self) -> StoreIds:
        """The stores admitted by the last configuration known to be committed."""
        if self.configurations and self.configurations[0][0] <= self.commit:
            return self.configurations[0][1]
        return {}

    @property
    def settled(self) -> bool:
        """True if there is a configuration, and the last one is committed."""
        return bool(self.configurations) and self.configurations[-1][0] <= self.commit

    def admits(self, peer: str, store: bytes) -> bool:
        """True if the last committed configuration and all after it name the store."""
        return bool(self.committed) and all(
            stores.get(peer) == store for _, stores in self.configurations
        )

    @property
    def acknowledged(self) -> int:
        """The highest index that may be acknowledged to the master of this epoch."""
        return min(self.verified, self.durable)

    def covered_by(self, last_index: int, last_epoch: int) -> bool:
        """True if a log with that end has every entry of this one that may be committed."""
        return (last_epoch, last_index) >= (self.last_epoch, self.last_index)

    def persisted(self, index: int) -> None:
        """The log is on disk up to ``index``."""
        self.durable = max(self.durable, min(index, self.last_index))

    def verify(self, index: int) -> None:
        """Up to ``index`` the log is the same as the master's."""
        self.verified = max(self.verified, index)

    def doubt(self) -> None:
        """There is another master: only committed entries are in its log for sure."""
        self.verified = self.commit

    def append(self, index: int, meta: EntryMeta) -> None:
        self.epochs.append(index, meta.epoch)
        if meta.stores is not None:
            self.configurations.append((index, meta.stores))

    def cut(self, index: int) -> None:
        """Cut the log after ``index``."""
        assert index >= self.commit, f"cut after {index}, below the committed {self.commit}"
        self.epochs.truncate_after(index)
        self.durable = min(self.durable, index)
        self.verified = min(self.verified, index)
        while self.configurations and self.configurations[-1][0] > index:
            self.configurations.pop()

    def replace(self, index: int, epoch: int, stores: StoreIds) -> None:
        """A snapshot that ends at ``index`` replaced the log."""
        assert index > self.commit, f"snapshot of {index}, behind the committed {self.commit}"
        self.epochs = Epochs(index, epoch)
        self.durable = self.commit = self.verified = index
        self.configurations = [(index, stores)]

    def drop_below(self, first_index: int) -> None:
        """The journal begins at ``first_index`` now."""
        assert first_index <= self.commit + 1, f"{first_index} dropped, committed {self.commit}"
        self.epochs.drop_below(first_index)

    def advance(self, commit: int) -> bool:
        """Everything up to ``commit`` is committed. Returns True if that is new."""
        assert commit <= self.last_index, f"commit {commit} behind the end {self.last_index}"
        if commit <= self.commit:
            return False
        self.commit = commit
        self._prune()
        return True

    def metas(self, first: int, last: int) -> tuple[EntryMeta, ...]:
        """The ``EntryMeta`` of the entries ``first`` to ``last``."""
        stores = dict(self.configurations)
        if self.epochs.epoch_at(first) == self.last_epoch and not any(
            first <= index <= last for index in stores
        ):
            return (EntryMeta(self.last_epoch),) * (last - first + 1)
        result = []
        for index in range(first, last + 1):
            epoch = self.epochs.epoch_at(index)
            assert epoch is not None
            result.append(EntryMeta(epoch, stores.get(index)))
        return tuple(result)

    def _prune(self) -> None:
        while len(self.configurations) > 1 and self.configurations[1][0] <= self.commit:
            del self.configurations[0]
