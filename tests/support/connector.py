"""Where the jars of Spark's Kafka connector are: `SLOTWHEEL_KAFKA_JARS`, or what
tests/support/fetch.sh fetched."""

from __future__ import annotations

import os
from pathlib import Path

from support.broker import ROOT


def fetched() -> list[Path]:
    """The directory of all its jars: the user's own, else the newest one fetched; empty: none."""
    own = os.environ.get("SLOTWHEEL_KAFKA_JARS")
    if own:
        return [Path(own)]
    return sorted((ROOT / ".cache").glob("spark-kafka-[0-9]*"))[-1:]


def connector_jars() -> Path:
    """The directory of all its jars, which must be there."""
    found = fetched()
    assert found, "the jars of Spark's Kafka connector are not there: run `make kafka`"
    return found[0]
