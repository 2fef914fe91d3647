"""The append protocol, version 1: how messages follow each other on a plain TCP connection.

Theory: what a batch and an answer consist of is the same as over Flight (``protocol.py``): metadata
of a few bytes, and beside a batch its Arrow record batch message. Each such pair is a *packet*,
both lengths first. A client begins with a hello: the magic, and a packet whose metadata is its
append command; the node answers it with a packet, too, or refuses it as it refuses a batch.

Rules: a length is checked before anything of that size is allocated. A reader keeps what it was
given until it is a whole packet, whatever the pieces; a large body is received where it will stay.
Nothing here opens a socket.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from .errors import InvalidBatch, UnsupportedVersion
from .protocol import NO_BATCH, AppendCommand, encode_stored

# Hello, client to node: the magic, then a packet without a body.
# +--------+---------+
# | magic  | version |
# | 7 B    | u8      |
# +--------+---------+
_MAGIC = struct.Struct(
    "<"
    "7s"  # magic: "SWAPPND"
    "B"  # version
)
MAGIC = b"SWAPPND"
VERSION = 1

# Packet, both ways:
# +-----------------+-------------+----------+------+
# | metadata length | body length | metadata | body |
# | u32             | u32         |          |      |
# +-----------------+-------------+----------+------+
_PACKET = struct.Struct(
    "<"
    "I"  # metadata length, bytes
    "I"  # body length, bytes; 0 in a hello and in an answer
)
assert _MAGIC.size == 8
assert _PACKET.size == 8

COMMAND_BYTES_MAX = 1024
"""Of the metadata of a client's packets; that of a batch has 24 bytes at most."""
_COPIED_BYTES_MAX = 64 << 10
"""A smaller body is copied out of what was received; for a larger one memory of its own pays."""

ACCEPTED = encode_stored(NO_BATCH, -1, 0, np.empty(0, np.uint32))
"""The metadata of the packet that answers a hello: stored, of no batch."""


class Packet(NamedTuple):
    metadata: bytes
    body: pa.Buffer


def encode_hello(command: AppendCommand) -> bytes:
    return _MAGIC.pack(MAGIC, VERSION) + encode_packet(command.encode())


def encode_packet(metadata: bytes, body_bytes: int = 0) -> bytes:
    """A packet, or what stands before its body of ``body_bytes``."""
    return _PACKET.pack(len(metadata), body_bytes) + metadata


class PacketReader:
    """Cuts what is received into packets. ``greeted``: whether there is no magic before the first.

    Errors of ``next``: ``InvalidBatch``, ``UnsupportedVersion``; nothing more can be read then.
    """

    def __init__(self, metadata_max: int, body_max: int, *, greeted: bool = False) -> None:
        self._metadata_max = metadata_max
        self._body_max = body_max
        self._greeted = greeted
        self._held = bytearray()
        self._at = 0  # what stands before it in ``_held`` was given out
        self._metadata = b""
        self._body: pa.Buffer | None = None  # a large one, that is not whole yet
        self._missing = memoryview(b"")  # where the rest of it has to go

    @property
    def room(self) -> memoryview | None:
        """Where the next bytes are to be received; None: anywhere, and then ``feed`` takes them."""
        return self._missing if len(self._missing) else None

    def received(self, count: int) -> None:
        """``count`` bytes were received into ``room``."""
        self._missing = self._missing[count:]

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes that were received while there was no ``room``."""
        self._held += data

    @property
    def between_packets(self) -> bool:
        """Whether nothing of a packet is there that is not whole."""
        return self._body is None and len(self._held) == self._at

    def next(self) -> Packet | None:
        """The next packet, if it is whole."""
        if self._body is not None:
            if len(self._missing):
                return None
            packet, self._body = Packet(self._metadata, self._body), None
            return packet
        if not self._greeted and not self._greet():
            return None
        ready = len(self._held) - self._at - _PACKET.size
        if ready < 0:
            self._forget()
            return None
        metadata_bytes, body_bytes = _PACKET.unpack_from(self._held, self._at)
        if metadata_bytes > self._metadata_max or body_bytes > self._body_max:
            raise InvalidBatch(
                "a packet is too large",
                got=f"{metadata_bytes} bytes of metadata, a body of {body_bytes} bytes",
                limit=f"{self._metadata_max} and {self._body_max} bytes",
                remedy="Send smaller batches",
            )
        begin = self._at + _PACKET.size
        middle, end = begin + metadata_bytes, begin + metadata_bytes + body_bytes
        if ready >= metadata_bytes + body_bytes:
            metadata = bytes(self._held[begin:middle])
            body = pa.py_buffer(bytes(self._held[middle:end]))
            self._at = end
            return Packet(metadata, body)
        if ready >= metadata_bytes and body_bytes > _COPIED_BYTES_MAX:
            self._metadata = bytes(self._held[begin:middle])
            self._body = pa.allocate_buffer(body_bytes)
            there = len(self._held) - middle
            self._missing = memoryview(self._body).cast("B")
            self._missing[:there] = self._held[middle:]
            self._missing = self._missing[there:]
            self._at = len(self._held)
        self._forget()
        return None

    def _greet(self) -> bool:
        if len(self._held) < _MAGIC.size:
            return False
        magic, version = _MAGIC.unpack_from(self._held)
        if magic != MAGIC:
            raise InvalidBatch(
                "not a client of the append protocol",
                got=repr(bytes(self._held[: _MAGIC.size])),
                limit=repr(MAGIC),
                remedy="Other protocols have other ports; see docs/formats.md",
            )
        if version != VERSION:
            raise UnsupportedVersion(
                "unknown version of the append protocol",
                got=f"version {version}",
                limit=f"version {VERSION}",
                remedy="Use a client and a node of matching versions",
            )
        self._at = _MAGIC.size
        self._greeted = True
        return True

    def _forget(self) -> None:
        """What was given out."""
        del self._held[: self._at]
        self._at = 0
