"""The commands of ``slotwheel dead``.

Each reads the topic up to the end that it had when the command began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from ...client.addresses import Nodes
from ...policy.deadletters import DEAD_LETTER_TOPIC, notes_topic
from ...reading.directory import reading
from ...reading.letters.course import RedriveCourse, RedriveOrder
from ...reading.letters.letters import LETTER, LetterPlace, LetterQuery, letters_of, place_of
from ...reading.letters.looking import LetterCounts, count_letters, letter_at, letter_fields
from ...reading.letters.notes import Redriven
from ...reading.letters.redrive import redriven_before
from ...reading.letters.source import LetterSource, Topic, purge
from ...reading.messagefields import Fields
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidMessage
from ...wheel.texts import counted, time_text
from ..consume import arrow_file, one_source
from ..invocation import Exit
from ..printing import Listing, header_text, print_table, quiet_pipe
from ..progress import progress_bar
from ..questions import question_of, question_options
from ..reaching import node_options
from ..resending import confirmed
from ..shared import combined, is_typed, json_option, kafka_option, print_json
from ..terminal import echo
from .purge import purge_embedded
from .resend import redrive

_COLUMNS = ("reason", "topic", "letters", "redriven")
_KEPT = (
    "Letters that Kafka does not take are kept in the data directory of the node: give --data, too"
)


@click.group("dead")
def command() -> None:
    """Look at dead letters, and send them where they were meant to go."""


_source_options = combined(
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Read the embedded topic in this data directory of a node.",
    ),
    click.option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="Read the topic of this Kafka; with --data, letters that a node with this sink keeps"
        " in its directory.",
    ),
    kafka_option,
    question_options(LetterPlace, topic=DEAD_LETTER_TOPIC),
)


@dataclass(frozen=True, slots=True)
class _Letters:
    """The letters of a topic that fulfil a query."""

    source: LetterSource
    topic: str
    query: LetterQuery

    def opened(self, stack: ExitStack) -> Topic:
        """Open the topic. Errors: as of ``LetterSource.opened``."""
        try:
            return stack.enter_context(self.source.opened(self.topic))
        except InvalidMessage as error:
            if not self.source.is_kafka:
                raise
            remedy = f"{error.remedy}. {_KEPT}"
            raise InvalidMessage(error.message, got=error.got, remedy=remedy) from None

    def read(self, opened: Topic) -> Iterator[pa.RecordBatch]:
        """Batches of the schema ``LETTER``, with a progress bar."""
        total = opened.total() or None
        with progress_bar(f"reading {self.topic}", total, "count", "elapsed") as advance:
            for records in opened.batches():
                matches = self.query.of(letters_of(records))
                if matches.num_rows:
                    yield matches
                advance(records.num_rows)

    def redriven(self, opened: Topic, *, whole: bool = False) -> Redriven:
        return redriven_before(self.source, self.topic, opened, whole=whole)


def _letters(
    stack: ExitStack,
    query: LetterQuery,
    data: Path | None,
    bootstrap: str | None,
    kafka_settings: dict[str, str],
    **_: Any,
) -> _Letters:
    """Errors: ``click.UsageError``; ``InvalidMessage``: no topic has such a name."""
    topic = query.topic or DEAD_LETTER_TOPIC
    check_topic(notes_topic(topic))
    return _Letters(_open_source(stack, data, bootstrap, kafka_settings), topic, query)


def _open_source(
    stack: ExitStack,
    data: Path | None,
    bootstrap: str | None,
    settings: dict[str, str],
) -> LetterSource:
    """Errors: ``click.UsageError``: neither is given."""
    if not (is_typed("data") and is_typed("bootstrap")):
        data, bootstrap = one_source(data, bootstrap)
    if bootstrap is None and is_typed("kafka_settings"):
        raise click.UsageError("--kafka needs --bootstrap.")
    files = None if data is None else stack.enter_context(reading(data))
    return LetterSource(files, bootstrap or "", settings, _report_damage)


def _report_damage(text: str) -> None:
    echo(f"damaged: {text}", err=True)


@command.command("list", short_help="Count the letters by reason and topic.")
@_source_options
@question_options(LetterQuery)
@json_option
def list_command(as_json: bool, **options: Any) -> None:
    """Count the dead letters by reason and by the topic they were meant for, and how many of them
    were redriven already."""
    counts: LetterCounts = Counter()
    with quiet_pipe(), ExitStack() as stack:
        letters = _letters(stack, question_of(LetterQuery, options), **options)
        opened = letters.opened(stack)
        redriven = letters.redriven(opened)
        for batch in letters.read(opened):
            counts.update(count_letters(batch, redriven.has(batch)))
        kinds = {(reason, topic) for reason, topic, _ in counts}
        rows = []
        for reason, topic in sorted(kinds, key=lambda kind: (kind[0], kind[1] or "")):
            sent = counts[reason, topic, True]
            rows.append((reason, topic, sent + counts[reason, topic, False], sent))
        if letters.source.is_kafka and not rows:
            echo(_KEPT, err=True)
        if as_json:
            for row in rows:
                print_json(dict(zip(_COLUMNS, row, strict=True)))
            return
        texts = [(reason, topic or "", f"{n:,}", f"{sent:,}") for reason, topic, n, sent in rows]
        print_table(texts, "llrr", _COLUMNS)
        total, sent = (sum(row[2] for row in rows), sum(row[3] for row in rows))
        echo(f"{counted(total, 'letter')}, {sent:,} redriven")


@command.command("show", short_help="Print one letter whole.")
@click.argument("letter")
@_source_options
@json_option
def show_command(letter: str, as_json: bool, **options: Any) -> None:
    """Print the dead letter that LETTER names: PARTITION/POSITION (of an embedded topic 0/POSITION,
    of one that a node before a Kafka keeps own/POSITION) or the id of its message. All letters with
    that id are printed."""
    place = place_of(letter)
    options |= {} if place else {"id": (letter,)}
    listed, count = Listing(as_json), 0
    with quiet_pipe(), ExitStack() as stack:
        letters = _letters(stack, question_of(LetterQuery, options), **options)
        opened = letters.opened(stack)
        redriven = letters.redriven(opened)
        if place is not None:
            opened.narrow(*place)
        for matches in letters.read(opened):
            batch = matches if place is None else letter_at(matches, *place)
            redrives = redriven.has(batch).tolist()
            for fields, sent in zip(letter_fields(batch), redrives, strict=True):
                count += 1
                if as_json:
                    listed.line({**fields, "redriven": sent})
                else:
                    _print_whole({"redriven": "yes" if sent else "no", **fields})
            if place is not None and count:
                break
    if not count:
        raise InvalidMessage(
            "no such dead letter",
            got=repr(letter[:300]),
            limit="PARTITION/POSITION, or the id of a message",
            remedy="'slotwheel dead export' prints the letters with their places and ids",
        )


def _print_whole(fields: Fields) -> None:
    """Print a letter for people, a line for each of its fields and headers."""
    for name, value in fields.items():
        if name == "headers":
            for header in value:
                echo(f"header {header['key']}: {header_text(header)}")
        elif name == "buried_ms":
            echo(f"buried: {'unknown' if value is None else time_text(value)}")
        elif value is not None:
            echo(f"{name}: {value}")


@command.command("redrive", short_help="Send letters where they were meant to go, each once.")
@_source_options
@question_options(LetterQuery)
@question_options(RedriveOrder, "to_topic", "rate")
@click.option("--dry-run", is_flag=True, help="Count, and send nothing.")
@click.option("--yes", is_flag=True, help="Send them without asking.")
@question_options(RedriveOrder, "create_topics", "despite_deleted_notes")
@node_options
@json_option
def redrive_command(
    dry_run: bool, yes: bool, address: Nodes, timeout: timedelta, as_json: bool, **options: Any
) -> int:
    """Send dead letters again, through a node, to the topics they were meant for. Each letter is
    sent once, however often this is run and by whatever filters: what was sent stands in the topic
    TOPIC-redriven."""
    order = question_of(RedriveOrder, options)
    with ExitStack() as stack:
        letters = _letters(stack, order, **options)
        order.check_target(letters.topic)
        opened = letters.opened(stack)
        course = RedriveCourse(
            order,
            letters.source,
            letters.topic,
            opened,
            letters.redriven(opened, whole=True),
            address=address,
            timeout_s=timeout.total_seconds(),
            dry_run=dry_run,
        )
        stack.enter_context(course).count(letters.read(opened))
        return redrive(course, dry_run, yes, as_json)


@command.command("purge", short_help="Delete all letters that lie there now.")
@_source_options
@click.option("--yes", is_flag=True, help="Delete them without asking.")
def purge_command(yes: bool, **options: Any) -> int:
    """Delete the letters that lie in the topic now. The topic in Kafka stays, and with it what
    exactly-once delivery has stored there; to delete the topic itself would stop delivery. Of a
    data directory the embedded topic is deleted; no node may run on it."""
    with ExitStack() as stack:
        letters = _letters(stack, question_of(LetterQuery, options), **options)
        opened = letters.opened(stack)
        count = sum(batch.num_rows for batch in letters.read(opened))
        echo(f"{counted(count, 'letter')} to be deleted from {letters.topic}", err=True)
        if not confirmed("delete", yes=yes):
            return Exit.FAILED
        embedded = letters.source.files is not None
        if not embedded:
            purge(opened)
    if embedded and purge_embedded(options["data"], letters.topic):
        echo(
            "deleted all but the newest letters: exactly-once delivery reads them when the node"
            " starts. Start and stop it, and run this again"
        )
        return Exit.FAILED
    echo(f"deleted {counted(count, 'letter')}")
    return Exit.DONE


@command.command("export", short_help="Write letters to a file, or print them as JSON.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@_source_options
@question_options(LetterQuery)
def export_command(file: Path | None, **options: Any) -> None:
    """Write dead letters to FILE as an Arrow IPC stream. Without FILE, print them as JSON, one
    object a line. The topic stays as it is."""
    with quiet_pipe(), ExitStack() as stack:
        letters = _letters(stack, question_of(LetterQuery, options), **options)
        opened = letters.opened(stack)
        if file is not None:
            write = stack.enter_context(arrow_file(file, LETTER, keep=False))
            for batch in letters.read(opened):
                write(batch)
            return
        listed = Listing(as_json=True)
        for batch in letters.read(opened):
            for fields in letter_fields(batch):
                listed.line(fields)
