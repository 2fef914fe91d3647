"""A trace store's directory and made-up events, for tests of those who read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.trace.chains.departures import LEFT
from slotwheel.trace.events import STORED
from slotwheel.trace.store import making
from slotwheel.trace.store.making import SegmentAbout
from slotwheel.trace.store.names import SegmentName
from support.traced import CHECK

GROUP = "lab"
START_MS = 1_790_000_000_000


def write_segment(root: Path, first: int, last: int, events: pa.Table) -> Path:
    """Events (schema ``STORED``) as the segment of the flushes ``first`` to ``last``."""
    root.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, list[tuple[int, int]]] = {}
    for row in events.select(["sender", "number"]).to_pylist():
        numbers.setdefault(row["sender"], []).append((row["number"], row["number"]))
    numbers = {sender: sorted(mine) for sender, mine in numbers.items()}
    name = SegmentName(first, last)
    making.write_segment(root, name, SegmentAbout(hour=0, numbers=numbers), events)
    return root / name.events_file


def event(number: int, kind: str, at_ms: int, **more: Any) -> dict[str, Any]:
    """One event as a row of ``STORED``."""
    sender = {"sender": "s", "client": "till", "address": "here", "sender_tags": "{}"}
    return {"number": number, "at": at_ms, "kind": kind, **sender, **more}


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=STORED)


def id_parts(offset: int, due_ms: int, group: str = GROUP, check: int = CHECK) -> dict[str, Any]:
    return {"group": group, "due": due_ms, "offset": offset, "check": check}


def random_run(count: int, seed: int) -> tuple[pa.Table, pa.RecordBatch]:
    """Events (``STORED``, some 4 a message, in the order of their times) and departures (``LEFT``)
    of a run with everything that there may be, of no sense in particular."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []

    def add(kind: str, at_ms: int, **more: Any) -> None:
        sender = f"sender {random.integers(0, 5)}"
        rows.append(event(len(rows), kind, at_ms, **more) | {"sender": sender})

    for offset in range(count):
        due = START_MS + int(random.integers(0, 60_000))
        topic = str(random.choice(["orders", "bills", "länder"]))
        group = GROUP if random.random() < 0.95 else "other"
        parts = id_parts(offset, due, group) if random.random() < 0.95 else None
        origin = None
        if parts is not None and offset > 5 and random.random() < 0.2:
            origin = id_parts(offset - int(random.integers(1, 5)), due - 1_000)
        about = {"id": parts, "origin": origin, "topic": topic if random.random() < 0.97 else None}
        failed = "no node" if random.random() < 0.1 else None
        took = int(random.integers(0, 9_000)) if random.random() < 0.9 else None
        add("produced", due - int(random.integers(0, 9_000)), took_us=took, error=failed, **about)
        at = due + int(random.integers(0, 3_000))
        state = str(random.choice(["delivered"] * 8 + ["expired", "dead", "cancelled"]))
        if group == GROUP and random.random() < 0.9:
            created = due - int(random.integers(-2_000, 9_000)) if random.random() < 0.9 else None
            one = {"due": due, "offset": offset, "created": created, "at": at, "state": state}
            left.append(one | {"topic": topic if random.random() < 0.95 else None})
            if random.random() < 0.05:
                left.append(left[-1] | {"at": at + 500})
        place = {"partition": int(random.integers(0, 3)), "offset": offset}
        for consumers in ("billing", None):
            if random.random() < 0.3:
                got = at + int(random.integers(0, 120_000))
                add("received", got, group=consumers, attempt=1, **about, **place)
            for _ in range(int(random.choice([0, 1, 1, 1, 1, 2, 3]))):
                got = at + int(random.integers(0, 120_000))
                took = int(random.integers(0, 90_000)) if random.random() < 0.9 else None
                add("processed", got, group=consumers, took_us=took, attempt=1, **about, **place)
        if random.random() < 0.1:
            attempt = int(random.integers(1, 5))
            add("retried", at + 9, group="billing", attempt=attempt, **about, **place)
        if random.random() < 0.05:
            why = str(random.choice(["expired", "poison"]))
            add("dead", at + 9, group="billing", error=why, **about, **place)
    for at_ms in range(START_MS, START_MS + 2):
        add("processed", at_ms, topic="orders", group="billing", took_us=1)
    add("dropped", START_MS, count=12)
    add("committed", START_MS + 1, topic="orders", partition=0, offset=9, group="billing")
    return table_of(rows).sort_by("at"), pa.RecordBatch.from_pylist(left, schema=LEFT)
