"""The digest of a message's content: what is different must differ, what is equal must not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.digest import content_digests, digests, topic_crcs
from slotwheel.wheel.rows import header_column, no_headers
from slotwheel.wheel.schema import UInt64s

Content = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def of(*rows: Content) -> UInt64s:
    return digests(*columns(*rows))


def columns(*rows: Content) -> list[pa.Array]:
    topics, keys, values, headers = zip(*rows, strict=True)
    return [
        pa.array(topics, pa.utf8()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        header_column(headers),
    ]


DIFFERENT: list[Content] = [
    ("t", None, None, []),
    ("t", b"", None, []),
    ("t", None, b"", []),
    ("t", b"", b"", []),
    ("u", b"", b"", []),
    ("t", b"ab", b"c", []),
    ("t", b"a", b"bc", []),
    ("ta", b"", b"bc", []),
    ("t", b"abc", b"", []),
    ("t", b"", b"abc", []),
    ("t", b"", b"abc\0", []),
    ("t", b"", b"\0abc", []),
    ("t", b"", b"\0", []),
    ("t", b"", b"\0\0", []),
    ("t", b"", b"", [("", None)]),
    ("t", b"", b"", [("", b"")]),
    ("t", b"", b"", [("", b""), ("", b"")]),
    ("t", b"", b"", [("a", b"b")]),
    ("t", b"", b"", [("ab", b"")]),
    ("t", b"", b"", [("ab", None)]),
    ("t", b"", b"", [("", b"ab")]),
    ("t", b"", b"", [("a", b"1"), ("b", b"2")]),
    ("t", b"", b"", [("b", b"2"), ("a", b"1")]),
    ("t", b"", b"", [("a", b"2"), ("b", b"1")]),
    ("t", b"", b"", [("a", b"1"), ("a", b"1")]),
    ("t", b"", b"", [("a", b"1")]),
]


def test_what_is_different_differs() -> None:
    assert len(set(of(*DIFFERENT).tolist())) == len(DIFFERENT)


def test_a_row_alone_has_the_digest_it_has_among_others() -> None:
    together = of(*DIFFERENT).tolist()
    assert [of(row).tolist()[0] for row in DIFFERENT] == together


BORDERS = [bytes(size) for size in (7, 8, 9, 16, 127, 128, 129, 256)]
CONTENTS = st.tuples(
    st.sampled_from(["a", "b", "long-topic"]),
    st.none() | st.binary(max_size=4),
    st.none() | st.binary(max_size=40) | st.sampled_from(BORDERS),
    st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=3)), max_size=3),
)


@given(st.lists(CONTENTS, min_size=1, max_size=12), st.data())
def test_slices_and_other_layouts_give_the_same(rows: list[Any], data: st.DataObject) -> None:
    whole = columns(*rows)
    expected = digests(*whole)
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    sliced = digests(*(column.slice(start, end - start) for column in whole))
    assert sliced.tolist() == expected[start:end].tolist()

    topic, key, value, headers = whole
    large = digests(
        topic.dictionary_encode(),
        key.cast(pa.large_binary()),
        value.cast(pa.large_binary()),
        headers,
    )
    assert large.tolist() == expected.tolist()
    for one, row in enumerate(rows):
        for other, another in enumerate(rows):
            assert (row == another) == (expected[one] == expected[other])


def test_bytes_under_a_null_do_not_count() -> None:
    ends = pa.py_buffer(np.array([0, 3, 6], np.int32))
    valid = pa.py_buffer(b"\x02")
    value = pa.Array.from_buffers(pa.binary(), 2, [valid, ends, pa.py_buffer(b"abcdef")])
    assert value.to_pylist() == [None, b"def"]
    found = digests(pa.array(["t", "t"]), pa.nulls(2, pa.binary()), value, no_headers(2))
    assert found.tolist() == of(("t", None, None, []), ("t", None, b"def", [])).tolist()


def test_headers_that_are_null_are_none() -> None:
    topic, key, value, _ = columns(*[("t", b"k", b"v", [])] * 3)
    kind = header_column([[]]).type
    headers = pa.array([None, [], [{"key": "a", "value": None}]], kind)
    expected = of(("t", b"k", b"v", []), ("t", b"k", b"v", []), ("t", b"k", b"v", [("a", None)]))
    assert digests(topic, key, value, headers).tolist() == expected.tolist()
    none = content_digests(topic_crcs(topic), key, value, None)
    assert none.tolist() == [expected[0]] * 3
    assert digests(topic, key, value, pa.nulls(3, kind)).tolist() == none.tolist()


def test_no_rows() -> None:
    assert digests(*(column.slice(0, 0) for column in columns(DIFFERENT[0]))).tolist() == []


GOLDEN = ["2ed2ae609d238912", "a034e4a79b039eda", "eaafd630c53feb8e"]

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    word = word + STEP & MASK
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def word_of(value: bytes | None) -> int:
    if value is None:
        return MASK
    if len(value) > 128:
        return len(value) << 32 | crc32c(value)
    pieces = [value[at : at + 8] for at in range(0, len(value), 8)]
    numbers = enumerate(int.from_bytes(piece, "little") for piece in pieces)
    return len(value) + sum(mix(piece ^ number * STEP & MASK) for number, piece in numbers) & MASK


def reference(row: Content) -> int:
    """The digest as the module's head describes it."""
    topic, key, value, headers = row
    digest = mix(crc32c(topic.encode()))
    for word in (word_of(key), word_of(value)):
        digest = mix(digest ^ word)
    if headers:
        pairs = [
            mix(mix(number * STEP & MASK ^ word_of(name.encode())) ^ word_of(content))
            for number, (name, content) in enumerate(headers)
        ]
        digest = mix(digest ^ sum(pairs) & MASK)
    return digest


