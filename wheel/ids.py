"""Message ids: ASCII ``group.due.offset.check``.

Theory: an id must lead to its slot without an index, and must not be guessable, or anyone could
cancel anyone's message. ``due`` names the slot, ``offset`` the row, and ``check`` is a keyed 64-bit
hash of both: SipHash-1-3 under the group's 128-bit key. It is computed for a whole batch at once in
NumPy, which releases the interpreter lock and costs about 0.1 us a row; an HMAC a row would cost
1.3 us. A few rows are hashed one by one: by ``siphash24`` in 0.7 us each, or in plain integers in
6, where it is not installed.

*Example.* ``default.1800000060042.7.1f3a9c07d2b86e45`` names the row of offset 7, due 42 ms after
the begin of second 1800000060, so in that slot.

Two forms. A *short* id, of version 1, has the hash folded to 32 bits, in 8 digits: who may ask
often could try them all. A *long* one, of version 2, has all 64, in 16 digits. Its number is never
below 2^32 (a hash that is gets bit 32 set), so the number alone says how it is written.

Rules
- A message has one id. Otherwise its sender would hold ``default.1800000060042.7.cd82f242`` while
  its consumer sees ``default.1800000060042.7.1f3a9c07d2b86e45``, and whoever compares the two would
  count one message lost and one invented.
- Which form it is depends on the offset alone. A group that has given out short ids notes in its
  configuration, in the log, from which offset on they are long (``LONG_FROM``); a new group begins
  at 0. *Example.* With ``long_ids_from`` 500, offset 499 has 8 digits and 500 has 16, whoever is
  master, and after every replay. A clock would decide otherwise on each peer.
- The other form of a check is forged, as any wrong number: an id of 8 digits would otherwise open
  2^32 attempts at every message.

Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from . import compute as pc
from .errors import UnknownId
from .rows import from_numpy
from .schema import CHECK, FEW_ROWS, Int64s, Mask, UInt64s, times

try:
    import siphash24
except ImportError:
    siphash24 = None

KEY_BYTES = 16
_PAIR = struct.Struct("<qq")
_INT64_END = 1 << 63
LONG_CHECKS = 1 << 32
"""The smallest check of a long id; a smaller one is a short id's."""
LONG_FROM = "long_ids_from"
"""The key in a group's configuration: the offset of the first message with a long id."""
NO_LONG_IDS = _INT64_END - 1
"""That offset where the configuration names none: an earlier version wrote it."""
_FORM = (
    r"^[\x00-\-/-\x7f]*\.(0|-?[1-9][0-9]{0,17})"  # the group: ASCII, but for a dot
    r"\.(0|[1-9][0-9]{0,17})\.([0-9a-f]{8}){1,2}$"
)
_LENGTH_WORD = 16 << 56  # SipHash ends with a word that holds the message's length: two words


def _bits(*left: int) -> tuple[UInt64s, UInt64s]:
    """The shifts to rotate each row of words left by so many bits: left, and right."""
    column = np.array(left, np.uint64)[:, None]
    return column, np.uint64(64) - column


_FIRST_BITS = _bits(13, 16)
_SECOND_BITS = _bits(17, 21)
_HALF = _bits(32)

