"""Traces what a client sends and what a consumer does with what it gets.

    from slotwheel.trace import Tracer, WheelTarget

    tracer = Tracer(WheelTarget("127.0.0.1:7200"), client="billing")
    client = Client("127.0.0.1:7200", observer=tracer)
    consumer = Consumer("orders", "billing", data="/var/lib/slotwheel", observer=tracer)

Theory: a client and a consumer tell an observer what happened; here that becomes events, made in
the recorder's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..client.batch import Columns, Shipment
from ..client.message import clock_ms
from ..consumer.message import Received, SourcePartition
from ..wheel.rows import Header
from ..wheel.schema import Int64s
from .events import EventKind
from .making import ShipmentEvents, TracedRecord
from .recorder import EVENTS_MAX, Recorder, since_us
from .sending import TraceTarget

HELD_S = 0.5
"""What an application has for longer has an event that says so."""


class Tracer(Recorder):
    """Observes any number of clients and consumers of a process. Close it behind them."""

    def __init__(
        self,
        target: TraceTarget,
        *,
        client: str = "",
        tags: Mapping[str, str] | None = None,
        events_max: int = EVENTS_MAX,
    ) -> None:
        """As ``Recorder``."""
        self._held: dict[Received, str] = {}
        """What applications have not answered for, each with its group, until that is told."""
        super().__init__(target, client=client, tags=tags, events_max=events_max)

    # A client's observer

    def shipped(
        self, shipment: Shipment, content: Columns | pa.RecordBatch, kept: Int64s | None
    ) -> None:
        took_us = since_us(shipment.began_s)
        at_ms = clock_ms() - took_us // 1000
        self.note(ShipmentEvents(shipment, content, kept, at_ms, took_us))

    # A consumer's observer

    def received(self, group: str, messages: Sequence[Received]) -> None:
        for message in messages:
            self._held[message] = group

    def processed(self, group: str, messages: Sequence[Received], error: str | None = None) -> None:
        took_us = [since_us(one.received_s) for one in messages]
        for message in messages:
            self._held.pop(message, None)
        self._note(EventKind.PROCESSED, group, messages, took_us, error)

    def retried(self, group: str, message: Received) -> None:
        self._note(EventKind.RETRIED, group, [message])

    def buried(self, group: str, message: Received, reason: str) -> None:
        self._note(EventKind.DEAD, group, [message], None, reason)

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        records = [
            TracedRecord(*partition, position, None, ())
            for partition, position in positions.items()
        ]
        self.note_records(EventKind.COMMITTED, group, records)

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        """What nobody gets has no event: a rule may leave out nearly all."""

    def _note(
        self,
        kind: EventKind,
        group: str,
        messages: Sequence[Received],
        took_us: Sequence[int] | None = None,
        error: str | None = None,
    ) -> None:
        records = [
            TracedRecord(one.topic, one.partition, one.offset, one.key, one.headers)
            for one in messages
        ]
        self.note_records(kind, group, records, took_us, error)

    def look(self, *, last: bool) -> None:
        """Most messages are answered for soon, and ``processed`` says when they were received."""
        for message, group in list(self._held.items()):
            held_us = since_us(message.received_s)
            if (last or held_us > HELD_S * 1e6) and self._held.pop(message, None) is not None:
                self._note(EventKind.RECEIVED, group, [message], [held_us])
