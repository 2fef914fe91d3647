"""Follows topics of Kafka, as ``tails`` says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
from kafka import TopicPartition
from kafka.errors import KafkaError

from ...reading.kafka.kafkatopic import to_batch
from ...reading.kafka.looking import open_looking, source_of, unreachable
from ...reading.problems import INTEGRITY, Problem
from .delivered import TopicRows, from_records
from .tails import TailRows

_POLL_MS = 200
_POLLS_MAX = 20
_LOOK_EVERY_S = 2.0


class KafkaTails:
    def __init__(self, bootstrap: str, wheel: str, settings: Mapping[str, str]) -> None:
        """Errors: ``NodeUnreachable``."""
        self._bootstrap, self._wheel, self._settings = bootstrap, wheel, settings
        self.at_end = True
        self._since: dict[str, int] = {}
        self._whole: set[str] = set()
        self._places: dict[TopicPartition, int] = {}
        self._sources: dict[str, str] = {}
        """Which topic it is that goes by the name."""
        self._retired: set[str] = set()
        """Topics that were followed and are gone."""
        self._cut: list[str] = []
        """Topics of which nobody knows what was deleted before it was read."""
        self._looked_s = 0.0
        self._consumer = open_looking(
            bootstrap,
            "slotwheel-audit",
            settings,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            max_poll_records=5_000,
        )

    def follow(self, topic: str, from_ms: int, *, whole: bool = False) -> None:
        if topic not in self._since:
            self._since[topic] = from_ms
            if whole:
                self._whole.add(topic)
            self._looked_s = 0.0

    def read(self) -> Iterator[TailRows]:
        try:
            yield from self._read()
        except (KafkaError, OSError) as error:
            self.at_end = False
            for part, place in self._places.items():  # what was fetched and not handed on
                with suppress(Exception):
                    self._consumer.seek(part, place)
            raise unreachable(self._bootstrap, self._settings, error) from None

    def _read(self) -> Iterator[TailRows]:
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._look()
            self._looked_s = time.monotonic()
        while self._cut:
            text = "records that were still wanted may have been deleted before they were read"
            yield Problem(INTEGRITY, "gap", text, file=self._cut.pop())
        self.at_end = True
        if not self._places:
            return
        ends = self._consumer.end_offsets(list(self._places))
        for _ in range(_POLLS_MAX):
            found = self._consumer.poll(timeout_ms=_POLL_MS)
            for part, records in found.items():
                gone = records[0].offset - self._places[part]
                # Markers of transactions have positions, too: only what the broker deleted is gone.
                if gone > 0 and self._deleted(part, records[0].offset):
                    text = f"{gone} records were deleted before they were read"
                    yield Problem(INTEGRITY, "gap", text, file=part.topic)
                batch = to_batch(part.topic, records)
                if part.topic in self._whole:
                    none = np.zeros(len(records), np.int64)
                    yield TopicRows(
                        topic=part.topic,
                        partition=part.partition,
                        position=none,
                        due=none,
                        offset=none,
                        created=none,
                        delivered=none,
                        headers=batch.column("headers"),
                        value=batch.column("value"),
                    )
                else:
                    yield from from_records(batch, self._wheel)
                self._places[part] = records[-1].offset + 1
            # Behind a transaction stands its marker, which is no record.
            self.at_end = all(self._consumer.position(part) >= end for part, end in ends.items())
            if not found or self.at_end:
                return

    def _deleted(self, part: TopicPartition, position: int) -> bool:
        return bool(self._consumer.beginning_offsets([part])[part] >= position)

    def _look(self) -> None:
        """Take up topics and partitions that are there by now."""
        new: dict[TopicPartition, int] = {}
        there = self._consumer.topics()
        anew = False
        for topic, since in self._since.items():
            numbers = self._consumer.partitions_for_topic(topic) if topic in there else None
            source = source_of(self._consumer, topic) if numbers else ""
            if source in self._retired:
                continue
            if source and (old := self._sources.setdefault(topic, source)) != source:
                # Made anew: nobody knows what was left of the old one.
                self._retired.add(old)
                self._sources[topic], anew = source, True
                self._cut.append(topic)
                self._places = {one: at for one, at in self._places.items() if one.topic != topic}
            for number in sorted(numbers or ()):
                if (part := TopicPartition(topic, number)) not in self._places:
                    new[part] = since
        if not new:
            return
        # The ends first: what comes meanwhile is found by its time, or is behind them.
        ends = self._consumer.end_offsets(list(new))
        at = self._consumer.offsets_for_times(new)
        begins = self._consumer.beginning_offsets(list(new))
        for part in new:
            self._places[part] = ends[part] if at.get(part) is None else at[part].offset
            if part.topic in self._whole and 0 < begins[part] >= self._places[part]:
                self._cut.append(part.topic)
        if anew:
            self._consumer.assign([])  # else it keeps what it has fetched, and where it was
        self._consumer.assign(list(self._places))
        for part, place in self._places.items():
            self._consumer.seek(part, place)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)
