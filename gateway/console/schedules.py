"""Schedules: which messages come again and again and when, one of them, and what is done to it.

Rules
- A list is read page by page in the order of the names, and filtered by the node: of 100,000
  schedules a page has fifty.
- What is done to a schedule is done to the version that the page showed. *Example.* Somebody looks
  at a schedule of ``orders`` and deletes it, while another one puts a schedule of ``payments`` in
  its place: without the version he would delete that one.
- A schedule is written as JSON, as for the command line and over HTTP, and is shown as it would be
  stored, with its next runs, before it can be stored. Whoever is late sees both, his own and the
  one that is there by now, before he may replace it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from msgspec import Meta

from ...client.message import clock_ms
from ...client.schedules import Shown
from ...policy.schedules.fields import InvalidField
from ...policy.schedules.spec import UTC, Schedule, rhythm_text
from ...policy.schedules.successor import check_fires, next_runs
from ...policy.schedules.zones import is_zone
from ...security.rights import Operation
from ...wheel.errors import ScheduleChanged, SlotwheelError, UnknownSchedule
from ..endpoint import Handler, RouteCall
from ..errors import HttpError, from_slotwheel
from ..requests import Reply
from ..services import Services
from ..v1.schedules import (
    ScheduleFilter,
    ScheduleListQuery,
    changed_schedule,
    known_schedule,
    listed_schedules,
    stored_schedule,
)
from .acting import ActionBody
from .forms import QuestionForm, form_of
from .guard import is_sealed, seal_of
from .parts import NODE_WAIT_S, PagePart, PartsQuery, node_part, page
from .rendering import address, redirect

ROWS = 50
_ASKED_MAX = 30
"""A page asks the node so often at most. Each time it looks through some thousands."""
_NEXT = 10
_LABELS = {"prefix": "Name begins with"}
SchedulesForm = form_of("SchedulesForm", ScheduleFilter, "", _LABELS, "page")
Version = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_NEW = {"name": "", "cron": "30 8 * * MON-FRI", "zone": "Europe/Berlin"}
_NEW_TEMPLATE = {"topic": "", "value": ""}


class ScheduleForm(PartsQuery, forbid_unknown_fields=True):
    """``name``: of the schedule. ``done``: what an action has just done to it, for a line above the
    page, with the number ``run`` and the ``id`` of a message that it has sent; ``seal``: as of
    ``seal_of``, without which that line is not shown."""

    name: str = ""
    done: Literal["", "stored", "paused", "resumed", "ran", "deleted"] = ""
    run: str = ""
    id: str = ""
    seal: str = ""


class NamedForm(PartsQuery, forbid_unknown_fields=True):
    """``name``: of the schedule that something is to be done to."""

    name: str = ""


class VersionBody(ActionBody, forbid_unknown_fields=True):
    """``version``: of the schedule that the page has shown."""

    version: Version = 0


class WrittenBody(VersionBody, forbid_unknown_fields=True):
    """``text``: the schedule as JSON. ``version``: of the one that it replaces; 0: there is none.
    ``step``: write on, look at what would be stored, or store it."""

    text: str = ""
    step: Literal["write", "preview", "store"] = "preview"


@dataclass(frozen=True, slots=True)
class ShownSchedule:
    """A schedule as pages show it. ``runs_in_zone``: its next runs in ms since the epoch, each with
    the local time of its zone; empty where that is UTC, or not known here."""

    name: str
    topic: str
    when: str
    zone: str
    state: Literal["active", "paused", "ended"]
    version: int
    runs: int
    missed: int
    last: Any
    runs_in_zone: Sequence[tuple[int, str]]
    json: Any

    @classmethod
    def of(cls, known: Shown) -> ShownSchedule:
        fields, next_ms = known["schedule"], known["next_ms"]
        is_paused, zone = fields.get("paused") is True, fields.get("zone") or UTC
        return cls(
            name=fields["name"],
            topic=fields["template"]["topic"],
            when=rhythm_text(fields),
            zone="" if fields.get("cron") is None else zone,
            state="paused" if is_paused else "active" if next_ms else "ended",
            version=known["version"],
            runs=known["runs"],
            missed=known["missed"],
            last=known["last"],
            runs_in_zone=_in_zone(next_ms, zone),
            json=fields,
        )


def _in_zone(times_ms: Sequence[int], zone: str) -> list[tuple[int, str]]:
    if zone == UTC or not is_zone(zone):
        return [(ms, "") for ms in times_ms]
    info = ZoneInfo(zone)
    texts = (datetime.fromtimestamp(ms / 1000, info).isoformat(" ", "seconds") for ms in times_ms)
    return [(ms, f"{text[:19]} {text[19:]}") for ms, text in zip(times_ms, texts, strict=True)]


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """A page of schedules. ``next``: the address of the page behind it; empty: there is none."""

    schedules: Sequence[ShownSchedule]
    next: str


async def schedules(call: RouteCall[QuestionForm, None]) -> Reply:
    """A page of the schedules that the filter lets through."""
    form, services = call.query, call.services
    filters = form.given(ScheduleFilter)
    try:
        query = form.question(ScheduleListQuery, limit=ROWS, page=form.typed("page"))
    except HttpError as error:
        return await page(call, "schedules", "schedules.html", {}, error, form=form)

    async def rows() -> SchedulePage:
        shown, behind = await _rows(services, query)
        following = behind and address("/schedules", **filters, page=behind)
        return SchedulePage([ShownSchedule.of(each) for each in shown], following or "")

    key = ("schedules", query)
    more = {"form": form, "filters": filters}
    parts = {"rows": PagePart("schedules/rows.html", key, rows, more=more)}
    return await page(call, "schedules", "schedules.html", parts, form=form)


async def _rows(services: Services, query: ScheduleListQuery) -> tuple[list[Shown], str | None]:
    """``ROWS`` schedules, or fewer at the end of the list, or if they are too rare."""
    rows: list[Shown] = []
    behind: str | None = query.page
    for _ in range(_ASKED_MAX):
        if behind is None or len(rows) == ROWS:
            break
        asked = ScheduleListQuery(query.prefix, query.topic, ROWS - len(rows), behind)
        shown, behind = await listed_schedules(services, asked)
        rows += shown
    return rows, behind


async def schedule(call: RouteCall[ScheduleForm, None]) -> Reply:
    """One schedule: its state, its last run and the next ones, and its JSON."""
    form = call.query
    sealed = is_sealed(call.scope, form.seal, form.name, form.done, form.run, form.id)
    done = form.done if sealed else ""
    parts = {}
    if done != "deleted":
        parts["known"] = node_part(
            "schedules/known.html",
            ("schedule", form.name),
            lambda: _known(call.services, form.name),
        )
    return await page(call, "schedules", "schedule.html", parts, form=form, done=done)


async def _known(services: Services, name: str) -> ShownSchedule:
    return ShownSchedule.of(await known_schedule(services, name))


@dataclass(frozen=True, slots=True)
class ScheduleAction:
    """Something that is done to a schedule from its page. ``path``: of the page that asks, and of
    the action; ``done``: as of ``ScheduleForm``; ``title``, ``text``, ``button``: of that page;
    ``is_danger``: it cannot be undone."""

    path: str
    operation: Operation
    done: Literal["paused", "resumed", "ran", "deleted"]
    title: str
    text: str
    button: str
    is_danger: bool = False

    @property
    def confirm(self) -> Handler[NamedForm, Any]:
        """The page before the change, with its form."""

        async def confirm(call: RouteCall[NamedForm, Any]) -> Reply:
            return await _confirmed(call, self)

        return confirm

    @property
    def act(self) -> Handler[NamedForm, VersionBody]:
        """The change of the version that the page has shown. If there is another one by now, the
        page is shown again, with that one."""

        async def act(call: RouteCall[NamedForm, VersionBody]) -> Reply:
            name, body = call.query.name, call.body
            try:
                result = await changed_schedule(call, self.operation, name, body.version)
            except ScheduleChanged as error:
                return await _confirmed(call, self, from_slotwheel(error))
            run, message_id = result if self.done == "ran" else ("", "")
            return _page_behind(body.token, name, self.done, str(run), message_id)

        return act


CHANGES = (
    ScheduleAction(
        "/schedule/pause",
        Operation.SCHEDULE_PAUSE,
        "paused",
        "Pause",
        "It rests until it is resumed, and what would be due meanwhile is not made up.",
        "Pause 1 schedule",
    ),
    ScheduleAction(
        "/schedule/resume",
        Operation.SCHEDULE_RESUME,
        "resumed",
        "Resume",
        "It goes on with what is due from now on.",
        "Resume 1 schedule",
    ),
    ScheduleAction(
        "/schedule/run",
        Operation.SCHEDULE_RUN,
        "ran",
        "Run",
        "One message is sent now, besides the other runs, which stay as they are.",
        "Send 1 message now",
    ),
    ScheduleAction(
        "/schedule/delete",
        Operation.SCHEDULE_DELETE,
        "deleted",
        "Delete",
        "It fires no more, and it cannot be brought back. Messages that it has made already, up to"
        " half a minute ahead, still leave.",
        "Delete 1 schedule",
        is_danger=True,
    ),
)


async def _confirmed(
    call: RouteCall[NamedForm, Any], change: ScheduleAction, problem: HttpError | None = None
) -> Reply:
    name = call.query.name

    async def known() -> ShownSchedule:
        return await _known(call.services, name)

    more = {"change": change}
    key = ("schedule", name)
    part = PagePart("schedules/confirm.html", key, known, wait_s=NODE_WAIT_S, more=more)
    return await page(
        call, "schedules", "schedule_act.html", {"form": part}, problem, title=change.title
    )


def _page_behind(token: str, name: str, done: str, run: str = "", message_id: str = "") -> Reply:
    """The page of a schedule, with a line about what was done."""
    seal = seal_of(token, name, done, run, message_id)
    return redirect(address("/schedule", name=name, done=done, run=run, id=message_id, seal=seal))


@dataclass(frozen=True, slots=True)
class WrittenSchedule:
    """A schedule under somebody's hands. ``version``: of the one that it replaces, 0: there is
    none; ``there``: the one that is there, if it is another one by now."""

    text: str
    version: int
    there: ShownSchedule | None = None


async def write(call: RouteCall[NamedForm, None]) -> Reply:
    """The form in which a schedule is written: a new one, or with the one of a name in it."""
    if not call.query.name:
        text = _json({**_NEW, "template": _NEW_TEMPLATE})
        return await _written(call, WrittenSchedule(text, 0))
    known = await known_schedule(call.services, call.query.name)
    return await _written(call, WrittenSchedule(_json(known["schedule"]), known["version"]))


async def put(call: RouteCall[NamedForm, WrittenBody]) -> Reply:
    """What is done to a written schedule: a look at what would be stored, or its put."""
    body = call.body
    written = WrittenSchedule(body.text, body.version)
    if body.step == "write":
        return await _written(call, written)
    try:
        schedule = _schedule_of(body.text)
        if body.step == "preview":
            return await _preview(call, schedule, body.version)
        await stored_schedule(call, schedule, body.version)
    except ScheduleChanged as error:
        return await _written(call, await _with_other(call, schedule, body), from_slotwheel(error))
    except HttpError as error:
        return await _written(call, written, error)
    except SlotwheelError as error:  # what was written is not lost
        return await _written(call, written, from_slotwheel(error))
    return _page_behind(body.token, schedule.name, "stored")


async def _with_other(
    call: RouteCall[Any, Any], schedule: Schedule, body: WrittenBody
) -> WrittenSchedule:
    """What was written, beside the schedule that is there by now, in whose place it would come."""
    try:
        there = await _known(call.services, schedule.name)
    except UnknownSchedule:
        return WrittenSchedule(body.text, 0)
    return WrittenSchedule(body.text, there.version, there)


async def _written(
    call: RouteCall[NamedForm, Any], written: WrittenSchedule, problem: HttpError | None = None
) -> Reply:
    return await page(
        call, "schedules", "schedule_write.html", {}, problem, it=written, name=call.query.name
    )


async def _preview(call: RouteCall[NamedForm, Any], schedule: Schedule, version: int) -> Reply:
    """What would be stored, with its next runs. Errors: ``HttpError`` 422."""
    now_ms = clock_ms()
    runs = 0
    if version:
        with suppress(UnknownSchedule):  # the store will refuse it
            runs = (await known_schedule(call.services, schedule.name))["runs"]
    try:
        check_fires(schedule, now_ms, runs)
    except InvalidField as error:
        raise from_slotwheel(error, error.path) from None
    next_ms = list(islice(next_runs(schedule, now_ms - 1, runs), _NEXT))
    shown = {"schedule": schedule.to_json(), "next_ms": [] if schedule.paused else next_ms}
    of_now = {"version": version, "runs": runs, "missed": 0, "last": None}
    return await page(
        call,
        "schedules",
        "schedule_preview.html",
        {},
        it=ShownSchedule.of({**shown, **of_now}),
        text=call.body.text,
        name=call.query.name,
    )


def _schedule_of(text: str) -> Schedule:
    """The schedule that was written. Errors: ``HttpError`` 422, with the place of the mistake."""
    try:
        return Schedule.from_json(json.loads(text))
    except InvalidField as error:
        raise from_slotwheel(error, error.path) from None
    except json.JSONDecodeError as error:
        raise HttpError(
            422,
            "the schedule is no JSON",
            place=f"line {error.lineno}, column {error.colno}",
            got=text.splitlines()[error.lineno - 1][:80] if text.strip() else "nothing",
            limit=error.msg[:1].lower() + error.msg[1:],
            remedy="Correct it there, or a little before",
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets
        raise HttpError(
            422,
            f"the schedule cannot be read: {error}"[:200],
            limit="an object of JSON with the fields of a schedule",
        ) from None


def _json(fields: Any) -> str:
    return json.dumps(fields, indent=2, ensure_ascii=False)
