"""What a task says about each file that it read: one small value a file, whatever the file's size.

The driver takes these, and only these, from the scan: they are what it must know before a row can
be judged - which offsets a peer's journal covers, where something is missing, up to where rows were
committed, what the group's key is.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

TOPICS_MAX = 10_000
"""Names told by one task; beyond that only their CRCs are known."""
Ranges = list[list[int]]
"""``[base, next]`` pairs of offsets, ascending and apart."""


@dataclass(slots=True)
class FileSummary:
    """``number``: of the file; of a Kafka source there are several of one number, one a task."""

    number: int
    rows: int = 0
    entries: int = 0
    """JOURNAL: entries read, of any kind."""
    first_index: int = -1
    last_index: int = -1
    last_epoch: int = -1
    first_offset: int = -1
    """JOURNAL: where its first entry begins; ``next_offset``: where its last one ends. -1: none."""
    next_offset: int = -1
    first_created_ms: int = -1
    """JOURNAL: when the first row of it was accepted; -1: it has none."""
    offsets: Ranges = field(default_factory=list)
    """JOURNAL: offsets of the rows read."""
    gaps: Ranges = field(default_factory=list)
    """JOURNAL: offsets between rows read that are missing: of damage, or of rows taken out."""
    marks: str = ""
    """JOURNAL: the newest ``Marks`` in it, hex; empty: none."""
    marks_index: int = -1
    max_l: int = -1
    """JOURNAL: the largest L of a mark. Lower offsets were committed: they had been handed out."""
    group: str = ""
    key: str = ""
    """JOURNAL: group and key (hex) of the last configuration in it; empty: none."""
    peers: int = 0
    """JOURNAL: of how many peers it speaks; 0: of none."""
    topics: dict[int, str] = field(default_factory=dict)
    """CRC-32C of a topic's name: the name. Of the files of one task, the first that has it."""
    topics_omitted: bool = False
    """There were more than ``TOPICS_MAX``."""
    damaged: bool = False
    """Rows of it may be missing."""
    first_delivered_ms: int = -1
    last_delivered_ms: int = -1
    """TOPIC, DUMP: when the first and the last record got there; -1: no record."""
    foreign: int = 0
    """Rows of another group, or without an id: counted and left out."""
    forged: int = 0
    """RECEIPTS: rows with an id that this group's key does not give."""
    is_strange: bool = False
    """It belongs to another run as a whole, which is a problem of its own: no fact of it counts."""
    read: list[int] = field(default_factory=list)
    """TOPIC, DUMP: CRCs of the topics that it has records of, of whomever; up to ``TOPICS_MAX``."""
    problems: dict[str, int] = field(default_factory=dict)
    """How many problems of each kind were found in it; not all of them need be described."""
    gone: bool = False
    """SLOT: it was a live one, and is not any more: a node that runs was done with it meanwhile."""
    note: str = ""
    """Anything else worth a line, for a person."""

    def add_offsets(self, base: int, next_offset: int) -> None:
        """Rows ``base <= offset < next_offset``, read in the order of the journal."""
        if self.offsets and self.offsets[-1][1] == base:
            self.offsets[-1][1] = next_offset
            return
        if self.offsets and self.offsets[-1][1] < base:
            self.gaps.append([self.offsets[-1][1], base])
        self.offsets.append([base, next_offset])

    def add_read(self, topics: Collection[int]) -> None:
        if not set(self.read).issuperset(topics):
            self.read = sorted({*self.read, *topics})[:TOPICS_MAX]

    def add_delivered(self, first_ms: int, last_ms: int) -> None:
        known = self.first_delivered_ms >= 0
        self.first_delivered_ms = min(self.first_delivered_ms, first_ms) if known else first_ms
        self.last_delivered_ms = max(self.last_delivered_ms, last_ms)

    def to_json(self) -> str:
        """Only what is not as it is by default: there may be a hundred thousand of them."""
        fields = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        return json.dumps({"number": self.number, **fields})

    @classmethod
    def from_json(cls, text: str) -> FileSummary:
        fields = json.loads(text)
        # JSON knows only text as a key.
        topics = {int(crc): name for crc, name in fields.pop("topics", {}).items()}
        return cls(**fields, topics=topics)


_DEFAULTS = asdict(FileSummary(-1))
