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
    """Tells each of them, in their order. They stay their owners', who close them."""

    def __init__(self, *observers: ConsumerObserver) -> None:
        self._each = observers

    def shipped(
        self, shipment: Shipment, content: Columns | pa.RecordBatch, kept: Int64s | None
    ) -> None:
        for one in self._each:
            one.shipped(shipment, content, kept)

    def received(self, group: str, messages: Sequence[Received]) -> None:
        for one in self._each:
            one.received(group, messages)

    def held(self, group: str, messages: Sequence[Received]) -> None:
        for one in self._each:
            one.held(group, messages)

    def processed(self, group: str, messages: Sequence[Received], error: str | None) -> None:
        for one in self._each:
            one.processed(group, messages, error)

    def retried(self, group: str, message: Received) -> None:
        for one in self._each:
            one.retried(group, message)

    def buried(self, group: str, message: Received, reason: str) -> None:
        for one in self._each:
            one.buried(group, message, reason)

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        for one in self._each:
            one.left_out(group, topic, headers)

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        for one in self._each:
            one.committed(group, positions)
