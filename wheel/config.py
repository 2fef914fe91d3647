"""The limits of one wheel, in one immutable value.

Every bound on memory, time and disk that the engine keeps is a field here, with its unit as the
last word of its name. The engine reads no environment and has no other settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from .errors import InvalidConfiguration
from .texts import span_text

TICK_MS = 1000
"""Length of a slot in milliseconds. A slot is named by its absolute second, so this is fixed."""

WIDTH_BITS = 56
"""A slot's number (``slots/slot.py``), which is its key in the state: so many bits of its first
second, above them its width, 0 for a second. It is here because who reads files on a machine
without LMDB has to know it, too."""
_DAY_MS = 86_400_000
HORIZON_MAX_MS = 3_660 * _DAY_MS
"""The longest horizon, ten years."""
HORIZON = "horizon_ms"
"""The name of the longest horizon in a group's configuration; without it the slots are all."""
_LONG_HORIZON_SLOTS = 7_200
"""The fewest slots of a wheel whose horizon is longer than these: messages of two hours ago are
then in files of a second, and what is due next is not read out of a file of a day."""
SLOTS_MAX = 86_400
"""The most slots of a wheel, a day. Each is a file, and a spill writes to as many of them as its
messages are due in: with 60 days, 1.7 million files, one took minutes, and a restart one."""
_SHORT_HORIZON_MS = 2 * 3_600_000
_WORTH_AGE_MS = 10_000
_WORTH_SHARE = 32

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Setting:
    """How a field of settings is given from outside. It is the only declaration: the option, its
    variable, the key of a file and the gateway's share are made of it, so that none of them can
    lack a setting that another one has.

    Type and default are the field's. The unit follows from its name: ``tail_age_ms`` is given as a
    span, ``10s``, and ``batch_bytes_max`` as a size, ``16M``.
    """

    option: str
    """``batch-rows`` is the option ``--batch-rows``, the key ``batch-rows`` of a file, and the
    variable ``SLOTWHEEL_BATCH_ROWS``."""
    help: str = ""
    """Text of the help page; empty for an option that many commands have alike."""
    metavar: str | None = None
    kind: str = ""
    """How the text is read, a key of ``KINDS`` in ``cli/settings.py``; empty: by type and unit."""
    choices: tuple[str, ...] = ()
    least: int = 1
    """Lower bound of a number without a unit."""
    shown: str = ""
    """The default as the help page has it; empty: as it is, or ``<number>ms``."""
    gateway: str = ""
    """Field of ``GatewaySettings`` that a node fills with this one for the gateway beside it;
    empty: the gateway does without."""


def setting(*option: Any, default: Any = MISSING, factory: Any = None, **further: Any) -> Any:
    """A field of a dataclass that is given from outside. ``option``: name, help text and metavar;
    ``further``: the other fields of its ``Setting``."""
    value = {"default": default} if factory is None else {"default_factory": factory}
    return field(metadata={"setting": Setting(*option, **further)}, **value)


def settings_of(kind: type) -> dict[str, Setting]:
    """The ``Setting`` of each field of a dataclass that has one, by the field's name."""
    return {f.name: f.metadata["setting"] for f in fields(kind) if "setting" in f.metadata}


