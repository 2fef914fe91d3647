"""The index of a segment: arrays that say where its events are, mapped into memory.

    | magic | version | header bytes | header crc | header: JSON | zeros | array | array | ...
    0       8         12             16           20             each array at a multiple of 8

The header names each array with its place, type, length and CRC-32C.

Theory: events are found by a hash of what is asked for. The hashes of a segment are sorted, with
the row number of each, in pages of ``PAGE_ROWS``; the first hash of each page stands in an array of
its own. So a question reads one page, whatever the segment's size, and checks that page alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import mapped
from ...wheel.schema import UInt32s, UInt64s

# | magic | version | bytes of the header | its crc |
_HEAD = struct.Struct("<8sIII")
assert _HEAD.size == 20
MAGIC = b"swtrcidx"
VERSION = 2
"""Of a segment. Events of one of version 1 have checks of 32 bits."""
_VERSIONS = (1, VERSION)
PAGE_ROWS = 4096
_TYPES = ("<i8", "<u8", "<u4", "|u1")
_PAGED = (".hash", ".row")
"""Arrays with names that end so are checked page by page."""
REMEDY = "Delete the segment's two files; the events in them are lost"


@dataclass(frozen=True, slots=True)
class HashColumn:
    """The hashes of one kind. ``hashes``: sorted; ``rows``: the row of each. ``firsts``, ``crcs``:
    first hash and CRC-32C of each page."""

    hashes: UInt64s
    rows: UInt32s
    firsts: UInt64s
    crcs: UInt32s

    @classmethod
    def of(cls, hashes: UInt64s, rows: UInt32s) -> HashColumn:
        """From hashes and row numbers in any order, shape (entries,) each."""
        order = np.argsort(hashes)
        hashes, rows = hashes[order], rows[order]
        starts = range(0, len(hashes), PAGE_ROWS)
        crcs = [_page_crc(hashes, rows, start) for start in starts]
        return cls(hashes, rows, hashes[::PAGE_ROWS].copy(), np.array(crcs, np.uint32))

    def range_of(self, wanted: int) -> tuple[int, int]:
        """The first page that may hold a hash, and the one behind the last."""
        value = np.uint64(wanted)
        begin = int(np.searchsorted(self.firsts, value, "left"))
        end = int(np.searchsorted(self.firsts, value, "right"))
        return max(begin - 1, 0), end

    def find(self, wanted: int, path: str) -> UInt32s:
        """The rows of a hash, ascending, shape (rows,). Errors: ``Damaged``."""
        begin, end = self.range_of(wanted)
        self.check(path, begin, end)
        at = slice(begin * PAGE_ROWS, end * PAGE_ROWS)
        value, hashes = np.uint64(wanted), self.hashes[at]
        low, high = (int(np.searchsorted(hashes, value, side)) for side in ("left", "right"))
        rows: UInt32s = np.sort(self.rows[at][low:high])
        return rows

    def check(self, path: str, begin: int, end: int) -> None:
        """Compare pages, from ``begin`` to before ``end``, with their checksums. Errors:
        ``Damaged``."""
        for page in range(begin, end):
            if _page_crc(self.hashes, self.rows, page * PAGE_ROWS) != self.crcs[page]:
                raise Damaged(
                    path,
                    -1,
                    expected=f"page {page} of the hashes as it was written",
                    found="another checksum",
                    remedy=REMEDY,
                )

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        return {
            f"{name}.hash": self.hashes,
            f"{name}.row": self.rows,
            f"{name}.first": self.firsts,
            f"{name}.crc": self.crcs,
        }


@dataclass(frozen=True, slots=True)
class IndexContent:
    """``about``: the header's fields beside the arrays. ``arrays``: views of the mapped file."""

    about: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]

    def column(self, name: str) -> HashColumn:
        parts = (self.arrays[f"{name}.{part}"] for part in ("hash", "row", "first", "crc"))
        return HashColumn(*parts)


def index_parts(
    fields: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> list[bytes | memoryview]:
    """The bytes of an index file, in their order."""
    parts: list[bytes | memoryview] = []
    places: dict[str, list[Any]] = {}
    at = 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array)
        kind = data.dtype.newbyteorder("<").str
        assert kind in _TYPES
        view = data.view(np.uint8).data
        crc = 0 if name.endswith(_PAGED) else crc32c(view)
        places[name] = [at, kind, len(array), crc]
        padding = -len(view) % 8
        parts += [view, bytes(padding)]
        at += len(view) + padding
    header = json.dumps({**fields, "arrays": places}, separators=(",", ":")).encode()
    head = _HEAD.pack(MAGIC, VERSION, len(header), crc32c(header))
    return [head, header, bytes(-(len(head) + len(header)) % 8), *parts]


def read_index(path: Path) -> IndexContent:
    """Map an index file. Errors: ``FileNotFoundError``, ``Damaged``, ``UnsupportedVersion``."""
    data = mapped(path)
    head = bytes(data[: _HEAD.size])
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise _damaged(path, 0, "the index of a trace segment", head[:8])
    _, version, length, crc = _HEAD.unpack(head)
    if version not in _VERSIONS:
        raise UnsupportedVersion(
            f"{path}: a trace segment of an unknown version",
            got=version,
            limit=VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )
    header = bytes(data[_HEAD.size : _HEAD.size + length])
    if len(header) < length or crc32c(header) != crc:
        raise _damaged(path, _HEAD.size, f"{length} bytes of header with their checksum", "others")
    fields = json.loads(header)
    start = -(-(_HEAD.size + length) // 8) * 8
    arrays = {}
    for name, (at, kind, count, checksum) in fields.pop("arrays").items():
        dtype = np.dtype(kind)
        end = start + at + count * dtype.itemsize
        if end > data.size:
            raise _damaged(path, data.size, f"{end} bytes", "the end")
        array = np.frombuffer(data, dtype, count, start + at) if count else np.empty(0, dtype)
        if not name.endswith(_PAGED) and crc32c(array.view(np.uint8).data) != checksum:
            raise _damaged(path, start + at, f"array {name} as it was written", "another checksum")
        arrays[name] = array
    return IndexContent(fields, arrays)


def _page_crc(hashes: UInt64s, rows: UInt32s, start: int) -> int:
    page = slice(start, start + PAGE_ROWS)
    return int(crc32c(rows[page].view(np.uint8).data, crc32c(hashes[page].view(np.uint8).data)))


def _damaged(path: Path, position: int, expected: str, found: object) -> Damaged:
    return Damaged(str(path), position, expected=expected, found=found, remedy=REMEDY)
