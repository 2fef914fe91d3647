"""A target for trace events that keeps them, and can be made to fail or to hang."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from slotwheel.trace import EventSender, Recorder, decode
from slotwheel.wheel.ids import MessageId


def id_text(parts: dict[str, Any] | None) -> str | None:
    """The id of an event as its message has it."""
    if parts is None:
        return None
    due_ms = round(parts["due"].timestamp() * 1000)
    return str(MessageId(parts["group"], due_ms, parts["offset"], parts["check"]))


def listed(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Events with ids as texts."""
    return [
        one | {name: id_text(one[name]) for name in ("id", "origin")} for one in rows.to_pylist()
    ]


class KeptEvents:
    """Keeps every batch. ``away``: sending fails; ``free`` cleared: it hangs."""

    def __init__(self) -> None:
        self.batches: list[tuple[EventSender, list[dict[str, Any]]]] = []
        self.away = False
        self.free = threading.Event()
        self.free.set()
        self.tries = 0
        self.closed = False

    def send(self, value: bytes) -> None:
        self.tries += 1
        self.free.wait(60)
        if self.away:
            raise ConnectionError("the trace topic is away")
        sender, rows = decode(value)
        self.batches.append((sender, listed(rows)))

    def close(self) -> None:
        self.closed = True

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, batch in self.batches for event in batch]

    def of(self, recorder: Recorder, *kinds: str) -> list[dict[str, Any]]:
        """All events of these kinds, once the recorder is closed; in the order of their numbers."""
        recorder.close()
        found = [one for one in self.events if not kinds or one["kind"] in kinds]
        return sorted(found, key=lambda one: one["number"])
