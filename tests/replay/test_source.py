"""``spark.read.format("slotwheel")``: what a directory holds, as rows."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from slotwheel.client.receiptfile import RECEIPTS
from slotwheel.replay.datasource.options import parse
from slotwheel.replay.datasource.paths import resolve
from slotwheel.replay.source import COLUMNS, Reader, register
from slotwheel.wheel.errors import InvalidConfiguration
from support import factrows, replayrun
from support.damage import flip


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return replayrun.made().write(tmp_path_factory.mktemp("source"))


def test_every_row_with_its_place(spark: Any, directories: list[str]) -> None:
    register(spark)
    frame = spark.read.format("slotwheel").option("topics", "true").load(",".join(directories))
    assert frame.columns == COLUMNS.names
    rows = frame.groupBy("peer", "kind", "archived").count().collect()
    found = Counter({(row.peer, row.kind, row.archived): row["count"] for row in rows})
    run = replayrun.made()
    for peer in run.peers:
        kept = sum(map(len, peer.archived.values()))
        assert found[peer.name, "slot", True] == kept
        assert found[peer.name, "slot", False] == run.spilled - kept
        assert found[peer.name, "journal", True] + found[peer.name, "journal", False] == 6_000
        arrived = len(peer.delivered) + len(peer.dead)
        assert found[peer.name, "topic", False] == arrived
    one = frame.where("kind = 'journal' and offset = 1 and peer = 'two'").collect()
    assert len(one) == 1
    assert bytes(one[0].value) == b"value 1"
    assert one[0].headers == [("n", bytearray(b"1"))]
    assert (one[0].entry_index, one[0].epoch, one[0].delivered) == (2, 1, None)


def test_a_part_of_it(spark: Any, directories: list[str]) -> None:
    register(spark)
    reader = (
        spark.read.format("slotwheel")
        .option("columns", "due,offset")
        .option("journal", "false")
        .option("peer", "three")
        .option("from", str(replayrun.START_MS + 60_000))
        .option("to", "2026-09-21T14:59:50Z")
    )
    frame = reader.load(",".join(directories))
    assert frame.columns == ["due", "offset"]
    due = replayrun.made().due[: replayrun.made().spilled]
    start = replayrun.START_MS + 60_000
    expected = ((due >= start) & (due < start + 10_000)).sum()
    assert frame.count() == expected > 100


def test_problems_are_rows(spark: Any, tmp_path: Path) -> None:
    register(spark)
    directories = replayrun.made().write(tmp_path)
    path = replayrun.first(tmp_path, "two/slots/*")
    flip(path)
    (tmp_path / "four").mkdir()
    frame = spark.read.format("slotwheel").option("view", "problems")
    found = frame.load(",".join([*directories, str(tmp_path / "four")])).collect()
    expected = {("damaged", str(path.relative_to(tmp_path))), ("empty", "four")}
    assert {(row.kind, row.file) for row in found} == expected


def frame_of(spark: Any, *paths: str, **options: str) -> Any:
    register(spark)
    frame = spark.read.format("slotwheel").options(**options)
    return frame.load(*paths) if len(paths) == 1 else frame.load(list(paths))


def test_paths_as_spark_users_write_them(directories: list[str]) -> None:
    folder = str(Path(directories[0]).parent)
    for options in (
        {"path": ",".join(directories)},
        {"paths": str(directories).replace("'", '"')},
        {"path": f"{folder}/*"},
        {"path": f"{folder}/one,file://{folder}/t*"},
        {"path": f"file:{folder}/[ot]*", "owner": "root", "option.topics": "true"},
    ):
        assert sorted(resolve(parse(options).paths, "rows").directories) == sorted(directories)


def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    odd = tmp_path / "a,b [1] 100%"
    odd.mkdir()
    for path in (str(odd), odd.as_uri()):
        assert resolve(parse({"path": path}).paths, "rows").directories == [str(odd)]


def test_a_list_and_a_column_of_ones_own(spark: Any, directories: list[str]) -> None:
    frame = frame_of(spark, *directories[:2], slots="false")
    assert {row.peer for row in frame.select("peer").distinct().collect()} == {"one", "two"}
    own = spark.read.format("slotwheel").schema("offset bigint, due timestamp")
    assert own.load(directories[0]).columns == ["offset", "due"]
    assert own.option("slots", "false").load(directories[0]).count() == 6_000


def test_a_table(spark: Any, directories: list[str]) -> None:
    register(spark)
    try:
        options = f"path '{','.join(directories)}', topics 'true', slots 'false'"
        spark.sql(f"CREATE TABLE wheels USING slotwheel OPTIONS ({options})")
        spark.sql(f"CREATE TABLE wheel USING slotwheel LOCATION '{directories[0]}'")
        arrived = spark.sql(
            "SELECT count(DISTINCT offset) FROM wheels JOIN wheels b USING (offset)"
            " WHERE wheels.kind = 'journal' AND b.kind = 'topic' AND wheels.cancels IS NULL"
        )
        run = replayrun.made()
        assert arrived.first()[0] == sum(len(p.delivered) + len(p.dead) for p in run.peers)
        assert spark.sql("SELECT DISTINCT peer FROM wheel").collect() == [("one",)]
    finally:
        for name in ("wheels", "wheel"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_what_is_wrong_is_told_in_a_line(
    spark: Any, tmp_path: Path, directories: list[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    cases: list[tuple[list[str], dict[str, str], str]] = [
        ([directories[0], str(tmp_path / "other")], {}, "not a data directory.*got other"),
        ([directories[0]], {"colums": "due"}, "the option 'colums'"),
    ]
    for paths, options, text in cases:
        with pytest.raises(AnalysisException, match=text) as raised:
            frame_of(spark, *paths, **options).count()
        lines = str(raised.value).strip().splitlines()
        assert [line for line in lines if "SQLSTATE" not in line] == lines[:1], "a traceback"
    with pytest.raises(AnalysisException, match="no such column; got size int"):
        spark.read.format("slotwheel").schema("size int").load(directories[0]).count()


def test_paths_that_cannot_be_read(tmp_path: Path, directories: list[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for path, text in (
        (f"{tmp_path}/none", "no such directory"),
        (f"{tmp_path}/x*", "nothing has a name of that pattern"),
        ("s3a://bucket/wheel", "not a path of this machine"),
        (f"{tmp_path}/notes.txt", "neither a data directory nor a file"),
    ):
        with pytest.raises(InvalidConfiguration, match=text):
            Reader(parse({"path": path})).partitions()
    with pytest.raises(InvalidConfiguration, match=r"no directory has the name.*four; expect"):
        Reader(parse({"path": directories[0], "peer": "four"})).partitions()
    assert "SPARK_HIDE_TRACEBACK" in os.environ
    del os.environ["SPARK_HIDE_TRACEBACK"]


def test_files_that_cannot_have_such_rows_are_skipped(directories: list[str]) -> None:
    def kinds(**options: str) -> set[str]:
        chosen = parse({"path": ",".join(directories), "topics": "true"} | options)
        found = [file for task in Reader(chosen).partitions() for file, _ in task.files]
        return {"/".join(file.name.split("/")[1:3]) if file.topic else file.kind for file in found}

    assert kinds() >= {"journal", "slot", "topics/orders", "topics/slotwheel-dead-letters"}
    assert kinds(topic="orders") == {"journal", "slot", "topics/orders"}
    assert kinds(topic="other", slots="false", journal="false") == set()
    assert kinds(topics="false", journal="false", to="2026-01-01") == set(), "by name"


def test_rows_of_a_topic(spark: Any, directories: list[str]) -> None:
    """The topic of a record that arrived is its file's, of all others one of their columns."""
    frame = frame_of(spark, *directories, topics="true", topic="orders,other", peer="one")
    assert {row.topic for row in frame.select("topic").distinct().collect()} == {"orders"}
    assert frame_of(spark, directories[0], topic="other").count() == 0


