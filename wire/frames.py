"""The wire, version 1: how frames follow each other on a TCP connection.

Theory: whoever connects sends the magic and the version, and a *hello*; the other side answers with
a *welcome*, or with an error. From then on both send frames, each with its kind and its two lengths
first, so that a reader knows what it is going to get before it makes room for it.

Rules
- A length is compared with the limit of its kind before anything of that size is allocated. A kind
  without a limit is refused: who sends batches gets answers, and nothing else.
- A reader keeps what it was given until it is a whole frame, whatever the pieces; a large body is
  received where it will stay.
- Magic, version and the frame of an error never change: a program of any version can say to one of
  any other why it does not speak with it. A stranger gets the reason in its own protocol.

Nothing here opens a socket.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from ..wheel.errors import (
    InvalidBatch,
    InvalidConfiguration,
    NodeUnreachable,
    SlotwheelError,
    UnsupportedVersion,
)
from ..wheel.files import Bytes
from ..wheel.protocol import JSON_BYTES_MAX, decode_error

# Whoever connects sends first:
# +---------+---------+
# | magic   | version |
# | 6 bytes | u16     |
# +---------+---------+
_MAGIC = struct.Struct(
    "<"
    "6s"  # magic: "SWWIRE"
    "H"  # version of the wire
)
MAGIC = b"SWWIRE"
VERSION = 1

# Frame, both ways:
# +------+----------+-----------------+-------------+----------+------+
# | kind | reserved | metadata length | body length | metadata | body |
# | u8   | u8 = 0   | u16             | u32         |          |      |
# +------+----------+-----------------+-------------+----------+------+
_HEAD = struct.Struct(
    "<"
    "B"  # kind: see Kind
    "B"  # reserved, zero
    "H"  # metadata length, bytes
    "I"  # body length, bytes
)
assert _MAGIC.size == 8
assert _HEAD.size == 8

# Metadata of actions, their results, and errors; the name, in UTF-8, of an action alone:
# +--------+----------------+
# | number | name           |
# | u64    | up to 64 bytes |
# +--------+----------------+
_NUMBER = struct.Struct(
    "<Q"  # of the sender's choice; the result or the error has it, too
)
WHOLE = (1 << 64) - 1
"""The number in an error that concerns the connection as a whole, which ends with it."""

_NAME_BYTES_MAX = 64
HELLO_BYTES_MAX = 16 << 10
"""So much is kept of a connection before its hello is whole."""
_COPIED_BYTES_MAX = 64 << 10
"""A smaller body is copied out of what was received; for a larger one memory of its own pays."""
_NOWHERE = memoryview(b"")


class Kind(IntEnum):
    """The kinds of frames; docs/formats.md says what stands in each."""

    HELLO = 1
    WELCOME = 2
    BATCH = 3
    ROWS = 4
    ANSWER = 5
    ACTION = 6
    RESULT = 7
    ERROR = 8
    MESSAGE = 9
    BEAT = 10
    REQUEST = 11
    CHUNK = 12
    END = 13


FrameLimits = Mapping[int, tuple[int, int]]
"""By kind, the most bytes that metadata and body may have."""

_ERRORS = (_NUMBER.size, JSON_BYTES_MAX)
ACTIONS: FrameLimits = {Kind.ACTION: (_NUMBER.size + _NAME_BYTES_MAX, JSON_BYTES_MAX)}
OF_NEWCOMER: FrameLimits = {Kind.HELLO: (0, HELLO_BYTES_MAX)}
"""Frames that a node takes before a hello."""
OF_NODE: FrameLimits = {Kind.WELCOME: (0, JSON_BYTES_MAX), Kind.ERROR: _ERRORS}
"""Frames that are taken from whoever was connected to, before its welcome."""


class Frame(NamedTuple):
    """One frame. ``thrown_away``: bytes of a body that was too large; ``body`` is empty then."""

    kind: int
    metadata: bytes
    body: Bytes
    thrown_away: int = 0


def encode_frame(kind: int, metadata: bytes = b"", body_bytes: int = 0) -> bytes:
    """A frame without a body, or the bytes before its body of ``body_bytes``."""
    return _HEAD.pack(kind, 0, len(metadata), body_bytes) + metadata


def encode_hello(body: bytes) -> bytes:
    """The first bytes from whoever connects. ``body``: JSON."""
    return _MAGIC.pack(MAGIC, VERSION) + encode_frame(Kind.HELLO, b"", len(body)) + body


def encode_action(number: int, name: str) -> bytes:
    """The metadata of an action."""
    return _NUMBER.pack(number) + name.encode()


def decode_action(metadata: bytes) -> tuple[int, str]:
    """Number and name; of a result or an error, the name is empty. Errors: ``InvalidBatch``."""
    if len(metadata) < _NUMBER.size:
        raise InvalidBatch(
            "a frame without a usable number",
            got=f"{len(metadata)} bytes of metadata",
            limit=f"{_NUMBER.size} bytes, little-endian, and a name",
            remedy="See docs/formats.md",
        )
    return int(_NUMBER.unpack_from(metadata)[0]), metadata[_NUMBER.size :].decode(errors="replace")


def encode_answer(answer: bytes) -> bytes:
    """The whole frame of an answer to a batch or to plain rows (``wheel/protocol.py``)."""
    return encode_frame(Kind.ANSWER, b"", len(answer)) + answer


def encode_result(number: int, body: bytes) -> bytes:
    """The whole frame of an action's result. ``body``: JSON."""
    return encode_frame(Kind.RESULT, _NUMBER.pack(number), len(body)) + body


