"""The store's writer: what it keeps and refuses, merging, retention, and being killed."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.trace.batches import encode
from slotwheel.trace.events import EventSender
from slotwheel.trace.store import StoreWriter, TraceQuery, TraceReader
from slotwheel.trace.store import writer as store_writer
from slotwheel.trace.store.checks import NUMBER_END, REASONS, TIME_END_MS
from slotwheel.trace.store.merging import SEGMENTS_MAX, KnownSegment, merge, what_to_merge
from slotwheel.trace.store.names import SegmentName, list_segments, segment_names
from slotwheel.trace.store.numbers import SenderNumbers
from slotwheel.wheel.errors import DirectoryInUse, InvalidConfiguration
from support import tracewriting
from support.traced import Row, event, expected, id_parts, keys_of, of_sender

HOUR_MS = 3_600_000
ALL = TraceQuery()


def value(*rows: Row) -> bytes:
    return encode(EventSender(rows[0]["sender"], rows[0].get("client", "")), of_sender(rows))


def all_of(root: Path, query: TraceQuery = ALL) -> list[tuple[int, str, int]]:
    page = TraceReader(root).page(query, limit=1_000_000)
    assert page.complete, page.problems
    return keys_of(page.events)


def test_what_is_not_flushed_is_read_again(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t")
    writer.add(0, 1, value(event(0, 5)))
    writer.add(3, 8, value(event(0, 6, "other")))
    writer.flush(0)
    writer.add(0, 2, value(event(1, 7)))
    writer.close()
    again = StoreWriter(tmp_path, "t")
    assert again.positions == {0: 1, 3: 8}
    again.add(0, 2, value(event(1, 7)))
    again.flush(0)
    again.close()
    assert all_of(tmp_path) == [(5, "s", 0), (6, "other", 0), (7, "s", 1)]


def test_positions_are_those_of_one_source(tmp_path: Path) -> None:
    """Also through merges, and in a store of an earlier version, which names none."""
    writer = StoreWriter(tmp_path, "t")
    for number in range(3):
        if number == 1:
            writer.go_on("cluster/first")
        writer.add(0, number + 1, value(event(number, number)))
        writer.flush(0)
    assert (writer.source, writer.positions) == ("cluster/first", {0: 3})
    while writer.tidy(5 * HOUR_MS, wait=True):
        pass
    writer.close()
    again = StoreWriter(tmp_path, "t")
    assert (again.source, again.positions) == ("cluster/first", {0: 3})
    again.go_on("")  # not known now
    assert again.positions == {0: 3}
    again.go_on("cluster/second")
    assert again.positions == {}
    again.add(1, 1, value(event(7, 7)))
    again.flush(0)
    again.close()
    last = StoreWriter(tmp_path, "t")
    assert (last.source, last.positions) == ("cluster/second", {1: 1})
    last.close()


def test_what_comes_twice_is_stored_once_and_gaps_are_counted(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t")
    writer.add(0, 1, value(event(0, 1), event(1, 1), event(1, 2)))
    writer.add(0, 2, value(event(0, 1), event(5, 1)))
    writer.add(0, 3, value(event(0, 9, "forger"), event(3, 9, "forger")))
    assert (writer.counts.twice, writer.counts.missing) == (2, 3 + 2)
    writer.flush(0)
    writer.add(0, 4, value(event(3, 1), event(5, 7)))
    assert (writer.counts.twice, writer.counts.missing) == (3, 2 + 2)
    writer.flush(0)
    writer.close()
    again = StoreWriter(tmp_path, "t")
    assert again.counts.missing == 2 + 2
    again.add(0, 5, value(event(5, 1), event(4, 1), event(2, 1)))
    assert (again.counts.twice, again.counts.missing) == (1, 2)
    again.flush(0)
    again.close()
    numbers = Counter((sender, number) for _, sender, number in all_of(tmp_path))
    assert numbers == Counter([("s", n) for n in range(6)] + [("forger", 0), ("forger", 3)])


def test_bad_input_is_refused_with_a_count_and_the_rest_is_stored(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t")
    good = event(0, TIME_END_MS - 1, tag="t" * 4096, id=id_parts(1, group="another-group"))
    bad = {
        "unknown-kind": [event(1, 1, kind="x"), event(2, 1, kind="")],
        "absurd-time": [
            *(event(3, TIME_END_MS), event(4, -1), event(5, 1, id=id_parts(1, due=-1))),
            event(6, 1, origin=id_parts(1, due=TIME_END_MS)),
        ],
        "bad-number": [event(-1, 1), event(NUMBER_END, 1)],
        "too-large": [event(7, 1, key=b"k" * 4097), event(8, 1, id=id_parts(1, group="g" * 5000))],
    }
    writer.add(0, 1, value(good, *(row for rows in bad.values() for row in rows)))
    writer.add(0, 2, None)
    writer.add(0, 3, b"no events")
    changed = value(good).replace(b"slotwheel.trace\x00", b"slotwheel.trade\x00", 1)
    assert changed != value(good)
    writer.add(0, 4, changed)
    wanted = {reason: len(rows) for reason, rows in bad.items()}
    assert writer.counts.refused == wanted | {"not-events": 2, "unknown-version": 1}
    assert set(writer.counts.refused) == set(REASONS)
    writer.flush(0)
    writer.close()
    assert all_of(tmp_path) == [(TIME_END_MS - 1, "s", 0)]
    assert writer.positions == {0: 4}


def test_one_writer_and_one_topic(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t")
    writer.add(0, 1, value(event(0, 1)))
    writer.flush(0)
    with pytest.raises(DirectoryInUse, match="another gateway"):
        StoreWriter(tmp_path, "t")
    writer.close()
    with pytest.raises(InvalidConfiguration, match="another topic"):
        StoreWriter(tmp_path, "other")
    StoreWriter(tmp_path, "t").close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 12), st.integers(0, 9)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("tidy"), st.booleans()),
        st.tuples(st.just("hour")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("kill")),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=40)
@given(STEPS)
def test_the_store_has_what_a_plain_list_has(steps: list[tuple[Any, ...]]) -> None:
    """The topic is a list; whatever was not flushed when the writer ends is read from it again."""
    topic: list[list[Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        now_ms = HOUR_MS * 5
        writer = StoreWriter(root, "t", merged_rows_max=40)
        for kind, *given_ in steps:
            if kind == "add":
                sender, number, at = given_
                rows = [
                    event(number + n, at + n, f"s{sender}", key=b"%d" % at, tag=f"{number}")
                    for n in range(3)
                ]
                topic.append(rows)
                writer.add(0, len(topic), value(*rows))
            elif kind == "flush":
                writer.flush(now_ms)
            elif kind == "tidy":
                [wait] = given_
                writer.tidy(now_ms, wait=wait)
            elif kind == "hour":
                now_ms += HOUR_MS
            else:
                if kind == "reopen":
                    writer.flush(now_ms)
                writer.close()
                writer = StoreWriter(root, "t", merged_rows_max=40)
                for at in range(writer.positions.get(0, 0), len(topic)):
                    writer.add(0, at + 1, value(*topic[at]))
        writer.flush(now_ms)
        first: dict[tuple[str, int], Row] = {}
        for rows in topic:
            for row in rows:
                first.setdefault((row["sender"], row["number"]), row)
        for query in (ALL, TraceQuery(key=b"3"), TraceQuery(tag="4"), TraceQuery(from_ms=4)):
            assert all_of(root, query) == expected(first.values(), query)
        while writer.tidy(now_ms + HOUR_MS, wait=True):
            pass
        assert all_of(root) == expected(first.values(), ALL)
        for query in (TraceQuery(key=b"3"), TraceQuery(tag="4"), TraceQuery(from_ms=4)):
            assert all_of(root, query) == expected(first.values(), query)
        writer.close()


def test_old_segments_are_deleted_from_the_oldest_on(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t", retain_ms=2 * HOUR_MS)
    for hour in range(6):
        writer.add(0, hour + 1, value(event(hour, FORGED if hour == 1 else hour)))
        writer.flush(hour * HOUR_MS + 1)
    writer.tidy(5 * HOUR_MS - 1)
    assert [name.first for name in list_segments(tmp_path)] == [2, 3, 4, 5]
    damaged = tmp_path / SegmentName(2, 2).index_file
    damaged.write_bytes(b"x")
    writer.close()
    again = StoreWriter(tmp_path, "t", retain_ms=2 * HOUR_MS)
    again.tidy(6 * HOUR_MS)
    assert [name.first for name in list_segments(tmp_path)] == [4, 5]
    assert not damaged.exists()
    again.close()


FORGED = 253_402_300_799_000


class HeldMerge:
    """A merge that waits until it may go on, and again when it is done."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.ended, self.end = (threading.Event() for _ in range(4))

    def __call__(self, root: Path, names: Sequence[SegmentName]) -> KnownSegment:
        self.begun.set()
        assert self.go_on.wait(60)
        made = merge(root, names)
        self.ended.set()
        assert self.end.wait(60)
        return made


