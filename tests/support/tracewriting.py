"""Writes a trace store from a made topic until it is killed: ``python tracewriting.py ROOT COUNT``.

Record ``n`` of the topic is a batch of a few events; some records come twice. Most merges run while
further records are written, and take so long that a kill at a random moment often hits one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import numpy as np

from slotwheel.trace.batches import encode
from slotwheel.trace.events import EventSender
from slotwheel.trace.store import StoreWriter, merging
from slotwheel.trace.store.hashing import Entries
from slotwheel.trace.store.indexfile import HashColumn
from slotwheel.trace.store.making import hash_columns
from slotwheel.wheel.withoutpandas import hide_pandas
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


def slow_columns(entries: Iterable[tuple[str, Entries]]) -> dict[str, HashColumn]:
    """In the midst of a merge: as if it had millions of events."""
    time.sleep(0.1)
    return hash_columns(entries)


def main(root: Path, count: int) -> None:
    writer = StoreWriter(root, TOPIC, merged_rows_max=4000)
    print("open", flush=True)
    begin = writer.positions.get(0, 0)
    numbers = np.random.default_rng()
    for record in range(begin, count):
        writer.add(0, record + 1, value_of(record))
        if numbers.random() < 0.3:
            now_ms = 3_600_000 * (1 + record // 400)
            writer.flush(now_ms)
            if numbers.random() < 0.5:
                writer.tidy(now_ms, wait=numbers.random() < 0.2)
    now_ms = 3_600_000 * 1000
    writer.flush(now_ms)
    while writer.tidy(now_ms, wait=True):
        pass
    writer.close()
    print("done", flush=True)


if __name__ == "__main__":
    hide_pandas()
    with mock.patch.object(merging, "hash_columns", slow_columns):
        main(Path(sys.argv[1]), int(sys.argv[2]))
