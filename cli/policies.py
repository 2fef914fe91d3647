"""``slotwheel policies``: levels and retry policies of a group, from a node or from a file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from ..client import Client
from ..client.addresses import Nodes
from ..policy.policyset import PolicySet
from .configfile import read_policies
from .printing import print_table
from .reaching import node_options
from .shared import json_option, print_json
from .terminal import echo


@click.command("policies")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check a node's --policies file instead, without a node.",
)
@node_options
@json_option
def command(path: Path | None, address: Nodes, timeout: timedelta, as_json: bool) -> None:
    """Show the levels and the retry policies of a node's group, and which version they are."""
    settings = settings_of(path, address, timeout)
    if as_json:
        print_json(settings.to_dict())
        return
    echo(f"version  {settings.version}" if path is None else f"file     {path}")
    echo(f"levels   {' '.join(settings.levels)}")
    rows = [
        (name, " ".join(policy.levels), f"{policy.jitter:g}", policy.dead_letters or "")
        for name, policy in sorted(settings.policies.items())
    ]
    echo()
    print_table(rows, "llrl", ("policy", "attempt again after", "jitter", "dead letters"))


def settings_of(path: Path | None, address: Nodes, timeout: timedelta) -> PolicySet:
    """The policies in a file or, without ``path``, those of the node's group. Errors:
    ``InvalidConfiguration``, ``NodeUnreachable``, ``OSError``."""
    if path is not None:
        return read_policies(path)
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        return PolicySet.from_dict(client.policies())
