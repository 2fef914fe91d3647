"""Ids: the check is SipHash-1-3, held against two implementations that are not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
import siphash24
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel import ids
from slotwheel.wheel.errors import UnknownId
from slotwheel.wheel.ids import (
    _BLOCK_ROWS,
    KEY_BYTES,
    LONG_CHECKS,
    LONG_FROM,
    NO_LONG_IDS,
    IdMint,
    MessageId,
    id_parts,
    id_texts,
    siphash13,
)
from slotwheel.wheel.schema import FEW_ROWS, Int64s, UInt64s

KEY = bytes(range(KEY_BYTES))
both = pytest.mark.usefixtures("few")
"""Marks a test that is run by each way in which few rows are hashed."""
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


def columns(*rows: tuple[int, int]) -> tuple[Int64s, Int64s]:
    """Due times and offsets."""
    due, offset = np.array(rows, np.int64).reshape(-1, 2).T
    return np.ascontiguousarray(due), np.ascontiguousarray(offset)


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


@pytest.fixture(params=["siphash24", "plain integers"], scope="module")
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """How few rows are hashed: every id is the same where siphash24 is not installed. A test that
    only writes and parses texts hashes nothing, and does not ask for this."""
    assert siphash24.siphash13
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain integers":
            patch.setattr(ids, "siphash24", None)
        yield


@both
@settings(max_examples=200)
@given(
    st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    st.lists(int64s, max_size=2 * ids._ONE_BY_ONE_ROWS),
    st.integers(0, 1 << 62),
    st.integers(-1, 2 * ids._ONE_BY_ONE_ROWS + 1),
)
def test_few_and_many_are_hashed_alike(key: bytes, due: list[int], base: int, short: int) -> None:
    """``short``: so many of the rows are before the first offset with a long id."""
    mint = IdMint("g", key, base + short)
    offset = np.arange(base, base + len(due), dtype=np.int64)
    found = mint.checks_from(due, base)
    assert found == mint.checks(np.array(due, np.int64), offset).tolist()
    words = np.array(due, np.int64).view(np.uint64), offset.view(np.uint64)
    digests = siphash13(mint._k0, mint._k1, words).tolist()
    folded = [(digest ^ digest >> 32) & 0xFFFFFFFF for digest in digests]
    split = max(0, short)
    assert found == folded[:split] + digests[split:], "a digest below 2^32 comes once in 2^32 rows"


GOLDEN = {
    (1_900_000_000_000, 0): ("3008fd54", "30c6784600ce8512"),
    (1_900_000_000_001, 1 << 40): ("62fc6af2", "71a6d141135abbb3"),
}
"""Checks that were given out, of short ids and of long ones."""


@both
@pytest.mark.parametrize("long_from", [0, 1, (1 << 40) + 1, NO_LONG_IDS])
def test_golden_ids(long_from: int) -> None:
    """These ids were given out: they are never rewritten, or callers' ids stop working."""
    mint = IdMint("orders", KEY, long_from)
    for (due, offset), checks in GOLDEN.items():
        texts = [f"orders.{due}.{offset}.{check}" for check in checks]
        is_long = offset >= long_from
        assert [str(mint.one(due, offset)), *mint.many(*columns((due, offset)))] == [
            texts[is_long]
        ] * 2
        assert [mint.genuine(MessageId.parse(text)) for text in texts] == [not is_long, is_long]


@both
def test_a_configuration_of_an_earlier_version_has_short_ids() -> None:
    config = {"group": "orders", "key": KEY.hex(), "slots": 60}
    mint = IdMint.of(config)
    assert mint.one(1_900_000_000_001, 1 << 40).check == 0x62FC6AF2
    mint.configure({**config, LONG_FROM: 1})
    assert [mint.one(due, offset).check for due, offset in GOLDEN] == [
        0x3008FD54,
        0x71A6D141135ABBB3,
    ]


GROUPS = st.text(st.characters(max_codepoint=127, exclude_characters="."), max_size=5)
CHECKS = st.integers(0, LONG_CHECKS - 1) | st.integers(LONG_CHECKS, (1 << 64) - 1)
IDS = st.builds(MessageId, GROUPS, int64s, st.integers(0, (1 << 63) - 1), CHECKS)


@settings(max_examples=100)
@given(st.lists(IDS, max_size=2 * FEW_ROWS))
def test_ids_of_both_forms_are_written_and_parsed(every: list[MessageId]) -> None:
    texts = [str(one) for one in every]
    assert [len(text.rpartition(".")[2]) for text in texts] == [
        16 if one.check >> 32 else 8 for one in every
    ]
    assert [MessageId.parse(text) for text in texts] == every
    due, offset = columns(*((one.due, one.offset) for one in every))
    checks = np.array([one.check for one in every], np.uint64)
    groups = pa.array([one.group for one in every], pa.utf8())
    assert id_texts(groups, due, offset, checks).to_pylist() == texts
    for one, parts in zip(every, id_parts(pa.array(texts, pa.utf8())).to_pylist(), strict=True):
        if parts is None:  # numbers of 19 digits are left to ``MessageId.parse``
            assert len(str(abs(one.due))) == 19 or len(str(one.offset)) == 19
        else:
            assert MessageId(**parts) == one