@dataclass(frozen=True, slots=True)
class WheelConfig:
    """Limits of one wheel. The defaults are those of a node started without options."""

    group: str = setting("group", "Name of the wheel group.", default="default")
    """Name of the wheel group, the first part of every id. Letters, digits, ``_``, ``-``."""
    slots: int = setting(
        "slots",
        "Slots of one second, at most 86400; what is due later goes to slots of an hour or a day.",
        default=7200,
        least=2,
    )
    far_horizon_ms: int = setting(
        "horizon",
        "How far ahead a message may be due, at most 3660d. [default: the seconds of --slots]",
        default=0,
        kind="positive span",
    )
    """0: as far as there are slots of a second. See ``horizon_ms``."""
    message_bytes_max: int = setting(
        "message-bytes", "Largest message: key, value and headers together.", default=1_000_000
    )
    batch_rows_max: int = setting("batch-rows", "Most messages in a batch.", default=65_536)
    batch_bytes_max: int = setting("batch-bytes", "Largest batch.", default=16 * MIB)
    tail_bytes_max: int = setting(
        "tail-bytes", "Spill all of the tail when it holds so much in memory.", default=128 * MIB
    )
    tail_bytes_refuse: int = setting(
        "tail-bytes-refuse", "Refuse appends while the tail holds so much.", default=256 * MIB
    )
    """Above this (a spill runs and intake is faster), appends get ``Overloaded``."""
    tail_age_ms: int = setting(
        "tail-age",
        "Spill the tail when its oldest message is so old; at 10s if the journal has got 1/32 of"
        " --tail-bytes since the last spill.",
        default=600_000,
    )
    """See ``tail_is_worth_a_spill``."""
    tail_keep_ms: int = setting(
        "tail-keep", "Messages younger than this stay when a spill goes by age.", default=3_000
    )
    segment_bytes: int = setting(
        "segment-bytes", "Begin a new journal segment when one has this size.", default=64 * MIB
    )
    open_handles_max: int = setting("open-handles", "Most slot files held open.", default=128)
    chunk_rows_max: int = setting(
        "chunk-rows", "Most messages handed to the sink at once.", default=16_384
    )
    chunk_bytes_max: int = setting(
        "chunk-bytes", "Most bytes handed to the sink at once.", default=8 * MIB
    )
    """A chunk handed to the sink is cut at either limit (but holds at least one row)."""
    window_bytes_max: int = setting(
        "window-bytes", "Most bytes of a window: rows of one slot in memory.", default=32 * MIB
    )
    """The slot that is delivered has two windows."""
    held_topics_max: int = setting(
        "held-topics", "Most topics held back; one more pauses delivery.", default=64
    )
    mark_interval_ms: int = setting(
        "mark-interval", "Record progress at most so often.", default=100
    )
    producers_max: int = setting(
        "producers", "Most producers whose last batches are remembered.", default=10_000
    )
    requests_max: int = setting(
        "requests", "Most requests with an Idempotency-Key that are remembered.", default=100_000
    )
    disk_reserve_bytes: int = setting(
        "disk-reserve", "Refuse appends when less is free on the disk.", default=256 * MIB
    )
    cancels_remembered_max: int = setting(
        "cancels-remembered",
        "Most cancels kept in memory; others are read when asked about.",
        default=500_000,
    )
    retain_ms: int = setting(
        "retain",
        "Keep what is delivered in archive/, for `slotwheel replay`: for so long (24h), up to so"
        " much (10GiB), or both (24h,10GiB). [default: keep nothing]",
        "SPAN|BYTES",
        default=0,
        kind="retention",
    )
    """Covered slot files and closed segments stay in the archive until they are so old; 0: none."""
    retain_bytes: int = 0
    """They stay until there are more bytes of them; 0: by age alone. With both 0 nothing stays."""

    peer_journal_bytes_max: int = setting(
        "peer-journal", "Journal kept for peers that fall behind.", default=256 * MIB
    )
    majority_lag_bytes_max: int = setting(
        "majority-lag", "Refuse appends while so much waits for peers.", default=64 * MIB
    )
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
        if self.slots > SLOTS_MAX:
            raise InvalidConfiguration(
                "more slots than a wheel may have",
                got=self.slots,
                limit=f"{SLOTS_MAX}, which is a day",
                remedy=f"Give --slots {SLOTS_MAX} or fewer, and the time ahead as --horizon."
                " Messages that are stored already leave at their time",
            )
        self._check_horizon()

    def _check_horizon(self) -> None:
        horizon_ms, slots_ms = self.far_horizon_ms, self.slots * TICK_MS
        if not horizon_ms:
            return
        if not slots_ms <= horizon_ms <= HORIZON_MAX_MS:
            raise InvalidConfiguration(
                "not a horizon of a wheel",
                got=span_text(horizon_ms),
                limit=f"{span_text(slots_ms)}, the time of --slots, to"
                f" {HORIZON_MAX_MS // _DAY_MS}d",
                remedy="Give another --horizon, or fewer --slots",
            )
        if horizon_ms > slots_ms and self.slots < _LONG_HORIZON_SLOTS:
            raise InvalidConfiguration(
                "too few slots for a horizon that is longer than they are",
                got=f"{self.slots} slots",
                limit=_LONG_HORIZON_SLOTS,
                remedy=f"Give --slots {_LONG_HORIZON_SLOTS} or more, or no --horizon",
            )

    def tail_is_worth_a_spill(self, nbytes: int, age_ms: int, journal_bytes: int) -> bool:
        """True if a tail of so many bytes, whose oldest row is so old in ms, should be spilled.
        ``journal_bytes``: those since the last spill, which a restart would have to read.

        A block of a slot file takes 900 bytes besides its rows, so a tail of a few rows waits for
        more of them: else 50 messages a second, due over 60 days, would be spilled in blocks of
        some eight rows, and a day's file would get 8,640 blocks from each day before it. Of single
        messages the journal takes six times what the tail does, so it is the journal's bytes that
        are waited for: a restart reads 28,000 such messages in 1.6 s, and 4 MiB of them in 0.2.

        *Example.* With the usual settings a tail of 128 MiB is spilled at once, one behind which
        4 MiB of journal stand when it is 10 s old, and any other when it is 10 min old.
        """
        if nbytes >= self.tail_bytes_max or age_ms >= self.tail_age_ms:
            return True
        return age_ms >= _WORTH_AGE_MS and self.journal_is_worth_a_spill(journal_bytes)

    def journal_is_worth_a_spill(self, nbytes: int) -> bool:
        """True if so many bytes of the journal since the last spill should not be left to a
        restart, which reads them. *Example.* 100,000 schedules that are put one by one are 42 MB,
        which a restart would read in 5 s; with the usual settings 4 MiB of them are left, 0.4 s."""
        return nbytes >= self.tail_bytes_max // _WORTH_SHARE

    @property
    def horizon_ms(self) -> int:
        """A message may be due at most so far ahead of now, in milliseconds."""
        return self.far_horizon_ms or self.slots * TICK_MS

    @property
    def short_horizon_ms(self) -> int:
        """The horizon, but two hours at most, in ms: so long answers about cancels stay known, and
        so far ahead a mark may reach while the disk is almost full. Else a wheel of a day would
        keep twelve times the records of cancels, and after a crash on a full disk the cancels of a
        whole day would get *unknown*."""
        return min(self.horizon_ms, _SHORT_HORIZON_MS)

    @property
    def reach_ahead_ms(self) -> int:
        """A mark allows rows to leave that are due up to so long after it was made, in ms. That
        covers several marks and slow syncs, so that delivery waits for none; after a crash, cancels
        of these rows get *unknown*."""
        return max(1_000, 10 * self.mark_interval_ms)


def known_horizon_ms(configuration: Mapping[str, Any]) -> int:
    """How far ahead a message of a group was ever allowed to be due, ms, by its configuration; 0:
    that is not known."""
    slots_ms = int(configuration.get("slots", 0)) * TICK_MS
    return max(slots_ms, int(configuration.get(HORIZON, 0)))
