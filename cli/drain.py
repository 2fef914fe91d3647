"""``slotwheel drain``: have a wheel empty itself, before it is taken out of a fleet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click

from ..client import Client
from ..client.addresses import Nodes
from ..client.groupstatus import group_status
from ..wheel.errors import NodeUnreachable
from ..wheel.texts import counted
from .invocation import Exit
from .progress import progress_bar
from .reaching import node_options
from .resending import interruptible
from .shared import json_option, print_json
from .terminal import echo

_LOOK_S = 1.0


@click.command("drain")
@node_options
@click.option("--wait", is_flag=True, help="Wait until it is empty.")
@json_option
def command(address: Nodes, timeout: timedelta, wait: bool, as_json: bool) -> int:
    """Have a wheel take no new messages, and deliver those that it has. Of a fleet, clients send to
    the other wheels from now on; it says so for 5 s before it refuses a message.

    Prints how many messages are pending. Its schedules go on: put them elsewhere, and delete them
    here. The exit code is 1 while it is not empty. 'slotwheel undrain' takes it back.
    """
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        client.drain()
        left = _left(group_status(client))
        try:
            if wait:
                for now in _until_empty(client, left):
                    left = now
        finally:  # also when it is interrupted
            _print(left, as_json)
    return Exit.DONE if left["empty"] else Exit.FAILED


def _print(left: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(left)
    elif left["empty"]:
        echo("empty: it takes no new messages, and has none")
    else:
        schedules = f", and {counted(left['schedules'], 'schedule')}" if left["schedules"] else ""
        echo(f"{counted(left['pending'], 'message')} pending{schedules}")


def _left(status: dict[str, Any]) -> dict[str, Any]:
    pending, schedules = status["pending"], status["schedules"]
    return {"pending": pending, "schedules": schedules, "empty": not pending and not schedules}


def _until_empty(client: Client, left: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what is left, each second, until nothing is."""
    with interruptible(), progress_bar("emptying", left["pending"], "count", "elapsed") as advance:
        while not left["empty"]:
            time.sleep(_LOOK_S)
            with contextlib.suppress(NodeUnreachable):  # a failover, or the node is started again
                now = _left(group_status(client))
                advance(max(0, left["pending"] - now["pending"]))
                left = now
                yield left
