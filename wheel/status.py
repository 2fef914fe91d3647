"""The wheel seen from outside, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """One look at a wheel. Times in ms since the epoch, sizes in bytes."""

    group: str
    epoch: int
    pending: int
    """Messages accepted and neither delivered, dead nor cancelled."""
    accepted: int
    """Messages ever committed."""
    delivered: int
    dead: int
    cancelled: int
    mark_c: int
    """Due time up to which everything has left; follows the clock when nothing is due."""
    mark_offset: int
    committed_mark_c: int
    committed_offset: int
    commit_index: int
    checkpoint_index: int
    held_topics: list[str]
    tail_rows: int
    tail_bytes: int
    queued_bytes: int
    slot_files: int
    slot_rows: int
    slot_bytes: int
    open_handles: int
    journal_bytes: int
    archive_bytes: int
    archive_missed: int
    """Files that should have been kept in the archive and could not be."""
    producers: int
    disk_free_bytes: int
    horizon_ms: int
