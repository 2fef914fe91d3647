"""Many batches at once: each is stored or refused as if it had come alone."""

from __future__ import annotations

import struct
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.checks import InputBatch
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.delay import as_due
from slotwheel.wheel.errors import InvalidBatch, InvalidMessage, SlotwheelError
from slotwheel.wheel.journal.payloads import decode_rows, encode_input, encode_together
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import INPUT
from support.wheels import NOW, Node, batch, opened

CONFIG = WheelConfig(disk_reserve_bytes=0, message_bytes_max=2_000)

good = st.tuples(
    st.integers(NOW, NOW + 7_000_000) | st.integers(-5, 7_000_000).map(as_due),
    st.sampled_from(["a", "b"]),
    st.none() | st.integers(0, 5),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=90),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2),
)
bad = st.sampled_from(
    [
        (-1, "a", None, None, b"before 1970", []),
        (NOW + 10**9, "a", None, None, b"beyond the horizon", []),
        (as_due(10**9), "a", None, None, b"beyond the horizon", []),
        (NOW, "not a topic", None, None, b"", []),
        (NOW, "a", -1, None, b"", []),
        (NOW, "a", None, None, b"", [("slotwheel-id", b"")]),
        (NOW, "a", None, None, bytes(2_001), []),
    ]
)
producers = st.tuples(st.integers(0, 2), st.integers(0, 3))
batches = st.tuples(st.lists(good | bad, max_size=3) | st.lists(good, max_size=3), producers)


def batch_of(rows: list[Any], sent_by: tuple[int, int]) -> InputBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in INPUT)
    producer, sequence = sent_by
    made = from_columns(*map(list, columns))
    return InputBatch(made, producer, sequence if producer else -1)


def told(outcome: Future[Any] | SlotwheelError) -> tuple[Any, ...]:
    if isinstance(outcome, SlotwheelError):
        return type(outcome), str(outcome), outcome.row
    receipt = outcome.result(0)
    return receipt.base_offset, receipt.count, receipt.created_ms, receipt.due.tolist()


def rows_of(node: Node) -> list[object]:
    pieces = node.wheel._storage.tail.pieces
    assert all(piece.rows.validate(full=True) is None for piece in pieces)
    return [row for piece in pieces for row in piece.rows.to_pylist()]


def in_journal(node: Node) -> list[object]:
    entries = [one for one in node.wheel._log.journal.read(1) if one.count]
    return [
        (one.producer, one.sequence, one.base_offset, decode_rows(one, "entry").to_pylist())
        for one in entries
    ]


@given(st.lists(batches, min_size=2, max_size=12))
def test_the_same_as_one_by_one(shapes: list[Any]) -> None:
    sent = [batch_of(*shape) for shape in shapes]
    found = []
    for at_once in (True, False):
        with TemporaryDirectory() as path, opened(Path(path), CONFIG, NOW) as node:
            outcomes: list[Any] = []
            for part in [sent] if at_once else [[one] for one in sent]:
                outcomes += node.wheel.append_all(part, NOW)
            node.sync()
            found.append(([told(one) for one in outcomes], rows_of(node), in_journal(node)))
    assert found[0] == found[1]


def with_short_bitmap(rows: int) -> pa.RecordBatch:
    """As received, with metadata that claim fewer bytes of a bitmap than ``rows`` need."""
    partitions = [None, *range(rows - 1)]
    nothing = [None] * rows
    columns = ([NOW] * rows, ["t"] * rows, partitions, nothing, nothing, [()] * rows)
    message = bytearray(from_columns(*columns).serialize().to_pybytes())
    needed = struct.pack("<q", (rows + 7) // 8)
    at = message.index(needed)
    message[at : at + 8] = struct.pack("<q", 1)
    return pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), INPUT)


def test_one_that_is_broken_is_refused_before_it_is_joined(tmp_path: Path) -> None:
    """Joining reads beyond its buffer, and what it makes of it is whole."""
    whole, broken = batch([(NOW, "t", b"x")]), with_short_bitmap(1000)
    pa.concat_batches([whole, broken]).validate(full=True)
    with opened(tmp_path, CONFIG, NOW) as node:
        first, second, third = node.wheel.append_all(
            [InputBatch(whole), InputBatch(broken), InputBatch(whole)], NOW
        )
        node.sync()
        assert isinstance(second, InvalidBatch)
        assert [told(one)[0] for one in (first, third)] == [0, 1]


def test_a_batch_of_another_schema_is_taken_with_the_others(tmp_path: Path) -> None:
    """Columns that may be missing are missing."""
    short = batch([(NOW, "t", b"x")]).select(["due", "topic", "value"])
    with opened(tmp_path, CONFIG, NOW) as node:
        outcomes = node.wheel.append_all(
            [InputBatch(batch([(NOW, "t", b"y")])), InputBatch(short)], NOW
        )
        node.sync()
        assert [told(one) for one in outcomes] == [(0, 1, NOW, [NOW]), (1, 1, NOW, [NOW])]


def test_what_a_wheel_refuses_of_one_it_takes_of_the_others(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        wrong = batch([(NOW, "t", b"x"), (NOW, "t t", b"x")])
        right = batch([(NOW, "t", b"x")])
        taken, refused = node.wheel.append_all([InputBatch(right), InputBatch(wrong)], NOW)
        node.sync()
        assert told(taken) == (0, 1, NOW, [NOW])
        assert isinstance(refused, InvalidMessage)
        assert refused.row == 1  # of its own batch


@given(st.lists(st.lists(good, min_size=1, max_size=3), min_size=1, max_size=12))
def test_an_entry_has_the_bytes_that_it_would_have_alone(shapes: list[Any]) -> None:
    """Nothing of its neighbours is in it."""
    parts = [batch_of(shape, (0, 0)).rows for shape in shapes]
    together = encode_together(pa.concat_batches(parts), [one.num_rows for one in parts], NOW)
    for one, encoded in zip(parts, together, strict=True):
        alone = encode_input(pa.concat_batches([one]), NOW)
        assert bytes(encoded.payload) == bytes(alone.payload)
        assert list(encoded.due) == list(alone.due)
        assert np.asarray(encoded.due).base is None  # a receipt keeps those of no other


def test_a_large_one_among_those_that_are_joined_keeps_its_own_memory(tmp_path: Path) -> None:
    config = WheelConfig(disk_reserve_bytes=0)
    large = batch([(NOW, "t", bytes(100_000))])
    small = batch([(NOW, "t", b"x")])
    with opened(tmp_path, config, NOW) as node:
        node.wheel.append_all([InputBatch(one) for one in (small, large, small, small)], NOW)
        node.sync()
        pieces = node.wheel._storage.tail.pieces
        assert [piece.nbytes > 100_000 for piece in pieces] == [False, True, False, False]
