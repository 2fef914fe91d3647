"""How far a stream has read: the offsets that Spark keeps between two batches, as JSON.

Theory: a file's name and a place in it are not enough. A segment is dropped, and its file is used
for another one; a peer cuts off entries that were never committed and writes others in their place.
So a position also identifies what is before it: the journal's store, the next index, and the
checksum of the last entry that was read. If these do not match any more, it is of another journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...wheel.errors import UnsupportedVersion
from ...wheel.journal.segment import SEGMENT_BYTES
from ...wheel.topics.topicfile import HEADER_BYTES

VERSION = 1


@dataclass(frozen=True, slots=True)
class JournalAt:
    """The position of the next entry of a peer's journal."""

    segment: int
    """First index of the segment, which is in its file's name."""
    position: int = SEGMENT_BYTES
    index: int = 0
    """Index of the next entry; 0: not known."""
    epoch: int = 0
    last: int = 0
    """Byte of the last entry that was read in this segment; 0: none was."""
    crc: int = 0
    """CRC-32C of that entry's frame and header."""
    store: str = ""
    """Store id of the segment, hex."""
    begun: int = 0
    """The segment at whose begin reading was last started."""
    restarts: int = 0
    """How often reading was started again."""
    note: str = ""
    """A fault before this position; reported once, when it changes."""


@dataclass(frozen=True, slots=True)
class TopicAt:
    """The place from which to read on in an embedded topic."""

    segment: int
    """First position of the segment."""
    at: int = HEADER_BYTES
    """Byte in its index."""
    position: int = 0
    """Position of the next row."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Positions:
    """All positions of a stream. ``journals``: by peer; ``topics``: by ``<peer>/<topic>``."""

    journals: Mapping[str, JournalAt] = field(default_factory=dict)
    topics: Mapping[str, TopicAt] = field(default_factory=dict)
    looked_ms: int = 0
    """Everything written before this time, ms, is before these positions; 0: that is not known."""

    def to_json(self) -> dict[str, Any]:
        """The positions as plain values for Spark. Fields at their defaults are left out."""
        return {
            "slotwheel": VERSION,
            "journals": {name: _fields(at) for name, at in sorted(self.journals.items())},
            "topics": {name: _fields(at) for name, at in sorted(self.topics.items())},
            "looked_ms": self.looked_ms,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Positions:
        """The positions in plain values. Errors: ``UnsupportedVersion``."""
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
