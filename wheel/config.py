"""The limits of one wheel, in one immutable value.

Every bound on memory, time and disk that the engine keeps is a field here, with its unit as the
last word of its name. The engine reads no environment and has no other settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidConfiguration

TICK_MS = 1000
"""Length of a slot in milliseconds. A slot is named by its absolute second, so this is fixed."""

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class WheelConfig:
    """Limits of one wheel. The defaults are those of a node started without options."""

    group: str = "default"
    """Name of the wheel group, the first part of every id. Letters, digits, ``_``, ``-``."""
    slots: int = 7200
    """Slots in one revolution, one second each: how far ahead a message may be due."""
    message_bytes_max: int = 1_000_000
    """Key, value and headers of one message together."""
    batch_rows_max: int = 65_536
    batch_bytes_max: int = 16 * MIB
    tail_bytes_max: int = 128 * MIB
    """When the tail holds this much, all of it is spilled."""
    tail_bytes_refuse: int = 256 * MIB
    """Above this (a spill runs and intake is faster), appends get ``Overloaded``."""
    tail_age_ms: int = 10_000
    """When the oldest row of the tail is this old, the tail is spilled."""
    tail_keep_ms: int = 3_000
    """A spill by age leaves rows that are younger than this in the tail."""
    segment_bytes: int = 64 * MIB
    """A journal segment is closed when it has grown past this."""
    open_handles_max: int = 128
    """Slot files kept open at once."""
    chunk_rows_max: int = 16_384
    chunk_bytes_max: int = 8 * MIB
    """A chunk handed to the sink is cut at either limit (but holds at least one row)."""
    window_bytes_max: int = 32 * MIB
    """Bytes of a window: rows of one slot in memory. The slot that is delivered has two windows."""
    held_topics_max: int = 64
    mark_interval_ms: int = 100
    """A mark is appended to the journal at most this often."""
    producers_max: int = 10_000
    """Producers whose last sequences are remembered."""
    requests_max: int = 100_000
    """The newest requests, remembered besides; each is a producer of its own."""
    disk_reserve_bytes: int = 256 * MIB
    """Appends are refused when less than this is free on the data directory's disk."""
    cancels_remembered_max: int = 500_000
    """Cancels kept in memory; what has to be known of others is read when it is asked."""
    retain_ms: int = 0
    """Covered slot files and closed segments stay in the archive until they are so old; 0: none."""
    retain_bytes: int = 0
    """They stay until there are more bytes of them; 0: by age alone. With both 0 nothing stays."""

    peer_journal_bytes_max: int = 256 * MIB
    """With peers: so much of the journal stays for those that fall behind."""
    majority_lag_bytes_max: int = 64 * MIB
    """With peers: appends get ``Overloaded`` while so much waits for a majority."""

    def __post_init__(self) -> None:
        ok = self.group and all(c.isascii() and (c.isalnum() or c in "_-") for c in self.group)
        if not ok or len(self.group) > 64:
            raise InvalidConfiguration(
                "wheel group name is not usable",
                got=repr(self.group),
                limit="1 to 64 letters, digits, '_' or '-'",
                remedy="Choose another --group",
            )
        if self.slots < 2:
            raise InvalidConfiguration(
                "a wheel needs at least two slots", got=self.slots, limit=2, remedy="Raise --slots"
            )

    @property
    def horizon_ms(self) -> int:
        """A message may be due at most so far ahead of now, in milliseconds."""
        return self.slots * TICK_MS

    @property
    def reach_ahead_ms(self) -> int:
        """A mark allows rows to leave that are due up to so long after it was made, in ms. That
        covers several marks and slow syncs, so that delivery waits for none; after a crash, cancels
        of these rows get *unknown*."""
        return max(1_000, 10 * self.mark_interval_ms)
