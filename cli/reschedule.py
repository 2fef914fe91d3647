"""``slotwheel reschedule``: give a message another due time."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from ..client import Client
from .shared import check_due, due_options, json_option, node_options, print_json


@click.command("reschedule", short_help="Give a message another due time.")
@click.argument("message_id", metavar="ID")
@due_options
@node_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    message_id: str,
    delay: timedelta | None,
    at: datetime | None,
    address: str,
    timeout: timedelta,
    as_json: bool,
) -> None:
    """Cancel a message and send it again with another due time, in one step.

    Prints the id, what became of it, and the new id if the message moved. The exit code is 1 if it
    did not: it was delivered already, or is unknown.
    """
    check_due(delay, at)
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        answer, moved = client.reschedule(message_id, due=at, delay=delay)
    if as_json:
        print_json({"id": message_id, "answer": answer, "new_id": moved})
    else:
        click.echo("\t".join(filter(None, (message_id, answer, moved))))
    ctx.exit(0 if moved else 1)
