"""A question to the trace store, as data, and its test of events."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...policy.parameters import Question
from ...policy.written import Instant, Text, TextBytes, WayIn, Written
from ...wheel.errors import InvalidConfiguration
from ...wheel.ids import MessageId
from ...wheel.schema import CHECK, TIME, Mask, times
from ..events import EventKind
from .hashing import HASHED, MASKED, hash_of_id, hash_of_value

_KEY = re.compile(r"(-?[0-9]{1,18}),(-?[0-9]{1,18}),(.*)", re.DOTALL)


class TraceKey(NamedTuple):
    """The place of an event: pages are in the order of these keys."""

    at_ms: int
    sender: str = ""
    number: int = -1

    def __str__(self) -> str:
        return f"{self.at_ms},{self.number},{self.sender}"

    @classmethod
    def parse(cls, text: str) -> TraceKey:
        """Errors: ``InvalidConfiguration``: it has not the form of a place."""
        match = _KEY.fullmatch(text)
        if match is None:
            raise InvalidConfiguration(
                "not the place of an event",
                got=repr(text[:100]),
                limit="AT,NUMBER,SENDER",
                remedy="Write it as the page before did",
            )
        return cls(int(match[1]), match[3], int(match[2]))


def _read_id(text: str, _: WayIn) -> MessageId | None:
    return MessageId.parse(text) if text else None


class TraceQuery(Question, frozen=True):
    """Which events: all that is given must hold."""

    id: Annotated[MessageId, Written(_read_id)] | None = None
    """Events of the message with this id, and of what came of it."""
    key: TextBytes | None = None
    """Events of messages with this key."""
    tag: Text | None = None
    """Events of messages with this tag."""
    topic: str | None = None
    """Events of this topic."""
    client: Annotated[str, Written(value_name="NAME")] | None = None
    """Events of this client."""
    group: str | None = None
    """Events of this group of consumers."""
    kind: EventKind | None = None
    """Events of this kind."""
    failed: bool | None = None
    """Events with an error. `false`: those without one."""
    from_ms: Instant | None = None
    """Events from this time on."""
    to_ms: Instant | None = None
    """Events before this time."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide whether an event matches, in the order of ``STORED``."""
        wanted = {"at"}
        for name in ("key", "tag", "topic", "client", "group", "kind"):
            if getattr(self, name) is not None:
                wanted.add(name)
        if self.failed is not None:
            wanted.add("error")
        if self.id is not None:
            wanted |= {"id", "origin"}
        return tuple(name for name in _ORDER if name in wanted)

    @property
    def hashed(self) -> tuple[str, int] | None:
        """The hash column that matches are found by, and the hash; None: without id, key, tag."""
        if self.id is not None:
            return "id", hash_of_id(self.id)
        for name in HASHED[1:]:
            value = getattr(self, name)
            if value is not None:
                return name, hash_of_value(value)
        return None

    @property
    def masked(self) -> dict[str, str]:
        """The values whose masks blocks are chosen by."""
        values = ((name, getattr(self, name)) for name in MASKED)
        return {name: value for name, value in values if value is not None}

    def matches(self, rows: pa.RecordBatch) -> Mask:
        """True for rows that fulfil the query; shape (rows,). ``rows``: with ``columns`` at
        least."""
        matching: Mask = np.ones(rows.num_rows, np.bool_)
        at = times(rows, "at")
        if self.from_ms is not None:
            matching &= at >= self.from_ms
        if self.to_ms is not None:
            matching &= at < self.to_ms
        for name in ("key", "tag", "topic", "client", "group", "kind"):
            value = getattr(self, name)
            if value is not None:
                matching &= _true(_equal(rows.column(name), value))
        if self.failed is not None:
            matching &= np.asarray(rows.column("error").is_valid()) == self.failed
        if self.id is not None:
            matching &= _has_id(rows.column("id"), self.id) | _has_id(
                rows.column("origin"), self.id
            )
        return matching


_ORDER = ("at", "kind", "id", "origin", "tag", "topic", "key", "group", "error", "client")


def _equal(column: pa.Array, value: bytes | str) -> pa.Array:
    if not pa.types.is_dictionary(column.type):
        return pc.equal(column, pa.scalar(value, column.type))
    code = pc.index(column.dictionary, pa.scalar(value, column.dictionary.type)).as_py()
    return pc.equal(column.indices, code)


def _has_id(ids: pa.StructArray, wanted: MessageId) -> Mask:
    matching = np.asarray(ids.is_valid())
    if not matching.any():
        return matching
    values = {
        "offset": pa.scalar(wanted.offset, pa.int64()),
        "due": pa.scalar(wanted.due, TIME),
        "check": pa.scalar(wanted.check, CHECK.type),
        "group": pa.scalar(wanted.group),
    }
    for name, value in values.items():
        matching = matching & _true(pc.equal(ids.field(name), value))
    return matching


def _true(mask_or_null: pa.Array) -> Mask:
    mask: Mask = np.asarray(pc.fill_null(mask_or_null, False))
    return mask
