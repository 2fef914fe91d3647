"""The farthest message that is pending beyond the horizon, when a directory is opened.

Theory: a horizon that is shorter than what is pending is mostly a mistake: a file of settings that
was mended on one peer and forgotten on another, which as a master would refuse what the others
take. Whole days of files are looked at, the last day first, and mostly the first one has a message
that is pending; so not much is read, however much there is. What is due beyond the horizon is ahead
of all marks, so that only cancels have to be looked for, in all files of the day.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..config import TICK_MS, WheelConfig
from ..errors import Damaged, InvalidConfiguration
from ..rows import members
from ..schema import Int64s, times, valid
from ..state import SlotInfo
from ..tail.tail import Piece, offsets_of
from ..texts import span_text, time_text
from .catalog import Catalog
from .slot import DAY_S, ends_ms, is_wide
from .slotfile import SlotFiles

_DAY_MS = DAY_S * TICK_MS
_NEVER_MS = 1 << 62
_NONE = np.empty(0, np.int64)


def check_horizon(
    files: SlotFiles,
    catalog: Catalog,
    pieces: Sequence[Piece],
    config: WheelConfig,
    *,
    now_ms: int,
    slots_known: int,
) -> None:
    """Raise if a message is due later than the horizon: one in a wide slot, or in ``pieces``, the
    entries behind the checkpoint. Of these, what goes to a slot of a second may be due beyond a
    horizon that is shorter now: ``slots_known`` is the most slots that the group ever had. A file
    that cannot be read counts as empty.

    Errors: ``InvalidConfiguration``, ``OSError``."""
    ahead_ms = config.horizon_ms
    tail_ahead_ms = max(ahead_ms, slots_known * TICK_MS)
    wide = [ends_ms(slot) - 1 for slot in catalog if is_wide(slot)]
    days = {due_ms // _DAY_MS for due_ms in wide if due_ms > now_ms + ahead_ms}
    for piece in pieces:
        if piece.latest > now_ms + tail_ahead_ms:
            late = piece.due[piece.due > now_ms + tail_ahead_ms]
            days.update(np.unique(late // _DAY_MS).tolist())
    for day in sorted(days, reverse=True):
        rows = _Rows(now_ms)
        for slot in catalog.within(day * DAY_S, (day + 1) * DAY_S - 1):
            rows.add_file(files, slot, catalog[slot], ahead_ms if is_wide(slot) else _NEVER_MS)
        for piece in pieces:
            if piece.latest >= day * _DAY_MS:
                rows.add(piece.rows, offsets_of(piece), tail_ahead_ms)
        farthest_ms = rows.farthest_ms
        if farthest_ms is not None:
            raise InvalidConfiguration(
                "messages are pending beyond the horizon",
                got=f"the farthest is due {time_text(farthest_ms)},"
                f" in {span_text(farthest_ms - now_ms)}",
                limit=f"{time_text(now_ms + ahead_ms)}, in {span_text(ahead_ms)}",
                remedy=f"Start the node with --horizon {-((now_ms - farthest_ms) // _DAY_MS)}d or"
                " more, until that message has left or was cancelled",
            )


class _Rows:
    """Messages beyond a horizon from ``now_ms`` on, and the offsets that cancels name.

    What was within the horizon when it was created is within it still, whatever the clock says now:
    one that was set back must not keep a node from its work."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._due = [_NONE]
        self._offsets = [_NONE]
        self._cancelled = [_NONE]

    def add_file(self, files: SlotFiles, slot: int, info: SlotInfo, ahead_ms: int) -> None:
        """Add the rows of a file."""
        with contextlib.suppress(Damaged, FileNotFoundError):
            for block in files.read(slot, info):
                self.add(block, times(block, "offset"), ahead_ms)

    def add(self, rows: pa.RecordBatch, offsets: Int64s, ahead_ms: int) -> None:
        """Add those of the messages that are due by more than ``ahead_ms`` ahead, and cancels."""
        due, is_cancel = times(rows, "due"), valid(rows.column("cancels"))
        ahead = due - np.maximum(self._now_ms, times(rows, "created"))
        late = ~is_cancel & (ahead > ahead_ms)
        self._due.append(due[late])
        self._offsets.append(offsets[late])
        self._cancelled.append(times(rows, "cancels")[is_cancel])

    @property
    def farthest_ms(self) -> int | None:
        """The latest due time of a message that no cancel names; None: there is none."""
        cancelled = np.sort(np.concatenate(self._cancelled))
        due = np.concatenate(self._due)[~members(cancelled, np.concatenate(self._offsets))]
        return int(due.max()) if len(due) else None
