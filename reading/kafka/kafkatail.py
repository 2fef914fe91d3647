"""The tail of a topic of a real Kafka.

Rules
- Partitions are assigned, not subscribed: no group, nothing committed, no other consumer affected.
- Records that Kafka has deleted before they were read are passed over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from kafka import TopicPartition
from kafka.errors import KafkaError

from ..tailing import TailRecord
from .looking import CALL_MS, open_looking, source_of, unreachable

_PARTITIONS_EVERY_S = 10.0
_POLL_RECORDS = 100
_FETCH_BYTES = 16 << 20


class KafkaTail:
    """``positions`` are those of ``source``; where that is empty, of whatever topic has the name.
    ``settings``: further ones of the Kafka client. Errors on construction:
    ``NodeUnreachable``, ``InvalidConfiguration`` for a setting."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        positions: Mapping[int, int],
        settings: Mapping[str, str],
        source: str = "",
    ) -> None:
        self.source = source
        self._bootstrap, self._settings = bootstrap, settings
        self._topic = topic
        self._positions = dict(positions)
        self._looked_s = float("-inf")
        self._consumer = open_looking(
            bootstrap,
            "slotwheel-tail",
            settings,
            auto_offset_reset="earliest",
            max_poll_records=_POLL_RECORDS,
            fetch_max_bytes=_FETCH_BYTES,
            metrics_enabled=False,
        )

    def read(self, timeout_s: float) -> list[TailRecord]:
        try:
            self._look_for_partitions()
            if not self._consumer.assignment():
                time.sleep(timeout_s)
                return []
            polled = self._consumer.poll(int(timeout_s * 1000))
        except (KafkaError, OSError) as error:
            raise unreachable(self._bootstrap, self._settings, error) from None
        found = [
            TailRecord(part.partition, record.offset + 1, record.value, record.timestamp)
            for part, records in polled.items()
            for record in records
        ]
        for record in found:
            self._positions[record.partition] = record.next_position
        return found

    def lag(self) -> int:
        try:
            parts = self._consumer.assignment()
            ends = self._consumer.end_offsets(parts, timeout_ms=CALL_MS) if parts else {}
            return sum(
                max(0, end - self._consumer.position(part, timeout_ms=CALL_MS))
                for part, end in ends.items()
            )
        except (KafkaError, OSError) as error:
            raise unreachable(self._bootstrap, self._settings, error) from None

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def _look_for_partitions(self) -> None:
        """Read partitions that are new, too: of a topic that is created or gets more of them."""
        now_s = time.monotonic()
        every_s = _PARTITIONS_EVERY_S if self._consumer.assignment() else 1.0
        if now_s - self._looked_s < every_s:
            return
        self._looked_s = now_s
        # All topics: a single one that does not exist would be requested again and again.
        there = self._topic in self._consumer.topics()
        numbers = self._consumer.partitions_for_topic(self._topic) if there else None
        parts = {TopicPartition(self._topic, number) for number in numbers or ()}
        known = self._consumer.assignment()
        source = source_of(self._consumer, self._topic) if parts else ""
        if source and self.source not in ("", source):
            self._positions.clear()
            self._consumer.assign([])  # else it keeps what it has fetched, and where it was
            known = set()
        self.source = source or self.source
        if not parts or parts == known:
            return
        self._consumer.assign(sorted(parts | known))
        ends = self._consumer.end_offsets(sorted(parts), timeout_ms=CALL_MS)
        for part in parts | known:
            position = self._positions.get(part.partition)
            if position is None or position > ends.get(part, position):
                self._consumer.seek_to_beginning(part)
            else:
                self._consumer.seek(part, position)