def test_a_flush_waits_for_no_merge_and_nothing_is_deleted_under_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldMerge()
    monkeypatch.setattr(store_writer, "merge", held)
    writer = StoreWriter(tmp_path, "t", retain_ms=3 * HOUR_MS)

    def flush(number: int, now_ms: int) -> None:
        writer.add(0, number + 1, value(event(number, number)))
        writer.flush(now_ms)
        assert all_of(tmp_path) == [(n, "s", n) for n in range(number + 1)]

    for number in range(8):
        flush(number, 0)
    assert writer.tidy(0)
    assert held.begun.wait(60)
    flush(8, 0)
    # It is too old by now, and still what the merge reads.
    assert writer.tidy(9 * HOUR_MS)
    assert len(list_segments(tmp_path)) == 9
    held.go_on.set()
    assert held.ended.wait(60)
    flush(9, 9 * HOUR_MS)
    assert list_segments(tmp_path) == [(0, 7), (8, 8), (9, 9)]
    assert writer.tidy(HOUR_MS)
    assert (tmp_path / SegmentName(0, 0).events_file).exists()
    held.end.set()
    assert not writer.tidy(9 * HOUR_MS, wait=True)
    writer.close()
    assert [path.name for path in tmp_path.glob("*.arrow")] == [SegmentName(9, 9).events_file]
    assert all_of(tmp_path) == [(9, "s", 9)]


