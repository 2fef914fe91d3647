"""The traces of messages: chains, events, latency by step, anomalies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from ...client.message import clock_ms
from ...policy.parameters import query_of
from ...reading.visible import MayTopic
from ...security.rights import Operation, Right
from ...trace.chains.chain import Chain
from ...trace.chains.fields import anomaly_fields, chain_fields, event_fields, latency_fields
from ...trace.chains.lookup import (
    AnomaliesFound,
    AnomalyQuery,
    EventsQuery,
    LatencyFound,
    LatencyQuery,
    TraceLookup,
)
from ...trace.store import TracePage
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError
from ..predecessors import NameBefore
from ..requests import Reply, as_json
from ..services import Services
from .chains import ChainOverFleet, TraceEvent, TraceEvents, joined_events

P = ParamSpec("P")
T = TypeVar("T")


class FoundStep(msgspec.Struct, omit_defaults=True):
    """A step of a chain: something that happened to a message, or the due time of one that waits.
    Without ``at_ms`` its time is not known."""

    kind: str
    tier: Literal["client", "wheel", "consumer"]
    """Whose event or file says so."""
    id: str = ""
    at_ms: int | None = None
    took_us: int | None = None
    failed: bool = False
    why: str = ""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None
    key_base64: str | None = None
    group: str | None = None
    attempt: int | None = None
    client: str = ""
    address: str = ""
    tag: str | None = None
    traceparent: str | None = None


class FoundAnomaly(msgspec.Struct, omit_defaults=True):
    """Something that a message should not need, such as a retry."""

    kind: str
    text: str
    id: str = ""
    at_ms: int | None = None
    topic: str | None = None
    group: str | None = None
    amount: int | None = None
    """Attempts, times, milliseconds or events, by its kind."""


class LinkedMessage(msgspec.Struct, omit_defaults=True):
    """A message of a chain, and what the wheel knows of it."""

    id: str
    state: str
    why: str = ""
    comes_from: str | None = None
    topic: str | None = None
    due_ms: int | None = None
    created_ms: int | None = None
    left_ms: int | None = None
    before: NameBefore | None = None
    """The message that had its name when it came."""
    replaced_by: str | None = None
    """The id of the later message of its name that replaced it."""


class FoundChain(msgspec.Struct):
    """All that happened to a message, over its retries and dead letters."""

    id: str
    state: str
    outcomes: dict[str, str]
    """What became of it in each group of consumers, by the group's name."""
    messages: list[LinkedMessage]
    steps: list[FoundStep]
    latency_ms: dict[str, float]
    """How long each step of its first message took, as far as that is known."""
    anomalies: list[FoundAnomaly]
    complete: bool
    missing: list[str]


class StepLatency(msgspec.Struct):
    """How long a step took for the messages to a topic that were due in an interval."""

    topic: str
    from_ms: int
    step: str
    messages: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class StepLatencies(msgspec.Struct):
    """Latencies by topic, interval and step."""

    latencies: list[StepLatency]
    complete: bool
    problems: list[str]
    limited_by_rights: bool
    """Whether only topics that the caller may read are shown."""


class FoundAnomalies(msgspec.Struct):
    """The first anomalies of a time, and how many there are of each kind."""

    anomalies: list[FoundAnomaly]
    counts: dict[str, int]
    complete: bool
    problems: list[str]


async def ask_lookup(
    services: Services,
    method: Callable[Concatenate[TraceLookup, P], T],
    *args: P.args,
    **named: P.kwargs,
) -> T:
    """Ask the process that looks things up; ``args``, ``named``: of the method. Errors:
    ``HttpError`` 404: there is neither a store of events nor a data directory; those of the method.
    """
    process = services.lookup
    if process is None:
        raise HttpError(
            404,
            "this gateway knows of no events and no data directory",
            remedy="Start it beside a node, or with --data DIRECTORY of one",
        )
    return await services.lookup_questions.ask(lambda: process.ask(method, *args, **named))


async def chain_of(services: Services, message_id: str) -> Chain:
    """The chain of a message, as far as the caller may read it: what is of other topics looks as a
    message of which nothing is known. Errors: ``UnknownId``; as of ``ask_lookup``."""
    may = services.topics_for(Right.READ)
    if services.front is not None and services.lookup is None:
        asked = ChainOverFleet(services.front, services.patterns_for(Right.READ))
        letters = services.settings.dead_letter_topic
        return await services.run(asked.chain, message_id, clock_ms(), may, letters)
    return await ask_lookup(services, TraceLookup.chain, message_id, clock_ms(), may=may)


