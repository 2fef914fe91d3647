"""A small Spark for tests: two threads of this machine, no pages, nothing on the network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.pyspark.python": sys.executable,
    "spark.pyspark.driver.python": sys.executable,
}


@contextmanager
def spark_session(directory: Path, **more: str) -> Iterator[Any]:
    """A session that keeps its files below ``directory`` and is stopped at the end. ``more``:
    further settings, with ``_`` in place of the points."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("slotwheel tests")
    settings = {
        **CONFIGURATION,
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # Before the log level can be set, Spark would write warnings of its start.
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory} -Xss4m",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
