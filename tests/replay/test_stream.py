"""``spark.readStream.format("slotwheel")``: what is there, what comes, and where it goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from slotwheel.replay.datasource.columns import STREAM_VIEWS
from slotwheel.replay.datasource.options import parse
from slotwheel.replay.following.follow import begun_again
from slotwheel.replay.source import COLUMNS, register
from slotwheel.replay.stream import StreamReader
from support import replayrun
from support.damage import flip


def run_once(spark: Any, frame: Any, folder: Path) -> list[Any]:
    """What is there by now, behind the folder's checkpoint."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))

    def begin() -> Exception | None:
        error = None
        try:
            query.trigger(availableNow=True).start().awaitTermination(120)
        except StreamingQueryException as one:
            error = one
        return error

    begun_again(begin, lambda: True)
    if not (folder / "out").exists():
        return []
    rows: list[Any] = spark.read.schema(frame.schema).parquet(str(folder / "out")).collect()
    return rows


def test_the_same_rows_as_in_a_batch(spark: Any, tmp_path: Path) -> None:
    register(spark)
    root = tmp_path / "data"
    directories = replayrun.made().write(root)
    load = ",".join(directories)
    batch = spark.read.format("slotwheel").option("topics", "true").option("slots", "false")
    stream = spark.readStream.format("slotwheel").option("topics", "true")
    frame = stream.load(load)
    assert frame.columns == COLUMNS.names
    rows = run_once(spark, frame, tmp_path)
    names = ("peer", "kind", "offset", "topic", "value", "entry_index", "epoch", "delivered")
    expected = batch.load(load).select(*names).collect()
    found = Counter(tuple(row[name] for name in names) for row in map(_plain, rows))
    assert found == Counter(tuple(_plain(row).values()) for row in expected)
    assert len(run_once(spark, frame, tmp_path)) == len(rows), "nothing twice"


def _plain(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = row.asDict()
    return {name: bytes(v) if isinstance(v, bytearray) else v for name, v in found.items()}


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    chosen = parse({"path": ",".join(directories), "topics": "true"}, STREAM_VIEWS)
    reader = StreamReader(chosen)
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    end = reader.latestOffset(start, limit)
    assert reader.latestOffset(end, limit) == end
    assert len(reader.partitions(start, end)) == 3 + 2 + 1, "journals, topics, dead letters"
    latest = StreamReader(parse({"path": directories[0], "starting": "latest"}, STREAM_VIEWS))
    at = latest.initialOffset()
    assert latest.latestOffset(at, limit) == at
    small = StreamReader(parse({"path": ",".join(directories), "max_bytes": "1"}, STREAM_VIEWS))
    first = small.latestOffset(start, small.getDefaultReadLimit())
    assert first["journals"]["one"]["index"] == 2, "an entry at least"


def test_damage_is_in_the_view_of_problems(spark: Any, tmp_path: Path) -> None:
    register(spark)
    directories = replayrun.made().write(tmp_path / "data")
    path = replayrun.first(tmp_path / "data", "two/topics/orders/*.arrows")
    flip(path)
    stream = spark.readStream.format("slotwheel").option("topics", "true")
    frame = stream.option("view", "problems").load(",".join(directories))
    (row,) = run_once(spark, frame, tmp_path)
    assert (row.kind, row.file) == ("damaged", str(path.relative_to(tmp_path / "data")))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "a", "starting": "now"}, "earliest or latest"),
        ({"path": "a", "max_bytes": "0"}, "1 or more"),
    ],
)
def test_wrong_options(options: dict[str, str], text: str) -> None:
    from slotwheel.wheel.errors import InvalidConfiguration

    with pytest.raises(InvalidConfiguration, match=text):
        parse(options, STREAM_VIEWS)
