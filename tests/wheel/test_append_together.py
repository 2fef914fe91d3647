"""Batches of many callers at once, as plain rows and as Arrow: each is stored or refused as if it
had come alone."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel import plain
from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.checks import InputBatch
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.delay import as_due
from slotwheel.wheel.errors import (
    InvalidBatch,
    InvalidMessage,
    NotMaster,
    NotRunning,
    Overloaded,
    SequenceTooOld,
    SlotwheelError,
)
from slotwheel.wheel.journal.entry import PARTS_VERSION, Entry, EntryPart
from slotwheel.wheel.journal.payloads import decode_rows, encode_input, encode_together
from slotwheel.wheel.plain import PlainBatch
from slotwheel.wheel.protocol import IN_FLIGHT_MAX
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import INPUT, times
from slotwheel.wheel.tail import tail
from support.datadirs import assert_sound
from support.handpeer import NOW as PEERS_NOW
from support.handpeer import Peer
from support.plainrows import PlainSent, Told, batch_of_records, plain_batch
from support.wheels import NOW, Node, batch, opened

CONFIG = WheelConfig(disk_reserve_bytes=0, message_bytes_max=2_000)
REQUESTS = [RequestKey.of(key, content, NOW) for key in "ab" for content in (b"", b"other")]

good = st.tuples(
    st.integers(NOW, NOW + 7_000_000) | st.integers(-5, 7_000_000).map(as_due),
    st.sampled_from([b"a", b"b"]),
    st.none() | st.integers(0, 5),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=90),
    st.lists(
        st.tuples(st.text(max_size=3).map(str.encode), st.none() | st.binary(max_size=5)),
        max_size=2,
    )
    | st.just([(b"slotwheel-expires-ms", b"+999")]),
)
bad = st.sampled_from(
    [
        (-1, b"a", None, None, b"before 1970", []),
        (NOW + 10**9, b"a", None, None, b"beyond the horizon", []),
        (NOW, b"a", -1, None, b"", []),
        (as_due(10**9), b"a", None, None, b"beyond the horizon", []),
        (NOW, b"not a topic", None, None, b"", []),
        (NOW, b"a", None, None, b"", [(b"slotwheel-id", b"")]),
        (NOW, b"a", None, None, bytes(2_001), []),
    ]
)
senders = st.tuples(st.integers(0, 2), st.integers(0, 3)) | st.sampled_from(
    [(one.producer, one.sequence) for one in REQUESTS]
)
batches = st.tuples(st.lists(good | bad, max_size=2) | st.lists(good, max_size=3), senders)


def as_input(batch: PlainBatch) -> InputBatch:
    columns = [list(one) for one in zip(*batch.rows, strict=True)] or [[] for _ in range(6)]
    columns[1] = [topic.decode() for topic in columns[1]]
    columns[5] = [[(name.decode(), value) for name, value in each] for each in columns[5]]
    return InputBatch(from_columns(*columns), batch.producer, batch.sequence)


def told(outcome: Told | SlotwheelError | Future[AppendReceipt] | None) -> object:
    if isinstance(outcome, SlotwheelError):
        return type(outcome), str(outcome), outcome.row
    if isinstance(outcome, Future):
        receipt = outcome.result(0)
        return receipt.base_offset, receipt.created_ms, receipt.due.tolist()
    return outcome


def by_arrow(node: Node, sent: Sequence[InputBatch]) -> list[object]:
    """All at once."""
    outcomes = node.wheel.append_all(sent, NOW) if sent else []
    node.sync()
    return [told(one) for one in outcomes]


def joined(node: Node, sent: list[PlainBatch]) -> list[object]:
    return by_arrow(node, [as_input(one) for one in sent])


def one_by_one(node: Node, sent: list[PlainBatch]) -> list[object]:
    """Each appended as an Arrow batch of its own."""
    return [outcome for one in sent for outcome in joined(node, [one])]


def together(node: Node, sent: list[PlainBatch]) -> list[object]:
    appended = PlainSent(node.wheel, sent, NOW)
    node.sync()
    return [told(one) for one in appended.outcomes]


def rows_of(node: Node) -> list[object]:
    pieces = node.wheel._storage.tail.pieces
    assert all(piece.rows.validate(full=True) is None for piece in pieces)
    return [row for piece in pieces for row in piece.rows.to_pylist()]


def entries_of(node: Node | Peer) -> list[Entry]:
    return [entry for entry in node.wheel._log.journal.read(1) if entry.count]


@settings(max_examples=60)
@given(st.lists(batches, min_size=1, max_size=8))
def test_the_same_as_one_by_one_also_after_a_crash(shapes: list[Any]) -> None:
    """Repeats in one turn and of an earlier one, requests under one key, bad rows, delays."""
    sent = [batch_of_records(rows, *sender) for rows, sender in shapes]
    found, journals = [], []
    for append in (together, joined, one_by_one):
        with TemporaryDirectory() as path, opened(Path(path), CONFIG, NOW) as node:
            first = append(node, sent)
            rows = rows_of(node)
            node.reopen(NOW)
            assert rows_of(node) == rows
            keyed = [batch for batch in sent if batch.producer]
            found.append((first, rows, append(node, keyed), node.wheel.status().accepted))
            journals.append(
                [(one.producer, one.sequence, one.base_offset) for one in entries_of(node)]
            )
            assert_sound(node.path)
    assert found[0] == found[1] == found[2]
    assert journals[1] == journals[2], "each has an entry of its own"


def test_callers_of_one_turn_share_an_entry(tmp_path: Path) -> None:
    """A bad batch among them is refused, and nobody else."""
    with opened(tmp_path, CONFIG, NOW) as node:
        node.send([(NOW, "t", b"first")], NOW)
        sent = [
            plain_batch([(NOW + 5, "t", b"x"), (NOW + 3, "t", b"y")], 7, 4),
            plain_batch([(NOW, "no topic", b"z")], 8, 0),
            plain_batch([(as_due(50), "u", b"z")], 9, 0),
            plain_batch([(NOW + 1, "u", b"0")]),
        ]
        first, refused, *others = together(node, sent)
        assert first == (1, NOW, [NOW + 5, NOW + 3])
        assert isinstance(refused, tuple)
        assert refused[0] is InvalidMessage
        assert others == [(3, NOW, [NOW + 50]), (4, NOW, [NOW + 1])]
        entry = entries_of(node)[-1]
        assert (entry.version, entry.producer, entry.sequence) == (PARTS_VERSION, 0, -1)
        assert entry.parts == [EntryPart(7, 4, 2), EntryPart(9, 0, 1), EntryPart(0, -1, 1)]
        assert (entry.base_offset, entry.count) == (1, 4)


def test_many_small_entries_become_one_piece_with_the_same_rows(tmp_path: Path) -> None:
    """Plain rows are joined as such, beside an Arrow batch, and rows that somebody has read."""
    records: list[Any] = [(b"a", 3, b"k", b"v", [(b"h", None)]), (b"b", None, None, None, [])]
    with opened(tmp_path, CONFIG, NOW) as node:
        for number in range(tail._FAN):
            rows = [(NOW + number, *records[number % 2])] * (1 if number != 5 else 20)
            batch = batch_of_records(rows, 7, number)
            if number == 3:
                node.wheel.append_all([as_input(batch)], NOW + number)
            else:
                PlainSent(node.wheel, [batch], NOW + number)
            node.sync()
            if number == 9:
                before = rows_of(node)
        [piece] = node.wheel._storage.tail.pieces
        found = rows_of(node)
        assert found[: len(before)] == before
        assert times(piece.rows, "created").tolist() == [
            NOW + number for number in range(tail._FAN) for _ in range(1 if number != 5 else 20)
        ]
        stored = [row for entry in entries_of(node) for row in decode_rows(entry, "").to_pylist()]
        assert found == stored


def test_rows_of_one_caller_are_an_entry_of_version_1(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        assert together(node, [plain_batch([(NOW, "t", b"x")], 7, 4)]) == [(0, NOW, [NOW])]
        [entry] = entries_of(node)
        assert (entry.version, entry.producer, entry.sequence) == (1, 7, 4)
        assert entry.parts == (EntryPart(7, 4, 1),)


def test_a_repeat_waits_for_the_commit_of_the_first(tmp_path: Path) -> None:
    rows = [(as_due(500), "t", b"x")]
    with opened(tmp_path, CONFIG, NOW) as node:
        both = [plain_batch(rows, 7, 0), plain_batch(rows, 8, 0)]
        first = PlainSent(node.wheel, [*both, plain_batch(rows, 7, 0)], NOW)
        later = PlainSent(node.wheel, [plain_batch(rows, 8, 0), *both], NOW + 30)
        assert set(first.outcomes + later.outcomes) == {None}
        node.sync()
        seven, eight = ((offset, NOW, [NOW + 500]) for offset in (0, 1))
        assert first.outcomes == [seven, eight, seven]
        assert later.outcomes == [eight, seven, eight]
        assert node.wheel.status().accepted == 2
        after = PlainSent(node.wheel, both, NOW + 60)
        assert after.outcomes == [seven, eight], "at once: it is committed"


def test_an_arrow_batch_and_plain_rows_are_repeats_of_each_other(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        plain_one, arrow_one = (plain_batch([(NOW, "t", b"x")], 7, n) for n in range(2))
        first = together(node, [plain_one, plain_batch([(NOW, "t", b"y")], 8, 0)])
        assert one_by_one(node, [plain_one, arrow_one]) == [first[0], (2, NOW, [NOW])]
        assert together(node, [arrow_one]) == [(2, NOW, [NOW])]


def test_a_repeat_after_the_clock_was_set_back_has_its_first_answer(tmp_path: Path) -> None:
    horizon = CONFIG.horizon_ms
    sent = [plain_batch([(NOW + horizon, "t", b"x")], producer, 0) for producer in (7, 8)]
    with opened(tmp_path, CONFIG, NOW) as node:
        first = together(node, sent)
        fresh = plain_batch([(NOW + horizon, "t", b"x")], 9, 0)
        *again, refused = PlainSent(node.wheel, [*sent, fresh], NOW - 1).outcomes
        assert again == first
        assert isinstance(refused, InvalidMessage)


def test_another_batch_under_a_known_sequence_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        two = plain_batch([(NOW, "t", b"x"), (NOW, "t", b"y")], 7, 0)
        one, other = plain_batch([(NOW, "t", b"x")], 7, 0), plain_batch([(NOW, "t", b"z")], 8, 0)
        sent = PlainSent(node.wheel, [two, one, other], NOW)
        node.sync()
        assert sent.outcomes[::2] == [(0, NOW, [NOW] * 2), (2, NOW, [NOW])]
        assert isinstance(sent.outcomes[1], InvalidBatch)


def test_too_old_a_sequence_is_refused_alone(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        for sequence in range(IN_FLIGHT_MAX + 2):
            together(node, [plain_batch([(NOW, "t", b"x")], 7, sequence)])
        sent = [plain_batch([(NOW, "t", b"x")], 7, 0), plain_batch([(NOW, "t", b"x")], 8, 0)]
        old, fresh = PlainSent(node.wheel, sent, NOW).outcomes
        node.sync()
        assert isinstance(old, SequenceTooOld)
        assert fresh is None


@pytest.mark.parametrize(
    ("limits", "turn_bytes", "counts"),
    [
        ({"batch_rows_max": 4}, 1 << 20, [4, 4, 2]),
        ({}, 3 * 30, [2, 2, 2, 2, 2]),
        ({}, 1, [2] * 5),
        ({}, 1 << 20, [10]),
    ],
)
def test_a_turn_is_bounded_in_rows_and_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
    turn_bytes: int,
    counts: list[int],
) -> None:
    monkeypatch.setattr(plain, "GROUP_BYTES_MAX", turn_bytes)
    config = WheelConfig(disk_reserve_bytes=0, **limits)
    with opened(tmp_path, config, NOW) as node:
        sent = [plain_batch([(NOW, "t", b"a"), (NOW, "t", b"b")], 7 + n, 0) for n in range(5)]
        assert together(node, sent) == [(2 * n, NOW, [NOW] * 2) for n in range(5)]
        assert [entry.count for entry in entries_of(node)] == counts


def test_when_there_is_no_room_repeats_are_answered_all_the_same(tmp_path: Path) -> None:
    config = WheelConfig(disk_reserve_bytes=0, tail_bytes_refuse=1)
    sent = [plain_batch([(NOW, "t", b"x")], producer, 0) for producer in (7, 8)]
    with opened(tmp_path, config, NOW) as node:
        node.sync()
        first = together(node, sent)
        *repeats, refused, again = together(
            node,
            [
                *sent,
                *[plain_batch([(NOW, "t", b"")], 9, 0) for _ in range(2)],
            ],
        )
        assert repeats == first
        assert refused == again
        assert isinstance(refused, tuple)
        assert refused[0] is Overloaded
        assert len(entries_of(node)) == 1


def test_a_full_disk_refuses_all_of_a_turn_and_nothing_is_kept_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [plain_batch([(NOW, "t", b"x")], producer, 0) for producer in (7, 8)]
    with opened(tmp_path, CONFIG, NOW) as node:

        def full(entries: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        with monkeypatch.context() as patch:
            patch.setattr(node.wheel._log.journal, "append", full)
            failed = PlainSent(node.wheel, sent, NOW)
            node.wheel.write_pending(0)
        assert [type(one) for one in failed.outcomes] == [Overloaded] * 2
        assert together(node, sent) == [(0, NOW, [NOW]), (1, NOW, [NOW])]


def test_what_waits_when_the_wheel_is_closed_is_answered(tmp_path: Path) -> None:
    sent = [plain_batch([(NOW, "t", b"x")], producer, 0) for producer in (7, 8)]
    node = Node(tmp_path, CONFIG, NOW)
    waits = PlainSent(node.wheel, sent, NOW)
    node.close()
    late = PlainSent(node.wheel, sent, NOW)
    assert [type(one) for one in waits.outcomes + late.outcomes] == [NotRunning] * 4


def test_a_standby_takes_over_with_the_parts_of_each_caller(peers: tuple[Peer, Peer]) -> None:
    """The table is shipped with the rows; the next master knows each caller's batch again."""
    a, b = peers
    a.lead(1)
    now = PEERS_NOW
    sent = [plain_batch([(now + 5, "t", b"x")], producer, 3) for producer in (7, 8, 9)]
    standing_by = PlainSent(b.wheel, sent, now)
    assert [type(one) for one in standing_by.outcomes] == [NotMaster] * 3
    first = PlainSent(a.wheel, sent, now)
    a.sync()
    assert first.outcomes == [None] * 3, "a majority does not have it"
    a.ship(b)
    a.wheel.commit(a.wheel.log_view().durable)
    a.ship(b)
    assert first.outcomes == [(offset, now, [now + 5]) for offset in range(3)]
    assert [bytes(one.payload) for one in entries_of(a)] == [
        bytes(one.payload) for one in entries_of(b)
    ]
    a.wheel.stand_by("b")
    b.reopen()
    b.lead(2)
    again = PlainSent(b.wheel, [*sent, plain_batch([(now, "t", b"new")], 7, 4)], now + 1)
    b.commit()
    assert again.outcomes == [*first.outcomes, (3, now + 1, [now])]


