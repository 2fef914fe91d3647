"""Many messages that are taken back at once, by what they are: a count first, then a job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from ...policy.written import Instant
from ...reading.search.followup import Cancellation
from ...reading.search.query import Query
from ...reading.search.worker import WaitingFinder
from ...security.rights import Operation, Right
from ..endpoint import AnyEndpoint, RouteCall, endpoint
from ..errors import HttpError
from ..front.jobs import FleetJob
from ..jobs import GatewayJob, JobReport
from ..requests import Reply, as_json
from ..services import Services
from .joining import joined_counts
from .pending import PendingCounts
from .searching import found_counts, searcher_of
from .types import Base64, MessageHeaders, header_bytes


class Where(msgspec.Struct, forbid_unknown_fields=True):
    """A condition on pending messages: all of its kinds must hold; of topics, keys and names, one
    of those given. At least one must be there."""

    topic: str | list[str] = []
    key: str | list[str] = []
    key_base64: list[bytes] = []
    """Keys that are no text."""
    name: str | list[str] = []
    headers: MessageHeaders = {}
    """A message must have all of them."""
    from_ms: Instant | None = None
    """Due at this time or later."""
    to_ms: Instant | None = None
    """Due before this time."""

    @classmethod
    def of(cls, query: Query) -> Where:
        """The condition of ``query``, which names no ids."""
        return cls(
            topic=list(query.topics),
            key_base64=list(query.keys),
            name=list(query.names),
            headers=[(name, Base64(value)) for name, value in query.headers],
            from_ms=query.from_ms,
            to_ms=query.to_ms,
        )

    def query(self) -> Query:
        """Errors: ``HttpError`` 422: no condition, or a header without a value; as of
        ``Query.check``."""
        topics = [self.topic] if isinstance(self.topic, str) else self.topic
        keys = [self.key] if isinstance(self.key, str) else self.key
        names = [self.name] if isinstance(self.name, str) else self.name
        headers = []
        for name, value in header_bytes(self.headers):
            if value is None:
                text = "a header is looked for by its value, and this one has none"
                raise HttpError(422, text, place="$.where.headers", got=name)
            headers.append((name, value))
        query = Query(
            topics=tuple(topics),
            keys=(*(key.encode() for key in keys), *self.key_base64),
            names=tuple(names),
            headers=tuple(headers),
            from_ms=self.from_ms,
            to_ms=self.to_ms,
        )
        if query.is_empty:
            raise HttpError(
                422,
                "every pending message would be cancelled",
                place="$.where",
                got="no condition",
                limit="at least one; all messages fulfil from_ms 946684800000, the year 2000",
            )
        query.check()
        return query


class CancellationBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that are to be cancelled."""

    where: Where


class DryRunQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An action that may be tried without doing it."""

    dry_run: bool = False
    """Count what it would act on, and do nothing."""


async def begin_cancellation(call: RouteCall[DryRunQuery, CancellationBody]) -> Reply:
    """Cancel all pending messages that fulfil a condition. They are counted first; with ``dry_run``
    that is all, and the answer is 200. Otherwise a job cancels those that were counted, in the
    order in which they are due, and is answered 202; its summary has how many messages got which
    answer."""
    query = call.body.where.query()
    counted = await cancellable(call.services, query)
    if call.query.dry_run:
        return as_json(counted)
    return as_json(start_cancellation(call.services, query, counted).report(), 202)


async def cancellable(services: Services, query: Query) -> PendingCounts:
    """The number of messages that a cancel of ``query`` would cancel. Errors: as of
    ``found_counts``."""
    if (front := services.front) is not None:
        # A URL has no place for a key that is no text, or for a colon in the name of a header.
        answers, missing = await front.ask_each(
            dict.fromkeys(front.names, "/v1/cancellations?dry_run=true"),
            PendingCounts,
            method="POST",
            body=_body_of(query),
            topics=services.patterns_for(Right.CANCEL),
        )
        return joined_counts(answers, None, missing)
    return await found_counts(services, query, right=Right.CANCEL)


def start_cancellation(services: Services, query: Query, counted: PendingCounts) -> GatewayJob:
    """A job that cancels the messages of ``query`` that were accepted before they were ``counted``.
    Errors: ``Overloaded``; as of ``searcher_of``."""
    topics = services.patterns_for(Right.CANCEL)
    work: FleetJob | Cancellation
    if services.front is not None:
        work = services.front.job("/v1/cancellations", _body_of(query), topics)
        told = work.summary
    else:
        work = _cancellation(services, query, counted, topics)
        told = partial(_told, work)

    def summary() -> dict[str, Any]:
        summary = {"answers": {}, "unanswered": 0, **told()}
        problems = dict.fromkeys([*counted.problems, *summary["problems"]])
        complete = summary["complete"] and not problems
        return {**summary, "complete": complete, "problems": list(problems)}

    job = GatewayJob(
        "cancellation",
        counted.messages,
        summary,
        services.identity.principal,
        services.demand_again(Operation.CANCEL),
    )
    services.jobs.start(job, lambda running: work.run(running.advance, running.stopped))
    return job


def _body_of(query: Query) -> Any:
    return msgspec.to_builtins(CancellationBody(Where.of(query)))


def _told(cancellation: Cancellation) -> dict[str, Any]:
    return {
        "answers": dict(cancellation.answers),
        "unanswered": cancellation.unanswered,
        "complete": cancellation.complete,
        "problems": list(map(str, cancellation.problems)),
    }


def _cancellation(
    services: Services, query: Query, counted: PendingCounts, topics: Sequence[str] | None
) -> Cancellation:
    searcher = searcher_of(services, Right.CANCEL)
    assert counted.read_point is not None, "it was counted by one wheel"
    return Cancellation(
        WaitingFinder(searcher.process, searcher.may),
        partial(services.client.cancel, topics=topics),
        query,
        before=counted.read_point.next_offset,
    )


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.CANCEL,
        "POST",
        "/v1/cancellations",
        begin_cancellation,
        {200: PendingCounts, 202: JobReport},
        name="cancelMatchingMessages",
    ),
]
