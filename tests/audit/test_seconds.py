"""The accepted tier reads each second out of all its files: the second's, the hour's, the day's."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.account.limits import AccountLimits
from slotwheel.account.vocabulary import Boundary
from slotwheel.audit.ledger import AuditLedger
from slotwheel.audit.watch.accepted import LEAD_S, AcceptedTier
from slotwheel.reading import recordedblocks
from slotwheel.reading.search import pending
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, is_wide, width_s
from slotwheel.wheel.state import SlotInfo
from support.damage import flip
from support.wheels import NOW, opened

HOUR_MS = 3_600_000
FAR = WheelConfig(far_horizon_ms=10 * 24 * HOUR_MS)
DUE_MS = (NOW + 60 * HOUR_MS) // HOUR_MS * HOUR_MS + 1_000
"""The first second that is read: of an hour that is sent to from far, and from two hours before."""
SECONDS = 12


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each second has 3 messages in its day's file, 2 in its hour's and 1 in its own; of those in
    the day's one is cancelled by a row in the file of the second."""
    root = tmp_path_factory.mktemp("written")
    with opened(root, FAR, NOW) as node:
        for ahead_h, count in ((60, 3), (12, 2), (1, 1)):
            now_ms = DUE_MS - ahead_h * HOUR_MS
            ids = [
                node.ids_of(node.send([(due, "t", b"v")] * count, now_ms)) for due in every_due()
            ]
            if ahead_h == 60:
                cancelled = [one[0] for one in ids]
            if ahead_h == 1:
                node.blocking(partial(node.wheel.cancel, cancelled, now_ms))
            node.wheel.spill(now_ms, everything=True)
        widths = Counter(width_s(slot) for slot in node.state.load().slots)
        assert widths == {DAY_S: 1, HOUR_S: 1, 1: SECONDS}
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


def every_due() -> list[int]:
    return [DUE_MS + 1_000 * n + 7 for n in range(SECONDS)]


def ledger() -> AuditLedger:
    return AuditLedger("default", AccountLimits(1_000), DUE_MS, ahead_ms=2 * HOUR_MS)


def test_each_second_has_the_rows_of_all_its_files_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[int] = Counter()
    committed_blocks = recordedblocks.committed_blocks

    def counted(data: Path, slot: int, info: SlotInfo) -> list[pa.RecordBatch]:
        reads[slot] += 1
        return committed_blocks(data, slot, info)

    monkeypatch.setattr(pending, "committed_blocks", counted)
    found = ledger()
    with closing(AcceptedTier(root)) as tier:
        tier.begin(DUE_MS)
        for second in range(SECONDS):
            tier.step(found, DUE_MS + 1_000 * (second - LEAD_S))
    cells = [found.cells["t", due - due % 1_000] for due in every_due()[:-1]]
    assert [(cell.accepted.count, cell.far.count, cell.cancelled.count) for cell in cells] == [
        (6, 5, 1)
    ] * len(cells)
    assert {reads[slot] for slot in reads if is_wide(slot)} == {1}
    assert found.hints.find(Boundary.WHEEL_TOPIC, "t", "", DUE_MS, DUE_MS + 60_000) == (
        frozenset(),
        frozenset(),
    )


def test_a_damaged_wide_file_is_a_hint_of_each_of_its_seconds(root: Path) -> None:
    """What is missing of the accepted messages may be in it."""
    (path,) = root.glob("slots/*+86400.arrows")
    flip(path)
    found = ledger()
    with closing(AcceptedTier(root)) as tier:
        tier.begin(DUE_MS)
        tier.step(found, DUE_MS - 1_000 * (LEAD_S - 2))
    assert [found.cells["t", DUE_MS + 1_000 * n].accepted.count for n in range(2)] == [3, 3]
    for second_ms in (DUE_MS, DUE_MS + 1_000):
        hints, _ = found.hints.find(Boundary.CLIENT_WHEEL, "t", "", second_ms, second_ms + 1_000)
        assert any("expected CRC-32C" in hint for hint in hints)
