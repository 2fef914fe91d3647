"""What is asked for: a condition on pending messages, as data.

Rules
- All kinds of conditions must hold: topic and time and key. Of ids, topics and keys one of those
  given is enough; of headers each must be there.
- A message is compared by bytes. No text is ever run or compiled as a pattern.
- Arrow evaluates it column by column, on whole slots.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..policy.levels import check_instant, instant_ms
from ..wheel.config import TICK_MS
from ..wheel.errors import InvalidConfiguration
from ..wheel.mark import RowKey
from ..wheel.schema import Mask

_FORMS = (
    "id=ID, topic=TOPIC, key=TEXT, key_base64=BASE64, header:NAME=TEXT, from=TIME, to=TIME;"
    " TIME: 2026-05-31T18:30:00Z, +10m from now, or milliseconds since 1970"
)
_FORMS_REMEDY = "Write each condition as one of these; all of them must hold"
_PAGE = re.compile(r"(-?[0-9]{1,19}),([0-9]{1,19})")
_CONDITIONS_MAX = 10_000
_INT64_END = 1 << 63


@dataclass(frozen=True, slots=True)
class Query:
    """A condition; an empty field sets none. ``from_ms`` inclusive, ``to_ms`` exclusive: due
    times in ms since the epoch."""

    ids: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    headers: tuple[tuple[str, bytes], ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def columns(self) -> frozenset[str]:
        """The columns of content that it looks at."""
        wanted = {"topic": self.topics, "key": self.keys, "headers": self.headers}
        return frozenset(name for name, values in wanted.items() if values)

    @property
    def is_empty(self) -> bool:
        """Whether every message fulfils it."""
        return self == Query()

    def seconds(self) -> tuple[int | None, int | None]:
        """The first slot that may hold a match, and the one behind the last; None: no limit."""
        first = None if self.from_ms is None else self.from_ms // TICK_MS
        behind = None if self.to_ms is None else -(-self.to_ms // TICK_MS)
        return first, behind

    def holds_whole(self, second: int) -> bool:
        """Whether the due times of a slot all fulfil the condition on due times."""
        after = self.from_ms is None or self.from_ms <= second * TICK_MS
        return after and (self.to_ms is None or self.to_ms >= (second + 1) * TICK_MS)


class ContentMatcher:
    """Finds the rows with the topics, keys and headers of a query. Ids and due times name slots,
    and are looked at where these are chosen."""

    def __init__(self, query: Query) -> None:
        self._values = {
            name: pa.array(values, kind)
            for name, values, kind in (
                ("topic", query.topics, pa.utf8()),
                ("key", query.keys, pa.binary()),
            )
            if values
        }
        self._headers = [(name, pa.scalar(value, pa.binary())) for name, value in query.headers]

    def matches(self, batches: Sequence[pa.RecordBatch]) -> Mask | None:
        """Which rows match, of all batches together, shape (rows,); None: not one."""
        mask = np.ones(sum(batch.num_rows for batch in batches), np.bool_)
        for name, values in self._values.items():
            column = pa.chunked_array([batch.column(name) for batch in batches])
            found = pc.equal(column, values[0]) if len(values) == 1 else pc.is_in(column, values)
            if not pc.any(found).as_py():
                return None
            mask &= pc.fill_null(found, False).to_numpy()
        for name, value in self._headers:
            found = _with_header([batch.column("headers") for batch in batches], name, value)
            if found is None:
                return None
            mask &= found
        return mask if mask.any() else None


def _with_header(columns: Sequence[pa.Array], name: str, value: pa.Scalar) -> Mask | None:
    """Which rows of headers columns have that header, shape (rows,); None: not one. Most slots have
    no such value, so that is asked first, of all columns at once."""
    # Also of rows that these columns are slices without: only to be sure that there is none.
    found = pc.equal(pa.chunked_array([column.values.field(1) for column in columns]), value)
    if not pc.any(found).as_py():
        return None
    masks = []
    for column in columns:
        headers = column.flatten()
        equal = pc.fill_null(pc.equal(headers.field(1), value), False)
        both = pc.and_(pc.equal(headers.field(0), name), equal)
        mask = np.zeros(len(column), np.bool_)
        mask[np.asarray(pc.list_parent_indices(column).filter(both))] = True
        masks.append(mask)
    return np.concatenate(masks)


def parse_where(conditions: Iterable[str], now_ms: int) -> Query:
    """The query of conditions as texts: ``topic=orders``, ``header:source=web``, ``from=…``; times
    as ``instant_ms`` takes them.

    Errors: ``InvalidConfiguration`` that names the condition.
    """
    query = Query()
    for count, text in enumerate(conditions, 1):
        if count > _CONDITIONS_MAX:
            raise InvalidConfiguration("too many conditions", got=count, limit=_CONDITIONS_MAX)
        name, equals, value = text.partition("=")
        if name.startswith("header:"):  # a header's name may hold an equals sign no more than ours
            header = name.removeprefix("header:")
            if not (equals and header):
                raise _not_a_condition(text)
            query = replace(query, headers=(*query.headers, (header, as_bytes(value))))
        elif equals and value and name == "id":
            query = replace(query, ids=(*query.ids, value))
        elif equals and value and name == "topic":
            query = replace(query, topics=(*query.topics, value))
        elif equals and name == "key":
            query = replace(query, keys=(*query.keys, as_bytes(value)))
        elif equals and name == "key_base64":
            query = replace(query, keys=(*query.keys, _from_base64(text, value)))
        elif equals and value and name == "from" and query.from_ms is None:
            query = replace(query, from_ms=_time(text, value, now_ms))
        elif equals and value and name == "to" and query.to_ms is None:
            query = replace(query, to_ms=_time(text, value, now_ms))
        else:
            raise _not_a_condition(text)
    check_query(query)
    return query


def as_bytes(text: str) -> bytes:
    """A text as it is typed; what a command line had that is no UTF-8 becomes these bytes again."""
    return text.encode("utf-8", "surrogateescape")


def check_query(query: Query) -> None:
    """Check a query whose texts come from a command line. Errors: ``InvalidConfiguration``: a topic
    or a header's name is no UTF-8; and those of ``check_times``."""
    for text in (*query.topics, *(name for name, _ in query.headers)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidConfiguration(
                "a topic or a header's name that is no text",
                got=repr(text[:200]),
                limit="UTF-8",
                remedy="No message has such a one",
            ) from None
    check_times(query.from_ms, query.to_ms)


def check_times(from_ms: int | None, to_ms: int | None) -> None:
    """Errors: ``InvalidConfiguration``: one cannot be a time in ms (``check_instant``), or no time
    lies between the two."""
    for ms in (from_ms, to_ms):
        if ms is not None:
            check_instant(ms)
    check_order(from_ms, to_ms)


def check_order(from_ms: int | None, to_ms: int | None) -> None:
    """Errors: ``InvalidConfiguration``: no time lies between the two."""
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidConfiguration(
            "no time lies between the two",
            got=f"from {from_ms} ms to {to_ms} ms",
            remedy="Give an end behind the begin; the end itself is left out",
        )


def _time(condition: str, text: str, now_ms: int) -> int:
    try:
        return instant_ms(text, now_ms)
    except InvalidConfiguration as error:
        message = f"condition {condition[:80]!r}: {error.message}"
        raise InvalidConfiguration(
            message, got=error.got, limit=error.limit, remedy=error.remedy
        ) from None


def _from_base64(condition: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _not_a_condition(condition) from None


def _not_a_condition(text: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        "not a condition", got=repr(text[:200]), limit=_FORMS, remedy=_FORMS_REMEDY
    )


def page_text(key: RowKey) -> str:
    """A page token as text, as ``parse_page`` reads it."""
    due, offset = key
    return f"{due},{offset}"


def parse_page(text: str) -> RowKey:
    """The due time and the offset behind which a page begins. Errors: ``InvalidConfiguration``."""
    found = _PAGE.fullmatch(text)
    if found is not None:
        due, offset = int(found[1]), int(found[2])
        if -_INT64_END <= due < _INT64_END and offset < _INT64_END:
            return due, offset
    raise InvalidConfiguration(
        "not a page",
        got=repr(text[:200]),
        limit="DUE,OFFSET",
        remedy="Give what the page before it named as the next one",
    )
