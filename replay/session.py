"""The Spark session of the command and of the job; nothing else builds one.

Rules
- Settings of the user's cluster or ``spark-defaults.conf`` stay: only what the proof needs is set.
  Where ``spark-submit`` has started Spark, nothing is set.
- On this machine alone (``local[…]``) tasks run with this interpreter, in processes of
  ``daemon.py``, and Spark listens on loopback.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ..wheel.errors import InvalidConfiguration
from ..wheel.texts import shown_text
from . import daemon
from .facts.kafka_topics import PACKAGES, not_fetched

T = TypeVar("T")
APP_NAME = "slotwheel replay"
SUBMITTED = ""
"""Stands for the master of a Spark that ``spark-submit`` started."""
BRIEF = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""Settings for a proof: Java without its second compiler, which takes as much processor time as the
rest of Java, and pays back where Java makes rows. A proof moves packed facts through it."""
DAEMON = {"spark.python.daemon.module": daemon.__name__}
"""Settings of a session in which only slotwheel runs tasks, on this machine."""
_ENDS_S = 5.0
"""How long an interrupted proof may take to notice that Spark is gone, s."""
_NO_JAVA = "JAVA_GATEWAY_EXITED"
# Without a level of the gateway's own, Spark sets the root's and prints how to change it.
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
"""


@contextmanager
def session(
    master: str, *, driver_memory: str = "2g", more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session on ``master``, stopped at the end. ``driver_memory``: of the Java process, which
    does all the work with a local master; ``more``: further settings (``facts/kafka_topics.py``).

    Errors: ``InvalidConfiguration``: Java does not start, or a package that Spark was told to fetch
    cannot be had.
    """
    folder = Path(tempfile.mkdtemp(prefix="slotwheel-replay-"))
    try:
        if master == SUBMITTED:
            submitted = SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
            spark = submitted.getOrCreate()
        else:
            spark = _start(master, driver_memory, more, folder)
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interruptible(work: Callable[[], T]) -> T:
    """Run work that starts and stops Spark in a thread: Ctrl-C inside a call to Java would leave
    the connection to it broken. Call it in the main thread; at Ctrl-C the Java process is ended."""
    before = _children()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="replay", daemon=True)
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        logging.disable()  # errors that follow from the ended process are of no interest
        deadline = time.monotonic() + _ENDS_S
        while thread.is_alive() and time.monotonic() < deadline:
            for pid in _children() - before:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            thread.join(0.1)
        raise


def _children() -> set[int]:
    """Processes that this one has started. Spark's Java process is among them from its start;
    PySpark has its id only once it has answered."""
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for text in lists for pid in text.split()}


def _start(
    master: str, driver_memory: str, more: Mapping[str, str] | None, folder: Path
) -> SparkSession:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOGGING, "utf-8")
    # What a JVM that is killed leaves behind goes with the folder.
    options = f'-Dlog4j2.configurationFile={log4j.as_uri()} "-Djava.io.tmpdir={folder}"'
    settings: dict[str, Any] = {
        "spark.app.name": APP_NAME,
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": options,
        **(more or {}),
    }
    local = master.startswith("local")
    if local:
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "8",
            **DAEMON,
        }
    try:
        if PACKAGES in settings:
            _fetch(settings, folder / "output.txt")
        spark = SparkSession.builder.config(map=settings).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != _NO_JAVA:
            raise
        raise InvalidConfiguration(
            "Spark's Java process did not start; what it said stands above",
            limit="Java 17 or newer",
            remedy="Look which one JAVA_HOME names or, without it, `java -version`;"
            " and whether --driver-memory is to be had",
        ) from None
    if local:
        # Otherwise any `python3` on the path runs the tasks; Spark reads this from the environment.
        spark.sparkContext.pythonExec = sys.executable
    return spark


def _fetch(settings: Mapping[str, str], output: Path) -> None:
    """Start Spark's Java process, which fetches its packages and logs pages about that; they are
    shown if it fails for another reason."""
    launch: Any = java_gateway.launch_gateway
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with output.open("wb") as file:
        try:
            gateway = launch(conf, {"stderr": file})
        except PySparkRuntimeError:
            text = output.read_text("utf-8", "replace")
            error = not_fetched(settings[PACKAGES], text)
            if error is None:
                sys.stderr.write(shown_text(text))
                raise
            raise error from None
    SparkContext(conf=conf, gateway=gateway)
