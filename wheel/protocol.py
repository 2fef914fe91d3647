"""The messages of clients and nodes, version 2, without any I/O.

Theory: the frames of ``wire/`` carry record batches; this module fixes the few bytes around them. A
client's hello names the protocol version, the producer and the durability it waits for. Each batch
carries its sequence; each answer that comes back carries the same sequence and either a receipt
(base offset and checks, from which every id follows) or the error as JSON. ``(producer, sequence)``
is what makes a repeated batch harmless.

Rules: every decoder checks lengths and versions before it uses a byte, and names both versions
when they differ. Nothing here opens a socket, so both ends test against the same few functions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, NamedTuple, Self

import numpy as np

from .answers import Before
from .errors import InvalidBatch, SlotwheelError, UnsupportedVersion, from_wire
from .request import RequestKey, is_request
from .schema import UInt64s

PROTOCOL_VERSION = 2
VERSION_KEY = "slotwheel"
"""The key of the protocol version in every JSON body."""

DEFAULT_ADDRESS = "127.0.0.1:7200"
"""A node listens, and a client connects, at this address by default."""

IN_FLIGHT_MAX = 5
"""Batches a producer may have unanswered; the wheel remembers as many sequences a producer."""
REQUESTS_IN_FLIGHT_MAX = 256
"""Requests that an exchange may have unanswered, besides. Each is a producer of its own."""
PRODUCER_LIMIT = 1 << 63
"""Producers of clients are below; above are those of sources."""
ACKS = ("all", "1", "0")
"""``all``: durable on a majority (the default). ``1``: durable on the master, which on a node
without peers is the same. ``0``: no receipts; errors still come."""

HELLO = "hello"
CANCEL = "cancel"
RESCHEDULE = "reschedule"
NAMED = "named"
STATUS = "status"
PAGE = "page"
STEP_DOWN = "step-down"
POLICIES = "policies"
REGISTER = "register"
FORGET = "forget"
CLOCK = "clock"
CLOCK_SHOW, CLOCK_ACCEPT, CLOCK_SET_BACK = CLOCK_COMMANDS = ("show", "accept", "set-back")
"""The commands of ``clock``."""
ACKNOWLEDGE = "acknowledge"
DRAIN = "drain"
"""With ``on``: whether the group takes no new messages."""
SCHEDULE_PUT = "schedule-put"
SCHEDULE_LIST = "schedule-list"
SCHEDULE_SHOW = "schedule-show"
SCHEDULE_PAUSE = "schedule-pause"
SCHEDULE_RESUME = "schedule-resume"
SCHEDULE_RUN = "schedule-run"
SCHEDULE_DELETE = "schedule-delete"
ACTIONS = {
    HELLO: "version, group, limits and clock of this node",
    CANCEL: "cancel messages by id, or one by its name",
    RESCHEDULE: "give a message a new due time",
    NAMED: "the message that a name stands for",
    STATUS: "what the wheel holds, in plain numbers",
    PAGE: "metrics and health of this node",
    STEP_DOWN: "hand the mastership to a peer",
    POLICIES: "levels, retry policies, routes and rules of this group",
    REGISTER: "a consumer group's rule; refused when it has another one",
    FORGET: "take back a consumer group's rule",
    CLOCK: "the clock that this node goes by; believe a jump; set the mark back to it",
    DRAIN: "take no new messages, deliver those that are there; or take them again",
    ACKNOWLEDGE: "forget which records of delay topics were deleted before they were read",
    SCHEDULE_PUT: "put a schedule, new or in another's place",
    SCHEDULE_LIST: "a page of schedules, in the order of their names",
    SCHEDULE_SHOW: "one schedule: its last run and the next ones",
    SCHEDULE_PAUSE: "pause a schedule",
    SCHEDULE_RESUME: "let a schedule go on",
    SCHEDULE_RUN: "fire a schedule once, now",
    SCHEDULE_DELETE: "remove a schedule",
}

PEER_COMMAND = b"SWPEER1"
"""The first bytes of the hello of a peer, not a client. What follows is replication's own
(``replication/transport/handshake.py``)."""

STEP_DOWN_MAX_S = 60.0
"""The longest that a step-down may take."""
JSON_BYTES_MAX = 1 << 20
"""A longer JSON body is refused unread."""

STORED = 0
REFUSED = 1
STORED_NAMED = 2
"""Stored, and some rows have a name that another message of their topic had before."""
NO_BATCH = (1 << 64) - 1
"""The sequence in an answer that answers no batch: the node was deposed while nothing was sent."""

# Metadata of each batch, client to node; the last two only of a request:
# +----------+----------+---------+
# | sequence | producer | request |
# | u64      | u64      | u64     |
# +----------+----------+---------+
_SEQUENCE = struct.Struct(
    "<Q"  # sequence of the batch within its producer; rises by one from batch to batch
)
_COUNT = struct.Struct(
    "<I"  # of plain rows: how many they are; behind the others
)
_ROWS = struct.Struct("<QI")  # a sequence and a count
_REQUEST = struct.Struct(
    "<Q"  # a number that the answer has, too; of this connection only
    "Q"  # the request's own producer
    "Q"  # its sequence there: base and digest (request.py)
)

# Answer, node to client:
# +--------+----------+-------+----------+-------------+---------+----------------------+
# | status | reserved | count | sequence | base offset | created | checks, u64 each; or |
# | u8     | 3 bytes  | u32   | u64      | i64         | i64     | the error as JSON    |
# +--------+----------+-------+----------+-------------+---------+----------------------+
# Behind the checks of a request: the shift, i64. With status 2 the shift is always there, 0 where
# it is no request, and behind it stands the message before for each row that has one:
# +---------+---------+----------+---------+---------+---------+
# | row     | before  | reserved | due     | offset  | check   |
# | u32     | u8      | 3 bytes  | i64     | i64     | u64     |
# +---------+---------+----------+---------+---------+---------+
_RECEIPT = struct.Struct(
    "<"
    "B"  # status: 0 stored, 1 refused, 2 stored with predecessors
    "3x"  # reserved, zero
    "I"  # count: rows stored; 0 when refused
    "Q"  # sequence of the batch that is answered
    "q"  # base offset: row i has offset base + i; -1 when refused
    "q"  # created: the master's clock when it appended, ms since the epoch; 0 when refused
)
STORED_ONE = struct.Struct(f"{_RECEIPT.format}Q")
"""The answer that says of one row that it is stored: a receipt, and the row's check."""
_SHIFT = struct.Struct(
    "<q"  # what makes the due times of a repeat those of the first time, ms; 0 the first time
)
_PREDECESSOR = struct.Struct(
    "<"
    "I"  # the row in the batch; rising
    "B"  # what became of the message before: an index in _BEFORE
    "3x"  # reserved, zero
    "q"  # its due time, ms
    "q"  # its offset
    "Q"  # its check
)
_BEFORE = tuple(Before)
assert _SEQUENCE.size == 8
assert _PREDECESSOR.size == 32
assert _REQUEST.size == 24
assert _RECEIPT.size == 32


