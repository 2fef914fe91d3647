"""A task's summary of each file that it read: one small value a file, whatever the file's size.

The driver collects these, and no rows, from the scan. They are what it needs before a row can be
judged: which offsets a peer's journal covers, where something is missing, up to where rows were
committed, the group's key.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

import numpy as np

from ...wheel.schema import Int64s

TOPICS_MAX = 10_000
"""Topics that one task names; of further ones only the CRC is known."""
Ranges = list[list[int]]
"""Pairs of numbers; of ranges, ``[base, next]``, ascending and apart."""


@dataclass(slots=True)
class FileSummary:
    """A file's summary. ``number``: of the file; a Kafka source has several of one number, one a
    task."""

    number: int
    rows: int = 0
    entries: int = 0
    """JOURNAL: entries read, of any kind."""
    first_index: int = -1
    last_index: int = -1
    last_epoch: int = -1
    first_offset: int = -1
    """JOURNAL: first offset of the first entry; ``next_offset``: one behind the last. -1: no
    entry."""
    next_offset: int = -1
    first_created_ms: int = -1
    """JOURNAL: when its first row was accepted; -1: it has none."""
    offsets: Ranges = field(default_factory=list)
    """JOURNAL: offsets of the rows read."""
    marks: str = ""
    """JOURNAL: the newest ``Marks`` in it, hex; empty: none."""
    marks_index: int = -1
    max_l: int = -1
    """JOURNAL: the largest L of a mark. Lower offsets were committed, as they had left."""
    group: str = ""
    key: str = ""
    """JOURNAL: group and key (hex) of the last configuration in it; empty: none."""
    peers: int = 0
    """JOURNAL: the number of peers in its last configuration; 0: no peers, or none read."""
    named: int = 0
    """JOURNAL, SLOT: rows that have names."""
    scheduled: int = 0
    """JOURNAL: runs of schedules and, of a whole segment, changes of schedules."""
    indexes: Ranges = field(default_factory=list)
    """JOURNAL: the entries that were read, as ranges of their indexes."""
    epochs: Ranges = field(default_factory=list)
    """JOURNAL: the first index of each epoch in it, and the epoch."""
    newest: list[int] = field(default_factory=list)
    """JOURNAL: the newest epoch with rows, and when its first and its last row in the file were
    accepted, ms; empty: there are no rows."""
    topics: dict[int, str] = field(default_factory=dict)
    """Names of topics by their CRC-32C, each in the first summary of its task that has such
    rows."""
    topics_omitted: bool = False
    """There were more topics than ``TOPICS_MAX``."""
    damaged: bool = False
    """Rows may be missing from the file."""
    foreign: int = 0
    """Rows of another group, or without an id: counted and left out."""
    forged: int = 0
    """RECEIPTS: rows whose id was not made with this group's key."""
    is_strange: bool = False
    """The file belongs to another run as a whole, which is a problem: its facts do not count."""
    read: list[int] = field(default_factory=list)
    """TOPIC, DUMP: CRCs of the topics of its records, of any producer; up to ``TOPICS_MAX``."""
    problems: dict[str, int] = field(default_factory=dict)
    """Problems that were found in the file, by kind, described or not."""
    gone: bool = False
    """SLOT: it was live when it was listed, and a running node has deleted it since."""
    note: str = ""
    """Anything else that a person should read, in one line."""

    def add_offsets(self, offsets: Int64s) -> None:
        """Add rows with these offsets; calls come in the order of the journal."""
        for part in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
            if not len(part):
                continue
            base, next_offset = int(part[0]), int(part[-1]) + 1
            if self.offsets and self.offsets[-1][1] == base:
                self.offsets[-1][1] = next_offset
            else:
                self.offsets.append([base, next_offset])

    def add_read(self, topics: Collection[int]) -> None:
        if not set(self.read).issuperset(topics):
            self.read = sorted({*self.read, *topics})[:TOPICS_MAX]

    def to_json(self) -> str:
        """The summary without default values: there may be a hundred thousand of them."""
        fields = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        return json.dumps({"number": self.number, **fields})

    @classmethod
    def from_json(cls, text: str) -> FileSummary:
        fields = json.loads(text)
        # A key in JSON can only be text.
        topics = {int(crc): name for crc, name in fields.pop("topics", {}).items()}
        return cls(**fields, topics=topics)


_DEFAULTS = asdict(FileSummary(-1))
