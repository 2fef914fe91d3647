"""How far a stream has read: the offsets that Spark keeps between two batches, as JSON.

Theory: a file's name and a place in it are not enough. A segment is dropped, and its file serves
as another one; a peer cuts off entries that were never committed and writes others in their place.
So a position also says what stood before it: the journal's store, the next index, and the checksum
of the last entry that was read. Where that does not fit any more, it is of another journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...delivery.embedded.topicfile import HEADER_BYTES
from ...wheel.errors import UnsupportedVersion
from ...wheel.journal.segment import SEGMENT_BYTES

VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalAt:
    """Where the next entry of a peer's journal is looked for."""

    segment: int
    """First index of the segment, by which its file is named."""
    position: int = SEGMENT_BYTES
    index: int = 0
    """Of the next entry; 0: not known."""
    epoch: int = 0
    last: int = 0
    """Position of the last entry that was read in this segment; 0: none was."""
    crc: int = 0
    """Of that entry's frame and header."""
    store: str = ""
    """Store id of the segment, hex."""
    begun: int = 0
    """Segment with whose begin the reading began, the last time."""
    restarts: int = 0
    """How often that was."""
    note: str = ""
    """What was wrong on the way here; told once, when it changes."""


@dataclass(frozen=True, slots=True)
class TopicAt:
    """Where the next record of an embedded topic's index is looked for."""

    segment: int
    """First position of the segment."""
    at: int = HEADER_BYTES
    """Byte of its index."""
    position: int = 0
    """Of the next row."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Positions:
    """Of all that a stream reads. ``journals``: by peer; ``topics``: by ``<peer>/<topic>``."""

    journals: Mapping[str, JournalAt] = field(default_factory=dict)
    topics: Mapping[str, TopicAt] = field(default_factory=dict)
    looked_ms: int = 0
    """All that was written before is not behind these positions; 0: it may be."""

    def to_json(self) -> dict[str, Any]:
        """What Spark takes: plain values. Fields at their defaults are left out."""
        return {
            "slotwheel": VERSION,
            "journals": {name: _fields(at) for name, at in sorted(self.journals.items())},
            "topics": {name: _fields(at) for name, at in sorted(self.topics.items())},
            "looked_ms": self.looked_ms,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Positions:
        """Errors: ``UnsupportedVersion``."""
        if fields.get("slotwheel") != VERSION:
            raise UnsupportedVersion(
                "unknown version of a stream's positions",
                got=fields.get("slotwheel"),
                limit=VERSION,
                remedy="Use the slotwheel version that wrote the checkpoint, or begin a new one",
            )
        return cls(
            {name: JournalAt(**at) for name, at in fields["journals"].items()},
            {name: TopicAt(**at) for name, at in fields["topics"].items()},
            fields["looked_ms"],
        )


def _fields(at: JournalAt | TopicAt) -> dict[str, Any]:
    default = asdict(type(at)(-1))
    return {name: value for name, value in asdict(at).items() if value != default[name]}
