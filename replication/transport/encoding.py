"""Messages between peers as bytes: one small header each, and entries behind it.

Theory: a message is a frame of the wire. Its metadata is the header: a fixed head, the fields of
the message's kind, three texts. Its body are an ``Append``'s entries, one after the other, each
with the very bytes of the journal; so nothing is encoded again on the way, and the receiver's
journal gets views into the received body. ``EntryMeta`` is read from the entry itself, so it cannot
contradict it.

Rules
- Every bit is covered by a CRC-32C (the header's, or the entry's own) or compared by value.
- Lengths are compared before a byte is used; a message is exactly as long as its head says.
- A kind's fields stand in ``_KINDS`` and nowhere else; a test compares them with the classes.

Errors: ``UnsupportedVersion`` for another version of this layout, ``Damaged`` for an entry whose
bytes are not what was written, ``InvalidBatch`` for anything else that is malformed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from ...wheel.errors import InvalidBatch, UnsupportedVersion
from ...wheel.files import Bytes
from ...wheel.journal.entry import HEADER, HEADER_BYTES, Entry, EntryKind, decode_entry
from ...wheel.journal.segment import STORE_ID_BYTES
from ...wheel.state import StoreIds
from ..rules.messages import (
    Ack,
    Append,
    EntryMeta,
    Heartbeat,
    PeerMessage,
    RequestVote,
    SnapshotOffer,
    TakeOver,
    Vote,
)

MAGIC = b"SWPM"
MESSAGE_VERSION = 1
ENTRIES_MAX = 4096
"""Most entries in one ``Append``."""
REASON_BYTES_MAX = 1000
INDEX_LIMIT = 1 << 62
"""Indexes, epochs and commits must be lower."""
HEADER_BYTES_MAX = 2048
"""A bound on any message's header."""
_PARTS_MAX = 256
_PAYLOAD_LENGTH = 7
"""The place, in an entry's header, of the length of its payload."""
_SAME_VERSION = "Every peer must run the same version of slotwheel"

#  0       4         6          8     12     13      14     15   16
#  +-------+---------+----------+-----+------+-------+------+----+
#  | magic | version | reserved | crc | kind | flags | from | to |
#  | SWPM  | u16     | u16 = 0  | u32 | u8   | u8    | u8   | u8 |
#  +-------+---------+----------+-----+------+-------+------+----+
#  16         32      40       42         44      48
#  +----------+-------+--------+----------+-------+
#  | store    | epoch | reason | reserved | count |
#  | 16 bytes | u64   | u16    | u16 = 0  | u32   |
#  +----------+-------+--------+----------+-------+
#  48   the kind's fields (_KINDS)            then, in UTF-8 of the lengths above
#  +----------------------------------------+-----------+---------+-------------+
#  | u64 or f64 each                        | sender    | to      | reason      |
#  +----------------------------------------+-----------+---------+-------------+
HEAD = struct.Struct(
    "<"
    "4s"  # magic: "SWPM"
    "H"  # version of this layout
    "H"  # reserved, zero
    "I"  # CRC-32C of everything after this field
    "B"  # kind: see _KINDS; 0 is invalid
    "B"  # flags: one bit for each bool field of the kind, in the order of _KINDS
    "B"  # bytes of the sender's node id
    "B"  # bytes of the receiver's node id
    "16s"  # the sender's store id
    "Q"  # the sender's epoch
    "H"  # bytes of the reason; 0 for kinds that have none
    "H"  # reserved, zero
    "I"  # count: entries beside the message; 0 for kinds that have none
)
_CHECKED_FROM = 12
assert HEAD.size == 48


@dataclass(frozen=True, slots=True)
class _Layout:
    """Fields of a kind. ``numbers``: names with struct letters (Q or d); ``flags``: bool fields."""

    cls: type[PeerMessage]
    numbers: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    reason: bool = False
    entries: bool = False

    @property
    def body(self) -> struct.Struct:
        return struct.Struct("<" + "".join(letter for _, letter in self.numbers))


