"""``slotwheel reschedule``: give a message another due time."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from ..client import Client
from ..client.addresses import Nodes
from ..client.cancels import ALREADY_CANCELLED, CANCELLED, UNKNOWN, is_id
from .invocation import Exit
from .shared import (
    check_due,
    due_options,
    json_option,
    node_options,
    print_json,
)
from .terminal import echo


@click.command("reschedule")
@click.argument("message_id", metavar="ID")
@due_options
@node_options
@json_option
def command(
    message_id: str,
    delay: timedelta | None,
    at: datetime | None,
    address: Nodes,
    timeout: timedelta,
    as_json: bool,
) -> int:
    """Cancel a message and send it again with another due time, in one step.

    If the message moved, prints the id, "cancelled", and the new id. If not, the id and why:
    already cancelled, already delivered, or unknown; the exit code is 1 then. When it expires stays
    as it was.
    """
    check_due(delay=delay, at=at)
    answer, moved = UNKNOWN, None
    if is_id(message_id):
        with Client(address, timeout_s=timeout.total_seconds()) as client:
            answer, moved = client.reschedule(message_id, due=at, delay=delay)
    if answer == CANCELLED and moved is None:
        answer = ALREADY_CANCELLED  # it was cancelled before, so there was nothing to move
    if as_json:
        print_json({"id": message_id, "answer": answer, "new_id": moved})
    else:
        echo("\t".join(filter(None, (message_id, answer, moved))))
    return Exit.DONE if moved else Exit.FAILED
