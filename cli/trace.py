"""``slotwheel trace``: what happened to messages, by the events of clients and consumers and by a
node's files.

It needs no node and no gateway: it reads the files that these write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..client.message import clock_ms
from ..policy.parameters import Question, parameters_of
from ..reading.messagefields import Fields
from ..reading.problems import Problem
from ..trace.chains.anomalies import NO_GROUP, AnomalyKind
from ..trace.chains.chain import Chain, ChainState, ChainStep
from ..trace.chains.fields import (
    anomaly_fields,
    chain_fields,
    event_fields,
    latency_fields,
    place_of,
)
from ..trace.chains.lookup import (
    STORE_DIRECTORY,
    AnomaliesFound,
    AnomalyQuery,
    EventsQuery,
    LatencyFound,
    LatencyQuery,
    TraceLookup,
)
from ..trace.store import TracePage, TraceQuery
from ..wheel.texts import counted, time_text, visible_text
from .invocation import Exit
from .printing import Listing, print_table, quiet_pipe
from .questions import question_of, question_options
from .shared import json_option, print_json
from .terminal import echo

_LATENCY, _ANOMALIES = "latency", "anomalies"
_ALWAYS = {"ids", "data", "store", "show", "as_json"}
_USED: dict[str, tuple[type[Question], ...]] = {
    "an id": (),
    f"--show {_LATENCY}": (LatencyQuery,),
    f"--show {_ANOMALIES}": (AnomalyQuery,),
    "neither an id nor --show": (EventsQuery,),
}
"""The questions whose options, beside ``_ALWAYS``, choose something in each kind of answer."""


@click.command("trace")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SLOTWHEEL_DATA",
    help="The data directory of a node, for what the wheel knows.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The store of events, if it is not {STORE_DIRECTORY}/ in the data directory.",
)
@question_options(TraceQuery, "key", "topic", "tag", "client", "group", "kind", "failed")
@question_options(TraceQuery, "from_ms", "to_ms")
@question_options(EventsQuery)
@click.option(
    "--show",
    type=click.Choice((_LATENCY, _ANOMALIES)),
    help="Of all messages of that time (the last hour, if none is given): how long each step took,"
    " or what was out of order.",
)
@question_options(LatencyQuery)
@json_option
def command(
    ids: tuple[str, ...],
    data: Path | None,
    store: Path | None,
    show: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Print the chains of the messages with these ids: all that happened to them, over retries and
    dead letters, at clients, in the wheel and at consumers. Without an id: events.

    The output names what is not known. The exit code is 1 if an answer is not complete.
    """
    if data is None and store is None:
        raise click.UsageError("Give --data, or --store for a store of events alone.")
    if ids and show is not None:
        raise click.UsageError("--show is about all messages: leave the ids out.")
    _check_used("an id" if ids else f"--show {show}" if show else "neither an id nor --show")
    if store is None and data is not None:
        store = data / STORE_DIRECTORY
    with quiet_pipe(), TraceLookup(store, data) as lookup:
        if ids:
            chains = [lookup.chain(message_id, clock_ms()) for message_id in ids]
            return max(_print_chain(chain, as_json) for chain in chains)
        if show == _LATENCY:
            latency = question_of(LatencyQuery, options)
            return _print_latency(lookup.latency(latency, clock_ms()), as_json)
        if show == _ANOMALIES:
            anomalies = question_of(AnomalyQuery, options)
            return _print_anomalies(lookup.anomalies(anomalies, clock_ms()), as_json)
        return _print_events(lookup.page(question_of(EventsQuery, options)), as_json)


def _check_used(question: str) -> None:
    """Refuse an option that chooses nothing: its user would misread the answer. Errors:
    ``click.UsageError``."""
    context = click.get_current_context()
    used = {
        parameter.field for kind in _USED[question] for parameter in parameters_of(kind).values()
    }
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in _ALWAYS | used:
            raise click.UsageError(f"{option.opts[0]} chooses nothing with {question}.")


