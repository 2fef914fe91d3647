"""Schedules: messages that come again and again. ``docs/schedules.md`` says what the fields mean.

Theory: the node keeps and checks schedules, and takes every change from a gateway. So each request
looks at the schedule first, judges by the rights of its own caller, and changes what it has looked
at: with that version, so that another schedule which came into its place meanwhile is not changed.
*Example.* A caller may send to ``orders``. He pauses a schedule of ``orders`` while somebody puts
one of ``payments`` in its place: without the version he would have paused that of ``payments``.

Rules
- Who may not read the topic of a schedule, and may not change it either, does not learn of it: the
  answer is that of a name that there is not.
- ``version`` is a parameter of the query, as it belongs to no schedule. Of several who read a
  schedule, alter it and put it back, the first one is served, and the others get 409.
- A name is one segment of the path, and a slash in it is ``%2F``: ``a%2Frun/pause`` pauses the
  schedule ``a/run``, and ``a/run`` runs ``a``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ...client.schedules import Shown
from ...policy.parameters import Question
from ...policy.schedules.fields import InvalidField
from ...policy.schedules.spec import Schedule
from ...security.rights import Operation, Right
from ...wheel.errors import InvalidMessage, ScheduleChanged, UnknownSchedule, UnknownTopic
from ..authentication import identity_of
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError, from_slotwheel
from ..pathroute import segment_of
from ..requests import Reply, as_json
from ..services import Services
from .names import name_of
from .types import HeaderValue, MessageHeaders

T = TypeVar("T")
_ALL = "/v1/schedules"
_NAMED = f"{_ALL}/{{name}}"
_TRIES = 5
LISTED_MAX = 1000


class ScheduleFields(msgspec.Struct, kw_only=True, omit_defaults=True):
    """When a schedule fires."""

    cron: str | None = None
    """A cron expression, in the local time of `zone`. Exactly one of `cron` and `every_ms`."""
    zone: str | None = None
    """A time zone of the IANA table. Null: UTC."""
    every_ms: int | None = None
    """The distance of two runs, 1000 at least."""
    anchor_ms: int | None = None
    """Runs of `every_ms` are whole multiples of it away from there. Null: from `start_ms`, or else
    from 1970-01-01."""
    start_ms: int | None = None
    """No run is due before it."""
    end_ms: int | None = None
    """No run is due then or later."""
    count: int | None = None
    """It ends with so many messages."""
    jitter_ms: int | None = None
    """A message is due up to so much later."""
    missed: Literal["last", "skip", "all"] | None = None
    """Which missed runs become messages. Null: the last one."""
    catch_up_ms: int | None = None
    """Missed runs that are older become no messages. Null: a day."""
    paused: bool | None = None
    """Nothing fires."""


class TemplateFields(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The message of each run."""

    topic: str
    value: str | None = None
    """Text; it becomes UTF-8."""
    value_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    partition: int | None = None
    ttl_ms: int | None = None
    """How long after it is due the message is worth something."""
    name: str | None = None
    """The name of the message: one of an earlier run that is still pending is replaced."""


class TemplateBody(TemplateFields, forbid_unknown_fields=True):
    """The message of each run."""

    headers: MessageHeaders = {}
    """By name, or pairs in order, where a name may occur twice."""


class ScheduleBody(ScheduleFields, forbid_unknown_fields=True):
    """Which message comes again and again, and when."""

    template: TemplateBody
    name: str | None = None
    """That of the path, if it is there."""

    def schedule_named(self, name: str) -> Schedule:
        """The schedule. Errors: ``HttpError`` 422, with the place of what is wrong."""
        if self.name not in (None, name):
            raise HttpError(
                422,
                "the schedule has another name than the path",
                place="$.name",
                got=self.name,
                limit=name,
                remedy="Leave it out, or put it under its own name",
            )
        try:
            return Schedule.from_json({**msgspec.to_builtins(self), "name": name})
        except InvalidField as error:
            raise from_slotwheel(error, error.path) from None


class KnownTemplate(TemplateFields):
    """The message of each run, as it is stored."""

    headers: list[tuple[str, HeaderValue]] = []


class StoredFields(ScheduleFields):
    """A schedule as it is stored: what is the default is left out."""

    name: str
    template: KnownTemplate


class LastRun(msgspec.Struct):
    """The last run that became a message."""

    run: int
    """Its number, from 1 on."""
    nominal_ms: int
    """When it was to be, without jitter."""
    due_ms: int
    id: str
    """The id of the message."""


class KnownSchedule(msgspec.Struct):
    """A schedule, and how far it has come."""

    schedule: StoredFields
    version: int
    """Another one with each change of the schedule."""
    runs: int
    """How many messages it has made."""
    missed: int
    """How many runs became no messages, as nobody fired them in time. They are counted with the
    next one that becomes a message."""
    last: LastRun | None
    next_ms: list[int]
    """Nominal times of the next runs: ten, and in a list one."""


