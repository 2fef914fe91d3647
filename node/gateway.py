"""The gateway beside a node: a process of its own, started again when it ends.

Its standard input is a pipe that the node holds open: however the node ends, the gateway ends, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from .config import NodeConfig

_LOOK_EVERY_S = 0.2
GATEWAY_END_S = 2.0
"""For the requests that it has, and the last sums for the audit."""


class GatewayEnded(Exception):
    """The gateway's process has ended by itself."""


class GatewayProcess:
    """``listening``: where the node beside it takes messages. ``turn`` is for a ``Loop``, whose
    waits after errors are those between two starts."""

    def __init__(self, config: NodeConfig, listening: str) -> None:
        self._command = command(config, listening)
        lines = [f"{name}={value}\n" for name, value in config.kafka_settings.items()]
        self._kafka_settings = "".join(lines).encode()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def turn(self) -> float:
        """Start it if it does not run. Errors: ``GatewayEnded``, ``OSError``."""
        with self._lock:
            if self._stopped:
                return _LOOK_EVERY_S
            process = self._process
            if process is None:
                self._process = self._start()
            elif process.poll() is not None:
                self._close(process)
                self._process = None
                raise GatewayEnded(f"the gateway ended with {process.returncode}")
        return _LOOK_EVERY_S

    def stop(self) -> None:
        """End it, by force if it does not end in time."""
        with self._lock:
            self._stopped = True
            process, self._process = self._process, None
        if process is None:
            return
        self._close(process)
        try:
            process.wait(GATEWAY_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel does not let it go
                process.wait(GATEWAY_END_S)

    def _start(self) -> subprocess.Popen[bytes]:
        """Kafka's settings come in a file without a name: everybody can see a command line."""
        if not self._kafka_settings:
            return subprocess.Popen(self._command, stdin=subprocess.PIPE)
        with open(os.memfd_create("kafka"), "wb", buffering=0) as file:
            file.write(self._kafka_settings)
            number = file.fileno()
            command = [*self._command, f"--kafka=/dev/fd/{number}"]
            return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[number])

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()


def command(config: NodeConfig, listening: str) -> Sequence[str]:
    """The command line of the gateway of a node."""
    assert config.http is not None
    others = [address for one, address in config.peers.items() if one != config.node_id]
    given = {
        "listen": config.http,
        "node": ",".join([listening, *others]),
        "data": str(config.data),
        "data-mode": config.data_mode,
        "dead-letter-topic": config.dead_letter_topic,
        "log-format": config.log_format,
        "log-level": config.log_level,
    }
    if config.bootstrap is not None:
        given["bootstrap"] = config.bootstrap
    if config.trace_retain_ms:
        given["trace-retain"] = f"{config.trace_retain_ms}ms"
    if config.audit:
        given["audit-ahead"] = f"{config.wheel.horizon_ms}ms"
    options = [f"--{name}={value}" for name, value in given.items()]
    options += [f"--http-name={name}" for name in config.http_names]
    options += ["--access-log"] if config.http_log else []
    options += ["--audit"] if config.audit else []
    module = ["-m", "slotwheel.cli.main", "gateway", "--ends-with-stdin"]
    return [sys.executable, *module, *options]
