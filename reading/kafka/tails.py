"""The tails of topics of a real Kafka, as ``reading/tailing.py`` has them.

Rules
- Partitions are assigned, not subscribed: no group, nothing committed, no other consumer affected.
- A broker whose metadata is not up to date may still name the topic that was there before. That is
  no third one, which would be read and counted once more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from kafka import TopicPartition
from kafka.errors import KafkaError

from ..problems import INTEGRITY, Problem
from ..tailing import TailRows, TailStart
from .kafkatopic import to_batch
from .looking import CALL_MS, open_looking, source_of, unreachable

_POLL_MS = 200
_POLLS_MAX = 20
_LOOK_EVERY_S = 2.0
_FETCH_BYTES = 16 << 20


class KafkaTails:
    """``settings``: further ones of the Kafka client; ``client_id``: as brokers know it;
    ``records_max``: of one batch. Errors on construction: ``NodeUnreachable``,
    ``InvalidConfiguration`` for a setting."""

    def __init__(
        self, bootstrap: str, settings: Mapping[str, str], client_id: str, records_max: int
    ) -> None:
        self._bootstrap, self._settings = bootstrap, settings
        self.at_end = True
        self._starts: dict[str, TailStart] = {}
        self._next: dict[TopicPartition, int] = {}
        """Position of the next record."""
        self._sources: dict[str, str] = {}
        self._retired: set[str] = set()
        """Sources that were followed and are gone."""
        self._gone: set[str] = set()
        """Topics that were read and do not exist now."""
        self._cut: list[str] = []
        """Topics of which nobody knows what was deleted before it was read."""
        self._looked_s = float("-inf")
        self._consumer = open_looking(
            bootstrap,
            client_id,
            settings,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            fetch_max_bytes=_FETCH_BYTES,
            max_poll_records=records_max,
            metrics_enabled=False,
        )

    def follow(self, topic: str, start: TailStart) -> None:
        if topic not in self._starts:
            self._starts[topic] = start
            if start.source:
                self._sources[topic] = start.source
            self._looked_s = float("-inf")

    def read(self, wait_s: float = 0.0) -> Iterator[TailRows | Problem]:
        """Kafka has to be asked, so it waits for 0.2 s at least, unless no topic is there."""
        with self._asking():
            yield from self._read(int(1000 * wait_s))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """On an error, seek back to what was not yielded, and raise what ``unreachable`` makes."""
        try:
            yield
        except (KafkaError, OSError) as error:
            self.at_end = False
            for part, position in self._next.items():
                with suppress(Exception):
                    self._consumer.seek(part, position)
            raise unreachable(self._bootstrap, self._settings, error) from None

    def _read(self, wait_ms: int) -> Iterator[TailRows | Problem]:
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._look()
            self._looked_s = time.monotonic()
        while self._cut:
            text = "records that were still wanted may have been deleted before they were read"
            yield Problem(INTEGRITY, "gap", text, file=self._cut.pop())
        self.at_end = not self._gone
        parts = self._assigned()
        if not parts:
            time.sleep(wait_ms / 1000)
            return
        ends = self._consumer.end_offsets(parts, timeout_ms=CALL_MS)
        for _ in range(_POLLS_MAX):
            polled = self._consumer.poll(timeout_ms=max(wait_ms, _POLL_MS))
            for part, records in polled.items():
                missed = records[0].offset - self._next[part]
                # Markers of transactions have positions, too: only what the broker deleted is gone.
                if missed > 0 and self._deleted(part, records[0].offset):
                    text = f"{missed} records were deleted before they were read"
                    yield Problem(INTEGRITY, "gap", text, file=part.topic)
                source = self._sources.get(part.topic, "")
                yield TailRows(part.topic, part.partition, to_batch(part.topic, records), source)
                self._next[part] = records[-1].offset + 1
            # Behind a transaction stands its marker, which is no record.
            reached = all(self._consumer.position(part) >= end for part, end in ends.items())
            self.at_end = reached and not self._gone
            if not polled or reached:
                return

    def _deleted(self, part: TopicPartition, position: int) -> bool:
        return bool(self._consumer.beginning_offsets([part])[part] >= position)

    def _assigned(self) -> list[TopicPartition]:
        return [part for part in self._next if part.topic not in self._gone]

    def _look(self) -> None:
        """Take up topics and partitions that exist by now, and leave those that do not."""
        new: list[TopicPartition] = []
        # All topics: a single one that does not exist would be requested again and again.
        existing = self._consumer.topics()
        gone = {part.topic for part in self._next} - existing
        anew = gone != self._gone
        self._gone = gone
        for topic, start in self._starts.items():
            numbers = self._consumer.partitions_for_topic(topic) if topic in existing else None
            source = source_of(self._consumer, topic) if numbers else ""
            if source in self._retired:
                continue
            if source and (old := self._sources.setdefault(topic, source)) != source:
                # Made anew: nobody knows what was left of the old one.
                self._retired.add(old)
                self._sources[topic], anew = source, True
                self._cut.append(topic)
                self._starts[topic] = TailStart(start.from_ms, earlier=start.earlier)
                self._next = {part: at for part, at in self._next.items() if part.topic != topic}
            for number in sorted(numbers or ()):
                if (part := TopicPartition(topic, number)) not in self._next:
                    new.append(part)
        if new:
            self._next |= self._begins(new)
        if anew:
            self._consumer.assign([])  # else it keeps what it has fetched, and where it was
        if new or anew:
            self._consumer.assign(self._assigned())
            for part in self._assigned():
                self._consumer.seek(part, self._next[part])

    def _begins(self, parts: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the reading of new partitions begins."""
        starts = {part: self._starts[part.topic] for part in parts}
        by_time = {part: one.from_ms for part, one in starts.items() if one.from_ms is not None}
        # The ends first: what comes meanwhile is found by its time, or is behind them.
        ends = self._consumer.end_offsets(parts, timeout_ms=CALL_MS)
        at = self._consumer.offsets_for_times(by_time) if by_time else {}
        begins = self._consumer.beginning_offsets(parts)
        positions: dict[TopicPartition, int] = {}
        for part, start in starts.items():
            if start.from_ms is None:
                position = start.positions.get(part.partition, begins[part])
                positions[part] = position if position <= ends[part] else begins[part]
                continue
            positions[part] = ends[part] if at.get(part) is None else at[part].offset
            if start.earlier and 0 < begins[part] >= positions[part]:
                self._cut.append(part.topic)
        return positions

    def lag(self) -> int:
        parts = self._assigned()
        if not parts:
            return 0
        with self._asking():
            ends = self._consumer.end_offsets(parts, timeout_ms=CALL_MS)
            at = (self._consumer.position(part, timeout_ms=CALL_MS) for part in ends)
            return sum(max(0, end - now) for end, now in zip(ends.values(), at, strict=True))

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)
