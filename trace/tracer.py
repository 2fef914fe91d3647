"""Traces what clients send, and what consumers do with messages.

    from slotwheel.trace import Tracer, WheelTarget

    tracer = Tracer(WheelTarget("127.0.0.1:7200"), client="billing")
    client = Client("127.0.0.1:7200", observer=tracer)
    consumer = Consumer("orders", "billing", data="/var/lib/slotwheel", observer=tracer)

Theory: clients and consumers call an observer; the recorder's thread makes events of the calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..client.batch import Columns, Shipment
from ..client.message import clock_ms
from ..consumer.message import Received, SourcePartition
from ..wheel.rows import Header
from ..wheel.schema import Int64s
from .events import EventKind
from .making import ShipmentEvents, TracedRecord
from .recorder import Recorder

_PROCESSED = EventKind.PROCESSED
"""To ask an enumeration for a member takes a tenth of the time of an event."""


class Tracer(Recorder):
    """Observes any number of clients and consumers of a process. Close it after them."""

    # A client's observer

    def shipped(
        self, shipment: Shipment, content: Columns | pa.RecordBatch, kept: Int64s | None
    ) -> None:
        took_us = int((time.monotonic() - shipment.began_s) * 1e6)
        at_ms = clock_ms() - took_us // 1000
        self.note(ShipmentEvents(shipment, content, kept, at_ms, took_us))

    # A consumer's observer

    def received(self, group: str, messages: Sequence[Received]) -> None:
        """Most messages are answered for soon, and ``processed`` says when they were received."""

    def held(self, group: str, messages: Sequence[Received]) -> None:
        self.note_records(EventKind.RECEIVED, group, messages)

    def processed(self, group: str, messages: Sequence[Received], error: str | None = None) -> None:
        self.note_records(_PROCESSED, group, messages, error)

    def retried(self, group: str, message: Received) -> None:
        self.note_records(EventKind.RETRIED, group, [message])

    def buried(self, group: str, message: Received, reason: str) -> None:
        self.note_records(EventKind.DEAD, group, [message], reason)

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        records = [
            TracedRecord(place.topic, place.partition, position, None, (), received_s=0.0)
            for place, position in positions.items()
        ]
        self.note_records(EventKind.COMMITTED, group, records)

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        """No event: a rule may leave out nearly all messages."""
