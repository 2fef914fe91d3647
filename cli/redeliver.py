"""``slotwheel replay --redeliver``: send messages that are in journals and archive once more.

Theory: nothing is sent before the user has seen how much it is and confirmed. Then messages are
sent through a node, due at once, so they are kept, retried and proven like any others. Receipts are
handled in order; so whatever stops it, the command ends with the ``--skip`` to go on with.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..client import Client
from ..client.resending import Resending
from ..wheel.checks import check_topic
from ..wheel.delay import as_due
from ..wheel.errors import InvalidMessage
from ..wheel.texts import counted, time_text
from .invocation import Exit
from .progress import progress_bar
from .receipts import print_refused
from .resending import confirmed, interruptible
from .shared import F, check_range, epoch_ms, is_typed, node_options, print_json
from .terminal import echo

if TYPE_CHECKING:
    from ..replay.redeliver import Redelivery, RedeliveryCounts, Selection

_OURS = {"redeliver", "to_topic", "yes", "skip", "address", "timeout"}
_SHARED = {"directories", "topics", "start", "end", "as_json"}


@dataclass(frozen=True, slots=True)
class RedeliverOptions:
    """The options, by click's names."""

    directories: tuple[str, ...]
    topics: tuple[str, ...]
    start: datetime
    end: datetime
    as_json: bool
    to_topic: str
    address: str
    timeout: timedelta
    yes: bool
    skip: int

    @property
    def topic(self) -> str:
        return self.topics[0]

    def check(self) -> None:
        """Errors: ``click.UsageError``, ``InvalidMessage``."""
        if len(self.topics) != 1 or None in (self.to_topic, self.start, self.end):
            raise click.UsageError("--redeliver needs one --topic, --from, --to and --to-topic.")
        check_range(self.start, self.end)
        if self.end.timestamp() > time.time():
            raise click.UsageError("--to is in the future: what is not due yet comes by itself.")
        for topic in (self.topic, self.to_topic):
            check_topic(topic)


def redeliver_options(function: F) -> F:
    """Give ``slotwheel replay`` the options of a re-delivery, and let it do one on request."""

    @functools.wraps(function)
    def command(**values: Any) -> int:
        ours = {name: values.pop(name) for name in _OURS}
        if not ours.pop("redeliver"):
            _refuse(_OURS, "belongs to --redeliver")
            code: int = function(**values)
            return code
        _refuse(values.keys() - _SHARED, "does not go with --redeliver")
        asked = RedeliverOptions(**{name: values[name] for name in _SHARED}, **ours)
        asked.check()
        return redeliver(asked)

    options = (
        click.option(
            "--redeliver", is_flag=True, help="Send the messages of --topic again, prove nothing."
        ),
        click.option("--to-topic", metavar="TOPIC", help="With --redeliver: where they go."),
        click.option("--yes", is_flag=True, help="With --redeliver: send them without asking."),
        click.option(
            "--skip",
            type=click.IntRange(min=0),
            default=0,
            help="With --redeliver: leave the first N out, to go on where it was interrupted.",
        ),
        node_options,
    )
    made: Any = command
    for option in reversed(options):
        made = option(made)
    return made  # type: ignore[no-any-return]