class PriorRow(NamedTuple):
    """The message that had a row's name before the row was stored, and what became of it. ``due``:
    ms; with ``offset`` and ``check`` it makes that message's id."""

    before: Before
    due: int
    offset: int
    check: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A receipt as it came over the wire. ``checks``: shape (count,). ``shift_ms``: the due times
    of a repeated request are to be moved by so much; 0: it is no repeat, or need not be moved.
    ``prior``: by row, the messages before of rows whose name was known before."""

    sequence: int
    base_offset: int
    count: int
    created_ms: int
    checks: UInt64s
    shift_ms: int = 0
    prior: Mapping[int, PriorRow] = field(default_factory=dict)

    def part(self, start: int, count: int) -> StoredBatch:
        """The receipt of ``count`` rows of it, from ``start`` on."""
        if count == self.count:
            return self
        checks, base_offset = self.checks[start : start + count], self.base_offset + start
        prior = {
            row - start: before for row, before in self.prior.items() if 0 <= row - start < count
        }
        return replace(self, base_offset=base_offset, count=count, checks=checks, prior=prior)


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """The node did not take this batch; nothing of it was stored."""

    sequence: int
    error: SlotwheelError


@dataclass(frozen=True, slots=True)
class AppendCommand:
    """A client's hello. ``producer`` 0 means: no protection from repeats. ``token`` proves who
    calls; empty: nothing does, or a certificate. Errors and ``repr`` never show it."""

    producer: int = 0
    acks: str = "all"
    token: str = field(default="", repr=False)

    def without_token(self) -> Self:
        """The hello for whoever keeps it after the caller is known."""
        return replace(self, token="") if self.token else self

    def encode(self) -> bytes:
        fields = {"producer": f"{self.producer:x}", "acks": self.acks}
        if self.token:
            fields["token"] = self.token
        return encode_json(fields) + b"\n\n"  # so that a web server answers at once that it is one

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Parse a hello. Errors: ``UnsupportedVersion``, ``InvalidBatch``."""
        fields = decode_json(body)
        try:
            producer = int(str(fields["producer"]), 16)
            acks = str(fields.get("acks", "all"))
            token = fields.get("token", "")
            if not isinstance(token, str):
                raise ValueError("token is no text")
            if not 0 <= producer < PRODUCER_LIMIT or acks not in ACKS:
                raise ValueError("producer or acks out of range")
        except (KeyError, ValueError) as error:
            raise InvalidBatch(
                "not a client's hello",
                got=repr({**fields, "token": "…"} if "token" in fields else fields)[:200],
                limit=f"producer below {PRODUCER_LIMIT:x} (hex), acks {'|'.join(ACKS)}",
                remedy=f"See docs/formats.md ({type(error).__name__}: {error})",
            ) from None
        return cls(producer, acks, token)


