"""Opening a data directory: from what is on disk to what was true.

Order: state store -> slot files cut to their committed lengths -> journal scanned from the
checkpoint and verified -> tail, marks, cancels and producers rebuilt. Bounded by the tail, whatever
is pending. What was committed is visible again; what was never committed never happened.

Source: DESIGN section 6 (Recover).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from .cancels import Cancels
from .config import WheelConfig
from .entry import HEADER_BYTES, Entry, Kind
from .errors import Damaged, InvalidConfiguration
from .files import Files
from .ids import KEY_BYTES
from .journal import Journal, RecoveryReport
from .mark import Marks
from .producers import Producers
from .schema import PAYLOAD, times
from .segment import DIRECTORY, is_segment_name
from .state import Sent, StateStore, Stored, Update
from .tail import Piece, piece_of

STORE_ID_BYTES = 16
_ENTRY_SLACK_BYTES = 4 << 20
"""What an entry may take on top of a batch: creation times, cancels, marks, Arrow's metadata."""


@dataclass(slots=True)
class Recovered:
    """Everything a wheel is made of, as of the moment before the stop."""

    journal: Journal
    report: RecoveryReport
    stored: Stored
    epoch: int
    """The new epoch, promised and durable."""
    fresh: bool
    config: dict[str, Any]
    marks: Marks
    pieces: list[Piece]
    next_offset: int
    rows: int
    cancel_rows: int
    cancels: Cancels
    producers: Producers


@dataclass(slots=True)
class _Replay:
    """Takes journal entries behind the checkpoint, one after the other."""

    next_offset: int
    rows: int
    cancel_rows: int
    marks: Marks
    config: Mapping[str, Any]
    cancels: Cancels
    producers: Producers
    pieces: list[Piece] = field(default_factory=list)

    def take(self, entry: Entry) -> None:
        where = f"journal entry {entry.index}"
        if entry.kind is Kind.MARK:
            self.marks = Marks.decode(bytes(entry.payload), where)
        elif entry.kind is Kind.CONFIG:
            self.config = json.loads(bytes(entry.payload))
        else:
            self._take_rows(entry, where)
        self.next_offset = max(self.next_offset, entry.base_offset + entry.count)

    def _take_rows(self, entry: Entry, where: str) -> None:
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(entry.payload), PAYLOAD)
        except (pa.ArrowException, ValueError) as error:
            raise Damaged(where, 0, expected="a record batch", found=str(error)[:200]) from None
        if rows.num_rows != entry.count:
            raise Damaged(where, 0, expected=f"{entry.count} rows", found=f"{rows.num_rows} rows")
        created = int(times(rows, "created")[0]) if rows.num_rows else 0
        piece = piece_of(entry.base_offset, rows, entry.index, created)
        self.pieces.append(piece)
        self.rows += rows.num_rows
        if piece.cancels:
            self.cancel_rows += piece.cancels
            for row, target in enumerate(rows.column("cancels").to_pylist()):
                if target is not None:
                    own = entry.base_offset + row
                    self.cancels.add(int(piece.due[row]), target, own, None)
        if entry.producer:
            sent = Sent(entry.sequence, entry.base_offset, created, entry.index, entry.count)
            self.producers.record(entry.producer, sent)


def recover(files: Files, state: StateStore, config: WheelConfig, node_id: str) -> Recovered:
    """Errors: ``Damaged``, ``UnsupportedVersion``, ``InvalidConfiguration``, ``OSError``."""
    stored = state.load()
    fresh = not stored.store_id
    if fresh:
        stored.store_id = secrets.token_bytes(STORE_ID_BYTES)
        state.commit(Update(store_id=stored.store_id))
    checkpoint = stored.checkpoint
    # An epoch is promised only after the first segment is on disk, and one segment always stays.
    if stored.epoch and not any(is_segment_name(name) for name in files.list(DIRECTORY)):
        raise Damaged(
            DIRECTORY, 0, expected="the journal's segments", found="none: its entries would be lost"
        )
    producers = Producers(config.producers_max)
    producers.load(stored.producers)
    replay = _Replay(
        next_offset=checkpoint.next_offset,
        rows=checkpoint.rows,
        cancel_rows=checkpoint.cancels,
        marks=checkpoint.marks,
        config=checkpoint.config,
        cancels=Cancels(config.cancels_remembered_max),
        producers=producers,
    )
    journal, report = Journal.open(
        files,
        first_index=checkpoint.index + 1,
        durable_floor=checkpoint.index,
        store_id=stored.store_id,
        segment_bytes=config.segment_bytes,
        entry_bytes_max=HEADER_BYTES + config.batch_bytes_max + _ENTRY_SLACK_BYTES,
        on_entry=replay.take,
    )
    epoch = max(stored.epoch, report.last_epoch, checkpoint.epoch) + 1
    state.commit(Update(epoch=epoch, vote=node_id))
    # Guard for configurations that give up I1: an offset the mark has passed is never given again.
    passed = max(
        mark.L
        for mark in (replay.marks.main, *(copy.mark for copy in replay.marks.copies.values()))
    )
    return Recovered(
        journal=journal,
        report=report,
        stored=stored,
        epoch=epoch,
        fresh=fresh,
        config=_configuration(replay.config, config),
        marks=replace(replay.marks, epoch=epoch),
        pieces=replay.pieces,
        next_offset=max(replay.next_offset, passed + 1),
        rows=replay.rows,
        cancel_rows=replay.cancel_rows,
        cancels=replay.cancels,
        producers=producers,
    )


def _configuration(known: Mapping[str, Any], config: WheelConfig) -> dict[str, Any]:
    """The group's configuration: what is stored, or a new one with a new key."""
    if not known:
        return {
            "version": 1,
            "group": config.group,
            "slots": config.slots,
            "key": secrets.token_bytes(KEY_BYTES).hex(),
        }
    if known["group"] != config.group:
        raise InvalidConfiguration(
            "the data directory belongs to another wheel group",
            got=config.group,
            limit=known["group"],
            remedy=f"Start the node with --group {known['group']}, or with another --data",
        )
    return {**known, "slots": config.slots}
