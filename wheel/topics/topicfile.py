"""The files of an embedded topic, byte for byte: a segment and its index.

Theory: a topic is a directory of segments, each an Arrow IPC stream without an end-of-stream
marker, so that it can grow and any Arrow reader can open it. The committed length cannot be in the
stream itself, so there is an index beside it: one fixed record a block. The index is the truth
about length; bytes behind it in the stream were never committed.

    topics/<topic>/<first position, 20 digits>.arrows    +--------+---------+---------+- - - -+
                                                         | schema | block 1 | block 2 | junk  |
                                                         +--------+---------+---------+- - - -+
    topics/<topic>/<first position, 20 digits>.index     +--------+----------+----------+
                                                         | header | record 1 | record 2 |
                                                         +--------+----------+----------+

A record is written only after its block is durable. So a complete record proves that its block was
durable (a block that does not match is damage), and an incomplete record is a torn end - unless a
complete one follows, which is damage again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from ..errors import Damaged, UnsupportedVersion
from ..schema import CHECK, ROW, TIME

TOPICS_DIRECTORY = "topics"
SEGMENT_SUFFIX = ".arrows"
INDEX_SUFFIX = ".index"
DAMAGED_SUFFIX = ".damaged"
"""Suffix of the file beside a segment that was set aside."""
INDEX_MAGIC = b"SWTOPIDX"
INDEX_VERSION = 1
TOPIC_SCHEMA_VERSION = 2
"""Version 1 has checks of 32 bits. Its segments are read, and no block is added to them."""
_VERSION_KEY = b"slotwheel.topic-schema"

TOPIC_FIELDS = [
    pa.field("position", pa.int64(), nullable=False),
    pa.field("delivered", TIME, nullable=False),
    CHECK,
    *(ROW.field(name) for name in ("offset", "due", "created")),
    *(ROW.field(name) for name in ("partition", "key", "value", "headers")),
]

# +-------+---------+----------+-------+----------------+--------------+------------+
# | magic | version | reserved | crc   | first position | schema bytes | schema crc |
# | 8s    | u16     | u16      | u32   | i64            | u32          | u32        |
# +-------+---------+----------+-------+----------------+--------------+------------+
_HEADER = struct.Struct(
    "<"
    "8s"  # magic "SWTOPIDX"
    "H"  # version of this layout
    "H"  # reserved, zero
    "I"  # CRC-32C of all other bytes of the header
    "q"  # position of the segment's first row
    "I"  # bytes of the schema message with which the stream begins
    "I"  # CRC-32C of that message
)
# +----------+-----+------+-----+-----------+----------+------------+
# | position | end | rows | crc | delivered | reserved | record crc |
# | i64      | u64 | u32  | u32 | i64       | u32      | u32        |
# +----------+-----+------+-----+-----------+----------+------------+
_RECORD = struct.Struct(
    "<"
    "q"  # position of the block's first row
    "Q"  # where the block ends in the stream
    "I"  # rows of the block
    "I"  # CRC-32C of the stream from its first byte to ``end``
    "q"  # when the block was delivered, ms
    "I"  # reserved, zero
    "I"  # CRC-32C of the bytes of this record before this field
)
assert _HEADER.size == 32
assert _RECORD.size == 40

HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size


TOPIC_SCHEMA = pa.schema(TOPIC_FIELDS)
"""The schema of a block. It is the same for all topics, whose names are in their segments only."""
_CHECK_PLACE = TOPIC_SCHEMA.get_field_index(CHECK.name)
_SCHEMAS = {
    "1": TOPIC_SCHEMA.set(_CHECK_PLACE, pa.field(CHECK.name, pa.uint32(), nullable=False)),
    str(TOPIC_SCHEMA_VERSION): TOPIC_SCHEMA,
}


def schema_of(topic: str, group: str) -> pa.Schema:
    """The schema of a topic's segments; ``group`` is the one in the ids of its rows."""
    return pa.schema(
        TOPIC_FIELDS,
        metadata={
            _VERSION_KEY: str(TOPIC_SCHEMA_VERSION).encode(),
            b"slotwheel.topic": topic.encode(),
            b"slotwheel.group": group.encode(),
        },
    )


def check_schema(schema: pa.Schema, path: str) -> None:
    """Check the schema of the segment at ``path``. Errors: ``UnsupportedVersion``; ``Damaged`` when
    it is not the schema of a topic."""
    version = (schema.metadata or {}).get(_VERSION_KEY, b"").decode("ascii", "replace")
    if version not in _SCHEMAS:
        raise UnsupportedVersion(
            f"{path}: unknown version of an embedded topic",
            got=version or "none",
            limit=TOPIC_SCHEMA_VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )
    if not schema.equals(_SCHEMAS[version], check_metadata=False):
        names = ", ".join(schema.names)
        raise Damaged(path, 0, expected="the columns of an embedded topic", found=names)


def is_current(schema: pa.Schema) -> bool:
    """Returns True for the schema of a segment to which blocks may be added."""
    return bool(schema.field(CHECK.name).type == CHECK.type)


