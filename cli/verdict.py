"""Prints a verdict of ``slotwheel replay`` for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .printing import print_table
from .terminal import echo

if TYPE_CHECKING:
    from ..replay.report.verdict import Verdict

_SHOWN = 20


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


def _lines(verdict: Verdict) -> Iterator[tuple[str, str]]:
    for name, number in verdict.counts.items():
        exactly_once = name == "repeated" and verdict.exactly_once
        if number or exactly_once or name in ("accepted", "delivered", "lost"):
            yield name, f"{number:,}" + (" (exactly once)" if exactly_once else "")
    for lateness in verdict.lateness[:1]:
        late = (
            f"{lateness.p50:.0f} / {lateness.p99:.0f} / {lateness.p999:.0f} / {lateness.max:.0f} ms"
        )
        yield "lateness p50 / p99 / p99.9 / max", late
    for pair in verdict.agreement:
        equal = f"{pair.equal:,} rows equal, {pair.different:,} not"
        yield f"{pair.left} and {pair.right}", equal
