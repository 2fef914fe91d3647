"""``slotwheel fleet``: the wheels of a fleet, side by side."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import click

from ..client.message import clock_ms
from ..wheel.texts import span_text
from .invocation import Exit
from .printing import print_table
from .reaching import Reached, connected, wheel_options
from .shared import json_option, positive_span, print_json
from .terminal import echo

_NO_FLEET = "Give --fleet, the file that names the wheels."
_HEADS = ("wheel", "state", "pending", "in/s", "share", "out/s", "late", "partitions", "lag")
_LATE_MS = 1_000
"""A wheel whose delivery is so far behind has too much to do."""
_LAG_MAX = 10_000
"""So have wheels with so many records of delay topics that are not read yet."""
_WELL = "no wheel has too much to do"
_MORE_THAN = 1.25
"""So many times its equal share is more than a wheel's own."""


@click.group("fleet")
def command() -> None:
    """Wheels of a fleet, which a file names."""


@command.command("status")
@wheel_options
@click.option(
    "--over",
    type=positive_span,
    default="1s",
    help="How long to watch each wheel, for its messages a second.",
)
@json_option
def status(address: Reached, timeout: timedelta, over: timedelta, as_json: bool) -> int:
    """Show of each wheel whether it answers, what is pending, how many messages come in and go out
    a second, which share of all that came in was its own, how late delivery is, by this machine's
    clock, and of delay topics its partitions and how many records are not read yet; and which
    wheels should take more.

    The exit code is 1 unless each wheel answers and takes messages.
    """
    if not isinstance(address, dict):
        raise click.UsageError(_NO_FLEET)
    with connected(address, timeout) as fleet:
        before, began = fleet.status(), time.monotonic()
        time.sleep(over.total_seconds())
        after, seconds = fleet.status(), time.monotonic() - began
    rows = _figures(before["wheels"], after["wheels"], seconds)
    complete = bool(after["complete"])
    more, advice = should_take_more(rows)
    if as_json:
        given = {"complete": complete, "wheels": rows}
        print_json(given | {"should_take_more": more, "advice": advice})
    else:
        print_table([_cells(row) for row in rows], "llrrrrrrr", _HEADS)
        for row in rows:
            if row["problem"]:
                echo(f"{row['wheel']}: {row['problem']}", err=True)
        if not complete:
            echo("not complete: a wheel that does not answer has more", err=True)
        if advice != _WELL:
            echo(advice, err=True)
    sound = all(row["state"] == "there" and not row["problem"] for row in rows)
    return Exit.DONE if sound else Exit.FAILED


def _figures(before: dict[str, Any], after: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """A row for each wheel; a figure is None where it is not known."""
    rows = [_row(name, before[name]["status"], wheel, seconds) for name, wheel in after.items()]
    whole = sum(row["in_per_s"] or 0.0 for row in rows)
    for row in rows:
        known = whole > 0 and row["in_per_s"] is not None
        row["share"] = round(row["in_per_s"] / whole, 3) if known else None
    return rows


def should_take_more(rows: list[dict[str, Any]]) -> tuple[list[str] | None, str]:
    """The wheels that have less to do than others that have too much, and what to do about it.
    None: that is not known, as of a wheel it is not known how much it has to do."""
    unknown = [row["wheel"] for row in rows if row["pending"] is None]
    if unknown:
        return None, f"who should take more is unknown: {', '.join(unknown)} does not answer"
    open_rows = [row for row in rows if row["state"] == "there"]
    late = [row for row in open_rows if _has_too_much(row)]
    free = [row for row in open_rows if not _has_too_much(row)]
    if not late:
        return [], _WELL
    told = "; ".join(map(_trouble, late))
    if not free:
        return [], f"{told}. Every wheel that takes messages has too much to do: add another one"
    names = [row["wheel"] for row in free]
    partitions = [row["partitions"] for row in open_rows if row["partitions"]]
    busy = [row["wheel"] for row in late if (row["share"] or 0) > _MORE_THAN / len(open_rows)]
    if partitions and max(partitions) - min(partitions) > 1:
        remedy = "partitions are shared unequally: give the delay topics more of them"
    elif busy:
        remedy = (
            f"{', '.join(busy)} gets more than an equal share of what comes in: a few keys have"
            " many messages. Spread them over more keys, or send without a key"
        )
    else:
        remedy = "the shares are equal: look for what slows the others down, a disk or a topic"
    return names, f"{told}. {', '.join(names)} could take more: {remedy}"


def _has_too_much(row: dict[str, Any]) -> bool:
    return row["late_ms"] > _LATE_MS or (row["lag"] or 0) > _LAG_MAX


def _trouble(row: dict[str, Any]) -> str:
    parts = []
    if row["late_ms"] > _LATE_MS:
        parts.append(f"is late by {span_text(row['late_ms'])}")
    if (row["lag"] or 0) > _LAG_MAX:
        parts.append(f"has {row['lag']:,} records to read")
    return f"{row['wheel']} {' and '.join(parts)}"


def _row(
    name: str, before: dict[str, Any] | None, wheel: dict[str, Any], seconds: float
) -> dict[str, Any]:
    now = wheel["status"]
    both = before is not None and now is not None
    sources = None if now is None else now.get("delay_topics", {"sources": []})["sources"]
    lags = None if sources is None else [source["lag"] for source in sources]
    return {
        "wheel": name,
        "state": wheel["state"],
        "problem": wheel["problem"],
        "pending": None if now is None else now["pending"],
        "in_per_s": _rate(before, now, "accepted", seconds) if both else None,
        "out_per_s": _rate(before, now, "delivered", seconds) if both else None,
        "late_ms": None if now is None else _late_ms(now),
        "partitions": None if sources is None else len(sources),
        "lag": None if lags is None or None in lags else sum(lags),
    }


def _late_ms(status: dict[str, Any]) -> int:
    """How far delivery is behind the clock."""
    return max(0, clock_ms() - int(status["mark_c"])) if status["pending"] else 0


def _rate(before: Any, now: Any, counter: str, seconds: float) -> float | None:
    """Messages a second; None: another master counts now, from its own start."""
    added = now[counter] - before[counter]
    return round(added / seconds, 1) if added >= 0 else None


def _cells(row: dict[str, Any]) -> list[str]:
    share = row["share"]
    numbers = [
        _number(row["pending"]),
        _number(row["in_per_s"]),
        "-" if share is None else f"{share:.0%}",
        _number(row["out_per_s"]),
        "-" if row["late_ms"] is None else span_text(row["late_ms"]),
        _number(row["partitions"]),
        _number(row["lag"]),
    ]
    return [row["wheel"], row["state"], *numbers]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