def test_a_merge_that_fails_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> KnownSegment:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_writer, "merge", full)
    writer = StoreWriter(tmp_path, "t")
    for number in range(8):
        writer.add(0, number + 1, value(event(number, number)))
        writer.flush(0)
    with pytest.raises(OSError, match="No space"):
        writer.tidy(0, wait=True)
    writer.close()
    assert all_of(tmp_path) == [(n, "s", n) for n in range(8)]


def test_a_damaged_segment_is_never_hidden_by_a_merge(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t")
    for number in range(10):
        writer.add(0, number + 1, value(event(number, number)))
        writer.flush(0)
    path = tmp_path / SegmentName(3, 3).events_file
    sound = path.read_bytes()
    path.write_bytes(b"\0" * len(sound))
    while writer.tidy(5 * HOUR_MS, wait=True):
        pass
    writer.close()
    again = StoreWriter(tmp_path, "t")
    assert again.positions == {0: 10}
    while again.tidy(5 * HOUR_MS, wait=True):
        pass
    again.close()
    assert list_segments(tmp_path) == [(0, 2), (3, 3), (4, 9)]
    page = TraceReader(tmp_path).page(ALL)
    assert [one.file for one in page.problems] == [path.name]
    path.write_bytes(sound)
    assert all_of(tmp_path) == [(n, "s", n) for n in range(10)]


def test_what_is_read_of_a_damaged_newest_segment_is_read_again(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "t")
    for number in range(3):
        writer.add(0, number + 1, value(event(number, number)))
        writer.flush(0)
    writer.close()
    (tmp_path / SegmentName(2, 2).index_file).write_bytes(b"torn")
    again = StoreWriter(tmp_path, "t")
    assert again.positions == {0: 2}
    again.add(0, 3, value(event(2, 2)))
    again.flush(0)
    again.close()
    page = TraceReader(tmp_path).page(ALL)
    assert keys_of(page.events) == [(n, "s", n) for n in range(3)]
    assert len(page.problems) == 1


def test_which_segments_are_merged() -> None:
    def known(*spans: tuple[int, int, int, int]) -> list[KnownSegment]:
        return [KnownSegment(SegmentName(a, b), hour, rows) for a, b, hour, rows in spans]

    def merged(some: list[KnownSegment], hour: int, rows_max: int = 100) -> list[int]:
        return [one.name.first for one in what_to_merge(some, hour, rows_max)]

    ones = known(*((n, n, 7, 10) for n in range(9)))
    assert merged(ones[:7], 7) == []
    assert merged(ones, 7) == list(range(8))
    assert merged(ones, 7, 35) == [0, 1, 2]
    assert merged(ones, 7, 10) == []
    assert merged(ones[:2], 8) == [0, 1]
    assert merged(ones[:1], 8) == []
    many = known(*((n, n, 7, 1) for n in range(1000)))
    assert merged(many, 8, 10_000) == list(range(SEGMENTS_MAX))
    # Not beyond a missing or damaged one, and not into another hour.
    assert merged([*ones[:3], *ones[4:]], 7) == []
    assert merged([ones[0], *ones[2:4]], 8) == [2, 3]
    assert merged(known((0, 0, 6, 1), (1, 1, 7, 1)), 9) == []
    levels = known(*((8 * n, 8 * n + 7, 7, 1) for n in range(8)), (64, 64, 7, 1))
    assert merged(levels, 7) == [8 * n for n in range(8)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 40), max_size=8))),
    st.integers(0, 20),
)
def test_numbers_are_new_once(batches: list[tuple[str, list[int]]], again: int) -> None:
    numbers = SenderNumbers()
    there: dict[str, set[int]] = {"a": set(), "b": set()}
    for sender, some in batches:
        new = numbers.add(sender, np.array(some, np.int64))
        for number, is_new in zip(some, new.tolist(), strict=True):
            assert is_new == (number not in there[sender])
            there[sender].add(number)
    assert numbers.missing == sum(max(one) + 1 - len(one) for one in there.values() if one)


