"""The Spark session of the command and of the job; nothing else builds one.

Rules
- What the user's cluster or ``spark-defaults.conf`` says stays: only what the proof needs is set.
- On this machine alone (``local[…]``) tasks run with this interpreter, and Spark listens on
  loopback.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

APP_NAME = "slotwheel replay"
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
"""


@contextmanager
def session(master: str, *, driver_memory: str = "2g") -> Iterator[SparkSession]:
    """A session on ``master``, stopped at the end. ``driver_memory``: of the Java process, which
    with a local master does all the work."""
    folder = Path(tempfile.mkdtemp(prefix="slotwheel-replay-"))
    try:
        found = _build(master, driver_memory, folder)
        try:
            yield found
        finally:
            found.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build(master: str, driver_memory: str, folder: Path) -> SparkSession:
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING, "utf-8")
    builder = (
        SparkSession.builder.appName(APP_NAME)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
    )
    local = master.startswith("local")
    if local:
        builder = (
            builder.config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(folder))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "8")
        )
    found = builder.getOrCreate()
    if local:
        # Otherwise whatever `python3` is runs the tasks; Spark reads this from the environment.
        found.sparkContext.pythonExec = sys.executable
    return found
