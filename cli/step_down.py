"""``slotwheel step-down``: have the master hand over to a peer, before a restart for example."""

from __future__ import annotations

from datetime import timedelta

import click

from ..client import Client
from ..client.addresses import Nodes
from .reaching import node_options
from .shared import json_option, print_json
from .terminal import echo


@click.command("step-down")
@node_options
@json_option
def command(address: Nodes, timeout: timedelta, as_json: bool) -> None:
    """Have the master of a group hand over to the peer that has most of the journal.

    Any peer's address will do: the master is found. Prints the new master's address. It takes less
    time than an election, and nothing that was accepted is lost either way. The exit code is 1 if
    no peer took over within --timeout.
    """
    seconds = timeout.total_seconds()
    with Client(address, timeout_s=seconds) as client:
        master = client.step_down(seconds)
    if as_json:
        print_json({"master_address": master})
    else:
        echo(master)
