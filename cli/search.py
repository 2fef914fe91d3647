"""``slotwheel search``: what is pending in a data directory, and what became of an id.

It needs no node: it reads the files that a node writes, in a process of low priority (``main``), so
that the node does not feel it.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from ..client.addresses import Nodes
from ..reading.messagefields import Fields, message_fields
from ..reading.search.fate import MessageFate, MessageState, find
from ..reading.search.pending import PendingCount, PendingPage, PendingReader
from ..reading.search.query import CountQuery, PageKey, PageQuery, Query
from ..wheel.schema import times
from ..wheel.slots.slot import slot_with, stem_of
from ..wheel.texts import counted, span_text, time_text
from .bulkcancel import BulkCancel
from .invocation import Exit
from .printing import Listing, print_table, quiet_pipe
from .questions import question_of, question_options
from .reaching import node_options
from .shared import data_argument, json_option, print_json
from .terminal import echo

_SLOT, _TOPIC = "slot", "topic"


@click.command("search")
@data_argument
@question_options(Query)
@question_options(PageQuery)
@click.option("--count", is_flag=True, help="Count them instead of printing them.")
@question_options(CountQuery)
@click.option(
    "--follow-up",
    type=click.Choice(("cancel",)),
    help="What to do with all of them, through the node: cancel.",
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
@node_options
@json_option
def command(
    directory: Path,
    count: bool,
    by: str | None,
    follow_up: str | None,
    yes: bool,
    address: Nodes,
    timeout: timedelta,
    as_json: bool,
    **options: Any,
) -> int:
    """Print the messages that are pending in the data directory DIR, in the order in which they are
    due. With --id alone: what became of these messages.

    A node may be running on it, and is not slowed down. The answer has all messages that were
    acknowledged before the question; it ends with the number of rows that were read, and with the
    option for the next page. The exit code is 1 if something could not be read.
    """
    query = question_of(PageQuery, options)
    if by is not None and not count:
        raise click.UsageError("--by needs --count.")
    if follow_up is not None and (count or query.page is not None):
        raise click.UsageError("--follow-up is about all matches: give neither --count nor --page.")
    if follow_up is not None and query.is_empty:
        raise click.UsageError("--follow-up needs a condition, or it would be about everything.")
    with quiet_pipe(), PendingReader(directory) as reader:
        if follow_up is not None:
            return BulkCancel(address, timeout, yes, as_json).run(reader, query)
        if count:
            pending = reader.count(query, by_slot=by == _SLOT, by_topic=by == _TOPIC)
            return _print_count(pending, by, as_json)
        if query.ids and query.names_ids_alone:
            return _print_fates(find(reader, query.ids), as_json)
        page = reader.page(query, query.page and query.page.row, limit=query.limit)
        return _print_page(page, as_json)


def _print_count(pending: PendingCount, by: str | None, as_json: bool) -> int:
    if as_json:
        fields: Fields = {"pending": pending.total}
        if by == _SLOT:
            fields["slots"] = {
                stem_of(slot_with(seconds.start, len(seconds))): count
                for seconds, count in pending.by_slot.items()
            }
        if by == _TOPIC:
            fields["topics"] = pending.by_topic
        print_json({**fields, **_coverage(pending)})
        return Exit.DONE if pending.complete else Exit.FAILED
    if by == _SLOT:
        lines = [
            (time_text(seconds.start * 1000), span_text(len(seconds) * 1000), f"{count:,}")
            for seconds, count in pending.by_slot.items()
        ]
        print_table(lines, "llr", ("due from", "within", "messages"))
    if by == _TOPIC:
        rows = [(topic, f"{count:,}") for topic, count in pending.by_topic.items()]
        print_table(rows, "lr", ("topic", "messages"))
    echo(f"{counted(pending.total, 'message')} pending")
    return _print_coverage(pending)


def _print_page(page: PendingPage, as_json: bool) -> int:
    listed = Listing(as_json)
    columns = (page.ids, times(page.rows, "due").tolist(), times(page.rows, "created").tolist())
    topics = page.rows.column("topic").to_pylist()
    for id_, due, created, topic, message in zip(
        *columns, topics, message_fields(page.rows), strict=True
    ):
        listed.line({"id": id_, "due_ms": due, "created_ms": created, "topic": topic, **message})
    following = None if page.next is None else str(PageKey(*page.next))
    if as_json:
        print_json({"page": {"messages": len(page.ids), "next": following, **_coverage(page)}})
        return Exit.DONE if page.complete else Exit.FAILED
    hint = "" if following is None else f"; the next page: --page {following}"
    echo(f"{counted(len(page.ids), 'message')}{hint}", err=True)
    return _print_coverage(page)


def _print_fates(fates: list[MessageFate], as_json: bool) -> int:
    for fate in fates:
        message: Fields = {}
        if fate.row is not None:
            [message] = message_fields(fate.row)
        if as_json:
            print_json(
                {
                    "id": fate.id,
                    "state": fate.state.value,
                    "why": fate.why,
                    "due_ms": fate.due_ms,
                    "created_ms": fate.created_ms,
                    "left_ms": fate.left_ms,
                    "topic": fate.topic,
                    "before": fate.before and asdict(fate.before),
                    "replaced_by": fate.replaced_by,
                    **message,
                }
            )
        else:
            accepted, left = (
                "-" if ms is None else time_text(ms) for ms in (fate.created_ms, fate.left_ms)
            )
            echo(f"{fate.id}\t{fate.state}\t{fate.why}\t{accepted}\t{left}")
    unknown = any(fate.state is MessageState.UNKNOWN for fate in fates)
    return Exit.FAILED if unknown else Exit.DONE


def _coverage(answer: PendingCount | PendingPage) -> dict[str, Any]:
    return {
        "complete": answer.complete,
        "looked_through": answer.looked_through,
        "read_point": asdict(answer.point),
        "problems": [str(problem) for problem in answer.problems],
    }


def _print_coverage(answer: PendingCount | PendingPage) -> int:
    """Print how far the answer goes: rows, log, delivery and problems. Returns the exit code."""
    point = answer.point
    mark = time_text(point.mark_ms) if point.mark_ms >= 0 else "none yet"
    echo(
        f"looked through {counted(answer.looked_through, 'row')}; seen is the log up to offset"
        f" {point.next_offset - 1}, delivery up to {mark}",
        err=True,
    )
    for problem in answer.problems:
        echo(f"problem: {problem}", err=True)
    if not answer.complete:
        echo("not complete: rows may be missing", err=True)
    return Exit.DONE if answer.complete else Exit.FAILED
