"""A node as a subprocess, watched from outside: memory, descriptors, processor time, metrics."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_START_S = 60.0
_LISTENING = re.compile(r"listening on (\S+:\d+)")
_METRICS = re.compile(r"metrics=(\S+:\d+)")
_SAMPLE_S = 0.1


class BenchNode:
    """``slotwheel node`` on ``data``, on free ports. Ended by its own pid, never by name."""

    def __init__(self, data: Path, *node_options: str) -> None:
        self.data = data
        self._log = data.with_name(data.name + ".log")
        self._options = node_options
        self.address = ""
        self.ready_s = 0.0
        """From the start of the process until it listens."""
        self.rss_max = 0
        self.fds_max = 0
        self._metrics = ""
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        plain = {k: v for k, v in os.environ.items() if not k.startswith("SLOTWHEEL_")}
        plain.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
        command = [sys.executable, "-m", "slotwheel.cli.main", "node", "--data", str(self.data)]
        command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *self._options]
        started = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log, env=plain)
        self._watched = psutil.Process(self._process.pid)
        while (found := _LISTENING.search(self.log())) is None:
            if self._process.poll() is not None or time.perf_counter() - started > _START_S:
                self.kill()
                raise RuntimeError(f"the node did not start:\n{self.log()}")
            time.sleep(0.002)
        self.ready_s = time.perf_counter() - started
        self.address = found[1]
        metrics = _METRICS.search(self.log())
        self._metrics = metrics[1] if metrics is not None else ""
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._ended.set()
        self._process.kill()
        self._process.wait(10)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def rss(self) -> int:
        return int(self._watched.memory_info().rss)

    @property
    def anonymous(self) -> int:
        """Resident bytes that are no file's, which the kernel cannot drop when others need them."""
        memory = self._watched.memory_info()
        return int(memory.rss - memory.shared)

    @property
    def fds(self) -> int:
        return int(self._watched.num_fds())

    @property
    def cpu_s(self) -> float:
        times = self._watched.cpu_times()
        return float(times.user + times.system)

    @property
    def master_cpu_s(self) -> float:
        """It is alone, so it is the master."""
        return self.cpu_s

    def metrics(self) -> dict[str, float]:
        """The node's own figures by name (with labels as they stand)."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            try:
                self.rss_max = max(self.rss_max, self.rss)
                self.fds_max = max(self.fds_max, self.fds)
            except psutil.Error:
                return
