"""A client in a succession: of several clients that do the same work, only the newest one sends.

Theory: all of them are one producer to the wheel, and each begins with a sequence above all that
earlier ones can have used. The wheel refuses a sequence that is five or more behind a producer's
newest (``SequenceTooOld``). So once the first batch of a client is stored, no batch of an earlier
client is stored any more: not one that is still under way, and not one that is sent later.

    earlier   5.0  5.1  5.2                5.3 refused
    later                    6.0  6.1 ...

A batch is stored with all of its rows or not at all, so one of them can be a note on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..wheel.protocol import STATUS
from ..wheel.schema import times
from .addresses import Nodes
from .client import Client
from .columns import Errors, Limits
from .receipts import Receipts

SEQUENCES = 1 << 20
"""A client's first sequence is its number in the succession times this."""


class Successor(Client):
    """A ``Client`` of a succession. ``producer``: the same for the whole succession, above 0 and
    below 2^63. ``first_sequence``: this client's."""

    def __init__(
        self,
        address: str | Sequence[str] | Nodes,
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
        return dict(self.ask(STATUS, {}, again=True)["status"])

    @property
    def limits(self) -> Limits:
        """The node's limits, once a batch was sent."""
        return self._buffer.limits

    @property
    def batch_max(self) -> tuple[int, int]:
        """The most rows and bytes of a batch."""
        return self._buffer.batch_rows_max, self._buffer.batch_bytes_max

    def send_whole(self, rows: pa.RecordBatch, left_out: Errors | None = None) -> Receipts:
        """Send rows (schema ``INPUT``) as one batch: all of them are stored, or all fail with the
        same error. ``left_out``: errors of further rows that are not sent, by their numbers among
        all rows; the receipts have them, too.

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