@given(st.lists(CONTENTS, min_size=1, max_size=12))
def test_it_is_what_its_description_says(rows: list[Any]) -> None:
    assert of(*rows).tolist() == [reference(row) for row in rows]


def test_golden() -> None:
    """Receipts are kept in files: these numbers never change."""
    rows: list[Content] = [
        ("t", None, None, []),
        ("orders", b"key", b"a value of more than 8 bytes", [("a", b"1"), ("b", None)]),
        ("orders", b"", bytes(range(200)), []),
    ]
    assert [f"{digest:016x}" for digest in of(*rows).tolist()] == GOLDEN


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 128, 129])
def test_each_bit_of_a_value_counts(size: int) -> None:
    value = bytes(range(size))
    flipped = [bytearray(value) for _ in range(size * 8)]
    for bit, changed in enumerate(flipped):
        changed[bit // 8] ^= 1 << bit % 8
    found = of(("t", None, value, []), *(("t", None, bytes(one), []) for one in flipped))
    assert len(set(found.tolist())) == size * 8 + 1


def test_a_million_contents_have_a_million_digests(figure: Callable[[str], None]) -> None:
    """Also what it costs."""
    count = 1 << 20
    block = np.zeros((count, 100), np.uint8)
    block[:, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(-1, 4)
    ends = pa.py_buffer(np.arange(0, count * 100 + 1, 100, dtype=np.int32))
    value = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(block.tobytes())])
    arrays = (pa.array(["t"] * count), pa.nulls(count, pa.binary()), value, no_headers(count))
    started = time.thread_time()  # not what others take meanwhile
    found = digests(*arrays)
    took = (time.thread_time() - started) / count * 1e6
    figure(f"digest: {took:.2f} us a row of 100 B")
    assert len(np.unique(found)) == count
    assert took < 2


@pytest.mark.parametrize("name", ["", "t", "an-ordinary.topic_name"])
def test_a_topic_is_known_by_its_crc(name: str) -> None:
    assert topic_crcs(pa.array([name, "x", name])).tolist()[::2] == [crc32c(name.encode())] * 2
