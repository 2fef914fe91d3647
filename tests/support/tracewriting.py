"""Writes a trace store from a made topic until it is killed: ``python tracewriting.py ROOT COUNT``.

Record ``n`` of the topic is a batch of a few events; some records come twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from slotwheel.trace.batches import encode
from slotwheel.trace.events import EventSender
from slotwheel.trace.store import StoreWriter
from support.traced import Row, event, of_sender

SENDERS = 3
ROWS = 5
TOPIC = "made"


def rows_of(record: int) -> list[Row]:
    """The events of a record; those of every seventh one are those of the record before."""
    record -= record % 7 == 6
    sender = record % SENDERS
    first = record // SENDERS * ROWS
    return [
        event(number, 1000 + (number * 37) % 101, f"s{sender}", key=b"k%d" % number)
        for number in range(first, first + ROWS)
    ]


def value_of(record: int) -> bytes:
    rows = rows_of(record)
    return encode(EventSender(rows[0]["sender"]), of_sender(rows))


def main(root: Path, count: int) -> None:
    writer = StoreWriter(root, TOPIC, merged_rows_max=4000)
    begin = writer.positions.get(0, 0)
    numbers = np.random.default_rng()
    for record in range(begin, count):
        writer.add(0, record + 1, value_of(record))
        if numbers.random() < 0.3:
            now_ms = 3_600_000 * (1 + record // 400)
            writer.flush(now_ms)
            if numbers.random() < 0.5:
                writer.tidy(now_ms)
    now_ms = 3_600_000 * 1000
    writer.flush(now_ms)
    while writer.tidy(now_ms):
        pass
    writer.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
