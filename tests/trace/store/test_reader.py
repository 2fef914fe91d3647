"""The store's reader against a plain list of the same events; damage; files that come and go."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwheel.reading.problems import Problem
from slotwheel.trace.events import EventKind, EventSender, with_sender
from slotwheel.trace.store import TraceKey, TraceQuery, TraceReader, making
from slotwheel.trace.store import hashing as store_hashing
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName, those_that_count
from slotwheel.trace.store.segment import StoreSegment
from slotwheel.wheel.ids import MessageId
from support.traced import Row, event, expected, id_parts, keys_of, of_sender, stored

ABOUT = SegmentAbout(hour=1, topic="t", positions={0: 9})
FIRST = SegmentName(0, 0)
FORGED_MS = 253_402_300_799_000  # the last second of the year 9999


def write(root: Path, *flushes: list[Any]) -> None:
    for number, rows in enumerate(flushes):
        write_segment(root, SegmentName(number, number), ABOUT, stored(rows))


def write_many(root: Path, rows: list[Row]) -> None:
    """Of one sender, in one segment."""
    batch = with_sender(EventSender("s"), of_sender(rows))
    write_segment(root, FIRST, ABOUT, pa.Table.from_batches([batch]))


def everything(reader: TraceReader, query: TraceQuery, limit: int, **more: Any) -> list[Any]:
    """All pages one after the other; each is as full as it may be."""
    found: list[Any] = []
    after: TraceKey | None = None
    while True:
        page = reader.page(query, after, limit, **more)
        assert page.complete
        assert page.events.num_rows <= limit
        assert page.next is None or "rows_max" in more or page.events.num_rows == limit
        assert after is None or page.next is None or page.next > after
        found += keys_of(page.events)
        after = page.next
        if after is None:
            return found


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


IDS = st.builds(id_parts, st.integers(0, 3), st.sampled_from(["g", "h"]), st.integers(5, 6))
TEXTS = st.sampled_from(["", "a", "b", "a longer one, of more than eight bytes"])
ROWS = st.fixed_dictionaries(
    {
        "at": st.integers(1000, 1012) | st.sampled_from([0, FORGED_MS]),
        "sender": st.sampled_from(["s1", "s2"]),
        "kind": st.sampled_from([one.value for one in EventKind]),
        "id": optional(IDS),
        "origin": optional(IDS),
        "key": optional(TEXTS.map(str.encode)),
        "tag": optional(TEXTS),
        "topic": optional(TEXTS),
        "client": TEXTS,
        "group": optional(TEXTS),
        "error": optional(TEXTS),
    }
)
QUERIES = st.builds(
    TraceQuery,
    id=optional(IDS.map(lambda parts: MessageId(**parts))),
    key=optional(TEXTS.map(str.encode)),
    tag=optional(TEXTS),
    topic=optional(TEXTS),
    client=optional(TEXTS),
    group=optional(TEXTS),
    kind=optional(st.sampled_from(list(EventKind))),
    failed=optional(st.booleans()),
    from_ms=optional(st.integers(999, 1013)),
    to_ms=optional(st.integers(999, 1013)),
)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "BLOCK_ROWS", 3)


@pytest.mark.usefixtures("small_blocks")
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    flushes=st.lists(st.lists(ROWS, max_size=12), max_size=5),
    queries=st.lists(QUERIES, min_size=1, max_size=4),
    limit=st.integers(1, 5),
    rows_max=st.integers(1, 20),
)
def test_it_finds_what_a_plain_list_has(
    flushes: list[list[dict[str, Any]]], queries: list[TraceQuery], limit: int, rows_max: int
) -> None:
    rows = [row for flush in flushes for row in flush]
    for number, row in enumerate(rows):
        row["number"] = number
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, *flushes)
        reader = TraceReader(root)
        for query in [TraceQuery(), *queries]:
            wanted = expected(rows, query)
            assert everything(reader, query, limit) == wanted
            assert everything(reader, query, limit, rows_max=rows_max) == wanted
            visible = expected([row for row in rows if row["topic"] == "a"], query)
            assert everything(reader, query, limit, may="a".__eq__) == visible
            if query.id is not None:
                of_id = expected(rows, TraceQuery(id=query.id))
                assert keys_of(reader.of_id(query.id).events) == of_id
        times = TraceQuery(from_ms=queries[0].from_ms, to_ms=queries[0].to_ms)
        numbers = numbers_of(reader, times.from_ms, times.to_ms)
        assert sorted(numbers) == sorted(number for _, _, number in expected(rows, times))


def numbers_of(
    reader: TraceReader, from_ms: int | None = None, to_ms: int | None = None
) -> list[int]:
    found: list[int] = []
    for one in reader.batches(("number", "sender"), from_ms, to_ms):
        assert isinstance(one, pa.RecordBatch), one
        found += one.column("number").to_pylist()
    return found


def test_events_come_out_as_they_went_in(tmp_path: Path) -> None:
    rows = stored(
        [
            event(2, 7, took_us=5, id=id_parts(1), traceparent="00-a", partition=3, offset=4),
            event(3, 8, "other", attempt=2, error="no", count=9, origin=id_parts(2)),
        ]
    )
    write_segment(tmp_path, FIRST, ABOUT, rows)
    found = TraceReader(tmp_path).page(TraceQuery()).events
    assert found.schema.equals(rows.schema, check_metadata=True)
    assert found.to_pylist() == rows.to_pylist()


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    page = TraceReader(tmp_path / "none").page(TraceQuery())
    assert page.events.num_rows == 0
    assert page.complete
    assert not (tmp_path / "none").exists()


def test_values_with_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def same(values: pa.Array, *_: Any) -> Any:
        return np.full(len(values), 7, np.uint64)

    monkeypatch.setattr(store_hashing, "key_hashes", same)
    monkeypatch.setattr(store_hashing, "id_hashes", same)
    rows = [event(n, n, key=b"%d" % n, tag=str(n), id=id_parts(n)) for n in range(9)]
    write(tmp_path, rows[:4], rows[4:])
    reader = TraceReader(tmp_path)
    for n in range(9):
        for query in (
            TraceQuery(key=b"%d" % n),
            TraceQuery(tag=str(n)),
            TraceQuery(id=MessageId(**id_parts(n))),
        ):
            assert keys_of(reader.page(query).events) == [(n, "s", n)]
    for other in (id_parts(1, check=8), id_parts(1, group="h"), id_parts(1, due=6)):
        assert reader.of_id(MessageId(**other)).events.num_rows == 0


def test_a_page_of_a_time_reads_only_its_blocks(tmp_path: Path) -> None:
    write_many(tmp_path, [event(n, n, topic="rare" if n == 9000 else "t") for n in range(4096 * 6)])
    reader = TraceReader(tmp_path)
    page = reader.page(TraceQuery(from_ms=5000, to_ms=5100))
    assert page.looked_through == 4096
    assert page.events.num_rows == 100
    assert page.next is None
    first = reader.page(TraceQuery(from_ms=5000), limit=10)
    assert first.looked_through == 4096
    assert first.next == TraceKey(5009, "s", 5009)
    rare = reader.page(TraceQuery(topic="rare"))
    assert rare.looked_through == 4096
    assert keys_of(rare.events) == [(9000, "s", 9000)]


def test_one_key_of_very_many_events_is_found_page_by_page(tmp_path: Path) -> None:
    rows = [event(n, n, key=b"k" if n % 8 else b"other") for n in range(90_000)]
    write_many(tmp_path, rows)
    segment = StoreSegment(tmp_path, FIRST)
    assert segment.find("key", store_hashing.hash_of_value(b"k")) is None
    assert segment.find("key", store_hashing.hash_of_value(b"other")) is not None
    found = everything(TraceReader(tmp_path), TraceQuery(key=b"k"), 50_000)
    assert found == expected(rows, TraceQuery(key=b"k"))


def test_each_damaged_byte_is_named_and_the_other_segments_are_read(tmp_path: Path) -> None:
    rows = [event(n, n, key=b"k%d" % n, tag="t", id=id_parts(n), topic="x") for n in range(40)]
    write(tmp_path, rows[:20], rows[20:])
    rng = np.random.default_rng(1)
    for path in (tmp_path / FIRST.events_file, tmp_path / FIRST.index_file):
        sound = path.read_bytes()
        for at in sorted({*rng.integers(0, len(sound), 150).tolist(), 0, len(sound) - 1}):
            torn = bytearray(sound)
            torn[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(torn)
            for query in (TraceQuery(), TraceQuery(key=b"k3"), TraceQuery(tag="t")):
                page = TraceReader(tmp_path).page(query)
                found, wanted = keys_of(page.events), expected(rows, query)
                assert [key for key in found if key[0] >= 20] == [k for k in wanted if k[0] >= 20]
                assert set(found) <= set(wanted)
                # What is asked for is there, or its absence has a name.
                assert found == wanted or any(str(FIRST) in one.file for one in page.problems), at
        for length in (0, 3, len(sound) // 2, len(sound) - 9):
            path.write_bytes(sound[:length])
            page = TraceReader(tmp_path).page(TraceQuery())
            assert keys_of(page.events) == expected(rows[20:], TraceQuery())
            assert [one.file for one in page.problems] == [path.name]
        path.write_bytes(sound)
    assert TraceReader(tmp_path).page(TraceQuery()).complete


def test_damage_of_one_block_costs_that_block(tmp_path: Path) -> None:
    rows = [event(n, n) for n in range(4096 * 3)]
    write_many(tmp_path, rows)
    path = tmp_path / FIRST.events_file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    page = TraceReader(tmp_path).page(TraceQuery(), limit=100_000)
    assert keys_of(page.events) == expected(rows[:4096] + rows[8192:], TraceQuery())
    assert [one.kind for one in page.problems] == ["damaged"]
    events = list(TraceReader(tmp_path).batches(["number"]))
    assert sum(one.num_rows for one in events if isinstance(one, pa.RecordBatch)) == 8192
    assert isinstance(events[-1], Problem)


def test_what_is_contained_in_another_segment_does_not_count(tmp_path: Path) -> None:
    rows = [event(n, n) for n in range(6)]
    write(tmp_path, rows[:2], rows[2:4], rows[4:])
    write_segment(tmp_path, SegmentName(0, 1), ABOUT, stored(rows[:4]))
    (tmp_path / f"{SegmentName(0, 2)}.arrow.new").write_bytes(b"left over")
    (tmp_path / f"{SegmentName(0, 2)}.index").write_bytes(b"left over")
    page = TraceReader(tmp_path).page(TraceQuery())
    assert keys_of(page.events) == expected(rows, TraceQuery())
    assert page.complete


def test_a_segment_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, *([event(n, n)] for n in range(4)))
    (tmp_path / SegmentName(1, 1).events_file).unlink()
    page = TraceReader(tmp_path).page(TraceQuery())
    assert [at for at, _, _ in keys_of(page.events)] == [0, 2, 3]
    assert "flushes 1 to 1" in page.problems[0].text
    # Those that are too old go from the first one on.
    (tmp_path / FIRST.events_file).unlink()
    assert TraceReader(tmp_path).page(TraceQuery()).complete


def test_a_segment_that_is_opened_is_read_to_its_end(tmp_path: Path) -> None:
    write(tmp_path, [event(n, n) for n in range(3)], [event(n, n) for n in range(3, 6)])
    batches = TraceReader(tmp_path).batches(["number"])
    found = [next(batches)]
    for path in tmp_path.iterdir():
        path.unlink()
    found += batches
    batch = pa.Table.from_batches([one for one in found if isinstance(one, pa.RecordBatch)])
    assert batch.column("number").to_pylist() == list(range(6))


def test_which_segments_count() -> None:
    names = [SegmentName(*one) for one in [(0, 3), (0, 0), (4, 4), (2, 3), (5, 9), (5, 5), (9, 9)]]
    assert those_that_count(names) == [(0, 3), (4, 4), (5, 9)]
