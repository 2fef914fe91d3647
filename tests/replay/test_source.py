"""``spark.read.format("slotwheel")``: what a directory holds, as rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotwheel.replay.source import COLUMNS, register
from slotwheel.replay.source_options import parse
from slotwheel.wheel.errors import InvalidConfiguration
from support import replayrun


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
        .option("to", "2026-09-21T14:14:30Z")
    )
    frame = reader.load(",".join(directories))
    assert frame.columns == ["due", "offset"]
    due = replayrun.made().due[: replayrun.made().spilled]
    start = replayrun.START_MS + 60_000
    expected = ((due >= start) & (due < 1_790_000_070_000)).sum()
    assert frame.count() == expected > 100


def test_problems_are_rows(spark: Any, tmp_path: Path) -> None:
    register(spark)
    directories = replayrun.made().write(tmp_path)
    path = replayrun.first(tmp_path, "two/slots/*")
    replayrun.flip(path, path.stat().st_size // 2)
    (tmp_path / "four").mkdir()
    frame = spark.read.format("slotwheel").option("view", "problems")
    found = frame.load(",".join([*directories, str(tmp_path / "four")])).collect()
    expected = {("damaged", str(path.relative_to(tmp_path))), ("empty", "four")}
    assert {(row.kind, row.file) for row in found} == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "no data directory"),
        ({"path": "a", "slots": "yes"}, "true or false"),
        ({"path": "a", "view": "all"}, "rows or problems"),
        ({"path": "a", "columns": "due,size"}, "'size'; limit the columns are offset"),
        ({"path": "a", "from": "noon"}, "milliseconds, or 2026"),
        ({"path": "a", "from": "20", "to": "20"}, "later than from=20"),
        ({"path": "a", "colums": "due"}, "the options are path"),
    ],
)
def test_wrong_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        parse(options, tuple(COLUMNS.names))
