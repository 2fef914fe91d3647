"""Counts what is pending for the prefixes that quotas name, once a second, in a thread of its own.

A node whose security file limits nothing that is pending does nothing here. One that does has the
counts of its file (``pendingfile``), or reads its slot files once, a fifth of a core at most.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from ..security.pending import PendingLedger
from ..wheel.errors import Damaged
from ..wheel.slots.slot import stem_of
from ..wheel.wheel import Wheel
from .logs import event
from .pendingfile import read_counts, write_counts
from .pendingtable import PendingTable, SavedCounts

log = logging.getLogger("slotwheel.node")

EVERY_S = 1.0
_WORK_S = 0.05
"""After so long of counting slots anew, s, others get their turn."""
_REST = 4.0
"""The pause after that, as a multiple of the time that was worked."""
_DAMAGED_EVERY_S = 10.0
"""A slot that could not be read is tried again after so long, s."""


class PendingWatch:
    """Counts the rows of ``wheel``, on a standby too, and gives each count to ``ledger``, which
    names the prefixes. ``directory``: of the node's data."""

    def __init__(self, wheel: Wheel, directory: Path, ledger: PendingLedger) -> None:
        self._wheel = wheel
        self._directory = directory
        self._ledger = ledger
        self._table: PendingTable | None = None
        self._complete = False
        self._saved_upto = -1
        self._again_s: dict[int, float] = {}
        """When slots that could not be read are tried again."""

    def turn(self) -> float:
        """Count. Returns the pause before the next call, s."""
        patterns = self._ledger.patterns
        if not patterns:
            self._table = None
            return EVERY_S
        if self._table is None or self._table.patterns != patterns:
            self._table = self._begin(patterns)
        return self._count(self._table)

    def facts(self) -> dict[str, Any]:
        """The status of the quotas; empty on a node where none limits what is pending."""
        pending = self._ledger.pending()
        if not pending:
            return {}
        table = self._table
        unseen = None if table is None else table.unseen_slots
        rows = [
            {"prefix": prefix, "rows": rows, "bytes": nbytes}
            for prefix, (rows, nbytes) in pending.items()
        ]
        return {"pending_by_prefix": {"prefixes": rows, "slots_to_count": unseen}}

    def _begin(self, patterns: tuple[str, ...]) -> PendingTable:
        table = PendingTable(patterns, self._wheel.read_slot, self._wheel.config.slots)
        saved = read_counts(self._directory, self._wheel.store_id, patterns)
        if saved is not None:
            table.restore(saved)
        self._complete = False
        self._saved_upto = -1
        return table

    def _count(self, table: PendingTable) -> float:
        point = self._wheel.stock_point()
        table.add_new(point)
        began_s = time.monotonic()
        self._again_s = {slot: at for slot, at in self._again_s.items() if at > began_s}
        left = [slot for slot in table.stale(point) if slot not in self._again_s]
        pause_s = EVERY_S
        worked_s = 0.0
        for slot in left:
            if worked_s > _WORK_S:
                pause_s = 0.0
                break
            try:
                table.count(slot, point)
            except (Damaged, OSError) as error:
                self._again_s[slot] = time.monotonic() + _DAMAGED_EVERY_S
                reason = {"slot": stem_of(slot), "reason": str(error)}
                event(log, logging.WARNING, "what is pending cannot be counted", **reason)
            worked_s = time.monotonic() - began_s
        self._ledger.counted(table.patterns, table.amounts, table.offset)
        if not self._complete and not table.unseen_slots:
            self._complete = True
            event(log, logging.INFO, "what is pending is counted", prefixes=len(table.patterns))
        if point.spilled != self._saved_upto and (saved := table.saved()) is not None:
            self._saved_upto = point.spilled
            self._keep(table.patterns, saved)
        # A day's file takes longer than a turn: the pause grows with it.
        return max(pause_s, worked_s * _REST)

    def _keep(self, patterns: tuple[str, ...], saved: SavedCounts) -> None:
        """Write the file behind a spill. Where that fails, the next spill brings another try, and
        a start until then counts the slot files."""
        try:
            write_counts(self._directory, self._wheel.store_id, patterns, saved)
        except OSError as error:
            event(log, logging.WARNING, "the counts of what is pending are not kept", reason=error)
