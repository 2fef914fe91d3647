"""The rows of one slot's time from one peer to another whose own slot file is damaged.

They come as parts, as a snapshot does: the first has the position ``HEADER`` and the losses that
repairs recorded for that time, as JSON; each of the others is one block as it stands in a slot
file, with its own checksum (``wheel/slots/blocks.py``). Both sides have one of them in memory at a
time, as the file of a day may have gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextlib import closing

import pyarrow as pa

from ...wheel.arrowclaims import plain_rows
from ...wheel.errors import InvalidBatch
from ...wheel.peers.heal import SlotRows
from ...wheel.schema import ROW
from ...wheel.slots.blocks import encode_blocks, seal, sound_end
from ...wheel.slots.slot import is_slot, stem_of
from ...wheel.state import decode_losses, encode_losses
from ...wire.channel import Secure
from ...wire.frames import Kind
from ..transport.exchange import open_channel
from ..transport.handshake import Greeting
from ..transport.parts import HEADER, PARTS, SendPart, SentPart, receive_part

_TIMEOUT_S = 40.0
"""Timeout of each part. A thread that counts as hanging after minutes of silence waits for one of
them at a time, so it must be less, even if all peers time out one after the other."""

ReadSlotRows = Callable[[int, int], SlotRows]
"""(slot, upto) to rows: see ``PeerWheel.slot_rows``."""


# +------+------+
# | slot | upto |
# | i64  | i64  |
# +------+------+
_REQUEST = struct.Struct(
    "<"
    "q"  # the slot's number
    "q"  # the offset below which the rows of its time are wanted
)
assert _REQUEST.size == 16


def send_slot(rows: ReadSlotRows, request: bytes, send: SendPart) -> None:
    """Send the rows that a peer asks for. Errors: ``InvalidBatch``; ``LookupError``, ``OSError``;
    ``NodeUnreachable``: the peer has left."""
    if len(request) != _REQUEST.size:
        raise InvalidBatch(
            "not a request for a slot", got=f"{len(request)} bytes", limit=f"{_REQUEST.size} bytes"
        )
    slot, upto = _REQUEST.unpack(request)
    if not is_slot(slot):
        raise InvalidBatch("not a request for a slot", got=slot, limit="the number of a slot")
    slot_rows = rows(slot, upto)
    send(slot, HEADER, encode_losses(slot_rows.losses))
    for number, block in enumerate(slot_rows.blocks):
        [data] = encode_blocks(block, [0])
        send(slot, number, b"".join(seal(data, 0)))


def fetch_slot(
    address: str, greeting: Greeting, slot: int, upto: int, secure: Secure | None = None
) -> SlotRows:
    """Fetch the rows of a slot's time below offset ``upto`` from a peer; its blocks come while they
    are iterated, and the connection ends with that. ``secure``: as of ``open_channel``. Errors,
    also while iterating: ``SlotwheelError``: it cannot be reached, it refuses, or its answer does
    not match."""
    parts = _parts(address, greeting, slot, upto, secure)
    first = next(parts, None)
    if first is None:
        raise InvalidBatch("not the rows of a slot", got="nothing", limit="at least the losses")
    losses = decode_losses(bytes(first.data), f"losses of slot {stem_of(slot)}")
    return SlotRows(slot, (_block(part.data) for part in parts), losses, parts.close)


def _parts(
    address: str, greeting: Greeting, slot: int, upto: int, secure: Secure | None
) -> Generator[SentPart]:
    with closing(open_channel(address, greeting, PARTS, secure)) as channel:
        channel.send(Kind.REQUEST, b"", _REQUEST.pack(slot, upto))
        position = HEADER
        while (part := receive_part(channel, _TIMEOUT_S)) is not None:
            if part[:2] != (slot, position):
                raise InvalidBatch("not the rows of a slot", got=part[:2], limit=(slot, position))
            yield part
            position += 1


def _block(data: memoryview) -> pa.RecordBatch:
    if sound_end(data, 0) != len(data):
        raise InvalidBatch("a block of a slot that is not what was sent", got=f"{len(data)} bytes")
    try:
        rows = plain_rows(pa.py_buffer(data), ROW)
        rows.validate(full=True)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise InvalidBatch(f"a broken block of a slot: {str(error)[:200]}") from None
    return rows
