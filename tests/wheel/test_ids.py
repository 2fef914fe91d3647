"""Ids: the check is SipHash-1-3, held against two implementations that are not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import siphash24
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel import ids
from slotwheel.wheel.errors import UnknownId
from slotwheel.wheel.ids import _BLOCK_ROWS, KEY_BYTES, IdMint, MessageId, siphash13
from slotwheel.wheel.schema import FEW_ROWS

KEY = bytes(range(KEY_BYTES))
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


def siphash(key: bytes, message: bytes, rounds: int, final_rounds: int) -> int:
    """SipHash-c-d in plain Python integers, written from the paper's section 2."""
    mask = (1 << 64) - 1
    k0, k1 = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def left(x: int, by: int) -> int:
        return ((x << by) | (x >> (64 - by))) & mask

    def mix(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & mask
            v[2] = (v[2] + v[3]) & mask
            v[1], v[3] = left(v[1], 13) ^ v[0], left(v[3], 16) ^ v[2]
            v[0] = left(v[0], 32)
            v[2] = (v[2] + v[1]) & mask
            v[0] = (v[0] + v[3]) & mask
            v[1], v[3] = left(v[1], 17) ^ v[2], left(v[3], 21) ^ v[0]
            v[2] = left(v[2], 32)

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        mix(rounds)
        v[0] ^= word
    v[2] ^= 0xFF
    mix(final_rounds)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def ours(key: bytes, message: bytes) -> int:
    k0, k1 = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    words = np.frombuffer(message, "<u8").astype(np.uint64)
    return int(siphash13(k0, k1, (words[:1], words[1:]))[0])


def test_the_plain_one_gives_the_papers_vector() -> None:
    """SipHash-2-4 of 00..0e under 00..0f, appendix A of the paper."""
    assert siphash(KEY, bytes(range(15)), 2, 4) == 0xA129CA6149BE45E5


def test_the_plain_one_is_what_cpython_hashes_with() -> None:
    """CPython hashes bytes with SipHash-1-3 (2-4 before 3.11), under a zero key for seed 0."""
    message = bytes(range(100, 116))
    rounds = {"siphash13": (1, 3), "siphash24": (2, 4)}[sys.hash_info.algorithm]
    done = subprocess.run(
        [sys.executable, "-c", f"print(hash({message!r}))"],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        check=True,
    )
    assert int(done.stdout) % (1 << 64) == siphash(bytes(16), message, *rounds)


@settings(max_examples=200)
@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_ours_is_the_plain_one(key: bytes, message: bytes) -> None:
    assert ours(key, message) == siphash(key, message, 1, 3)


@pytest.fixture(params=["siphash24", "plain integers"], autouse=True, scope="module")
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """How few rows are hashed: every id is the same where siphash24 is not installed."""
    assert siphash24.siphash13
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain integers":
            patch.setattr(ids, "siphash24", None)
        yield


@settings(max_examples=200)
@given(
    st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    st.lists(int64s, max_size=2 * ids._ONE_BY_ONE_ROWS),
    st.integers(0, 1 << 62),
)
def test_few_and_many_are_hashed_alike(key: bytes, due: list[int], base: int) -> None:
    mint = IdMint("g", key)
    offset = np.arange(base, base + len(due), dtype=np.int64)
    found = mint.checks_from(due, base)
    assert found == mint.checks(np.array(due, np.int64), offset).tolist()
    words = np.array(due, np.int64).view(np.uint64), offset.view(np.uint64)
    digest = siphash13(mint._k0, mint._k1, words)
    assert found == (digest ^ (digest >> np.uint64(32))).astype(np.uint32).tolist()


def test_golden_ids() -> None:
    """These ids were given out: they are never rewritten, or callers' ids stop working."""
    mint = IdMint("orders", KEY)
    assert str(mint.one(1_900_000_000_000, 0)) == "orders.1900000000000.0.3008fd54"
    assert (
        str(mint.one(1_900_000_000_001, 1 << 40)) == "orders.1900000000001.1099511627776.62fc6af2"
    )


def test_more_rows_than_are_hashed_at_once() -> None:
    mint = IdMint("g", KEY)
    offset = np.arange(3 * _BLOCK_ROWS // 2, dtype=np.int64)
    due = offset * 7
    checks = mint.checks(due, offset)
    for row in (0, _BLOCK_ROWS - 1, _BLOCK_ROWS, len(offset) - 1):
        assert checks[row] == mint.one(int(due[row]), int(offset[row])).check


@settings(max_examples=50)
@given(st.lists(st.tuples(int64s, st.integers(0, (1 << 63) - 1)), max_size=20), st.booleans())
def test_many_are_as_one(keys: list[tuple[int, int]], by_column: bool) -> None:
    mint = IdMint("g", KEY)
    keys *= FEW_ROWS if by_column else 1
    due = np.array([key[0] for key in keys], np.int64)
    offset = np.array([key[1] for key in keys], np.int64)
    texts = mint.many(due, offset)
    assert texts == [str(mint.one(*key)) for key in keys]
    for text, key in zip(texts, keys, strict=True):
        parsed = MessageId.parse(text)
        assert (parsed.due, parsed.offset) == key
        assert mint.genuine(parsed)


def test_another_key_another_group_another_check_are_not_genuine() -> None:
    mint = IdMint("g", KEY)
    real = mint.one(1000, 5)
    assert mint.genuine(real)
    assert not IdMint("g", bytes(16)).genuine(real)
    assert not IdMint("h", KEY).genuine(real)
    assert not mint.genuine(MessageId("g", 1000, 5, real.check ^ 1))
    assert not mint.genuine(MessageId("g", 1001, 5, real.check))
    assert not mint.genuine(MessageId("g", 1000, 6, real.check))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g",
        "g.1.2",
        "g.1.2.3",
        "g.1.2.0000000g",
        "g.1.2.000000001",
        "g.01.2.00000000",
        "g.1.-2.00000000",
        "g. 1.2.00000000",
        "g.1_0.2.00000000",
        "g.1.2.0000000A",
        "g.1.2.+0000000",
        "g.1.2.00000000.x",
        "g.\u0661.2.00000000",
        "\ud800.1.2.00000000",
        "g.1.2.00000000\n",
        "g." + "9" * 5000 + ".2.00000000",
        f"g.{1 << 63}.2.00000000",  # more than 64 bits would end in an OverflowError of NumPy
        f"g.{-(1 << 63) - 1}.2.00000000",
        f"g.1.{1 << 63}.00000000",
    ],
)
def test_what_is_not_an_id(text: str) -> None:
    with pytest.raises(UnknownId, match="receipt"):
        MessageId.parse(text)
    for others in (0, 2 * FEW_ROWS):
        with pytest.raises(UnknownId, match="receipt"):
            IdMint("g", KEY).read(["g.1.2.00000000"] * others + [text])


@given(st.lists(st.tuples(int64s, st.integers(0, (1 << 63) - 1), st.booleans()), max_size=200))
def test_many_ids_are_read_as_they_were_written(rows: list[tuple[int, int, bool]]) -> None:
    mint = IdMint("g", KEY)
    texts = [str((mint if own else IdMint("h", KEY)).one(due, offset)) for due, offset, own in rows]
    due, offset, genuine = mint.read(texts)
    assert list(zip(due.tolist(), offset.tolist(), genuine.tolist(), strict=True)) == rows


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_unknown(text: str) -> None:
    try:
        parsed = MessageId.parse(text)
    except UnknownId:
        return
    assert str(parsed) == text
