"""``slotwheel replay --redeliver``: send messages that are in journals and archive once more.

Theory: nothing is sent before the user has seen the number of messages and confirmed it, or given
``--yes``. They are sent through a node, due at once, so they are kept, retried and proven like any
others. Receipts are handled in order; so whatever stops it, the command ends with the ``--skip`` to
go on with: if the node dies when 3,000 of 5,000 are stored, ``--skip 3000`` sends the rest. What
was under way may come twice, and the command says how many.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click

from ..client import Client
from ..client.addresses import Nodes
from ..client.resending import Resending
from ..wheel.checks import check_topic
from ..wheel.delay import as_due
from ..wheel.errors import InvalidMessage
from ..wheel.texts import counted, time_text
from .invocation import Exit
from .progress import progress_bar
from .reaching import node_options
from .receipts import print_refused
from .resending import confirmed, interruptible
from .shared import F, check_range, combined, epoch_ms, is_typed, print_json
from .terminal import echo

if TYPE_CHECKING:
    from ..replay.redeliver import Redelivery, RedeliveryCounts, Selection

_OWN = {"redeliver", "to_topic", "yes", "skip", "address", "timeout"}
_OF_ADDRESS = {"tls_ca", "tls_cert", "tls_key"}
"""Options of which ``node_options`` makes a part of ``address``."""
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
    address: Nodes
    timeout: timedelta
    yes: bool
    skip: int

    @property
    def topic(self) -> str:
        return self.topics[0]

    def check(self) -> None:
        """Errors: ``click.UsageError``: an option is missing, or ``--to`` is in the future;
        ``InvalidMessage``: no topic has such a name."""
        if len(self.topics) != 1 or None in (self.to_topic, self.start, self.end):
            raise click.UsageError("--redeliver needs one --topic, --from, --to and --to-topic.")
        check_range(self.start, self.end)
        if self.end.timestamp() > time.time():
            raise click.UsageError("--to is in the future: what is not due yet comes by itself.")
        for topic in (self.topic, self.to_topic):
            check_topic(topic)


def redeliver_options(function: F) -> F:
    """Add the options of a re-delivery to ``slotwheel replay``, which does one on request."""

    @functools.wraps(function)
    def command(**values: Any) -> int:
        own = {name: values.pop(name) for name in _OWN}
        if not own.pop("redeliver"):
            _refuse(_OWN | _OF_ADDRESS, "belongs to --redeliver")
            code: int = function(**values)
            return code
        _refuse(values.keys() - _SHARED, "does not go with --redeliver")
        request = RedeliverOptions(**{name: values[name] for name in _SHARED}, **own)
        request.check()
        return redeliver(request)

    options = combined(
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
    return options(cast("F", command))


def _refuse(names: Set[str], why: str) -> None:
    """Errors: ``click.UsageError``: the command line has one of these parameters."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in names and is_typed(parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} {why}.")


def redeliver(options: RedeliverOptions) -> int:
    """Count, ask, send. Returns the exit code. Errors: those of the node or the disk."""
    from ..reading.layout import FileFilter, find
    from ..replay.redeliver import Redelivery, Selection

    layout = find(options.directories, wanted=FileFilter(slots=False, topics=False))
    selection = Selection(options.topic, epoch_ms(options.start), epoch_ms(options.end))
    redelivery = Redelivery(layout, selection)
    with progress_bar("reading", redelivery.nbytes, "size", "elapsed") as step:
        tally = redelivery.tally(step)
    _show(options, tally)
    if not tally.messages:
        raise _no_messages(selection, tally)
    if options.skip >= tally.messages:
        echo("There are no more: nothing is sent.", err=True)
        _finish(options, tally, _resending(options))
        return Exit.DONE
    if not confirmed("send", yes=options.yes):
        return Exit.FAILED
    sending = _resending(options)
    with interruptible():
        try:
            _send(options, tally, redelivery, sending)
        finally:
            sending.settle_rest()
            _finish(options, tally, sending)
    return Exit.FAILED if sending.refused else Exit.DONE


def _resending(options: RedeliverOptions) -> Resending:
    return Resending(
        options.skip, lambda number, error: print_refused(number + 1, error, options.as_json)
    )


def _show(options: RedeliverOptions, tally: RedeliveryCounts) -> None:
    def note(text: str) -> None:
        echo(text, err=True)

    note(f"{counted(tally.messages, 'message')} for {options.topic}, {tally.nbytes:,} bytes")
    if tally.messages:
        first, last = time_text(tally.first_due_ms), time_text(tally.last_due_ms)
        note(f"  first due {first}, last due {last}")
        note(f"  to {options.to_topic} through {options.address}, due at once")
    if options.skip:
        note(f"  without the first {options.skip:,}")
    if tally.cancelled:
        note(f"  left out: {tally.cancelled:,} cancelled")
    if tally.in_doubt:
        note(f"  left out: {tally.in_doubt:,} of which no peer says that they were committed")
    if tally.missing:
        note(f"  not sent: up to {tally.missing:,} messages, of any topic, whose journal is gone")
    if tally.damaged:
        note(f"  {tally.damaged:,} places cannot be read, what stood there is not sent:")
        for text in tally.damage:
            note(f"    {text}")


def _no_messages(selection: Selection, tally: RedeliveryCounts) -> InvalidMessage:
    topics = ", ".join(sorted(tally.topics)[:10]) or "none"
    return InvalidMessage(
        "there is nothing to send again",
        got=f"no message for {selection.topic} that was due in that time",
        remedy=f"Topics with messages due then: {topics}",
    )


def _send(
    options: RedeliverOptions, tally: RedeliveryCounts, redelivery: Redelivery, sending: Resending
) -> None:
    total = tally.messages - options.skip
    with (
        progress_bar("sending", total, "count", "elapsed") as step,
        Client(options.address, timeout_s=options.timeout.total_seconds()) as client,
    ):
        for batch in redelivery.batches(options.to_topic, at_once, options.skip):
            step(sending.put(client.send_table(batch)))
        while sending.waiting:
            sending.settle()


def at_once() -> int:
    """The due time of a message that is due when the node accepts it."""
    return as_due(0)


def _finish(options: RedeliverOptions, tally: RedeliveryCounts, sending: Resending) -> None:
    complete = sending.done >= tally.messages
    if options.as_json:
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
                "skipped": options.skip,
                "sent": sending.sent,
                "refused": sending.refused,
                "perhaps_sent": sending.under_way,
                "complete": complete,
                "next_skip": None if complete else sending.done,
            }
        )
        return
    refused = f", {sending.refused:,} refused" if sending.refused else ""
    echo(f"sent {counted(sending.sent, 'message')} to {options.to_topic}{refused}")
    if not complete:
        twice = f"; up to {sending.under_way:,} may come twice" if sending.under_way else ""
        echo(f"not complete: to go on, give --skip {sending.done}{twice}")
