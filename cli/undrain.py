"""``slotwheel undrain``: have a wheel take messages again."""

from __future__ import annotations

from datetime import timedelta

import click

from ..client import Client
from ..client.addresses import Nodes
from .reaching import node_options
from .shared import json_option, print_json
from .terminal import echo


@click.command("undrain")
@node_options
@json_option
def command(address: Nodes, timeout: timedelta, as_json: bool) -> None:
    """Have a wheel that 'slotwheel drain' empties take messages again."""
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        client.drain(on=False)
    if as_json:
        print_json({"draining": False})
    else:
        echo("it takes messages")
