"""Which field of a message that was altered is another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.reading.events import RowsSeen
from slotwheel.reading.files import DUMP, JOURNAL, File
from slotwheel.reading.layout import find
from slotwheel.replay.contents import _digests, _sighted
from slotwheel.replay.facts.kafka_topics import KafkaTopics
from slotwheel.replay.proof import prove
from slotwheel.wheel.rows import header_column
from support import factrows, replayrun


def changed(run: replayrun.Run, offset: int, name: str, value: Any) -> None:
    """The message has another key or value, or other headers, from now on."""
    column = run.rows.column(name)
    values = column.to_pylist()
    if name == "headers":
        values = [[(one["key"], one["value"]) for one in row] for row in values]
    values[offset] = value
    made = header_column(values) if name == "headers" else pa.array(values, column.type)
    at = run.rows.schema.get_field_index(name)
    run.rows = run.rows.set_column(at, run.rows.schema.field(at), made)


def test_the_fields_are_named(spark: Any, tmp_path: Path) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path / "accepted")
    offsets = [offset for offset, _ in run.peers[0].delivered[3:6]]
    changes: list[dict[str, Any]] = [
        {"key": b"another"},
        {"value": None},
        {"value": b"x", "headers": [("n", b"y")]},
    ]
    for offset, change in zip(offsets, changes, strict=True):
        for name, value in change.items():
            changed(run, offset, name, value)
    run.write(tmp_path / "delivered")
    topic = "one/topics/orders"
    shutil.rmtree(tmp_path / "accepted" / topic)
    shutil.copytree(tmp_path / "delivered" / topic, tmp_path / "accepted" / topic)
    verdict = prove(spark, find(directories))
    assert verdict.problem_counts == {"altered": 3}
    texts = {one.offset: one.text for one in verdict.problems}
    assert texts == {
        offset: f"what arrived differs from what was accepted in {', '.join(change)}"
        for offset, change in zip(offsets, changes, strict=True)
    }


class _KafkaTopics(KafkaTopics):
    """Records that stand in for Kafka's."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__("")
        self.partitions = {replayrun.TOPIC: 1}
        self._rows = factrows.as_spark(factrows.kafka_rows(rows))

    def records(self, spark: Any, topics: Any) -> Any:
        return spark.createDataFrame(pa.Table.from_batches([self._rows]))


def test_the_fields_of_a_record_in_kafka_are_named(spark: Any, tmp_path: Path) -> None:
    run = replayrun.made()
    directories = run.write(tmp_path)
    offset = run.peers[0].delivered[3][0]
    changed(run, offset, "value", b"another")
    kafka = _KafkaTopics(run.rows.slice(offset, 1))
    verdict = prove(spark, find(directories), kafka=kafka)
    texts = [one.text for one in verdict.problems if one.kind == "altered"]
    assert texts == ["what arrived differs from what was accepted in value"]


def test_records_of_kafka_have_the_same_fields() -> None:
    """What slotwheel adds to the headers is no header of the message; none is none."""
    given = [[("n", b"1")], [], [("n", b"1"), ("n", b"2")]]
    rows = factrows.rows(*({"offset": at, "headers": one} for at, one in enumerate(given)))
    index, epoch = np.ones(3, np.int64), np.ones(3, np.int64)
    journal = RowsSeen(File(0, JOURNAL, "", "", 0), rows, index, epoch)
    records = RowsSeen(File(1, DUMP, "", "", 0), factrows.kafka_rows(rows))
    accepted, arrived = (
        _sighted(one, [0, 1, 2], factrows.TERMS).to_pylist() for one in (journal, records)
    )
    for one, other in zip(accepted, arrived, strict=True):
        assert (one.pop("accepted"), other.pop("accepted")) == (True, False)
        assert one == other
    assert len({one["headers"] for one in accepted}) == 3
    assert _sighted(records, [7], factrows.TERMS).num_rows == 0
    assert _digests(pa.nulls(1)).equals(_digests(pa.array([[]], pa.list_(pa.utf8()))))
