"""Prints a verdict of ``slotwheel replay`` for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .printing import print_table
from .terminal import echo

if TYPE_CHECKING:
    from ..replay.report.fleetverdict import FleetVerdict
    from ..replay.report.verdict import Verdict

_SHOWN = 20
_ALWAYS = ("accepted", "delivered", "lost")
"""Counts that are told even when they are 0."""


def print_verdict(verdict: Verdict) -> None:
    """Print the outcome, then the counts, then the first problems."""
    echo(verdict.outcome.upper())
    for reason in verdict.reasons:
        echo(f"  {reason}")
    for point in verdict.open_points:
        echo(f"  not decided: {point}")
    print_table(_lines(verdict), "lr")
    if verdict.problems and not verdict.reasons:
        echo("These do not fail the proof:")
    for problem in verdict.problems[:_SHOWN]:
        parts = problem.kind, problem.id or problem.file, problem.text
        echo(": ".join(part for part in parts if part))
    total = sum(verdict.problem_counts.values())
    if total > _SHOWN:
        further = total - min(_SHOWN, len(verdict.problems))
        echo(f"… and {further:,} more; --report DIR and --json list them")
    for note in verdict.notes:
        echo(f"note: {note}")


def print_fleet_verdict(fleet: FleetVerdict) -> None:
    """Print the outcome of the whole, its counts, and then those of each wheel."""
    echo(fleet.outcome.upper())
    for point in fleet.open_points:
        echo(f"  not decided: {point}")
    wheels = [(name, verdict) for name, verdict in fleet.wheels.items()]
    names = [name for name, number in fleet.counts.items() if number or name in _ALWAYS]
    rows = [
        (name, *(f"{each.counts.get(name, 0):,}" for _, each in wheels), f"{fleet.counts[name]:,}")
        for name in names
    ]
    print_table(rows, "l" + "r" * (len(wheels) + 1), ("", *(name for name, _ in wheels), "all"))
    for name, verdict in wheels:
        echo(f"\nwheel {name}: ", nl=False)
        print_verdict(verdict)


def _lines(verdict: Verdict) -> Iterator[tuple[str, str]]:
    for name, number in verdict.counts.items():
        exactly_once = name == "repeated" and verdict.exactly_once
        if number or exactly_once or name in _ALWAYS:
            yield name, f"{number:,}" + (" (exactly once)" if exactly_once else "")
    for lateness in verdict.lateness[:1]:
        late = (
            f"{lateness.p50:.0f} / {lateness.p99:.0f} / {lateness.p999:.0f} / {lateness.max:.0f} ms"
        )
        yield "lateness p50 / p99 / p99.9 / max", late
    for pair in verdict.agreement:
        equal = f"{pair.equal:,} rows equal, {pair.different:,} not"
        yield f"{pair.left} and {pair.right}", equal
