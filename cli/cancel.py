"""``slotwheel cancel``: cancel messages before they leave."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import timedelta

import click

from ..client import Client
from ..client.cancels import UNKNOWN, answers
from .shared import Exit, json_option, node_options, print_json


@click.command("cancel", short_help="Take messages back by their ids.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@node_options
@json_option
def command(ids: tuple[str, ...], address: str, timeout: timedelta, as_json: bool) -> int:
    """Cancel messages by their ids, given as arguments or on stdin, one a line.

    Prints each id with its answer: cancelled, already delivered, or unknown. The exit code is 1 if
    any was unknown.
    """
    if not ids and sys.stdin.isatty():
        raise click.UsageError("Give ids as arguments, or on stdin, one a line.")
    wanted = iter(ids) if ids else (line.strip() for line in sys.stdin)
    counts: Counter[str] = Counter()
    with Client(address, timeout_s=timeout.total_seconds()) as client:
        for one, answer in answers(client, filter(None, wanted)):
            counts[answer] += 1
            if as_json:
                print_json({"id": one, "answer": answer})
            else:
                click.echo(f"{one}\t{answer}")
    return Exit.FAILED if counts[UNKNOWN] else Exit.DONE
