"""A client in a succession: of several that do the same work, the one that began last sends.

Theory: all of them are one producer to the wheel, and each begins with a sequence above all that
those before it can have used. The wheel refuses a sequence that is five or more behind a producer's
newest (``SequenceTooOld``). So once the first batch of a client is stored, no batch of an earlier
one is stored any more: not one that is still under way, and not one that is sent later.

    earlier   5.0  5.1  5.2                5.3 refused
    later                    6.0  6.1 ...

A batch is stored with all of its rows or not at all, so one row of it can say what the others are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..wheel.protocol import STATUS
from ..wheel.schema import times
from .client import Client
from .columns import Errors, Limits
from .receipts import Receipts

SEQUENCES = 1 << 20
"""Sequences of a client: its number in the succession times this is its first one."""


class Successor(Client):
    """``producer``: the same for the whole succession, above 0 and below 2^63; ``first_sequence``:
    of this client. All else as of ``Client``."""

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout_s: float,
        producer: int,
        first_sequence: int,
    ) -> None:
        self._producer = producer
        self._first_sequence = first_sequence
        super().__init__(address, timeout_s=timeout_s)

    def _identity(self) -> tuple[int, int]:
        return self._producer, self._first_sequence

    def status_of_master(self) -> dict[str, Any]:
        """The status of the master's wheel, whichever peers answer. Errors: ``NodeUnreachable``."""
        return dict(self._ask(STATUS, {}, again=True)["status"])

    @property
    def limits(self) -> Limits:
        """The node's, once something was sent."""
        return self._buffer.limits

    @property
    def batch_max(self) -> tuple[int, int]:
        """Rows and bytes that a batch may have."""
        return self._buffer.batch_rows_max, self._buffer.batch_bytes_max

    def send_whole(self, rows: pa.RecordBatch, left_out: Errors | None = None) -> Receipts:
        """Send rows of the schema ``INPUT`` as one batch. All of them have the same error, or none
        has one. ``left_out``: errors of rows that are not among them, by the numbers that these
        would have; the receipts have them, too.

        Errors: as of ``send_table``; ``SequenceTooOld`` is the receipts'.
        """
        self._check_usable()
        due, errors, kept = times(rows, "due"), left_out or {}, None
        if errors:
            count = rows.num_rows + len(errors)
            kept = np.setdiff1d(np.arange(count), list(errors))
            due = np.zeros(count, np.int64)
            due[kept] = times(rows, "due")
        shipment = self._sender.new_shipment(
            due=due, rows=rows, kept=kept, errors=errors, whole=True
        )
        self._sender.submit(shipment)
        return Receipts([shipment])
