"""A small Spark for tests: two threads of this machine, no pages, nothing on the network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Replay = Callable[..., tuple[int, str, str]]
"""Runs ``slotwheel replay`` with arguments: its exit code, standard output, standard error."""
CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
# Spark sets its log level only when it has started, and has warned of a few things by then.
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
"""


@contextmanager
def spark_session(directory: Path, **more: str) -> Iterator[Any]:
    """A session that keeps its files below ``directory`` and is stopped at the end. ``more``:
    further settings, with ``_`` in place of the points."""
    from pyspark.sql import SparkSession

    from slotwheel.replay.session import DAEMON

    logging = directory / "log4j2.properties"
    logging.write_text(LOGGING)
    options = f'-Dlog4j2.configurationFile={logging.as_uri()} "-Djava.io.tmpdir={directory}"'
    builder = SparkSession.builder.master("local[2]").appName("slotwheel tests")
    settings = {
        **CONFIGURATION,
        **DAEMON,
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": options,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # Otherwise whatever `python3` is runs the tasks; Spark reads this from the environment alone.
    session.sparkContext.pythonExec = sys.executable
    try:
        yield session
    finally:
        session.stop()
