"""``slotwheel routes``: where messages with a route go, and what consumer groups filter by."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from ..client import Client
from ..client.addresses import Nodes
from ..policy.routes import find_route
from .policies import settings_of
from .printing import print_table
from .reaching import node_options
from .shared import combined, json_option, pair, print_json
from .terminal import echo

_ALWAYS = "(each message)"


@click.group("routes")
def command() -> None:
    """Routes turn one message into messages for several topics, by rules over its headers."""


_source = combined(
    click.option(
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read a node's --policies file instead, without a node.",
    ),
    node_options,
    json_option,
)


@command.command("list")
@_source
def list_command(path: Path | None, address: Nodes, timeout: timedelta, as_json: bool) -> None:
    """Show all routes, and the rules that consumer groups have registered."""
    settings = settings_of(path, address, timeout)
    if as_json:
        fields = settings.to_dict()
        print_json({name: fields[name] for name in ("version", "routes", "groups")})
        return
    rows = [
        (name, _ALWAYS if branch.where is None else str(branch.where), " ".join(branch.to))
        for name, route in sorted(settings.routes.items())
        for branch in route.branches
    ]
    print_table(rows, "lll", ("route", "where", "to"))
    if settings.groups:
        echo()
        groups = sorted(settings.groups.items())
        print_table(
            [(group, _ALWAYS if rule is None else str(rule)) for group, rule in groups],
            "ll",
            ("consumer group", "takes"),
        )


@command.command("explain")
@click.argument("route")
@click.option(
    "--header",
    "headers",
    type=pair,
    multiple=True,
    help="A header of the message; may be repeated.",
)
@_source
def explain(
    route: str,
    headers: tuple[tuple[str, str], ...],
    path: Path | None,
    address: Nodes,
    timeout: timedelta,
    as_json: bool,
) -> None:
    """Show which branches of ROUTE match a message with these headers, and where it goes.

    The exit code is 1 when no branch matches: such a message is refused.
    """
    definition = find_route(settings_of(path, address, timeout).routes, route)
    pairs = [(name, value.encode()) for name, value in headers]
    branches, topics = definition.explained(pairs)
    if as_json:
        print_json({"route": route, "branches": branches, "topics": topics})
    else:
        rows = [
            (
                "yes" if match["matches"] else "no",
                _ALWAYS if branch.where is None else str(branch.where),
                " ".join(branch.to),
            )
            for match, branch in zip(branches, definition.branches, strict=True)
        ]
        print_table(rows, "lll", ("matches", "where", "to"))
        echo(f"\ngoes to  {' '.join(topics) or 'no topic: it is refused'}")
    if not topics:
        definition.topics(pairs)  # raises the error of a message that is refused


@command.command("forget")
@click.argument("group")
@node_options
@json_option
def forget(group: str, address: Nodes, timeout: timedelta, as_json: bool) -> None:
    """Take back the rule of a consumer GROUP, so that its members can come with another one.

    Stop all of them first: messages that one member filters away are gone for the group.
    """
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        registered = group in client.policies()["groups"]
        client.forget(group)
    if as_json:
        print_json({"group": group, "forgotten": registered})
    else:
        echo(f"{group}: " + ("forgotten" if registered else "had no rule"))
