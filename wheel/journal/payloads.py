"""An entry's payload: rows, encoded and decoded, or a configuration (marks: ``mark.py``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrowbytes import PlainRow, encode_rows
from ..arrowclaims import plain_rows
from ..errors import Damaged
from ..files import Bytes
from ..ids import LONG_FROM, NO_LONG_IDS
from ..names import NamedRows, named_plain, named_rows
from ..rows import from_numpy, no_cancels, no_headers
from ..schema import FEW_ROWS, PAYLOAD, TIME, Int64s, Mask, times
from .entry import Entry
from .segment import STORE_ID_BYTES

_FEW_PLAIN_ROWS = 8
"""Up to so many plain rows are kept beside their payload. A Python object for each of more rows
would take more memory than it saves Arrow's time."""
_SMALL_BYTES = 64 << 10
"""A payload up to this size is cheaper to copy later, with others, than to read by itself now."""


@dataclass(frozen=True, slots=True)
class CancelRows:
    """Cancel rows of an entry, a piece of the tail or a slot file, shape (rows,) each: the due
    times (ms) and offsets of the rows they name, and their own offsets."""

    due: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    target: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    own: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.target)

    @classmethod
    def of(cls, rows: pa.RecordBatch, base_offset: int | None) -> CancelRows:
        """The cancel rows among rows. ``base_offset``: of the first row of an entry (PAYLOAD
        schema); None: each row has its offset (ROW schema)."""
        named = rows.column("cancels")
        if named.null_count == len(named):
            return cls()
        if not named.null_count:  # a cancel by itself: Arrow's calls take as long as all the rest
            at, target = np.arange(len(named)), np.array(named)
        else:
            at, target = np.flatnonzero(np.asarray(named.is_valid())), np.array(named.drop_null())
        own = times(rows, "offset")[at] if base_offset is None else base_offset + at
        return cls(times(rows, "due")[at], target, own)

    @classmethod
    def joined(cls, parts: Sequence[CancelRows]) -> CancelRows:
        """All rows of the parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(
                np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])
                for name in ("due", "target", "own")
            )
        )

    def by_target(self) -> CancelRows:
        """The rows in the order of the offsets that they name."""
        return self.at(np.argsort(self.target, kind="stable"))

    def at(self, positions: Int64s | Mask) -> CancelRows:
        """The rows at some positions."""
        return CancelRows(self.due[positions], self.target[positions], self.own[positions])


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Encoded rows that will become an entry. ``due``: their due times in ms, shape (rows,)."""

    payload: Bytes
    due: Int64s | Sequence[int]
    rows: pa.RecordBatch | None
    """The rows as they lie in the payload, PAYLOAD schema; None: it is small, and read later."""
    plain: Sequence[PlainRow] = ()
    """The plain rows it was made of, if they were few; else empty."""
    names: NamedRows | None = None
    """Those of its rows that have names, if there are any."""

    def with_cancels(self, due: Int64s, target: Int64s) -> EncodedBatch:
        """The same rows, and cancel rows behind them. ``due`` (ms), ``target``: due times and
        offsets of the rows that they name, shape (rows,)."""
        rows = self.rows
        if rows is None:
            rows = pa.ipc.read_record_batch(pa.py_buffer(self.payload), PAYLOAD)
        cancels = _created_at(cancel_rows(due, target), int(times(rows, "created")[0]))
        return _read_back(pa.concat_batches([rows, cancels]).serialize(), self.names)


def encode_input(rows: pa.RecordBatch, created_ms: int) -> EncodedBatch:
    """Encode checked rows (INPUT schema). They are copied out of the caller's buffers; journal and
    tail share the copy, unless it is small."""
    return _encoded(_with_created(rows, created_ms), named_rows(rows))


def encode_together(
    rows: pa.RecordBatch, counts: Sequence[int], created_ms: int
) -> list[EncodedBatch]:
    """Encode several batches that lie one behind the other in ``rows``, ``counts`` rows each."""
    whole = _with_created(rows, created_ms)
    ends = accumulate(counts)
    parts = (whole.slice(end - count, count) for end, count in zip(ends, counts, strict=True))
    # Copied, as Arrow may write a slice with its neighbours in the buffers, up to all of them.
    named = named_rows(rows) is not None
    return [
        _encoded(pa.concat_batches([part]), named_rows(part) if named else None) for part in parts
    ]


def _with_created(rows: pa.RecordBatch, created_ms: int) -> pa.RecordBatch:
    """INPUT rows with ``created`` and an empty ``cancels`` added: PAYLOAD schema."""
    count = rows.num_rows
    columns = [rows.column(0), _created(count, created_ms), no_cancels(count), *rows.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=PAYLOAD)


def _encoded(rows: pa.RecordBatch, names: NamedRows | None) -> EncodedBatch:
    payload = rows.serialize()
    if len(payload) > _SMALL_BYTES:
        return _read_back(payload, names)
    return EncodedBatch(memoryview(payload), times(rows, "due").copy(), None, names=names)


