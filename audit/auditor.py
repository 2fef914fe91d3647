"""Sums what clients and consumers of a process do, and sends the sums every few seconds.

    from slotwheel.audit import AUDIT_TOPIC, Auditor
    from slotwheel.trace import WheelTarget

    auditor = Auditor(WheelTarget("127.0.0.1:7200", AUDIT_TOPIC), client="billing")
    client = Client("127.0.0.1:7200", observer=auditor)
    consumer = Consumer("orders", "billing", bootstrap="localhost:9092", observer=auditor)

Theory: a thread that sends or receives messages puts a note of them into a queue without a lock;
one thread sums many at once, another sends. So nothing waits for the topic, and while it is away
the sums of hours take the room of a few buckets.

Rules
- Memory is bounded: messages that come while ``notes_max`` wait to be summed, and sums beyond
  ``sums_max``, are counted as missing, and the next batch says so.
- A batch says up to where a partition's sums are complete: up to the position that was committed
  when the batch before was made. Messages below a position of just now may still wait to be summed,
  and would be taken for lost. The last batch, after the consumers', has the positions as they are.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from ..account.limits import INTERVAL_MS, bucket_of
from ..account.vocabulary import Tier
from ..client.batch import Columns, Shipment
from ..client.message import clock_ms
from ..consumer.message import Received, SourcePartition
from ..policy.headers import ID_HEADER, text_of
from ..trace.events import EventSender
from ..trace.making import places, stored_rows
from ..trace.sending import BatchSender, TraceTarget
from ..wheel.ids import id_parts
from ..wheel.rows import Header
from ..wheel.schema import Int64s
from .sums import (
    SUMS_MAX,
    IdSum,
    SumBatch,
    SumKey,
    SummedRange,
    Sums,
    add_rows,
    add_sum,
    encode_sums,
)

EVERY_S = 2.0
NOTES_MAX = 1_000_000
KEPT_MAX = 100_000
_SUM_EVERY_S = 0.1
_NOTES, _MANY = 256, 32
"""With so many notes in the queue, or messages in a note, the thread that adds it empties the
queue, which could else grow far beyond ``notes_max``."""


@dataclass(slots=True)
class _Lane:
    group: str
    topic: str
    partition: int
    start: int
    position: int = -1
    before: int = -1
    """The position when the batch before was made."""
    sent: int = -1


_Shipped = tuple[Shipment, "Columns | pa.RecordBatch", "Int64s | None", float]
_Seen = tuple[str, str, Sequence[Header], int, int]
"""Topic, id, headers, when it was delivered, and when it was answered, ms."""
_Note = tuple[int, "_Shipped | None", tuple[str, str], Sequence[_Seen]]
"""The number of its messages, and these: a shipment, or tier and group and what they saw."""
_CONSUMED = Tier.CONSUMED
"""To ask an enumeration for a member takes a tenth of the time of a note."""


class Auditor:
    """Observes any number of clients and consumers of a process. Close it after them: what they
    do later is in no sum.

    ``client``: what people call the program; ``interval_s``: width of a bucket, s, the same in all
    programs; ``every_s``: between two batches. What waits is bounded by ``notes_max`` messages, and
    by ``sums_max`` sums.
    """

    def __init__(
        self,
        target: TraceTarget,
        *,
        client: str = "",
        interval_s: float = INTERVAL_MS / 1000,
        every_s: float = EVERY_S,
        notes_max: int = NOTES_MAX,
        sums_max: int = KEPT_MAX,
    ) -> None:
        self.client = client or f"{socket.gethostname()}-{os.getpid()}"
        self._sender = EventSender(secrets.token_hex(8), self.client)
        self._interval_ms = max(1, round(interval_s * 1000))
        self._notes_max, self._sums_max = notes_max, sums_max
        self._lock = threading.Lock()
        self._notes: deque[_Note] = deque()
        """Notes are appended without the lock: a thread that has messages one by one would hold it
        most of the time. ``_take_notes`` moves them to ``_shipped`` and ``_seen``."""
        self._shipped: list[_Shipped] = []
        self._seen: dict[tuple[str, str], list[_Seen]] = defaultdict(list)
        """By tier and group."""
        self._waiting = 0
        self._lanes: dict[Any, _Lane] = {}
        self._current: dict[tuple[str, SourcePartition], _Lane] = {}
        self._summing = threading.Lock()
        self._sums: Sums = {}
        self._missing = 0
        self._next = 0
        self.missing = 0
        """Messages so far that are in no sum, for want of room."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slotwheel-sums", daemon=True)
        self._thread.start()
        self._sending = BatchSender(target, self._send, every_s=every_s, name="slotwheel-audit")
        # An empty batch goes at once: a client that is killed before its first one is unknown.
        self._sending.wake()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left; what has not left after ``timeout_s`` is dropped. May be called
        again."""
        self._sending.close(timeout_s)
        self._ended.set()
        self._thread.join(1.0)

    # A client's observer

    def shipped(
        self, shipment: Shipment, content: Columns | pa.RecordBatch, kept: Int64s | None
    ) -> None:
        count = content.num_rows if isinstance(content, pa.RecordBatch) else len(content[0])
        self._add((count, (shipment, content, kept, time.monotonic()), ("", ""), ()))

    # A consumer's observer

    def received(self, group: str, messages: Sequence[Received]) -> None:
        lanes = self._lanes
        for message in messages:
            if message.lane not in lanes:
                place = SourcePartition(message.topic, message.partition)
                with self._lock:
                    self._begin(group, place, message.offset, message.lane)

    def held(self, group: str, messages: Sequence[Received]) -> None:
        """Nothing: a message is counted once it is processed."""

    def processed(self, group: str, messages: Sequence[Received], error: str | None) -> None:  # noqa: ARG002
        self._note(_CONSUMED, group, messages)

    def retried(self, group: str, message: Received) -> None:
        """Nothing: the attempt was processed, and the client that sends the retry counts it."""

    def buried(self, group: str, message: Received, reason: str) -> None:  # noqa: ARG002
        """Count a message that the application never got. Any other was counted as processed."""
        if not message.received_s:
            self._note(_CONSUMED, group, [message])

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        seen = (topic, text_of(headers, ID_HEADER), (), 0, 0)
        self._add((1, None, (Tier.LEFT_OUT, group), [seen]))

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        with self._lock:
            for place, position in positions.items():
                lane = self._current.get((group, place))
                if lane is None or lane.start > position:
                    lane = self._begin(group, place, position, object())
                lane.position = position

    def _begin(self, group: str, place: SourcePartition, start: int, key: Any) -> _Lane:
        self._lanes[key] = self._current[group, place] = made = _Lane(
            group=group, topic=place.topic, partition=place.partition, start=start
        )
        return made

    def _note(self, tier: Tier, group: str, messages: Sequence[Received]) -> None:
        now_ms = clock_ms()
        seen = [
            (message.topic, "", message.headers, message.timestamp_ms, now_ms)
            for message in messages
        ]
        self._add((len(seen), None, (tier, group), seen))

    def _add(self, note: _Note) -> None:
        self._notes.append(note)
        many = note[0] >= _MANY or len(self._notes) >= _NOTES
        if many and self._lock.acquire(blocking=False):
            try:
                self._take_notes()
            finally:
                self._lock.release()

    def _take_notes(self) -> None:
        """Empty the queue; messages for which there is no room are counted as missing."""
        for _ in range(len(self._notes)):  # only who has the lock takes a note away
            count, shipped, place, seen = self._notes.popleft()
            if self._waiting + count > self._notes_max:
                self._missing += count
                self.missing += count
                continue
            self._waiting += count
            if shipped is not None:
                self._shipped.append(shipped)
            else:
                self._seen[place] += seen

    # Summing

    def _run(self) -> None:
        while not self._ended.wait(_SUM_EVERY_S):
            self._sum()

    def _sum(self) -> None:
        with self._summing:
            with self._lock:
                self._take_notes()
                shipped, self._shipped = self._shipped, []
                seen, self._seen = self._seen, defaultdict(list)
                self._waiting = 0
            sums: Sums = {}
            self._sum_shipped(sums, shipped)
            for (tier, group), messages in seen.items():
                self._sum_seen(sums, tier, group, messages)
            self._keep(sums.items())

    def _keep(self, sums: Iterable[tuple[SumKey, IdSum]]) -> None:
        for key, id_sum in sums:
            if key in self._sums or len(self._sums) < self._sums_max:
                add_sum(self._sums, key, id_sum)
            else:
                with self._lock:
                    self._missing += id_sum.count
                    self.missing += id_sum.count

    def _sum_shipped(self, sums: Sums, shipped: Sequence[_Shipped]) -> None:
        single: dict[str, tuple[list[int], list[int], list[str], list[int]]]
        single = defaultdict(lambda: ([], [], [], []))
        for shipment, content, kept, done_s in shipped:
            took_ms = int((done_s - shipment.began_s) * 1000)
            topics = content[1] if isinstance(content, tuple) else content.column("topic")
            batch = shipment.stored
            whole = kept is None and shipment.kept is None and not shipment.errors
            if shipment.failure is not None or batch is None:
                self._sum_unsure(sums, shipment, topics, kept)
            elif whole and not shipment.copies and isinstance(topics, list):
                due, offset, names, took = single[shipment.group]
                due += list(shipment.due)
                offset += range(batch.base_offset, batch.base_offset + len(topics))
                names += topics
                took += [took_ms] * len(topics)
            else:
                numbers, stored = stored_rows(shipment, kept, len(topics))
                due_ms, _, offsets = places(shipment, batch, numbers, stored)
                column = pa.array(topics, pa.utf8()) if isinstance(topics, list) else topics
                late = np.full(len(numbers), took_ms, np.int64)[stored]
                origin = Tier.PRODUCED.value, shipment.group, ""
                named = column.filter(pa.array(stored))
                rows = named, due_ms[stored], offsets[stored], late
                add_rows(sums, origin, self._interval_ms, *rows)
        for wheel, (due, offset, names, took) in single.items():
            numbers_of = (np.array(column, np.int64) for column in (due, offset, took))
            origin = Tier.PRODUCED.value, wheel, ""
            add_rows(sums, origin, self._interval_ms, pa.array(names, pa.utf8()), *numbers_of)

    def _sum_unsure(self, sums: Sums, shipment: Shipment, topics: Any, kept: Int64s | None) -> None:
        """Count messages that the node may have stored although its answer did not come."""
        sent = shipment.batch is not None and shipment.batch.tries.in_doubt
        if shipment.failure is not None and not sent:
            return
        names = topics if isinstance(topics, list) else topics.to_pylist()
        due = np.asarray(shipment.due, np.int64)
        due = np.repeat(due, len(names)) if shipment.copies else due if kept is None else due[kept]
        bucket = bucket_of(due, self._interval_ms)
        for name, at in zip(names, bucket.tolist(), strict=True):
            key = SumKey(Tier.PRODUCED, shipment.group, name, "", at)
            add_sum(sums, key, IdSum(unsure=1))

    def _sum_seen(self, sums: Sums, tier: str, group: str, seen: Sequence[_Seen]) -> None:
        texts = [text or text_of(headers, ID_HEADER) for _, text, headers, _, _ in seen]
        parts = id_parts(pa.array(texts, pa.utf8()))
        has_id = np.asarray(parts.is_valid())
        if not has_id.any():
            return
        rows = np.flatnonzero(has_id).tolist()
        ids = parts.drop_null()
        wheels = ids.field("group").to_pylist()
        due, offset = (np.asarray(ids.field(name)) for name in ("due", "offset"))
        topics = pa.array([seen[row][0] for row in rows], pa.utf8())
        since, done = (np.array([seen[row][at] for row in rows], np.int64) for at in (3, 4))
        late = done - np.maximum(since, due) if tier == _CONSUMED else None
        for wheel in set(wheels):
            of_wheel = np.array([name == wheel for name in wheels])
            origin, picked = (tier, wheel, group), pa.array(of_wheel)
            late_of = None if late is None else late[of_wheel]
            rows_of = topics.filter(picked), due[of_wheel], offset[of_wheel], late_of
            add_rows(sums, origin, self._interval_ms, *rows_of)

    # Sending

    def _send(self, last: bool) -> None:
        ranges = self._take_ranges(last=last)
        self._sum()
        with self._summing:
            sums, self._sums = self._sums, {}
        with self._lock:
            missing, self._missing = self._missing, 0
        left = iter(sums.items())
        done = False
        while not done:
            part, sums_of = ranges[:SUMS_MAX], dict(islice(left, SUMS_MAX))
            ranges = ranges[SUMS_MAX:]
            done = not ranges and len(sums_of) < SUMS_MAX
            batch = SumBatch(
                sender=self._sender,
                number=self._next,
                interval_ms=self._interval_ms,
                sums=sums_of,
                ranges=part,
                missing=missing,
                last=last and done,
            )
            self._next += 1
            missing = 0
            if not self._sending.stored(encode_sums(batch)):
                return

    def _take_ranges(self, *, last: bool) -> list[SummedRange]:
        """Ranges that were committed when the batch before was made; with ``last``, by now."""
        ranges = []
        with self._lock:
            for key, lane in list(self._lanes.items()):
                position = lane.position if last else lane.before
                lane.before = lane.position
                if position > lane.sent:
                    lane.sent = position
                    ranges.append(
                        SummedRange(
                            group=lane.group,
                            topic=lane.topic,
                            partition=lane.partition,
                            start=lane.start,
                            position=max(lane.start, position),
                        )
                    )
                place = lane.group, SourcePartition(lane.topic, lane.partition)
                if lane.sent == lane.position and self._current.get(place) is not lane:
                    del self._lanes[key]
        return ranges
