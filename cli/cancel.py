"""``slotwheel cancel``: cancel messages before they leave."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import click

from ..client.cancels import UNKNOWN, UNREACHABLE, answers, is_id
from ..client.message import clock_ms
from .invocation import Exit
from .reaching import Reached, connected, wheel_options
from .shared import NO_ID_HINT, is_typed, json_option, name_option, place_of, print_json
from .terminal import echo

_NO_IDS = (
    "Give ids as arguments, or on stdin, one a line; or --where with --data. One message is"
    " cancelled by --topic and --name, too."
)
_BY_NAME = (
    "Give --topic together with --name, and neither ids nor --where besides: a name is unique in"
    " its topic. All messages of a topic are cancelled by --where topic=TOPIC with --data."
)


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--topic", help="The topic of the message with --name.")
@name_option
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Cancel all pending messages that fulfil it: topic=, key=, name=, header:NAME=, from=,"
    " to=; may be repeated.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory of the node, in which --where looks for messages.",
)
@click.option("--yes", is_flag=True, help="Cancel what --where finds without asking.")
@wheel_options
@json_option
def command(
    ids: tuple[str, ...],
    topic: str | None,
    name: str | None,
    where: tuple[str, ...],
    data: Path | None,
    yes: bool,
    address: Reached,
    timeout: timedelta,
    as_json: bool,
) -> int:
    """Cancel messages by their ids, given as arguments or on stdin, one a line; or the one that has
    a --name in a --topic; or, with --where and --data, all that are pending and fulfil every
    condition.

    Prints each id with its answer: cancelled, already delivered, or unknown, or unreachable where
    its wheel of a --fleet does not answer; by a name the name, the answer and the id, if it is
    known; with --where, how many had each answer. The exit code is 1 if any was unknown or
    unreachable.
    """
    place = place_of(ids or where, topic, name, _BY_NAME)
    if where:
        if ids or data is None:
            raise click.UsageError("--where needs --data, and takes no ids besides.")
        from ..reading.search.pending import PendingReader
        from ..reading.search.query import parse_where
        from .bulkcancel import BulkCancel

        query = parse_where(where, clock_ms())
        with PendingReader(data) as reader:
            return BulkCancel(address, timeout, yes, as_json).run(reader, query)
    if yes and is_typed("yes"):
        raise click.UsageError("--yes is for --where.")
    if place is not None:
        with connected(address, timeout) as client:
            answer, cancelled_id = client.cancel(topic=place[0], name=place[1])
        if as_json:
            print_json({"topic": place[0], "name": place[1], "id": cancelled_id, "answer": answer})
        else:
            echo("\t".join(filter(None, (place[1], answer, cancelled_id))))
        return Exit.FAILED if answer == UNKNOWN else Exit.DONE
    if not ids and sys.stdin.isatty():
        raise click.UsageError(_NO_IDS)
    texts = iter(ids) if ids else (line.strip() for line in sys.stdin)
    counts: Counter[str] = Counter()
    no_ids = False
    with connected(address, timeout) as client:
        for message_id, answer in answers(client.cancel, filter(None, texts)):
            counts[answer] += 1
            no_ids |= not is_id(message_id)
            if as_json:
                print_json({"id": message_id, "answer": answer})
            else:
                echo(f"{message_id}\t{answer}")
    if no_ids and not as_json:
        echo(NO_ID_HINT, err=True)
    if not counts:  # such as a search without a match, piped into this command
        echo(f"no ids were given. {_NO_IDS}", err=True)
    return Exit.FAILED if counts[UNKNOWN] or counts[UNREACHABLE] else Exit.DONE