async def get_chain(call: RouteCall[NoQuery, None]) -> Reply:
    """Show all that happened to a message, over its retries, its dead letter, and what was sent
    again of that."""
    chain = await chain_of(call.services, call.path["id"])
    # On a thread: thousands of events take a while, and the loop has other requests to serve.
    return await call.services.run(
        lambda: as_json(msgspec.convert(chain_fields(chain), FoundChain))
    )


async def list_events(call: RouteCall[EventsQuery, None]) -> Reply:
    """List events of clients and consumers in the order of their times, a page at a time."""
    services, query = call.services, call.query
    if services.front is not None and services.lookup is None:
        path, topics = f"/v1/trace?{query_of(query)}", services.patterns_for(Right.READ)
        pages, missing = await services.front.ask_all(path, TraceEvents, topics)
        return as_json(joined_events(pages, query.limit, missing))
    may = services.topics_for(Right.READ)
    page = await ask_lookup(services, TraceLookup.page, query, may=may)
    return await services.run(_events_reply, page, may is not None)


def _events_reply(page: TracePage, is_limited: bool) -> Reply:
    """``is_limited``: it has events of the topics alone that the caller may read."""
    events = [msgspec.convert(fields, TraceEvent) for fields in event_fields(page.events)]
    looked_through = len(events) if is_limited else page.looked_through
    following = None if page.next is None else str(page.next)
    problems = list(map(str, page.problems))
    return as_json(
        TraceEvents(events, following, page.complete, looked_through, problems, is_limited)
    )


async def found_latency(services: Services, query: LatencyQuery) -> StepLatencies:
    """How long steps took in the time of ``query``; of a fleet, in one wheel, as the percentiles of
    several cannot be joined. Errors: as of ``ask_lookup`` and ``Front.ask_one``."""
    if services.front is not None and services.lookup is None:
        topics = services.patterns_for(Right.READ)
        path = f"/v1/trace/latency?{query_of(query)}"
        return await services.front.ask_one(path, StepLatencies, topics)
    answer = await ask_lookup(services, TraceLookup.latency, query, clock_ms())
    return await services.run(_latencies_shown, answer, services.topics_for(Right.READ))


def _latencies_shown(answer: LatencyFound, may: MayTopic | None) -> StepLatencies:
    rows = [
        msgspec.convert(latency_fields(row), StepLatency)
        for row in answer.latencies
        if may is None or may(row.topic)
    ]
    problems = list(map(str, answer.problems))
    return StepLatencies(rows, not problems, problems, may is not None)


async def get_latency(call: RouteCall[LatencyQuery, None]) -> Reply:
    """Show how long each step took, by topic and due time."""
    return as_json(await found_latency(call.services, call.query))


async def found_anomalies(services: Services, query: AnomalyQuery) -> FoundAnomalies:
    """The anomalies in the time of ``query``. Errors: as of ``ask_lookup``; ``HttpError`` 422: the
    caller may read some topics, and the question, whose answer counts anomalies, names none of
    them."""
    may = services.topics_for(Right.READ)
    if may is not None and not (query.topic and may(query.topic)):
        raise HttpError(
            422,
            "anomalies are counted for a topic that you may read",
            place="query topic",
            got=query.topic or "none",
            limit="one that your roles let you read",
            remedy="Give topic",
        )
    if services.front is not None and services.lookup is None:
        path = f"/v1/trace/anomalies?{query_of(query)}"
        topics = services.patterns_for(Right.READ)
        return await services.front.ask_one(path, FoundAnomalies, topics)
    answer = await ask_lookup(services, TraceLookup.anomalies, query, clock_ms())
    return await services.run(_anomalies_shown, answer)


def _anomalies_shown(answer: AnomaliesFound) -> FoundAnomalies:
    rows = [msgspec.convert(fields, FoundAnomaly) for fields in anomaly_fields(answer.rows)]
    problems = list(map(str, answer.problems))
    return FoundAnomalies(rows, dict(answer.counts), not problems, problems)


async def list_anomalies(call: RouteCall[AnomalyQuery, None]) -> Reply:
    """List what messages should not have needed: retries, repeats, waiting, dead letters."""
    return as_json(await found_anomalies(call.services, call.query))


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.TRACE, "GET", "/v1/trace", list_events, {200: TraceEvents}, name="listTraceEvents"
    ),
    endpoint(
        Operation.TRACE,
        "GET",
        "/v1/trace/latency",
        get_latency,
        {200: StepLatencies},
        name="getTraceLatencies",
    ),
    endpoint(
        Operation.TRACE,
        "GET",
        "/v1/trace/anomalies",
        list_anomalies,
        {200: FoundAnomalies},
        name="listTraceAnomalies",
    ),
    endpoint(
        Operation.TRACE,
        "GET",
        "/v1/trace/{id}",
        get_chain,
        {200: FoundChain},
        (422,),
        name="getMessageTrace",
    ),
]