def encode_plain(rows: Sequence[PlainRow], created_ms: int) -> EncodedBatch:
    """Encode checked plain rows, without Arrow's calls."""
    few = rows if len(rows) <= _FEW_PLAIN_ROWS else ()
    due = [row[0] for row in rows]
    return EncodedBatch(encode_rows(rows, created_ms), due, None, few, named_plain(rows))


def encode_own(rows: pa.RecordBatch, created_ms: int) -> EncodedBatch:
    """Encode rows that the wheel itself made (PAYLOAD schema); their ``created`` is filled in."""
    return _read_back(_created_at(rows, created_ms).serialize(), named_rows(rows))


def encode_cancels(due: Int64s, target: Int64s, created_ms: int) -> EncodedBatch:
    """Encode cancel rows: see ``cancel_rows``. A few of them are made as plain rows are: for a
    single one Arrow's calls take a tenth of a millisecond."""
    if len(target) > FEW_ROWS:
        return encode_own(cancel_rows(due, target), created_ms)
    rows: list[PlainRow] = [(at, b"", None, None, None, ()) for at in due.tolist()]
    return _read_back(pa.py_buffer(encode_rows(rows, created_ms, target.tolist())), None)


def cancel_rows(due: Int64s, target: Int64s) -> pa.RecordBatch:
    """Cancel rows (PAYLOAD schema): due with their targets, so in the targets' slots."""
    count = len(target)
    times = from_numpy(due, TIME)
    columns = [
        *(times, times, from_numpy(target, pa.int64())),
        pa.array([""] * count, pa.utf8()),
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, pa.binary()),
        no_headers(count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PAYLOAD)


def _created_at(rows: pa.RecordBatch, created_ms: int) -> pa.RecordBatch:
    created = _created(rows.num_rows, created_ms)
    return rows.set_column(1, PAYLOAD.field("created"), created)


def _created(count: int, created_ms: int) -> pa.Array:
    return from_numpy(np.full(count, created_ms, np.int64), TIME)


def _read_back(data: pa.Buffer, names: NamedRows | None) -> EncodedBatch:
    rows = pa.ipc.read_record_batch(data, PAYLOAD)
    return EncodedBatch(memoryview(data), times(rows, "due"), rows, names=names)


def decode_rows(entry: Entry, where: str, *, full: bool = True) -> pa.RecordBatch:
    """The rows of an entry (PAYLOAD schema); ``where`` is for the error's text. Errors:
    ``Damaged``.

    ``full``: check all values, so that rows are safe to compute with, whoever wrote the entry. A
    wheel has checked each batch before it made an entry of it, and does not check its own again.
    """
    try:
        payload = pa.py_buffer(entry.batch)
        if entry.ends_like_a_later_version:
            _check_filled(payload)
        if full:
            rows = plain_rows(payload, PAYLOAD)
            rows.validate(full=True)
        else:
            rows = pa.ipc.read_record_batch(payload, PAYLOAD)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise Damaged(where, 0, expected="a record batch", found=str(error)[:200]) from None
    if rows.num_rows != entry.count:
        raise Damaged(where, 0, expected=f"{entry.count} rows", found=f"{rows.num_rows} rows")
    return rows


def _check_filled(payload: pa.Buffer) -> None:
    """Refuse bytes behind the rows. The version is outside of the CRC: if it was changed from 2 to
    1, the rows are sound, but whose they are is forgotten, and a caller who sends them again would
    have them stored twice. Errors: ``ValueError``; those of Arrow."""
    metadata_bytes = int.from_bytes(payload[4:8].to_pybytes(), "little")
    rest = payload.size - 8 - metadata_bytes - pa.ipc.read_message(payload).body.size
    if rest:
        raise ValueError(f"{rest} bytes behind the rows, as a later version has them")


def decode_config(entry: Entry, where: str) -> dict[str, Any]:
    """The wheel group's configuration. Errors: ``Damaged``."""
    try:
        config = json.loads(bytes(entry.payload))
        missing = {"group", "key", "slots"} - set(config)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(where, 0, expected="a configuration", found=str(error)[:200]) from None
    if missing:
        raise Damaged(where, 0, expected="group, key and slots", found=f"no {sorted(missing)}")
    long_from = config.get(LONG_FROM, 0)
    if type(long_from) is not int or not 0 <= long_from <= NO_LONG_IDS:
        raise Damaged(where, 0, expected=f"an offset as {LONG_FROM}", found=str(long_from)[:200])
    stores = config.get("stores", {})
    if not isinstance(stores, dict) or not all(map(_is_store_id, stores.values())):
        raise Damaged(where, 0, expected="a store id of each peer", found=str(stores)[:200])
    return dict(config)


def _is_store_id(text: object) -> bool:
    try:
        return isinstance(text, str) and len(bytes.fromhex(text)) == STORE_ID_BYTES
    except ValueError:
        return False
