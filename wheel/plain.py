"""Plain rows: a few messages as a waiting client sends them, one by one and without Arrow.

Theory: for a batch of one row Arrow's framing costs more than the row does, on both sides. So a
small request is a sequence of records, each a fixed head and its content. The node gathers the rows
of all requests that came in one turn, and they become one record batch (``arrowbytes.py``), one
entry, one write.

    record: | due i64 | key i32 | value i32 | partition i32 | topic u16 | headers u16 |
            | topic | key | value | headers
    header: | name u16 | value i32 | name | value

A length of -1 is a key, or a value, that is missing; partition -1 says that there is none.

Rules
- A length is checked against the body before anything is made of it. A body is taken whole or not.
- ``check_input`` alone refuses, so that both ways in refuse the same, with the same errors. Rows
  that are surely good pass here; all others become a batch, about which it is asked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from .answers import NamedAnswer
from .arrowbytes import PlainHeader, PlainRow, encode_rows
from .checks import (
    INPUT_HEADERS,
    RESERVED_PREFIX,
    TOPIC_LENGTH_MAX,
    check_input,
    is_topic,
    reserved_among,
)
from .config import WheelConfig
from .delay import delay_of
from .errors import InvalidBatch, SlotwheelError
from .expiry import EXPIRES_HEADER
from .names import NAME_HEADER, bad_plain_name
from .request import is_request
from .schema import INPUT, PAYLOAD, times

_RECORD = struct.Struct("<qiiiHH")
_HEADER = struct.Struct("<Hi")
assert _RECORD.size == 24
assert _HEADER.size == 6
_TOPICS_MAX = 4096
GROUP_BYTES_MAX = 1 << 20
"""Bytes of the records that become one entry: a longer one is written while everybody waits."""
_OURS = RESERVED_PREFIX.encode()
_EXPIRES = EXPIRES_HEADER.encode()
_NAME = NAME_HEADER.encode()
_GIVEN = frozenset(name.encode() for name in INPUT_HEADERS)
_DIGITS_MAX = 18
_NO_HEADERS: Sequence[PlainHeader] = ()


class PlainBatch(NamedTuple):
    """Rows of one caller, to be appended as an ``InputBatch`` is. ``nbytes``: of their records.
    ``caller``: who is to be answered, as only the sender knows it."""

    rows: Sequence[PlainRow]
    nbytes: int
    producer: int = 0
    sequence: int = -1
    early: bool = False
    caller: object = None


class PlainReceipt(NamedTuple):
    """Stored batches, one behind the other. ``due``: of all their rows, ms; the first has offset
    ``base_offset``. ``sequence``: of a batch that was stored before, that of the first time."""

    base_offset: int
    created_ms: int
    due: Sequence[int]
    sequence: int = -1
    named: Sequence[NamedAnswer] = ()
    """Of the rows with names, those whose name another message had; numbered as ``due`` is."""


PlainAnswer = PlainReceipt | SlotwheelError
PlainDone = Callable[[Sequence[PlainBatch], PlainAnswer], None]
"""Called with batches, and the answer to all of them."""
CheckedBatch = tuple[PlainBatch, Sequence[PlainRow]]
"""A batch, and its rows with due times for delays."""


def encode_records(rows: Iterable[PlainRow]) -> bytes:
    """Encode rows for a node. Errors: ``OverflowError``: a topic, a header's name or the
    number of headers is more than 65 535, so they can only be sent as an Arrow batch."""
    parts: list[bytes] = []
    try:
        for due, topic, partition, key, value, headers in rows:
            parts += (
                _RECORD.pack(
                    due,
                    -1 if key is None else len(key),
                    -1 if value is None else len(value),
                    -1 if partition is None else partition,
                    len(topic),
                    len(headers),
                ),
                topic,
                key or b"",
                value or b"",
            )
            for name, content in headers:
                size = -1 if content is None else len(content)
                parts += (_HEADER.pack(len(name), size), name, content or b"")
    except struct.error as error:
        raise OverflowError(str(error)) from None
    return b"".join(parts)


def decode_records(body: bytes, count: int) -> list[PlainRow]:
    """The ``count`` rows of a body. Errors: ``InvalidBatch``."""
    rows: list[PlainRow] = []
    size = len(body)
    at = 0
    try:
        for _ in range(count):
            due, key_size, value_size, partition, topic_size, many = _RECORD.unpack_from(body, at)
            at += 24
            end = at + topic_size
            topic = body[at:end]
            key = value = None
            if key_size != -1:
                at, end = end, end + key_size
                key = body[at:end]
            if value_size != -1:
                at, end = end, end + value_size
                value = body[at:end]
            if end > size or key_size < -1 or value_size < -1:
                raise _broken(size)
            at = end
            headers = _NO_HEADERS
            if many:
                headers, at = _decode_headers(body, at, many)
            no_partition = partition == -1
            rows.append((due, topic, None if no_partition else partition, key, value, headers))
    except struct.error:
        raise _broken(size) from None
    if at != size:
        raise _broken(size)
    return rows


def _decode_headers(body: bytes, at: int, count: int) -> tuple[list[PlainHeader], int]:
    headers: list[PlainHeader] = []
    for _ in range(count):
        name_size, value_size = _HEADER.unpack_from(body, at)
        at += 6
        end = at + name_size
        name = body[at:end]
        value = None
        if value_size != -1:
            at, end = end, end + value_size
            value = body[at:end]
        if end > len(body) or value_size < -1:
            raise _broken(len(body))
        at = end
        headers.append((name, value))
    return headers, at


def _broken(size: int) -> InvalidBatch:
    return InvalidBatch(
        "records that do not fill their body exactly",
        got=f"{size} bytes",
        limit="the announced number of records, of the lengths that they name, and nothing else",
        remedy="Write them as docs/formats.md says, or send an Arrow batch",
    )


def check_plain(
    rows: Sequence[PlainRow], nbytes: int, config: WheelConfig, now_ms: int
) -> Sequence[PlainRow]:
    """Check rows from outside as ``check_input`` does; with due times for delays, which begin at
    ``now_ms``. ``nbytes``: of their records, or more. Errors: as of ``check_input``."""
    latest_ms = now_ms + config.horizon_ms
    # In Arrow's buffers a row takes less than twice what it takes here.
    size_max = min(config.message_bytes_max, config.batch_bytes_max)
    if 0 < len(rows) <= config.batch_rows_max and 2 * nbytes + 64 <= size_max:
        begun = _begun(rows, now_ms)
        if _are_good(begun, latest_ms):
            return begun
    return _rows_of(check_input(batch_of(rows), config, now_ms))


def _begun(rows: Sequence[PlainRow], now_ms: int) -> Sequence[PlainRow]:
    begun: list[PlainRow] = []
    for row in rows:
        delay = delay_of(row[0]) if row[0] < 0 else None
        if delay is None:
            begun.append(row)
            continue
        _, topic, partition, key, value, headers = row
        due = now_ms + delay
        headers = headers and [_begun_header(header, due) for header in headers]
        begun.append((due, topic, partition, key, value, headers))
    return begun


def _begun_header(header: PlainHeader, due: int) -> PlainHeader:
    """The header; with a time, if it names a span after the due time at which a message expires."""
    name, value = header
    if name != _EXPIRES or value is None or value[:1] != b"+" or not value[1:].isdigit():
        return header
    return name, b"%d" % (due + int(value)) if len(value) <= 1 + _DIGITS_MAX else value


def _are_good(rows: Sequence[PlainRow], latest_ms: int) -> bool:
    """True if rows are surely good, but for their size."""
    for due, topic, partition, _, _, headers in rows:
        if not 0 <= due <= latest_ms or len(topic) > TOPIC_LENGTH_MAX or not _is_topic(topic):
            return False
        if partition is not None and partition < 0:
            return False
        if headers and not are_good_headers(headers, due):
            return False
    return True


def are_good_headers(headers: Sequence[PlainHeader], due: int) -> bool:
    """True if the headers of a row that is due at ``due`` (ms) are surely good, but for their size.
    False means that ``check_input`` has to judge them, and to say what is wrong."""
    if len(headers) == 1 and headers[0][0] == _NAME:
        return not bad_plain_name(headers)
    ours = [name for name, _ in headers if name.startswith(_OURS)]
    if not all(name.isascii() for name, _ in headers):
        return False
    if not ours:
        return True
    if not _GIVEN.issuperset(ours) and reserved_among([name.decode() for name, _ in headers]):
        return False
    if bad_plain_name(headers):
        return False
    if _EXPIRES not in ours:
        return True
    expiries = [value or b"" for name, value in headers if name == _EXPIRES]
    return len(expiries) < 2 and all(
        digits.isdigit() and len(digits) <= _DIGITS_MAX and int(digits) > due for digits in expiries
    )


@lru_cache(_TOPICS_MAX)
def _is_topic(name: bytes) -> bool:
    return name.isascii() and is_topic(name.decode())


def batch_of(rows: Sequence[PlainRow]) -> pa.RecordBatch:
    """The rows with the INPUT schema, whatever is in them."""
    if not rows:
        return pa.RecordBatch.from_pylist([], INPUT)
    batch = pa.ipc.read_record_batch(pa.py_buffer(encode_rows(rows, 0)), PAYLOAD)
    return batch.select(INPUT.names)


def _rows_of(batch: pa.RecordBatch) -> list[PlainRow]:
    headers: list[Sequence[PlainHeader]] = [
        [(header["key"].encode(), header["value"]) for header in each]
        for each in batch.column("headers").to_pylist()
    ]
    columns = [batch.column(name).to_pylist() for name in ("partition", "key", "value")]
    topics = batch.column("topic").cast(pa.binary()).to_pylist()
    return list(zip(times(batch, "due").tolist(), topics, *columns, headers, strict=True))


def in_groups(batches: Sequence[CheckedBatch], rows_max: int) -> Iterator[list[CheckedBatch]]:
    """The batches that become one entry: bounded, all early or none of them, and none twice, so
    that a repeat finds the first one in the log."""
    for early in (False, True):
        group: list[CheckedBatch] = []
        keys: set[tuple[int, int]] = set()
        rows = nbytes = 0
        for checked in batches:
            batch = checked[0]
            if batch.early is not early:
                continue
            producer = batch.producer
            key = producer, -1 if is_request(producer) else batch.sequence
            rows += len(batch.rows)
            nbytes += batch.nbytes
            full = rows > rows_max or nbytes > GROUP_BYTES_MAX
            if group and (full or (producer and key in keys)):
                yield group
                group, keys = [], set()
                rows, nbytes = len(batch.rows), batch.nbytes
            group.append(checked)
            keys.add(key)
        if group:
            yield group
