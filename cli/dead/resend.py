"""The course of a redrive: count, ask, begin, send, report.

Nothing is sent before the user has seen how much it is and confirmed. What was counted is kept in a
spool, so it is what is sent, less what another redrive has sent meanwhile. Whatever stops the
command, it is run again to go on: nothing has to be remembered but what the notes say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

import click
import pyarrow as pa
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from ...client import Client
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError
from ...wheel.texts import counted
from ..kafkatopic import NewTopic, no_such_topic
from ..progress import progress_bar
from ..resending import Resending, confirmed, interruptible
from ..shared import Exit, print_json
from .again import AGAIN, as_messages
from .letters import sendable
from .notes import Redriven, notes_topic
from .redrive import Sending, begin
from .source import LetterSource, Topic, create
from .spool import Spool

_TOPICS_SHOWN = 10
_DELETED = "Kafka has deleted the oldest notes: letters that they name would be sent again"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for, by the options' names."""

    to_topic: str | None
    rate: float | None
    dry_run: bool
    yes: bool
    create_topics: bool
    despite_deleted_notes: bool
    address: str
    timeout: timedelta
    as_json: bool

    def check(self, topic: str) -> None:
        """``topic``: of the dead letters. Errors: ``InvalidMessage``."""
        if self.to_topic is not None:
            check_topic(self.to_topic)
        if self.to_topic in (topic, notes_topic(topic)):
            raise InvalidMessage(
                "letters cannot be redriven to where they lie",
                got=f"--to-topic {self.to_topic}",
                remedy="Name another topic, or none: then they go where they were meant to",
            )


@dataclass(slots=True)
class _Counts:
    """What became of the letters that were asked for. ``topics``: how many go to which."""

    topics: Counter[str] = field(default_factory=Counter)
    before: int = 0
    """Redriven before."""
    not_sendable: int = 0

    @property
    def letters(self) -> int:
        """How many are to be sent."""
        return self.topics.total()


def redrive(
    asked: Asked,
    source: LetterSource,
    topic: str,
    opened: Topic,
    redriven: Redriven,
    letters: Iterable[pa.RecordBatch],
) -> int:
    """Redrive ``letters`` of ``topic``. Returns the exit code. Errors: those of the node, of Kafka
    and of the disk."""
    notes = notes_topic(topic)
    no_notes = source.is_kafka and notes not in opened.topics
    if no_notes and not (asked.dry_run or asked.create_topics):
        error = no_such_topic(notes, opened.topics)
        error.remedy = f"What was redriven is noted there: give --create-topics. {error.remedy}"
        raise error
    with Spool(AGAIN) as spool:
        counts = _count(asked, letters, redriven, spool)
        _show(asked, counts, redriven)
        if asked.dry_run or not counts.letters:
            _finish(asked, counts, redriven, None)
            return Exit.DONE
        _check_notes(asked, redriven)
        _check_topics(source, opened, counts)
        if not asked.yes and not confirmed():
            click.echo("Nothing was sent.", err=True)
            return Exit.FAILED
        with closing(Client(asked.address, timeout_s=asked.timeout.total_seconds())) as client:
            _check_node(asked, source, client, counts)
        if no_notes:
            create(opened, NewTopic(notes, 1, {"retention.ms": "-1", "cleanup.policy": "delete"}))
        with interruptible():
            return _send(asked, source, topic, redriven, counts, spool)


def _count(
    asked: Asked, letters: Iterable[pa.RecordBatch], redriven: Redriven, spool: Spool
) -> _Counts:
    counts = _Counts()
    for batch in letters:
        again = redriven.has(batch)
        can = sendable(batch, asked.to_topic)
        counts.before += int(again.sum())
        counts.not_sendable += int((~again & ~can).sum())
        wanted = pa.array(~again & can)
        if wanted.true_count:
            rows = as_messages(batch.filter(wanted), asked.to_topic)
            for one in rows.column("topic").value_counts().to_pylist():
                counts.topics[one["values"]] += one["counts"]
            spool.add(rows)
    return counts


def _show(asked: Asked, counts: _Counts, redriven: Redriven) -> None:
    def note(text: str) -> None:
        click.echo(text, err=True)

    note(f"{counted(counts.letters, 'letter')} to be sent again")
    for name, number in counts.topics.most_common(_TOPICS_SHOWN):
        note(f"  {number:,} to {name}")
    if len(counts.topics) > _TOPICS_SHOWN:
        note(f"  the others to {len(counts.topics) - _TOPICS_SHOWN:,} more topics")
    if counts.letters:
        when = "at once" if asked.rate is None else f"{asked.rate:g} in a second"
        note(f"  through {asked.address}, due {when}")
    if counts.before:
        note(f"  left out: {counts.before:,} that were redriven before")
    if counts.not_sendable:
        note(
            f"  left out: {counts.not_sendable:,} that do not say where they were meant to go"
            " as a topic's name (--to-topic sends them), or of which a part is missing"
        )
    if redriven.some_deleted:
        note(f"  {_DELETED}")
    if redriven.others:
        note(f"  {redriven.others:,} records among the notes are none of ours")


