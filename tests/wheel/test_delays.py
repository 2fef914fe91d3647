"""Delays: begun by the clock of the node that takes them, once, whatever is repeated when."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.checks import bad_rows
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.delay import DELAY_LIMIT_MS, as_due, delay_of, due_times
from slotwheel.wheel.errors import InvalidMessage
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import times
from support.wheels import NOW, Node, batch, opened

CONFIG = WheelConfig(slots=60, disk_reserve_bytes=0)
LIMIT = DELAY_LIMIT_MS - 1
clocks = st.integers(NOW - 90_000, NOW + 3_600_000)
delays = st.integers(-5, 59_000)
dues = st.tuples(st.booleans(), delays).map(
    lambda one: as_due(one[1]) if one[0] else NOW + one[1] % 1000
)


@given(st.integers(-LIMIT, LIMIT))
def test_a_delay_goes_through_a_due_times_place(delay_ms: int) -> None:
    assert -(1 << 63) < as_due(delay_ms) < -(1 << 61)
    assert delay_of(as_due(delay_ms)) == delay_ms


@pytest.mark.parametrize("due", [0, -1, NOW, -NOW, 1 << 62, -(1 << 62), -(1 << 63), (1 << 63) - 1])
def test_no_time_is_taken_for_a_delay(due: int) -> None:
    assert delay_of(due) is None
    assert due_times([due], 5) == [due]


def sent(node: Node, due: list[int], now_ms: int, **producer: Any) -> AppendReceipt:
    future = node.wheel.append(batch([(at, "t", b"v") for at in due]), now_ms, **producer)
    node.sync()
    return future.result(60)


@given(st.lists(dues, min_size=1, max_size=5), clocks, st.lists(clocks, min_size=1, max_size=3))
def test_repeats_have_the_due_times_of_the_first_time(
    due: list[int], first_ms: int, later_ms: list[int]
) -> None:
    """By sequence, and by key; also once the node has only its files."""
    key = RequestKey.of("k", b"body")
    senders: list[dict[str, Any]] = [
        {"producer": 1, "sequence": 1},
        {"producer": key.producer, "sequence": key.sequence},
    ]
    due = [NOW + 500_000 if delay_of(one) is None else one for one in due]
    config = WheelConfig(slots=900, disk_reserve_bytes=0)
    with TemporaryDirectory() as path, opened(Path(path), config, first_ms) as node:
        for sender in senders:
            first = sent(node, due, first_ms, **sender)
            assert first.due.tolist() == due_times(due, first_ms)
            for now_ms in later_ms:
                again = sent(node, due, now_ms, **sender)
                assert again.due.tolist() == first.due.tolist()
                assert (again.base_offset, again.created_ms) == (first.base_offset, first_ms)
        node.reopen(later_ms[-1])
        again = sent(node, due, later_ms[-1], **senders[1])
        assert again.due.tolist() == due_times(due, first_ms)
        assert node.wheel.status().accepted == 2 * len(due)
        pieces = node.wheel._storage.tail.pieces
        stored = [at for piece in pieces for at in times(piece.rows, "due").tolist()]
        assert stored == 2 * due_times(due, first_ms)


def test_a_request_whose_first_sender_counted_the_delays_keeps_its_times(tmp_path: Path) -> None:
    """A gateway of an earlier version has stored it; one of this version repeats it."""
    first, again = RequestKey.of("k", b"body", NOW - 60_000), RequestKey.of("k", b"body")
    with opened(tmp_path, CONFIG, NOW) as node:
        stored = sent(node, [NOW - 30_000], NOW, producer=first.producer, sequence=first.sequence)
        receipt = sent(
            node, [as_due(30_000)], NOW + 50, producer=again.producer, sequence=again.sequence
        )
        assert receipt.due.tolist() == stored.due.tolist() == [NOW - 30_000]
        assert due_times([as_due(30_000)], receipt.created_ms) == [NOW - 30_000]
        assert again.shift_ms(receipt.sequence) == 0


def rows(*expiries: tuple[int, bytes]) -> pa.RecordBatch:
    headers = [[("a", b"1"), (EXPIRES_HEADER, text)] for _, text in expiries]
    count = len(headers)
    nothing = [None] * count
    return from_columns(
        [due for due, _ in expiries], ["t"] * count, nothing, nothing, [b"v"] * count, headers
    )


def test_what_expires_so_long_after_a_delay_expires_at_a_time(tmp_path: Path) -> None:
    """In a mixed batch each row by itself; of the others no header changes."""
    later = NOW + 5_000
    given = rows((as_due(1000), b"+7"), (NOW + 9, b"%d" % later), (as_due(2000), b"%d" % later))
    with opened(tmp_path, CONFIG, NOW) as node:
        node.wheel.append(given, NOW)
        node.sync()
        [piece] = node.wheel._storage.tail.pieces
        found = [
            [(one["key"], one["value"]) for one in headers]
            for headers in piece.rows.column("headers").to_pylist()
        ]
    expires = [NOW + 1007, later, later]
    assert found == [[("a", b"1"), (EXPIRES_HEADER, b"%d" % at)] for at in expires]


@pytest.mark.parametrize(
    ("due", "text", "error"),
    [
        (as_due(1000), b"+0", "expires before it is due"),
        (as_due(1000), b"+-5", "unreadable time"),
        (as_due(1000), b"+" + b"9" * 19, "unreadable time"),
        (as_due(1000), b"+" + b"9" * 18, "unreadable time"),
        (as_due(1000), b"%d" % (NOW + 1000), "expires before it is due"),
        (NOW + 1000, b"+5", "unreadable time"),
    ],
)
def test_what_cannot_expire_so_is_refused(
    tmp_path: Path, due: int, text: bytes, error: str
) -> None:
    good = (as_due(1000), b"+5")
    with opened(tmp_path, CONFIG, NOW) as node:
        with pytest.raises(InvalidMessage, match=error) as caught:
            node.wheel.append(rows(good, (due, text), good), NOW)
        assert caught.value.row == 1


def test_a_client_does_not_judge_by_its_own_clock_when_a_delay_ends() -> None:
    """A time to expire is compared with the due time where that is known: at the node."""
    given = rows((as_due(1000), b"5"), (as_due(1000), b"+5"))
    assert bad_rows(given, latest_due_ms=None, message_bytes_max=1000) == {}
