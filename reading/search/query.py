"""What is asked for: a condition on pending messages, as data.

Rules
- All kinds of conditions must hold: topic and time and key. Of ids, topics, keys and names one of
  those given is enough; of headers each must be there.
- A message is compared by bytes. No text is ever run or compiled as a pattern.
- Arrow evaluates it column by column, on whole slots.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, field

from ...policy.parameters import Parameter, Question, parameters_of
from ...policy.written import Instant, TextBytes, WayIn, Written, as_bytes
from ...wheel.config import TICK_MS
from ...wheel.errors import InvalidConfiguration
from ...wheel.mark import RowKey
from ...wheel.names import NAME_HEADER
from ...wheel.schema import Mask
from ..visible import MayTopic, visible_topics

_FORMS = (
    "id=ID, topic=TOPIC, key=TEXT, key_base64=BASE64, name=NAME, header:NAME=TEXT, from=TIME,"
    " to=TIME;"
    " TIME: 2026-05-31T18:30:00Z, +10m from now, or milliseconds since 1970"
)
_FORMS_REMEDY = "Write each condition as one of these; all of them must hold"
_PAGE = re.compile(r"(-?[0-9]{1,19}),(-1|[0-9]{1,19})(?:,([A-Za-z0-9_-]{1,100}))?")
_CONDITIONS_MAX = 10_000
LIMIT = 100
"""Messages of a page, if nobody says otherwise."""
LIMIT_MAX = 10_000
INT64_END = 1 << 63


def _read_header(text: str, way: WayIn) -> tuple[str, bytes]:
    name, between, value = text.partition(way.between)
    if not (name and between):
        raise InvalidConfiguration(
            "not a header",
            got=repr(text[:200]),
            limit=f"NAME{way.between}VALUE",
            remedy="Write its name and its value",
        )
    return name, as_bytes(value)


class PageKey(NamedTuple):
    """The place behind which a page begins: the due time and offset of the last message before it,
    and its wheel, where the pages are of several."""

    due: int
    offset: int
    wheel: str = ""

    def __str__(self) -> str:
        return ",".join(map(str, self if self.wheel else self.row))

    @property
    def row(self) -> RowKey:
        return self.due, self.offset

    @classmethod
    def parse(cls, text: str) -> PageKey:
        """The inverse of ``str``. Errors: ``InvalidConfiguration``."""
        found = _PAGE.fullmatch(text)
        if found is not None:
            due, offset = int(found[1]), int(found[2])
            if -INT64_END <= due < INT64_END and -1 <= offset < INT64_END:
                return cls(due, offset, found[3] or "")
        raise InvalidConfiguration(
            "not a page",
            got=repr(text[:200]),
            limit="DUE,OFFSET",
            remedy="Give what the page before it named as the next one",
        )


def _read_page(text: str, _: WayIn) -> PageKey | None:
    return PageKey.parse(text) if text else None


class Query(Question, frozen=True):
    """Which pending messages: a condition, of which an empty field sets none. All kinds of
    conditions must hold; of ids, topics, keys and names, one of those given."""

    ids: tuple[Annotated[str, Written(in_queries=False)], ...] = field(name="id", default=())
    """The message with this id, and what became of it; may be repeated."""
    topics: tuple[str, ...] = field(name="topic", default=())
    """Only messages to this topic; may be repeated."""
    keys: tuple[TextBytes, ...] = field(name="key", default=())
    """Only those with this key; may be repeated."""
    names: tuple[Annotated[str, Written(value_name="NAME")], ...] = field(name="name", default=())
    """Only those whose name is exactly this; may be repeated."""
    headers: tuple[Annotated[tuple[str, bytes], Written(_read_header, "NAME=VALUE")], ...] = field(
        name="header", default=()
    )
    """Only those with this header; may be repeated, and all must be there. `NAME:VALUE`."""
    from_ms: Instant | None = None
    """Only those due from this time on."""
    to_ms: Instant | None = None
    """Only those due before this time."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns of content that it looks at."""
        wanted = {
            "topic": self.topics,
            "key": self.keys,
            "headers": self.names or self.headers,
        }
        return frozenset(name for name, values in wanted.items() if values)

    @property
    def is_empty(self) -> bool:
        """Whether every message fulfils it."""
        return not self.ids and self.names_ids_alone

    @property
    def names_ids_alone(self) -> bool:
        """Whether it sets no condition but on ids."""
        return not self.columns and self.from_ms is None and self.to_ms is None

    def seconds(self) -> tuple[int | None, int | None]:
        """The first second that may hold a match, and the one behind the last; None: no limit."""
        first = None if self.from_ms is None else self.from_ms // TICK_MS
        behind = None if self.to_ms is None else -(-self.to_ms // TICK_MS)
        return first, behind

    def holds_whole(self, seconds: range) -> bool:
        """Returns True when all due times in these seconds fulfil the condition on due times."""
        after = self.from_ms is None or self.from_ms <= seconds.start * TICK_MS
        return after and (self.to_ms is None or self.to_ms >= seconds.stop * TICK_MS)


class PageQuery(Query, frozen=True):
    """Which messages, and how many."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    """Messages of a page, at most. It has fewer where they are large."""
    page: Annotated[PageKey, Written(_read_page, "DUE,OFFSET")] | None = None
    """Go on behind an earlier page. `next` of that page."""


class CountQuery(Query, frozen=True):
    """Which messages, and whether they are counted apart."""

    by: Literal["slot", "topic"] | None = None
    """Count for each slot in which messages are due, or for each topic."""


class ContentMatcher:
    """Finds the rows with the topics, keys, names and headers of a query, of those topics that
    ``may`` be seen; None: all. Ids and due times name slots, and are looked at where these are
    chosen."""

    def __init__(self, query: Query, may: MayTopic | None = None) -> None:
        self._may = may
        self._values = {
            name: pa.array(values, kind)
            for name, values, kind in (
                ("topic", query.topics, pa.utf8()),
                ("key", query.keys, pa.binary()),
            )
            if values
        }
        self._headers: list[tuple[str, tuple[bytes, ...]]]
        self._headers = [(name, (value,)) for name, value in query.headers]
        if query.names:  # a name is a header of the message, and of several one is enough
            self._headers.append((NAME_HEADER, tuple(name.encode() for name in query.names)))

    def matches(self, rows: pa.Table) -> Mask | None:
        """Which rows match, shape (rows,); None: not one."""
        mask = np.ones(rows.num_rows, np.bool_)
        for name, values in self._values.items():
            column = rows.column(name)
            found = pc.equal(column, values[0]) if len(values) == 1 else pc.is_in(column, values)
            if not pc.any(found).as_py():
                return None
            mask &= pc.fill_null(found, False).to_numpy()
        if self._may is not None:
            mask &= visible_topics(rows.column("topic"), self._may).to_numpy()
        for name, content in self._headers:
            found = _with_header(rows.column("headers").chunks, name, content)
            if found is None:
                return None
            mask &= found
        return mask if mask.any() else None


def _with_header(columns: Sequence[pa.Array], name: str, content: Sequence[bytes]) -> Mask | None:
    """Which rows of headers columns have that header with one of the values ``content``, shape
    (rows,); None: not one. Most slots have no such value, so that is asked first, of all columns at
    once."""
    values = pa.array(content, pa.binary())

    def is_value(column: Any) -> Any:
        return pc.equal(column, values[0]) if len(values) == 1 else pc.is_in(column, values)

    # Also of rows that these columns are slices without: only to be sure that there is none.
    found = is_value(pa.chunked_array([column.values.field(1) for column in columns]))
    if not pc.any(found).as_py():
        return None
    masks = []
    for column in columns:
        headers = column.flatten()
        equal = pc.fill_null(is_value(headers.field(1)), False)
        both = pc.and_(pc.equal(headers.field(0), name), equal)
        mask = np.zeros(len(column), np.bool_)
        mask[np.asarray(pc.list_parent_indices(column).filter(both))] = True
        masks.append(mask)
    return np.concatenate(masks)


def parse_where(conditions: Iterable[str], now_ms: int) -> Query:
    """The query of conditions as texts: ``topic=orders``, ``header:source=web``, ``from=…``; each
    is a parameter of ``Query`` as people write it, and ``key_base64`` is a key that is no text.

    Errors: ``InvalidConfiguration`` that names the condition.
    """
    parameters = {one.typed_name: one for one in parameters_of(Query).values()}
    way = WayIn(now_ms, between="=")
    given: dict[str, Any] = {}
    for count, text in enumerate(conditions, 1):
        if count > _CONDITIONS_MAX:
            raise InvalidConfiguration("too many conditions", got=count, limit=_CONDITIONS_MAX)
        name, equals, written = text.partition("=")
        if name.startswith("header:"):  # a header's name may hold an equals sign no more than ours
            name, written = "header", text.removeprefix("header:")
        parameter = parameters.get(name.removesuffix("_base64"))
        is_key = name in ("key", "key_base64")
        if parameter is None or not equals or not (written or is_key):
            raise _not_a_condition(text)
        if name == "key_base64":
            value: Any = _from_base64(text, written)
        else:
            value = _read(parameter, text, written, way)
        if parameter.several:
            value = (*given.get(parameter.field, ()), value)
        elif parameter.field in given:
            raise _not_a_condition(text)
        given[parameter.field] = value
    query = Query(**given)
    query.check()
    return query


def _read(parameter: Parameter, condition: str, text: str, way: WayIn) -> Any:
    try:
        return parameter.read(text, way)
    except InvalidConfiguration as error:
        if parameter.several:
            raise _not_a_condition(condition) from None
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
