"""Content types: ``application/vnd.kafka[.embedded format][.v2][+json]``, and shorter forms.

Theory: a type names up to three things: the serialization (json), the interface's version, and the
embedded format, in which keys and values stand in the JSON. What it leaves out is what is usual:
json, v2, binary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from ..errors import HttpError
from ..requests import JSON, header_of, media_type, wanted_type

EmbeddedFormat = Literal["binary", "json"]
"""How keys and values stand in JSON: as base64, or as JSON themselves."""
FORMATS: tuple[EmbeddedFormat, ...] = ("binary", "json")

V2 = "application/vnd.kafka.v2+json"
SHORT = "application/vnd.kafka+json"
OCTETS = "application/octet-stream"
PLAIN = (V2, SHORT, JSON)
"""Of what has no keys and values in it."""
_KAFKA = re.compile(r"application/vnd\.kafka(?:\.(binary|json))?(?:\.v2)?(\+json)?")


def records_type(embedded: EmbeddedFormat) -> str:
    return f"application/vnd.kafka.{embedded}.v2+json"


def format_of_body(scope: Any) -> EmbeddedFormat:
    """In which embedded format a request's records are. Errors: ``HttpError`` 415."""
    given = _given(scope)
    kind = media_type(given)
    if kind in (JSON, OCTETS):
        return "binary"
    found = _KAFKA.fullmatch(kind)
    if found is None or found[2] is None:
        raise _unsupported(given, [*(records_type(one) for one in FORMATS), *PLAIN])
    return "json" if found[1] == "json" else "binary"


def check_body_type(scope: Any) -> None:
    """Of a request without records. Errors: ``HttpError`` 415."""
    given = _given(scope)
    kind = media_type(given)
    if kind not in (JSON, OCTETS) and _KAFKA.fullmatch(kind) is None:
        raise _unsupported(given, PLAIN)


def _given(scope: Any) -> str:
    return header_of(scope["headers"], b"content-type") or ""


def _unsupported(given: str, allowed: Sequence[str]) -> HttpError:
    """Begins with that interface's text; what is allowed is in a header, too, as HTTP has it."""
    usable = ", ".join(allowed)
    return HttpError(
        415,
        "HTTP 415 Unsupported Media Type",
        got=given or "none",
        limit=usable,
        headers={"Accept": usable},
    )


def answer_type(scope: Any) -> str:
    """Of an answer without records. Errors: ``HttpError`` 406."""
    return _wanted(scope, PLAIN)


def records_answer_type(scope: Any, embedded: EmbeddedFormat) -> str:
    """Of an answer with records in ``embedded``. A type that names no embedded format means that
    of the records. Errors: ``HttpError`` 406."""
    own = records_type(embedded)
    others = [records_type(one) for one in FORMATS if one != embedded]
    found = _wanted(scope, (own, *PLAIN, OCTETS, *others))
    if found in others:
        raise HttpError(
            406,
            "the consumer's format is not the one that you accept",
            error_code=40601,
            place="header Accept",
            got=found,
            limit=own,
            remedy="Accept the consumer's format, or create another consumer",
        )
    return found


def _wanted(scope: Any, offered: Sequence[str]) -> str:
    try:
        return wanted_type(scope, offered)
    except HttpError as error:
        if error.status == 406:
            error.message = "HTTP 406 Not Acceptable"
        raise
