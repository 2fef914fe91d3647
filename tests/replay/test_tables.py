"""Counts by topic and time bucket, and the tables that keep them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.judging.sums import tally, total
from slotwheel.replay.proof import prove
from support import replayrun

INTERVAL_MS = 5_000


def test_tallies_add_up() -> None:
    random = np.random.default_rng(15)
    topic = random.choice([1, 7, 2**32 - 1], 4_000).astype(np.uint32)
    due = random.integers(-9_000, 90_000, 4_000)
    counted = {"accepted": random.random(4_000) < 0.5, "repeated": random.integers(0, 3, 4_000)}
    expected: Counter[tuple[int, int, str]] = Counter()
    for name, often in counted.items():
        for row in np.flatnonzero(often).tolist():
            bucket = int(due[row] // INTERVAL_MS * INTERVAL_MS)
            expected[int(topic[row]), bucket, name] += int(often[row])

    def summed(part: slice) -> pa.Table:
        some = {name: often[part] for name, often in counted.items()}
        return total(tally(topic[part], (due // INTERVAL_MS * INTERVAL_MS)[part], some))

    for found in (summed(slice(None)), total(summed(slice(at, None, 3)) for at in range(3))):
        counts = {
            (row["topic"], row["bucket_ms"], row["name"]): row["count"] for row in found.to_pylist()
        }
        assert counts == expected
    assert len(summed(slice(0))) == 0


def test_a_proof_leaves_tables(spark: Any, tmp_path: Path) -> None:
    run = replayrun.made()
    lost, again = replayrun.remove_delivered(run), replayrun.repeat_delivered(run)
    layout = find(run.write(tmp_path / "data"))
    tables = tmp_path / "tables"
    options = Options(interval_ms=INTERVAL_MS, late_ms=2)
    described: list[str] = []

    def progress(_: str) -> None:
        found = spark.sparkContext.getLocalProperty("spark.job.description")
        described.append(found or "")

    verdict = prove(spark, layout, options, tables=tables.as_uri(), progress=progress)
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None
    assert described[1:] == [
        f"slotwheel replay: {phase}"
        for phase in (
            *("reading the files", "reading what was delivered"),
            *("judging the messages", "writing it down"),
        )
    ]

    (topic,) = verdict.by_topic
    assert topic.topic == replayrun.TOPIC
    for name in ("accepted", "delivered", "pending", "cancelled", "dead", "lost", "repeated"):
        assert topic.counts[name] == verdict.counts[name]
        assert sum(one.counts[name] for one in verdict.by_bucket) == verdict.counts[name]
    assert (topic.counts["lost"], topic.counts["repeated"]) == (1, 1)
    assert topic.counts["late"] == topic.counts["delivered"], "each came 3 ms late"
    at = int(run.due[lost]) // INTERVAL_MS * INTERVAL_MS
    assert [one.bucket_ms for one in verdict.by_bucket if one.counts["lost"]] == [at]

    counts = ds.dataset(tables / "counts", partitioning="hive").to_table()
    assert {part.name for part in (tables / "counts").glob("day=*")} >= {"day=2026-09-21"}
    for name in ("accepted", "lost", "late"):
        assert pc.sum(counts.column(name)).as_py() == verdict.counts[name]
    (row,) = counts.filter(pc.field("lost") == 1).to_pylist()
    assert (row["topic"], row["bucket_ms"], row["day"]) == (replayrun.TOPIC, at, replayrun.DAY)
    assert row["made"].timestamp() * 1000 == layout.made_ms
    findings = ds.dataset(tables / "findings", partitioning="hive").to_table().to_pylist()
    ids = {(one["kind"], one["id"]) for one in findings if one["kind"] != "late"}
    assert ids == {("lost", run.id_of(lost)), ("repeated", run.id_of(again))}
    (kept,) = ds.dataset(tables / "verdict", partitioning="hive").to_table().to_pylist()
    assert (kept["outcome"], kept["group"]) == ("not proven", "lab")
    assert dict(kept["counts"]) == verdict.counts