def _refuse(names: Set[str], why: str) -> None:
    """Refuse options. Errors: ``click.UsageError`` for one of these that was given."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in names and is_typed(parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} {why}.")


def redeliver(asked: RedeliverOptions) -> int:
    """Count, ask, send. Returns the exit code. Errors: those of the node or the disk."""
    from ..reading.layout import FileFilter, find
    from ..replay.redeliver import Redelivery, Selection

    layout = find(asked.directories, wanted=FileFilter(slots=False, topics=False))
    selection = Selection(asked.topic, epoch_ms(asked.start), epoch_ms(asked.end))
    redelivery = Redelivery(layout, selection)
    with progress_bar("reading", redelivery.nbytes, "size", "elapsed") as step:
        tally = redelivery.tally(step)
    _show(asked, tally)
    if not tally.messages:
        raise _nothing(selection, tally)
    if asked.skip >= tally.messages:
        echo("There are no more: nothing is sent.", err=True)
        _finish(asked, tally, _resending(asked))
        return Exit.DONE
    if not asked.yes and not confirmed():
        echo("Nothing was sent.", err=True)
        return Exit.FAILED
    sending = _resending(asked)
    with interruptible():
        try:
            _send(asked, tally, redelivery, sending)
        finally:
            sending.settle_rest()
            _finish(asked, tally, sending)
    return Exit.FAILED if sending.refused else Exit.DONE


def _resending(asked: RedeliverOptions) -> Resending:
    return Resending(
        asked.skip, lambda number, error: print_refused(number + 1, error, asked.as_json)
    )


def _show(asked: RedeliverOptions, tally: RedeliveryCounts) -> None:
    def note(text: str) -> None:
        echo(text, err=True)

    note(f"{counted(tally.messages, 'message')} for {asked.topic}, {tally.nbytes:,} bytes")
    if tally.messages:
        first, last = time_text(tally.first_due_ms), time_text(tally.last_due_ms)
        note(f"  first due {first}, last due {last}")
        note(f"  to {asked.to_topic} through {asked.address}, due at once")
    if asked.skip:
        note(f"  without the first {asked.skip:,}")
    if tally.cancelled:
        note(f"  left out: {tally.cancelled:,} cancelled")
    if tally.in_doubt:
        note(f"  left out: {tally.in_doubt:,} of which no peer says that they were committed")
    if tally.missing:
        note(
            f"  not sent: those among {tally.missing:,} messages of any topic whose journal is gone"
        )
    if tally.damaged:
        note(f"  {tally.damaged:,} places cannot be read, what stood there is not sent:")
        for text in tally.damage:
            note(f"    {text}")


def _nothing(selection: Selection, tally: RedeliveryCounts) -> InvalidMessage:
    there = ", ".join(sorted(tally.topics)[:10]) or "none"
    return InvalidMessage(
        "there is nothing to send again",
        got=f"no message for {selection.topic} that was due in that time",
        remedy=f"Topics with messages due then: {there}",
    )


def _send(
    asked: RedeliverOptions, tally: RedeliveryCounts, redelivery: Redelivery, sending: Resending
) -> None:
    total = tally.messages - asked.skip
    with (
        progress_bar("sending", total, "count", "elapsed") as step,
        Client(asked.address, timeout_s=asked.timeout.total_seconds()) as client,
    ):
        for batch in redelivery.batches(asked.to_topic, at_once, asked.skip):
            step(sending.put(client.send_table(batch)))
        while sending.waiting:
            sending.settle()


def at_once() -> int:
    """Due when the node takes it, by its clock."""
    return as_due(0)


def _finish(asked: RedeliverOptions, tally: RedeliveryCounts, sending: Resending) -> None:
    """Report what was done, and how to do the rest."""
    complete = sending.done >= tally.messages
    if asked.as_json:
        print_json(
            {
                "messages": tally.messages,
                "bytes": tally.nbytes,
                "first_due_ms": tally.first_due_ms,
                "last_due_ms": tally.last_due_ms,
                "cancelled": tally.cancelled,
                "in_doubt": tally.in_doubt,
                "damaged": tally.damaged,
                "missing": tally.missing,
                "skipped": asked.skip,
                "sent": sending.sent,
                "refused": sending.refused,
                "perhaps_sent": sending.under_way,
                "complete": complete,
                "next_skip": None if complete else sending.done,
            }
        )
        return
    refused = f", {sending.refused:,} refused" if sending.refused else ""
    echo(f"sent {counted(sending.sent, 'message')} to {asked.to_topic}{refused}")
    if not complete:
        twice = f"; up to {sending.under_way:,} may come twice" if sending.under_way else ""
        echo(f"not complete: to go on, give --skip {sending.done}{twice}")
