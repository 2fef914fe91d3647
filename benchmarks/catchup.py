"""A node comes back and finds millions overdue: how fast are they delivered?

The messages are due over ten minutes of a time that has passed when the node is started again. So
that nobody waits for it, the benchmark sends them due soon, kills the node with SIGKILL, and starts
it when the last one is due. Judged by the embedded topic: from the first delivery to the last. The
raw limit is write + fdatasync of the same bytes in groups of a chunk.

    python -m benchmarks.catchup [--messages 5000000]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from slotwheel.client import Client
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import times

from ._load import TOPIC, Clients, Load
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory

_ESTIMATE = (
    "per message: read and merge 0.25 us on the thread that reads ahead; take 0.1, write and"
    " checksum 0.2 on the one that delivers: 3.3 M a second while they do not wait for each other;"
    " a chunk of 16,384 is synced twice, 0.8 ms of 6 ms"
)
_CHUNK_ROWS = 16_384
_RECORD_BYTES = 200
_AHEAD_S = 10.0
"""Due times begin so much later than sending (``_load``)."""


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rate", type=float, default=250_000, help="expected of the intake, 1/s")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages = min(chosen.messages, 100_000)
    with data_directory(chosen.dir) as directory:
        report = Report("catching up", _ESTIMATE, directory)
        report.begin()
        if chosen.warm_gib is None:
            chosen.warm_gib = min(12.0, 1 + chosen.messages * 600 / 1e9)
        warm_memory(chosen.warm_gib)
        data = directory / "data"
        # Not due before all are sent, and as many seconds as they would have been down.
        span_ms = 1000 + int(chosen.messages / chosen.rate * 1000)
        with BenchNode(data) as node:
            load = Load(node.address, total=chosen.messages // 2, span_ms=span_ms)
            clients = Clients(load, 2)
            clients.go()
            sent = sum(one.messages - one.refused for one in clients.results(600))
            with Client(node.address) as client:
                early = client.status()["delivered"]
            node.kill()
        time.sleep(_AHEAD_S + span_ms / 1000 + 1)
        with BenchNode(data) as node:
            started, cpu = time.perf_counter(), node.cpu_s
            _wait(node, sent)
            whole_s, cpu_s = time.perf_counter() - started, node.cpu_s - cpu
            rss = node.rss_max
        reader = TopicReader(OsFiles(data), TOPIC)
        at = np.concatenate([times(batch, "delivered") for batch in reader.batches()])
        reader.close()
        if len(at) < sent:
            raise RuntimeError(f"{sent} were sent, {len(at)} delivered")
        at = np.sort(at)[early:]
        rate = len(at) / max(0.001, (int(at[-1]) - int(at[0])) / 1000)
        report.figure("overdue at the start", len(at), f"{len(at):,}")
        report.figure("delivered/s", rate, f"{rate:,.0f}")
        report.figure("all delivered after the start, s", whole_s, f"{whole_s:.2f}")
        raw = raw_write_rate(directory, _CHUNK_ROWS * _RECORD_BYTES, 1.0) / _RECORD_BYTES
        report.figure("raw write + fdatasync, messages/s", raw, f"{raw:,.0f}")
        report.ratio("to the raw limit", rate, raw)
        report.figure("node CPU, us/message", cpu_s / len(at) * 1e6, f"{cpu_s / len(at) * 1e6:.2f}")
        report.figure("peak resident, MB", rss / 1e6, f"{rss / 1e6:.0f}")
        report.end(chosen.json)
    return 0


def _wait(node: BenchNode, sent: int) -> None:
    deadline = time.monotonic() + 120
    with Client(node.address) as client:
        while (status := client.status())["pending"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not delivered in time: {status}")
            time.sleep(0.05)
        assert status["accepted"] == sent, status


if __name__ == "__main__":
    sys.exit(main())
