"""Data directories of peers, made by hand: slot files, journal and state that belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

from slotwheel.reading.verify.journal import verify_journal
from slotwheel.reading.verify.slots import verify_slots, verify_state
from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.files import SLOT_DIRECTORY, Files
from slotwheel.wheel.findings import CheckedFile
from slotwheel.wheel.ids import LONG_FROM
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.journal import Journal
from slotwheel.wheel.journal.segment import DIRECTORY, SegmentHeader
from slotwheel.wheel.journal.writer import SegmentWriter
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.peers.snapshot import SnapshotSource
from slotwheel.wheel.peers.snapshot_request import SnapshotRequest
from slotwheel.wheel.peers.snapshot_sink import SnapshotSink
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, file_name, path_of, slot_with
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import (
    Checkpoint,
    ProducerEntry,
    SlotInfo,
    StateStore,
    StateUpdate,
    StoredState,
)
from slotwheel.wheel.switch import complete_switch
from support.crashfs import CrashFiles, Mode
from support.journals import load, open_journal
from support.memstate import MemoryState
from support.steps import Steps
from support.wheels import piece_at, rows_at

GROUP = "orders"
CONFIG = {"version": 1, "group": GROUP, "slots": 7200, "key": "5a" * 16, LONG_FROM: 0}
SECOND = 1_900_000_000
HOUR, DAY = slot_with(SECOND, HOUR_S), slot_with(SECOND, DAY_S)

Row = tuple[int, int]
"""``(due in ms, offset)``."""


def payload(base_offset: int, due: Sequence[int], pad: int = 0) -> bytes:
    """The payload of a ROWS entry; row ``offset`` has the content that ``rows_at`` gives it."""
    return bytes(piece_at(base_offset, due, pad=pad).rows.serialize())


def rows_entry(index: int, epoch: int, base_offset: int, due: Sequence[int]) -> Entry:
    return Entry(
        EntryKind.ROWS, epoch, index, base_offset, len(due), 0, -1, payload(base_offset, due)
    )


def mark_entry(index: int, epoch: int, next_offset: int, marks: Marks) -> Entry:
    return Entry(EntryKind.MARK, epoch, index, next_offset, 0, 0, -1, marks.encode())


def write_slots(files: Files, rows: Mapping[int, Sequence[Sequence[Row]]], pad: int = 0) -> Any:
    """Slot files of slot -> blocks of rows; the catalog, durable."""
    slots = SlotFiles(files, 8)
    catalog: dict[int, SlotInfo] = {}
    for slot, blocks in rows.items():
        for keys in blocks:
            block = block_of(slot, rows_at(sorted(keys), pad=pad))
            catalog[slot] = slots.append(block, catalog.get(slot))
    slots.close()
    files.sync_all()
    return catalog


@dataclass
class Replica:
    """One peer's directory, in memory, and how to look at it."""

    files: Any = field(default_factory=CrashFiles)
    state: Any = None
    store: bytes = b"replica-one-0000"

    def __post_init__(self) -> None:
        if self.state is None:
            steps = getattr(self.files, "steps", None)
            self.state = MemoryState(step=steps and steps.hit)

    def fill(
        self,
        *,
        index: int,
        slots: Mapping[int, Sequence[Sequence[Row]]],
        entries: Sequence[Entry],
        epoch: int = 1,
        entry_epoch: int = 1,
        marks: Marks | None = None,
        producers: Mapping[int, Sequence[ProducerEntry]] | None = None,
        pad: int = 0,
        first_index: int = 1,
        next_offset: int | None = None,
        before_epoch: int = 0,
    ) -> None:
        """A checkpoint at ``index`` with these slot files; a journal of ``entries``, which begins
        behind an entry of epoch ``before_epoch``."""
        catalog = write_slots(self.files, slots, pad)
        count = sum(info.rows for info in catalog.values())
        behind = [one for one in entries if one.index > index]
        if next_offset is None:
            end = max((info.highest + 1 for info in catalog.values()), default=0)
            next_offset = behind[0].base_offset if behind else end
        checkpoint = Checkpoint(
            index=index,
            epoch=entry_epoch,
            next_offset=next_offset,
            rows=count,
            marks=marks or Marks(),
            config=CONFIG,
        )
        self.state.commit(
            StateUpdate(
                epoch=epoch,
                vote="node-a",
                voter=True,
                store_id=self.store,
                checkpoint=checkpoint,
                slots=catalog,
                producers=producers or {},
            )
        )
        self.files.make_directory(DIRECTORY)
        header = SegmentHeader(first_index, before_epoch, self.store)
        SegmentWriter.create(self.files, header).close()
        journal = self.journal(first_index=first_index)
        for one in entries:
            journal.append([one])
        journal.sync()
        journal.close()

    def journal(self, first_index: int | None = None) -> Journal:
        return self.journal_and_entries(first_index)[0]

    def journal_and_entries(self, first_index: int | None = None) -> tuple[Journal, list[Entry]]:
        """Open the journal; the entries behind the checkpoint."""
        first = first_index or self.state.load().checkpoint.index + 1
        journal, entries, _ = open_journal(
            self.files, first_index=first, store_id=self.store, entry_bytes_max=1 << 20
        )
        return journal, entries

    def crash(self, mode: Mode, rng: Random, steps: Steps | None = None) -> Replica:
        """What the next process finds."""
        files = self.files.survivors(mode, rng, steps=steps)
        return Replica(files, MemoryState(self.state.durable, files.steps.hit), self.store)

    def slot_content(self) -> dict[int, bytes]:
        """The committed bytes of every slot file of the catalog that is there."""
        there = self.files.list(SLOT_DIRECTORY)
        return {
            slot: load(self.files, path_of(slot))[: info.length]
            for slot, info in self.state.load().slots.items()
            if file_name(slot) in there
        }

    def checked(self) -> Iterator[CheckedFile]:
        yield verify_state(self.state.load())
        yield from verify_journal(self.files, self.state.load)
        yield from verify_slots(self.files, self.state.load)

    def faults(self) -> list[str]:
        return [str(fault) for item in self.checked() for fault in item.faults]

    def notes(self) -> list[str]:
        return [str(note) for item in self.checked() for note in item.notes]


