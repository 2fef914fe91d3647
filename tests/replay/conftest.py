"""Fixtures of the tests of replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from slotwheel.cli import main
from slotwheel.reading import layout
from slotwheel.reading.state import load_here
from slotwheel.wheel.state import STATE_DIRECTORY, StoredState
from support.connector import fetched
from support.spark import Replay, spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for all tests of this process, with the connector to Kafka where that was
    fetched; starting one takes seconds."""
    jars = ",".join(str(path) for folder in fetched() for path in sorted(folder.glob("*.jar")))
    with spark_session(tmp_path_factory.mktemp("spark"), spark_jars=jars) as session:
        yield session


@pytest.fixture(autouse=True)
def _quick_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """State stores are read in this process, which takes a hundredth of the time. A test that
    damages one reads it as the proof does, in a process of its own."""

    def read_state(root: str | Path) -> StoredState | None:
        return load_here(root) if (Path(root) / STATE_DIRECTORY).is_dir() else None

    monkeypatch.setattr(layout, "read_state", read_state)


@pytest.fixture
def replay(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Replay:
    """``slotwheel replay``, with the common session in place of one of its own: what it ends with,
    and what it wrote to standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main.run(["replay", *map(str, arguments)])
        return code, *capsys.readouterr()

    monkeypatch.setattr("slotwheel.replay.session.session", lambda *_, **__: nullcontext(spark))
    return run
