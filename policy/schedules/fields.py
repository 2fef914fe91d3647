"""Reads the fields of JSON one by one; an error names the place of the value, the limit and the
remedy. Otherwise who sends a schedule of twenty fields would have to guess which one is wrong."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from ...wheel.errors import InvalidMessage
from ...wheel.rows import Header
from ...wheel.texts import is_utf8
from ..shown import shown

T = TypeVar("T")
_SUFFIX = "_base64"
_COMPARED_MAX = 3
_COMPARED_LENGTH_MAX = 40


class InvalidField(InvalidMessage):
    """A field of JSON that cannot be used. ``path``: where it stands, as ``$.template.topic``; for
    programs, which mark the field in a form."""

    def __init__(self, message: str, *, path: str = "$", **more: Any) -> None:
        self.path = path
        super().__init__(message, **more)


class JsonFields:
    """An object of JSON whose fields are taken one after the other. ``place``: where it stands, as
    in ``schedule 'daily', template``; each error begins with it. ``path``: the same for programs,
    as in ``$.template``."""

    def __init__(
        self,
        place: str,
        fields: object,
        names: tuple[str, ...],
        path: str = "$",
        remedy: str = "Correct the name",
    ) -> None:
        """``names``: all fields that there may be. ``remedy``: against a field that is none of them
        and resembles none. Errors: ``InvalidField``."""
        self.place = place
        self.path = path
        self._names = names
        if not isinstance(fields, Mapping):
            raise InvalidField(
                f"{place}: not an object",
                path=path,
                got="nothing" if fields is None else shown(fields),
                limit="an object of JSON",
                remedy="Write its fields in {}",
            )
        unknown = [str(name) for name in fields if name not in names]
        if unknown:
            raise InvalidField(
                f"{place}: no such field",
                path=path,
                got=", ".join(sorted(unknown))[:200],
                limit=", ".join(names),
                remedy=_correction(unknown, names) or remedy,
            )
        self._fields: Mapping[str, Any] = fields

    def error(self, name: str, got: object, limit: str, remedy: str) -> InvalidField:
        return InvalidField(
            f"{self.place}, {name}",
            path=self._path_of(name),
            got=got,
            limit=limit,
            remedy=remedy,
        )

    def refused(self, name: str, fault: InvalidMessage) -> InvalidField:
        """The error of a check that does not know where the value stands."""
        return InvalidField(
            f"{self.place}, {name}: {fault.message}",
            path=self._path_of(name),
            got=fault.got,
            limit=fault.limit,
            remedy=fault.remedy,
        )

    def too_large(self, got: str, limit: str, remedy: str) -> InvalidField:
        """The error of an object whose fields are too large together."""
        message = f"{self.place}: too large"
        return InvalidField(message, path=self.path, got=got, limit=limit, remedy=remedy)

    def _path_of(self, name: str) -> str:
        """The path of a field; that of the object, where an error is about several fields."""
        field = name.partition(",")[0]
        return f"{self.path}.{field}" if field in self._names else self.path

    def given(self, name: str) -> Any:
        """The value of a field, None where it is null or left out."""
        return self._fields.get(name)

    def text(self, name: str, remedy: str) -> str | None:
        value = self.given(name)
        if value is not None and not (isinstance(value, str) and is_utf8(value)):
            raise self.error(name, shown(value), "a text", remedy)
        return value

    def number(self, name: str, allowed: range, limit: str, remedy: str) -> int | None:
        """A whole number in ``allowed``, which ``limit`` says with its unit."""
        value = self.given(name)
        if value is not None and type(value) is not int:
            remedy = "Write it in digits alone, without quotes, point or unit, or leave it out"
            raise self.error(name, shown(value), f"a whole number, {limit}", remedy)
        if value is not None and value not in allowed:
            raise self.error(name, shown(value), limit, remedy)
        return value

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        value = self.given(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, shown(value), ", ".join(choices), "Write one of these")
        return choices[value]

    def content(self, name: str) -> bytes | None:
        """Bytes that stand as text in the field, or in base64 in the field with ``_base64``."""
        text, coded = self.text(name, f"Write bytes in {name}{_SUFFIX}"), self.given(name + _SUFFIX)
        if text is not None and coded is not None:
            raise self.error(
                name, f"both {name} and {name}{_SUFFIX}", "one", "Leave one of them out"
            )
        if coded is not None:
            return self._decoded(name + _SUFFIX, coded)
        return None if text is None else text.encode()

    def headers(self, name: str) -> tuple[Header, ...]:
        """Headers, as an object or, where a name comes twice, as pairs. A value is a text, null, or
        ``{"base64": "…"}``."""
        value = self.given(name)
        if value is None:
            return ()
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple):
            raise self._no_headers(name, value)
        headers = []
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise self._no_headers(name, pair)
            key, content = pair
            if not isinstance(key, str) or not is_utf8(key):
                raise self._no_headers(name, key)
            if isinstance(content, Mapping) and set(content) == {"base64"}:
                content = self._decoded(f"{name}, {key!r}"[:200], content["base64"])
            elif isinstance(content, str) and is_utf8(content):
                content = content.encode()
            elif content is not None:
                raise self._no_headers(name, content)
            headers.append((key, content))
        return tuple(headers)

    def _no_headers(self, name: str, got: object) -> InvalidField:
        limit = 'names with texts, null, or {"base64": "…"}'
        return self.error(
            name, shown(got), limit, 'Write {"name": "value"}, or [["name", "value"]]'
        )

    def _decoded(self, name: str, coded: object) -> bytes:
        try:
            if isinstance(coded, str):
                return b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            pass
        raise self.error(name, shown(coded), "bytes in base64", "Encode them with + and /, and =")


def _correction(unknown: list[str], names: tuple[str, ...]) -> str:
    """The fields that were perhaps meant; nothing where one of the names resembles none. *Example.*
    ``every`` was perhaps ``every_ms``. Of many or long names none is compared: that would keep a
    node busy for seconds with one request."""
    if len(unknown) > _COMPARED_MAX or any(len(name) > _COMPARED_LENGTH_MAX for name in unknown):
        return ""
    meant = [(name, get_close_matches(name, names, n=1)) for name in sorted(unknown)]
    if not all(close for _, close in meant):
        return ""
    return "Write " + ", ".join(f"{close[0]} in place of {name}" for name, close in meant)


def content_fields(name: str, content: bytes | None) -> dict[str, str]:
    """The one field in which ``JsonFields.content`` reads these bytes again; none for None."""
    if content is None:
        return {}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {name + _SUFFIX: b64encode(content).decode()}


def header_pairs(headers: tuple[Header, ...]) -> list[list[Any]]:
    """Headers as pairs, as ``JsonFields.headers`` reads them."""
    return [[key, _header_value(content)] for key, content in headers]


def _header_value(content: bytes | None) -> Any:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content or b"").decode()}