def due_in(second: int, *ms: int) -> list[int]:
    return [second * TICK_MS + one for one in ms]


def old_peer() -> Replica:
    """Fell behind at entry 4; entries 5 to 12 in four segments, never committed."""
    old = Replica()
    slots = {
        SECOND: [[(SECOND * TICK_MS + 5, 0), (SECOND * TICK_MS + 6, 1)]],
        SECOND + 1: [[((SECOND + 1) * TICK_MS, 2)]],
        HOUR: [[((SECOND + 7) * TICK_MS + 1, 3)]],
    }
    entries = [rows_entry(n, 1, n - 1, due_in(SECOND + 20, n)) for n in range(1, 13)]
    producers = {7: [ProducerEntry(1, 0, 1, 1, 1)], 9: [ProducerEntry(2, 1, 1, 2, 1)]}
    old.fill(index=4, slots=slots, entries=entries, epoch=6, producers=producers)
    return old


def new_peer() -> Replica:
    """The sender: its checkpoint is at entry 9, so the receiver's new segment has the name that an
    old one of its own had. Some seconds are the same, with other bytes."""
    new = Replica(store=b"replica-two-0000")
    base = SECOND * TICK_MS
    slots = {
        SECOND: [[(base + 5, 0), (base + 6, 1)], [(base + 1, 7), (base + 999, 8)]],
        SECOND + 2: [[(base + 2000 + n, 20 + n) for n in range(9)]],
        HOUR: [[(base + 7001, 3)], [(base + 7001, 9)]],
        DAY: [[(base + 3_000_000, 29)]],
    }
    entries = [rows_entry(n, 4, 20 + n, due_in(SECOND + 20, n)) for n in range(10, 12)]
    marks = Marks(Mark(base - 1, 1 << 60, 6), 4, {}, 3, 0, 3, 0)
    producers = {
        8: [ProducerEntry(5, 20, 3, 9, 9)],
        9: [ProducerEntry(2, 1, 1, 2, 1), ProducerEntry(3, 7, 2, 5, 2)],
    }
    new.fill(
        index=9,
        slots=slots,
        entries=entries,
        epoch=5,
        entry_epoch=3,
        marks=marks,
        producers=producers,
        first_index=10,
        before_epoch=3,
        pad=40,
    )
    return new


SourceFor = Callable[[SnapshotRequest], SnapshotSource]


def source_for(sender: Replica) -> SourceFor:
    """What ``sender`` answers a request with."""
    return lambda request: SnapshotSource(sender.files, sender.state.load(), request)


def begin_transfer(
    peer: Replica, source_for: SourceFor, *, chunks: int | None = None, chunk_bytes: int = 500
) -> SnapshotSink:
    """One attempt of ``peer`` to receive a snapshot, which breaks off after so many chunks."""
    sink = SnapshotSink(peer.files, GROUP)
    source = source_for(sink.begin())
    sink.header(source.header())
    for chunk in islice(source.chunks(chunk_bytes), chunks):
        sink.chunk(*chunk)
    return sink


def install(files: Files, state: StateStore, update: StateUpdate) -> StoredState:
    """``PeerWheel.install`` of a directory that nobody has open."""
    state.commit(update)
    return complete_switch(files, state)


def transfer(peer: Replica, source_for: SourceFor, *, chunk_bytes: int = 500) -> StateUpdate:
    """One attempt that does not break off; what one commit makes true."""
    return begin_transfer(peer, source_for, chunk_bytes=chunk_bytes).finish()
