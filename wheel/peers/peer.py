"""A wheel that is one of several: a standby that stores, or the master of an epoch.

Theory: log, tail and slot files are the same as on a node alone; what differs is who decides. What
is committed, where the log ends, and who is master come from outside (``replication``), through the
methods here. At a restart nothing behind the checkpoint counts until a master commits it.

    standby:  receive -> journal -> commit -> tail -> slot files; marks and cleaning follow the log
    master:   the same, and appends, delivery, marks

Rules
- A master accepts appends and delivers only once the first entry of its epoch is committed: then
  all before it is committed too, so its producers, marks and cancels are the group's.
- ``receive``, ``cut_after``, ``commit``, ``lead``, ``stand_by``, ``install`` belong to one thread,
  in the order of replication's decisions.
- The journal is not cut down to the checkpoint: its newest part stays for peers that fall behind.

See docs/design.md, "Peers".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import NOTHING_STORED, NotMaster, Overloaded
from ..journal.entry import Entry
from ..journal.epochs import Epochs
from ..journal.log import LogPositions
from ..journal.queued import QueuedEntry, arrived
from ..mark import Marks
from ..recovery import RecoveredState, configuration, recover
from ..slots.slot import begins_ms
from ..state import Loss, StateUpdate, StoreIds
from ..switch import complete_switch
from ..wheel import Wheel
from .heal import (
    DamagedRange,
    Mending,
    SlotRows,
    damaged_ranges,
    losses_after,
    losses_of,
    uncounted,
)
from .shares import rows_within
from .snapshot import SnapshotSource
from .snapshot_request import SnapshotRequest
from .snapshot_sink import SnapshotSink


class PeerWheel(Wheel):
    """A wheel among peers. ``PeerWheel.open`` opens it as a standby."""

    _replicated = True

    def _begin(self, recovered: RecoveredState, now_ms: int) -> None:
        self.store_id = recovered.stored.store_id
        self._stored_key = recovered.stored.group_key
        self._vote = recovered.stored.vote
        self._voter = recovered.stored.voter
        self._epoch = recovered.stored.epoch
        self._first_own = 0  # index of the first entry of the epoch this peer leads; 0: it does not
        self._led_ms = now_ms
        self._epoch_offset = 0
        self._master_address = ""
        self._pins: list[int] = []
        self._config_queued = True  # the master of an epoch appends it, no one else
        self._handing_over = False
        self.on_serving: Callable[[], None] = lambda: None

    # -- what replication needs to know ----------------------------------------------------------

    @property
    def log_changed(self) -> Callable[[], None]:
        """Called from the syncer's thread when entries were written, synced, or rolled back."""
        return self._log.changed

    @log_changed.setter
    def log_changed(self, call: Callable[[], None]) -> None:
        self._log.changed = call

    def log_view(self) -> LogPositions:
        with self._lock:
            return self._log.positions()

    def hard(self) -> tuple[int, str, bool]:
        """Epoch, vote, and whether this store may vote, as promised last."""
        return self._epoch, self._vote, self._voter

    def promise(self, epoch: int, vote: str, voter: bool) -> None:
        """Store epoch, vote and the right to vote; durable when it returns.

        Errors: ``OSError``, ``SyncFailed``.
        """
        self._state.commit(StateUpdate(epoch=epoch, vote=vote, voter=voter))
        self._epoch, self._vote, self._voter = epoch, vote, voter

    def epochs(self) -> Epochs:
        """The epochs of all entries up to the last one placed; a copy."""
        with self._lock:
            epochs = self._log.journal.epochs.copy()
            for queued in self._log.uncommitted():
                if queued.entry.index > epochs.last_index:
                    epochs.append(queued.entry.index, queued.entry.epoch)
            return epochs

    @property
    def tail_is_full(self) -> bool:
        """True if the tail is full: slot files are written more slowly than entries committed."""
        return self._storage.tail.nbytes >= self.config.tail_bytes_refuse

    @property
    def commit_index(self) -> int:
        return self._log.commit_index

    @property
    def group_key(self) -> bytes | None:
        """The group's key, once its configuration was committed here, also before a restart."""
        key = self._configuration.get("key")
        return self._stored_key or None if key is None else bytes.fromhex(key)

    def admitted_stores(self) -> list[tuple[int, StoreIds]]:
        """The index of each configuration entry with the stores that it admits: the committed one
        first, then those that may still be cut off."""
        with self._lock:
            admitted = []
            if self._configuration:
                admitted.append((self._log.commit_index, _stores(self._configuration)))
            for queued in self._log.uncommitted():
                if queued.config is not None:
                    admitted.append((queued.entry.index, _stores(queued.config)))
            return admitted

    def written_after(self, index: int) -> list[tuple[int, int, StoreIds | None]]:
        """Index, epoch, and the admitted stores if it is a configuration, of each uncommitted entry
        in the journal behind ``index``."""
        with self._lock:
            written = self._log.written_after(index)
        return [
            (
                queued.entry.index,
                queued.entry.epoch,
                None if queued.config is None else _stores(queued.config),
            )
            for queued in written
        ]

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries from ``first`` on, to be shipped: one at least, up to ``last`` or ``bytes_max``.

        Errors: ``LookupError`` when the journal does not have them; ``Damaged``; ``OSError``.
        """
        with self._lock:
            shipped = self._log.recent(first, last, bytes_max)
        if shipped:
            return shipped
        size = 0
        for entry in self._log.journal.read(first):
            shipped.append(entry)
            size += len(entry.payload)
            if entry.index >= last or size >= bytes_max:
                break
        if not shipped:
            raise LookupError(f"entry {first} is not in the journal")
        return shipped

    # -- a standby -------------------------------------------------------------------------------

    def receive(self, entries: Sequence[Entry]) -> None:
        """Queue entries of a master for the syncer.

        Errors: ``LookupError``: those before them are gone (a full disk); ``Damaged``: a payload
        does not fit its kind; ``NotRunning``.
        """
        parsed = [arrived(entry) for entry in entries]
        with self._lock:
            self._log.receive(parsed)

    def cut_after(self, index: int) -> None:
        """Remove all entries behind ``index``, none of which is committed."""
        self._give_up(self._log.cut_after(index))

    def stand_by(self, master: str = "") -> None:
        """Be a standby, from now on or still; ``master``: the master's address, if known."""
        with self._lock:
            self._master_address = master
            self._handing_over = False
            dispatcher, self._dispatcher = self._dispatcher, None
            led, self._first_own = self._first_own, 0
        if dispatcher is not None:
            dispatcher.end()
        if led:
            self._give_up(self._log.withdraw(self._not_master()))

    def _not_master(self) -> NotMaster:
        if self._first_own:
            return NotMaster("the master is starting", remedy="Send it again in a moment")
        return NotMaster(master=self._master_address)

    # -- the master of an epoch ------------------------------------------------------------------

    def lead(
        self, epoch: int, stores: Mapping[str, bytes], now_ms: int, *, after: int | None = None
    ) -> None:
        """Elected: begin the epoch with an entry that names the admitted stores. Appends are taken
        and delivery begins when it is committed (``serving``, ``on_serving``).

        ``after``: the last entry of the log that was voted for. Errors: ``LookupError`` when it is
        not the last one any more, because it could not be written (a full disk): its place must
        not be given to another.
        """
        with self._lock:
            assert not self._first_own, "leads already"
            if after is not None and self._log.next_index - 1 != after:
                raise LookupError(f"the log ends at {self._log.next_index - 1}, not at {after}")
            self._log.begin_epoch(epoch)
            self._epoch_offset = self._log.next_offset
            self._led_ms = now_ms
            self._master_address = ""
            self._first_own = self._queue_stores(stores)

    def admit_stores(self, stores: Mapping[str, bytes]) -> None:
        """Append an entry that admits ``stores`` and no others."""
        with self._lock:
            self._queue_stores(stores)

    def _queue_stores(self, stores: Mapping[str, bytes]) -> int:
        known = self._configuration
        for queued in self._log.uncommitted():
            known = known if queued.config is None else dict(queued.config)
        named = {name: store.hex() for name, store in sorted(stores.items())}
        config = {**configuration(known, self.config, self._log.next_offset), "stores": named}
        return self._queue_config(config).entry.index

    @property
    def serving(self) -> bool:
        """True if this peer takes appends and delivers."""
        return self._dispatcher is not None

    def _written(self) -> None:
        """Nothing is committed yet: the peers decide."""

    def commit(self, index: int) -> None:
        super().commit(index)
        key = self.group_key
        if key is not None and key != self._stored_key:
            with contextlib.suppress(OSError):  # no room: when something is committed again
                self._state.commit(StateUpdate(group_key=key))
                self._stored_key = key

    def _count(self, done: Sequence[QueuedEntry], pieces: Sequence[Any]) -> None:
        super()._count(done, pieces)
        if self._first_own and self._dispatcher is None and self.commit_index >= self._first_own:
            self._start_dispatcher(self._epoch_offset, self._led_ms)
            self.on_serving()

    def hold_appends(self, held: bool) -> None:
        """Refuse appends while a hand-over is under way: the next master has to catch up."""
        with self._lock:
            self._handing_over = held

    def _check_room(self, now_ms: int) -> None:
        if self._handing_over:
            raise NotMaster("this peer hands over to another", remedy="Send it again in a moment")
        super()._check_room(now_ms)
        if self._log.queued_bytes >= self.config.majority_lag_bytes_max:
            raise Overloaded(
                "the peers are behind: too much waits for a majority of them",
                got=f"{self._log.queued_bytes} bytes",
                limit=f"{self.config.majority_lag_bytes_max} bytes",
                remedy=f"{NOTHING_STORED} Send it again in a moment",
            )

    # -- slot files and snapshots ----------------------------------------------------------------

    def _drop_journal(self, below: int, now_ms: int) -> None:
        with self._lock:
            below = min([below, *self._pins])
        keep_bytes = self.config.peer_journal_bytes_max
        self._log.journal.drop_below(below, keep_bytes=keep_bytes, keep=self._keeper(now_ms))

    def _clean(self, marks: Marks, now_ms: int) -> int:
        return 0 if self._pins else super()._clean(marks, now_ms)

    @contextlib.contextmanager
    def snapshot(self, request: SnapshotRequest | None = None) -> Iterator[SnapshotSource]:
        """The slot files and the state, to be copied by a peer, which gets the journal behind them
        afterwards. Meanwhile no slot file is deleted, and that part of the journal stays.
        ``request``: lists what the peer has already; None: nothing."""
        with self._files_lock:
            stored = self._state.load()
            index = stored.checkpoint.index
            with self._lock:
                self._pins.append(index + 1)
        try:
            yield SnapshotSource(self._files, stored, request)
        finally:
            with self._lock:
                self._pins.remove(index + 1)

    def damaged_ranges(self) -> list[DamagedRange]:
        """The damaged slot files, in the order of time; those inside of others together."""
        with self._lock:
            return damaged_ranges(self._storage)

    def slot_rows(self, slot: int, upto: int) -> SlotRows:
        """The rows of a slot's time below an offset, for a peer whose slot file is damaged; they
        are read share by share.

        Errors, of the blocks, too: ``LookupError`` when not all of them are committed here;
        ``Damaged``; ``OSError``.
        """
        if self._log.committed_offset < upto:
            raise LookupError(f"offsets up to {self._log.committed_offset} are committed here")
        losses = losses_of(self._losses, slot)
        return SlotRows(slot, rows_within(self._storage, slot, upto), losses)

    def mending(self, damaged: DamagedRange) -> Mending:
        """Begin the file that takes the place of a damaged range; ``heal`` puts it there. Errors:
        ``Damaged``: another file of that time is, too; ``OSError``."""
        return Mending(self._storage, self._files, damaged)

    def heal(self, mending: Mending, losses: Sequence[Loss]) -> bool:
        """Put a new file, to which all of a peer's rows were added, in the place of a damaged
        range. ``losses``: the peer's. What a damaged file has got since goes behind them: of one
        to which each spill adds, the mending would else never come to an end. False when the range
        is another one by now.

        Errors: ``Damaged`` when they are not all that there were; ``OSError``; ``SyncFailed``.
        """
        damaged, staged = mending.damaged, mending.staged
        staged.finish()  # mostly all of it; what follows is done under the lock of spilling
        with self._files_lock:
            with self._lock:
                marks = self._committed_marks
                now = next((at for at in self.damaged_ranges() if at.slot == damaged.slot), None)
            if now is None or now.files.keys() != damaged.files.keys() or not staged.is_there:
                return False
            reached = marks.main.furthest_ms >= begins_ms(damaged.slot)
            known = losses_after(damaged, staged.info, self._losses, losses, reached=reached)
            mending.add_grown(now)
            fresh = staged.finish()
            before, after = uncounted(self._losses), uncounted(known)
            rows, cancels = after[0] - before[0], after[1] - before[1]
            checkpoint = self._checkpoint
            checkpoint = replace(
                checkpoint, rows=checkpoint.rows - rows, cancels=checkpoint.cancels - cancels
            )
            made = {damaged.slot: fresh} if fresh.rows else {}
            update = StateUpdate(
                checkpoint=checkpoint,
                losses=known,
                slots=made,
                slots_deleted=[slot for slot in damaged.files if slot not in made],
            )
            self._storage.replace(list(damaged.files), update, marks)
            with self._lock:
                self._checkpoint = checkpoint
                self._losses = known
                self._rows -= rows
                self._cancel_rows -= cancels
        return True

    def snapshot_sink(self) -> SnapshotSink:
        return SnapshotSink(self._files, self.config.group, after_index=self.commit_index)

    def install(self, update: StateUpdate) -> tuple[int, int, StoreIds]:
        """Switch to a snapshot that was received whole: one commit, then the files move.

        Returns the index and the epoch of the last entry in it, and the admitted stores. Errors:
        ``OSError`` before the commit: nothing has changed. After it, an error leaves a directory
        that the next open completes, so the process has to end.
        """
        assert self._dispatcher is None, "a master needs no snapshot"
        with self._files_lock, self._log.still():
            self._state.commit(update)
            changed = self._log.changed
            self._log.close()
            self._log.journal.close()
            self._storage.close()
            complete_switch(self._files, self._state)
            recovered = recover(self._files, self._state, self.config, replicated=True)
            with self._lock:
                self._load(recovered)
                self._log.changed = changed
                self._room.notify_all()
        checkpoint = recovered.stored.checkpoint
        return checkpoint.index, checkpoint.epoch, _stores(checkpoint.config)

    def status(self) -> Any:
        return replace(super().status(), epoch=self._epoch)


def _stores(config: Mapping[str, Any]) -> StoreIds:
    return {name: bytes.fromhex(store) for name, store in config.get("stores", {}).items()}