def test_early_callers_are_answered_when_it_is_durable_here(peers: tuple[Peer, Peer]) -> None:
    a, _ = peers
    a.lead(1)
    now = PEERS_NOW
    sent = [
        plain_batch([(now, "t", b"x")], producer, 0, early=early)
        for producer, early in ((7, True), (8, False), (9, True))
    ]
    first = PlainSent(a.wheel, sent, now)
    assert first.outcomes == [None] * 3
    a.sync()
    assert first.outcomes == [(1, now, [now]), None, (2, now, [now])]
    again = PlainSent(a.wheel, sent, now)
    assert again.outcomes == first.outcomes
    a.wheel.commit(a.wheel.log_view().durable)
    assert first.outcomes == again.outcomes == [(1, now, [now]), (0, now, [now]), (2, now, [now])]


def test_a_master_that_is_deposed_answers_those_who_wait(peers: tuple[Peer, Peer]) -> None:
    a, _ = peers
    a.lead(1)
    now = PEERS_NOW
    sent = [plain_batch([(now, "t", b"x")], producer, 0) for producer in (7, 8)]
    first = PlainSent(a.wheel, sent, now)
    a.wheel.stand_by("b")
    assert [type(one) for one in first.outcomes] == [NotMaster] * 2
    a.lead(2)
    after = PlainSent(a.wheel, sent, now)
    a.commit()
    assert after.outcomes == [(0, now, [now]), (1, now, [now])], "what was withdrawn is not known"


