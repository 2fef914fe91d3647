"""What the console shows in tests and on its picture: messages that wait, and some that left."""

from __future__ import annotations

import math
import time

import numpy as np
import pyarrow as pa

from slotwheel.client import Client

MINUTE_MS = 60_000
PLANTED = "<script>planted=1</script>\"'><img src=/x onerror=planted=1>{{7*7}}${7*7}"
"""A text that does something wherever it is not escaped."""
_TOPICS = ("orders.reminders", "payments.retry", "mail.follow-up", "carts.abandoned")


def fill(address: str, rows: int, delivered: int = 0, seed: int = 5) -> None:
    """``rows`` messages due over two hours in waves, and ``delivered`` that leave at once."""
    generator = np.random.default_rng(seed)
    now_ms = time.time_ns() // 1_000_000
    minute = np.arange(1, 119)
    weight = 1.0 + 0.55 * np.sin(minute / 120 * 3.3 * math.pi) + 0.9 * (minute % 15 == 0)
    weight *= np.linspace(1.25, 0.6, len(minute))
    with Client(address) as client:
        for first in range(0, rows, 5_000):
            many = min(5_000, rows - first)
            due = generator.choice(minute, many, p=weight / weight.sum()) * MINUTE_MS
            due += generator.integers(0, MINUTE_MS, many)
            client.send_table(_batch(first, now_ms + due))
        for first in range(0, delivered, 5_000):
            many = min(5_000, delivered - first)
            client.send_table(_batch(first, now_ms + generator.integers(300, 4_000, many)))
        client.flush()


def _batch(first: int, due: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    numbers = range(first, first + len(due))
    return pa.RecordBatch.from_pydict(
        {
            "due": pa.array(due, pa.int64()),
            "topic": [_TOPICS[n * n % len(_TOPICS)] for n in numbers],
            "key": pa.array([f"customer-{n * 7919 % 100_000:05}".encode() for n in numbers]),
            "value": pa.array([f'{{"order": {n}, "kind": "reminder"}}'.encode() for n in numbers]),
        }
    )
