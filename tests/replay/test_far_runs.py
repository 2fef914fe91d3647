"""A wheel with messages of days ahead, as its engine wrote it, proven by Spark: what has left, what
lies in a day's file half of which has left, and what is planted there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.reading.files import SLOT
from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.report.verdict import Outcome
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, width_s
from support.damage import flip
from support.plainproof import prove_here
from support.replayrun import Pieces, write_topic
from support.wheels import NOW, Node, master_of, opened

HOUR_MS = 3_600_000
DUE_MS = (NOW + 60 * HOUR_MS) // HOUR_MS * HOUR_MS
"""An hour of a day that is far ahead: messages leave in it, and a while later that day."""
FAR = WheelConfig(far_horizon_ms=10 * 24 * HOUR_MS, segment_bytes=2_000, retain_bytes=1 << 30)
EACH = 40


def leaving(node: Node, now_ms: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows that leave until then, one by one, a millisecond late."""
    while (chunk := node.next_chunk(now_ms)) is not None:
        for number, due in enumerate(times(chunk.rows, "due").tolist()):
            yield chunk.rows.slice(number, 1), due + 1
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages were sent 60 hours, 12 hours and an hour before they were due; of the first ones
    some are cancelled by rows in the files of their seconds. The first hour has left, and its file
    and those of its seconds are archived; that of the day is still there."""
    root = tmp_path_factory.mktemp("far") / "data"
    left: Pieces = []
    with opened(root, FAR, NOW) as node:
        first: list[Any] = []
        for ahead_h in (60, 12, 1):
            now_ms = DUE_MS - ahead_h * HOUR_MS
            rows = [
                (DUE_MS + number * 1_007 + (number % 2) * 5 * HOUR_MS, "t", b"%d" % number)
                for number in range(EACH)
            ]
            for at in range(0, EACH, 10):
                ids = node.ids_of(node.send(rows[at : at + 10], now_ms))
                first += ids if ahead_h == 60 else []
            if ahead_h == 1:
                node.blocking(partial(node.wheel.cancel, first[::8], now_ms))
            node.wheel.spill(now_ms, everything=True)
        for now_ms in range(DUE_MS, DUE_MS + 2 * HOUR_MS, 600_000):
            left += leaving(node, now_ms)
            node.mark(now_ms)
            node.wheel.clean(now_ms)
        mint = node.wheel.mint
        widths = [width_s(slot) for slot in node.state.load().slots]
        assert (widths.count(DAY_S), widths.count(HOUR_S)) == (1, 1), "of what is still to leave"
    write_topic(root, "t", left, mint.group, mint=mint)
    assert list(root.glob("archive/*/slots/*+3600.*"))
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


COUNTS = {"accepted": 120, "delivered": 55, "cancelled": 5, "pending": 60, "lost": 0}


def test_spark_proves_a_run_with_far_messages(spark: Any, root: Path) -> None:
    found = find([str(root)])
    assert {width_s(file.slot) for file in found.of(SLOT)} == {1, HOUR_S, DAY_S}
    verdict = prove(spark, found, Options(exactly_once=True, late_ms=1))
    assert verdict.outcome == Outcome.PROVEN, (verdict.reasons, verdict.open_points)
    assert COUNTS.items() <= verdict.counts.items()


def test_spark_blames_a_days_file_that_is_damaged(spark: Any, root: Path) -> None:
    (path,) = root.glob("slots/*+86400.arrows")
    flip(path)
    verdict = prove(spark, find([str(root)]), Options())
    assert [(one.kind, one.file) for one in verdict.problems] == [
        ("damaged", f"data/slots/{path.name}")
    ]
    assert verdict.counts["delivered"] == COUNTS["delivered"]


def test_without_the_journals_of_then_the_slot_files_prove_it(root: Path) -> None:
    """The segments in which the messages of the day's file were accepted have left the archive."""
    kept = sorted(root.glob("archive/*/journal/*"))
    oldest = [path for path in kept if path.stat().st_mtime_ns < kept[-1].stat().st_mtime_ns]
    assert 2 < len(oldest) < len(kept)
    for path in oldest:
        path.unlink()
    verdict = prove_here(find([str(root)]), Options())
    assert verdict.outcome == Outcome.PROVEN, (verdict.reasons, verdict.open_points)
    assert COUNTS.items() <= verdict.counts.items()
