"""Plain rows in tests: batches appended together, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.arrowbytes import PlainRow
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.journal.queued import named_among
from slotwheel.wheel.plain import PlainAnswer, PlainBatch, encode_records
from slotwheel.wheel.wheel import Wheel

NewRow = tuple[int, str, bytes]
"""Due in ms, topic, value."""
Told = tuple[int, int, list[int]]
"""Base offset, creation time and due times of a batch that is stored."""


def plain_batch(
    rows: Sequence[NewRow], producer: int = 0, sequence: int = -1, *, early: bool = False
) -> PlainBatch:
    records = [(due, topic.encode(), None, None, value, ()) for due, topic, value in rows]
    return batch_of_records(records, producer, sequence, early=early)


def batch_of_records(
    rows: Sequence[PlainRow], producer: int = 0, sequence: int = -1, *, early: bool = False
) -> PlainBatch:
    sequence = sequence if producer else -1
    return PlainBatch(rows, len(encode_records(rows)), producer, sequence, early)


def append_together(
    wheel: Wheel, batches: Sequence[PlainBatch], now_ms: int
) -> list[Future[AppendReceipt] | SlotwheelError]:
    """As ``Wheel.append_all``, of plain rows."""
    futures: list[Future[AppendReceipt]] = [Future() for _ in batches]

    def done(answered: Sequence[PlainBatch], answer: PlainAnswer) -> None:
        offset = 0
        for batch in answered:
            [future] = [one for one, at in zip(futures, batches, strict=True) if at is batch]
            if isinstance(answer, SlotwheelError):
                future.set_exception(answer)
                continue
            count = len(batch.rows)
            due = np.array(answer.due[offset : offset + count], np.int64)
            base = answer.base_offset + offset
            named = named_among(answer.named, offset, count)
            future.set_result(
                AppendReceipt(base, count, answer.created_ms, due, answer.sequence, named)
            )
            offset += count
        assert isinstance(answer, SlotwheelError) or offset == len(answer.due)

    wheel.append_plain(batches, now_ms, done)
    failed = [future.exception() if future.done() else None for future in futures]
    return [
        error if isinstance(error, SlotwheelError) else future
        for error, future in zip(failed, futures, strict=True)
    ]


class PlainSent:
    """Batches that were appended together."""

    def __init__(self, wheel: Wheel, batches: Sequence[PlainBatch], now_ms: int) -> None:
        self._found = append_together(wheel, batches, now_ms)

    @property
    def outcomes(self) -> list[Told | SlotwheelError | None]:
        """Of each batch; None until it is answered."""
        return [self._outcome(one) for one in self._found]

    @property
    def sequences(self) -> list[int]:
        """Of each batch that is stored, that of the first time."""
        return [one.result(0).sequence for one in self._found if isinstance(one, Future)]

    @staticmethod
    def _outcome(
        found: Future[AppendReceipt] | SlotwheelError,
    ) -> Told | SlotwheelError | None:
        if isinstance(found, SlotwheelError):
            return found
        if not found.done():
            return None
        error = found.exception()
        if error is not None:
            assert isinstance(error, SlotwheelError)
            return error
        receipt = found.result()
        return receipt.base_offset, receipt.created_ms, receipt.due.tolist()
