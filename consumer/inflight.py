"""Messages between a source and their answers: those that wait for the application, those that it
has, and the position to which each partition may be committed.

Theory: everything that threads share is here, behind one lock that is never held during a call to a
broker. Rebalances come in as ``Assignment``: messages of partitions that are gone are dropped, and
answers for them are ignored, as another member gets them again.

Memory is bounded by ``room``. ``held_back`` names partitions with a handler that hangs: otherwise
the messages behind its message would be finished without end, and none could be committed.
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
"""The most offsets that a partition is read beyond its first unfinished message."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The content of one commit: positions, and outputs, each with the partition and the offset of
    its message. ``member``: the member of the group that had the partitions."""

    positions: dict[SourcePartition, int]
    outputs: list[tuple[SourcePartition, int, OutputRecord]] = field(default_factory=list)
    member: Any = None


class InFlight:
    """The messages under way. Thread-safe."""

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
            return {}  # a position without its outputs would lose them
        with self._changed:
            return self._positions(partitions)

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        with self._changed:
            self._close(partitions)

    def restart(self) -> dict[SourcePartition, int]:
        """Forget all messages under way. Returns the offset of the first message of this assignment
        by partition, for partitions that had one."""
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
        self._ready = deque(message for message in self._ready if not message.lane.closed)

    # In and out

    def receive(self, partition: SourcePartition, messages: Sequence[Received], seen: int) -> None:
        """Take messages. ``seen``: the last offset that was read, which may be behind theirs."""
        with self._changed:
            tracker = self._trackers.get(partition)
            if tracker is None:  # the partition is another member's by now
                return
            if messages and messages[0].offset < (tracker.end or 0):
                # Nobody has sought: the topic was made anew. That offset 3 of the old one was
                # committed, for example, says nothing of this one.
                self._close([partition])
                tracker = self._trackers[partition] = PartitionTracker(partition)
            tracker.add(messages, seen)
            if messages:
                self._ready.extend(messages)
                self._changed.notify_all()

    def take(self, count: int, timeout_s: float | None) -> list[Received]:
        """The next messages, 1 to ``count``; none after ``end``, or when ``timeout_s`` is over."""
        taken: list[Received] = []
        with self._changed:
            while not taken:
                while self._ready and len(taken) < count:
                    taken.append(self._ready.popleft())
                if taken or self._ended:
                    break
                if not self._changed.wait(timeout_s) and timeout_s is not None:
                    break
        return taken

    def put_back(self, messages: Sequence[Received]) -> None:
        """Put messages back that were taken and not looked at; they come first again."""
        with self._changed:
            ours = (message for message in reversed(messages) if not message.lane.closed)
            self._ready.extendleft(ours)
            self._changed.notify_all()

    def given(self, since_s: float, until_s: float) -> list[Received]:
        """Messages that the application got in that monotonic time and has not answered."""
        with self._changed:
            trackers = self._trackers.values()
            return [message for tracker in trackers for message in tracker.given(since_s, until_s)]

    def end(self) -> None:
        """Hand out no more messages."""
        with self._changed:
            self._ended = True
            self._ready.clear()
            self._changed.notify_all()

    # Answers

    def answer(self, message: Received) -> bool:
        """Note an answer. Returns False if the message has one, or another member its partition."""
        with self._changed:
            return message.lane is not None and message.lane.answer(message.offset)

    def finish(self, messages: Iterable[Received]) -> None:
        with self._changed:
            for message in messages:
                message.lane.finish(message.offset)
            self._tell_room()

    def done(self, messages: Iterable[Received]) -> list[Received]:
        """Answer and finish messages. Returns those for which ``answer`` would have been True."""
        with self._changed:
            first = [
                message
                for message in messages
                if message.lane is not None and message.lane.done(message.offset)
            ]
            if self._room_wanted:
                self._tell_room()
        return first

    def put_out(self, message: Received, output: OutputRecord) -> bool:
        with self._changed:
            return message.lane is not None and message.lane.put_out(message.offset, output)

    def give_back(self, message: Received, output: OutputRecord) -> None:
        """Finish an answered message by ``output``, in place of its outputs so far."""
        with self._changed:
            if not message.lane.closed:
                message.lane.replace_outputs(message.offset, output)
                message.lane.finish(message.offset)

    # Commits

    def batch(self) -> CommitBatch:
        """The positions that can be committed and were not, and their outputs, taken out."""
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
        positions: dict[SourcePartition, int] = {}
        for partition in partitions:
            tracker = self._trackers.get(partition)
            if tracker is None or tracker.position is None:
                continue
            if tracker.position not in (tracker.committed, tracker.start):
                positions[partition] = tracker.position
        return positions

    # Bounds

    def room(self) -> int:
        """The number of messages that may still be read."""
        with self._changed:
            return self._room()

    def enough(self, count: int) -> bool:
        """Returns True when ``count`` messages may be read; or one, if none waits for the
        application, which would be idle."""
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
        # Ready messages are under way: counting them is mostly enough, and cheaper than ``_room``.
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