_KINDS: dict[int, _Layout] = {
    1: _Layout(
        RequestVote,
        (("last_index", "Q"), ("last_epoch", "Q")),
        ("pre", "founding", "transfer"),
    ),
    2: _Layout(Vote, (), ("granted", "pre", "founding"), reason=True),
    3: _Layout(
        Append,
        (("prev_index", "Q"), ("prev_epoch", "Q"), ("commit", "Q"), ("sent_at", "d")),
        entries=True,
    ),
    4: _Layout(Heartbeat, (("commit", "Q"), ("sent_at", "d"))),
    5: _Layout(
        Ack,
        (("durable", "Q"), ("verified", "Q"), ("sent_at", "d"), ("hint", "Q")),
        ("rejected", "voter"),
    ),
    6: _Layout(SnapshotOffer, (("sent_at", "d"),)),
    7: _Layout(TakeOver),
}
_BODIES = {kind: layout.body for kind, layout in _KINDS.items()}
_BY_CLASS = {layout.cls: kind for kind, layout in _KINDS.items()}


def encode(message: PeerMessage) -> bytes:
    """The header of a message. An ``Append``'s entries go beside it: ``pack_entries``."""
    kind = _BY_CLASS[type(message)]
    layout = _KINDS[kind]
    flags = 0
    for bit, name in enumerate(layout.flags):
        flags |= bool(getattr(message, name)) << bit
    sender, to = message.sender.encode(), message.to.encode()
    reason = b""
    if layout.reason:
        reason = message.reason.encode()[:REASON_BYTES_MAX]  # type: ignore[attr-defined]
        reason = reason.decode(errors="ignore").encode()  # not cut inside a character
    head = HEAD.pack(
        MAGIC,
        MESSAGE_VERSION,
        0,
        0,
        kind,
        flags,
        len(sender),
        len(to),
        message.store,
        message.epoch,
        len(reason),
        0,
        len(message.entries) if isinstance(message, Append) else 0,
    )
    body = _BODIES[kind].pack(*(getattr(message, name) for name, _ in layout.numbers))
    data = bytearray(b"".join((head, body, sender, to, reason)))
    struct.pack_into("<I", data, 8, crc32c(memoryview(data)[_CHECKED_FROM:]))
    return bytes(data)


def decode(header: Bytes, entries: Sequence[Entry] = ()) -> PeerMessage:
    """The message of a header; ``entries``: those beside it (``unpack_entries``). Errors:
    ``UnsupportedVersion``, ``InvalidBatch``."""
    view = memoryview(header)
    if len(view) < HEAD.size:
        raise _no_message(view, f"at least {HEAD.size} bytes")
    (
        magic,
        version,
        reserved,
        crc,
        kind,
        flags,
        n_sender,
        n_to,
        store,
        epoch,
        n_reason,
        reserved_too,
        count,
    ) = HEAD.unpack_from(view)
    if magic != MAGIC:
        raise _no_message(view, f"magic {MAGIC!r}")
    if version != MESSAGE_VERSION:
        raise UnsupportedVersion(
            "unknown version of a peer's message",
            got=version,
            limit=MESSAGE_VERSION,
            remedy=_SAME_VERSION,
        )
    actual = crc32c(view[_CHECKED_FROM:])
    if crc != actual:
        raise _no_message(view, f"CRC-32C {actual:08x}")
    layout = _KINDS.get(kind)
    if layout is None or flags >> len(layout.flags):
        raise _no_message(view, f"a kind of {sorted(_KINDS)} and its flags")
    body = _BODIES[kind]
    at = HEAD.size + body.size
    if len(view) != at + n_sender + n_to + n_reason:
        raise _no_message(view, f"{at + n_sender + n_to + n_reason} bytes for kind {kind}")
    if reserved or reserved_too or (n_reason and not layout.reason):
        raise _no_message(view, f"zero in what kind {kind} does not use")
    fields: dict[str, Any] = {}
    for (name, letter), value in zip(
        layout.numbers, body.unpack_from(view, HEAD.size), strict=True
    ):
        if not (math.isfinite(value) if letter == "d" else value < INDEX_LIMIT):
            raise _no_message(view, f"a usable {name}")
        fields[name] = value
    if epoch >= INDEX_LIMIT:
        raise _no_message(view, "a usable epoch")
    for bit, name in enumerate(layout.flags):
        fields[name] = bool(flags >> bit & 1)
    try:
        sender = str(view[at : at + n_sender], "utf-8")
        to = str(view[at + n_sender : at + n_sender + n_to], "utf-8")
        if layout.reason:
            fields["reason"] = str(view[at + n_sender + n_to :], "utf-8")
    except UnicodeDecodeError:
        raise _no_message(view, "texts in UTF-8") from None
    if count != len(entries) or count > ENTRIES_MAX:
        raise _no_message(view, f"{count} entries beside it, not {len(entries)}")
    if layout.entries:
        fields["entries"] = _metas(view, entries, epoch, fields)
    return layout.cls(sender, to, store, epoch, **fields)


