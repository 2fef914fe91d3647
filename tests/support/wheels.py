"""A real wheel in one thread: opened over real files, driven step by step, crashed."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.dispatcher import Dispatcher
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.files import SLOT_DIRECTORY, OsFiles
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.rows import from_columns, no_headers, sort_rows
from slotwheel.wheel.schema import PAYLOAD, ROW, TIME, times
from slotwheel.wheel.slots.slot import path_of, seconds_of
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.tail.tail import Piece, offsets_of, piece_of, with_offsets
from slotwheel.wheel.wheel import Wheel

T = TypeVar("T")
Row = tuple[str, bytes]
"""Topic and value of a row that a sink is asked to take."""


def batch(
    rows: Sequence[tuple[int, str, bytes]], expires: Sequence[int | None] | None = None
) -> pa.RecordBatch:
    """An INPUT batch of (due in ms, topic, value). ``expires``: when, in ms, those do that do."""
    nothing = [None] * len(rows)
    return from_columns(
        [row[0] for row in rows],
        [row[1] for row in rows],
        nothing,
        nothing,
        [row[2] for row in rows],
        [
            () if at is None else ((EXPIRES_HEADER, b"%d" % at),)
            for at in expires or [None] * len(rows)
        ],
    )


def master_of(wheel: Wheel) -> Dispatcher:
    """What delivers, while this wheel is the master's."""
    assert wheel.dispatcher is not None
    return wheel.dispatcher


def next_chunk(wheel: Wheel | Dispatcher, now_ms: int, wait: Callable[[], object]) -> Chunk | None:
    """As the hand asks: again, until the mark that rows may wait for is committed. ``wait`` commits
    it, or gives others the time to."""
    master = master_of(wheel) if isinstance(wheel, Wheel) else wheel
    for _ in range(2_000):
        chunk = master.next_chunk(now_ms)
        if chunk is not None or master.due.reach >= master._reach_ms:
            return chunk
        wait()
    raise AssertionError("a mark is never committed")


