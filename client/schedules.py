"""Schedules of a group, as ``Client.schedules`` and ``AsyncClient.schedules`` offer them.

    client.schedules.put({"name": "daily", "cron": "30 8 * * *", "zone": "Europe/Berlin",
                          "template": {"topic": "reports", "value": "yesterday"}})

docs/schedules.md has the fields. A schedule comes back as a mapping: ``schedule`` (its fields),
``version``, ``runs``, ``missed``, ``last`` (``run``, ``nominal_ms``, ``due_ms`` and ``id`` of the
last message, or None) and ``next_ms``, nominal times of the next runs, ms since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from ..policy.shown import shown
from ..wheel.errors import InvalidMessage
from ..wheel.protocol import (
    SCHEDULE_DELETE,
    SCHEDULE_LIST,
    SCHEDULE_PAUSE,
    SCHEDULE_PUT,
    SCHEDULE_RESUME,
    SCHEDULE_RUN,
    SCHEDULE_SHOW,
)

Shown = dict[str, Any]
"""A schedule as the module's head says."""
ShownInOrder = list[Shown]
AskNode = Callable[..., dict[str, Any]]


class Schedules:
    """The schedules of a group; the master answers. Thread-safe. Errors of all methods:
    ``NodeUnreachable``, ``NotMaster``, ``Forbidden``."""

    def __init__(self, ask: AskNode) -> None:
        self._ask = ask

    def put(self, schedule: Mapping[str, Any], *, version: int | None = None) -> Shown:
        """Store a schedule, new or in the place of the one with its name. One that is there with
        the same fields stays as it is. ``version``: of the one that it replaces, 0: there must be
        none; without it, whatever is there is replaced.

        Errors: ``InvalidMessage``, which names the field; ``ScheduleChanged``, with both versions.
        """
        _check_json(schedule)
        fields = {"schedule": dict(schedule), "version": version}
        return _schedule(self._ask(SCHEDULE_PUT, fields, again=True))

    def list(self, *, prefix: str = "", topic: str = "") -> Iterator[Shown]:
        """The schedules whose topics may be read, in the order of their names. ``prefix``: only
        those whose names begin with it; ``topic``: only those that send to it, a name, or the begin
        of names and a ``*``."""
        after: str | None = ""
        while after is not None:
            shown, after = self.page(after, prefix=prefix, topic=topic)
            yield from shown

    def page(
        self,
        after: str = "",
        *,
        limit: int = 1000,
        topics: Sequence[str] | None = None,
        prefix: str = "",
        topic: str = "",
    ) -> tuple[ShownInOrder, str | None]:
        """Schedules behind the name ``after``, ``limit`` at most (1000), and the name behind which
        the next page begins; None: there is none. A page may have fewer, and yet a next one.
        ``prefix``, ``topic``: as of ``list``. ``topics``: only those that send to these, written as
        ``topic``. Over HTTP they are not to be had."""
        fields: dict[str, Any] = {"after": after, "limit": limit, "prefix": prefix, "topic": topic}
        if topics is not None:
            fields["topics"] = [*topics]
        answer = self._ask(SCHEDULE_LIST, fields, again=True)
        return answer["schedules"], answer["after"]

    def get(self, name: str) -> Shown:
        """One schedule. Errors: ``UnknownSchedule``."""
        return _schedule(self._ask(SCHEDULE_SHOW, {"name": name}, again=True))

    def pause(self, name: str, *, version: int | None = None) -> Shown:
        """Let a schedule rest. What is a message already leaves all the same. Errors:
        ``UnknownSchedule``; ``ScheduleChanged``: it has not that ``version``."""
        fields = {"name": name, "version": version}
        return _schedule(self._ask(SCHEDULE_PAUSE, fields, again=version is None))

    def resume(self, name: str, *, version: int | None = None) -> Shown:
        """Let a schedule go on with what is due from now on. Errors: as of ``pause``."""
        fields = {"name": name, "version": version}
        return _schedule(self._ask(SCHEDULE_RESUME, fields, again=version is None))

    def run(self, name: str, *, version: int | None = None) -> tuple[int, str]:
        """Have a message of a schedule sent now, besides its other runs. Returns its number and its
        id. Errors: as of ``pause``; ``NodeUnreachable``: it may have been sent."""
        answer = self._ask(SCHEDULE_RUN, {"name": name, "version": version})
        return int(answer["run"]), str(answer["id"])

    def delete(self, name: str, *, version: int | None = None) -> None:
        """Remove a schedule; what is a message already leaves all the same. Errors:
        ``UnknownSchedule``; ``ScheduleChanged``: it has not that ``version``."""
        self._ask(SCHEDULE_DELETE, {"name": name, "version": version})


class AsyncSchedules:
    """As ``Schedules``, for asyncio. ``run``: carries out a call without holding up the loop."""

    def __init__(self, schedules: Schedules, run: Callable[..., Awaitable[Any]]) -> None:
        self._schedules = schedules
        self._run = run

    async def put(self, schedule: Mapping[str, Any], *, version: int | None = None) -> Shown:
        shown: Shown = await self._run(self._schedules.put, schedule, version=version)
        return shown

    async def list(self, *, prefix: str = "", topic: str = "") -> ShownInOrder:
        listed = self._schedules.list
        shown: ShownInOrder = await self._run(lambda: [*listed(prefix=prefix, topic=topic)])
        return shown

    async def page(
        self,
        after: str = "",
        *,
        limit: int = 1000,
        topics: Sequence[str] | None = None,
        prefix: str = "",
        topic: str = "",
    ) -> tuple[ShownInOrder, str | None]:
        shown, behind = await self._run(
            self._schedules.page, after, limit=limit, topics=topics, prefix=prefix, topic=topic
        )
        return shown, behind

    async def get(self, name: str) -> Shown:
        shown: Shown = await self._run(self._schedules.get, name)
        return shown

    async def pause(self, name: str, *, version: int | None = None) -> Shown:
        shown: Shown = await self._run(self._schedules.pause, name, version=version)
        return shown

    async def resume(self, name: str, *, version: int | None = None) -> Shown:
        shown: Shown = await self._run(self._schedules.resume, name, version=version)
        return shown

    async def run(self, name: str, *, version: int | None = None) -> tuple[int, str]:
        number, message_id = await self._run(self._schedules.run, name, version=version)
        return number, message_id

    async def delete(self, name: str, *, version: int | None = None) -> None:
        await self._run(self._schedules.delete, name, version=version)


def _check_json(schedule: object) -> None:
    """Raise ``InvalidMessage`` unless a schedule is a mapping that JSON can say. *Example.* Bytes
    as ``value`` are refused here, as no node would ever see them."""
    if not isinstance(schedule, Mapping):
        raise InvalidMessage(
            "not a schedule",
            got=shown(schedule),
            limit="a mapping with the fields of a schedule",
            remedy='Give one schedule at a time, as {"name": "daily", …}; a text by json.loads',
        )
    try:
        json.dumps(dict(schedule))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(
            "the schedule cannot be written as JSON",
            got=str(error)[:200],
            limit="texts, numbers, true, false, null, lists and mappings",
            remedy="Write times in milliseconds since 1970, and bytes in value_base64",
        ) from None


def _schedule(answer: dict[str, Any]) -> Shown:
    shown: Shown = answer["schedule"]
    return shown
