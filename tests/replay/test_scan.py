"""The scan in Spark: one partition a task, and nothing lost on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.broker.murmur2 import partitions_of
from slotwheel.reading import layout
from slotwheel.reading.files import SLOT, File, Layout
from slotwheel.reading.problems import PROBLEM_ARROW
from slotwheel.replay.facts.fact import ELSEWHERE, Seen, decompress
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.facts.scan import SCANNED, scan, scan_records, summaries, tasks_frame
from slotwheel.replay.judging.validators import problems
from support.damage import flip
from support.datadirs import filled
from support.factrows import TERMS, as_spark, kafka_rows, rows


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    root = tmp_path_factory.mktemp("scan") / "d"
    filled(root)
    return layout.find([str(root)])


@pytest.mark.parametrize("count", [1, 3, 50])
def test_one_partition_a_task(spark: Any, count: int) -> None:
    files = [File(number, SLOT, f"/{number}", f"{number}", 1) for number in range(count * 2)]
    tasks = [files[at::count] for at in range(count)]
    frame = tasks_frame(spark, tasks)
    assert frame.rdd.getNumPartitions() == count
    assert [len(part) for part in frame.rdd.glom().collect()] == [1] * count


def test_no_task(spark: Any) -> None:
    assert scan(tasks_frame(spark, []), TERMS).count() == 0


def test_a_directory(spark: Any, there: Layout) -> None:
    tasks = [there.files[at::3] for at in range(3)]
    found = scan(tasks_frame(spark, tasks), GroupTerms(there.group, there.key)).persist()
    try:
        declared = spark.createDataFrame([], SCANNED).schema
        assert found.schema == declared
        told, _ = summaries(found)
        assert sorted(one.number for one in told) == [file.number for file in there.files]
        pieces = found.where("what = 'facts'").collect()
        facts = np.concatenate([decompress(bytes(row.data)) for row in pieces])
        assert len(facts) == sum(row["count"] for row in pieces) == sum(one.rows for one in told)
        assert {row.bucket for row in pieces} == {0}
        assert int((facts["seen"] == Seen.DELIVERED).sum()) == 6
        none = problems(found)
        assert none.columns == PROBLEM_ARROW.names
        assert none.count() == 0
    finally:
        found.unpersist()


def test_problems_name_their_validator(spark: Any, there: Layout, tmp_path: Path) -> None:
    (first, *others) = there.of(SLOT)
    moved = File(**{**_fields(first), "slot": first.slot + 1})
    path = tmp_path / "1.arrows"
    path.write_bytes(Path(others[0].path).read_bytes())
    flip(path)
    damaged = File(**{**_fields(others[0]), "path": str(path)})
    found = scan(tasks_frame(spark, [[moved], [damaged]]), GroupTerms(there.group, there.key))
    rows = {(row.validator, row.kind, row.file) for row in problems(found).collect()}
    assert rows == {
        ("placement", "misplaced", moved.name),
        ("integrity", "damaged", damaged.name),
    }


def _fields(file: File) -> dict[str, Any]:
    return {name: getattr(file, name) for name in File.__slots__}


def test_records_of_a_topic(spark: Any) -> None:
    keys = [b"key %d" % at for at in range(100)]
    headers = [[("a", b"1")] * (at % 3) for at in range(100)]
    sent = rows(*({"offset": at, "key": keys[at], "headers": headers[at]} for at in range(100)))
    frame = spark.createDataFrame(pa.Table.from_batches([as_spark(kafka_rows(sent))]))
    found = scan_records(frame, replace(TERMS, partitions={"orders": 3}), 17)
    pieces = found.where("what = 'facts'").collect()
    facts = np.concatenate([decompress(bytes(piece.data)) for piece in pieces])
    facts = np.sort(facts, order="offset")
    assert facts["offset"].tolist() == list(range(100))
    elsewhere = partitions_of(pa.array(keys), 3) != 0  # where all of them are
    assert (facts["flags"] == ELSEWHERE).tolist() == elsewhere.tolist()
    assert 0 < elsewhere.sum() < 100
    told, chunks = summaries(found)
    assert sum(one.rows for one in told) == 100
    assert {one.number for one in told} == {17}
    assert {one.topic for one in chunks} == {"orders"}