def _check_notes(asked: Asked, redriven: Redriven) -> None:
    """Errors: ``InvalidConfiguration`` if notes are missing, and nobody said that it may be so."""
    if redriven.some_deleted and not asked.despite_deleted_notes:
        raise InvalidConfiguration(
            _DELETED,
            remedy="Set retention.ms=-1 for their topic. To send nevertheless, with --from or other"
            " filters for letters that were never sent: --despite-deleted-notes",
        )


def _check_topics(source: LetterSource, opened: Topic, counts: _Counts) -> None:
    """Errors: ``InvalidMessage`` for a topic that cannot be sent to."""
    for name in sorted(counts.topics):
        if source.is_kafka and name not in opened.topics:
            error = no_such_topic(name, opened.topics)
            error.remedy = "Create it, or send these letters elsewhere: --for-topic and --to-topic"
            raise error


def _check_node(asked: Asked, source: LetterSource, client: Client, counts: _Counts) -> None:
    """Errors: ``NodeUnreachable``; what the node cannot do."""
    status = client.status()
    if "replication" in status and not source.is_kafka:
        raise InvalidConfiguration(
            "each peer has embedded topics of its own, so none has all notes",
            got="--data, and a node with peers",
            remedy="Export the letters, and send them as new messages",
        )
    horizon_ms = int(status["horizon_ms"])
    if asked.rate is not None and counts.letters / asked.rate * 1000 > horizon_ms:
        raise InvalidMessage(
            "the last letter would be due beyond the horizon",
            got=f"{counts.letters:,} letters, {asked.rate:g} in a second",
            limit=f"{horizon_ms / 1000:,.0f} s",
            remedy="Give a higher --rate, or redrive a part of them",
        )


def _send(
    asked: Asked,
    source: LetterSource,
    topic: str,
    redriven: Redriven,
    counts: _Counts,
    spool: Spool,
) -> int:
    columns = (MofNCompleteColumn(), TimeElapsedColumn())
    try:
        turn = begin(source, topic, asked.address, asked.timeout.total_seconds(), redriven)
    except BaseException:
        _finish(asked, counts, redriven, None)
        raise

    def report(number: int, error: SlotwheelError) -> None:
        partition, position = sending.place(number)
        place = f"{partition}/{position}"
        if asked.as_json:
            click.echo(json.dumps({"letter": place, "error": error.to_wire()}), err=True)
        else:
            click.echo(f"error: letter {place}: {error}", err=True)

    resending = Resending(0, report)
    sending = Sending(turn, resending, asked.rate)
    try:
        with progress_bar("sending", counts.letters, *columns) as step, turn.client:
            _check_notes(asked, turn.redriven)
            for batch in spool.batches():
                step(sending.send(batch))
            for done in sending.finish():
                step(done)
    finally:
        resending.settle_rest()
        _finish(asked, counts, turn.redriven, sending)
    return Exit.FAILED if resending.refused else Exit.DONE


def _finish(asked: Asked, counts: _Counts, redriven: Redriven, sending: Sending | None) -> None:
    """Report what was done. ``sending``: None if it did not come to that."""
    if asked.as_json:
        _print_json(counts, redriven, sending)
        return
    if sending is None:
        click.echo("redrove no letter")
        return
    state = sending.resending
    refused = f", {state.refused:,} refused" if state.refused else ""
    click.echo(f"redrove {counted(state.sent, 'letter')}{refused}")
    if sending.meanwhile:
        click.echo(f"{sending.meanwhile:,} were redriven by another command meanwhile")
    if _left(counts, sending):
        doubt = f"; of {state.under_way:,} it is not known yet" if state.under_way else ""
        click.echo(f"not complete: run it again to go on{doubt}")


def _left(counts: _Counts, sending: Sending | None) -> int:
    """How many letters were to be sent and are neither stored nor refused, as far as is known."""
    done = 0 if sending is None else sending.resending.done + sending.meanwhile
    return counts.letters - done


def _print_json(counts: _Counts, redriven: Redriven, sending: Sending | None) -> None:
    state = None if sending is None else sending.resending
    print_json(
        {
            "letters": counts.letters,
            "topics": dict(counts.topics.most_common()),
            "redriven_before": counts.before,
            "not_sendable": counts.not_sendable,
            "sent": 0 if state is None else state.sent,
            "refused": 0 if state is None else state.refused,
            "perhaps_sent": 0 if state is None else state.under_way,
            "redriven_meanwhile": 0 if sending is None else sending.meanwhile,
            "notes_deleted": redriven.some_deleted,
            "complete": not (_left(counts, sending) or (state and state.refused)),
        }
    )
