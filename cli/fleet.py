"""``slotwheel fleet``: the wheels of a fleet, side by side."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import click

from .invocation import Exit
from .printing import print_table
from .reaching import Reached, connected, wheel_options
from .shared import json_option, positive_span, print_json
from .terminal import echo

_NO_FLEET = "Give --fleet, the file that names the wheels."
_HEADS = ("wheel", "state", "pending", "in/s", "share", "out/s", "partitions", "lag")


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
    a second, which share of all that came in was its own, and of delay topics its partitions and
    how many records are not read yet.

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
    if as_json:
        print_json({"complete": complete, "wheels": rows})
    else:
        print_table([_cells(row) for row in rows], "llrrrrrr", _HEADS)
        for row in rows:
            if row["problem"]:
                echo(f"{row['wheel']}: {row['problem']}", err=True)
        if not complete:
            echo("not complete: a wheel that does not answer has more", err=True)
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
        "partitions": None if sources is None else len(sources),
        "lag": None if lags is None or None in lags else sum(lags),
    }


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
        _number(row["partitions"]),
        _number(row["lag"]),
    ]
    return [row["wheel"], row["state"], *numbers]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
