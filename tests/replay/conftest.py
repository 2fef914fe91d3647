"""Fixtures of the tests of replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from slotwheel.cli import main
from support.spark import Replay, spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for all tests of this process; starting one takes seconds."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


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
