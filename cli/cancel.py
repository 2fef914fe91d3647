"""``slotwheel cancel``: cancel messages before they leave."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import click

from ..client import Client
from ..client.addresses import Nodes
from ..client.cancels import UNKNOWN, answers
from ..client.message import clock_ms
from .invocation import Exit
from .shared import is_typed, json_option, node_options, print_json
from .terminal import echo

_NO_IDS = "Give ids as arguments, or on stdin, one a line; or --where with --data."


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Cancel all pending messages that fulfil it: topic=, key=, header:NAME=, from=, to=; may"
    " be repeated.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory of the node, in which --where looks for messages.",
)
@click.option("--yes", is_flag=True, help="Cancel what --where finds without asking.")
@node_options
@json_option
def command(
    ids: tuple[str, ...],
    where: tuple[str, ...],
    data: Path | None,
    yes: bool,
    address: Nodes,
    timeout: timedelta,
    as_json: bool,
) -> int:
    """Cancel messages by their ids, given as arguments or on stdin, one a line; or, with --where
    and --data, all that are pending and fulfil every condition.

    Prints each id with its answer: cancelled, already delivered, or unknown; with --where, how many
    had each answer. The exit code is 1 if any was unknown.
    """
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
    if not ids and sys.stdin.isatty():
        raise click.UsageError(_NO_IDS)
    texts = iter(ids) if ids else (line.strip() for line in sys.stdin)
    counts: Counter[str] = Counter()
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        for message_id, answer in answers(client, filter(None, texts)):
            counts[answer] += 1
            if as_json:
                print_json({"id": message_id, "answer": answer})
            else:
                echo(f"{message_id}\t{answer}")
    if not counts:  # such as a search without a match, piped into this command
        echo(f"no ids were given. {_NO_IDS}", err=True)
    return Exit.FAILED if counts[UNKNOWN] else Exit.DONE
