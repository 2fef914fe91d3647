"""The wheel: one log, one resting place, one set of marks, one lock.

Theory: this is where the parts meet. Callers append and cancel; a thread or two write and commit; a
deliverer asks what is due and answers; a slot-file thread spills and cleans. The wheel starts no
thread and reads no clock: the node brings both. Its lock is held for microseconds; sorting,
copying, checksums, writing and syncing happen outside it.

    append --> queue --> journal --> committed --> tail --> slot files
                                         \\-----------> due --> sink --> mark

``Wheel`` is a node without peers: what is durable here is committed, and it is always the master.
``peer.PeerWheel`` is one of several.

See docs/design.md.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from itertools import accumulate
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from .answers import AppendReceipt, Before, CancelAnswer, Status
from .arrowbytes import PlainRow
from .capacity import Capacity
from .checks import InputBatch, check_input, check_together, due_column
from .config import TICK_MS, WheelConfig
from .dispatcher import Dispatcher
from .due.canceller import QueueRows
from .due.cancels import Cancels
from .due.namer import NameDecisions
from .errors import (
    InvalidBatch,
    InvalidMessage,
    NotMaster,
    NotRunning,
    Overloaded,
    SequenceTooOld,
    SlotwheelError,
)
from .files import Files
from .ids import IdMint, MessageId
from .journal.entry import EntryKind, EntryPart, NoteKind
from .journal.log import Log
from .journal.payloads import (
    EncodedBatch,
    encode_input,
    encode_plain,
    encode_together,
)
from .journal.producers import SOURCE_PRODUCER
from .journal.queued import AppendWaiter, QueuedEntry, receipt_again
from .mark import Marks
from .named.layer import NO_OFFSET
from .named.table import StoredNames
from .names import NameKeys, TakenNames, check_name, due_and_offset, encode_named, key_of
from .plain import (
    CheckedBatch,
    PlainAnswer,
    PlainBatch,
    PlainDone,
    PlainReceipt,
    check_plain,
    in_groups,
)
from .recovery import RecoveredState, configuration, recover
from .schedules import (
    FiredRun,
    ScheduleDelete,
    SchedulePut,
    StoredSchedule,
    encode_changes,
    encode_runs,
)
from .scheduletable import ScheduleTable
from .schema import Int64s, bounds
from .slots.farthest import check_horizon
from .slots.scrub import Scrubber
from .slots.slot import by_begin, in_slots
from .slots.spill import Ahead, in_turn
from .slots.storage import SpillPlan, SpillReport, StockPoint, Storage
from .state import Checkpoint, SlotInfo, StateStore, StateUpdate
from .tail.tail import Piece, Tail

_Checked = TypeVar("_Checked")
_NO_ROWS = np.empty(0, np.int64)
_NO_NAMES = NameDecisions()
_INDEX_AHEAD_MS = 30_000
"""Some seconds more than strips are read ahead, so that these wait for no index."""
_EVICT_SHARE = 1024
"""So many seconds of the register of cancels are looked at while the lock is held once."""


class Wheel:
    """One wheel over one data directory. Thread-safe. Use ``Wheel.open``."""

    _replicated = False

    def __init__(
        self,
        files: Files,
        state: StateStore,
        config: WheelConfig,
        recovered: RecoveredState,
        node_id: str,
    ) -> None:
        self.config = config
        self._files = files
        self._state = state
        self._node_id = node_id
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._files_lock = threading.Lock()
        """Held while slot files are written or deleted."""
        self._committing = threading.Lock()
        """Held while entries become visible: one commit's before the next one's, whoever writes."""
        self._dispatcher: Dispatcher | None = None
        self.mint = IdMint(config.group)
        self._capacity = Capacity(files, config)
        self.doubts: Callable[[int], Overloaded | None] = lambda _now_ms: None
        """Gives the error at a time, ms, whose clock is in doubt; set by who brings the clock."""
        self._load(recovered)

    def _load(self, recovered: RecoveredState) -> None:
        """Set up from recovered state, at open or anew; mend slot files."""
        checkpoint = recovered.stored.checkpoint
        self.recovery = recovered.report
        self.store_id = recovered.stored.store_id
        self._storage = Storage(self._files, self._state, self.config, self._lock)
        self.mended = self._storage.recover(recovered.stored)
        self.scrubber = Scrubber(self._storage)
        self._losses = recovered.stored.losses
        self._schedules = ScheduleTable(recovered.stored.schedules)
        self._cancels = Cancels(self.config.cancels_remembered_max)
        self._log = Log(
            recovered.journal,
            recovered.producers,
            recovered.last_epoch,
            self._lock,
            commit_index=checkpoint.index,
            committed_offset=checkpoint.next_offset,
            waiting=recovered.entries,
            keep_recent=self._replicated,
        )
        self._checkpoint = checkpoint
        self._journal_kept = 0
        """Bytes of the journal behind the last spill: what its checkpoint does not let go of, among
        it what is kept for peers."""
        self._committed_marks = checkpoint.marks
        self._rows = checkpoint.rows
        self._cancel_rows = checkpoint.cancels
        self._befores = Counter[Before]()
        """What became of messages whose names later ones had, since this wheel was opened."""
        self._configure(checkpoint.config)

    def _configure(self, known: Mapping[str, Any]) -> None:
        self._configuration = dict(known)
        self.mint.configure(known)

    @classmethod
    def open(
        cls,
        files: Files,
        state: StateStore,
        config: WheelConfig,
        now_ms: int,
        *,
        node_id: str = "single",
    ) -> Self:
        """Recover what is in the directory, and begin a new epoch.

        Errors: ``Damaged``, ``UnsupportedVersion``, ``InvalidConfiguration``.
        """
        recovered = recover(files, state, config, replicated=cls._replicated)
        wheel = cls(files, state, config, recovered, node_id)
        try:
            wheel._check_horizon(recovered, now_ms)
        except BaseException:
            recovered.journal.close()
            wheel._storage.close()
            raise
        wheel._begin(recovered, now_ms)
        return wheel

    def _check_horizon(self, recovered: RecoveredState, now_ms: int) -> None:
        check_horizon(
            self._storage.slot_files,
            self._storage.catalog,
            [queued.piece for queued in recovered.entries if queued.piece is not None],
            self.config,
            now_ms=max(now_ms, recovered.stored.checkpoint.marks.main.furthest_ms),
            slots_known=recovered.config.get("slots", 0),
        )

    def _begin(self, recovered: RecoveredState, now_ms: int) -> None:
        """Alone: everything recovered is committed, and this node is master of a new epoch."""
        self.commit(recovered.journal.last_index)
        epoch = recovered.last_epoch + 1
        self._state.commit(StateUpdate(epoch=epoch, vote=self._node_id))
        self._log.begin_epoch(epoch)
        self._log.skip_to(1 + max(mark.L for mark in self._committed_marks.every))
        known = self._configuration
        self._configure(configuration(known, self.config, self._log.next_offset))
        # An epoch begins with an entry of its own: the configuration where new, and the mark.
        self._config_queued = self._configuration == known
        with self._lock:
            self._start_dispatcher(self._log.next_offset, now_ms)
            self._serving_dispatcher.begin_epoch(now_ms)

    def _start_dispatcher(self, epoch_offset: int, now_ms: int) -> None:
        """Under the lock: be the master from the committed marks on."""
        self._dispatcher = Dispatcher(
            self._log,
            self._storage,
            self._cancels,
            self.config,
            self.mint,
            self._committed_marks,
            self._lock,
            self._queue_marks,
            epoch_offset=epoch_offset,
            now_ms=now_ms,
            disk_is_low=self._capacity.disk_is_low,
            lost=lambda due: in_slots([loss.slot for loss in self._losses], due),
        )

    def _queue_config_once(self) -> None:
        """Queue the configuration unless the journal has it: without its key no id is genuine."""
        if not self._config_queued:
            self._config_queued = True
            self._queue_config(self._configuration)

    def _queue_config(self, config: Mapping[str, Any]) -> QueuedEntry:
        payload = json.dumps(config, sort_keys=True).encode()
        return self._log.queue(EntryKind.CONFIG, payload, config=config)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The group's agreements besides its messages, as committed here. The engine keeps them in
        the group's configuration and does not look into them."""
        return self._agreed("settings")

    @property
    def sources(self) -> Mapping[str, Any]:
        """The group's notes about the sources of its messages (the partitions of delay topics), as
        committed here. The engine keeps them as it keeps ``settings``."""
        return self._agreed("sources")

    @property
    def draining(self) -> Mapping[str, Any]:
        """Since when an operator has the group emptied (``since_ms``), as committed here; empty: it
        takes messages. The engine keeps it as it keeps ``settings``."""
        return self._agreed("draining")

    def _agreed(self, part: str) -> Mapping[str, Any]:
        agreed: Mapping[str, Any] = self._configuration.get(part, {})
        return agreed

    def change_settings(
        self, known: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Future[AppendReceipt]:
        """Replace the group's settings; the future resolves when that is committed.

        ``known``: those that the change was made from. Errors: ``NotMaster``; ``Overloaded`` when
        they are not the newest any more, or another change is on its way.
        """
        return self._agree("settings", known, settings)

    def change_sources(
        self, known: Mapping[str, Any], sources: Mapping[str, Any]
    ) -> Future[AppendReceipt]:
        """Replace the group's notes about its sources, as ``change_settings`` does."""
        return self._agree("sources", known, sources)

    def change_draining(
        self, known: Mapping[str, Any], draining: Mapping[str, Any]
    ) -> Future[AppendReceipt]:
        """Replace ``draining``, as ``change_settings`` does."""
        return self._agree("draining", known, draining)

    def _agree(
        self, part: str, known: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> Future[AppendReceipt]:
        with self._lock:
            _ = self._serving_dispatcher
            changing = any(queued.config is not None for queued in self._log.uncommitted())
            if changing or known != self._agreed(part):
                raise Overloaded("the configuration is changing", remedy="Try again in a moment")
            self._config_queued = True
            queued = self._queue_config({**self._configuration, part: dict(wanted)})
            entry = queued.entry
            receipt = AppendReceipt(entry.base_offset, 0, 0, np.empty(0, np.int64))
            return queued.wait_for(receipt, early=False).future

    def _queue_marks(self, marks: Marks) -> None:
        self._queue_config_once()
        self._log.queue(EntryKind.MARK, marks.encode(), marks=marks)

    @property
    def _serving_dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise self._not_master()
        return self._dispatcher

    def _not_master(self) -> NotMaster:
        return NotMaster()

    @property
    def dispatcher(self) -> Dispatcher | None:
        """The part that delivers and decides about cancels; None: this node is not the master."""
        return self._dispatcher

    @property
    def serving(self) -> bool:
        """True if this node takes appends and delivers."""
        return True

    # -- intake ----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._log.epoch

    def append(
        self,
        rows: pa.RecordBatch,
        now_ms: int,
        *,
        producer: int = 0,
        sequence: int = -1,
        early: bool = False,
    ) -> Future[AppendReceipt]:
        """Check a batch (``InputBatch`` says of what) and queue it; the future resolves when it is
        committed.

        Errors: ``InvalidBatch``, ``InvalidMessage``, ``Overloaded``, ``SequenceTooOld``,
        ``NotRunning``, ``NotMaster``; nothing is stored then. The future may fail with
        ``Overloaded`` or ``NameTaken`` (not stored), or with ``NotMaster``: then it may be stored
        all the same.
        """
        batch = InputBatch(rows, producer, sequence, early)
        return _accepted(self._append_one(batch, now_ms, wake=True))

    def append_all(
        self, batches: Sequence[InputBatch], now_ms: int, *, wake: bool = True
    ) -> list[Future[AppendReceipt] | SlotwheelError]:
        """Append at least one batch, each stored or refused by itself: of each the future, or the
        error of ``append``. Several are checked at the cost of one if they are of one schema, and
        none is refused. ``wake`` False: the caller calls ``write_pending`` itself, soon.
        """
        if len(batches) == 1:
            return [self._append_one(batches[0], now_ms, wake=wake)]
        rows = [batch.rows for batch in batches]
        together = check_together(rows, self.config, now_ms)
        if together is None:
            middle = len(batches) // 2
            halves = (batches[:middle], batches[middle:])
            return [
                outcome for half in halves for outcome in self.append_all(half, now_ms, wake=wake)
            ]
        encoded = encode_together(together, [part.num_rows for part in rows], now_ms)
        return [
            self._queue_input(batch, now_ms, sent, wake=wake)
            for batch, sent in zip(encoded, batches, strict=True)
        ]

    def _append_one(
        self, batch: InputBatch, now_ms: int, *, wake: bool
    ) -> Future[AppendReceipt] | SlotwheelError:
        def check(at_ms: int) -> pa.RecordBatch:
            return check_input(batch.rows, self.config, at_ms)

        try:
            checked = self._checked(check, batch, now_ms)
        except SlotwheelError as error:
            return copy(error)
        return self._queue_input(encode_input(checked, now_ms), now_ms, batch, wake=wake)

    def _checked(
        self, check: Callable[[int], _Checked], batch: InputBatch | PlainBatch, now_ms: int
    ) -> _Checked:
        """The result of ``check`` for a batch at ``now_ms``, or at the time when it was appended
        first. Errors: those of ``check``."""
        try:
            return check(now_ms)
        except InvalidMessage:
            # What was accepted once is not refused when it is repeated after the clock was set
            # back. Looked up only now, for the lock has many that wait for it.
            created_ms = self._created(batch.producer, batch.sequence)
            if created_ms is None:
                self.check_clock(now_ms)  # by the right time it may be good
                raise
            return check(created_ms)

    def append_plain(
        self, batches: Sequence[PlainBatch], now_ms: int, done: PlainDone, *, wake: bool = True
    ) -> None:
        """Append plain rows of many callers, each batch stored or refused by itself, as ``append``
        would. What comes in one call becomes one entry, or a few that are bounded.

        ``done`` is called with each batch once: with some batches and how they are stored, when
        they are committed (early ones: durable here), by whatever thread; or with some and the
        error of all. It must neither wait nor raise: others wait behind it. What is refused or was
        stored before is answered at once, before older batches of its caller that still wait; but
        ``NameTaken`` comes when the message that has the name is committed.
        ``wake``: as of ``append_all``.
        """
        checked: list[CheckedBatch] = []
        for batch in batches:
            check = partial(check_plain, batch.rows, batch.nbytes, self.config)
            try:
                checked.append((batch, self._checked(check, batch, now_ms)))
            except SlotwheelError as error:
                done([batch], copy(error))
        left: list[Sequence[CheckedBatch]] = [*in_groups(checked, self.config.batch_rows_max)]
        while left:
            left[:1] = self._queue_together(left[0], now_ms, done, wake=wake)

    def _queue_together(
        self, group: Sequence[CheckedBatch], now_ms: int, done: PlainDone, *, wake: bool
    ) -> list[Sequence[CheckedBatch]]:
        """Queue batches of different callers as one entry, unless some were appended before, or are
        refused. Those are answered then, and the others returned in groups, to be tried again
        without them."""
        batches = [batch for batch, _ in group]
        rows = [row for _, its in group for row in its]
        ends = list(accumulate(len(its) for _, its in group))
        encoded = encode_plain(rows, now_ms)
        stored = self._stored_names(encoded)
        answers: list[tuple[Sequence[PlainBatch], PlainAnswer]] = []
        fresh: list[CheckedBatch] = []
        with self._lock:
            try:
                _ = self._serving_dispatcher  # what a standby knows of producers may be cut off
                fresh = [item for item in group if not self._is_repeat(item[0], answers, done)]
                if len(fresh) == len(group):
                    fresh = []
                    self.check_clock(now_ms)
                    parts = [
                        EntryPart(batch.producer, batch.sequence, len(batch.rows))
                        for batch in batches
                    ]
                    decided = self._decide_names(encoded, stored, ends)
                    if decided.refused:
                        return self._without_refused(group, ends, decided, done)
                    queued = self._queue(encoded, now_ms, parts, decided, wake=wake)
                    due = [row[0] for row in rows]
                    base_offset = queued.entry.base_offset
                    receipt = PlainReceipt(base_offset, now_ms, due, named=tuple(decided.answers))
                    queued.call(_told(done, batches, receipt), early=batches[0].early)
            except SlotwheelError as error:
                answers.append((batches, copy(error)))
        for answered, answer in answers:
            done(answered, answer)
        return [fresh] if fresh else []

    def _without_refused(
        self,
        group: Sequence[CheckedBatch],
        ends: Sequence[int],
        decided: NameDecisions,
        done: PlainDone,
    ) -> list[Sequence[CheckedBatch]]:
        """Under the lock: answer the batches of a group that have refused rows, now or when the
        message that has the name is committed. Returns the others, and behind them those refused
        for a row of this group, which may yet not be stored."""
        left: list[CheckedBatch] = []
        again: list[CheckedBatch] = []
        for checked, start, end in zip(group, [0, *ends], ends, strict=False):
            refused = decided.refusal_of(start, end, self._log.next_offset)
            if refused is None:
                left.append(checked)
            elif refused.holder >= self._log.next_offset:
                again.append(checked)
            else:
                batch, error = checked[0], refused.error
                awaited = self._log.awaited_row(refused.holder, early=batch.early)
                if awaited is None:
                    done([batch], error)
                else:
                    awaited.call(_told(done, [batch], error), early=batch.early)
        return [its for its in (left, again) if its]

    def _is_repeat(
        self,
        batch: PlainBatch,
        answers: list[tuple[Sequence[PlainBatch], PlainAnswer]],
        done: PlainDone,
    ) -> bool:
        """Under the lock: True if a batch is not to be queued, because it was before, or may have
        been. Its answer is added to ``answers``, unless it waits for the commit."""
        producer, sequence = batch.producer, batch.sequence
        try:
            known = self._log.producers.find(producer, sequence) if producer else None
            if known is None:
                return False
            due = np.array([row[0] for row in batch.rows], np.int64)
            again = receipt_again(known, due, producer, sequence)
        except SlotwheelError as error:
            answers.append(([batch], copy(error)))
            return True
        receipt = PlainReceipt(
            *(again.base_offset, again.created_ms, again.due.tolist(), again.sequence),
            again.named,
        )
        waiting = self._log.awaited(known.index, early=batch.early)
        if waiting is None:
            answers.append(([batch], receipt))
        else:
            waiting.call(_told(done, [batch], receipt), early=batch.early)
        return True

    def append_source(
        self, rows: pa.RecordBatch, now_ms: int, *, source: int, first: int, last: int
    ) -> Future[AppendReceipt]:
        """Append what was read from a source, offsets ``first`` to ``last``. ``source``: its
        number, of 62 bits.

        Errors: as ``append``, and ``InvalidBatch`` when a part of it was taken before.
        """
        self.check_clock(now_ms)
        taken = self.source_position(source)
        if first <= taken:
            raise InvalidBatch(
                f"source {source:x} was read up to offset {taken} before",
                got=first,
                limit=taken + 1,
                remedy="Go on reading behind source_position",
            )
        producer = SOURCE_PRODUCER | source
        checked = check_input(rows, self.config, now_ms, reserved=True)  # those of a dead letter
        batch = InputBatch(rows, producer, last)
        return _accepted(self._queue_input(encode_input(checked, now_ms), now_ms, batch))

    def source_position(self, source: int) -> int:
        """The last offset taken from a source, -1 if none."""
        with self._lock:
            return self._log.producers.last_sequence(SOURCE_PRODUCER | source)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until memory has room for an append; True if it has."""
        with self._lock:
            return self._room.wait_for(lambda: not self._capacity.full(self._held), timeout_s)

    def cancel(
        self,
        ids: Sequence[MessageId | str],
        now_ms: int,
        timeout_s: float = 10.0,
        *,
        may: Callable[[str], bool] | None = None,
    ) -> list[CancelAnswer]:
        """Cancel messages by their ids; one answer each, true when it is given. With ``may``, a
        message whose topic it refuses, or cannot be read any more, is *unknown*.

        Blocks until the cancels are committed, or ``timeout_s``: then *unknown* is the answer.
        Errors: ``UnknownId`` when a text has not the form of an id.
        """
        dispatcher = self._serving_dispatcher
        append = self._queue_for(dispatcher, now_ms)
        return dispatcher.canceller.cancel(ids, append, timeout_s, may)

    def reschedule(
        self,
        message_id: MessageId,
        due_ms: int,
        now_ms: int,
        timeout_s: float = 10.0,
        *,
        may: Callable[[str], bool] | None = None,
    ) -> tuple[CancelAnswer, MessageId | None]:
        """Cancel a message and send it again with another due time, in one entry.

        Returns what became of the old one, and the id of the new one if it was stored. ``may``: as
        of ``cancel``. Errors: ``Overloaded``, with nothing done.
        """
        answer, after = self._reschedule(message_id, due_ms, now_ms, timeout_s, may=may)
        return answer or CancelAnswer.UNKNOWN, after

    def _reschedule(
        self,
        message_id: MessageId,
        due_ms: int,
        now_ms: int,
        timeout_s: float,
        *,
        may: Callable[[str], bool] | None = None,
        stays: Callable[[], bool] = lambda: True,
    ) -> tuple[CancelAnswer | None, MessageId | None]:
        dispatcher = self._serving_dispatcher
        self.check_clock(now_ms)
        return dispatcher.canceller.reschedule(
            message_id,
            due_ms,
            self._queue_for(dispatcher, now_ms),
            lambda rows: check_input(rows, self.config, now_ms, reserved=True),
            timeout_s,
            may,
            stays,
        )

    def named(self, topic: str, name: str) -> MessageId | None:
        """The id of the committed message that has a name, or had it until it left; None: there is
        none. Errors: ``InvalidMessage``, ``NotMaster``."""
        held = self._held_by(topic, name, queued=False)
        return None if held is None else held[0]

    def _held_by(
        self, topic: str, name: str, *, queued: bool = True
    ) -> tuple[MessageId, Callable[[], bool]] | None:
        """The message that has a name, and what tells, under the lock, if that still stands for no
        other one; None: there is none. ``queued``: also one whose entry may yet not be committed.
        Errors: as of ``named``."""
        check_name(name)
        names, key = self._storage.names, key_of(topic.encode(), name.encode())
        keys = NameKeys([key])
        stored = names.stored(keys)
        with self._lock:
            _ = self._serving_dispatcher  # a standby's table may be behind
            below = NO_OFFSET if queued else self._log.committed_offset
            place = names.places(keys, stored, below=below).get(key)
        if place is None:
            return None
        message_id = self.mint.one(*due_and_offset(place))
        return message_id, lambda: names.places(keys, stored).get(key, place) == place

    def cancel_named(
        self, topic: str, name: str, now_ms: int, timeout_s: float = 10.0
    ) -> tuple[CancelAnswer, MessageId | None]:
        """Cancel the message that has a name. Returns what became of it, and its id; *unknown* and
        None if no message is known by that name. Blocks and raises as ``cancel`` does."""
        dispatcher = self._serving_dispatcher
        append = self._queue_for(dispatcher, now_ms)
        while (held := self._held_by(topic, name)) is not None:
            before, stays = held
            answer = dispatcher.canceller.cancel_row(before, topic, append, timeout_s, stays)
            if answer is not None:
                return answer, before
        return CancelAnswer.UNKNOWN, None

    def reschedule_named(
        self, topic: str, name: str, due_ms: int, now_ms: int, timeout_s: float = 10.0
    ) -> tuple[CancelAnswer, MessageId | None, MessageId | None]:
        """Reschedule the message that has a name. Returns what became of it, its id as of
        ``cancel_named``, and the id of the new one if it was stored, which has the name. Errors: as
        of ``reschedule``."""
        while (held := self._held_by(topic, name)) is not None:
            before, stays = held
            answer, after = self._reschedule(before, due_ms, now_ms, timeout_s, stays=stays)
            if answer is not None:
                return answer, before, after
        return CancelAnswer.UNKNOWN, None, None

    # -- schedules -------------------------------------------------------------------------------

    def schedule(self, name: str) -> StoredSchedule | None:
        """A schedule as of what was queued or committed here last; None: there is none."""
        with self._lock:
            return self._schedules.get(name)

    def schedule_names(self, after: str = "", least: str = "") -> list[str]:
        """The names of all schedules behind ``after`` and not before ``least``, in order."""
        with self._lock:
            return self._schedules.names(after, least)

    def settled_schedules(self, names: Sequence[str]) -> Future[list[StoredSchedule | None]]:
        """Schedules as of what was queued here last; the future resolves when that is committed.
        Otherwise an answer could tell of a change that the next master does not have. Errors:
        ``NotMaster``; ``Overloaded`` for the moment in which an entry has left the queue, and
        whether it is committed or lost is not known here yet."""
        with self._lock:
            _ = self._serving_dispatcher
            index = self._schedules.queued_at(names)
            waiting = self._log.awaited(index, early=False)
            if index >= 0 and waiting is None:
                raise Overloaded("a schedule is just changing", remedy="Try again in a moment")
            return _once_committed([self._schedules.get(name) for name in names], waiting)

    def change_schedules(
        self, changes: Sequence[tuple[SchedulePut | ScheduleDelete, int | None]], now_ms: int
    ) -> Future[list[StoredSchedule | None]]:
        """Put and delete schedules in one entry. The future resolves when that is committed, to
        what each is by this very entry: by the time of the answer somebody else may have changed
        it, and who got that version would replace a change that he has not seen.

        With each change comes the version that its schedule has to have, 0: there must be none;
        None: any. Otherwise two people who look at version 3 would both change it, and the first
        one's change be lost unseen. Errors: ``ScheduleChanged``, ``UnknownSchedule``,
        ``InvalidMessage``: there are too many; ``NotMaster``, ``Overloaded``."""
        payload = encode_changes([change for change, _ in changes])
        if len(payload) > self.config.batch_bytes_max:
            raise InvalidMessage(
                "changes of schedules that are too large",
                got=f"{len(payload)} bytes",
                limit=f"{self.config.batch_bytes_max} bytes",
                remedy="Put them one after the other",
            )
        with self._lock:
            _ = self._serving_dispatcher
            for change, version in changes:
                self._schedules.check(change, version)
            self._check_room(now_ms)
            self._queue_config_once()
            queued = self._log.queue(EntryKind.SCHEDULES, payload)
            queued.schedule([change for change, _ in changes])
            self._schedules.queue(queued.schedules, queued.entry.index)
            states = [self._schedules.get(change.name) for change, _ in changes]
            return _once_committed(states, queued)

    def fire(
        self,
        runs: Sequence[FiredRun],
        rows: Sequence[PlainRow],
        now_ms: int,
        done: Callable[[SlotwheelError | None], None],
    ) -> list[FiredRun]:
        """Store runs of schedules as rows, one each, in one entry that notes which runs they are.
        Returns those that were taken, with their offsets; ``done`` is called once these are
        committed, or with the error.

        Left out is a run that does not follow on from the last one of the version in force: its
        schedule was replaced, or somebody has fired it meanwhile. So is one whose row has the name
        of a message that is just leaving. ``rows`` are not checked. Errors: ``NotMaster``,
        ``Overloaded``: nothing was stored, and ``done`` is not called.
        """
        fits = list(range(len(runs)))
        while fits:
            chosen = [runs[at] for at in fits]
            batch = encode_plain([rows[at] for at in fits], now_ms)
            stored = self._stored_names(batch)
            with self._lock:
                _ = self._serving_dispatcher
                self.check_clock(now_ms)
                still = self._schedules.following(chosen)
                if len(still) == len(chosen):
                    decided = self._decide_names(batch, stored)
                    if not decided.refused:
                        return self._queue_runs(batch, now_ms, chosen, decided, done)
                    refused = {chosen[at].name for at in decided.refused}
                    still = [at for at, run in enumerate(chosen) if run.name not in refused]
            fits = [fits[at] for at in still]
        return []

    def _queue_runs(
        self,
        batch: EncodedBatch,
        now_ms: int,
        runs: Sequence[FiredRun],
        decided: NameDecisions,
        done: Callable[[SlotwheelError | None], None],
    ) -> list[FiredRun]:
        parts = [EntryPart(0, -1, len(runs))]
        queued = self._queue(batch, now_ms, parts, decided, runs=encode_runs(runs))
        base_offset = queued.entry.base_offset
        fired = [run._replace(offset=base_offset + row) for row, run in enumerate(runs)]
        queued.schedule(fired)
        self._schedules.queue(fired, queued.entry.index)
        queued.call(done, early=False)
        return fired

    def check_clock(self, now_ms: int) -> None:
        """Errors: ``Overloaded`` if nothing new may be taken now, as the clock is in doubt."""
        doubt = self.doubts(now_ms)
        if doubt is not None:
            raise doubt

    def _created(self, producer: int, sequence: int) -> int | None:
        """The time, ms, when a producer's entry was first appended; None if it is new."""
        if not producer:
            return None
        with self._lock:
            known = self._log.producers.find(producer, sequence)
        return None if known is None else known.created

    def stored_before(self, producer: int, sequence: int) -> bool:
        """True if that entry of a producer was appended before, as far as is remembered."""
        if not producer:
            return False
        with self._lock:
            try:
                return self._log.producers.find(producer, sequence) is not None
            except SequenceTooOld:
                return True  # its append says so

    def _queue_input(
        self, batch: EncodedBatch, now_ms: int, sent: InputBatch, *, wake: bool = True
    ) -> Future[AppendReceipt] | SlotwheelError:
        """Queue a batch from outside, unless it was appended before."""
        producer, sequence, early = sent.producer, sent.sequence, sent.early
        stored = self._stored_names(batch)
        try:
            with self._lock:
                # Raises on a standby: what it knows of a producer may be cut off again.
                _ = self._serving_dispatcher
                if producer and (known := self._log.producers.find(producer, sequence)):
                    receipt = receipt_again(known, due_column(sent.rows), producer, sequence)
                    waiting = self._log.awaited(known.index, early=early)
                    return _answered_again(receipt, waiting, early=early)
                self.check_clock(now_ms)
                part = EntryPart(producer, sequence, len(batch.due))
                decided = self._decide_names(batch, stored)
                refused = decided.refusal_of(0, part.rows, self._log.next_offset)
                if refused is not None:
                    awaited = self._log.awaited_row(refused.holder, early=early)
                    error = refused.error
                    return error if awaited is None else awaited.refuse_by(error, early)
                waiter = self._queue_waiting(batch, now_ms, part, decided, early=early, wake=wake)
                return waiter.future
        except SlotwheelError as error:
            return copy(error)

    def _queue_for(self, dispatcher: Dispatcher, now_ms: int) -> QueueRows:
        """Queue rows that this dispatcher has decided on, cancel rows among them. Errors:
        ``NotMaster`` when its epoch is over: the marks of a later one may be others."""

        def append(encode: Callable[[int], EncodedBatch]) -> AppendWaiter:
            batch = encode(now_ms)
            with self._lock:
                if self._dispatcher is not dispatcher:
                    raise self._not_master()
                part = EntryPart(0, -1, len(batch.due))
                return self._queue_waiting(batch, now_ms, part, self._renamed(batch))

        return append

    def _renamed(self, batch: EncodedBatch) -> NameDecisions:
        """Under the lock: the names that rows of our own take. Those that had them are cancelled in
        the same entry."""
        if batch.names is None:
            return _NO_NAMES
        return NameDecisions(TakenNames.of(batch.names, batch.due, self._log.next_offset))

    def _stored_names(self, batch: EncodedBatch) -> StoredNames | None:
        """Look the names of a batch up on disk, before the lock is taken; None: it has none."""
        return None if batch.names is None else self._storage.names.stored(batch.names.keys)

    def _decide_names(
        self, batch: EncodedBatch, stored: StoredNames | None, ends: Sequence[int] = ()
    ) -> NameDecisions:
        """Under the lock: decide about the names of a batch that is queued next. ``ends``: as of
        ``Namer.decide``. Errors: ``NotMaster``."""
        if batch.names is None or stored is None:
            return _NO_NAMES
        # An entry before it, with the configuration, has no rows: the offset stays the next one.
        places = self._storage.names.places(batch.names.keys, stored)
        namer = self._serving_dispatcher.namer
        return namer.decide(batch.names, batch.due, self._log.next_offset, places, ends)

    def _queue_waiting(
        self,
        batch: EncodedBatch,
        now_ms: int,
        part: EntryPart,
        decided: NameDecisions,
        *,
        early: bool = False,
        wake: bool = True,
    ) -> AppendWaiter:
        """Under the lock: queue rows of one caller, who waits for them. Errors: as ``_queue``."""
        queued = self._queue(batch, now_ms, [part], decided, wake=wake)
        due, offset = np.asarray(batch.due), queued.entry.base_offset
        receipt = AppendReceipt(
            offset, part.rows, now_ms, due, part.sequence, tuple(decided.answers)
        )
        return queued.wait_for(receipt, early)

    def _queue(
        self,
        batch: EncodedBatch,
        now_ms: int,
        parts: Sequence[EntryPart],
        decided: NameDecisions,
        *,
        wake: bool = True,
        runs: bytes = b"",
    ) -> QueuedEntry:
        """Under the lock: queue rows of some callers, and what was ``decided`` about their names.
        ``runs``: the note that says which runs of schedules they are. Errors: ``NotMaster``,
        ``Overloaded``."""
        dispatcher = self._serving_dispatcher
        self._check_room(now_ms)
        self._queue_config_once()
        notes: dict[NoteKind, bytes] = {}
        if batch.names is not None:
            notes[NoteKind.NAMES] = encode_named(decided.answers)
        if runs:
            notes[NoteKind.RUNS] = runs
        if decided.offset:
            batch = batch.with_cancels(np.array(decided.due), np.array(decided.offset))
            parts = [*parts, EntryPart(0, -1, len(decided.offset))]
        queued = self._log.queue(
            *(EntryKind.ROWS, batch.payload),
            parts=parts,
            notes=notes or None,
            created_ms=now_ms,
            wake=wake,
        )
        queued.carry(batch, now_ms, decided.names, decided.answers)
        if queued.cancels is not None:
            receipt = AppendReceipt(queued.entry.base_offset, 0, now_ms, _NO_ROWS)
            self._cancels.add(queued.cancels, queued.wait_for(receipt, early=False).future)
        self._storage.names.take(decided.names)
        dispatcher.appended(bounds(batch.due)[0], now_ms)
        return queued

    @property
    def _held(self) -> int:
        """Bytes in memory that are not in slot files yet."""
        return self._storage.unspilled_bytes + self._log.queued_bytes

    def _check_room(self, now_ms: int) -> None:
        self._capacity.check(self._held, now_ms)

    # -- who writes ------------------------------------------------------------------------------

    @property
    def has_queued(self) -> bool:
        """True if there are entries to be written."""
        return self._log.wait(0.0)

    def write_pending(self, timeout_s: float) -> bool:
        """Wait for entries, write and sync them; on a node without peers they are committed then.

        Returns True if anything was written. Errors: ``SyncFailed``: the process has to end.
        """
        if not self._log.wait(timeout_s):
            return False
        failed = self._log.write()
        if failed:
            self._give_up(failed)
            return False
        self._written()
        return True

    def _written(self) -> None:
        """Alone: commit what is durable."""
        self.commit(self._log.journal.durable_index)

    def commit(self, index: int) -> None:
        """A majority holds the journal up to ``index``: make it visible and answer its callers."""
        with self._committing:
            done = self._log.committed(index)
            if not done:
                return
            self._publish(done, [queued.piece for queued in done if queued.piece is not None])
        for queued in done:
            for caller in queued.callers:
                caller.answer()

    def _publish(self, done: Sequence[QueuedEntry], pieces: list[Piece]) -> None:
        """Make entries visible: those that follow on from the last visible one."""
        tail = self._storage.tail
        while True:
            before = tail.pieces
            grown = Tail.grown(before, pieces, read=self._dispatcher is not None)
            with self._lock:
                if tail.pieces is not before:
                    continue  # a spill dropped rows meanwhile
                tail.publish(grown)
                self._log.advance(done)
                self._count(done, pieces)
                return

    def _count(self, done: Sequence[QueuedEntry], pieces: Sequence[Piece]) -> None:
        for queued in done:
            # A checkpoint ends before rows that stay in the tail, but has the newest marks: entries
            # after it may have older ones.
            if queued.marks is not None and queued.marks.follows(self._committed_marks):
                self._committed_marks = queued.marks
                if self._dispatcher is not None:
                    self._dispatcher.mark_committed(queued.marks)
            if queued.config is not None:
                self._configure(queued.config)
            if queued.cancels is not None:
                self._cancels.committed(queued.cancels)
                self._cancel_rows += len(queued.cancels)
            if not queued.own:  # or it has taken them when it was queued
                self._storage.names.take(queued.names)
            if queued.cancels is not None:
                self._storage.names.cancel(queued.cancels)
            if queued.named:
                self._befores.update(answer.before for answer in queued.named)
            if queued.schedules:
                changes, index = queued.schedules, queued.entry.index
                self._schedules.committed(changes, index, own=queued.own)
        if pieces:
            self._rows += sum(piece.count for piece in pieces)
            if self._dispatcher is not None:
                self._dispatcher.committed(min(piece.earliest for piece in pieces))

    def _give_up(self, failed: Sequence[QueuedEntry]) -> None:
        """Fail entries that were queued and cannot be written, or were cut off."""
        with self._lock:
            for queued in failed:
                if queued.cancels is not None:
                    self._cancels.revert(queued.cancels)
                if queued.marks is not None and self._dispatcher is not None:
                    self._dispatcher.mark_lost(queued.marks)
                if queued.entry.kind is EntryKind.CONFIG:
                    self._config_queued = False
            if any(queued.names for queued in failed):
                self._storage.names.withdraw(failed[0].entry.base_offset)
            if any(queued.schedules for queued in failed):
                own = [queued for queued in self._log.uncommitted() if queued.own]
                self._schedules.withdraw([(each.entry.index, each.schedules) for each in own])

    # -- the slot-file thread --------------------------------------------------------------------

    def spill_needed(self, now_ms: int) -> bool:
        with self._lock:
            tail = self._storage.tail
            grown = self._log.journal.bytes - self._journal_kept
            if not tail.pieces:
                # Marks alone fill the journal too; a checkpoint lets go of them.
                if self._schedules.has_unsaved and self.config.journal_is_worth_a_spill(grown):
                    return True
                return grown > 2 * self.config.segment_bytes
            age_ms = now_ms - tail.pieces[0].oldest_ms
            nbytes = self._storage.unspilled_bytes
            return self.config.tail_is_worth_a_spill(nbytes, age_ms, grown)

    def spill(
        self, now_ms: int, *, everything: bool = False, ahead: Ahead = in_turn
    ) -> SpillReport:
        """Move the tail into slot files and drop the journal behind it.

        ``ahead``: see ``spill.Ahead``; sorting and encoding can go on beside the writing.

        By age, the newest rows stay; when the tail is over its budget, or ``everything``, none do.
        An ``OSError`` (a full disk) leaves all as it was; try again later.
        """
        with self._files_lock:
            with self._lock:
                plan = self._plan(now_ms, everything)
            try:
                report = self._storage.spill(plan, self._spilled, ahead)
            except OSError as error:
                self._capacity.spilled(error)
                raise
            self._capacity.spilled(None)
            with self._lock:
                self._log.producers.saved(plan.producers, plan.producers_gone)
                self._schedules.saved(plan.schedules)
            self._drop_journal(plan.checkpoint.index + 1, now_ms)
            self._journal_kept = self._log.journal.bytes
        return report

    def _drop_journal(self, below: int, now_ms: int) -> None:
        self._log.journal.drop_below(below, keep=self._keeper(now_ms))

    def _keeper(self, now_ms: int) -> Callable[[str, int], bool] | None:
        """The call by which the journal archives a segment; None without an archive."""
        archive = self._storage.archive
        if not archive.keeps:
            return None
        left_ms = max(mark.furthest_ms for mark in self._committed_marks.every)
        return lambda path, nbytes: archive.keep_segment(path, nbytes, now_ms, left_ms)

    def _plan(self, now_ms: int, everything: bool) -> SpillPlan:
        tail = self._storage.tail
        pieces = tail.pieces
        stay: tuple[Piece, ...] = ()
        if not everything and self._storage.unspilled_bytes < self.config.tail_bytes_max:
            newest = now_ms - self.config.tail_keep_ms
            count = max(1, sum(1 for piece in pieces if piece.newest_ms <= newest))
            pieces, stay = pieces[:count], pieces[count:]
        index, next_offset = self._log.commit_index, self._log.committed_offset
        if stay:
            index, next_offset = pieces[-1].index, pieces[-1].next_offset
        changed, gone = self._log.producers.unsaved(self._log.commit_index)
        checkpoint = Checkpoint(
            index=index,
            epoch=self._log.journal.epochs.epoch_at(index) or 0,
            next_offset=next_offset,
            rows=self._rows - sum(piece.count for piece in stay),
            cancels=self._cancel_rows - sum(piece.cancels for piece in stay),
            marks=self._committed_marks,
            config=self._configuration,
            named=self._checkpoint.named or self._storage.names.in_use,
        )
        return SpillPlan(
            *(now_ms, pieces, checkpoint, changed, gone), schedules=self._schedules.unsaved()
        )

    def _spilled(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._room.notify_all()

    def clean(self, now_ms: int) -> int:
        """Delete or archive slot files that the committed marks cover whole; returns how many."""
        with self._lock:
            marks = self._committed_marks
        with self._files_lock:
            deleted = self._clean(marks, now_ms)
            self._storage.merge_names(marks)
        self._evict(marks, now_ms)
        return deleted

    def index_ahead(self, now_ms: int) -> None:
        """Know where in the wide slot files of now and of the next seconds the rows are. A standby
        does it, too: as a new master it would else read files of 50 MB before its first row."""
        self._storage.index_ahead(now_ms, now_ms + _INDEX_AHEAD_MS)

    def _evict(self, marks: Marks, now_ms: int) -> None:
        """Forget cancels that can be read again, where there are too many of them or too many
        seconds; the lock is let go between shares."""
        with self._lock:
            seconds = self._cancels.over_bound()
        seconds.sort()
        covered_before = min(mark.c for mark in marks.every) // TICK_MS
        covered_offset = min(mark.L for mark in marks.every)
        for start in range(0, len(seconds), _EVICT_SHARE):
            share = seconds[start : start + _EVICT_SHARE]
            with self._lock:
                spilled = self._storage.spilled
                self._cancels.evict(
                    share, covered_before, covered_offset, now_ms // TICK_MS, spilled
                )

    def _clean(self, marks: Marks, now_ms: int) -> int:
        def known(second: int) -> Int64s | None:
            with self._lock:
                has_all = self._cancels.file_read(second)
                return self._cancels.targets(second) if has_all else None

        return self._storage.clean(marks, now_ms, known)

    def set_back(self, now_ms: int) -> bool:
        """As ``Dispatcher.set_back``; True once the journal has it. Errors: ``NotMaster``."""
        master = self._serving_dispatcher
        return master.set_back(now_ms) and master.settle(now_ms)

    @property
    def mark_ms(self) -> int:
        """The due time up to which messages have left, by the committed mark."""
        return self._committed_marks.main.c

    @property
    def archive_missed(self) -> tuple[int, str]:
        """The number of files that the archive could not keep, and the error of the last one."""
        archive = self._storage.archive
        return archive.missed, archive.missed_why

    def damaged(self) -> dict[int, str]:
        """The errors of slot files that are not what was written, by slot, in the order of time."""
        with self._lock:
            errors = dict(self._storage.damaged)
        return {slot: errors[slot].message for slot in sorted(errors, key=by_begin)}

    # -- for who counts what is pending ----------------------------------------------------------

    def stock_point(self) -> StockPoint:
        """The places of all rows now; by the committed marks, unless this node delivers."""
        with self._lock:
            storage, marks = self._storage, self._committed_marks
            if self._dispatcher is not None:
                marks = self._dispatcher.due.lines.marks()
            return StockPoint(
                storage.catalog,
                storage.spilled,
                storage.tail.pieces,
                self._log.committed_offset,
                marks,
                storage.replacements,
            )

    def read_slot(self, slot: int, info: SlotInfo, seconds: range) -> Iterator[pa.RecordBatch]:
        """The rows in a slot's file, as of a ``StockPoint``, that are due in ``seconds``, as
        blocks; empty when all of them have left since. A few blocks are in memory at a time.
        Errors: ``Damaged``, ``OSError``."""
        return self._storage.read_aside(slot, info, seconds)

    # -- seen from outside -----------------------------------------------------------------------

    def status(self) -> Status:
        """The wheel in plain numbers, in constant time however much is pending."""
        with self._lock:
            log, storage = self._log, self._storage
            marks = self._committed_marks
            now = marks if self._dispatcher is None else self._dispatcher.due.lines.marks()
            ahead = 0 if self._dispatcher is None else self._dispatcher.due.lines.ahead
            return Status(
                group=self.config.group,
                epoch=log.epoch,
                pending=max(0, now.pending(self._rows, self._cancel_rows) - ahead),
                accepted=self._rows - self._cancel_rows,
                delivered=now.delivered,
                dead=now.dead,
                expired=now.expired,
                cancelled=self._cancel_rows,
                mark_c=now.main.c,
                mark_offset=now.main.L,
                committed_mark_c=marks.main.c,
                committed_offset=log.committed_offset,
                commit_index=log.commit_index,
                checkpoint_index=self._checkpoint.index,
                held_topics=sorted(now.copies),
                tail_rows=sum(piece.count for piece in storage.tail.pieces),
                tail_bytes=storage.tail.nbytes,
                queued_bytes=log.queued_bytes,
                slot_files=len(storage.catalog),
                slot_rows=storage.catalog.rows,
                slot_bytes=storage.catalog.nbytes,
                far_files=storage.catalog.far.files,
                far_rows=storage.catalog.far.rows,
                far_bytes=storage.catalog.far.nbytes,
                open_handles=len(storage.slot_files.handles),
                journal_bytes=log.journal.bytes,
                archive_bytes=storage.archive.bytes,
                archive_missed=storage.archive.missed,
                producers=len(log.producers),
                requests=len(log.producers.requests),
                disk_free_bytes=self._capacity.disk_free,
                horizon_ms=self.config.horizon_ms,
                schedules=len(self._schedules),
                schedule_runs=self._schedules.fired,
                schedule_missed=self._schedules.missed,
                names=len(storage.names),
                names_replaced=self._befores[Before.REPLACED],
                names_kept=self._befores[Before.KEPT],
                draining=bool(self.draining),
            )

    def close(self) -> None:
        """Refuse further entries and close the files. What was queued and not written is lost, and
        its callers get an error. Call after the threads have stopped."""
        left = self._log.close()
        for queued in left:
            queued.fail(NotRunning("the wheel was closed", remedy="Send it again"))
        self._give_up(left)
        self._log.journal.close()
        self._storage.close()
        self._state.close()


def _told(
    done: PlainDone, batches: Sequence[PlainBatch], answer: PlainAnswer
) -> Callable[[SlotwheelError | None], None]:
    """Calls ``done`` with the answer, or with the error that comes instead."""
    return lambda error: done(batches, answer if error is None else error)


def _answered_again(
    receipt: AppendReceipt, waiting: QueuedEntry | None, *, early: bool
) -> Future[AppendReceipt]:
    """The future of a batch that was appended before. ``waiting``: the entry it waits for."""
    if waiting is not None:
        return waiting.wait_for(receipt, early).future
    future: Future[AppendReceipt] = Future()
    future.set_result(receipt)
    return future


def _once_committed(
    states: list[StoredSchedule | None], waiting: QueuedEntry | None
) -> Future[list[StoredSchedule | None]]:
    """``waiting``: the entry whose commit makes the states true; None: they are."""
    future: Future[list[StoredSchedule | None]] = Future()
    future.set_running_or_notify_cancel()  # whoever waits cannot take it back

    def done(error: SlotwheelError | None) -> None:
        if error is None:
            future.set_result(states)
        else:
            future.set_exception(error)

    if waiting is None:
        done(None)
    else:
        waiting.call(done, early=False)
    return future


def _accepted(outcome: Future[AppendReceipt] | SlotwheelError) -> Future[AppendReceipt]:
    """Return the future, or raise the error."""
    if isinstance(outcome, SlotwheelError):
        raise copy(outcome)
    return outcome