def test_a_frame_can_be_asked_twice(spark: Any, directories: list[str]) -> None:
    """Spark 4.3 gives a frame's second query the rows of its first one's filter, if a source takes
    filters."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = frame_of(spark, directories[0], archive="false")
        kinds = {row.kind: row["count"] for row in frame.groupBy("kind").count().collect()}
        assert frame.where("kind = 'slot'").count() == kinds["slot"]
        assert frame.count() == sum(kinds.values()) > kinds["slot"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def kafka_dump(run: replayrun.Run, path: Path) -> str:
    """What `slotwheel consume --arrow` writes of a Kafka topic; the last record is nobody's."""
    batch = factrows.kafka_rows(run.pick([0, 3, 7, 9]), first=40, partition=2)
    own = [*batch.column("headers").to_pylist()[:3], []]
    batch = batch.set_column(6, "headers", pa.array(own, batch.schema.field("headers").type))
    schema = batch.schema.with_metadata({b"slotwheel.dump": b"1"})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return str(path)


def test_what_was_delivered(spark: Any, tmp_path: Path, directories: list[str]) -> None:
    run = replayrun.made()
    dump = kafka_dump(run, tmp_path / "orders.arrows")
    frame = frame_of(spark, *directories, dump, view="delivered")
    embedded = frame.where("peer is not null")
    assert embedded.count() == sum(len(p.delivered) + len(p.dead) for p in run.peers)
    offset = run.a_delivered()
    (row,) = embedded.where(f"offset = {offset}").collect()
    assert (row.id, row.peer, row.topic) == (run.id_of(offset), "one", "orders")
    records = frame.where("file = 'orders.arrows'").orderBy("position").collect()
    assert [row.position for row in records] == [40, 41, 42, 43]
    assert [(row.id, row.offset) for row in records[:3]] == [(run.id_of(o), o) for o in (0, 3, 7)]
    assert records[0].due.timestamp() * 1000 == run.due[0]
    assert (records[3].id, records[3].offset, records[3].due) == (None, None, None)
    assert {row.partition for row in records} == {2}


