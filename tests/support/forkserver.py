"""Starts this package's commands without importing it again for each of them.

Theory: a command imports for half a second of processor before it does anything, and a run of the
tests starts a thousand of them. A server, one for each process that runs tests, imports what
commands need and runs none. Each command is a fork of it, with descriptors, environment, directory
and network namespace of its own. From then on it is a process like any other: it is killed, paused
and measured by its own id, and what it opens is its own.

Rules
- The server has no thread of ours and opens nothing, so a fork inherits neither a held lock nor a
  handle.
- A program that is not this package's command line, or a variable that only a new program reads,
  is executed. So is ``replay``, whose Spark looks at the program that it runs in, and a node whose
  memory is measured: jemalloc's own thread, which returns pages, is not in a fork.
- What the loader reads (LD_PRELOAD) makes another server.
- A fork looks at files of certificates and rights as often as the process that starts it, so a test
  need not wait ten seconds for each look (the fixture ``looks_often``).
- Only the parent learns how a process ended. The server is the parent, and passes it on by a
  socket of that process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from slotwheel.security.watched import WatchedFiles

COMMAND = [sys.executable, "-m", "slotwheel.cli.main"]
_LOADER = "LD_PRELOAD"
_NAMESPACE = ["ip", "netns", "exec"]
_USED_BY = {
    "audit": ("slotwheel.reading.kafka.tails",),
    "consume": ("slotwheel.reading.kafka.kafkatopic",),
    "dead": ("slotwheel.reading.kafka.confluenttopic", "slotwheel.reading.kafka.kafkatopic"),
    "node": (
        "slotwheel.delivery.kafka.confluent",
        "slotwheel.delivery.kafka.kafka_python",
        "slotwheel.node.intake.confluent_reader",
        "slotwheel.node.intake.kafka_reader",
        "slotwheel.node.healing",
        "slotwheel.node.peer",
    ),
    "gateway": ("slotwheel.gateway.rest.kafka_cluster", "slotwheel.gateway.server"),
}
"""What a command imports while it runs, besides its own module."""
_REQUEST_BYTES = 1 << 17
_CLONE_NEWNET = 0x40000000
_FDS_MAX = 1 << 12


class Forked:
    """What tests use of a ``Popen``. May be used by several threads."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                with contextlib.suppress(BlockingIOError):
                    told = self._status.recv(16, socket.MSG_DONTWAIT)
                    self._status.close()
                    # Without a word the server itself was killed, and all of the run with it.
                    self.returncode = int(told) if told else -signal.SIGKILL
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
        waiting.poll(None if timeout is None else timeout * 1000)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """Ends with this process, whose end of the socket is closed then."""

    def __init__(self, preloaded: str) -> None:
        self.control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                # Without -P the modules beside this file would be taken for those of libraries.
                [sys.executable, "-P", __file__],
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the run
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", _LOADER: preloaded},
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)


Process = subprocess.Popen[bytes] | Forked
_servers: dict[tuple[int, str], _Server] = {}
"""By the process that it serves, of which a fork has its own, and by what is preloaded."""
_starting = threading.Lock()


def start(
    command: Sequence[str], stdout: IO[Any] | int, stderr: IO[Any], env: Mapping[str, str]
) -> Process:
    """Run ``command``, with nothing to read from stdin."""
    namespace = ""
    own = list(command)
    if own[:3] == _NAMESPACE:
        namespace, own = own[3], own[4:]
    # Libraries read some of these when they are imported.
    unlike = {name for name, value in env.items() if os.environ.get(name) != value}
    if (
        own[: len(COMMAND)] != COMMAND
        or own[len(COMMAND) :][:1] == ["replay"]
        or not all(name.startswith("SLOTWHEEL_") for name in unlike - {_LOADER})
    ):
        return execute(command, stdout, stderr, env)
    request = {
        "arguments": own[len(COMMAND) :],
        "env": dict(env),
        "cwd": str(Path.cwd()),
        "namespace": namespace,
        "look_every_s": WatchedFiles.every_s,
    }
    with open(os.devnull, "r+b") as null:
        out = null if stdout == subprocess.DEVNULL else stdout
        key = os.getpid(), env.get(_LOADER, "")
        return _ask(key, json.dumps(request).encode(), [null, out, stderr])


def execute(
    command: Sequence[str], stdout: IO[Any] | int, stderr: IO[Any], env: Mapping[str, str]
) -> Process:
    """The same as a program of its own."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env
    )


def _ask(key: tuple[int, str], request: bytes, files: Sequence[Any]) -> Forked:
    assert len(request) < _REQUEST_BYTES
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        numbers = [one if isinstance(one, int) else one.fileno() for one in (there, *files)]
        with _starting:
            if key not in _servers:
                _servers[key] = _Server(key[1])
            socket.send_fds(_servers[key].control, [request], numbers)
    pid = here.recv(16)
    assert pid, "the server of forks has ended; its error is in the output"
    return Forked(int(pid), here)


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for each request. Returns in a fork, what its command is given, and at the end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    statuses: dict[int, socket.socket] = {}
    imported: set[str] = set()
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid, code in _ended():
                with contextlib.suppress(OSError), statuses.pop(pid) as status:
                    status.send(b"%d" % code)
        if control.fileno() in ready:
            request, numbers, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 4)
            if not request:
                return None
            status = socket.socket(fileno=numbers[0])
            wanted = json.loads(request)
            if (command := (*wanted["arguments"], "")[0]) not in imported:
                imported.add(command)
                _import(command)
            pid = os.fork()
            if pid == 0:
                return _become(wanted, numbers[1:])
            with contextlib.suppress(OSError):
                status.send(b"%d" % pid)
            statuses[pid] = status
            for number in numbers[1:]:
                os.close(number)


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (waited := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((waited[0], os.waitstatus_to_exitcode(waited[1])))
    return found


def _become(request: dict[str, Any], files: Sequence[int]) -> list[str]:
    """Make this fork what a new process would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, number in enumerate(files):
        os.dup2(number, target)
    os.closerange(3, _FDS_MAX)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["namespace"]:
        place = os.open(Path("/run/netns", request["namespace"]), os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(place, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(place)
    WatchedFiles.every_s = request["look_every_s"]
    arguments: list[str] = request["arguments"]
    sys.argv = ["slotwheel", *arguments]
    # What a process imports that it starts by ``multiprocessing``.
    sys.modules["__main__"] = sys.modules["slotwheel.cli.main"]
    return arguments


def _import(command: str) -> None:
    """What ``command`` needs, before the first fork that runs it."""
    commands: dict[str, tuple[str, str]] = importlib.import_module("slotwheel.cli.main").COMMANDS
    if command in commands:
        importlib.import_module(f"slotwheel.cli.{commands[command][0]}")
        for name in ("pyarrow.compute", *_USED_BY.get(command, ())):
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # or a collection in a fork would copy all pages


def _main() -> None:
    importlib.import_module("slotwheel.wheel.withoutpandas").hide_pandas()
    with socket.socket(fileno=os.dup(0)) as control:
        arguments = _serve(control)
        if arguments is None:
            return
        control.detach()  # closed already
    importlib.import_module("slotwheel.cli.main").main(arguments)


if __name__ == "__main__":
    _main()
