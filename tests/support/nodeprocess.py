"""A node as a process of its own, on a free port, and the command line run against it."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import pyarrow as pa

from slotwheel.cli import main
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles
from support import forkserver
from support.stopwatch import Stopwatch
from support.waiting import PATIENCE_S

told_to = 2
"""Where a command that hangs is told, a descriptor; not the one that is captured for a test."""
GIVES_UP_SOON = {
    "confluent": ("--kafka", "message.timeout.ms=1500", "--kafka", "request.timeout.ms=700"),
    "kafka-python": ("--kafka", "message.timeout.ms=1500", "--kafka", "request.timeout.ms=700"),
}
"""Options of a node by its ``--sink``: it gives a record up soon when a broker does not answer, and
not ten seconds later."""
_LISTENING = re.compile(r"listening on ([\w.\[\]:]+:\d+)")
_METRICS = re.compile(r"metrics\W+([\w.\[\]:]+:\d+)")


def command_line(*arguments: str | Path) -> list[str]:
    return [*forkserver.COMMAND, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """The environment without settings of the person who runs the tests."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SLOTWHEEL_")}
    return {**plain, **more}


class NodeProcess:
    """Runs ``slotwheel node`` on ``data``; ready when the ``with`` block is entered."""

    forked = True
    """By `support.forkserver`. Where memory is measured, a node is a program of its own."""

    def __init__(self, data: Path, *options: str, **variables: str) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self._options = options
        self._variables = variables
        self.address = ""
        self.metrics = ""
        self._seen = 0
        self.process: forkserver.Process | None = None

    def command(self) -> list[str]:
        data = ["--data", str(self.data)]
        free = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        return command_line("node", *data, *free, *self._options)

    def start(self, *, wait: bool = True) -> Self:
        with self.log.open("ab") as log:
            self._seen = log.tell()
            begin = forkserver.start if self.forked else forkserver.execute
            self.process = begin(
                self.command(), subprocess.DEVNULL, log, environment(**self._variables)
            )
        if wait:
            self.wait_until_it_listens()
        return self

    def wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            text = self.log.read_bytes()[self._seen :].decode()
            found = _LISTENING.search(text)
            if found and text.endswith("\n"):
                self.address = found[1]
                metrics = _METRICS.search(text, found.end())
                self.metrics = "" if metrics is None else metrics[1]
                return
            assert self.running.poll() is None, text
            time.sleep(0.02)
        raise AssertionError(f"no node after {PATIENCE_S} s: {text}")

    @property
    def running(self) -> forkserver.Process:
        assert self.process is not None
        return self.process

    def log_text(self) -> str:
        return self.log.read_text()

    def signal(self, number: int = signal.SIGTERM) -> float:
        """Send a signal and wait for the end; how long that took, as a ``Stopwatch`` counts."""
        watch = Stopwatch()
        self.running.send_signal(number)
        self.running.wait(60)
        return watch.seconds

    def kill(self) -> None:
        self.running.kill()
        self.running.wait(60)

    def get(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.metrics}{page}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def delivered(self, topic: str) -> list[dict[str, Any]]:
        """What stands in an embedded topic now."""
        return topic_rows(self.data, topic)

    def wait_for(
        self, topic: str, count: int, timeout_s: float = PATIENCE_S
    ) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_s
        while (found := sum(len(one) for one in _batches(self.data, topic))) < count:
            assert time.monotonic() < deadline, f"{found} of {count} in {topic}"
            time.sleep(0.05)
        return self.delivered(topic)

    def __enter__(self) -> Self:
        try:
            return self.start() if self.process is None else self
        except BaseException:
            if self.process is not None:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self.running.poll() is None:
            self.kill()


def topic_rows(data: Path, topic: str) -> list[dict[str, Any]]:
    """All committed rows of an embedded topic, in its order."""
    return [row for batch in _batches(data, topic) for row in batch.to_pylist()]


def _batches(data: Path, topic: str) -> list[pa.RecordBatch]:
    files = OsFiles(data)
    reader = TopicReader(files, topic)
    try:
        return list(reader.batches())
    finally:
        reader.close()
        files.close()


def run_cli(*arguments: str | Path, given: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run one command to its end, in this process, which ends with a traceback if the command takes
    longer than ``PATIENCE_S``; ``given`` is its stdin."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with (
        _watched(),
        tempfile.TemporaryFile("w+b") as stdin,
        redirect_stdout(out),
        redirect_stderr(err),
        patch("sys.stdin", io.TextIOWrapper(stdin)),
        patch.dict(os.environ, environment(), clear=True),
    ):
        stdin.write(given.encode() if isinstance(given, str) else given)
        stdin.seek(0)
        code = main.run([str(one) for one in arguments])
    texts = (one.buffer.getvalue().decode() for one in (out, err))
    return subprocess.CompletedProcess(arguments, code, *texts)


@contextmanager
def _watched() -> Iterator[None]:
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=told_to)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_process(
    *arguments: str | Path, timeout_s: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, in a process of its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = forkserver.start(command_line(*arguments), out, err, environment(**variables))
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        texts = []
        for one in (out, err):
            one.seek(0)
            texts.append(one.read().decode())
    return subprocess.CompletedProcess(arguments, code, *texts)


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
