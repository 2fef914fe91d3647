"""Journals for tests: small segments, recognisable entries, and files taken apart."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from slotwheel.wheel.files import Files
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.journal import Journal, RecoveryReport

STORE = bytes(range(16))
SEGMENT_BYTES_MAX = 600


def entry(index: int, size: int = 100, *, epoch: int = 1, salt: int = 0) -> Entry:
    """Entry number ``index``; by default it takes 192 bytes of a segment, so three fill one."""
    pattern = f"<{index}:{salt}>".encode()
    payload = (pattern * (size // len(pattern) + 1))[:size]
    return Entry(EntryKind.ROWS, epoch, index, index * 10, 10, 7, index, payload)


def open_journal(
    files: Files, *, first_index: int = 1, durable_floor: int = 0, **options: Any
) -> tuple[Journal, list[Entry], RecoveryReport]:
    """The journal, the entries it handed on, and its report."""
    got: list[Entry] = []
    settings: dict[str, Any] = {
        "store_id": STORE,
        "segment_bytes": SEGMENT_BYTES_MAX,
        "entry_bytes_max": 10_000,
        "on_entry": got.append,
        **options,
    }
    journal, report = Journal.open(
        files, first_index=first_index, durable_floor=durable_floor, **settings
    )
    return journal, got, report


def write_journal(files: Files, count: int, *, sync: bool = True, size: int = 100) -> None:
    """A journal of ``count`` entries, each appended (and synced) on its own."""
    journal, _, _ = open_journal(files)
    for index in range(1, count + 1):
        journal.append([entry(index, size)])
        if sync:
            journal.sync()
    journal.close()


def load(files: Files, path: str) -> bytes:
    with closing(files.open(path)) as handle:
        return handle.pread(handle.size(), 0)


def store(files: Files, path: str, content: bytes) -> None:
    """Give a file that content."""
    with closing(files.open(path, create=True)) as handle:
        handle.truncate(0)
        handle.pwrite([content], 0)


def payloads(entries: list[Entry]) -> list[bytes]:
    return [bytes(one.payload) for one in entries]
