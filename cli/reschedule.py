"""``slotwheel reschedule``: give a message another due time."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from ..client.cancels import ALREADY_CANCELLED, CANCELLED, UNKNOWN, is_id
from .invocation import Exit
from .reaching import Reached, connected, wheel_options
from .shared import (
    NO_ID_HINT,
    check_due,
    due_options,
    json_option,
    name_option,
    place_of,
    print_json,
)
from .terminal import echo

_ONE = "Give an ID, or --topic together with --name: a name is unique in its topic."


@click.command("reschedule")
@click.argument("message_id", metavar="[ID]", required=False)
@click.option("--topic", help="The topic of the message with --name.")
@name_option
@due_options
@wheel_options
@json_option
def command(
    message_id: str | None,
    topic: str | None,
    name: str | None,
    delay: timedelta | None,
    at: datetime | None,
    address: Reached,
    timeout: timedelta,
    as_json: bool,
) -> int:
    """Cancel a message and send it again with another due time, in one step: the message ID, or
    the one that has a --name in a --topic, which the new one has then.

    If the message moved, prints the id or the name, "cancelled", and the new id. If not, the id or
    the name and why: already cancelled, already delivered, or unknown; the exit code is 1 then.
    When it expires stays as it was.
    """
    check_due(delay=delay, at=at)
    place = place_of(message_id, topic, name, _ONE)
    if place is None and message_id is None:
        raise click.UsageError(_ONE)
    answer, moved = UNKNOWN, None
    if place is not None:
        with connected(address, timeout) as client:
            answer, moved = client.reschedule(topic=place[0], name=place[1], due=at, delay=delay)
    elif message_id is not None and is_id(message_id):
        with connected(address, timeout) as client:
            answer, moved = client.reschedule(message_id, due=at, delay=delay)
    if answer == CANCELLED and moved is None:
        answer = ALREADY_CANCELLED  # it was cancelled before, so there was nothing to move
    if as_json:
        given = {"id": message_id} if place is None else {"topic": place[0], "name": place[1]}
        print_json({**given, "answer": answer, "new_id": moved})
    else:
        echo("\t".join(filter(None, (message_id or name, answer, moved))))
        if message_id is not None and not is_id(message_id):
            echo(NO_ID_HINT, err=True)
    return Exit.DONE if moved else Exit.FAILED
