"""One of several peers, in one thread: what replication decides is done to its wheel by hand."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import Entry, decode_entry
from slotwheel.wheel.peers.peer import PeerWheel
from slotwheel.wheel.state import LmdbState, StoreIds
from support.wheels import batch, master_of

NOW = 1_800_000_000_000
STORES = {"a": b"a" * 16, "b": b"b" * 16}


class Peer:
    """One directory and its wheel."""

    def __init__(self, path: Path, name: str, config: WheelConfig, now_ms: int = NOW) -> None:
        self.path, self.name, self.config = path / name, name, config
        self.now_ms = now_ms
        self.path.mkdir()
        self.open()

    def open(self) -> None:
        self.files = OsFiles(self.path)
        self.state = LmdbState(self.path)
        self.wheel = PeerWheel.open(
            self.files, self.state, self.config, self.now_ms, node_id=self.name
        )

    def close(self) -> None:
        self.wheel.close()
        self.files.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def sync(self) -> None:
        while self.wheel.write_pending(0):
            pass

    def send(self, *rows: tuple[int, str, bytes], sequence: int = -1) -> Future[AppendReceipt]:
        producer = 7 if sequence >= 0 else 0
        return self.wheel.append(batch(rows), NOW, producer=producer, sequence=sequence)

    def commit(self) -> None:
        """All that it has is on its disk, and a majority has it."""
        self.sync()
        self.wheel.commit(self.wheel.log_view().durable)

    def mark(self, now_ms: int) -> None:
        master_of(self.wheel).append_mark(now_ms, at_once=True)
        self.commit()

    def lead(self, epoch: int, stores: StoreIds | None = None) -> None:
        """``stores``: those of the group; without them it is one of which no other peer runs."""
        self.wheel.promise(epoch, self.name, True)
        self.wheel.lead(epoch, STORES if stores is None else stores, self.now_ms)
        self.commit()
        assert self.wheel.serving

    def ship(self, other: Peer, commit: int | None = None) -> None:
        """All that the other one lacks, as bytes; then tell it what is committed."""
        epoch, _, voter = other.wheel.hard()
        if epoch < self.wheel.hard()[0]:
            other.wheel.promise(self.wheel.hard()[0], "", voter)
        first = other.wheel.log_view().placed + 1
        last = self.wheel.log_view().written
        while first <= last:
            found = self.wheel.entries(first, last, 1 << 20)
            other.wheel.receive([over_the_wire(entry) for entry in found])
            first = found[-1].index + 1
        other.sync()
        other.wheel.commit(self.wheel.commit_index if commit is None else commit)


def over_the_wire(entry: Entry) -> Entry:
    data = b"".join(bytes(part) for part in entry.encode())
    return decode_entry(data, "the wire", 0)
