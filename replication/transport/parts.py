"""Parts of a snapshot or of a slot, as they go from one peer to another.

On a channel of its own the asking peer sends one request, and gets parts of files or of rows until
an end. What is missing without an end is lost, so a channel that breaks never looks like a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from ...wheel.errors import InvalidBatch, NodeUnreachable
from ...wheel.files import Bytes
from ...wire.channel import Channel
from ...wire.frames import FrameLimits, Kind

REQUEST_BYTES_MAX = 64 << 20
"""A request for a snapshot has 20 bytes for each file that is there already."""
PART_BYTES_MAX = 1 << 30
"""The limit of one part: a snapshot's header. A slot's rows come in shares of some megabytes."""
HEADER = -1
"""In place of the slot, or of the position: this part says what follows."""

# +--------+----------+
# | slot   | position |
# | i64    | i64      |
# +--------+----------+
_PLACE = struct.Struct(
    "<"
    "q"  # a slot's number
    "q"  # of a snapshot: where the bytes stand in its file; of a slot: the number of the block
)
assert _PLACE.size == 16

REQUESTS: FrameLimits = {Kind.REQUEST: (0, REQUEST_BYTES_MAX)}
PARTS: FrameLimits = {Kind.CHUNK: (_PLACE.size, PART_BYTES_MAX), Kind.END: (0, 0)}


class SentPart(NamedTuple):
    slot: int
    position: int
    data: memoryview


SendPart = Callable[[int, int, Bytes], None]
"""(slot, position, data). Errors: ``NodeUnreachable``: nobody wants more of it."""


def send_part(channel: Channel, slot: int, position: int, data: Bytes) -> None:
    channel.send(Kind.CHUNK, _PLACE.pack(slot, position), data)


def receive_part(channel: Channel, timeout_s: float | None = None) -> SentPart | None:
    """The next part; None at the end. Errors: ``NodeUnreachable``, ``InvalidBatch``, the peer's."""
    frame = channel.receive(timeout_s)
    if frame is None:
        raise NodeUnreachable("the peer sent nothing in time")
    if frame.kind == Kind.END:
        return None
    if len(frame.metadata) != _PLACE.size:
        raise InvalidBatch(
            "a part of a snapshot or a slot without its place",
            got=f"{len(frame.metadata)} bytes of metadata",
            limit=f"{_PLACE.size} bytes",
            remedy="Run the same version of slotwheel on every peer",
        )
    slot, position = _PLACE.unpack(frame.metadata)
    return SentPart(slot, position, memoryview(frame.body))
