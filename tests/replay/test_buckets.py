"""Facts leave in pieces of one bucket each, all of them, and what waits is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from slotwheel.replay.facts.buckets import Buckets
from slotwheel.replay.facts.fact import BUCKET_BITS, FACT, Facts, decompress

SIZE = 1 << BUCKET_BITS


def facts(offsets: list[int] | np.ndarray) -> Facts:
    made = np.zeros(len(offsets), FACT)
    made["offset"] = offsets
    made["where"] = np.arange(len(offsets))
    return made


@pytest.mark.parametrize("spread", [1, 3 * SIZE, 200 * SIZE, 1 << 62])
def test_all_facts_leave_in_their_buckets_in_order(spread: int) -> None:
    random = np.random.default_rng(7)
    buckets = Buckets(piece_bytes=64 * 100, held_bytes_max=64 * 5_000)
    batches = [facts(random.integers(0, spread, 3_000)) for _ in range(5)]
    pieces = [piece for batch in batches for piece in buckets.add(batch)]
    pieces += buckets.drain()
    assert not list(buckets.drain())
    left: dict[int, list[Facts]] = {}
    for bucket, count, data in pieces:
        found = decompress(data)
        assert len(found) == count
        assert (found["offset"] >> BUCKET_BITS == bucket).all()
        left.setdefault(bucket, []).append(found)
    together = np.concatenate(batches)
    for bucket, parts in left.items():
        expected = together[together["offset"] >> BUCKET_BITS == bucket]
        assert np.array_equal(np.concatenate(parts), expected)
    assert sum(count for _, count, _ in pieces) == 15_000


def test_a_full_bucket_leaves_alone() -> None:
    buckets = Buckets(piece_bytes=64 * 10)
    assert not list(buckets.add(facts([1] * 9 + [SIZE] * 5)))
    ((bucket, count, _),) = buckets.add(facts([2]))
    assert (bucket, count) == (0, 10)
    assert [(bucket, count) for bucket, count, _ in buckets.drain()] == [(1, 5)]


def test_what_waits_is_bounded() -> None:
    buckets = Buckets(held_bytes_max=64 * 10)
    assert not list(buckets.add(facts([at * SIZE for at in range(10)])))
    assert len(list(buckets.add(facts([11 * SIZE])))) == 11


def test_no_facts() -> None:
    assert not list(Buckets().add(facts([])))
