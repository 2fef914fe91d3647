"""Records with a header whose name is not UTF-8, by both clients.

Each raises for such a record again and again, so that the rest of its partition would never be
read. kafka-python is made to read it: the name is shown as far as it can be. Of confluent-kafka's
record all headers are lost.
"""

from __future__ import annotations

from functools import cache
from operator import methodcaller
from typing import Any, SupportsIndex

from ...wheel.rows import Header


class NotText(str):
    """A header name that is not UTF-8, as far as it can be shown."""


UNREADABLE: list[Header] = [(NotText("unreadable"), None)]
"""Stands for headers that a client cannot read."""


class _LenientBytes(bytes):
    """Bytes whose slices decode to text, whatever is in them: ``NotText`` if it is not UTF-8."""

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        found = super().__getitem__(key)
        return _LenientBytes(found) if isinstance(found, bytes) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return NotText(super().decode(encoding, "replace"))


@cache
def read_leniently() -> None:
    """From now on kafka-python reads a batch a second time, leniently, where it would raise."""
    from kafka.record.default_records import DefaultRecordBatch

    strict = DefaultRecordBatch._read_msg

    def read(batch: Any) -> Any:
        try:
            return strict(batch)
        except UnicodeDecodeError:
            batch._buffer = _LenientBytes(batch._buffer)
            return strict(batch)

    DefaultRecordBatch._read_msg = read


# Called from C on purpose: for a name that is not UTF-8 the method returns and leaves an exception
# set, which the interpreter's fast path for methods misses, and raises somewhere else.
_ask_headers = methodcaller("headers")


def headers_of(record: Any) -> list[Header]:
    """The headers of a record of confluent-kafka."""
    try:
        return _ask_headers(record) or []
    except (UnicodeDecodeError, SystemError):
        return UNREADABLE