def split_address(address: str, *, to_listen: bool = False) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[host]:port``. ``to_listen``: the port may be 0, for any
    free one. Errors: ``ValueError``."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or (":" in host) != bracketed or not host.isprintable():
        raise ValueError("no host")
    if " " in host or "/" in host or "," in host or not (port.isascii() and port.isdigit()):
        raise ValueError("no port")
    if not (0 if to_listen else 1) <= int(port) < 65536:
        raise ValueError("no such port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Returns True for a host that only this machine can reach. A name other than ``localhost`` is
    not looked up, as it may mean another address tomorrow."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def encode_sequence(sequence: int, request: RequestKey | None = None) -> bytes:
    if request is None:
        return _SEQUENCE.pack(sequence)
    return _REQUEST.pack(sequence, request.producer, request.sequence)


def decode_sequence(metadata: bytes | None) -> tuple[int, RequestKey | None]:
    """The sequence beside a batch, and which request it is, if it is one. Errors: ``InvalidBatch``
    when the metadata is neither one sequence below 2^63 nor that of a request."""
    size = 0 if metadata is None else len(metadata)
    if metadata is not None and not metadata[-1:] >= b"\x80":
        if size == _SEQUENCE.size:
            return int(_SEQUENCE.unpack(metadata)[0]), None
        if size == _REQUEST.size:
            sequence, producer, request = _REQUEST.unpack(metadata)
            if sequence < PRODUCER_LIMIT and is_request(producer):
                return sequence, RequestKey.from_sequence(producer, request)
    raise InvalidBatch(
        "a batch without a usable sequence",
        got=f"{size} bytes of metadata",
        limit=f"{_SEQUENCE.size} bytes, little-endian, below 2^63; {_REQUEST.size} of a request",
        remedy="Send each batch with its sequence as metadata",
    )


def encode_request(sequence: int, request: RequestKey | None, count: int) -> bytes:
    """The metadata of plain rows: that of a batch, and the number of rows."""
    return encode_sequence(sequence, request) + _COUNT.pack(count)


def decode_request(metadata: bytes) -> tuple[int, RequestKey | None, int]:
    """Sequence, request if it is one, and number of plain rows. Errors: ``InvalidBatch``."""
    if len(metadata) == _ROWS.size and metadata[7] < 0x80:  # what nearly all have
        sequence, count = _ROWS.unpack(metadata)
        return sequence, None, count
    if len(metadata) < _COUNT.size:
        raise InvalidBatch(
            "plain rows without their number",
            got=f"{len(metadata)} bytes of metadata",
            limit=f"{_SEQUENCE.size + _COUNT.size} bytes; {_REQUEST.size + _COUNT.size} of a"
            " request",
            remedy="See docs/formats.md",
        )
    [count] = _COUNT.unpack(metadata[-_COUNT.size :])
    return *decode_sequence(metadata[: -_COUNT.size]), count


def encode_stored(
    sequence: int,
    base_offset: int,
    created_ms: int,
    checks: UInt64s,
    shift_ms: int | None = None,
    prior: Mapping[int, PriorRow] | None = None,
) -> bytes:
    """The answer to a stored batch; ``shift_ms``: for a request alone. ``prior``: as of
    ``StoredBatch``, by rising row; without any the answer is that of a batch without names."""
    status = STORED_NAMED if prior else STORED
    head = _RECEIPT.pack(status, len(checks), sequence, base_offset, created_ms)
    tail = b"" if shift_ms is None and not prior else _SHIFT.pack(shift_ms or 0)
    named = (
        _PREDECESSOR.pack(row, _BEFORE.index(before), due, offset, check)
        for row, (before, due, offset, check) in (prior or {}).items()
    )
    return b"".join((head, checks.astype("<u8", copy=False).tobytes(), tail, *named))


def decode_stored_one(data: bytes) -> tuple[int, int, int, int] | None:
    """Sequence, base offset, created and the check of an answer that says of one row that it is
    stored; None: it is another answer (``decode_answer``)."""
    if len(data) == STORED_ONE.size:
        status, count, *fields = STORED_ONE.unpack(data)
        if status == STORED and count == 1:
            sequence, base_offset, created_ms, check = fields
            return sequence, base_offset, created_ms, check
    return None


def encode_refused(sequence: int, error: SlotwheelError) -> bytes:
    return _RECEIPT.pack(REFUSED, 0, sequence, -1, 0) + json.dumps(error.to_wire()).encode()


def decode_answer(data: bytes) -> StoredBatch | RefusedBatch:
    """Decode what a node sent for one batch. Errors: ``InvalidBatch`` when it is no answer."""
    if len(data) >= _RECEIPT.size:
        status, count, sequence, base_offset, created_ms = _RECEIPT.unpack_from(data)
        rest = len(data) - _RECEIPT.size
        if status == STORED and rest - 8 * count in (0, _SHIFT.size):
            checks = np.frombuffer(data, dtype="<u8", count=count, offset=_RECEIPT.size)
            shift_ms = _SHIFT.unpack(data[-_SHIFT.size :])[0] if rest > 8 * count else 0
            return StoredBatch(sequence, base_offset, count, created_ms, checks, shift_ms)
        prior_at = _RECEIPT.size + 8 * count + _SHIFT.size
        if status == STORED_NAMED and prior_at < len(data):
            checks = np.frombuffer(data, dtype="<u8", count=count, offset=_RECEIPT.size)
            [shift_ms] = _SHIFT.unpack_from(data, prior_at - _SHIFT.size)
            prior = _decode_prior(data[prior_at:], count)
            if prior:
                return StoredBatch(
                    sequence, base_offset, count, created_ms, checks, shift_ms, prior
                )
        if status == REFUSED and rest <= JSON_BYTES_MAX:
            return RefusedBatch(sequence, decode_error(data[_RECEIPT.size :]))
    raise InvalidBatch(
        "not an answer of a slotwheel node",
        got=f"{len(data)} bytes starting {data[:16].hex()}",
        remedy="Check that the address is a slotwheel node of this version",
    )


def _decode_prior(data: bytes, count: int) -> dict[int, PriorRow]:
    """The predecessors of ``count`` rows, by row; empty if the bytes are none."""
    if len(data) % _PREDECESSOR.size:
        return {}
    prior: dict[int, PriorRow] = {}
    last = -1
    for row, before, due, offset, check in _PREDECESSOR.iter_unpack(data):
        if not last < row < count or before >= len(_BEFORE):
            return {}
        prior[row] = PriorRow(_BEFORE[before], due, offset, check)
        last = row
    return prior


def decode_error(body: bytes) -> SlotwheelError:
    """The error in a JSON body; a body that is none becomes the base error that shows it."""
    try:
        return from_wire(json.loads(body))
    except (ValueError, AttributeError):
        return SlotwheelError("the node sent an unreadable error", got=repr(body[:200]))


def encode_json(fields: dict[str, Any]) -> bytes:
    """A JSON body of this protocol: ``fields`` and the version."""
    return json.dumps({VERSION_KEY: PROTOCOL_VERSION, **fields}).encode()


def decode_json(body: bytes) -> dict[str, Any]:
    """A JSON object of our version. Errors: ``UnsupportedVersion``, ``InvalidBatch``."""
    fields: Any = None
    if len(body) <= JSON_BYTES_MAX:
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
    if not isinstance(fields, dict) or VERSION_KEY not in fields:
        raise InvalidBatch(
            "not a slotwheel request",
            got=f"{len(body)} bytes starting {body[:80]!r}",
            limit=f"a JSON object with the key '{VERSION_KEY}', at most {JSON_BYTES_MAX} bytes",
            remedy="Speak the protocol of docs/formats.md",
        )
    version = fields[VERSION_KEY]
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise UnsupportedVersion(
            "unknown version of the protocol",
            got=f"version {version!r}"[:100],
            limit=f"version {PROTOCOL_VERSION}",
            remedy="Use a client and a node of matching versions",
        )
    return fields
