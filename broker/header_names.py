"""Records that a client cannot read: a header's name is no UTF-8, a codec is not installed.

At a header's name that is not UTF-8 each client raises again and again, so that the rest of its
partition would never be read. kafka-python is made to read it, with a replacement for each byte
that is no text; a record of confluent-kafka loses all its headers.

At a batch that it cannot unpack, kafka-python raises once, and the next poll runs for ever around
the fetched bytes. It is made to fetch such a batch again, so that each poll raises.
"""

from __future__ import annotations

from functools import cache
from operator import methodcaller
from typing import Any, SupportsIndex

from ..wheel.rows import Header


class NotText(str):
    """A header name that is not UTF-8, with replacement characters."""


UNREADABLE: list[Header] = [(NotText("unreadable"), None)]
"""Stands for headers that a client cannot read."""


class _LenientBytes(bytes):
    """Bytes whose slices decode to text, whatever is in them: ``NotText`` unless it is UTF-8."""

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        part = super().__getitem__(key)
        return _LenientBytes(part) if isinstance(part, bytes) else part

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return NotText(super().decode(encoding, "replace"))


@cache
def read_leniently() -> None:
    """Change kafka-python, once for the process: a batch at which it would raise is read a second
    time, leniently."""
    from kafka.record.default_records import DefaultRecordBatch

    strict = DefaultRecordBatch._read_msg

    def read(batch: Any) -> Any:
        try:
            return strict(batch)
        except UnicodeDecodeError:
            batch._buffer = _LenientBytes(batch._buffer)
            return strict(batch)

    DefaultRecordBatch._read_msg = read
    _raise_each_time()


def _raise_each_time() -> None:
    from kafka.consumer.fetcher import Fetcher

    records_class = Fetcher.PartitionRecords
    strict = records_class.take

    def take(records: Any, count: int | None = None) -> Any:
        try:
            return strict(records, count)
        except Exception as error:
            error.of_partition = records.topic_partition  # type: ignore[attr-defined]
            records.drain()
            raise

    records_class.take = take
    parse = Fetcher._parse_fetched_data

    def parse_fetched_data(fetcher: Any, fetched: Any) -> Any:
        try:
            return parse(fetcher, fetched)
        except Exception as error:
            error.of_partition = fetched.topic_partition  # type: ignore[attr-defined]
            raise

    Fetcher._parse_fetched_data = parse_fetched_data


def partition_of(error: Exception) -> Any:
    """kafka-python's ``TopicPartition`` whose batch could not be unpacked; None: another error."""
    return getattr(error, "of_partition", None)


_PACKAGES = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}


def missing_codec(error: BaseException | str) -> tuple[str, str] | None:
    """Text and remedy for kafka-python's error at a codec not installed; None for other errors."""
    for codec, package in _PACKAGES.items():
        if f"Libraries for {codec} compression codec not found" in str(error):
            text = f"records are compressed with {codec}, which is not installed for kafka-python"
            return text, f"Run: pip install {package}"
    return None


# Called from C: at a name that is not UTF-8 the method returns and leaves an exception set, which
# the interpreter's fast path for methods misses, and raises in an unrelated place.
_call_headers = methodcaller("headers")


def headers_of(record: Any) -> list[Header]:
    """The headers of a record of confluent-kafka; ``UNREADABLE`` when a name is not UTF-8."""
    try:
        return _call_headers(record) or []
    except (UnicodeDecodeError, SystemError):
        return UNREADABLE
