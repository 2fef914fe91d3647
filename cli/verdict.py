"""A verdict of ``slotwheel replay`` for a person."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ..replay.report.verdict import Verdict

_SHOWN = 20


def print_verdict(verdict: Verdict) -> None:
    """The verdict for a person: first the word, then the counts, then what is wrong."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    click.echo(verdict.outcome.upper())
    for reason in verdict.reasons:
        click.echo(f"  {reason}")
    for point in verdict.open_points:
        click.echo(f"  not decided: {point}")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, number in verdict.counts.items():
        if number or (name in ("accepted", "delivered", "lost") and ":" not in name):
            table.add_row(name, f"{number:,}")
    for one in verdict.lateness[:1]:
        late = f"{one.p50:.0f} / {one.p99:.0f} / {one.p999:.0f} / {one.max:.0f} ms"
        table.add_row("lateness p50 / p99 / p99.9 / max", late)
    for pair in verdict.agreement:
        rows = f"{pair.equal:,} rows equal, {pair.different:,} not"
        table.add_row(f"{pair.left} and {pair.right}", rows)
    console.print(table)
    if verdict.problems and not verdict.reasons:
        click.echo("These do not fail the proof:")
    for problem in verdict.problems[:_SHOWN]:
        where = problem.id or problem.file
        click.echo(f"{problem.kind}: {where}: {problem.text}")
    total = sum(verdict.problem_counts.values())
    if total > _SHOWN:
        more = total - min(_SHOWN, len(verdict.problems))
        click.echo(f"… and {more:,} more; --report DIR and --json list them")
    for note in verdict.notes:
        click.echo(f"note: {note}")
