"""``slotwheel cancel``: cancel messages before they leave."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta

import click

from ..client import Client
from ..wheel.errors import UnknownId
from ..wheel.ids import MessageId
from .shared import Exit, json_option, node_options, print_json

AT_ONCE = 1000
UNKNOWN = "unknown"


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


def answers(client: Client, ids: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each id with its answer, in order. A text that is not an id is unknown."""
    ids = iter(ids)
    while part := list(itertools.islice(ids, AT_ONCE)):
        good = [one for one in part if is_id(one)]
        answers = dict(zip(good, client.cancel(good) if good else [], strict=True))
        for one in part:
            yield one, answers.get(one, UNKNOWN)


def is_id(text: str) -> bool:
    """Whether a text is an id; a node is not asked about any other text."""
    try:
        MessageId.parse(text)
    except UnknownId:
        return False
    return True