def encode_error(number: int, error: SlotwheelError) -> bytes:
    """The whole frame of an error. ``number``: of the action that failed, or ``WHOLE``."""
    body = json.dumps(error.to_wire()).encode()
    return encode_frame(Kind.ERROR, _NUMBER.pack(number), len(body)) + body


def error_of(frame: Frame) -> SlotwheelError:
    """The error in a frame, as it was raised on the other side."""
    return decode_error(bytes(frame.body))


class FrameReader:
    """Cuts what is received into frames. ``limits``: of the frames that may come; it may be set
    anew at any time. ``greeted``: no magic stands before the first frame.

    Errors of ``next``: ``InvalidBatch``, ``UnsupportedVersion``, ``InvalidConfiguration``,
    ``NodeUnreachable``; nothing more can be read then.
    """

    def __init__(self, limits: FrameLimits, *, greeted: bool = False) -> None:
        self.limits = limits
        self.thrown_away_max = 0
        """Bytes of a too large body that are read and thrown away, so that it can be answered."""
        self._to_throw_away = 0  # bytes of a body that is too large, which have not come yet
        self._too_large: Frame | None = None  # the frame of that body
        self._connected = greeted  # whoever reads has connected, and reads what a node sends
        self._greeted = greeted
        self._first = True
        self._held = b""
        self._at = 0  # the bytes of ``_held`` before it were given out
        self._head = (0, b"")
        self.waits_for = 0
        """The size of a large body for which there was no room when ``next`` was called."""
        self._body: pa.Buffer | None = None  # a large one, that is not whole yet
        self._missing = _NOWHERE  # where the rest of it has to go

    @property
    def room(self) -> memoryview | None:
        """Memory to receive the next bytes into; None: any, and then ``feed`` takes them."""
        return self._missing if len(self._missing) else None

    def received(self, count: int) -> None:
        """Note that ``count`` bytes were received into ``room``."""
        self._missing = self._missing[count:]

    def feed(self, data: bytes | memoryview) -> None:
        """Add bytes that were received while there was no ``room``."""
        self._held = self._held[self._at :] + data if self._held else bytes(data)
        self._at = 0

    @property
    def begin(self) -> bytes:
        """The first bytes that are held, as many as the magic has."""
        return self._held[: _MAGIC.size]

    @property
    def body_bytes(self) -> int:
        """Bytes of memory that a large body takes, while it is not whole."""
        return 0 if self._body is None else int(self._body.size)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all that was received and not given out."""
        return len(self._held) + self.body_bytes

    @property
    def empty(self) -> bool:
        """True if nothing of a frame is held."""
        return not self._held and self._body is None and self._too_large is None

    def next(self, body_bytes_max: int = 1 << 32) -> Frame | None:
        """The next frame, if it is whole. ``body_bytes_max``: for a larger body than that, of which
        only a part has come, there is no room just now."""
        self.waits_for = 0
        if self._body is not None:
            if len(self._missing):
                return None
            # Arrow's own view has signed bytes, of which some equal no byte of others.
            kind, metadata = self._head
            frame = Frame(kind, metadata, memoryview(self._body).cast("B"))
            self._body, self._missing = None, _NOWHERE  # either would keep it in memory
            return frame
        if self._too_large is not None:
            return self._throw_away()
        if not self._greeted and not self._greet():
            return None
        ready = len(self._held) - self._at - _HEAD.size
        if ready < 0:
            self._forget()
            if self._first and self._connected and self._held.startswith(_TLS_ALERT):
                _check_node(self._held)  # an alert is shorter than a head, and nothing follows it
            return None
        kind, reserved, metadata_bytes, body_bytes = _HEAD.unpack_from(self._held, self._at)
        limit = self.limits.get(kind)
        if limit is None or reserved or metadata_bytes > limit[0]:
            self._refuse(kind, reserved, metadata_bytes, body_bytes)
        begin = self._at + _HEAD.size
        if limit is not None and body_bytes > limit[1]:
            if body_bytes > self.thrown_away_max:
                self._refuse(kind, reserved, metadata_bytes, body_bytes)
            if ready < metadata_bytes:
                self._forget()
                return None
            metadata = self._held[begin : begin + metadata_bytes]
            self._too_large = Frame(kind, metadata, b"", body_bytes)
            self._to_throw_away, self._at = body_bytes, begin + metadata_bytes
            return self._throw_away()
        self._first = False
        middle, end = begin + metadata_bytes, begin + metadata_bytes + body_bytes
        if ready >= metadata_bytes + body_bytes:
            held = self._held
            frame = Frame(kind, held[begin:middle], held[middle:end])
            if end < len(held):
                self._at = end
            else:
                self._held, self._at = b"", 0
            return frame
        if ready >= metadata_bytes and body_bytes > _COPIED_BYTES_MAX:
            if body_bytes > body_bytes_max:
                self.waits_for = body_bytes
                return None
            self._head = kind, self._held[begin:middle]
            self._body = pa.allocate_buffer(body_bytes)
            begun = len(self._held) - middle
            self._missing = memoryview(self._body).cast("B")
            self._missing[:begun] = self._held[middle:]
            self._missing = self._missing[begun:]
            self._at = len(self._held)
        self._forget()
        return None

    def _throw_away(self) -> Frame | None:
        """The frame of a body that is too large, once all of it has come."""
        count = min(self._to_throw_away, len(self._held) - self._at)
        self._to_throw_away -= count
        self._at += count
        if self._to_throw_away:
            self._forget()
            return None
        frame, self._too_large = self._too_large, None
        return frame

    def _greet(self) -> bool:
        if len(self._held) < _MAGIC.size:
            return False
        magic, version = _MAGIC.unpack_from(self._held)
        if self._held.startswith(TLS_HANDSHAKE):
            raise InvalidBatch(
                "a client begins TLS, and this node has no certificate",
                got=repr(self._held[: _MAGIC.size]),
                limit=f"{MAGIC!r}, version {VERSION} of the wire",
                remedy="Give the client the address without tls://, or the node --tls-cert",
            )
        if magic != MAGIC:
            raise InvalidBatch(
                "not a client of slotwheel's wire",
                got=repr(self._held[: _MAGIC.size]),
                limit=f"version {VERSION} of the wire, which begins with {MAGIC!r}",
                remedy="HTTP has a port of its own, --http. A client of Arrow Flight is an older"
                " slotwheel's, so use a client and a node of matching versions",
            )
        if version != VERSION:
            raise _other_version(version)
        self._at = _MAGIC.size
        self._greeted = True
        return True

    def _refuse(self, kind: int, reserved: int, metadata_bytes: int, body_bytes: int) -> None:
        if self._first and self._connected:
            _check_node(self._held[self._at : self._at + _HEAD.size])
        limit = self.limits.get(kind)
        if limit is None or reserved:
            allowed = ", ".join(Kind(number).name for number in sorted(self.limits))
            raise InvalidBatch(
                "a frame that nobody may send here",
                got=f"kind {kind}" + (f", and {reserved} where 0 has to be" if reserved else ""),
                limit=allowed,
                remedy="See docs/formats.md",
            )
        raise InvalidBatch(
            "a frame is too large",
            got=f"{Kind(kind).name}: {metadata_bytes} bytes of metadata, a body of {body_bytes}",
            limit=f"{limit[0]} and {limit[1]} bytes",
            remedy="Send smaller batches",
        )

    def _forget(self) -> None:
        if self._at:
            self._held = self._held[self._at :]
            self._at = 0


def _other_version(version: object) -> UnsupportedVersion:
    return UnsupportedVersion(
        "unknown version of the wire",
        got=f"version {version}",
        limit=f"version {VERSION}",
        remedy="Use a client and a node of matching versions",
    )


def _check_node(begin: bytes) -> None:
    """Refuse whoever was connected to, which is no node of this version. ``begin``: its first
    bytes. Errors: ``UnsupportedVersion``, ``NodeUnreachable``."""
    if begin[:1] == b"\0" and begin[3:4] in _FLIGHT_FRAMES:
        raise UnsupportedVersion(
            "what listens there speaks HTTP/2, as nodes of older versions do",
            got="Arrow Flight",
            limit=f"version {VERSION} of the wire",
            remedy="Use a client and a node of matching versions",
        )
    if begin.startswith(_TLS_ALERT):
        raise InvalidConfiguration(
            "what listens there speaks TLS, and this client does not",
            got="an alert of TLS",
            remedy="Give the address as tls://HOST:PORT",
        )
    raise NodeUnreachable(
        "something answers there that is no slotwheel node",
        got=repr(begin),
        remedy="Check the port; a gateway's address is given as http://HOST:PORT",
    )


TLS_HANDSHAKE = b"\x16\x03"
_TLS_ALERT = b"\x15\x03"
"""The first bytes of TLS's records (RFC 8446, 5.1): their type, and the version's first byte."""
_FLIGHT_FRAMES = (b"\x04", b"\x07")
"""SETTINGS and GOAWAY: the frames that an HTTP/2 server sends first (RFC 9113)."""
_PREFACE = b"PRI * HT"
_SETTINGS = bytes(3) + b"\x04" + bytes(5)
_GOAWAY = struct.Struct(
    ">"
    "3s"  # length
    "B"  # type: 7
    "B"  # flags
    "I"  # stream 0
    "I"  # the last stream that was handled
    "I"  # error code
)
_ANY_STREAM = 0x7FFFFFFF
"""A call that is said to be unhandled would be tried again at once, and again."""
_HTTP_1_1_REQUIRED = 0xD


def last_word(begin: bytes, error: SlotwheelError) -> bytes:
    """The refusal of a newcomer, in its own protocol. ``begin``: its first bytes."""
    text = str(error).encode()
    if begin.startswith(_PREFACE):  # gRPC shows this to whoever called
        size = (8 + len(text)).to_bytes(3, "big")
        return _SETTINGS + _GOAWAY.pack(size, 7, 0, 0, _ANY_STREAM, _HTTP_1_1_REQUIRED) + text
    if begin.split(b" ", 1)[0] in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS"):
        head = (
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text) + 1}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + text + b"\n"
    return encode_error(WHOLE, error)
