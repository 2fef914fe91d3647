"""``slotwheel schedule``: messages that come again and again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import click

from ..client.schedules import Schedules
from ..policy.schedules.spec import rhythm_text
from ..wheel.texts import time_text, visible_text
from .printing import print_table, quiet_pipe
from .reaching import Reached, connected, wheel_options
from .shared import combined, json_option, print_json
from .terminal import echo

F = TypeVar("F", bound=Callable[..., Any])
_of_one = combined(click.argument("name"), wheel_options, json_option)
version_option = click.option(
    "--version",
    "version",
    type=click.IntRange(min=0),
    help="Only if the schedule has this version; 0: only if there is none of that name.",
)


@click.group("schedule")
def command() -> None:
    """Store schedules, look at them, pause, resume, run and delete them.

    A schedule says which message comes again and again, and when; docs/schedules.md has its fields.
    Fields whose names end in _ms are milliseconds; without a zone, cron is in UTC.

    \b
        echo '{"name": "beat", "every_ms": 60000, "template": {"topic": "beats"}}' |
            slotwheel schedule put -
        slotwheel schedule list --prefix be
        slotwheel schedule show beat --json
    """


@command.command("put")
@click.argument("schedules", metavar="FILE", type=click.File("rb"))
@version_option
@wheel_options
@json_option
def put(
    schedules: Any, version: int | None, address: Reached, timeout: timedelta, as_json: bool
) -> None:
    """Store the schedule in FILE (- for standard input): JSON, one schedule or a list.

    It takes the place of the schedule with its name, if there is one. Prints name, version and the
    next run (UTC) of each. The first one that is refused ends it, with exit code 1; those before it
    are stored.
    """
    try:
        given = json.loads(schedules.read())
    except ValueError as error:
        raise click.UsageError(f"{schedules.name} is not JSON: {error}") from None
    items = given if isinstance(given, list) else [given]
    if not all(isinstance(each, dict) for each in items):
        raise click.UsageError(f"{schedules.name} is no schedule, and no list of schedules")
    with _schedules(address, timeout) as stored:
        for each in items:
            _print(stored.put(each, version=version), as_json=as_json)


@command.command("list")
@click.option("--prefix", help="Only schedules whose names begin with this.")
@click.option(
    "--topic", help="Only schedules that send to this topic; orders-* stands for all that begin so."
)
@wheel_options
@json_option
def list_all(
    prefix: str | None, topic: str | None, address: Reached, timeout: timedelta, as_json: bool
) -> None:
    """List schedules by name: topic, when, runs, missed ones, the last run and the next.

    Times are UTC. A run becomes a message 30 s before it is due, so the last run may be ahead; the
    next one is the first that is no message yet.
    """
    with _schedules(address, timeout) as stored, quiet_pipe():
        listed = stored.list(prefix=prefix or "", topic=topic or "")
        if as_json:
            for shown in listed:
                print_json(shown)
            return
        print_table(
            [_row(shown) for shown in listed],
            "lllrrlll",
            ("name", "topic", "when", "runs", "missed", "last", "next", "paused"),
        )


@command.command("show")
@_of_one
def show(name: str, address: Reached, timeout: timedelta, as_json: bool) -> None:
    """Show one schedule: its fields, the last run and the next ten.

    Times are UTC. A run becomes a message 30 s before it is due, so the last run may be ahead.
    """
    with _schedules(address, timeout) as stored:
        shown = stored.get(name)
    if as_json:
        print_json(shown)
        return
    last = shown["last"]
    echo(json.dumps(shown["schedule"], indent=2, ensure_ascii=True))
    echo(f"version  {shown['version']}")
    echo(f"runs     {shown['runs']}, {shown['missed']} missed")
    if last is not None:
        echo(f"last     {time_text(last['due_ms'])}  {last['id']}")
    for nominal_ms in shown["next_ms"]:
        echo(f"next     {time_text(nominal_ms)}")


@command.command("pause")
@_of_one
def pause(name: str, address: Reached, timeout: timedelta, as_json: bool) -> None:
    """Let a schedule rest. Messages that it has made already, up to 30 s ahead, still leave."""
    with _schedules(address, timeout) as stored:
        _print(stored.pause(name), as_json=as_json)


@command.command("resume")
@_of_one
def resume(name: str, address: Reached, timeout: timedelta, as_json: bool) -> None:
    """Let a schedule go on with what is due from now on."""
    with _schedules(address, timeout) as stored:
        _print(stored.resume(name), as_json=as_json)


@command.command("run")
@_of_one
def run(name: str, address: Reached, timeout: timedelta, as_json: bool) -> None:
    """Send the message of a schedule now, besides its other runs. Prints number and id."""
    with _schedules(address, timeout) as stored:
        number, message_id = stored.run(name)
    if as_json:
        print_json({"name": name, "run": number, "id": message_id})
    else:
        echo(f"{visible_text(name)}\t{number}\t{message_id}")


@command.command("delete")
@click.argument("name")
@version_option
@wheel_options
@json_option
def delete(
    name: str, version: int | None, address: Reached, timeout: timedelta, as_json: bool
) -> None:
    """Remove a schedule. Messages that it has made already, up to 30 s ahead, still leave."""
    with _schedules(address, timeout) as stored:
        stored.delete(name, version=version)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        echo(f"{visible_text(name)}\tdeleted")


@contextmanager
def _schedules(address: Reached, timeout: timedelta) -> Iterator[Schedules]:
    with connected(address, timeout) as client:
        yield client.schedules


def _print(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
        return
    name = visible_text(shown["schedule"]["name"])
    echo(f"{name}\tversion {shown['version']}\t{_next(shown) or 'no further run'}")


def _row(shown: dict[str, Any]) -> tuple[str, ...]:
    schedule, last = shown["schedule"], shown["last"]
    return (
        *(schedule["name"], schedule["template"]["topic"]),
        " ".join(filter(None, (rhythm_text(schedule), schedule.get("zone")))),
        *(str(shown["runs"]), str(shown["missed"])),
        "" if last is None else time_text(last["due_ms"]),
        _next(shown),
        "paused" if schedule.get("paused") else "",
    )


def _next(shown: dict[str, Any]) -> str:
    coming = shown["next_ms"]
    return time_text(coming[0]) if coming else ""