_ONE_BY_ONE_ROWS = 8 if siphash24 is None else 64
"""Up to so many rows, one after the other is faster: NumPy's calls cost 70 us whatever they do."""
_BLOCK_ROWS = 8192
"""More rows at once do not fit into the processor's cache, and cost twice as much each."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class MessageId:
    """A parsed id. ``due``: ms since the epoch; ``check``: unsigned 64 bit, of a short id if it
    is below ``LONG_CHECKS``."""

    group: str
    due: int
    offset: int
    check: int

    def __str__(self) -> str:
        return f"{self.group}.{self.due}.{self.offset}.{check_digits(self.check)}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse an id. Errors: ``UnknownId`` when the text has not the form of one."""
        parts = text.split(".")
        try:
            if len(parts) != 4 or not text.isascii() or len(parts[3]) not in (8, 16):
                raise ValueError
            group, due, offset, check = parts
            message_id = cls(group, int(due), int(offset), int(check, 16))
            fits = -_INT64_END <= message_id.due < _INT64_END
            fits = fits and 0 <= message_id.offset < _INT64_END and message_id.check >= 0
            if str(message_id) != text or not fits:
                raise ValueError
            return message_id
        except ValueError:
            raise UnknownId(
                "not a message id",
                got=repr(text[:200]),
                limit="group.due.offset.check",
                remedy="Use the id from the receipt of the message",
            ) from None


class IdMint:
    """Makes and checks the ids of one wheel group. Without a ``key`` it waits for ``configure``: a
    new peer has the key only when it has the group's first entry. ``long_from``: the offset of the
    first message with a long id."""

    def __init__(self, group: str, key: bytes | None = None, long_from: int = 0) -> None:
        self.group = group
        self.long_from = long_from
        if key is not None:
            self._set_key(key)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The mint of a group by its configuration; of an empty one it has no key."""
        mint = cls(str(config.get("group", "")))
        mint.configure(config)
        return mint

    def configure(self, config: Mapping[str, Any]) -> None:
        """Go by a group's configuration; before one names the key nothing can be made or checked.

        A mint in use may be configured anew: the key never changes, and ``long_from`` only once,
        before any row at or behind it is committed."""
        if config:
            self.long_from = int(config.get(LONG_FROM, NO_LONG_IDS))
            self._set_key(bytes.fromhex(config["key"]))

    def _set_key(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._k0 = int.from_bytes(key[:8], "little")
        self._k1 = int.from_bytes(key[8:], "little")

    def checks(self, due: Int64s, offset: Int64s) -> UInt64s:
        """Checks of many rows; ``due`` in ms and ``offset``, both shape (rows,)."""
        if len(due) <= _ONE_BY_ONE_ROWS:
            few = map(self._check, due.tolist(), offset.tolist())
            return np.fromiter(few, np.uint64, len(due))
        checks = np.empty(len(due), np.uint64)
        for start in range(0, len(due), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            words = (due[block].view(np.uint64), offset[block].view(np.uint64))
            checks[block] = siphash13(self._k0, self._k1, words)
        is_short = offset < self.long_from
        short = _folded(checks) if is_short.any() else None
        is_low = checks < LONG_CHECKS
        if is_low.any():
            checks[is_low] |= np.uint64(LONG_CHECKS)
        return checks if short is None else np.where(is_short, short, checks)

    def checks_from(self, due: Sequence[int], base_offset: int) -> list[int]:
        """Checks of rows of consecutive offsets. ``due``: of each, in ms."""
        if len(due) <= _ONE_BY_ONE_ROWS:
            return [self._check(due_ms, offset) for offset, due_ms in enumerate(due, base_offset)]
        offsets = np.arange(base_offset, base_offset + len(due), dtype=np.int64)
        checks: list[int] = self.checks(np.array(due, np.int64), offsets).tolist()
        return checks

    def _check(self, due: int, offset: int) -> int:
        if siphash24 is None:
            digest = _digest_of_one(self._k0, self._k1, due, offset)
        else:
            hashed = siphash24.siphash13(_PAIR.pack(due, offset), key=self._key)
            digest = hashed.intdigest() & _MASK  # it is signed
        if offset < self.long_from:
            return (digest ^ (digest >> 32)) & (LONG_CHECKS - 1)
        return digest if digest >= LONG_CHECKS else digest | LONG_CHECKS

    def checks_of(self, rows: pa.RecordBatch) -> UInt64s:
        """Checks of rows (schema ``ROW``), shape (rows,), out of ``CHECK`` if they have it."""
        if CHECK.name in rows.schema.names:
            return np.asarray(rows.column(CHECK.name))
        return self.checks(times(rows, "due"), times(rows, "offset"))

    def with_checks(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with ``CHECK`` behind their columns: for many at once it costs a tenth a row."""
        return rows.append_column(CHECK, from_numpy(self.checks_of(rows), CHECK.type))

    def one(self, due: int, offset: int) -> MessageId:
        check = self.checks(np.array([due], np.int64), np.array([offset], np.int64))
        return MessageId(self.group, due, offset, int(check[0]))

    def texts(self, due: Int64s, offset: Int64s) -> pa.Array:
        """Ids of many rows as text, a column of utf8, shape (rows,); 2 GiB of text at most."""
        return id_texts(self.group, due, offset, self.checks(due, offset))

    def many(self, due: Int64s, offset: Int64s) -> list[str]:
        """Ids of many rows as text."""
        texts: list[str] = self.texts(due, offset).to_pylist()
        return texts

    def genuine(self, message_id: MessageId) -> bool:
        """True if this group gave out that id."""
        return message_id == self.one(message_id.due, message_id.offset)

    def read(self, texts: Sequence[str]) -> tuple[Int64s, Int64s, Mask]:
        """Due times in ms, offsets, and a mask of the ids that this group gave out; shape (rows,).

        Errors: ``UnknownId`` when a text has not the form of an id.
        """
        parts = None
        if len(texts) > FEW_ROWS and all(map(str.isascii, texts)):
            parts = id_parts(pa.array(texts, pa.utf8()))
        if parts is None or parts.null_count:
            ids = [MessageId.parse(text) for text in texts]
            due = np.array([parsed.due for parsed in ids], np.int64)
            offset = np.array([parsed.offset for parsed in ids], np.int64)
        else:
            due, offset = (np.asarray(parts.field(name)) for name in ("due", "offset"))
        genuine = pc.equal(pa.array(texts, pa.utf8()), self.texts(due, offset))
        return due, offset, np.asarray(genuine)


