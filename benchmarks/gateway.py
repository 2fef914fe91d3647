"""What does a message over HTTP cost: single ones, from few and from many connections, and many.

Each request waits until its message is durable. Beside it, in the same run on the same cores: Redis
(``appendfsync always``, one ZADD a message from as many connections), by its own load generator.
The same single messages by the client: ``benchmarks.single``.

    python -m benchmarks.gateway [--seconds 8] [--connections 64,1000] [--idle 5000]

Needs Debian's ``wrk``, ``redis-server`` and ``redis-tools`` (``make queues``).
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate
from .servers.redis import Redis
from .servers.server import Missing, program

_ESTIMATE = (
    "a request costs the gateway's one thread 40 us of HTTP and of ours, the node 10 to 30 us and"
    " wrk 20: two cores are full at 20,000 a second; a sync serves all that came meanwhile"
)
_VALUE_BYTES = 100
_MANY = 500
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = {body}
done = function(summary, latency, requests)
  io.stderr:write(string.format(
    '{{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "max": %f, "errors": %d}}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status))
end
"""


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each figure")
    parser.add_argument("--connections", default="64,1000", help="one figure each")
    parser.add_argument("--idle", type=int, default=5000, help="connections that say nothing")
    chosen = parser.parse_args(arguments)
    seconds = min(chosen.seconds, 2.0) if chosen.quick else chosen.seconds
    idle = min(chosen.idle, 200) if chosen.quick else chosen.idle
    with data_directory(chosen.dir) as directory:
        report = Report("HTTP", _ESTIMATE, directory)
        report.begin()
        raw = raw_write_rate(directory, 700, 1.0) / 700
        report.figure("raw write + fdatasync, 1/s", raw, f"{raw:,.0f}")
        redis = _redis(directory, seconds, report)
        with GatewayBesideNode(directory / "data") as gateway:
            one = message_body()
            gateway.load(directory, 8, 1.0, one)  # imports, policies, connections
            for text in chosen.connections.split(","):
                count, who = int(text), f"{text} connections"
                rate = _tell(report, who, gateway, directory, count, seconds)
                if count == 64 and redis:
                    report.ratio("64 connections to Redis", rate, redis)
            before = gateway.rss
            opened = [socket.create_connection(gateway.place) for _ in range(idle)]
            time.sleep(1.0)
            grown = (gateway.rss - before) / (1 << 20)
            report.figure(f"{idle} idle connections, MiB", grown, f"{grown:.0f}")
            who = f"64 connections beside {idle} idle ones"
            _tell(report, who, gateway, directory, 64, seconds)
            for each in opened:
                each.close()
            many = json.dumps([json.loads(one)] * _MANY)
            found = gateway.load(directory, 8, seconds, many)
            rate = _MANY * found["requests"] / found["seconds"]
            report.figure(f"messages/s, {_MANY} a request", rate, f"{rate:,.0f}")
            report.figure(f"{_MANY} a request, errors", found["errors"], f"{found['errors']}")
        report.end(chosen.json)
    return 0


def message_body() -> str:
    return json.dumps({"topic": "bench", "value": "x" * _VALUE_BYTES, "delay_ms": 3_600_000})


def _tell(
    report: Report,
    who: str,
    gateway: GatewayBesideNode,
    directory: Path,
    count: int,
    seconds: float,
) -> float:
    cpu_s, node_s = gateway.cpu_s, gateway.node.cpu_s
    found = gateway.load(directory, count, seconds, message_body())
    requests = max(1, found["requests"])
    rate = float(requests / found["seconds"])
    report.figure(f"messages/s, {who}", rate, f"{rate:,.0f}")
    report.figure(f"p50, {who}, ms", found["p50"], f"{found['p50']:.1f}")
    report.figure(f"p99, {who}, ms", found["p99"], f"{found['p99']:.1f}")
    if found["errors"]:
        report.figure(f"errors, {who}", found["errors"], f"{found['errors']}")
    for name, spent in (("gateway", gateway.cpu_s - cpu_s), ("node", gateway.node.cpu_s - node_s)):
        each = spent / requests * 1e6
        report.figure(f"us of the {name} a message, {who}", each, f"{each:.0f}")
    return rate


def wait_for_gateway(log: Callable[[], str]) -> tuple[str, int]:
    """Where the gateway listens that logs there. Errors: ``RuntimeError``: it does not."""
    deadline = time.monotonic() + 30
    while (found := re.search(r"gateway listening on (\S+):(\d+)", log())) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no gateway:\n{log()}")
        time.sleep(0.05)
    return found[1], int(found[2])


class GatewayBesideNode:
    """A node on ``data`` with a gateway beside it."""

    def __init__(self, data: Path, *node_options: str) -> None:
        self.node = BenchNode(data, "--http", "127.0.0.1:0", *node_options)
        self._scheme = "https" if "--tls-cert" in node_options else "http"
        self.place = ("", 0)

    def __enter__(self) -> Self:
        self.node.__enter__()
        try:
            self.place = wait_for_gateway(self.node.log)
        except RuntimeError:
            self.node.kill()
            raise
        (self._process,) = psutil.Process(self.node.pid).children()
        return self

    def __exit__(self, *error: Any) -> None:
        self.node.__exit__(*error)

    @property
    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    @property
    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def load(self, directory: Path, connections: int, seconds: float, body: str) -> dict[str, Any]:
        """Send ``body`` again and again from so many connections; what wrk says of it."""
        script = directory / "load.lua"
        script.write_text(_SCRIPT.format(body=json.dumps(body)))
        host, port = self.place
        command = [program("wrk"), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
        command += [
            "--timeout",
            "10s",
            "-s",
            str(script),
            f"{self._scheme}://{host}:{port}/v1/messages",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
        return found


def _redis(directory: Path, seconds: float, report: Report) -> float:
    """ZADDs a second from 64 connections, each synced; 0 if Redis is not there."""
    try:
        command = [program("redis-benchmark"), "-c", "64", "-q", "--csv", "-r", str(1 << 30)]
        with Redis(directory / "redis") as server:
            rate = 2000.0
            for share in (0.2, 1.0):  # first to learn how many fill the time
                count = max(500, round(rate * seconds * share))
                member = "__rand_int__" + "x" * (_VALUE_BYTES - 12)
                wanted = ["-n", str(count), "zadd", "delayed", "__rand_int__", member]
                done = subprocess.run(
                    [*command, "-p", str(server.port), *wanted],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                rate = float(done.stdout.strip().splitlines()[-1].split(",")[1].strip('"'))
    except Missing as error:
        report.figure("Redis", 0.0, str(error))
        return 0.0
    report.figure("ZADD/s, Redis, 64 connections, appendfsync always", rate, f"{rate:,.0f}")
    return rate


if __name__ == "__main__":
    sys.exit(main())
