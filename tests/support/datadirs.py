"""Data directories with something of everything in them, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from slotwheel.cli.verify import check_all, command
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer
from slotwheel.reading.directory import reading
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.state import LmdbState, StoredState
from support.wheels import master_of

from .wheels import Node, next_chunk

START_MS = 1_800_000_000_000


def messages(
    due: Sequence[int], *, topic: str = "orders", values: Sequence[bytes] | None = None
) -> pa.RecordBatch:
    """INPUT rows with those due times (ms); every third key is null, every other has a header."""
    rows = len(due)
    return from_columns(
        due,
        [topic] * rows,
        [None] * rows,
        [None if row % 3 == 0 else b"key-%d" % row for row in range(rows)],
        values or [b"value-%d" % row for row in range(rows)],
        [[("source", b"test")] if row % 2 else [] for row in range(rows)],
    )


class SinkNode(Node):
    """A wheel in one thread, with embedded topics. ``now`` is its clock, in ms."""

    def __init__(
        self,
        root: Path,
        *,
        now_ms: int = START_MS,
        segment_bytes: int = 64 << 20,
        retain_bytes: int = 0,
    ) -> None:
        config = WheelConfig(
            disk_reserve_bytes=0, segment_bytes=segment_bytes, retain_bytes=retain_bytes
        )
        super().__init__(root, config, now_ms)
        self.now = now_ms
        self.sink = EmbeddedSink(self.files, self.wheel.mint, lambda: self.now)
        self.sync()

    def append(self, rows: pa.RecordBatch) -> list[str]:
        """Store the rows; their ids."""
        future = self.wheel.append(rows, self.now)
        self.sync()
        return [str(one) for one in self.ids_of(future.result(0))]

    def spill(self) -> None:
        self.wheel.spill(self.now, everything=True)

    def deliver(self, until_ms: int) -> int:
        """Move the clock on and deliver all that is due by then; the number of rows."""
        self.now = until_ms
        count = 0
        for _ in range(1000):
            chunk = next_chunk(self.wheel, self.now, self.sync)
            if chunk is None:
                break
            answers = self.sink.deliver(chunk.rows)
            master_of(self.wheel).answer(chunk, answers.codes == Answer.ACCEPTED)
            count += chunk.rows.num_rows
        self.mark(self.now)
        return count

    def close(self) -> None:
        self.sink.close()
        super().close()


def assert_sound(root: Path) -> None:
    """The verifier finds nothing wrong in a data directory; for the teardown of fixtures.

    The directory's state must not be open in this process.
    """
    with reading(root) as files:
        faults = [fault for item in check_all(root, files, running=False) for fault in item.faults]
    assert not faults, "\n".join(map(str, faults))


def verify(root: Path) -> dict[str, Any]:
    """The JSON report of ``slotwheel verify``; the exit code must agree with it."""
    result = CliRunner().invoke(command, [str(root), "--json"], standalone_mode=False)
    report: dict[str, Any] = json.loads(result.output)
    assert result.return_value == (1 if report["invalid"] else 0), result.output
    assert bool(report["faults"]) == bool(report["invalid"])
    return report


def state_of(root: Path) -> StoredState:
    """What its state store holds."""
    with closing(LmdbState(root, readonly=True)) as state:
        return state.load()


def filled(root: Path, *, segment_bytes: int = 2_000) -> None:
    """A journal of several segments with rows, marks and a configuration; slot files of one and
    two blocks; a topic of more than one block; a tail."""
    node = SinkNode(root, segment_bytes=segment_bytes)
    soon = [START_MS + 100 + step for step in range(6)]
    later = [START_MS + 60_000 + 250 * step for step in range(40)]
    node.append(messages([*soon, *later]))
    node.deliver(START_MS + 103)
    node.spill()
    node.append(messages(later[::-1]))
    node.deliver(START_MS + 200)
    node.spill()
    for _ in range(8):
        node.append(messages(later))
    node.close()
