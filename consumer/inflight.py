"""Messages between a source and their answers: what waits for the application, what it has, and how
far each partition may be committed.

Theory: everything that threads share is here, behind one lock that is never held during a call to a
broker. Rebalances come in as ``Assignment``; what belongs to partitions that are gone is dropped
here, and answers for it are ignored.

Memory is bounded: ``held_back`` names the partitions that may not be read now, because too much is
under way in all, or because one partition's finished messages wait behind an unfinished one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .message import OutputRecord, Received, SourcePartition
from .tracker import PartitionTracker

BEHIND_MAX = 100_000
"""So far, in offsets, a partition is read beyond its first unfinished message."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """What one commit covers. ``outputs``: each with the partition and the offset of its
    message. ``member``: whoever it was that the partitions were assigned to."""

    positions: dict[SourcePartition, int]
    outputs: list[tuple[SourcePartition, int, OutputRecord]] = field(default_factory=list)
    member: Any = None


class InFlight:
    """Thread-safe."""

    def __init__(self, messages_max: int, bytes_max: int, *, transactional: bool = False) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._transactional = transactional
        self._changed = threading.Condition(threading.Lock())
        self._trackers: dict[SourcePartition, PartitionTracker] = {}
        self._ready: deque[Received] = deque()
        self._member: Any = None
        self._ended = False
        self._room_wanted = 0

    # The partitions

    def assigned(self, partitions: Sequence[SourcePartition], member: Any) -> None:
        with self._changed:
            self._close(partitions)
            for partition in partitions:
                self._trackers[partition] = PartitionTracker(partition)
            self._member = member

    def finished(self, partitions: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        if self._transactional:
            return {}  # without the outputs no position is true
        with self._changed:
            return self._positions(partitions)

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        with self._changed:
            self._close(partitions)

    def restart(self) -> dict[SourcePartition, int]:
        """Forget all that is under way. Returns where each partition's first record stood that was
        not committed in this assignment."""
        with self._changed:
            starts: dict[SourcePartition, int] = {}
            before = dict(self._trackers)
            self._close(before)
            for partition, tracker in before.items():
                self._trackers[partition] = PartitionTracker(partition, tracker.start)
                if tracker.start is not None:
                    starts[partition] = tracker.start
            return starts

    def _close(self, partitions: Iterable[SourcePartition]) -> None:
        for partition in partitions:
            tracker = self._trackers.pop(partition, None)
            if tracker is not None:
                tracker.close()
        self._ready = deque(one for one in self._ready if not one.lane.closed)

    # In and out

    def receive(self, partition: SourcePartition, messages: Sequence[Received], seen: int) -> None:
        """Messages for the application; ``seen``: the last offset read, theirs or beyond."""
        with self._changed:
            tracker = self._trackers.get(partition)
            if tracker is None:  # it is another member's by now
                return
            if messages and messages[0].offset < (tracker.end or 0):
                # Nobody has sought: the topic was made anew. What is known of the old one, such as
                # that its offset 3 is committed, says nothing of this one.
                self._close([partition])
                tracker = self._trackers[partition] = PartitionTracker(partition)
            tracker.add(messages, seen)
            if messages:
                self._ready.extend(messages)
                self._changed.notify_all()

    def take(self, count: int, timeout_s: float | None) -> list[Received]:
        """The next messages, at least one; none once it has ended, or after ``timeout_s``."""
        found: list[Received] = []
        with self._changed:
            while not found:
                while self._ready and len(found) < count:
                    found.append(self._ready.popleft())
                if found or self._ended:
                    break
                if not self._changed.wait(timeout_s) and timeout_s is not None:
                    break
        return found

    def put_back(self, messages: Sequence[Received]) -> None:
        """What was taken and not looked at; it comes first again."""
        with self._changed:
            self._ready.extendleft(one for one in reversed(messages) if not one.lane.closed)
            self._changed.notify_all()

    def given(self, since_s: float, until_s: float) -> list[Received]:
        """What the application got in that time, by the monotonic clock, and has not answered."""
        with self._changed:
            trackers = self._trackers.values()
            return [one for tracker in trackers for one in tracker.given(since_s, until_s)]

    def end(self) -> None:
        """Hand nothing out any more."""
        with self._changed:
            self._ended = True
            self._ready.clear()
            self._changed.notify_all()

    # Answers

    def answer(self, message: Received) -> bool:
        """Whether this is the message's first answer, and still wanted."""
        with self._changed:
            return message.lane is not None and message.lane.answer(message.offset)

    def finish(self, messages: Iterable[Received]) -> None:
        with self._changed:
            for message in messages:
                message.lane.finish(message.offset)
            self._tell_room()

    def done(self, messages: Iterable[Received]) -> list[Received]:
        """Answer and finish in one. Returns those of which this is the first answer, and wanted."""
        with self._changed:
            first = [one for one in messages if one.lane is not None and one.lane.done(one.offset)]
            if self._room_wanted:
                self._tell_room()
        return first

    def put_out(self, message: Received, output: OutputRecord) -> bool:
        with self._changed:
            return message.lane is not None and message.lane.put_out(message.offset, output)

    def give_back(self, message: Received, output: OutputRecord) -> None:
        """An answered message is finished by ``output``, in place of what it put out."""
        with self._changed:
            if not message.lane.closed:
                message.lane.replace_outputs(message.offset, output)
                message.lane.finish(message.offset)

    # Commits

    def batch(self) -> CommitBatch:
        """What can be committed now, and was not yet; outputs are taken with it."""
        with self._changed:
            positions = self._positions(list(self._trackers))
            outputs = [
                (partition, offset, output)
                for partition in positions
                for offset, output in self._trackers[partition].take_outputs()
            ]
            return CommitBatch(positions, outputs, self._member)

    def committed(self, positions: Mapping[SourcePartition, int]) -> None:
        with self._changed:
            for partition, position in positions.items():
                tracker = self._trackers.get(partition)
                if tracker is not None:
                    tracker.commit(position)

    def _positions(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        found: dict[SourcePartition, int] = {}
        for partition in partitions:
            tracker = self._trackers.get(partition)
            if tracker is None or tracker.position is None:
                continue
            if tracker.position not in (tracker.committed, tracker.start):
                found[partition] = tracker.position
        return found

    # Bounds

    def room(self) -> int:
        """So many messages may come still."""
        with self._changed:
            return self._room()

    def enough(self, count: int) -> bool:
        """Whether so many messages may come; or fewer, if none waits for the application."""
        with self._changed:
            return self._enough(count)

    def wait_for_room(self, count: int, timeout_s: float) -> None:
        """Wait until there is ``enough``."""
        with self._changed:
            self._room_wanted = count
            self._changed.wait_for(lambda: self._enough(count), timeout_s)
            self._room_wanted = 0

    def _tell_room(self) -> None:
        if self._room_wanted and self._enough(self._room_wanted):
            self._changed.notify_all()

    def _enough(self, count: int) -> bool:
        least = count if self._ready else 1
        # All that are ready are under way: mostly this tells, without counting the others.
        return self._messages_max - len(self._ready) >= least and self._room() >= least

    def _room(self) -> int:
        count = sum(len(tracker) for tracker in self._trackers.values())
        nbytes = sum(tracker.nbytes for tracker in self._trackers.values())
        return 0 if nbytes >= self._bytes_max else max(0, self._messages_max - count)

    def held_back(self) -> set[SourcePartition]:
        """Partitions that reach too far beyond their first unfinished message."""
        with self._changed:
            return {
                partition
                for partition, tracker in self._trackers.items()
                if tracker.behind > BEHIND_MAX
            }

    def partitions(self) -> list[SourcePartition]:
        with self._changed:
            return list(self._trackers)
