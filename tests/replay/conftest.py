"""Fixtures of the tests of replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.spark import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for the whole run; starting one takes seconds."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
