"""Events and chains over a fleet: made of the events of all wheels, by the code that makes those of
one.

Rules
- Stores of several wheels may have the same events, as of a trace topic that they share in Kafka:
  each event is counted once, by its sender and number.
- The fate of a message is told by the wheel that its id names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from ...policy.deadletters import notes_topic
from ...policy.parameters import query_of
from ...reading.problems import INTEGRITY, Problem
from ...reading.search.fate import FateBefore, MessageFate, MessageState
from ...reading.search.query import LIMIT_MAX
from ...reading.visible import MayTopic
from ...trace.chains.chain import Chain
from ...trace.chains.fields import events_of
from ...trace.chains.finding import find_chain
from ...trace.chains.lookup import EventsQuery
from ...trace.events import OWN_TOPICS
from ...trace.store import TraceKey, TracePage
from ...wheel.answers import Before
from ...wheel.ids import MessageId
from ..front.front import Front
from .joining import of_each
from .pending import KnownMessage


class TraceEvent(msgspec.Struct, omit_defaults=True):
    """Something that a client or a consumer did with a message, as it says itself."""

    at_ms: int
    """When it began, by the sender's clock."""
    kind: str
    sender: str
    number: int
    """The place of the event among all events of its sender."""
    client: str = ""
    address: str = ""
    sender_tags: str = ""
    """A JSON object."""
    id: str | None = None
    origin: str | None = None
    """The message that it comes from: the first attempt, or a dead letter."""
    took_us: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    traceparent: str | None = None
    group: str | None = None
    attempt: int | None = None
    error: str | None = None
    count: int | None = None
    """How many events before this one are missing."""


class TraceEvents(msgspec.Struct):
    """Events in the order of their times."""

    events: list[TraceEvent]
    next: str | None
    """Give it as ``page`` for the events behind these; null: there are none."""
    complete: bool
    looked_through: int
    """Events that were read for it."""
    problems: list[str]
    limited_by_rights: bool
    """Whether only events of topics that the caller may read are shown."""


def joined_events(
    pages: Mapping[str, TraceEvents], limit: int, missing: Sequence[str]
) -> TraceEvents:
    """A page of at most ``limit`` events out of those of several wheels, in the order of their
    times. It ends where the first of them ends that has further ones."""
    events = {_key(event): event for page in pages.values() for event in page.events}
    ends = [TraceKey.parse(page.next) for page in pages.values() if page.next is not None]
    end = min(ends, default=None)
    keys = sorted(key for key in events if end is None or key <= end)
    if len(keys) > limit:
        keys = keys[:limit]
        end = keys[-1]
    problems = [*missing, *of_each((page.problems for page in pages.values()), pages)]
    return TraceEvents(
        [events[key] for key in keys],
        None if end is None else str(end),
        not problems,
        sum(page.looked_through for page in pages.values()),
        problems,
        any(page.limited_by_rights for page in pages.values()),
    )


def _key(event: TraceEvent) -> TraceKey:
    return TraceKey(event.at_ms, event.sender, event.number)


@dataclass(frozen=True, slots=True)
class ChainOverFleet:
    """Looks for chains in all wheels of ``front``, for a caller who has the topics of the patterns
    ``topics``; None: all. Its methods block."""

    front: Front
    topics: Sequence[str] | None

    def chain(
        self, message_id: str, now_ms: int, may: MayTopic | None, dead_letter_topic: str
    ) -> Chain:
        """As of ``TraceLookup.chain``. Errors: ``UnknownId``."""
        unread = OWN_TOPICS | {notes_topic(dead_letter_topic), dead_letter_topic}
        return find_chain(message_id, self, self._fates, now_ms, unread=unread, may=may)

    def of_id(self, wanted: MessageId, may: MayTopic | None = None) -> TracePage:  # noqa: ARG002
        """As of ``TraceReader``; each wheel's gateway looks at the caller's topics."""
        path = f"/v1/trace?{query_of(EventsQuery(id=wanted, limit=LIMIT_MAX))}"
        paths = dict.fromkeys(self.front.names, path)
        pages, missing = self.front.ask_now(paths, TraceEvents, self.topics)
        page = joined_events(pages, LIMIT_MAX, missing)
        return TracePage(
            events_of(msgspec.to_builtins(page.events)),
            None if page.next is None else TraceKey.parse(page.next),
            page.looked_through,
            tuple(Problem(INTEGRITY, "missing", text) for text in page.problems),
        )

    def _fates(self, ids: Sequence[str]) -> list[MessageFate]:
        wheels = {text: MessageId.parse(text).group for text in ids}
        return [self._fate(text, wheel) for text, wheel in wheels.items()]

    def _fate(self, text: str, wheel: str) -> MessageFate:
        why = f"the fleet has no wheel {wheel!r}"
        if wheel in self.front.names:
            path = f"/v1/messages/{quote(text, safe='')}"
            answers, missing = self.front.ask_now({wheel: path}, KnownMessage, self.topics)
            if answers:
                return _fate_of(answers[wheel])
            why = missing[0]
        return MessageFate(text, MessageState.UNKNOWN, why, MessageId.parse(text).due)


def _fate_of(known: KnownMessage) -> MessageFate:
    before = known.before
    return MessageFate(
        id=known.id,
        state=MessageState(known.state),
        why=known.why,
        due_ms=known.due_ms,
        created_ms=known.created_ms,
        left_ms=known.left_ms,
        topic=known.topic,
        before=None if before is None else FateBefore(Before(before.what), before.id),
        replaced_by=known.replaced_by,
    )