def _folded(digest: UInt64s) -> UInt64s:
    return (digest ^ (digest >> np.uint64(32))) & np.uint64(LONG_CHECKS - 1)


def check_digits(check: int) -> str:
    """A check as it is written in an id."""
    return f"{check:016x}" if check >= LONG_CHECKS else f"{check:08x}"


def id_texts(group: str | pa.Array, due: Int64s, offset: Int64s, checks: UInt64s) -> pa.Array:
    """Ids of many rows from their parts, shape (rows,) each; ``group``: of all, or a column."""
    if len(due) <= FEW_ROWS and isinstance(group, str):
        few = zip(due.tolist(), offset.tolist(), checks.tolist(), strict=True)
        return pa.array([f"{group}.{d}.{o}.{check_digits(c)}" for d, o, c in few], pa.utf8())
    columns = (from_numpy(values, pa.int64()).cast(pa.utf8()) for values in (due, offset))
    return pc.binary_join_element_wise(group, *columns, _hexadecimal(checks), ".")


def id_parts(texts: pa.Array) -> pa.StructArray:
    """The parts of ids, shape (rows,), null where a text has not the form of an id. ``texts``: utf8
    or binary. Fields: ``group``, ``due`` in ms, ``offset``, ``check``."""
    formed = np.array(pc.fill_null(pc.match_substring_regex(texts, _FORM), False))
    well_formed = texts if formed.all() else texts.filter(pa.array(formed))
    flat = pc.split_pattern(well_formed.cast(pa.utf8()), ".").flatten()
    # To match and then to split takes half as long as ``extract_regex``.
    fields = (from_numpy(np.arange(at, len(flat), 4), pa.int64()) for at in range(4))
    group, due, offset, check = map(flat.take, fields)
    is_short = np.asarray(pc.binary_length(check)) == 8
    if is_short.any():
        check = pc.utf8_lpad(check, 16, "0")
    digits = bytes(check.buffers()[2] or b"")[: 16 * len(check)].decode()
    # Arrow has no hexadecimal numbers.
    checks = np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64)
    due, offset = due.cast(pa.int64()), offset.cast(pa.int64())
    columns = [group, due, offset, from_numpy(checks, pa.uint64())]
    parts = pa.StructArray.from_arrays(columns, ["group", "due", "offset", "check"])
    if len(parts) == len(texts) and (is_short | (checks >= LONG_CHECKS)).all():
        return parts
    at = np.cumsum(formed) - 1
    formed[formed] = is_short | (checks >= LONG_CHECKS)  # no short check has 16 digits
    return parts.take(pa.array(at, pa.int64(), mask=~formed))


