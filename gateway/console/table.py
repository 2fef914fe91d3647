"""All pages and actions of the console. They are for people, and openapi.json has none of them."""

from __future__ import annotations

import msgspec

from ...security.rights import Operation
from ..endpoint import AnyEndpoint, Endpoint, NoQuery, RouteCall
from ..errors import HttpError
from ..requests import Reply
from . import audit, dead, jobs, login, message, node, overview, pending, schedules
from .acting import CountedBody, action_endpoint, page_endpoint
from .parts import PartsQuery
from .rendering import BASE, HEADERS, STATIC, redirect
from .viewer import LOGIN_PATH

FIRST_SEGMENT = BASE.removeprefix("/")
_KEEP = b"public, max-age=31536000, immutable"


class FileQuery(msgspec.Struct, forbid_unknown_fields=True):
    """``v``: the version of the file. Nobody reads it: it gives a file that changes a new address,
    as browsers keep the old one."""

    v: str = ""


async def to_console(_call: RouteCall[NoQuery, None]) -> Reply:
    """The address of the gateway alone leads to its pages."""
    return redirect(BASE, 307)


async def static_file(call: RouteCall[FileQuery, None]) -> Reply:
    """A file that pages use."""
    name = call.path["name"]
    if name not in STATIC:
        raise HttpError(404, "no such file", place="path", got=name)
    data, kind = STATIC[name]
    return Reply(200, data, kind, [*HEADERS, (b"cache-control", _KEEP)])


PAGES: list[AnyEndpoint] = [
    Endpoint(Operation.DESCRIBE, "GET", "/", to_console, NoQuery, None, {}),
    Endpoint(
        Operation.DESCRIBE, "GET", f"{BASE}/static/{{name}}", static_file, FileQuery, None, {}
    ),
    page_endpoint(Operation.LOGIN, LOGIN_PATH, login.login, login.LoginForm),
    action_endpoint(Operation.LOGIN, LOGIN_PATH, login.log_in, login.LoginForm, login.LoginBody),
    page_endpoint(Operation.LOGIN, f"{LOGIN_PATH}/{{name}}", login.begin, login.LoginForm),
    Endpoint(
        Operation.LOGIN,
        "GET",
        f"{BASE}{LOGIN_PATH}/{{name}}/back",
        login.end,
        login.CodeQuery,
        None,
        {},
        any_query=True,
    ),
    action_endpoint(Operation.LOGOUT, "/logout", login.logout, PartsQuery),
    page_endpoint(Operation.STATUS, "", overview.overview, PartsQuery),
    page_endpoint(Operation.SEARCH, "/pending", pending.pending, pending.PendingForm),
    page_endpoint(Operation.CANCEL, "/pending/cancel", pending.confirm, pending.PendingForm),
    action_endpoint(
        Operation.CANCEL, "/pending/cancel", pending.cancel, pending.PendingForm, CountedBody
    ),
    page_endpoint(Operation.SEARCH, "/message", message.message, message.MessageForm),
    page_endpoint(Operation.CANCEL, "/message/cancel", message.confirm_cancel, message.MessageForm),
    action_endpoint(Operation.CANCEL, "/message/cancel", message.cancel, message.MessageForm),
    page_endpoint(
        Operation.RESCHEDULE,
        "/message/reschedule",
        message.confirm_move,
        message.MoveForm,
        ("due",),
    ),
    action_endpoint(Operation.RESCHEDULE, "/message/reschedule", message.move, message.MoveForm),
    page_endpoint(
        Operation.SCHEDULE_LIST, "/schedules", schedules.schedules, schedules.SchedulesForm
    ),
    page_endpoint(Operation.SCHEDULE_SHOW, "/schedule", schedules.schedule, schedules.ScheduleForm),
    page_endpoint(Operation.SCHEDULE_PUT, "/schedule/put", schedules.write, schedules.NamedForm),
    action_endpoint(
        Operation.SCHEDULE_PUT,
        "/schedule/put",
        schedules.put,
        schedules.NamedForm,
        schedules.WrittenBody,
    ),
    *(
        page_endpoint(change.operation, change.path, change.confirm, schedules.NamedForm)
        for change in schedules.CHANGES
    ),
    *(
        action_endpoint(
            change.operation,
            change.path,
            change.act,
            schedules.NamedForm,
            schedules.VersionBody,
        )
        for change in schedules.CHANGES
    ),
    page_endpoint(Operation.LETTERS, "/dead", dead.dead, dead.LettersForm),
    page_endpoint(Operation.LETTERS, "/dead/letter", dead.letter, dead.PlaceForm),
    page_endpoint(Operation.REDRIVE, "/dead/redrive", dead.confirm, dead.RedriveForm),
    action_endpoint(
        Operation.REDRIVE, "/dead/redrive", dead.redrive, dead.RedriveForm, CountedBody
    ),
    page_endpoint(Operation.AUDIT, "/audit", audit.audit, audit.AuditForm),
    page_endpoint(Operation.JOBS, "/jobs", jobs.jobs, PartsQuery),
    page_endpoint(Operation.JOBS, "/job", jobs.job, jobs.JobForm),
    action_endpoint(Operation.JOBS, "/job/stop", jobs.stop, jobs.JobForm),
    page_endpoint(Operation.STATUS, "/node", node.node, PartsQuery),
]
