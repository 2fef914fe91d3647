"""What the benchmarks ask of a delay queue, and how its server is run."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

import psutil

START_S = 120.0
CACHE = Path(__file__).resolve().parents[2] / ".cache"
"""Where ``install.sh`` puts what Debian does not have."""


class Missing(Exception):
    """The server, or what it takes to talk to it, is not installed."""


class Sender(Protocol):
    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """Store messages; returns when all of them are as durable as the server makes them."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self) -> list[bytes]:
        """What has become due since the last call and was taken from the server; waits a little
        when there is nothing."""

    def close(self) -> None: ...


class Server(ABC):
    """A server with an empty store in ``directory``, from ``with`` on."""

    name: ClassVar[str]
    durability: ClassVar[str]
    """Its settings, in its own words."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, object]:
        """For a client in another process, which needs the address and nothing of ours."""
        return {**self.__dict__, "_process": None}

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def command(self) -> list[str]:
        """The server in the foreground; the directory exists. Errors: ``Missing``."""

    @abstractmethod
    def sender(self) -> Sender: ...

    @abstractmethod
    def receiver(self) -> Receiver: ...

    def environment(self) -> dict[str, str] | None:
        return None

    def is_ready(self) -> bool:
        return accepts(self.port)

    def prepare(self) -> None:  # noqa: B027 (most have nothing to do)
        """Once it is ready."""

    def cpu_s(self) -> float:
        """Processor time so far, of all processes of the server."""
        assert self._process is not None
        process, total = psutil.Process(self._process.pid), 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:4])  # and of its children that have ended
        return total

    def halt(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.directory, env=self.environment()
            )
        try:
            wait_for(self.name, self.is_ready, self._process)
            self.prepare()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self.halt(process)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def program(name: str, *places: str) -> str:
    """Where a program is. Errors: ``Missing``."""
    found = shutil.which(name) or next(
        (str(path) for place in places for path in sorted(Path("/").glob(f"{place}/{name}"))), None
    )
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace").strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_for(name: str, done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while not done():
        if process.poll() is not None:
            raise Missing(f"{name} ended with code {process.returncode}; see server.log")
        if time.monotonic() > deadline:
            raise Missing(f"{name} was not ready within {START_S:.0f} s")
        time.sleep(0.05)
