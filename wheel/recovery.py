"""Recovery: a data directory is opened, and what was true before the stop is true again.

Order: state store -> slot files cut to their committed lengths -> journal scanned from the
checkpoint and verified -> what lies behind the checkpoint, entry by entry. The time it takes is
bounded by the tail, however much is pending. On a node without peers all of it is committed; with
peers it waits until a master commits it. What was never committed never happened.

See docs/durability.md, "What happens at a crash".
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import HORIZON, WheelConfig, known_horizon_ms
from .errors import Damaged, InvalidConfiguration
from .files import Files
from .ids import KEY_BYTES, LONG_FROM
from .journal.entry import HEADER_BYTES, Entry
from .journal.journal import Journal, RecoveryReport
from .journal.producers import Producers
from .journal.queued import QueuedEntry, arrived
from .journal.segment import DIRECTORY, STORE_ID_BYTES, is_segment_name
from .state import StateStore, StateUpdate, StoredState
from .switch import complete_switch

_ENTRY_SLACK_BYTES = 4 << 20
"""Bytes of an entry beside its batch: marks, Arrow's metadata."""
_ROW_SLACK_BYTES = 128
"""For each row of a batch: its creation time, and where it has the name of another message, what
became of that one, and the cancel row of that one, some 90 bytes together."""


@dataclass(slots=True)
class RecoveredState:
    """Everything a wheel is made of, as of the moment before the stop."""

    journal: Journal
    report: RecoveryReport
    stored: StoredState
    fresh: bool
    entries: list[QueuedEntry]
    """The entries that the journal holds behind the checkpoint."""
    producers: Producers

    @property
    def config(self) -> Mapping[str, Any]:
        """The group's newest configuration, committed or not; empty if there is none."""
        for queued in reversed(self.entries):
            if queued.config is not None:
                return queued.config
        return self.stored.checkpoint.config

    @property
    def last_epoch(self) -> int:
        """The highest epoch that an entry was made in, or that was promised to a peer."""
        return max(self.stored.epoch, self.report.last_epoch, self.stored.checkpoint.epoch)


def recover(
    files: Files, state: StateStore, config: WheelConfig, *, replicated: bool = False
) -> RecoveredState:
    """Open state, slot files and journal of a data directory, in that order.

    Errors: ``Damaged``, ``UnsupportedVersion``, ``InvalidConfiguration``, ``OSError``."""
    stored = complete_switch(files, state)
    fresh = not stored.store_id
    if fresh:
        stored.store_id = secrets.token_bytes(STORE_ID_BYTES)
        stored.cancelled_floor = stored.deleted_floor = -1
        state.commit(StateUpdate(store_id=stored.store_id, cancelled_floor=-1, deleted_floor=-1))
    checkpoint = stored.checkpoint
    # An epoch is promised only after the first segment is on disk, and one segment always stays.
    if stored.epoch and not any(is_segment_name(name) for name in files.list(DIRECTORY)):
        raise Damaged(
            DIRECTORY, 0, expected="the journal's segments", found="none: its entries would be lost"
        )
    producers = Producers(config.producers_max, config.requests_max)
    producers.load(stored.producers)
    committed_index = checkpoint.index if replicated else None
    entries: list[QueuedEntry] = []

    def add(entry: Entry) -> None:
        queued = arrived(entry)
        entries.append(queued)
        upto = entry.index if committed_index is None else committed_index
        for producer, record in queued.sent:
            producers.record(producer, record, upto)

    journal, report = Journal.open(
        files,
        first_index=checkpoint.index + 1,
        durable_floor=checkpoint.index,
        store_id=stored.store_id,
        segment_bytes=config.segment_bytes,
        entry_bytes_max=entry_bytes_max(config),
        on_entry=add,
    )
    recovered = RecoveredState(journal, report, stored, fresh, entries, producers)
    try:
        _check(recovered.config, config, replicated=replicated)
        if stored.cancelled_floor is None or stored.deleted_floor is None:
            # By a version without records of cancels: of what has left by now none is known. By one
            # without a floor of deleted slots: what has left by now may be gone.
            marks = (queued.marks for queued in entries if queued.marks is not None)
            floor_ms = max(known.main.furthest_ms for known in (checkpoint.marks, *marks))
            if stored.cancelled_floor is None:
                stored.cancelled_floor = floor_ms
            stored.deleted_floor = floor_ms
            state.commit(
                StateUpdate(cancelled_floor=stored.cancelled_floor, deleted_floor=floor_ms)
            )
    except BaseException:
        journal.close()
        raise
    return recovered


def entry_bytes_max(config: WheelConfig) -> int:
    """No entry that is made of a batch within the limits has more bytes."""
    rows_bytes = config.batch_bytes_max + _ROW_SLACK_BYTES * config.batch_rows_max
    return HEADER_BYTES + rows_bytes + _ENTRY_SLACK_BYTES


def _check(known: Mapping[str, Any], config: WheelConfig, *, replicated: bool) -> None:
    """Raise unless a directory with the configuration ``known`` may be opened with ``config``."""
    if not known:
        return
    if known["group"] != config.group:
        raise InvalidConfiguration(
            "the data directory belongs to another wheel group",
            got=config.group,
            limit=known["group"],
            remedy=f"Start the node with --group {known['group']}, or with another --data",
        )
    if replicated and "stores" not in known:
        raise InvalidConfiguration(
            "the data directory was filled by a node without peers and cannot join a group",
            remedy="Give a new --data; started without --peer, this one delivers what is pending",
        )
    if not replicated and "stores" in known:
        raise InvalidConfiguration(
            "the data directory belongs to a group of peers; alone, it would go another way",
            limit=", ".join(sorted(known["stores"])),
            remedy="Start it with the same --node-id and --peer as before",
        )


def configuration(
    known: Mapping[str, Any], config: WheelConfig, next_offset: int
) -> dict[str, Any]:
    """The configuration that a master appends: the group's own, or a new one with a new key.

    ``known`` is empty for a new group. ``slots`` is the most that the group ever had, and
    ``horizon_ms`` the longest horizon, if that was ever longer: by them a proof tells from when on
    all that is due was accepted behind the begin of a journal. *Example.* With
    86,400 slots a message is accepted that is due in a day, then the node is started with 7,200: in
    three hours its journal begins behind that message, and a proof must not say that all that is
    due in five hours stands in there.

    ``next_offset``: that of the entry. Of a group whose messages have short ids until now, those
    from it on have long ones (``ids``): they are all behind this entry, so no message gets an id
    before that is settled."""
    if known:
        slots = max(known["slots"], config.slots)
        made = {LONG_FROM: next_offset, **known, "slots": slots}
    else:
        made = {
            LONG_FROM: next_offset,
            "version": 1,
            "group": config.group,
            "slots": config.slots,
            "key": secrets.token_bytes(KEY_BYTES).hex(),
        }
    if config.horizon_ms > known_horizon_ms(made):
        made[HORIZON] = config.horizon_ms
    return made