def as_current(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a segment of any version with the columns of this version."""
    if is_current(rows.schema):
        return rows
    checks = rows.column(CHECK.name).cast(CHECK.type)
    metadata = {**(rows.schema.metadata or {}), _VERSION_KEY: str(TOPIC_SCHEMA_VERSION).encode()}
    return rows.set_column(_CHECK_PLACE, CHECK, checks).replace_schema_metadata(metadata)


def directory_of(topic: str) -> str:
    return f"{TOPICS_DIRECTORY}/{topic}"


def segment_path(topic: str, first: int) -> str:
    return f"{directory_of(topic)}/{first:020d}{SEGMENT_SUFFIX}"


def index_path(topic: str, first: int) -> str:
    return f"{directory_of(topic)}/{first:020d}{INDEX_SUFFIX}"


def first_position_of(name: str) -> int | None:
    """The first position in an index file's name; None if it is not such a name."""
    stem = name.removesuffix(INDEX_SUFFIX)
    if stem == name or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    first: int
    schema_bytes: int
    schema_crc: int

    def encode(self) -> bytes:
        values = (self.first, self.schema_bytes, self.schema_crc)
        crc = _header_crc(_HEADER.pack(INDEX_MAGIC, INDEX_VERSION, 0, 0, *values))
        return _HEADER.pack(INDEX_MAGIC, INDEX_VERSION, 0, crc, *values)

    @classmethod
    def decode(cls, data: bytes, path: str, first: int) -> IndexHeader:
        """Decode and check the header of the index at ``path``, whose name has the position
        ``first``. Errors: ``Damaged``, ``UnsupportedVersion``."""
        if len(data) < HEADER_BYTES:
            raise Damaged(path, len(data), expected=f"{HEADER_BYTES} bytes", found=len(data))
        magic, version, reserved, crc, begin, schema_bytes, schema_crc = _HEADER.unpack_from(data)
        if magic != INDEX_MAGIC:
            raise Damaged(path, 0, expected=f"magic {INDEX_MAGIC!r}", found=repr(magic))
        as_known = data[:8] + INDEX_VERSION.to_bytes(2, "little") + data[10:HEADER_BYTES]
        # Version 0 is never valid: a lost write leaves it. And where the header has the checksum of
        # our version, it is ours with a damaged version, not another version.
        if version != INDEX_VERSION and (version == 0 or _header_crc(as_known) == crc):
            raise Damaged(path, 8, expected=f"version {INDEX_VERSION}", found=version)
        if version != INDEX_VERSION:
            raise UnsupportedVersion(
                f"{path}: unknown version of a topic's index",
                got=version,
                limit=INDEX_VERSION,
                remedy="Use the slotwheel version that wrote it, or a newer one",
            )
        computed = _header_crc(data)
        if crc != computed:
            raise Damaged(path, 12, expected=f"CRC-32C {crc:08x}", found=f"{computed:08x}")
        if reserved != 0:
            raise Damaged(path, 10, expected=0, found=reserved)
        if begin != first:
            raise Damaged(path, 16, expected=f"first position {first}", found=begin)
        return cls(begin, schema_bytes, schema_crc)

    @property
    def schema_record(self) -> IndexRecord:
        """A record of zero rows before the first block, so that each block has one before it."""
        return IndexRecord(self.first, self.schema_bytes, 0, self.schema_crc, 0)

    def check_schema(self, message: bytes, path: str) -> pa.Schema:
        """Decode the schema in ``message``, the first bytes of the stream at ``path``.

        Errors: ``Damaged``, ``UnsupportedVersion``.
        """
        crc = crc32c(message)
        if len(message) != self.schema_bytes or crc != self.schema_crc:
            expected = f"a schema of {self.schema_bytes} bytes, CRC-32C {self.schema_crc:08x}"
            raise Damaged(path, 0, expected=expected, found=f"{len(message)} bytes, {crc:08x}")
        schema = pa.ipc.read_schema(pa.py_buffer(message))
        check_schema(schema, path)
        return schema


def _header_crc(data: bytes) -> int:
    return crc32c(data[16:HEADER_BYTES], crc32c(data[:12]))


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """One index record. ``crc`` runs from the first byte of the stream to ``end``."""

    position: int
    end: int
    rows: int
    crc: int
    delivered_ms: int

    @property
    def next_position(self) -> int:
        return self.position + self.rows

    def encode(self) -> bytes:
        values = (self.position, self.end, self.rows, self.crc, self.delivered_ms, 0)
        return _RECORD.pack(*values, crc32c(_RECORD.pack(*values, 0)[: RECORD_BYTES - 4]))

    @classmethod
    def decode(cls, data: bytes | memoryview) -> IndexRecord | None:
        """The record; None when it is too short, or does not match its own CRC."""
        if len(data) < RECORD_BYTES:
            return None
        position, end, rows, crc, delivered, reserved, record_crc = _RECORD.unpack_from(data)
        if crc32c(data[: RECORD_BYTES - 4]) != record_crc or reserved != 0 or rows == 0:
            return None
        return cls(position, end, rows, crc, delivered)

    def follows(self, before: IndexRecord) -> bool:
        """Returns True when this block begins where ``before`` ends."""
        return self.position == before.next_position and self.end > before.end


def parse_index(data: bytes, path: str, header: IndexHeader) -> tuple[list[IndexRecord], int]:
    """Returns the complete records of an index, behind the header's ``schema_record``, and the
    bytes of it that header and records take.

    Errors: ``Damaged`` for a broken record with a complete one behind it, and for a record that
    does not follow the one before it.
    """
    blocks = [header.schema_record]
    view = memoryview(data)
    at = HEADER_BYTES
    while at + RECORD_BYTES <= len(data):
        block = IndexRecord.decode(view[at : at + RECORD_BYTES])
        if block is None:
            for later in range(at + RECORD_BYTES, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
                if IndexRecord.decode(view[later : later + RECORD_BYTES]) is not None:
                    raise Damaged(
                        path, at, expected="a whole record", found="a broken one, whole ones follow"
                    )
            break
        if not block.follows(blocks[-1]):
            last = blocks[-1]
            raise Damaged(
                path,
                at,
                expected=f"position {last.next_position} behind byte {last.end}",
                found=f"position {block.position} up to byte {block.end}",
            )
        blocks.append(block)
        at += RECORD_BYTES
    return blocks, at
