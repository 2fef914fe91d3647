"""Tracks the finished messages of a partition, and the position that may be committed.

Rules
- The position is that of the first message that is not finished; if all are, the one behind the
  last offset that was seen. So the offsets between messages (filtered records, marks of
  transactions, compacted records) need no bookkeeping. For example, messages at 3, 5 and 8 were
  read, and 9 was seen: with 3 and 8 finished the position is 5, with all finished 10.
- A message is answered once. A second answer is ignored, and so is one after another member got the
  partition: the tracker is closed then.
- An output of a message may leave once the position has passed the message, and not before: if it
  left when the message is finished, out of order, a crash would repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .message import OutputRecord, Received, SourcePartition


class PartitionTracker:
    """One assignment of a partition to this consumer. Not thread-safe."""

    def __init__(self, partition: SourcePartition, start: int | None = None) -> None:
        self.partition = partition
        self.closed = False
        self.start = start
        """The offset of the first message; None: there was none."""
        self.end: int | None = None
        """The position behind the last offset seen; None: none was seen."""
        self.committed: int | None = None
        """The position that was last committed; None: none in this assignment."""
        self.nbytes = 0
        """The bytes of messages that are not finished, and of outputs that wait."""
        self._open: dict[int, Received] = {}
        self._answered: set[int] = set()
        self._outputs: dict[int, list[OutputRecord]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def behind(self) -> int:
        """The number of offsets that were seen beyond the position."""
        position = self.position
        return 0 if position is None or self.end is None else self.end - position

    def add(self, messages: Sequence[Received], seen: int) -> None:
        """Add messages that have to be finished, in their order. ``seen``: the last offset read;
        offsets up to it without a message need not be finished."""
        waiting, total = self._open, 0
        for message in messages:
            message.lane = self
            message.counted = message.nbytes
            waiting[message.offset] = message
            total += message.counted
        self.nbytes += total
        if self.start is None and messages:
            self.start = messages[0].offset
        self.end = seen + 1

    def done(self, offset: int) -> bool:
        """Answer and finish a message. Returns False where ``answer`` would."""
        if self.closed or offset in self._answered:
            return False
        message = self._open.pop(offset, None)
        if message is None:
            return False
        self.nbytes -= message.counted
        return True

    def given(self, since_s: float, until_s: float) -> list[Received]:
        """Messages that the application got in that time, and has not answered."""
        return [
            message
            for offset, message in self._open.items()
            if since_s < message.received_s <= until_s and offset not in self._answered
        ]

    def answer(self, offset: int) -> bool:
        """Note an answer. Returns False if the message has one, or another member the partition."""
        if self.closed or offset not in self._open or offset in self._answered:
            return False
        self._answered.add(offset)
        return True

    def put_out(self, offset: int, output: OutputRecord) -> bool:
        """Keep a record until the position has passed ``offset``. Returns False if the message was
        answered, or the partition is another member's."""
        if self.closed or offset not in self._open or offset in self._answered:
            return False
        self._outputs.setdefault(offset, []).append(output)
        self.nbytes += output.nbytes
        return True

    def replace_outputs(self, offset: int, output: OutputRecord) -> None:
        """Replace the outputs of a message that failed by one record."""
        self.nbytes -= sum(replaced.nbytes for replaced in self._outputs.pop(offset, ()))
        self._outputs[offset] = [output]
        self.nbytes += output.nbytes

    def finish(self, offset: int) -> None:
        if not self.closed and offset in self._open:
            self.nbytes -= self._open.pop(offset).counted
            self._answered.discard(offset)

    @property
    def position(self) -> int | None:
        """The position below which every message is finished; None: nothing was seen."""
        return next(iter(self._open), self.end)

    def close(self) -> None:
        """Ignore all further answers: the partition is another member's."""
        self.closed = True

    def commit(self, position: int) -> None:
        """Note a position that the source has stored."""
        self.committed = position

    def passed(self, offset: int) -> bool:
        """Returns True when the committed position is beyond ``offset``."""
        return self.committed is not None and self.committed > offset

    def take_outputs(self) -> list[tuple[int, OutputRecord]]:
        """Take out the outputs of messages that the position has passed, in the order of their
        offsets, each with that."""
        position = self.position
        if position is None or not self._outputs:
            return []
        offsets = sorted(offset for offset in self._outputs if offset < position)
        taken = [(offset, output) for offset in offsets for output in self._outputs.pop(offset)]
        self.nbytes -= sum(output.nbytes for _, output in taken)
        return taken
