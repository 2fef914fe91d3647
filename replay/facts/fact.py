"""A fact: that a row was seen somewhere. 64 bytes, fixed width, whatever the message's size.

Theory: to judge a message, all its sightings must be side by side: in journals, in slot files, in
topics. Moving rows between machines is what a cluster is slow at, so a fact is small: the message's
content is a digest. And facts are not moved row by row: facts of a range of offsets are packed into
one binary value (``bucket_of``), which Spark moves whole, and NumPy unpacks.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Facts = npt.NDArray[np.void]
"""Shape (n,), dtype ``FACT``."""


class Seen(IntEnum):
    """The kind of place where a row was seen. 0 is never valid."""

    ACCEPTED = 1
    """A message in a journal entry. ``where``: the entry's index; ``at``: its epoch."""
    CANCEL = 2
    """A cancel row in a journal entry, at its own offset. ``where``, ``at``: as above."""
    CANCELLED = 3
    """The target of a cancel row in a journal entry or a slot file, at the target's offset.
    ``where``: offset of the cancel row; ``at``: its ``created``."""
    SLOT = 4
    """A row in a live slot file. ``where``: the slot's number."""
    ARCHIVED = 5
    """A row in a slot file of the archive. ``where``: the slot's number."""
    DELIVERED = 6
    """A record in its topic. ``at``: when it got there, ms; ``where``: position in the topic."""
    DEAD = 7
    """A record in the dead-letter topic, described as it was before. ``at``, ``where``: as for
    DELIVERED."""
    RECEIPT = 8
    """A message that a producer holds a receipt for. ``where``: its number in the file."""
    PRODUCED = 9
    """A client's event: the node has acknowledged it. ``at``: when it was handed to the client, ms;
    ``where``, ``digest``: the event's sender (a hash) and number, by which a copy is known."""
    CONSUMED = 10
    """A consumer's event: the application got it at ``at``, ms, and has answered. ``created``:
    CRC-32C of the consumers' group; ``where``, ``digest``: as of PRODUCED."""

    REDRIVEN = 11
    """A dead letter of the message was sent again, at the message's own offset. ``where``: offset
    of the row that it became."""
    RETRIED = 12
    """A consumer's retry of the message, at the message's own offset. ``where``: offset of the row;
    ``at``: the number of the attempt; ``created``: CRC-32C of the group's topic of retries."""
    NAMED = 13
    """A message that was accepted with a name. ``digest``, ``at``: the two halves of the name's
    key; ``where``: one behind the last offset of its entry, ``UNKNOWN_END`` in a slot file, which
    has no entries; ``created``: when it was accepted, or the clock of the newest mark before its
    entry if that is later."""


UNKNOWN_END = int(np.iinfo(np.int64).max)
"""Greater than any offset: see ``Seen.NAMED``."""
CANCEL_ROW = 1
"""Flag of a SLOT or ARCHIVED fact: a cancel row."""
FORGED = 2
"""Flag of a DELIVERED or DEAD fact: the id's check is not what the group's key gives."""
NO_DIGEST = 4
"""Flag: ``digest`` is not valid."""
OUT_OF_ORDER = 8
"""Flag of a DELIVERED fact: a later message stands before it in the same chunk."""
ELSEWHERE = 16
"""Flag of a DELIVERED fact: its key belongs to another of the topic's partitions."""
EXPIRED = 32
"""Flag of a DEAD fact: that is its reason. Of a DELIVERED fact: it got there ``IN_FLIGHT_MS`` after
it had expired, or later."""
TOO_SOON = 64
"""Flag of a DEAD fact, beside EXPIRED: it got there before it expired."""
BURIED = 128
"""Flag of a CONSUMED fact: the consumer made a dead letter of it."""
IN_FLIGHT_MS = 60_000
"""A message that a sink gets just before it expires may be in its topic so much later, ms: the sink
looks up topics, tries again, and waits for its broker each time."""

FACT = np.dtype(
    [
        ("offset", "<i8"),  # the message's offset in the wheel's log
        ("due", "<i8"),  # ms
        ("created", "<i8"),  # ms; -1: not known here
        ("digest", "<u8"),  # of topic, key, value and headers
        ("at", "<i8"),  # see Seen
        ("where", "<i8"),  # see Seen
        ("topic", "<u4"),  # CRC-32C of the topic's name; 0 for a cancel row
        ("partition", "<i4"),  # asked for, or where it arrived; -1: none
        ("file", "<u4"),  # File.number
        ("peer", "<u2"),  # File.peer
        ("seen", "u1"),  # Seen
        ("flags", "u1"),  # see above
    ]
)
assert FACT.itemsize == 64

_CODEC = pa.Codec("zstd", 1)
_LENGTH_BYTES = 8

BUCKET_BITS = 18
"""Facts of 2**18 consecutive offsets come together in one task."""


SHARES = 256
"""What is judged by its name, and not by its offset, comes together in so many shares of all names.
Each of them must fit into a task's memory."""


def bucket_of(offset: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return offset >> BUCKET_BITS


def compress(packed: bytes | bytearray) -> bytes:
    """Compress packed facts for moving them: to a fifth, which costs less time than it saves."""
    pressed: bytes = _CODEC.compress(packed, asbytes=True)
    return len(packed).to_bytes(_LENGTH_BYTES, "little") + pressed


def decompress(data: bytes, dtype: np.dtype[np.void] = FACT) -> Facts:
    """Facts, or packed records of another ``dtype``, from the result of ``compress``; not
    writable."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    packed = _CODEC.decompress(memoryview(data)[_LENGTH_BYTES:], length, asbytes=True)
    return np.frombuffer(packed, dtype)