def test_a_request_that_is_repeated_later_has_the_due_times_of_the_first(tmp_path: Path) -> None:
    """Its sender counts delays by its own clock; the first time's sequence says from when."""
    first, later = (RequestKey.of("k", b"", NOW + after) for after in (0, 70))
    with opened(tmp_path, CONFIG, NOW) as node:
        other = plain_batch([(NOW, "t", b"y")], 8, 0)

        def request(key: RequestKey) -> PlainBatch:
            return plain_batch([(key.base_ms + 500, "t", b"x")], key.producer, key.sequence)

        sent = PlainSent(node.wheel, [request(first), other, request(later)], NOW)
        node.sync()
        assert sent.outcomes[::2] == [(0, NOW, [NOW + 500])] * 2
        assert sent.sequences[2] == first.sequence
        assert later.shift_ms(sent.sequences[2]) == -70


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
        first, second, third = by_arrow(node, [InputBatch(one) for one in (whole, broken, whole)])
        assert isinstance(second, tuple)
        assert second[0] is InvalidBatch
        assert (first, third) == ((0, NOW, [NOW]), (1, NOW, [NOW]))


def test_a_batch_of_another_schema_is_taken_with_the_others(tmp_path: Path) -> None:
    """Columns that may be missing are missing."""
    short = batch([(NOW, "t", b"x")]).select(["due", "topic", "value"])
    with opened(tmp_path, CONFIG, NOW) as node:
        sent = [InputBatch(batch([(NOW, "t", b"y")])), InputBatch(short)]
        assert by_arrow(node, sent) == [(0, NOW, [NOW]), (1, NOW, [NOW])]


@given(st.lists(st.lists(good, min_size=1, max_size=3), min_size=1, max_size=12))
def test_an_entry_has_the_bytes_that_it_would_have_alone(shapes: list[Any]) -> None:
    """Nothing of its neighbours is in it."""
    parts = [as_input(batch_of_records(shape)).rows for shape in shapes]
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
        by_arrow(node, [InputBatch(one) for one in (small, large, small, small)])
        pieces = node.wheel._storage.tail.pieces
        assert [piece.nbytes > 100_000 for piece in pieces] == [False, True, False, False]