def _hexadecimal(values: UInt64s) -> pa.Array:
    digits = values.astype(">u8").tobytes().hex().encode()
    ends = np.arange(0, 16 * len(values) + 1, 16, dtype=np.int32)
    texts = pa.Array.from_buffers(
        pa.utf8(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(digits)]
    )
    is_short = values < LONG_CHECKS
    if not is_short.any():
        return texts
    return pc.if_else(pa.array(is_short), pc.utf8_slice_codeunits(texts, 8), texts)


def siphash13(k0: int, k1: int, words: tuple[UInt64s, UInt64s]) -> UInt64s:
    """SipHash-1-3 of many 16-byte messages (two little-endian words each), shape (rows,)."""
    # Two words of the state at once, (v0, v2) and (v1, v3): half as many calls.
    rows = len(words[0])
    even = np.empty((2, rows), np.uint64)
    odd = np.empty((2, rows), np.uint64)
    even[0], even[1] = k0 ^ 0x736F6D6570736575, k0 ^ 0x6C7967656E657261
    odd[0], odd[1] = k1 ^ 0x646F72616E646F6D, k1 ^ 0x7465646279746573
    spare = np.empty((2, rows), np.uint64)
    for word in (*words, np.uint64(_LENGTH_WORD)):
        odd[1] ^= word
        _round(even, odd, spare)
        even[0] ^= word
    even[1] ^= np.uint64(0xFF)
    for _ in range(3):
        _round(even, odd, spare)
    even ^= odd
    digest: UInt64s = even[0] ^ even[1]
    return digest


def _round(even: UInt64s, odd: UInt64s, spare: UInt64s) -> None:
    swapped = even[::-1]
    even += odd
    _rotate(odd, _FIRST_BITS, spare)
    odd ^= even
    _rotate(even[:1], _HALF, spare[:1])
    swapped += odd
    _rotate(odd, _SECOND_BITS, spare)
    odd ^= swapped
    _rotate(even[1:], _HALF, spare[:1])


def _rotate(v: UInt64s, by: tuple[UInt64s, UInt64s], spare: UInt64s) -> None:
    left, right = by
    np.right_shift(v, right, out=spare)
    np.left_shift(v, left, out=v)
    np.bitwise_or(v, spare, out=v)


def _digest_of_one(k0: int, k1: int, due: int, offset: int) -> int:
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    for word in (due & _MASK, offset & _MASK, _LENGTH_WORD):
        v0, v1, v2, v3 = _round_of_one(v0, v1, v2, v3 ^ word)
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _round_of_one(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round_of_one(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = ((v1 << 13) | (v1 >> 51)) & _MASK ^ v0
    v0 = ((v0 << 32) | (v0 >> 32)) & _MASK
    v2 = (v2 + v3) & _MASK
    v3 = ((v3 << 16) | (v3 >> 48)) & _MASK ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = ((v3 << 21) | (v3 >> 43)) & _MASK ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = ((v1 << 17) | (v1 >> 47)) & _MASK ^ v2
    v2 = ((v2 << 32) | (v2 >> 32)) & _MASK
    return v0, v1, v2, v3
