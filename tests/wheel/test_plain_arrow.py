"""What a file or a peer claims in Arrow takes no more memory than it has bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel.reading.files import DUMP, File
from slotwheel.reading.problems import Problem
from slotwheel.reading.slots import slot_blocks
from slotwheel.reading.topics import DUMP_VERSION, decode_block, read_stream
from slotwheel.replication.snapshots import slots
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.payloads import decode_rows
from slotwheel.wheel.schema import PAYLOAD, ROW
from slotwheel.wheel.slots.blocks import seal
from slotwheel.wheel.slots.slotfile import decode_blocks, schema_message
from slotwheel.wheel.topics.topicfile import IndexRecord, schema_of

TOPIC = schema_of("t", "g")


def stream(schema: pa.Schema, columns: dict[str, pa.Array], **options: Any) -> bytes:
    batch = pa.RecordBatch.from_arrays(
        [columns.get(one.name, pa.nulls(1, one.type)) for one in schema], schema=schema
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def bomb(schema: pa.Schema) -> bytes:
    """A record batch message, small as it lies there."""
    loose = pa.schema([one.with_nullable(True) for one in schema])
    found = stream(loose, {"value": pa.array([bytes(1 << 20)])}, compression="zstd")
    [_, message] = pa.ipc.MessageReader.open_stream(pa.py_buffer(found))
    small = bytes(message.serialize())
    assert len(small) < 20_000
    return small


def topic_block() -> object:
    payload = bomb(TOPIC)
    before = IndexRecord(0, 100, 1, 0, 0)
    block = IndexRecord(1, 100 + len(payload), 1, crc32c(payload), 0)
    return decode_block(payload, TOPIC, before, block, "topic")


def block_of_a_peer() -> object:
    view, end = seal(bytearray(bomb(ROW)), 0)
    return slots._block(memoryview(bytes(view) + end))


def dump(tmp_path: Path, **options: Any) -> Iterator[object]:
    metadata = {b"slotwheel.dump": DUMP_VERSION.encode(), b"slotwheel.topic": b"t"}
    kind = options.pop("kind", pa.binary())
    schema = pa.schema([("value", kind)], metadata=metadata)
    path = tmp_path / "dump.arrow"
    path.write_bytes(stream(schema, {"value": pa.array([bytes(1 << 20)], kind)}, **options))
    return read_stream(File(0, DUMP, str(path), "dump", path.stat().st_size))


WAYS: dict[str, Callable[[], object]] = {
    "an entry": lambda: decode_rows(
        Entry(EntryKind.ROWS, 1, 1, 0, 1, 0, -1, bomb(PAYLOAD)), "a peer"
    ),
    "a slot file": lambda: list(
        slot_blocks(pa.py_buffer(bytes(schema_message()) + bomb(ROW)), "slot")
    ),
    "a node's slot file": lambda: decode_blocks(
        pa.py_buffer(bytes(schema_message()) + bomb(ROW)), "slot", with_schema=True
    ),
    "the end of a node's slot file": lambda: decode_blocks(
        pa.py_buffer(bomb(ROW)), "slot", with_schema=False
    ),
    "a topic": topic_block,
    "a slot that a peer sends": block_of_a_peer,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_compressed_is_damage(way: str) -> None:
    with pytest.raises(SlotwheelError, match="not compressed"):
        WAYS[way]()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "zstd"}, "not compressed"),
        ({"kind": pa.binary_view()}, "binary_view"),
        ({"kind": pa.dictionary(pa.int32(), pa.binary())}, "dictionary"),
    ],
)
def test_a_dump_of_another_kind_is_a_problem(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    found = list(dump(tmp_path, **options))
    assert [one for one in found if isinstance(one, Problem) and said in str(one)], found
