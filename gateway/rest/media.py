"""Content types: ``application/vnd.kafka[.embedded format][.v2][+json]``, and shorter forms.

Theory: a type names up to three things: the serialization (json), the interface's version, and the
embedded format, in which keys and values stand in the JSON. A part that it leaves out has its
default: json, v2, binary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from ..errors import HttpError
from ..requests import JSON, header_of, media_type, wanted_type

EmbeddedFormat = Literal["binary", "json"]
"""The form of keys and values in JSON: base64, or JSON themselves."""
FORMATS: tuple[EmbeddedFormat, ...] = ("binary", "json")

V2 = "application/vnd.kafka.v2+json"
SHORT = "application/vnd.kafka+json"
OCTETS = "application/octet-stream"
PLAIN = (V2, SHORT, JSON)
"""The types of bodies without keys and values."""
_KAFKA = re.compile(r"application/vnd\.kafka(?:\.(binary|json))?(?:\.v2)?(\+json)?")


def records_type(embedded: EmbeddedFormat) -> str:
    return f"application/vnd.kafka.{embedded}.v2+json"


def format_of_body(scope: Any) -> EmbeddedFormat:
    """The embedded format of a request's records. Errors: ``HttpError`` 415."""
    given = _given(scope)
    kind = media_type(given)
    if kind in (JSON, OCTETS):
        return "binary"
    match = _KAFKA.fullmatch(kind)
    if match is None or match[2] is None:
        raise _unsupported(given, [*map(records_type, FORMATS), *PLAIN])
    return "json" if match[1] == "json" else "binary"


def check_body_type(scope: Any) -> None:
    """Check the type of a request without records. Errors: ``HttpError`` 415."""
    given = _given(scope)
    kind = media_type(given)
    if kind not in (JSON, OCTETS) and _KAFKA.fullmatch(kind) is None:
        raise _unsupported(given, PLAIN)


def _given(scope: Any) -> str:
    return header_of(scope["headers"], b"content-type") or ""


def _unsupported(given: str, allowed: Sequence[str]) -> HttpError:
    """A 415 with the first words of Kafka's REST proxy and the allowed types in ``Accept``."""
    usable = ", ".join(allowed)
    return HttpError(
        415,
        "HTTP 415 Unsupported Media Type",
        got=given or "none",
        limit=usable,
        headers={"Accept": usable},
    )


def answer_type(scope: Any) -> str:
    """The type of an answer without records. Errors: ``HttpError`` 406."""
    return _accepted(scope, PLAIN)


def records_answer_type(scope: Any, embedded: EmbeddedFormat) -> str:
    """The type of an answer with records in ``embedded``. A type that names no embedded format
    stands for that of the records. Errors: ``HttpError`` 406."""
    own = records_type(embedded)
    others = [records_type(name) for name in FORMATS if name != embedded]
    accepted = _accepted(scope, (own, *PLAIN, OCTETS, *others))
    if accepted in others:
        raise HttpError(
            406,
            "the consumer's format is not the one that you accept",
            error_code=40601,
            place="header Accept",
            got=accepted,
            limit=own,
            remedy="Accept the consumer's format, or create another consumer",
        )
    return accepted


def _accepted(scope: Any, offered: Sequence[str]) -> str:
    try:
        return wanted_type(scope, offered)
    except HttpError as error:
        if error.status == 406:
            error.message = "HTTP 406 Not Acceptable"
        raise