def test_memory_for_numbers_is_bounded() -> None:
    numbers = SenderNumbers(senders_max=3, ranges_max=4)
    for number in range(0, 40, 2):
        assert numbers.add("gaps", np.array([number], np.int64)).all()
    # What lies between the oldest ranges counts as there; what lies between the last ones does not.
    assert not numbers.add("gaps", np.array([1], np.int64)).any()
    assert numbers.add("gaps", np.array([37], np.int64)).all()
    assert max(len(one) for one in numbers._ranges.values()) <= 4
    for name in "abc":
        numbers.add(name, np.array([0], np.int64))
    assert numbers.add("gaps", np.array([0], np.int64)).all()


def test_a_writer_that_is_killed_again_and_again_stores_everything_once(tmp_path: Path) -> None:
    """Also in the midst of a merge, and where newer events were flushed beside it."""
    count = 1200
    command = [sys.executable, tracewriting.__file__, str(tmp_path), str(count)]
    tests = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}"}
    numbers = random.Random(5)
    reader = TraceReader(tmp_path)
    seen: set[tuple[int, str, int]] = set()
    killed = in_a_merge = flushed_beside = 0
    while True:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        enough = killed >= 3 and flushed_beside > 0
        end = float("inf") if enough else time.monotonic() + numbers.uniform(0.0, 0.6)
        while process.poll() is None and time.monotonic() < end:
            page = reader.page(ALL, limit=1_000_000)
            keys = keys_of(page.events)
            assert page.complete, page.problems
            assert len(keys) == len(set(keys))
            assert seen <= set(keys)
            seen = set(keys)
            time.sleep(0.15)
        if process.poll() is None:
            process.kill()
            process.wait()
            killed += 1
            for unfinished in tmp_path.glob("*.arrow.new"):
                [name] = segment_names([unfinished.name.removesuffix(".new")])
                if name.first < name.last:
                    in_a_merge += 1
                    flushed_beside += list_segments(tmp_path)[-1].first > name.last
            continue
        assert process.returncode == 0
        break
    assert killed >= 3
    assert in_a_merge > 0
    assert flushed_beside > 0
    wanted = {
        (row["sender"], row["number"]): row for n in range(count) for row in tracewriting.rows_of(n)
    }
    assert all_of(tmp_path) == expected(wanted.values(), ALL)
    for key in (b"k0", b"k77", b"k1000"):
        query = TraceQuery(key=key)
        assert all_of(tmp_path, query) == expected(wanted.values(), query)
    leftovers = [path.name for path in tmp_path.iterdir() if path.name != "LOCK"]
    assert len(leftovers) == 2 * len(list_segments(tmp_path))