def test_receipts(spark: Any, tmp_path: Path, directories: list[str]) -> None:
    run, path = replayrun.made(), tmp_path / "receipts.arrows"
    promised = [4, 5]
    due = [int(run.due[o]) for o in promised]
    checks = factrows.MINT.checks(np.array(due), np.array(promised))
    digests = [1, 2**64 - 1]
    columns = [promised, due, checks, ["orders"] * 2, digests, due, due, ["lab"] * 2]
    arrays = [pa.array(one, field.type) for one, field in zip(columns, RECEIPTS, strict=True)]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, RECEIPTS) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=RECEIPTS))
    frame = frame_of(spark, str(path), view="receipts")
    rows = frame.orderBy("offset").collect()
    assert [(row.id, row.digest) for row in rows] == [(run.id_of(4), 1), (run.id_of(5), -1)]
    # Beside the directories they are facts as all others are.
    facts = frame_of(spark, *directories, str(path), view="facts").where("offset = 5")
    found = Counter(row.seen for row in facts.collect())
    assert found["receipt"] == 1
    assert found["accepted"] == 3
    for view, wrong in (("receipts", directories[0]), ("rows", str(path))):
        with pytest.raises(InvalidConfiguration, match="Name"):
            resolve([wrong], view)


def test_facts(spark: Any, directories: list[str]) -> None:
    run = replayrun.made()
    frame = frame_of(spark, *directories, view="facts")
    rows = frame.groupBy("seen").count().collect()
    counts = {row.seen: row["count"] for row in rows}
    assert counts["delivered"] == sum(len(peer.delivered) for peer in run.peers)
    assert counts["accepted"] + counts["cancel"] == 3 * 6_000
    offset = run.a_delivered()
    mine = frame.where(f"offset = {offset}").collect()
    assert {row.seen for row in mine} == {"accepted", "archived", "delivered"}
    assert len({(row.digest, row.due, row.topic, row.created) for row in mine}) == 1
    assert not any(row.forged for row in mine)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "no data directory"),
        ({"path": "a", "slots": "yes"}, "true or false"),
        ({"path": "a", "view": "all"}, "rows or problems or delivered or receipts or facts"),
        ({"path": "a", "view": "scan"}, "rows or problems"),
        ({"path": "a", "columns": "due,size"}, "'size'; expected the columns are offset"),
        ({"path": "a", "from": "noon"}, "milliseconds, or 2026"),
        ({"path": "a", "from": "20", "to": "20"}, "later than from=20"),
        ({"path": "a", "colums": "due"}, "the options are path"),
    ],
)
def test_wrong_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        parse(options)