def pack_entries(entries: Sequence[Entry]) -> list[Bytes]:
    """Entries as the body of a message, in parts: in one if there are many, for the system call."""
    parts = [part for entry in entries for part in entry.encode()]
    return parts if len(parts) <= _PARTS_MAX else [b"".join(parts)]


def unpack_entries(body: Bytes, where: str) -> list[Entry]:
    """The entries in a body, each verified by its CRC; payloads are views into the body.

    ``where``: names the sender in errors. Errors: ``Damaged``, ``UnsupportedVersion``,
    ``InvalidBatch`` when there are more than a message may have.
    """
    view = memoryview(body)
    entries: list[Entry] = []
    at = 0
    while at < len(view):
        if len(entries) == ENTRIES_MAX:
            raise InvalidBatch(
                f"a message with too many entries from {where}",
                got=f"{len(view) - at} bytes behind the last of them",
                limit=f"{ENTRIES_MAX} entries",
                remedy=_SAME_VERSION,
            )
        end = at + HEADER_BYTES
        if end < len(view):
            end += HEADER.unpack_from(view, at)[_PAYLOAD_LENGTH]  # a wrong one: no CRC fits
        entries.append(decode_entry(view[at:end], where, at))
        at = end
    return entries


def stores_of(entry: Entry) -> StoreIds | None:
    """The stores that a configuration entry admits; None for an entry that names none.

    Errors: ``InvalidBatch``.
    """
    if entry.kind is not EntryKind.CONFIG:
        return None
    try:
        said = json.loads(bytes(entry.payload))
        stores = said.get("stores")
        if stores is None:
            return None
        admitted = {str(node_id): bytes.fromhex(text) for node_id, text in stores.items()}
        if any(len(store) != STORE_ID_BYTES for store in admitted.values()):
            raise ValueError("a store id's length")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidBatch(
            f"entry {entry.index} is not a readable configuration",
            got=f"{type(error).__name__}: {error}"[:200],
            remedy=_SAME_VERSION,
        ) from None
    return admitted


def _metas(
    view: memoryview, entries: Sequence[Entry], epoch: int, fields: Mapping[str, Any]
) -> tuple[EntryMeta, ...]:
    """The metas of entries. Errors: ``InvalidBatch``: indexes have gaps, or epochs fall."""
    index, before = fields["prev_index"], fields["prev_epoch"]
    for entry in entries:
        index += 1
        if entry.index != index or not before <= entry.epoch <= epoch:
            raise _no_message(
                view,
                f"entry {index} of an epoch from {before} to {epoch},"
                f" not entry {entry.index} of epoch {entry.epoch}",
            )
        before = entry.epoch
    return tuple(EntryMeta(entry.epoch, stores_of(entry)) for entry in entries)


def _no_message(view: memoryview, expected: str) -> InvalidBatch:
    return InvalidBatch(
        "not a peer's message",
        got=f"{len(view)} bytes starting {bytes(view[:16]).hex()}",
        limit=expected,
        remedy="The sender is no slotwheel peer, or something between the peers changes what is"
        " sent",
    )
