"""The codecs of what a client and a node say: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from slotwheel.wheel import protocol
from slotwheel.wheel.answers import Before
from slotwheel.wheel.errors import (
    InvalidBatch,
    InvalidMessage,
    SlotwheelError,
    UnsupportedVersion,
)
from slotwheel.wheel.protocol import (
    AppendCommand,
    PriorRow,
    RefusedBatch,
    StoredBatch,
    decode_answer,
    decode_json,
    decode_sequence,
    encode_json,
    encode_refused,
    encode_sequence,
    encode_stored,
)
from slotwheel.wheel.request import REQUEST_PRODUCER, RequestKey


def test_command_round_trip() -> None:
    command = AppendCommand((1 << 63) - 1, "1")
    assert AppendCommand.decode(command.encode()) == command
    assert json.loads(command.encode()) == {
        "slotwheel": 2,
        "producer": "7fffffffffffffff",
        "acks": "1",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"producer": "8000000000000000"},  # that half belongs to delay topics
        {"producer": "-1"},
        {"producer": "xyz"},
        {"producer": None},
        {"acks": "2"},
    ],
)
def test_command_refused(change: dict[str, object]) -> None:
    fields = {"producer": "1", "acks": "all"} | change
    with pytest.raises(InvalidBatch, match="not a client's hello"):
        AppendCommand.decode(encode_json(fields))


@pytest.mark.parametrize("version", [0, 1, 3, "2", 2.0, True, None, [1]])
def test_other_version_is_refused_by_name_with_both(version: object) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode_json(json.dumps({"slotwheel": version}).encode())
    assert repr(version) in str(caught.value)
    assert "version 2" in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\x00", b"[]", b"1", b"{}", b'{"a": 1}', b"[" * 100_000]
)
def test_not_a_request(body: bytes) -> None:
    with pytest.raises(InvalidBatch, match="not a slotwheel request"):
        decode_json(body)


def test_body_over_the_limit_is_not_looked_at() -> None:
    with pytest.raises(InvalidBatch):
        decode_json(encode_json({"ids": "x" * protocol.JSON_BYTES_MAX}))


def test_sequence_round_trip_and_refusals() -> None:
    assert decode_sequence(encode_sequence(0)) == (0, None)
    assert decode_sequence(encode_sequence((1 << 63) - 1)) == ((1 << 63) - 1, None)
    for wrong in (None, b"", b"1234567", b"123456789", b"\xff" * 8):
        with pytest.raises(InvalidBatch, match="sequence"):
            decode_sequence(wrong)


def test_the_bytes_beside_a_request_are_the_documented_ones() -> None:
    request = RequestKey(REQUEST_PRODUCER | 5, 1_700_000_000_123, 0x1F0000)
    data = encode_sequence(7, request)
    assert data.hex() == (
        "0700000000000000"  # a number for the answer
        "05000000000000c0"  # producer
        "00007f0fadfc7931"  # base << 21 | digest
    )
    assert decode_sequence(data) == (7, request)
    of_a_client, of_a_partition = struct.pack("<QQQ", 7, 5, 1), struct.pack("<QQQ", 7, 2 << 62, 1)
    for wrong in (data[:16], data + b"x", of_a_client, of_a_partition, b"\xff" * 24):
        with pytest.raises(InvalidBatch, match="24 of a request"):
            decode_sequence(wrong)


def test_the_answer_to_a_request_has_a_shift() -> None:
    data = encode_stored(7, 1000, 5, np.array([1, 2], np.uint64), -250)
    assert data[48:].hex() == "06ffffffffffffff"
    answer = decode_answer(data)
    assert isinstance(answer, StoredBatch)
    assert (answer.shift_ms, answer.checks.tolist()) == (-250, [1, 2])
    assert answer.part(1, 1).shift_ms == -250
    assert answer.part(1, 1).checks.tolist() == [2]


def test_the_answer_to_names_that_were_known_has_the_messages_before() -> None:
    prior = {
        0: PriorRow(Before.REPLACED, 5, 990, 1),
        2: PriorRow(Before.KEPT, -1, 0, (1 << 64) - 1),
        3: PriorRow(Before.DELIVERED, 6, 7, 8),
    }
    checks = np.arange(4, dtype=np.uint64)
    data = encode_stored(7, 1000, 5, checks, None, prior)
    assert data[:4].hex() == "02000000"
    assert data[64:].hex() == (
        "0000000000000000"  # shift
        "00000000" "00000000" "0500000000000000" "de03000000000000" "0100000000000000"
        "02000000" "01000000" "ffffffffffffffff" "0000000000000000" "ffffffffffffffff"
        "03000000" "02000000" "0600000000000000" "0700000000000000" "0800000000000000"
    )  # fmt: skip
    answer = decode_answer(data)
    assert isinstance(answer, StoredBatch)
    assert (answer.prior, answer.checks.tolist()) == (prior, [0, 1, 2, 3])
    assert answer.part(1, 2).prior == {1: prior[2]}
    assert answer.part(0, 4) is answer
    shifted = decode_answer(encode_stored(7, 1000, 5, checks, -250, prior))
    assert isinstance(shifted, StoredBatch)
    assert (shifted.shift_ms, shifted.prior) == (-250, prior)


def test_an_answer_with_wrong_messages_before_is_none() -> None:
    prior = {1: PriorRow(Before.KEPT, 1, 2, 3), 2: PriorRow(Before.KEPT, 1, 2, 3)}
    data = encode_stored(7, 1000, 5, np.arange(4, dtype=np.uint64), None, prior)
    first, second = 72, 104
    wrong = [data[:n] for n in range(len(data)) if n != second]
    wrong += [data + b"x", data[:72] + bytes(32) * 2]
    wrong += [data[:first] + row + data[first + 4 :] for row in (b"\x02\0\0\0", b"\x04\0\0\0")]
    wrong += [data[: first + 4] + b"\x04" + data[first + 5 :]]
    for answer in wrong:
        with pytest.raises(InvalidBatch):
            decode_answer(answer)


def test_without_names_an_answer_has_the_bytes_that_it_always_had() -> None:
    checks = np.array([1, 2], np.uint64)
    for shift_ms in (None, -250):
        plain = encode_stored(7, 1000, 5, checks, shift_ms)
        assert encode_stored(7, 1000, 5, checks, shift_ms, {}) == plain
        assert plain[0] == 0


def test_receipt_bytes_are_the_documented_ones() -> None:
    data = encode_stored(7, 1000, 1_700_000_000_123, np.array([1, (1 << 64) - 2], np.uint64))
    assert data.hex() == (
        "00000000"  # stored, reserved
        "02000000"  # count
        "0700000000000000"  # sequence
        "e803000000000000"  # base offset
        "7b68e5cf8b010000"  # created
        "0100000000000000feffffffffffffff"  # checks
    )
    answer = decode_answer(data)
    assert isinstance(answer, StoredBatch)
    assert (answer.sequence, answer.base_offset, answer.count) == (7, 1000, 2)
    assert answer.created_ms == 1_700_000_000_123
    assert answer.checks.tolist() == [1, (1 << 64) - 2]


def test_refusal_round_trip() -> None:
    error = InvalidMessage("no topic", got="''", limit="1", remedy="Name one", row=3)
    answer = decode_answer(encode_refused(9, error))
    assert isinstance(answer, RefusedBatch)
    assert answer.sequence == 9
    assert type(answer.error) is InvalidMessage
    assert answer.error.to_wire() == error.to_wire()


def test_cut_and_longer_answers_are_refused() -> None:
    data = encode_stored(7, 1000, 5, np.arange(4, dtype=np.uint64))
    for wrong in [data[:n] for n in range(len(data))] + [data + b"x", b"\x02" + data[1:]]:
        with pytest.raises(InvalidBatch):
            decode_answer(wrong)


def test_unreadable_error_is_shown() -> None:
    data = encode_refused(9, InvalidBatch("x"))[:-1]
    answer = decode_answer(data)
    assert isinstance(answer, RefusedBatch)
    assert type(answer.error) is SlotwheelError
    assert "unreadable error" in str(answer.error)
