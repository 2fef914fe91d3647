"""Slot files and state records of version 1, as they were written once. Never rewritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel.wheel.errors import UnsupportedVersion
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import ROW
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.state import _SLOT, SlotInfo, decode_sent, unseal

GOLDEN = Path(__file__).parent / "golden"
SECOND = 1_900_000_060
RECORD = bytes.fromhex((GOLDEN / "state-slot-v1.hex").read_text())
PRODUCER = bytes.fromhex((GOLDEN / "state-producer-v1.hex").read_text())


@pytest.fixture
def slots(tmp_path: Path) -> SlotFiles:
    files = SlotFiles(OsFiles(tmp_path), 4)
    shutil.copy(GOLDEN / "slot-v1.arrows", tmp_path / path_of(SECOND))
    return files


def test_a_slot_file_of_version_1_is_read(slots: SlotFiles) -> None:
    data = (GOLDEN / "slot-v1.arrows").read_bytes()
    blocks = slots.read(SECOND, SlotInfo(len(data), 3, 1, 2, crc32c(data)))
    rows = pa.Table.from_batches(blocks)
    assert rows.schema.equals(ROW)
    assert rows.column("offset").to_pylist() == [1, 0, 2]
    assert rows.column("cancels").to_pylist() == [None, None, 0]
    assert rows.column("topic").to_pylist() == ["orders", "orders", ""]
    assert rows.column("key").to_pylist() == [b"", b"k", None]
    assert rows.column("value").to_pylist() == [None, b"v", None]
    twice = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert rows.column("headers").to_pylist() == [[], twice, []]
    slots.close()


def test_a_schema_of_another_version_is_refused_by_name(slots: SlotFiles, tmp_path: Path) -> None:
    other = ROW.with_metadata({b"slotwheel.schema": b"2"})
    data = other.serialize().to_pybytes()
    (tmp_path / path_of(SECOND)).write_bytes(data)
    with pytest.raises(UnsupportedVersion, match="schema version; got 2; expected 1"):
        slots.read(SECOND, SlotInfo(len(data), 0, 0, -1, crc32c(data)))
    slots.close()


def test_state_records_of_version_1_are_read() -> None:
    key = SECOND.to_bytes(8, "big")
    assert SlotInfo(*_SLOT.unpack(unseal(key, RECORD, "state"))) == SlotInfo(1000, 3, 1, 2, 0xABCD)
    sent = decode_sent(unseal((7).to_bytes(8, "big"), PRODUCER, "state"))
    assert [(one.sequence, one.base_offset, one.created, one.index, one.count) for one in sent] == [
        (4, 100, 1_900_000_000_000, 9, 50),
        (5, 150, 1_900_000_000_001, 10, 1),
    ]
