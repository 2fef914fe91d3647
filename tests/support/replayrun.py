"""A finished run of three peers, written straight to disk; and faults, planted so that only what
they are about is wrong.

Theory: a run is first described (who accepted, held and delivered which offsets), then written with
the real encoders. A fault of meaning changes the description, so every checksum, index and catalog
of the files is right. Damage changes bytes of the written files.

The run: messages are accepted in entries of ``ENTRY`` rows. Those due by ``NOW_MS`` have left: they
were delivered to embedded topics, first by peer 0, then by peer 1, but for a few that were
cancelled or died; the cancelled ones had names, and were replaced by the messages before the cancel
rows. Their slot files and the journal up to the checkpoint are in the archive. Others are pending:
in live slot files below the offset that is spilled, in the journal alone from there.
"""

from __future__ import annotations

import json
import os
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC, EXPIRED
from slotwheel.replay.facts.fact import IN_FLIGHT_MS
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.files import SLOT_DIRECTORY, OsFiles
from slotwheel.wheel.ids import LONG_FROM, IdMint
from slotwheel.wheel.journal.entry import (
    ENTRY_VERSION,
    NOTES_VERSION,
    Entry,
    EntryKind,
    EntryPart,
    NoteKind,
    with_parts,
)
from slotwheel.wheel.journal.segment import DIRECTORY, index_of
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.names import NAME_HEADER
from slotwheel.wheel.rows import from_numpy, header_column, sort_rows
from slotwheel.wheel.schedules import ScheduleDelete, SchedulePut, encode_changes
from slotwheel.wheel.schema import PAYLOAD, ROW, TIME, Int64s
from slotwheel.wheel.slots.archive import archived_slot_name
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, SECOND_S, ends_ms, path_of, slot_with
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import Checkpoint, LmdbState, SlotInfo, StateUpdate
from slotwheel.wheel.topics.topicfile import (
    IndexHeader,
    IndexRecord,
    index_path,
    schema_of,
    segment_path,
)
from support.factrows import KEY, MINT, Keeps, topic_rows
from support.journals import open_journal

GROUP = "lab"
TERMS = GroupTerms(GROUP, KEY.hex())
PEERS = ("one", "two", "three")
TOPIC = "orders"
START_MS = 1_790_002_720_000
"""Messages leave from a minute later on, shortly before an hour is over."""
NOW_MS = START_MS + 120_000
LATER_MS = START_MS + 10 * 365 * 86_400_000
"""When the pending ones are due: long after any test."""
DAY = "2026-09-21"
LASTING = 1002
"""A message that expires, and was delivered in time."""
TTL_MS = 3
ENTRY = 100
SEGMENT_BYTES = 64 << 10
TOPIC_BLOCK = 250
Deliveries = list[tuple[int, int]]
"""(offset, delivered in ms), in the order of the topic."""
Pieces = list[tuple[pa.RecordBatch, int]]
"""(a row, when it was delivered in ms), likewise."""


@dataclass
class PeerRun:
    """What one peer's directory says. ``entries``: offsets of each entry, ascending; ``live`` and
    ``archived``: offsets by slot; ``dead``: of the dead-letter topic."""

    name: str
    entries: list[Int64s]
    live: dict[int, list[int]]
    archived: dict[int, list[int]]
    delivered: Deliveries = field(default_factory=list)
    dead: Deliveries = field(default_factory=list)
    marks: Marks = field(default_factory=Marks)
    elsewhere: dict[str, Deliveries] = field(default_factory=dict)
    """Of topics that no message was for."""
    altered: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """What differs from ``Run.rows``: by place ("journal", "slot" or "topic") and offset."""


