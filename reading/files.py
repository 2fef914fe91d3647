"""The files to read: values that Spark's driver makes and its tasks use. No input or output here.

A ``Layout`` has all that belongs to one wheel group: its peers (data directories), and files, each
of which belongs to a peer or, for dumps and receipts, to none (peer ``NO_PEER``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..wheel.config import TICK_MS
from ..wheel.ids import NO_LONG_IDS
from ..wheel.schema import Int64s
from ..wheel.slots.slot import begins_ms, ends_ms, slot_with, stem_of, width_s
from .problems import Problem

JOURNAL, SLOT, TOPIC, DUMP, RECEIPTS = KINDS = ("journal", "slot", "topic", "dump", "receipts")
NO_PEER = 0xFFFF


@dataclass(frozen=True, slots=True)
class File:
    """One file to read. Positions and sizes in bytes."""

    number: int
    """The index in ``Layout.files``, by which facts refer to the file."""
    kind: str
    """One of ``KINDS``."""
    path: str
    """The path that a task opens."""
    name: str
    """The name in a report: the peer's name and the path below its directory."""
    nbytes: int
    """Bytes to be read."""
    peer: int = NO_PEER
    archived: bool = False
    slot: int = -1
    """SLOT: the slot's number."""
    length: int = -1
    """SLOT: the committed length, from the catalog or the archived file's name; -1: not known."""
    crc: int = -1
    """SLOT: CRC-32C of the committed bytes; -1: not known."""
    rows: int = -1
    """SLOT: rows in the catalog; -1: not known."""
    first: int = -1
    """JOURNAL: index of the first entry. TOPIC: position of the first row."""
    end: int = -1
    """JOURNAL: one past the last index that it must hold. TOPIC: first position of the segment
    behind it. -1: not known."""
    store: str = ""
    """JOURNAL: store id of its data directory, hex; empty: not known."""
    kept_ms: int = -1
    """JOURNAL, archived: what had left when it was archived is due by then, ms."""
    is_last: bool = False
    """JOURNAL: the newest live segment of its peer, whose end may be torn."""
    topic: str = ""
    """TOPIC, DUMP: the topic, if it is known before reading."""

    @property
    def due_ms(self) -> tuple[int, int]:
        """SLOT: the first due time of its rows, and the first one behind them, ms."""
        return begins_ms(self.slot), ends_ms(self.slot)

    @property
    def stem(self) -> str:
        """SLOT: the name of its slot."""
        return stem_of(self.slot)

    def stem_for(self, due: int) -> str:
        """SLOT: the name of the slot of the same width in which a message due then, ms, belongs."""
        return stem_of(slot_with(due // TICK_MS, width_s(self.slot)))


@dataclass(frozen=True, slots=True)
class PeerFiles:
    """The facts that a data directory gave of itself when the layout was made. ``Layout.files`` has
    its files."""

    name: str
    """The last parts of the directory's path, as few as are unique."""
    root: str
    checkpoint_index: int = 0
    spilled: int = 0
    """Rows below this offset are in slot files, or were covered when they were spilled."""
    checkpoint_marks: str = ""
    """``Marks`` of the checkpoint, encoded, hex; empty: none."""
    slots: int = 0
    """Live slot files in the catalog."""
    deleted_floor_ms: int | None = None
    """Every slot file that was deleted and not archived had ended by this due time, ms; -1: none
    was; None: nobody has noted it."""
    is_replica: bool = False
    """Whether it belongs to a group of several peers."""
    older: str = ""
    """Why its embedded topics may be of some time before what the other peers know; empty: they
    are not."""
    led_epoch: int = -1
    """The epoch that it was elected in, by its own state and by another's; -1: it was not."""


@dataclass(slots=True)
class Layout:
    """One wheel group. ``key``: of its ids, 16 bytes as hex; empty when no directory has it."""

    group: str = ""
    key: str = ""
    peers: list[PeerFiles] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Problems of a directory as a whole."""
    missing_slots: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    """Peer, and ``File.due_ms``, of live slot files that are in the catalog and do not exist."""
    made_ms: int = 0
    """When the search for files began, ms. Topics are read after that."""
    dead_letter_topic: str = "slotwheel-dead-letters"
    group_size: int = 0
    """How many peers the group has, by the state stores; 0: not known."""
    horizon_ms: int = 0
    """How far ahead a message may be due, ms; 0: not known."""
    schedules: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """The specifications of the schedules that the state stores have, by name and version."""
    long_from: int = NO_LONG_IDS
    """The offset of the first message with a long id, as of ``IdMint``."""

    def of(self, *kinds: str) -> list[File]:
        return [file for file in self.files if file.kind in kinds]


def due_within(due: Int64s, start_ms: int | None, end_ms: int | None) -> npt.NDArray[np.bool_]:
    """Which due times lie in [``start_ms``, ``end_ms``), shape (rows,); None: no limit."""
    mask = np.ones(len(due), np.bool_)
    if start_ms is not None:
        mask &= due >= start_ms
    if end_ms is not None:
        mask &= due < end_ms
    return mask