class Node:
    """A wheel over a directory, without threads of its own."""

    def __init__(self, path: Path | str, config: WheelConfig, now_ms: int) -> None:
        self.path = Path(path)
        self.config = config
        self.open(now_ms)

    def open(self, now_ms: int) -> None:
        self.files = OsFiles(self.path)
        self.state = LmdbState(self.path)
        self.wheel = Wheel.open(self.files, self.state, self.config, now_ms)

    def sync(self) -> None:
        """What the syncer thread does, until nothing is queued."""
        while self.wheel.write_pending(0):
            pass

    def send(
        self, rows: Sequence[tuple[int, str, bytes]], now_ms: int, **options: Any
    ) -> AppendReceipt:
        """Appended, and on disk."""
        future = self.wheel.append(batch(rows), now_ms, **options)
        self.sync()
        return future.result(0)

    def ids_of(self, receipt: AppendReceipt) -> list[MessageId]:
        return [
            self.wheel.mint.one(due, offset)
            for offset, due in enumerate(receipt.due.tolist(), receipt.base_offset)
        ]

    def next_chunk(self, now_ms: int) -> Chunk | None:
        return next_chunk(self.wheel, now_ms, self.sync)

    def delivered(
        self, now_ms: int, accepts: Callable[[Row], bool] = lambda _: True, *, down: bool = False
    ) -> list[bytes]:
        """Values of what a sink accepts until nothing is due, or nothing else; none is early.

        What it does not accept gets *not now*: its topic is held back; ``down``: all are.
        """
        taken: list[bytes] = []

        def hand(chunk: Chunk) -> bool:
            assert int(times(chunk.rows, "due").max(initial=0)) <= now_ms, "early"
            columns = (chunk.rows.column(name).to_pylist() for name in ("topic", "value"))
            rows = list(zip(*columns, strict=True))
            answers = np.array([accepts(row) for row in rows], np.bool_)
            taken.extend(row[1] for row, ok in zip(rows, answers.tolist(), strict=True) if ok)
            master_of(self.wheel).answer(chunk, answers, sink_down=down and not answers.all())
            return bool(answers.all())

        while (chunk := self.next_chunk(now_ms)) is not None and (hand(chunk) or not down):
            pass
        for topic in master_of(self.wheel).held_topics():
            while (chunk := master_of(self.wheel).next_topic_chunk(topic, now_ms)) is not None:
                before = len(taken)
                hand(chunk)
                if len(taken) == before and chunk.rows.num_rows:
                    break
        self.sync()
        return taken

    def mark(self, now_ms: int) -> None:
        """What was answered is known by the journal from now on."""
        master_of(self.wheel).append_mark(now_ms, at_once=True)
        self.sync()

    def blocking(self, call: Callable[[], T]) -> T:
        """Run a call that waits for a commit, with a syncer beside it."""
        result: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                result.append(call())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        for _ in range(20_000):
            self.wheel.write_pending(0.0005)
            if not thread.is_alive():
                break
        thread.join(0.01)
        assert not thread.is_alive(), "a blocking call never came back"
        if failed:
            raise failed[0]
        return result[0]

    def close(self) -> None:
        self.wheel.close()
        self.files.close()

    def reopen(self, now_ms: int) -> None:
        """After a crash."""
        self.crash()
        self.open(now_ms)
        self.sync()

    def crash(self) -> None:
        """The process is gone: descriptors are closed by the kernel, nothing else happens."""
        log: Any = self.wheel._log
        log.journal._writer.close()
        self.wheel._storage.close()
        self.state.close()
        self.files.close()

    def litter(self, junk: bytes) -> None:
        """What a crash in the middle of a write leaves: bytes that were never committed."""
        journal = self.path / "journal"
        last = max(journal.glob("*.journal"))
        with last.open("ab") as file:
            file.write(junk)
        slots = self.path / SLOT_DIRECTORY
        for one in sorted(slots.iterdir())[:2]:
            with one.open("ab") as file:
                file.write(junk)
        (slots / "1.arrows").write_bytes(junk)

    def stored(self) -> dict[int, int]:
        """Due times by offset of all rows in tail and slot files, read without the engine's
        readers; and the catalog held against the files on the way."""
        found: dict[int, int] = {}
        storage = self.wheel._storage

        def add(rows: pa.RecordBatch, first: int) -> None:
            offsets, due = times(rows, "offset").tolist(), times(rows, "due").tolist()
            for offset, at in zip(offsets, due, strict=True):
                assert offset not in found, f"row {offset} is stored twice"
                assert offset >= first, f"row {offset} is in the tail and was spilled"
                found[offset] = at

        names = sorted(one.name for one in (self.path / SLOT_DIRECTORY).iterdir())
        catalog = storage.catalog
        assert names == sorted(path_of(second).split("/")[1] for second in catalog)
        assert catalog.rows == sum(info.rows for info in catalog.values())
        assert catalog.nbytes == sum(info.length for info in catalog.values())
        assert self.state.load().slots == catalog
        for second, info in catalog.items():
            data = (self.path / path_of(second)).read_bytes()
            assert len(data) >= info.length
            data = data[: info.length]
            assert crc32c(data) == info.crc
            blocks = list(pa.ipc.open_stream(data))
            assert sum(block.num_rows for block in blocks) == info.rows
            assert max(int(times(block, "offset").max()) for block in blocks) == info.highest
            cancels = sum(block.num_rows - block.column("cancels").null_count for block in blocks)
            assert cancels == info.cancels
            for block in blocks:
                assert block.schema.equals(ROW, check_metadata=True)
                assert block.equals(sort_rows(block)), f"a block of slot {second} is not sorted"
                assert set((times(block, "due") // TICK_MS).tolist()) <= {*seconds_of(second)}
                add(block, 0)
        for piece in storage.tail.pieces:
            add(with_offsets(piece.rows, offsets_of(piece)), storage.spilled)
        return found


def as_version_1(mark: bytes) -> bytes:
    """A mark's bytes as version 1 wrote them: without its reach and its expired rows."""
    return struct.pack("<H", 1) + mark[2:72] + mark[88:]


NOW = 1_900_000_000_000
TIGHT = WheelConfig(
    chunk_rows_max=7, window_bytes_max=900, open_handles_max=1, segment_bytes=4000, slots=60
)
"""So small that a few dozen rows pass every limit, and that a minute is a revolution."""


def many(first: int, count: int, due: int) -> list[tuple[int, str, bytes]]:
    """Rows of topic "t": their values are numbers."""
    return [(due, "t", b"%d" % n) for n in range(first, first + count)]


@contextlib.contextmanager
def opened(path: Path, config: WheelConfig, now_ms: int) -> Iterator[Node]:
    with contextlib.closing(Node(path, config, now_ms)) as node:
        yield node


def rows_at(
    keys: Sequence[tuple[int, int]],
    *,
    cancels: Mapping[int, int] | None = None,
    topic: str = "t",
    topics: int = 0,
    pad: int | Sequence[int] = 0,
) -> pa.RecordBatch:
    """ROW schema: one row for each (due in ms, offset). ``cancels``: target by own offset.
    ``topics``: so many, named by numbers, have the rows in turn, by their offsets. ``pad``: bytes
    that are added to each value."""
    targets = cancels or {}
    count = len(keys)
    pads = [pad] * count if isinstance(pad, int) else pad
    due = pa.array([key[0] for key in keys], pa.int64()).cast(TIME)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key[1] for key in keys], pa.int64()),
            due,
            due,
            pa.array([targets.get(key[1]) for key in keys], pa.int64()),
            pa.array([topic_at(key[1], topics) or topic for key in keys], pa.utf8()),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.binary()),
            pa.array(
                [b"%d" % key[1] + b"." * more for key, more in zip(keys, pads, strict=True)],
                pa.binary(),
            ),
            no_headers(count),
        ],
        schema=ROW,
    )


def topic_at(offset: int, topics: int) -> str:
    """The topic of a row of ``rows_at``; empty without ``topics``."""
    return str(offset % topics) if topics else ""


def piece_at(
    base_offset: int,
    due: Sequence[int],
    *,
    index: int = 1,
    created_ms: int | None = None,
    cancels: Mapping[int, int] | None = None,
    topics: int = 0,
    pad: int = 0,
) -> Piece:
    """A piece of the tail with the given due times. ``created_ms``: when they came in; without it,
    when they are due."""
    keys = [(at, offset) for offset, at in enumerate(due, base_offset)]
    rows = rows_at(keys, cancels=cancels, topics=topics, pad=pad)
    created = [at if created_ms is None else created_ms for at in due]
    columns = [rows.column("due"), pa.array(created, TIME), *rows.columns[3:]]
    payload = pa.RecordBatch.from_arrays(columns, schema=PAYLOAD)
    return piece_of(base_offset, payload, index)


def keys_of(rows: pa.RecordBatch) -> list[tuple[int, int]]:
    """(due, offset) of each row."""
    return list(zip(times(rows, "due").tolist(), times(rows, "offset").tolist(), strict=True))
