"""``slotwheel status``: the state of a node, and of its peers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from ..client import Client
from ..client.groupstatus import REPLICATION, group_status
from ..replication.status import missing_votes
from ..wheel.texts import time_text
from .printing import print_table
from .shared import json_option, node_options, print_json

_COLUMNS = (
    ("peer", "id"),
    ("address", "address"),
    ("connected", "connected"),
    ("state", "state"),
    ("match", "match"),
    ("lag", "lag_entries"),
    ("admitted", "admitted"),
    ("heard ms ago", "heard_ms"),
)
"""Heading, and the field of a peer below it. Further fields are in --json only."""
_NUMBERS = {"match", "lag_entries", "heard_ms"}


@click.command("status", short_help="Show what a node holds, and its peers.")
@node_options
@json_option
def command(address: str, timeout: timedelta, as_json: bool) -> None:
    """Show what a node holds: messages pending, delivered, dead, expired; memory, files, marks.

    With peers, also how it sees the group: role, epoch, commit index, and of each peer its state
    and how far it is behind. Of several addresses, the master answers if there is one.
    """
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        found = group_status(client)
    if as_json:
        print_json(found)
        return
    group = found.pop(REPLICATION, None)
    width = max(len(name) for name in found)
    for name, value in found.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_for_people(name, value)}")
    if group is not None:
        _print_group(group)


def _print_group(group: dict[str, Any]) -> None:
    master = group.get("master")
    missing = missing_votes(group)
    where = "none known" + (f": {missing}" if missing else "")
    if master:
        where = f"{master} at {group.get('master_address')}"
    lease_ms = group.get("lease_ms")
    click.echo()
    for name, value in (
        ("node", group.get("me")),
        ("role", group.get("role")),
        ("epoch", group.get("epoch")),
        ("master", where),
        ("commit", group.get("commit")),
        ("lease", f"{lease_ms} ms" if isinstance(lease_ms, int) and lease_ms > 0 else None),
    ):
        if value is not None:
            click.echo(f"{name:<8}{_for_people(name, value)}")
    peers = group.get("peers") or []
    columns = [one for one in _COLUMNS if any(peer.get(one[1]) is not None for peer in peers)]
    if not columns:
        return
    sides = "".join("r" if name in _NUMBERS else "l" for _, name in columns)
    rows = ([_cell(name, peer.get(name)) for _, name in columns] for peer in peers)
    click.echo()
    print_table(rows, sides, [heading for heading, _ in columns])
    for peer in peers:
        if peer.get("error") and not peer.get("connected"):
            click.echo(f"{peer['id']}: {peer['error']}")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _for_people(name, value)


def _for_people(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if name.endswith("mark_c") and value > 0:
        return time_text(value)
    if isinstance(value, float):
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
