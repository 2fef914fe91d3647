"""What a message looks like in JSON. These types decode, and the OpenAPI description is made of
them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from ...client import Message
from ...wheel.errors import InvalidMessage
from ...wheel.rows import Content

Milliseconds = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes of a header that are no text."""

    base64: bytes


HeaderValue = str | Base64 | None


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message to be sent later: a topic or a route, and one of ``due_ms``, ``delay_ms``,
    ``level``."""

    topic: str = ""
    value: str | None = None
    """Text; it becomes UTF-8."""
    value_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, HeaderValue] | list[tuple[str, HeaderValue]] = {}
    """By name, or pairs in order, where a name may occur twice."""
    partition: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    due_ms: Milliseconds | None = None
    """Milliseconds since 1970, UTC."""
    delay_ms: Milliseconds | None = None
    level: str | None = None
    expires_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None = None
    route: str | None = None

    def message(self) -> Message:
        """Errors: ``InvalidMessage``."""
        return Message(
            self.topic,
            _either("value", self.value, self.value_base64),
            _either("key", self.key, self.key_base64),
            _headers(self.headers),
            self.partition,
            self.due_ms,
            None if self.delay_ms is None else timedelta(milliseconds=self.delay_ms),
            self.expires_ms,
            None if self.ttl_ms is None else timedelta(milliseconds=self.ttl_ms),
            self.level,
            self.route,
        )


def _either(name: str, text: str | None, raw: bytes | None) -> Content:
    if text is None:
        return raw
    if raw is None:
        return text
    raise InvalidMessage(f"both {name} and {name}_base64", remedy="Give one of them")


def _headers(
    given: dict[str, HeaderValue] | list[tuple[str, HeaderValue]],
) -> list[tuple[str, Content]]:
    if not given:
        return []
    pairs = given.items() if isinstance(given, dict) else given
    return [(name, value.base64 if isinstance(value, Base64) else value) for name, value in pairs]


class StoredMessage(msgspec.Struct, omit_defaults=True):
    """A message that is stored. ``ids``: one for each topic of its route."""

    id: str
    due_ms: int
    ids: list[str] = []


class StoredMessages(msgspec.Struct):
    """Messages that are stored, all of them. ``ids``: in their order; several for one with a
    route."""

    stored: int
    ids: list[str]
