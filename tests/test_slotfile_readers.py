"""A slot file as a real wheel writes it, opened by the tools other people have.

The code that opens it is that of README.md, section "Open a slot file": the test runs those lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.wheel.schema import ROW
from slotwheel.wheel.slots.slot import path_of
from support.datadirs import START_MS, SinkNode, messages
from support.fardirs import OF_DAY, far_directory

README = Path(__file__).parents[1] / "README.md"
SECOND = START_MS // 1000 + 60
DUE = [SECOND * 1000 + 3 * step for step in range(200)]
VALUES = [b"value-%d" % number for number in range(400)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a slot file of two blocks and a cancel row, closed as by a node."""
    root = tmp_path_factory.mktemp("data")
    node = SinkNode(root)
    ids = node.append(messages(DUE, values=VALUES[:200]))
    node.spill()
    node.append(messages(DUE, values=VALUES[200:]))
    cancel = [node.wheel.mint.one(DUE[7], int(ids[7].split(".")[2]))]
    assert node.blocking(lambda: node.wheel.cancel(cancel, node.now)) == ["cancelled"]
    node.spill()
    node.close()
    return root


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return far_directory(tmp_path_factory.mktemp("far")).root


def blocks() -> dict[str, str]:
    """The code blocks of the section, by the tool their first line names."""
    section = (
        README.read_text("utf-8").partition("\n## Open a slot file\n")[2].partition("\n## ")[0]
    )
    found = re.findall(r"```python\n(# (\w+).*?)```", section, re.DOTALL)
    return {tool.lower(): code for code, tool in found}


def run_readme(
    tool: str, data: Path, monkeypatch: pytest.MonkeyPatch, slot: int = SECOND
) -> dict[str, Any]:
    """Run the README's lines for a tool where the file has the name they use; their variables."""
    (used,) = set(re.findall(r"slots/(\d+)\.arrows", "".join(blocks().values())))
    place = data / "readme"
    (place / "slots").mkdir(parents=True, exist_ok=True)
    (place / path_of(int(used))).write_bytes((data / path_of(slot)).read_bytes())
    monkeypatch.chdir(place)
    names: dict[str, Any] = {}
    code = blocks()["pyarrow"] if tool in {"pandas", "duckdb"} else ""
    exec(code + blocks()[tool], names)
    return names


def test_the_readme_shows_all_four() -> None:
    assert set(blocks()) == {"pyarrow", "polars", "pandas", "duckdb"}


def test_pyarrow(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = run_readme("pyarrow", data, monkeypatch)["slot"]
    assert table.schema.equals(ROW, check_metadata=True)
    assert table.num_rows == 401
    messages_only = table.filter(pa.compute.is_null(table["cancels"]))
    assert sorted(messages_only["value"].to_pylist()) == sorted(VALUES)
    assert table["cancels"].drop_null().to_pylist() == [table["offset"][7].as_py()]
    assert set(messages_only["topic"].to_pylist()) == {"orders"}
    assert messages_only["headers"].to_pylist()[1] == [{"key": "source", "value": b"test"}]


def test_polars(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl

    frame = run_readme("polars", data, monkeypatch)["frame"]
    assert isinstance(frame, pl.DataFrame)
    assert frame.columns == ROW.names
    assert frame.schema["due"] == pl.Datetime("ms", "UTC")
    sent = frame.filter(pl.col("cancels").is_null())
    assert sorted(sent["value"].to_list()) == sorted(VALUES)
    assert sent["due"].dt.epoch("ms").to_list() == DUE * 2
    assert sent["headers"].to_list()[1] == [{"key": "source", "value": b"test"}]


def test_pandas(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = run_readme("pandas", data, monkeypatch)["frame"]
    assert list(frame.columns) == ROW.names
    sent = frame[frame["cancels"].isna()]
    assert sorted(sent["value"]) == sorted(VALUES)
    assert (sent["due"].astype("int64") % 1_800_000_000_000 < 86_400_000).all()
    assert str(frame["due"].dtype) == "datetime64[ms, UTC]"
    assert sent["key"].isna().sum() == 2 * 67  # null stays null


@pytest.mark.parametrize("tool", ["pyarrow", "polars", "pandas", "duckdb"])
def test_a_file_of_a_day_opens_as_any_other(
    tool: str, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run_readme(tool, far, monkeypatch, OF_DAY)
    if tool == "duckdb":
        assert sorted(names["rows"]) == [("begin", 1), ("end", 1), ("t0", 2), ("t1", 2)]
        return
    rows = names["slot" if tool == "pyarrow" else "frame"]
    columns = rows.column_names if tool == "pyarrow" else list(rows.columns)
    assert columns == ROW.names
    assert sorted(rows["topic"].to_pylist() if tool == "pyarrow" else rows["topic"]) == [
        *("begin", "end", "t0", "t0", "t1", "t1")
    ]


def test_duckdb(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run_readme("duckdb", data, monkeypatch)["rows"]
    assert rows == [("orders", 400)]
