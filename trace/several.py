"""Several observers where there is room for one, such as a tracer and an auditor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..client.batch import Columns, Shipment
from ..consumer.message import Received, SourcePartition
from ..consumer.observing import ConsumerObserver
from ..wheel.rows import Header
from ..wheel.schema import Int64s


class Observers:
    """Passes each call on to all observers, in their order. It closes none of them."""

    def __init__(self, *observers: ConsumerObserver) -> None:
        self._each = observers

    def shipped(
        self, shipment: Shipment, content: Columns | pa.RecordBatch, kept: Int64s | None
    ) -> None:
        for observer in self._each:
            observer.shipped(shipment, content, kept)

    def received(self, group: str, messages: Sequence[Received]) -> None:
        for observer in self._each:
            observer.received(group, messages)

    def held(self, group: str, messages: Sequence[Received]) -> None:
        for observer in self._each:
            observer.held(group, messages)

    def processed(self, group: str, messages: Sequence[Received], error: str | None) -> None:
        for observer in self._each:
            observer.processed(group, messages, error)

    def retried(self, group: str, message: Received) -> None:
        for observer in self._each:
            observer.retried(group, message)

    def buried(self, group: str, message: Received, reason: str) -> None:
        for observer in self._each:
            observer.buried(group, message, reason)

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        for observer in self._each:
            observer.left_out(group, topic, headers)

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        for observer in self._each:
            observer.committed(group, positions)
