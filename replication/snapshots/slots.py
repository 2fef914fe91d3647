"""The rows of one slot from one peer to another whose own slot file is damaged.

One Flight call, answered with a stream of rows ``(second, position, data)`` as for a snapshot: the
first has the position ``HEADER`` and the losses that repairs recorded for the slot, as JSON; each
of the others is one block as it stands in a slot file, with its own checksum
(``wheel/slots/blocks.py``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa
from pyarrow import flight

from ...wheel.arrowclaims import plain_rows
from ...wheel.errors import InvalidBatch, NotRunning, SlotwheelError
from ...wheel.peers.heal import SlotRows
from ...wheel.protocol import translated
from ...wheel.schema import ROW
from ...wheel.slots.blocks import encode_blocks, seal, sound_end
from ...wheel.state import decode_losses
from ..transport.exchange import calling, refusal
from ..transport.handshake import Greeting
from .pull import CHUNKS, HEADER, chunk_row, chunk_rows

_TIMEOUT_S = 40.0
"""Timeout of a call. Peers are asked one after the other by a thread that counts as hanging after
minutes of silence, so all calls together must take less, even if each times out."""

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


def slot_stream(rows: ReadSlotRows, request: bytes) -> flight.GeneratorStream:
    """Flight's data stream for a peer. Errors: ``InvalidBatch``."""
    if len(request) != _REQUEST.size:
        raise InvalidBatch("not a request for a slot", got=f"{len(request)} bytes")
    second, upto = _REQUEST.unpack(request)
    return flight.GeneratorStream(CHUNKS, _blocks(rows, second, upto))


def _blocks(rows: ReadSlotRows, second: int, upto: int) -> Iterator[pa.RecordBatch]:
    try:
        found = rows(second, upto)
        losses = [asdict(one) for one in found.losses]
        yield chunk_row(second, HEADER, json.dumps(losses).encode())
        for number, block in enumerate(found.blocks):
            [data] = encode_blocks(block, [0])
            yield chunk_row(second, number, b"".join(seal(data, 0)))
    except (SlotwheelError, LookupError, OSError) as error:
        if not isinstance(error, SlotwheelError):
            error = NotRunning(str(error), remedy="It is asked again in a moment")
        raise refusal(error) from None


def fetch_slot(address: str, greeting: Greeting, second: int, upto: int) -> SlotRows:
    """Fetch the rows of a second below offset ``upto`` from a peer. Errors: ``SlotwheelError``: it
    cannot be reached, it refuses, or its answer does not match."""
    ticket = flight.Ticket(greeting.encode() + b"\n" + _REQUEST.pack(second, upto))
    with calling(address, greeting) as (client, _), translated():
        options = flight.FlightCallOptions(timeout=_TIMEOUT_S)
        table = client.do_get(ticket, options).read_all()
    parts = [part for batch in table.to_batches() for part in chunk_rows(batch)]
    expected = [(second, position) for position in range(HEADER, len(parts) - 1)]
    if not parts or [part[:2] for part in parts] != expected:
        raise InvalidBatch("not the rows of a slot", got=[part[:2] for part in parts][:5])
    losses = decode_losses(bytes(parts[0][2]), f"losses of slot {second}")
    return SlotRows(second, [_block(data) for _, _, data in parts[1:]], losses)


def _block(data: memoryview) -> pa.RecordBatch:
    """Decode and check a block. Errors: ``InvalidBatch``."""
    if sound_end(data, 0) != len(data):
        raise InvalidBatch("a block of a slot that is not what was sent", got=f"{len(data)} bytes")
    try:
        rows = plain_rows(pa.py_buffer(data), ROW)
        rows.validate(full=True)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise InvalidBatch(f"a broken block of a slot: {str(error)[:200]}") from None
    return rows
