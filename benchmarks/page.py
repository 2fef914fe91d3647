"""RESULTS.md: the goals first, then the plots, then every benchmark's figures.

It is made from the whole of ``results.json`` each time, so it never says what the file does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import plots
from .goals import AT_LEAST, GOALS, Goal
from .results import Figure, Result, Results, text_of
from .runs import ON_REQUEST, SUITE, SUITE_S

PAGE = "RESULTS.md"
_COMMANDS = {run.name: run.command() for run in (*SUITE, *ON_REQUEST)}
_NO_PLOTS = (
    "**Plots are missing**: they are drawn with matplotlib, which is not installed. Install it with"
    " `pip install -e '.[bench]'`, then `python -m benchmarks.suite --page` draws them."
)


def write(folder: Path, results: Results, goals: Sequence[Goal] = GOALS) -> None:
    """The page, and the plots beside it if matplotlib is there."""
    try:
        drawn: plots.Drawn | None = plots.draw(folder, results)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        drawn = None
    (folder / PAGE).write_text(page(results, drawn, goals))


def page(results: Results, drawn: plots.Drawn | None, goals: Sequence[Goal] = GOALS) -> str:
    lines = ["# Results", ""]
    if any("--quick" in result.command for result in results.values()):
        lines += ["**Of a quick run: small sizes, once each. These figures say little.**", ""]
    lines += [
        "Medians, with the lowest and the highest; *runs* says of how many runs, and a ratio is the"
        " median of each run's. *load* is that of the minute before, in which another benchmark may"
        " have run. `make queues`, then `make bench` measures again, in about"
        f" {SUITE_S / 60:.0f} minutes.",
        "",
        *_machines(results),
        "",
        "## Goals",
        "",
        *goals_of(results, goals),
        *_plots(drawn),
        "## Every benchmark",
        "",
    ]
    for name, result in results.items():
        lines += _benchmark(name, result)
    return "\n".join(lines)


def _machines(results: Results) -> list[str]:
    """What they ran on; where that differs from one to another, all that there was."""
    found: dict[str, list[str]] = {}
    for result in results.values():
        for name, value in {**result.machine, "revision": result.revision}.items():
            if value and name != "load" and value not in found.setdefault(name, []):
                found[name].append(value)
    return [f"- {name}: {'; '.join(values)}" for name, values in found.items() if values]


def goals_of(results: Results, goals: Sequence[Goal]) -> list[str]:
    """A table of them, and what is said of those that are not reached."""
    head = ["measure", "goal", "measured: median (lowest to highest)", "runs", "reached", "command"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    short = []
    for goal in goals:
        result = results.get(goal.run)
        figure = result.figures.get(goal.figure) if result is not None else None
        wanted = f"{goal.comparison} {text_of(goal.figure, goal.limit)}"
        command = result.command if result is not None else _COMMANDS.get(goal.run, "")
        if figure is None:
            lines.append(f"| {goal.text} | {wanted} | not measured | 0 | ? | `{command}` |")
            continue
        reached = "yes" if goal.is_reached(figure.median) else "**no**"
        lines.append(
            f"| {goal.text} | {wanted} | {_spread(goal.figure, figure)} | {figure.runs} | {reached}"
            f" | `{command}` |"
        )
        if not goal.is_reached(figure.median):
            why = goal.why or "Where the time goes: docs/performance.md."
            short.append(f"- **{goal.text}**: {_by_how_much(goal, figure)}. {why}")
    lines.append("")
    if short:
        lines += ["### Not reached, by how much, and why", "", *short, ""]
    return lines


def _spread(name: str, figure: Figure) -> str:
    median, lowest, highest = (
        text_of(name, value) for value in (figure.median, figure.lowest, figure.highest)
    )
    return median if figure.runs == 1 else f"{median} ({lowest} to {highest})"


def _by_how_much(goal: Goal, figure: Figure) -> str:
    measured, wanted = (text_of(goal.figure, one) for one in (figure.median, goal.limit))
    if not goal.limit:
        return f"{measured} instead of {wanted}"
    share = figure.median / goal.limit
    # A share that would round to the whole is told with more digits.
    digits = 0 if abs(share - 1) >= 0.005 else 2
    if goal.comparison == AT_LEAST:
        return f"{measured} of {wanted}, {share:.{digits}%} of it"
    return f"{measured} instead of {wanted}, {share - 1:.{digits}%} more"


def _plots(drawn: plots.Drawn | None) -> list[str]:
    lines = ["## Plots", ""]
    if drawn is None:
        return [*lines, _NO_PLOTS, ""]
    for plot in drawn.there:
        lines += [f"### {plot.title}", "", f"![{plot.title}]({plot.path})", "", plot.says, ""]
    if drawn.missing:
        names = "; ".join(plot.title.lower() for plot in drawn.missing)
        lines += [f"Not drawn, because their benchmarks were not run: {names}.", ""]
    return lines


def _benchmark(name: str, result: Result) -> list[str]:
    load = f"load {result.machine['load']}" if "load" in result.machine else ""
    took = f"{result.seconds:.0f} s"
    told = ", ".join(one for one in (result.at, result.revision, took, load) if one)
    lines = [f"### {name[:1].upper()}{name[1:]}", "", f"`{result.command}` ({told})", ""]
    if result.failure:
        lines += [f"**Failed**: {result.failure}", ""]
    if result.figures:
        lines += ["| measure | median | lowest | highest | runs |", "| --- " * 5 + "|"]
        lines += [_row(figure, one) for figure, one in result.figures.items()]
        lines.append("")
    return lines


def _row(name: str, figure: Figure) -> str:
    each = [text_of(name, one) for one in (figure.median, figure.lowest, figure.highest)]
    return f"| {name} | {' | '.join(each)} | {figure.runs} |"