@pytest.mark.parametrize("digest", [0, 1, 5, LONG_CHECKS - 1, LONG_CHECKS, (1 << 64) - 1])
@pytest.mark.parametrize("rows", [1, ids._ONE_BY_ONE_ROWS + 1])
def test_a_small_digest_is_no_check_of_a_short_id(
    digest: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Digest:
        def intdigest(self) -> int:
            return digest

    class Hash:
        @staticmethod
        def siphash13(message: bytes, *, key: bytes) -> Digest:
            return Digest()

    def many(k0: int, k1: int, words: tuple[UInt64s, UInt64s]) -> UInt64s:
        return np.full(len(words[0]), digest, np.uint64)

    monkeypatch.setattr(ids, "siphash24", Hash)
    monkeypatch.setattr(ids, "siphash13", many)
    places = np.arange(rows, dtype=np.int64)
    [check] = set(IdMint("g", KEY).checks(places, places).tolist())
    assert check == digest + (0 if digest >= LONG_CHECKS else LONG_CHECKS)
    [check] = set(IdMint("g", KEY, rows).checks(places, places).tolist())
    assert check == (digest ^ digest >> 32) & 0xFFFFFFFF


@both
@settings(max_examples=100)
@given(
    st.lists(st.tuples(int64s, st.integers(0, 40)), min_size=1, max_size=20),
    st.integers(0, 41),
    st.integers(1, (1 << 64) - 1),
    st.booleans(),
)
def test_a_check_that_is_forged_or_of_the_other_form_is_not_genuine(
    rows: list[tuple[int, int]], long_from: int, bits: int, by_column: bool
) -> None:
    mint = IdMint("g", KEY, long_from)
    short, long = IdMint("g", KEY, NO_LONG_IDS), IdMint("g", KEY)
    rows *= FEW_ROWS + 1 if by_column else 1
    given_out = [mint.one(*row) for row in rows]
    other = [(long if offset < long_from else short).one(due, offset) for due, offset in rows]
    forged = [replace(one, check=one.check ^ bits) for one in given_out]
    low_forged = [replace(one, check=one.check ^ (bits % LONG_CHECKS or 1)) for one in given_out]
    for asked, expected in (
        (given_out, True),
        (other, False),
        (forged, False),
        (low_forged, False),
    ):
        due, offset, genuine = mint.read([str(one) for one in asked])
        assert genuine.tolist() == [expected] * len(rows) == [mint.genuine(one) for one in asked]
        assert list(zip(due.tolist(), offset.tolist(), strict=True)) == rows


def test_random_texts_are_unknown_ids_or_ids() -> None:
    """10^5 texts of the characters of ids, and mutations of ids: nothing but ``UnknownId``."""
    random, mint = Random(33), IdMint("g", KEY, 1 << 40)
    alphabet = "0123456789abcdefg.-+_ AF\n\u0661\x00"
    numbers = np.random.default_rng(33).integers(0, 1 << 41, (2, 50_000))
    for given_out in mint.many(*numbers):
        anything = "".join(random.choices(alphabet, k=random.randrange(40)))
        mutated = list(given_out)
        for _ in range(random.randrange(1, 3)):
            at = random.randrange(len(mutated))
            mutated[at : at + random.randrange(2)] = random.choices(alphabet, k=random.randrange(2))
        for text in (anything, "".join(mutated)):
            try:
                parsed = MessageId.parse(text)
            except UnknownId:
                continue
            assert str(parsed) == text
            assert mint.genuine(parsed) is (text == given_out)


@both
def test_more_rows_than_are_hashed_at_once() -> None:
    mint = IdMint("g", KEY)
    offset = np.arange(3 * _BLOCK_ROWS // 2, dtype=np.int64)
    due = offset * 7
    checks = mint.checks(due, offset)
    for row in (0, _BLOCK_ROWS - 1, _BLOCK_ROWS, len(offset) - 1):
        assert checks[row] == mint.one(int(due[row]), int(offset[row])).check


@both
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


@both
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
        "g.1.2.0000000012345678",  # 16 digits of a short id's check
        "g.1.2.0000000000000000",
        "g.1.2.10000000000000000",
        "g.1.2.100000000000000A",
        "g.1.2.+100000000000000",
        "g.01.2.00000000",
        "g.1.-2.00000000",
        "g. 1.2.00000000",
        "g.1_0.2.00000000",
        "g.1.2.0000000A",
        "g.1.2.+0000000",
        "g.1.2.-0000001",
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


@both
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
