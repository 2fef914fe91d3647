"""``slotwheel status``: the state of a node, and of its peers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from ..broker.sources import MISSED
from ..client import Client
from ..client.addresses import Nodes
from ..client.groupstatus import REPLICATION, group_status
from ..replication.status import missing_votes
from ..wheel.texts import span_text, time_text
from .printing import print_table
from .reaching import node_options
from .shared import json_option, print_json
from .terminal import echo

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
"""Each column's heading, and the field of a peer below it; --json has further fields."""
_NUMBERS = {"match", "lag_entries", "heard_ms"}
_SOURCE_FIELDS = ("partition", "position", "lag")


@click.command("status")
@node_options
@click.option(
    "--acknowledge",
    is_flag=True,
    help="Show which records of delay topics can never be read any more, and forget them.",
)
@json_option
def command(address: Nodes, timeout: timedelta, acknowledge: bool, as_json: bool) -> None:
    """Show what a node holds: messages pending, delivered, dead, expired; memory, files, marks.

    With peers, also how it sees the group: role, epoch, commit index, and of each peer its state
    and how far it is behind. Of several addresses, the master answers if there is one.
    """
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        status = group_status(client)
        if acknowledge:
            client.acknowledge_unread()
    if as_json:
        print_json(status)
        return
    group = status.pop(REPLICATION, None)
    delay_topics = status.pop("delay_topics", None)
    pending = status.pop("pending_by_prefix", None)
    width = max(len(name) for name in status)
    for name, value in status.items():
        heading = name.removesuffix("_ms").replace("_", " ")
        echo(f"{heading:<{width}}  {_for_people(name, value)}")
    if pending is not None:
        _print_pending(pending)
    if delay_topics is not None:
        _print_delay_topics(delay_topics)
    if group is not None:
        _print_group(group)


def _print_pending(pending: dict[str, Any]) -> None:
    """Print what is pending for the prefixes that quotas name."""
    rows = [[row["prefix"], f"{row['rows']:,}", f"{row['bytes']:,}"] for row in pending["prefixes"]]
    echo()
    print_table(rows, "lrr", ["pending by prefix", "rows", "bytes"])
    unseen = pending["slots_to_count"]
    if unseen is None or unseen:
        left = "is not counted yet" if unseen is None else f"has {unseen:,} slots left to count"
        echo(f"It {left}, so it may be more.")


def _print_delay_topics(topics: dict[str, Any]) -> None:
    rows = [
        [
            source["topic"],
            *(_cell(name, source[name]) for name in _SOURCE_FIELDS),
            source["problem"] or "read",
        ]
        for source in topics["sources"]
    ]
    if rows:
        echo()
        heads = ["delay topic", "partition", "position", "lag", "state"]
        print_table(rows, "lrrrl", heads)
    if topics["not_stored"]:
        echo(f"positions are not stored in Kafka: {topics['not_stored']}")
    if topics["not_read"]:
        echo()
        echo("Not read, until acknowledged with --acknowledge:")
    for gap in topics["not_read"]:
        echo(f"  {_unread_text(gap)}")
    if topics["not_read_dropped"]:
        echo(f"  and {topics['not_read_dropped']} older ones")


def _unread_text(gap: dict[str, Any]) -> str:
    place = f"{time_text(gap['at_ms'])}  {gap['topic']}"
    anew = "" if gap["what"] == MISSED else f" of the topic {gap['topic_id']}, which was deleted"
    if "partition" not in gap:
        return f"{place}: as far as is known, everything{anew}, was read"
    first, last = gap["first"], gap["last"]
    offsets = f"offsets {first} to {last}"
    if last is None:
        offsets = f"offset {first}, and what came behind it"
    return f"{place}/{gap['partition']}: {offsets}{anew}"


def _print_group(group: dict[str, Any]) -> None:
    master = group.get("master")
    missing = missing_votes(group)
    master_text = "none known" + (f": {missing}" if missing else "")
    if master:
        master_text = f"{master} at {group.get('master_address')}"
    lease_ms = group.get("lease_ms")
    echo()
    for name, value in (
        ("node", group.get("me")),
        ("role", group.get("role")),
        ("epoch", group.get("epoch")),
        ("master", master_text),
        ("commit", group.get("commit")),
        ("lease", f"{lease_ms} ms" if isinstance(lease_ms, int) and lease_ms > 0 else None),
    ):
        if value is not None:
            echo(f"{name:<8}{_for_people(name, value)}")
    peers = group.get("peers") or []
    columns = [
        column for column in _COLUMNS if any(peer.get(column[1]) is not None for peer in peers)
    ]
    if not columns:
        return
    sides = "".join("r" if name in _NUMBERS else "l" for _, name in columns)
    rows = ([_cell(name, peer.get(name)) for _, name in columns] for peer in peers)
    echo()
    print_table(rows, sides, [heading for heading, _ in columns])
    for peer in peers:
        if peer.get("error") and not peer.get("connected"):
            echo(f"{peer['id']}: {peer['error']}")


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
    if name == "horizon_ms":
        return span_text(value)
    if isinstance(value, float):
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
