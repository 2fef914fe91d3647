"""How many durable messages a second does one node take, with slot files being written meanwhile?

Two client processes send Arrow batches of 1000 messages of 100 B, due uniformly over two hours, and
wait for receipts under acks=all. The raw limit is measured in the same run, for as long: write +
fdatasync of one file that grows, in groups as large as the node's group commits were, on the same
disk, nothing else.

A client has five batches under way; what it is handed meanwhile waits, and leaves joined, as one
batch of up to 5000 messages: that is how the client comes, and what is measured. With ``--apart``
nothing is joined: each table of ``--rows`` messages travels, is stored and is answered by itself,
as from a program that hands over one table and waits for its receipt. ``rows in a journal entry``
says how large they became on the way.

Due times begin ten seconds after sending (``_load``). With a ``--span-s`` so short that they end
soon after, whatever ``--seconds`` goes beyond ten is also delivered meanwhile, and costs the same
processor; ``delivered meanwhile`` says how many.

    python -m benchmarks.ingest [--seconds 30] [--clients 2] [--rows 1000] [--value-bytes 100]
                                [--span-s 7180] [--apart]
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa

from slotwheel.wheel.journal.entry import HEADER_BYTES
from slotwheel.wheel.journal.segment import FRAME_BYTES
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import PAYLOAD

from ._load import TOPIC, Clients, Load
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory

_ESTIMATE = (
    "a message of 100 B is 150 B in the journal and 165 B in a slot file. At 1 M messages/s that"
    " is 150 MB/s through fdatasync and 165 MB/s written behind it. Processor time, in us a"
    " message: client 0.5; wire, checks and copy 0.4; journal 0.1; receipts 0.1; gathering for"
    " the spill 0.3, writing it 0.3: 1.7, so 1.1 M/s on two cores that also run the clients."
    " Spilling costs most: 7200 files have to be opened for each 128 MiB."
)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000, help="messages in a batch")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--span-s", type=float, default=7_180.0, help="due times lie so far apart")
    parser.add_argument("--apart", action="store_true", help="each batch travels by itself")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds = min(chosen.seconds, 8.0)
    warm_gib = chosen.warm_gib
    if warm_gib is None:
        warm_gib = min(16.0, 2 + 0.4 * chosen.seconds)
    with data_directory(chosen.dir) as directory:
        report = Report("durable ingest", _ESTIMATE, directory)
        report.begin()
        warm_memory(warm_gib)
        with BenchNode(directory / "data") as node:
            load = Load(
                "",
                chosen.rows,
                chosen.value_bytes,
                span_ms=int(chosen.span_s * 1000),
                seconds=chosen.seconds,
                apart=chosen.apart,
            )
            journal, group = measure(report, node, load, chosen.clients)
        # The node would go on to spill. As long as the load: a disk may be faster for some seconds
        # than it can be for a minute.
        shutil.rmtree(directory / "data")
        raw = raw_write_rate(directory, group, load.seconds)
        report.figure("raw write + fdatasync, MB/s", raw / 1e6, f"{raw / 1e6:.0f}")
        report.ratio("to the raw limit", journal, raw)
        report.end(chosen.json)
    return 0


def measure(report: Report, node: BenchNode, load: Load, count: int) -> tuple[float, int]:
    """Bytes a second that went into the journal, and those of a group commit."""
    clients = Clients(replace(load, address=node.address), count)
    before = node.metrics()
    # Started processes wait for each other, so this is the node's time alone.
    clients.go()
    node_cpu, started = node.cpu_s, time.perf_counter()
    sent = clients.results(load.seconds + 60)
    seconds = max(one.ended for one in sent) - min(one.started for one in sent)
    node_cpu = node.cpu_s - node_cpu
    after = node.metrics()
    wall = time.perf_counter() - started

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    messages = sum(one.messages - one.refused for one in sent)
    rate = messages / seconds
    groups = grown("slotwheel_group_commits_total")
    # Batches are joined on the way, so an entry may hold more than was handed over at once.
    entry_rows = messages / max(1.0, grown("slotwheel_commit_index"))
    stored = replace(load, rows=max(1, round(entry_rows)))
    journal_bytes = messages * journal_bytes_a_message(stored)
    report.figure("messages/s", rate, f"{rate:,.0f}")
    report.figure("messages", messages, f"{messages:,} in {seconds:.1f} s")
    report.figure("refused", sum(one.refused for one in sent), f"{sum(o.refused for o in sent)}")
    spilled = grown("slotwheel_spilled_rows_total")
    report.figure("spilled meanwhile", spilled, f"{spilled / max(1, messages):.0%}")
    delivered = grown("slotwheel_delivered_total")
    report.figure("delivered meanwhile", delivered, f"{delivered:,.0f}")
    report.figure("rows in a journal entry", entry_rows, f"{entry_rows:,.0f}")
    group = int(journal_bytes / max(1.0, groups))
    report.figure("group commit", group, f"{group / 1024:.0f} KiB, {groups / wall:.0f}/s")
    journal = journal_bytes / wall
    report.figure("journal, MB/s", journal / 1e6, f"{journal / 1e6:.0f}")
    micros = node_cpu / messages * 1e6
    report.figure("node CPU, us/message", micros, f"{micros:.2f}")
    micros = sum(one.cpu_s for one in sent) / messages * 1e6
    report.figure("client CPU, us/message", micros, f"{micros:.2f}")
    spill_s = grown("slotwheel_spill_seconds_sum") / max(1, grown("slotwheel_spill_seconds_count"))
    report.figure("a spill, s", spill_s, f"{spill_s:.2f}")
    report.figure("peak resident, MB", node.rss_max / 1e6, f"{node.rss_max / 1e6:.0f}", "<= 1000")
    report.figure("most descriptors", node.fds_max, f"{node.fds_max}", "<= 200")
    return journal, group


def journal_bytes_a_message(load: Load) -> float:
    """What one batch takes in the journal, its header and frame included, a message."""
    rows = from_columns(
        np.zeros(load.rows, np.int64),
        [TOPIC] * load.rows,
        [None] * load.rows,
        [None] * load.rows,
        [bytes(load.value_bytes)] * load.rows,
        [()] * load.rows,
    )
    payload = [rows.column(0), rows.column(0), pa.nulls(load.rows, pa.int64()), *rows.columns[1:]]
    batch = pa.RecordBatch.from_arrays(payload, schema=PAYLOAD)
    return float((batch.serialize().size + HEADER_BYTES + FRAME_BYTES) / load.rows)


if __name__ == "__main__":
    sys.exit(main())