def _print_chain(chain: Chain, as_json: bool) -> int:
    code = Exit.FAILED if chain.state is ChainState.UNKNOWN else Exit.DONE
    if as_json:
        print_json(chain_fields(chain))
        return code
    echo(f"{chain.id}: {chain.state}")
    for group, state in chain.outcomes.items():
        echo(f"  {visible_text(group or NO_GROUP)}: {state}")
    numbers = {message.id: number for number, message in enumerate(chain.messages, 1)}
    if len(numbers) > 1:
        for message in chain.messages:
            number, origin = numbers[message.id], message.comes_from
            parent = f", of {numbers[origin]}" if origin in numbers else ""
            echo(f"  message {number}{parent}: {visible_text(message.id)}, {message.state}")
    rows = [
        (
            "unknown" if step.at_ms is None else time_text(step.at_ms),
            str(numbers.get(step.id, "")),
            step.tier,
            step.kind + (" (failed)" if step.failed else ""),
            "" if step.took_us is None else f"{step.took_us / 1000:,.1f} ms",
            _where(step),
            step.why,
        )
        for step in chain.steps
    ]
    if rows:
        headings = ("at", "message", "by", "what", "took", "where", "why")
        print_table(rows, "lrllrll", headings)
    if chain.latency_ms:
        steps = ", ".join(f"{step} {ms:,.1f} ms" for step, ms in chain.latency_ms.items())
        echo(f"latency: {steps}")
    for anomaly in chain.anomalies:
        echo(f"{anomaly.kind}: {visible_text(anomaly.text)}")
    for line in chain.missing:
        echo(f"not known: {visible_text(line)}", err=True)
    return code


def _where(step: ChainStep) -> str:
    owners = (step.group, step.client and f"{step.client} at {step.address}")
    return " ".join((place_of(step), *(text for text in owners if text)))


def _print_events(page: TracePage, as_json: bool) -> int:
    events = list(event_fields(page.events))
    following = None if page.next is None else str(page.next)
    count = page.events.num_rows
    if as_json:
        for fields in events:
            print_json(fields)
        end: Fields = {"events": count, "next": following}
        end |= {"complete": page.complete, "looked_through": page.looked_through}
        print_json({"page": end | {"problems": [str(problem) for problem in page.problems]}})
    else:
        numbers: dict[str, int] = {}
        rows = [_event_row(fields, numbers) for fields in events]
        if rows:
            print_table(rows, "lrlrll", ("at", "message", "what", "took", "where", "why"))
        for message_id, number in numbers.items():
            echo(f"message {number}: {visible_text(message_id)}")
        hint = "" if following is None else f"; the next page: --page {visible_text(following)}"
        rows_read = counted(page.looked_through, "row")
        echo(f"{counted(count, 'event')}{hint}; looked through {rows_read}", err=True)
    return _ended(page.problems)


def _event_row(event: Fields, numbers: dict[str, int]) -> tuple[str, ...]:
    """The cells of an event. ``numbers``: of messages, by id; a new message gets the next one."""
    number = numbers.setdefault(event["id"], len(numbers) + 1) if "id" in event else ""
    topic_place = (str(event[name]) for name in ("topic", "partition", "offset") if name in event)
    address = f"at {event['address']}" if "address" in event else ""
    parts = ("/".join(topic_place), event.get("group"), event.get("client"), address)
    gap = f"{counted(event['count'], 'event')} before it missing" if "count" in event else ""
    return (
        time_text(event["at_ms"]),
        str(number),
        event["kind"] + (" (failed)" if "error" in event else ""),
        f"{event['took_us'] / 1000:,.1f} ms" if "took_us" in event else "",
        " ".join(text for text in parts if text),
        event.get("error", gap),
    )


def _print_latency(answer: LatencyFound, as_json: bool) -> int:
    if as_json:
        for row in answer.latencies:
            print_json(latency_fields(row))
    else:
        rows = [
            (
                *(row.topic, time_text(row.bucket_ms), row.step, f"{row.messages:,}"),
                *(f"{ms:,.1f}" for ms in (row.p50, row.p95, row.p99, row.max)),
            )
            for row in answer.latencies
        ]
        headings = ("topic", "due from", "step", "messages", "p50 ms", "p95 ms", "p99 ms", "max ms")
        print_table(rows, "lllrrrrr", headings)
    return _ended(answer.problems)


def _print_anomalies(answer: AnomaliesFound, as_json: bool) -> int:
    listed = Listing(as_json)
    for fields in anomaly_fields(answer.rows):
        listed.line(fields)
    if as_json:
        print_json({"anomalies": dict(answer.counts)})
    else:
        counts = [
            f"{kind} {answer.counts[kind]:,}" for kind in AnomalyKind if kind in answer.counts
        ]
        echo(f"in all: {', '.join(counts) or 'none'}", err=True)
    return _ended(answer.problems)


def _ended(problems: tuple[Problem, ...]) -> int:
    for problem in problems:
        echo(f"problem: {problem}", err=True)
    return Exit.FAILED if problems else Exit.DONE
