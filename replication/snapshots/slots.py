"""The rows of one slot from one peer to another whose own slot file is damaged.

They come as parts, as a snapshot does: the first has the position ``HEADER`` and the losses that
repairs recorded for the slot, as JSON; each of the others is one block as it stands in a slot file,
with its own checksum (``wheel/slots/blocks.py``).
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict

import pyarrow as pa

from ...wheel.arrowclaims import plain_rows
from ...wheel.errors import InvalidBatch
from ...wheel.peers.heal import SlotRows
from ...wheel.schema import ROW
from ...wheel.slots.blocks import encode_blocks, seal, sound_end
from ...wheel.state import decode_losses
from ...wire.channel import Secure
from ...wire.frames import Kind
from ..transport.exchange import open_channel
from ..transport.handshake import Greeting
from ..transport.parts import HEADER, PARTS, SendPart, SentPart, receive_part

_TIMEOUT_S = 40.0
"""Timeout of a fetch. Peers are asked one after the other by a thread that counts as hanging after
minutes of silence, so all fetches together must take less, even if each times out."""

ReadSlotRows = Callable[[int, int], SlotRows]
"""(second, upto) to rows: see ``PeerWheel.slot_rows``."""


# +--------+------+
# | second | upto |
# | i64    | i64  |
# +--------+------+
_REQUEST = struct.Struct(
    "<"
    "q"  # the slot's absolute second
    "q"  # the offset below which its rows are wanted
)
assert _REQUEST.size == 16


def send_slot(rows: ReadSlotRows, request: bytes, send: SendPart) -> None:
    """Send the rows that a peer asks for. Errors: ``InvalidBatch``; ``LookupError``, ``OSError``;
    ``NodeUnreachable``: the peer has left."""
    if len(request) != _REQUEST.size:
        raise InvalidBatch(
            "not a request for a slot", got=f"{len(request)} bytes", limit=f"{_REQUEST.size} bytes"
        )
    second, upto = _REQUEST.unpack(request)
    slot_rows = rows(second, upto)
    losses = [asdict(loss) for loss in slot_rows.losses]
    send(second, HEADER, json.dumps(losses).encode())
    for number, block in enumerate(slot_rows.blocks):
        [data] = encode_blocks(block, [0])
        send(second, number, b"".join(seal(data, 0)))


def fetch_slot(
    address: str, greeting: Greeting, second: int, upto: int, secure: Secure | None = None
) -> SlotRows:
    """Fetch the rows of a second below offset ``upto`` from a peer. ``secure``: as of
    ``open_channel``. Errors: ``SlotwheelError``: it
    cannot be reached, it refuses, or its answer does not match."""
    end = time.monotonic() + _TIMEOUT_S
    parts: list[SentPart] = []
    with closing(open_channel(address, greeting, PARTS, secure)) as channel:
        channel.send(Kind.REQUEST, b"", _REQUEST.pack(second, upto))
        while (part := receive_part(channel, max(0.0, end - time.monotonic()))) is not None:
            expected = second, HEADER + len(parts)
            if part[:2] != expected:
                raise InvalidBatch("not the rows of a slot", got=part[:2], limit=expected)
            parts.append(part)
    if not parts:
        raise InvalidBatch("not the rows of a slot", got="nothing", limit="at least the losses")
    losses = decode_losses(bytes(parts[0].data), f"losses of slot {second}")
    return SlotRows(second, [_block(part.data) for part in parts[1:]], losses)


def _block(data: memoryview) -> pa.RecordBatch:
    if sound_end(data, 0) != len(data):
        raise InvalidBatch("a block of a slot that is not what was sent", got=f"{len(data)} bytes")
    try:
        rows = plain_rows(pa.py_buffer(data), ROW)
        rows.validate(full=True)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise InvalidBatch(f"a broken block of a slot: {str(error)[:200]}") from None
    return rows