class ScheduleList(msgspec.Struct):
    """Schedules, in the order of their names."""

    schedules: list[KnownSchedule]
    next: str | None
    """Give it as `page` for the schedules behind these; null: there are none."""
    limited_by_rights: bool
    """Whether only schedules of topics that the caller may read were looked at."""


class StartedRun(msgspec.Struct):
    """A run that somebody asked for."""

    run: int
    """Its number."""
    id: str
    """The id of the message."""


class ScheduleFilter(Question, frozen=True):
    """Which schedules."""

    prefix: str = ""
    """Only schedules whose names begin with this."""
    topic: str = ""
    """Only schedules that send to this topic; `orders-*` stands for all that begin with `orders-`.
    """


class ScheduleListQuery(ScheduleFilter, frozen=True):
    """Which part of the list."""

    limit: Annotated[int, Meta(ge=1, le=LISTED_MAX)] = 100
    """Schedules of the page, at most."""
    page: str = ""
    """Where the page begins: `next` of the page before. A page may have fewer schedules than
    `limit`, also none, and yet a `next`: of many the node looks through some thousands at a time.
    """


class VersionQuery(Question, frozen=True):
    """Which schedule is meant."""

    version: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    """The version that the schedule has to have; 0: there must be none. Null: any."""


async def list_schedules(call: RouteCall[ScheduleListQuery, None]) -> Reply:
    """List the schedules of the topics that the caller may read, each with its next run, in the
    order of their names."""
    shown, behind = await listed_schedules(call.services, call.query)
    is_limited = call.services.patterns_for(Right.READ) is not None
    return as_json({"schedules": shown, "next": behind, "limited_by_rights": is_limited})


async def listed_schedules(
    services: Services, query: ScheduleListQuery
) -> tuple[list[Shown], str | None]:
    """A page of the schedules that the caller may read, and where the next one begins; None: there
    is none."""
    topics, may = services.patterns_for(Right.READ), services.topics_for(Right.READ)
    shown, behind = await services.run(
        services.client.schedules.page,
        query.page,
        limit=query.limit,
        topics=topics,
        prefix=query.prefix,
        topic=query.topic,
    )
    # The node does not know which topics are slotwheel's own by the gateway's security file.
    return [each for each in shown if may is None or may(topic_of(each))], behind


async def get_schedule(call: RouteCall[NoQuery, None]) -> Reply:
    """Show a schedule, with its next ten runs."""
    return as_json(await known_schedule(call.services, _name_in(call.scope)))


async def known_schedule(services: Services, name: str) -> Shown:
    """A schedule that the caller may read. Errors: ``UnknownSchedule``."""
    shown = await _look(services, name)
    if shown is None or not _may_read(services, shown):
        raise UnknownSchedule.of(name)
    return shown


async def put_schedule(call: RouteCall[VersionQuery, ScheduleBody]) -> Reply:
    """Store a schedule, new or in the place of the one with its name. One that is there with the
    same fields stays as it is, so the request may be repeated. 409: the schedule has not the
    `version` that the request names; `got` and `limit` are both versions."""
    schedule = call.body.schedule_named(name_of(segment_of(call.scope, 3)))
    return as_json(await stored_schedule(call, schedule, call.query.version))


async def stored_schedule(
    call: RouteCall[Any, Any], schedule: Schedule, asked: int | None
) -> Shown:
    """Put a schedule as far as the caller may. ``asked``: the version that it replaces, 0: there
    must be none; None: any. Errors: ``Forbidden``, ``ScheduleChanged``; ``HttpError`` 422."""
    services = call.services
    services.authenticator.check(call.scope, Operation.SCHEDULE_PUT, schedule.template.topic)

    async def put() -> Shown:
        shown = await _look(services, schedule.name)
        there = 0
        if shown is not None:
            there = int(shown["version"])
            services.authenticator.demand(call.scope, Operation.SCHEDULE_PUT, topic_of(shown))
        if asked is not None and asked > there:
            raise ScheduleChanged.of(schedule.name, there, asked)
        # An older version is left to the node: it refuses it, unless the same fields are there.
        version = there if asked is None else asked
        return await services.run(
            services.client.schedules.put, schedule.to_json(), version=version
        )

    try:
        return await _against_changes(put, asked)
    except (ScheduleChanged, UnknownSchedule):
        raise
    except UnknownTopic as error:
        raise from_slotwheel(error, "$.template.topic") from None
    except InvalidMessage as error:  # what only a node can say, such as whether it ever fires
        raise from_slotwheel(error, "$") from None


async def delete_schedule(call: RouteCall[VersionQuery, None]) -> Reply:
    """Delete a schedule. What is a message already, up to half a minute ahead, leaves all the same.
    409: it has not the `version` that the request names."""
    await _change(call, Operation.SCHEDULE_DELETE)
    return Reply(204, b"")


async def pause_schedule(call: RouteCall[VersionQuery, None]) -> Reply:
    """Let a schedule rest. What is a message already, up to half a minute ahead, leaves all the
    same."""
    return as_json(await _change(call, Operation.SCHEDULE_PAUSE))


