"""A message as JSON. These types decode it, and the OpenAPI description is made of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from ...client import Message
from ...policy.written import Instant
from ...wheel.errors import InvalidMessage
from ...wheel.rows import Header
from ..predecessors import NameBefore
from ..requests import PartitionNumber, SpanMilliseconds


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes of a header that are no text."""

    base64: bytes


HeaderValue = str | Base64 | None
MessageHeaders = dict[str, HeaderValue] | list[tuple[str, HeaderValue]]


class NamedBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message to be sent later whose topic and name are known: one of ``due_ms``, ``delay_ms``,
    ``level``."""

    value: str | None = None
    """Text; it becomes UTF-8."""
    value_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: MessageHeaders = {}
    """By name, or pairs in order, where a name may occur twice."""
    partition: PartitionNumber | None = None
    due_ms: Instant | None = None
    """Milliseconds since 1970, UTC."""
    delay_ms: SpanMilliseconds | None = None
    level: str | None = None
    expires_ms: Instant | None = None
    ttl_ms: SpanMilliseconds | None = None
    if_exists: Literal["replace", "keep", "refuse"] | None = None
    """What happens where another message has the name. Null: `replace`."""

    def __post_init__(self) -> None:
        """An object that is no message ends the decoding at once. Otherwise a body of ``{},{},…``
        would take a hundred times its bytes of memory."""
        if self.due_ms is None and self.delay_ms is None and self.level is None:
            raise ValueError("no due_ms, delay_ms or level")

    def message_for(self, topic: str, name: str | None, route: str | None = None) -> Message:
        """The message to be sent. Errors: ``InvalidMessage``: two fields say the same thing."""
        value = _only("value", self.value, self.value_base64)
        key = _only("key", self.key, self.key_base64)
        if self.due_ms is not None and self.delay_ms is not None:
            raise _both("due_ms", "delay_ms")
        delay = None if self.delay_ms is None else timedelta(milliseconds=self.delay_ms)
        ttl = None if self.ttl_ms is None else timedelta(milliseconds=self.ttl_ms)
        return Message(
            topic=topic,
            value=value,
            key=key,
            headers=header_bytes(self.headers) if self.headers else (),
            partition=self.partition,
            due=self.due_ms,
            delay=delay,
            expires=self.expires_ms,
            ttl=ttl,
            level=self.level,
            route=route,
            name=name,
            if_exists=self.if_exists,
        )


class MessageBody(NamedBody, gc=False):
    """A message to be sent later: a topic or a route, and one of ``due_ms``, ``delay_ms``,
    ``level``."""

    topic: str = ""
    route: str | None = None
    name: str | None = None
    """The name by which the message can be replaced, cancelled and found: 1 to 200 bytes of UTF-8
    without control characters. At most one pending message of a topic has it."""

    def __post_init__(self) -> None:
        """As of ``NamedBody``."""
        if not self.topic and self.route is None:
            raise ValueError("no topic and no route")
        if self.due_ms is None and self.delay_ms is None and self.level is None:
            raise ValueError("no due_ms, delay_ms or level")

    def message(self) -> Message:
        """The message to be sent. Errors: as of ``message_for``."""
        return self.message_for(self.topic, self.name, self.route)


def _only(name: str, text: str | None, raw: bytes | None) -> str | bytes | None:
    """The content that is given. Errors: ``InvalidMessage``: both are."""
    if raw is None:
        return text
    if text is None:
        return raw
    raise _both(name, f"{name}_base64")


def _both(name: str, other: str) -> InvalidMessage:
    return InvalidMessage(f"both {name} and {other}", remedy="Give one of them")


def header_bytes(given: MessageHeaders) -> list[Header]:
    """Headers as they are stored."""
    pairs = given.items() if isinstance(given, dict) else given
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(value: HeaderValue) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return None if value is None else value.base64


class StoredMessages(msgspec.Struct, omit_defaults=True):
    """The messages of a request, all of which are stored."""

    id: str
    """The id of the first message."""
    due_ms: int
    """The due time of the first message."""
    stored: int
    """How many messages the request had."""
    ids: list[str]
    """The ids of all messages, in their order. A message with a route has one for each topic. Where
    a message was dropped, as another one of its name was kept, the id of the kept one."""
    before: NameBefore | None = None
    """The message that had the name of the first one before; missing: none was known."""
    befores: list[NameBefore] = []
    """The same of all messages whose name was known before."""