@dataclass
class Run:
    """``rows``: row ``offset`` is the message (or cancel row) of that offset."""

    rows: pa.RecordBatch
    spilled: int
    peers: list[PeerRun]
    cancelled: list[int]
    buried: list[int]
    expired: list[int]
    """Of ``buried``: not delivered before they expired, ``TTL_MS`` after they were due."""
    group: str = GROUP
    store: str = "store of peer"
    """How the stores' ids begin."""
    segment_bytes: int = SEGMENT_BYTES
    topic_blocks: int = 1_000
    """How many blocks a segment of an embedded topic has."""
    deleted_floor: int | None = None
    """As of ``StoredState``."""
    kept_ms: int = NOW_MS
    """The mark at which the archive got its segments."""
    changes: dict[int, list[SchedulePut | ScheduleDelete]] = field(default_factory=dict)
    """Changes of schedules, by the number of the entry with rows before which each stands."""
    notes: dict[int, bytes] = field(default_factory=dict)
    """What entries note of runs of schedules, by their numbers."""

    @property
    def due(self) -> Int64s:
        return np.asarray(self.rows.column("due").cast(pa.int64()))

    def id_of(self, offset: int) -> str:
        return TERMS.id_of(int(self.due[offset]), offset)

    def pick(
        self, offsets: Iterable[int], peer: PeerRun | None = None, place: str = ""
    ) -> pa.RecordBatch:
        """The rows, as this peer has them in that place."""
        wanted = list(offsets)
        rows = self.rows.take(pa.array(wanted, pa.int64()))
        for number, offset in enumerate(wanted):
            changes = peer.altered.get((place, offset)) if peer is not None else None
            if changes:
                rows = with_changes(rows, number, changes)
        return rows

    def holder(self, offset: int) -> PeerRun:
        """The peer that delivered it."""
        return next(p for p in self.peers if any(o == offset for o, _ in p.delivered))

    def a_delivered(self) -> int:
        """A message from the middle of what peer 0 delivered."""
        return self.peers[0].delivered[len(self.peers[0].delivered) // 2][0]

    def reasons(self, buried: Sequence[int]) -> list[str]:
        """Why these messages died."""
        return [EXPIRED if one in self.expired else "too large" for one in buried]

    def a_pending(self) -> int:
        """A message that every peer has in a live slot file."""
        live = self.peers[0].live
        return live[sorted(live)[len(live) // 2]][0]

    def store_of(self, number: int) -> bytes:
        return f"{self.store[:14]} {number}".ljust(16).encode()

    def config(self) -> dict[str, Any]:
        config = {
            "version": 1,
            "group": self.group,
            "slots": 1 << 20,
            "key": KEY.hex(),
            LONG_FROM: 0,
        }
        if len(self.peers) == 1:
            return config
        stores = {peer.name: self.store_of(n).hex() for n, peer in enumerate(self.peers)}
        return config | {"stores": stores}

    def write(self, root: Path) -> list[str]:
        """The peers' directories, below ``root``."""
        for number, peer in enumerate(self.peers):
            _write_peer(self, peer, number, root / peer.name)
        return [str(root / peer.name) for peer in self.peers]


def made(
    count: int = 6_000, seconds: int = 20, names: Sequence[str] = PEERS, *, far: bool = False
) -> Run:
    """A run without a fault: ``count`` rows, of which two thirds have left. ``names``: of its
    peers; one alone is a node without peers. ``far``: messages with an even offset were due far
    ahead when they were spilled, and lie in slots of an hour, or of a day where 4 divides it; a
    cancel came later, and lies in a slot of a second."""
    offset = np.arange(count, dtype=np.int64)
    random = np.random.default_rng(count)
    entry = offset // ENTRY
    created = START_MS + entry * 10
    spilled = int(count * 0.9) // ENTRY * ENTRY
    due = START_MS + 60_000 + random.integers(0, seconds * 1_000, count)
    pending = (offset % 3 == 2) | (offset >= spilled)
    due[pending] = LATER_MS + random.integers(0, seconds * 1_000, int(pending.sum()))
    # Each tenth entry's last row cancels the first row of the entry before.
    cancels = [
        int(o) for o in offset[(offset % (10 * ENTRY) == 10 * ENTRY - 1) & (offset < spilled)]
    ]
    targets = [at - 2 * ENTRY + 1 for at in cancels]
    due[cancels] = due[targets]
    buried = [
        int(o) for o in offset[(offset % 700 == 301) & ~pending] if o not in {*cancels, *targets}
    ]
    expired = buried[1::2]
    rows = _rows(offset, due, created, dict(zip(cancels, targets, strict=True)), expired)
    slots: dict[int, list[int]] = {}
    for one in range(spilled):
        width = _width_of(one) if far and one not in cancels else SECOND_S
        slots.setdefault(slot_with(int(due[one]) // 1000, width), []).append(one)
    gone = due < NOW_MS
    messages = gone & (offset < spilled)
    messages[[*cancels, *targets, *buried]] = False
    order = sorted((int(due[o]), int(o)) for o in np.flatnonzero(messages))
    deliveries = [(o, at + 3) for at, o in order]
    half = len(deliveries) // 2
    marks = Marks(Mark(NOW_MS, 0, spilled - 1), 1, {}, int((gone & (offset < spilled)).sum()))
    peers = [
        PeerRun(
            name,
            [offset[at : at + ENTRY] for at in range(0, count, ENTRY)],
            {s: list(keys) for s, keys in slots.items() if ends_ms(s) > NOW_MS},
            {s: list(keys) for s, keys in slots.items() if ends_ms(s) <= NOW_MS},
            marks=marks,
        )
        for name in names
    ]
    peers[0].delivered = deliveries[:half]
    peers[min(1, len(peers) - 1)].delivered += deliveries[half:]
    peers[0].dead = [(o, int(due[o]) + TTL_MS) for o in buried]
    return Run(rows, spilled, peers, targets, buried, expired)


def _width_of(offset: int) -> int:
    return DAY_S if offset % 4 == 0 else HOUR_S if offset % 2 == 0 else SECOND_S


def _rows(
    offset: Int64s,
    due: Int64s,
    created: Int64s,
    cancels: dict[int, int],
    expired: Collection[int],
) -> pa.RecordBatch:
    count = len(offset)
    headers = [[("n", b"%d" % o)] if o % 50 == 1 and o not in cancels else [] for o in range(count)]
    for cancel, target in cancels.items():
        for one in (target, cancel - 1):  # the later one replaces the one before
            headers[one].append((NAME_HEADER, b"order-%d" % target))
    for one in expired:
        headers[one].append((NAME_HEADER, b"expiring-%d" % one))
    for one in [one for one in (*expired, LASTING) if one < count]:
        headers[one].append((EXPIRES_HEADER, b"%d" % (due[one] + TTL_MS)))
    mine = [cancels.get(o) for o in range(count)]
    own = [o not in cancels for o in range(count)]
    columns = [
        pa.array(offset),
        from_numpy(due, TIME),
        from_numpy(created, TIME),
        pa.array(mine, pa.int64()),
        pa.array([TOPIC if yes else "" for yes in own], pa.utf8()),
        pa.nulls(count, pa.int32()),
        pa.array([b"key %d" % (o % 7) if own[o] else None for o in range(count)], pa.binary()),
        pa.array([b"value %d" % o if own[o] else None for o in range(count)], pa.binary()),
        header_column(headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


def with_changes(rows: pa.RecordBatch, number: int, changes: Mapping[str, Any]) -> pa.RecordBatch:
    """The batch with other fields in one of its rows."""
    columns = []
    for field_, column in zip(rows.schema, rows.columns, strict=True):
        if field_.name in changes:
            one = [changes[field_.name]]
            new = (
                header_column(one)
                if field_.name == "headers"
                else pa.array(one, pa.int64()).cast(field_.type)
                if field_.type == TIME
                else pa.array(one, field_.type)
            )
            columns.append(pa.concat_arrays([column[:number], new, column[number + 1 :]]))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _write_peer(run: Run, peer: PeerRun, number: int, root: Path) -> None:
    files = OsFiles(root)
    index = _write_journal(run, peer, files, run.store_of(number))
    catalog: dict[int, SlotInfo] = {}
    slot_files = SlotFiles(files, 8)
    for slot, offsets in sorted({**peer.archived, **peer.live}.items()):
        if offsets:
            rows = sort_rows(run.pick(offsets, peer, "slot"))
            catalog[slot] = slot_files.append(block_of(slot, rows), None)
    slot_files.close()
    for slot in set(peer.archived) & set(catalog):
        info = catalog.pop(slot)
        _move(
            root / path_of(slot),
            root / "archive" / DAY / SLOT_DIRECTORY / archived_slot_name(slot, info),
        )
    for segment in sorted((root / DIRECTORY).glob("*.journal"))[:-1]:
        after = [p for p in (root / DIRECTORY).glob("*.journal") if p.name > segment.name]
        if index_of(min(after).name) <= index + 1:
            os.utime(segment, ns=(run.kept_ms * 1_000_000,) * 2)
            _move(segment, root / "archive" / DAY / DIRECTORY / segment.name)
    write_state(run, peer, number, root, index, run.spilled, catalog)
    for topic, deliveries in peer.elsewhere.items():
        write_topic(root, topic, [(run.pick([o]), at) for o, at in deliveries], run.group)
    if peer.delivered:
        rows = run.pick([o for o, _ in peer.delivered], peer, "topic")
        orders = [(rows.slice(n, 1), at) for n, (_, at) in enumerate(peer.delivered)]
        write_topic(root, TOPIC, orders, run.group, run.topic_blocks)
    if peer.dead:
        keeps = Keeps()
        rows = run.pick([o for o, _ in peer.dead], peer, "topic")
        DeadLetters(keeps, None).bury(rows, run.reasons([o for o, _ in peer.dead]), [])
        (letters,) = keeps.rows
        pieces = [(letters.slice(n, 1), at) for n, (_, at) in enumerate(peer.dead)]
        write_topic(root, DEAD_LETTER_TOPIC, pieces, run.group)
    files.close()


def write_state(
    run: Run,
    peer: PeerRun,
    number: int,
    root: Path,
    index: int,
    spilled: int,
    slots: Mapping[int, SlotInfo],
) -> None:
    """A state store with a checkpoint at that entry, which ends below the offset ``spilled``."""
    cancels = sum(at + 2 * ENTRY < spilled for at in run.cancelled)
    checkpoint = Checkpoint(index, 1, spilled, spilled, cancels, peer.marks, run.config())
    key = KEY if len(run.peers) > 1 else None
    state = LmdbState(root)
    update = StateUpdate(1, "one", run.store_of(number), checkpoint, slots)
    floor = run.deleted_floor
    state.commit(replace(update, voter=True, group_key=key, deleted_floor=floor))
    state.close()


def _write_journal(run: Run, peer: PeerRun, files: OsFiles, store: bytes) -> int:
    """Returns the index of the last entry that is spilled."""
    journal, _, _ = open_journal(
        files, store_id=store, segment_bytes=run.segment_bytes, entry_bytes_max=8 << 20
    )
    journal.append([Entry(EntryKind.CONFIG, 1, 1, 0, 0, 0, -1, json.dumps(run.config()).encode())])
    spilled_index = index = 1
    for number, offsets in enumerate(peer.entries):
        base = int(offsets[0])
        for change in run.changes.get(number, ()):
            index += 1
            data = encode_changes([change])
            changed = Entry(EntryKind.SCHEDULES, 1, index, base, 0, 0, -1, data)
            journal.append([replace(changed, version=NOTES_VERSION)])
        index += 1
        rows = run.pick(offsets, peer, "journal")
        payload = pa.RecordBatch.from_arrays(rows.columns[1:], schema=PAYLOAD)
        data, version = bytes(payload.serialize()), ENTRY_VERSION
        if number in run.notes:
            parts = [EntryPart(0, -1, len(offsets))]
            data = with_parts(data, parts, {NoteKind.RUNS: run.notes[number]})
            version = NOTES_VERSION
        entry = Entry(EntryKind.ROWS, 1, index, base, len(offsets), 0, -1, data)
        journal.append([replace(entry, version=version)])
        if offsets[-1] < run.spilled:
            spilled_index = index
    last = index + 1
    end = int(peer.entries[-1][-1]) + 1
    journal.append([Entry(EntryKind.MARK, 1, last, end, 0, 0, -1, peer.marks.encode())])
    journal.sync()
    journal.close()
    return spilled_index


def write_topic(
    root: Path,
    topic: str,
    pieces: Pieces,
    group: str = GROUP,
    blocks: int = 1_000,
    mint: IdMint = MINT,
) -> None:
    """Segments of so many blocks, and their indexes; a block has one moment of delivery. ``mint``:
    of the ids' checks."""
    for first in range(0, len(pieces), blocks * TOPIC_BLOCK):
        part = pieces[first : first + blocks * TOPIC_BLOCK]
        _write_topic_segment(root, topic, part, first, group, mint)


def _write_topic_segment(
    root: Path, topic: str, pieces: Pieces, first: int, group: str, mint: IdMint
) -> None:
    schema = schema_of(topic, group)
    message = bytes(schema.serialize())
    stream, crc = bytearray(message), crc32c(message)
    index = bytearray(IndexHeader(first, len(message), crc).encode())
    for at in range(0, len(pieces), TOPIC_BLOCK):
        part = pieces[at : at + TOPIC_BLOCK]
        rows = pa.Table.from_batches([one for one, _ in part]).combine_chunks().to_batches()[0]
        batch = topic_rows(rows, topic, first + at, [ms for _, ms in part], group, mint)
        data = bytes(batch.serialize())
        stream += data
        crc = crc32c(data, crc)
        index += IndexRecord(first + at, len(stream), len(part), crc, part[-1][1]).encode()
    path = root / segment_path(topic, first)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stream)
    (root / index_path(topic, first)).write_bytes(index)


def _move(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)


# Faults of meaning: they change the description, and return the offset they are about.


def remove_delivered(run: Run) -> int:
    offset = run.a_delivered()
    peer = run.holder(offset)
    peer.delivered = [one for one in peer.delivered if one[0] != offset]
    return offset


def repeat_delivered(run: Run) -> int:
    offset = run.a_delivered()
    peer = run.holder(offset)
    peer.delivered.append((offset, peer.delivered[-1][1]))
    return offset


def repeat_dead(run: Run) -> int:
    peer = run.peers[0]
    peer.dead.append(peer.dead[0])
    return peer.dead[0][0]


def deliver_at(run: Run, shift_ms: int, offset: int | None = None) -> int:
    """Delivered so long after it was due; before, when negative. ``offset``: of the message."""
    offset = run.a_delivered() if offset is None else offset
    peer = run.holder(offset)
    due = int(run.due[offset])
    peer.delivered = [(o, due + shift_ms if o == offset else at) for o, at in peer.delivered]
    return offset


def deliver_early(run: Run) -> int:
    return deliver_at(run, -1)


def deliver_late(run: Run) -> int:
    return deliver_at(run, 1_000)


def deliver_expired(run: Run) -> int:
    return deliver_at(run, TTL_MS + IN_FLIGHT_MS, LASTING)


def repeat_as_expired(run: Run) -> int:
    """Delivered, and after a crash it had expired."""
    offset = run.expired[0]
    one = offset, int(run.due[offset]) + TTL_MS - 1
    peer = next(peer for peer in run.peers if peer.delivered and peer.delivered[-1][1] >= one[1])
    insort(peer.delivered, one, key=itemgetter(1))
    return offset


def forget_expired(run: Run) -> int:
    offset = run.expired[0]
    run.peers[0].dead = [one for one in run.peers[0].dead if one[0] != offset]
    return offset


def bury_too_soon(run: Run) -> int:
    """As if expired, 1 ms before it was."""
    peer, offset = run.peers[0], run.expired[0]
    peer.dead = [(o, at - (o == offset)) for o, at in peer.dead]
    return offset


def move_row(run: Run) -> int:
    """To the slot file of the next second, on one peer."""
    offset = run.a_pending()
    live = run.peers[1].live
    second = int(run.due[offset]) // 1000
    live[second].remove(offset)
    live[second + 1].append(offset)
    return offset


def miss_row(run: Run) -> int:
    """One peer does not hold it."""
    offset = run.a_pending()
    run.peers[2].live[int(run.due[offset]) // 1000].remove(offset)
    return offset


def add_row(run: Run) -> int:
    """One peer holds a row that no journal ever took: their last one does not stand there."""
    offset = int(run.rows.num_rows) - 1
    for peer in run.peers:
        peer.entries[-1] = peer.entries[-1][:-1]
    run.peers[2].live.setdefault(int(run.due[offset]) // 1000, []).append(offset)
    return offset


def deliver_cancelled(run: Run) -> int:
    offset = next(o for o in run.cancelled if run.due[o] < NOW_MS)
    peer = run.peers[min(1, len(run.peers) - 1)]
    peer.delivered.append((offset, max(int(run.due[offset]), peer.delivered[-1][1])))
    return offset


def name_twice(run: Run) -> int:
    """Two pending messages get the same name."""
    first = run.a_pending()
    spilled = [offset for offsets in run.peers[0].live.values() for offset in offsets]
    second = min(o for o in spilled if o > first + ENTRY)
    for offset in (first, second):
        _name(run, offset, first)
    return second


def keep_too_late(run: Run) -> int:
    """A pending message has the name that a later one had, which was cancelled an entry later: as
    if that had been kept out, but not by its own entry."""
    kept = next(o for o in run.cancelled if run.due[o] > NOW_MS)
    spilled = [offset for offsets in run.peers[0].live.values() for offset in offsets]
    _name(run, max(o for o in spilled if o < kept - ENTRY), kept)
    return kept


def lose_replacing(run: Run) -> int:
    """A message was replaced, and the row that would cancel it is a further message."""
    replaced = next(o for o in run.cancelled if run.due[o] > NOW_MS)
    run.cancelled.remove(replaced)
    cancel = int(pc.index(run.rows.column("cancels"), replaced).as_py())
    message = {"topic": TOPIC, "cancels": None, "key": b"key", "value": b"value"}
    run.rows = with_changes(run.rows, cancel, message)
    return cancel - 1


def _name(run: Run, offset: int, replaced: int) -> None:
    """Give a message the name of the one that was replaced."""
    header = NAME_HEADER, b"order-%d" % replaced
    run.rows = with_changes(run.rows, offset, {"headers": [header]})


def deliver_dead(run: Run) -> int:
    offset = run.buried[0]
    peer = run.peers[min(1, len(run.peers) - 1)]
    peer.delivered.append((offset, max(int(run.due[offset]), peer.delivered[-1][1])))
    return offset


def accept_twice(run: Run) -> int:
    """One peer's last entry stands in its journal again."""
    peer = run.peers[0]
    peer.entries.append(peer.entries[-1][-1:])
    return int(peer.entries[-1][0])


def claim_everything(run: Run) -> None:
    """Every peer's marks, in journal and checkpoint, cover every row there is."""
    end = run.rows.num_rows
    everything = Marks(Mark(int(run.due.max()), end, end - 1), 2, {}, end)
    for peer in run.peers:
        peer.marks = everything


# Damage: bytes of a written file.


def first(root: Path, pattern: str) -> Path:
    """The second file of that pattern, as a first one is often special; or the only one."""
    found = sorted(root.glob(pattern))
    return found[min(1, len(found) - 1)]