async def resume_schedule(call: RouteCall[VersionQuery, None]) -> Reply:
    """Let a schedule go on with what is due from now on."""
    return as_json(await _change(call, Operation.SCHEDULE_RESUME))


async def run_schedule(call: RouteCall[VersionQuery, None]) -> Reply:
    """Store a message of a schedule that is due now, besides its other runs; also of one that is
    paused. After a 503 nobody knows whether it was stored."""
    number, message_id = await _change(call, Operation.SCHEDULE_RUN)
    return as_json(StartedRun(number, message_id), 201)


async def _change(call: RouteCall[VersionQuery, None], operation: Operation) -> Any:
    return await changed_schedule(call, operation, _name_in(call.scope), call.query.version)


async def changed_schedule(
    call: RouteCall[Any, Any], operation: Operation, name: str, asked: int | None
) -> Any:
    """Change a schedule as far as the caller may: what the method of ``Client.schedules`` for this
    operation returns. ``asked``: the version that it must have; None: any. Errors:
    ``UnknownSchedule``, ``Forbidden``, ``ScheduleChanged``."""
    services = call.services
    schedules = services.client.schedules
    change: Callable[..., Any] = {
        Operation.SCHEDULE_PAUSE: schedules.pause,
        Operation.SCHEDULE_RESUME: schedules.resume,
        Operation.SCHEDULE_RUN: schedules.run,
        Operation.SCHEDULE_DELETE: schedules.delete,
    }[operation]
    rights = identity_of(call.scope).rights

    async def try_once() -> Any:
        shown = await _look(services, name)
        if shown is None:
            raise UnknownSchedule.of(name)
        topic, there = topic_of(shown), int(shown["version"])
        if not rights.may(operation, topic) and not _may_read(services, shown):
            raise UnknownSchedule.of(name)
        services.authenticator.demand(call.scope, operation, topic)
        if asked not in (None, there):
            raise ScheduleChanged.of(name, there, asked)
        if operation is Operation.SCHEDULE_RUN:  # the node counts it for the gateway alone
            template = Schedule.from_json(shown["schedule"]).template
            services.authenticator.admit_rows(services.identity, {topic: 1}, template.nbytes)
        return await services.run(change, name, version=there)

    return await _against_changes(try_once, asked)


async def _against_changes(try_once: Callable[[], Awaitable[T]], asked: int | None) -> T:
    """The result of what looks at a schedule and changes it. Where it was changed in between, that
    of another try, unless the caller has ``asked`` for one version. Errors: those of ``try_once``.
    """
    for _ in range(_TRIES - 1):
        try:
            return await try_once()
        except ScheduleChanged:
            if asked is not None:
                raise
    return await try_once()


async def _look(services: Services, name: str) -> Shown | None:
    try:
        return await services.run(services.client.schedules.get, name)
    except UnknownSchedule:
        return None


def topic_of(shown: Shown) -> str:
    """The topic that a schedule sends to."""
    topic: str = shown["schedule"]["template"]["topic"]
    return topic


def _may_read(services: Services, shown: Shown) -> bool:
    may = services.topics_for(Right.READ)
    return may is None or may(topic_of(shown))


def _name_in(scope: Any) -> str:
    """The name in a request's path. Errors: ``HttpError`` 422."""
    return name_of(segment_of(scope, 3))


_OF_CHANGES = (409, 422)
ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.SCHEDULE_LIST,
        "GET",
        _ALL,
        list_schedules,
        {200: ScheduleList},
        name="listSchedules",
    ),
    endpoint(
        Operation.SCHEDULE_PAUSE,
        "POST",
        f"{_NAMED}/pause",
        pause_schedule,
        {200: KnownSchedule},
        _OF_CHANGES,
        name="pauseSchedule",
    ),
    endpoint(
        Operation.SCHEDULE_RESUME,
        "POST",
        f"{_NAMED}/resume",
        resume_schedule,
        {200: KnownSchedule},
        _OF_CHANGES,
        name="resumeSchedule",
    ),
    endpoint(
        Operation.SCHEDULE_RUN,
        "POST",
        f"{_NAMED}/run",
        run_schedule,
        {201: StartedRun},
        _OF_CHANGES,
        name="runSchedule",
    ),
    endpoint(
        Operation.SCHEDULE_SHOW,
        "GET",
        _NAMED,
        get_schedule,
        {200: KnownSchedule},
        (422,),
        name="getSchedule",
    ),
    endpoint(
        Operation.SCHEDULE_PUT,
        "PUT",
        _NAMED,
        put_schedule,
        {200: KnownSchedule},
        (409,),
        name="putSchedule",
        names_topic=True,
    ),
    endpoint(
        Operation.SCHEDULE_DELETE,
        "DELETE",
        _NAMED,
        delete_schedule,
        {204: None},
        _OF_CHANGES,
        name="deleteSchedule",
    ),
]
