"""Which messages of a partition are finished, and up to where its position may be committed.

Rules
- The position is that of the first message that is not finished; if all are, the one behind the
  last record that was seen. So what lies between (filtered records, marks of transactions, what was
  compacted away) needs no bookkeeping.
- A message is answered once. Who comes second is ignored, also when the partition has been given
  to another member meanwhile: then the tracker is closed.
- What a message puts out may leave once the position has passed it, and not before: if it finished
  out of order and left at once, a crash would repeat it.
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
        """The position behind the last record seen; None: none was."""
        self.committed: int | None = None
        """The position that was last committed; None: none in this assignment."""
        self.nbytes = 0
        """Bytes of the messages that are not finished, and of outputs that wait."""
        self._open: dict[int, Received] = {}
        self._answered: set[int] = set()
        self._outputs: dict[int, list[OutputRecord]] = {}

    def __len__(self) -> int:
        """Messages that are not finished."""
        return len(self._open)

    @property
    def behind(self) -> int:
        """How far the records that were seen reach beyond the position."""
        position = self.position
        return 0 if position is None or self.end is None else self.end - position

    def add(self, messages: Sequence[Received], seen: int) -> None:
        """Messages that are to be finished, in their order; ``seen``: the last record read, one of
        them or one behind them. With the others before it there is nothing to do."""
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
        """Answer and finish in one; whether this is the message's first answer, and wanted."""
        if self.closed or offset in self._answered:
            return False
        message = self._open.pop(offset, None)
        if message is None:
            return False
        self.nbytes -= message.counted
        return True

    def given(self, since_s: float, until_s: float) -> list[Received]:
        """What the application got in that time, and has not answered."""
        return [
            message
            for offset, message in self._open.items()
            if since_s < message.received_s <= until_s and offset not in self._answered
        ]

    def answer(self, offset: int) -> bool:
        """Whether this is the first answer for the message, and still wanted."""
        if self.closed or offset not in self._open or offset in self._answered:
            return False
        self._answered.add(offset)
        return True

    def put_out(self, offset: int, output: OutputRecord) -> bool:
        """Keep a record until the position has passed ``offset``. Returns whether the message still
        waits for its answer."""
        if self.closed or offset not in self._open or offset in self._answered:
            return False
        self._outputs.setdefault(offset, []).append(output)
        self.nbytes += output.nbytes
        return True

    def replace_outputs(self, offset: int, output: OutputRecord) -> None:
        """The message failed: what it put out so far does not leave, but this record does."""
        self.nbytes -= sum(one.nbytes for one in self._outputs.pop(offset, ()))
        self._outputs[offset] = [output]
        self.nbytes += output.nbytes

    def finish(self, offset: int) -> None:
        if not self.closed and offset in self._open:
            self.nbytes -= self._open.pop(offset).counted
            self._answered.discard(offset)

    @property
    def position(self) -> int | None:
        """Up to where everything is finished; None: nothing was seen."""
        return next(iter(self._open), self.end)

    def close(self) -> None:
        """The partition is another member's: what is answered here changes nothing any more."""
        self.closed = True

    def commit(self, position: int) -> None:
        """The source has stored this position."""
        self.committed = position

    def passed(self, offset: int) -> bool:
        """Whether the committed position is behind ``offset``."""
        return self.committed is not None and self.committed > offset

    def take_outputs(self) -> list[tuple[int, OutputRecord]]:
        """What the position has passed, in the order of the messages, each with its offset."""
        position = self.position
        if position is None or not self._outputs:
            return []
        offsets = sorted(offset for offset in self._outputs if offset < position)
        taken = [(offset, one) for offset in offsets for one in self._outputs.pop(offset)]
        self.nbytes -= sum(one.nbytes for _, one in taken)
        return taken
