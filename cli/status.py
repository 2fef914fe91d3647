"""``slotwheel status``: what a node holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from ..client import Client
from .shared import json_option, node_options, print_json, time_text


@click.command("status", short_help="Show what a node holds.")
@node_options
@json_option
def command(address: str, timeout: timedelta, as_json: bool) -> None:
    """Show what a node holds: messages pending, delivered, dead; memory, files, marks."""
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        found = client.status()
    if as_json:
        print_json(found)
        return
    width = max(len(name) for name in found)
    for name, value in found.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_for_people(name, value)}")


def _for_people(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if name.endswith("mark_c") and value > 0:
        return time_text(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
