"""A Spark cluster of real processes on loopback: a standalone master and its workers.

    with SparkCluster(directory, workers=2) as cluster:
        cluster.submit("job.py", "--argument", ...)

The processes are children of the tests, and are ended by their own ids.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyspark

from support import java
from support.ports import free_address
from support.spark import LOGGING
from support.waiting import PATIENCE_S

SPARK = Path(pyspark.__file__).parent


class SparkCluster:
    """``directory``: where it keeps its files; ``python``: the interpreter of the executors."""

    def __init__(self, directory: Path, workers: int, python: Path) -> None:
        self.directory = directory
        self.workers = workers
        self._python = python
        self._stack = ExitStack()
        self._page = ""
        self.master = ""

    def __enter__(self) -> Self:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(
        self, job: Path, *arguments: str | Path, driver: Path, timeout_s: float, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``job`` by ``spark-submit`` to its end. ``driver``: its interpreter; ``settings``:
        of Spark, with ``_`` in place of the points, and its own options under their names."""
        found = {
            "spark_ui_enabled": "false",
            "spark_executor_memory": "512m",
            "spark_driver_memory": "512m",
            "spark_driver_host": "127.0.0.1",
            "spark_executor_extraJavaOptions": " ".join(java.options("spark")),
            **settings,
        }
        options = [
            option
            for name, value in found.items()
            for option in (
                ("--conf", f"{name.replace('_', '.')}={value}")
                if name.startswith("spark_")
                else (f"--{name.replace('_', '-')}", value)
            )
        ]
        command = [SPARK / "bin" / "spark-submit", "--master", self.master, *options, job]
        return subprocess.run(
            [*map(str, command), *map(str, arguments)],
            cwd=self.directory,
            env=self._environment(PYSPARK_DRIVER_PYTHON=str(driver)),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(LOGGING)
        address, page = free_address(), free_address()
        self.master, self._page = f"spark://{address}", f"http://{page}/json/"
        places = ("--port", address.rpartition(":")[2], "--webui-port", page.rpartition(":")[2])
        self._run("master", "org.apache.spark.deploy.master.Master", *places)
        self._wait(0)
        for number in range(self.workers):
            self._run(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--webui-port", "0", "--cores", "1", "--memory", "600m"),
                *("--work-dir", str(self.directory / f"work-{number}"), self.master),
            )
        self._wait(self.workers)

    def _run(self, name: str, main: str, *arguments: str) -> None:
        """Start a process that ends with the cluster."""
        command = [str(SPARK / "bin" / "spark-class"), main, "--host", "127.0.0.1", *arguments]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.directory, env=self._environment()
            )
        self._stack.callback(_end, process)

    def _wait(self, workers: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := self._alive()) != workers:
            assert time.monotonic() < deadline, f"{found} of {workers} workers\n{self.logs()}"
            time.sleep(0.1)

    def _alive(self) -> int | None:
        """Workers that the master knows; None: there is no master yet."""
        try:
            with urllib.request.urlopen(self._page, timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):  # not listening yet, or without its pages
            return None
        return int(state["aliveworkers"])

    def logs(self) -> str:
        """The last lines of each process."""
        return "\n".join(
            f"{path.name}: {line}"
            for path in sorted(self.directory.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()[-20:]
        )

    def _environment(self, **more: str) -> dict[str, str]:
        """Without what would let the checkout be found."""
        plain = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLOTWHEEL_", "SPARK_", "PYSPARK_", "PYTHONPATH"))
        }
        logging = f"-Dlog4j2.configurationFile={(self.directory / 'log4j2.properties').as_uri()}"
        options = " ".join([logging, *java.options("spark")])
        return {
            **plain,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": options,
            "SPARK_SUBMIT_OPTS": options,
            "PYSPARK_PYTHON": str(self._python),
            **more,
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Also ends the executors that a worker has started."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def interpreter(path: Path, *folders: Path) -> Path:
    """An interpreter that finds modules in PYTHONPATH and ``folders`` alone: no installed package,
    and no editable one."""
    places = ":".join(map(str, folders))
    path.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{places}" exec "{sys.executable}" -S -s "$@"\n'
    )
    path.chmod(0o755)
    return path
