"""Plots of what the suite found, as SVG files beside RESULTS.md.

Rules
- Data come from the results alone; a plot whose benchmarks did not run is not drawn.
- The same results give the same bytes: fixed salt, no date, text as outlines of one font.
- Colours are those of Okabe and Ito, which colour-blind people can tell apart; shape, place or a
  label always tells the same, too.
- Whiskers reach from the lowest run to the highest.

matplotlib is needed (``pip install -e '.[bench]'``), and imported only when something is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from .harness import RATIO
from .results import Figure, Results
from .servers.all import ALL, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FOLDER = "figures"  # not "plots": a folder of this module's name hides it from type checkers
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_COLOURS = (BLUE, ORANGE, GREEN, RED, "#56B4E9", "#CC79A7", "#F0E442", "#000000")
_GREY = "#6B6B6B"
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "slotwheel",
}
SUSTAINED = "durable ingest"
BY_ROWS = (
    (1, "ingest, batches of 1"),
    (10, "ingest, batches of 10"),
    (100, "ingest, batches of 100"),
    (1_000, SUSTAINED),
    (10_000, "ingest, batches of 10,000"),
)
BY_BYTES = ((100, SUSTAINED), (1_000, "ingest, 1 KB"), (10_000, "ingest, 10 KB"))
BY_CLIENTS = ((1, "ingest, one client"), (2, SUSTAINED), (4, "ingest, four clients"))
BY_RATE = tuple((rate, f"lateness at {rate:,}/s") for rate in (10_000, 50_000, 100_000))
APART, QUEUES, PENDING, STAGES = (
    "ingest, batches kept apart",
    "delay queues side by side",
    "pending",
    "stages",
)
_RATE, _TO_RAW = "messages/s", f"{RATIO}to the raw limit"
Points = Sequence[tuple[float, Figure]]


@dataclass(frozen=True)
class Plot:
    """``says``: what the reader has to know of it. ``draw`` gets an empty canvas; false when there
    is nothing to draw."""

    name: str
    title: str
    says: str
    draw: Callable[[Canvas, Results], bool]
    size: tuple[float, float] = (6.4, 3.6)

    @property
    def path(self) -> str:
        """From the page."""
        return f"{FOLDER}/{self.name}.svg"


@dataclass(frozen=True)
class Drawn:
    there: Sequence[Plot]
    missing: Sequence[Plot]


def draw(folder: Path, results: Results) -> Drawn:
    """Into ``folder/figures``. What an older run left there and this one cannot draw is removed.
    Errors: ``ModuleNotFoundError`` without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    there, missing = [], []
    with mpl.rc_context(_STYLE):
        for plot in PLOTS:
            canvas = Canvas(figsize=plot.size, layout="constrained")
            path = folder / plot.path
            if plot.draw(canvas, results):
                nothing = {"Date": None, "Creator": None}
                canvas.savefig(path, format="svg", metadata=nothing)
                there.append(plot)
            else:
                path.unlink(missing_ok=True)
                missing.append(plot)
    return Drawn(there, missing)


def _points(results: Results, runs: Sequence[tuple[int, str]], name: str) -> Points:
    return [
        (at, results[run].figures[name])
        for at, run in runs
        if run in results and name in results[run].figures
    ]


def _line(axes: Axes, points: Points, label: str, colour: str, marker: str = "o") -> None:
    """Medians, with whiskers."""
    x = [at for at, _ in points]
    y = [one.median for _, one in points]
    below = [one.median - one.lowest for _, one in points]
    above = [one.highest - one.median for _, one in points]
    shape: dict[str, Any] = {"marker": marker, "markersize": 5, "capsize": 3}
    axes.errorbar(x, y, yerr=[below, above], label=label, color=colour, **shape)


def _beside_raw(axes: Axes, points: Points, ratios: Mapping[float, Figure]) -> None:
    """Ours, and the raw limit of the same runs in the same unit: rate / ratio."""
    raw = [
        (at, Figure.of([one.median / ratios[at].median]))
        for at, one in points
        if at in ratios and ratios[at].median
    ]
    if raw:
        _line(axes, raw, "write + fdatasync of the same bytes", _GREY, "s")
    _line(axes, points, OURS, BLUE)


def _ticks(
    axes: Axes, points: Points, unit: Callable[[float], str] = lambda at: f"{at:,.0f}"
) -> None:
    """At what was measured, and nowhere else."""
    x = [at for at, _ in points]
    axes.set_xticks(x, [unit(at) for at in x])
    axes.set_xticks([], minor=True)


def _short(value: float, _place: float = 0.0) -> str:
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _ingest(
    canvas: Canvas, results: Results, runs: Sequence[tuple[int, str]], x_label: str
) -> Axes | None:
    points = _points(results, runs, _RATE)
    if len(points) < 2:
        return None
    axes = canvas.subplots()
    _beside_raw(axes, points, dict(_points(results, runs, _TO_RAW)))
    axes.set(xlabel=x_label, ylabel="durable messages a second")
    axes.yaxis.set_major_formatter(_short)
    _ticks(axes, points)
    return axes


def _by_rows(canvas: Canvas, results: Results) -> bool:
    axes = _ingest(canvas, results, BY_ROWS, "messages in a batch")
    if axes is None:
        return False
    apart = _points(results, [(1_000, APART)], _RATE)
    if apart:
        _line(axes, apart, "slotwheel, each batch by itself", ORANGE, "D")
    axes.set(xscale="log", yscale="log")
    _ticks(axes, _points(results, BY_ROWS, _RATE))
    axes.yaxis.set_major_formatter(_short)
    axes.legend()
    return True


def _by_bytes(canvas: Canvas, results: Results) -> bool:
    points = _points(results, BY_BYTES, _RATE)
    if len(points) < 2:
        return False
    ratios = dict(_points(results, BY_BYTES, _TO_RAW))
    left, right = canvas.subplots(1, 2)
    for axes, label, times in ((left, "messages a second", 0), (right, "MB of values a second", 1)):
        _beside_raw(axes, [(at, _times(one, (at / 1e6) ** times)) for at, one in points], ratios)
        axes.set(xscale="log", xlabel="bytes in a message", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_short)
        _ticks(axes, points)
    right.legend(loc="lower right")
    return True


def _times(figure: Figure, factor: float) -> Figure:
    median, lowest, highest = figure.median, figure.lowest, figure.highest
    return Figure(median * factor, lowest * factor, highest * factor, figure.runs)


def _by_clients(canvas: Canvas, results: Results) -> bool:
    axes = _ingest(canvas, results, BY_CLIENTS, "clients at once")
    if axes is None:
        return False
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    return True


def _queues(canvas: Canvas, results: Results) -> bool:
    figures = results[QUEUES].figures if QUEUES in results else {}
    found: dict[int, dict[str, Figure]] = {}
    for text, figure in figures.items():
        match = re.fullmatch(r"(.+), durable messages/s in batches of (\d+)", text)
        if match is not None:
            found.setdefault(int(match[2]), {})[match[1]] = figure
    if not found:
        return False
    durable = {kind.name: kind.durability for kind in ALL}
    names = [name for name in durable if any(name in rates for rates in found.values())]
    labels = [f"{name}\n{fill(durable[name], 38)}" for name in names]
    panels = canvas.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (rows, rates) in zip(panels, sorted(found.items()), strict=True):
        places = [number for number, name in enumerate(names) if name in rates]
        values = [rates[names[place]].median for place in places]
        colours = [BLUE if names[place] == OURS else _GREY for place in places]
        bars = axes.barh(places, values, color=colours, height=0.6)
        axes.bar_label(bars, [f" {_short(value)}" for value in values], fontsize=8)
        axes.set(title=f"batches of {rows:,}", xlabel="messages a second")
        axes.set_xlim(0, max(values) * 1.3)
        axes.xaxis.set_major_formatter(_short)
        axes.locator_params(axis="x", nbins=3)
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(names)), labels, fontsize=8)
    panels[0].invert_yaxis()
    return True


def _lateness(canvas: Canvas, results: Results) -> bool:
    lines = [
        (share, _points(results, BY_RATE, f"lateness {share}, ms")) for share in ("p50", "p99")
    ]
    if not all(points for _, points in lines):
        return False
    axes = canvas.subplots()
    for (share, points), colour, marker in zip(lines, (BLUE, ORANGE), "os", strict=True):
        _line(axes, points, share, colour, marker)
    axes.set(xlabel="messages a second, in and out", ylabel="lateness, ms")
    axes.set_ylim(bottom=0)
    _ticks(axes, lines[0][1])
    axes.legend()
    return True


def _pending(canvas: Canvas, results: Results) -> bool:
    figures = results[PENDING].figures if PENDING in results else {}
    panels = (
        ("resident", "MB", "resident memory, MB", 600),
        ("restart", "s", "restart, s", 2),
        ("status", "ms", "status call, ms", 10),
    )
    lines = []
    for what, unit, _, _ in panels:
        pattern = re.compile(rf"{what} at ([\d.]+) M, {unit}")
        matches = ((pattern.fullmatch(name), figure) for name, figure in figures.items())
        lines.append([(float(match[1]), figure) for match, figure in matches if match])
    if not all(len(points) > 1 for points in lines):
        return False
    each = canvas.subplots(1, len(panels))
    for axes, points, (_, unit, label, most) in zip(each, lines, panels, strict=True):
        _line(axes, points, OURS, BLUE)
        axes.axhline(most, color=RED, linestyle="--", linewidth=1)
        axes.annotate(
            f"goal: at most {most} {unit}",
            (0.02, most),
            (0, -3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="top",
            color=RED,
            fontsize=8,
        )
        axes.set(xscale="log", xlabel="million messages pending", ylabel=label)
        axes.set_ylim(0, 1.1 * max(most, *(one.highest for _, one in points)))
        _ticks(axes, points, lambda at: f"{at:g}")
    return True


def _stages(canvas: Canvas, results: Results) -> bool:
    figures = results[STAGES].figures if STAGES in results else {}
    bars: dict[str, dict[str, float]] = {}
    for text, figure in figures.items():
        match = re.fullmatch(r"(\w+), (batches of .+), us", text)
        if match is not None and match[1] != "all":
            bars.setdefault(match[2], {})[match[1]] = figure.median
    if not bars:
        return False
    stages = list(dict.fromkeys(stage for parts in bars.values() for stage in parts))
    axes = canvas.subplots()
    ends = [0.0] * len(bars)
    for stage, colour in zip(stages, _COLOURS, strict=False):
        widths = [parts.get(stage, 0.0) for parts in bars.values()]
        shape: dict[str, Any] = {"height": 0.6, "edgecolor": "white", "linewidth": 0.8}
        axes.barh(range(len(bars)), widths, left=ends, color=colour, label=stage, **shape)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end in enumerate(ends):
        axes.annotate(f" {end:.3g}", (end, place), va="center")
    axes.set_yticks(range(len(bars)), [fill(name, 18) for name in bars])
    axes.invert_yaxis()
    axes.set(xlabel="microseconds of processor time a message")
    axes.set_xlim(0, max(ends) * 1.1)
    axes.grid(visible=False, axis="y")
    canvas.legend(loc="outside upper center", ncols=4)
    return True


PLOTS = (
    Plot(
        "ingest-batch",
        "Ingest by batch size",
        "Two clients, messages of 100 B, due over two hours; both axes logarithmic. Batches that"
        " wait in a client may leave together; the diamond is without that. Batches of 1000 were"
        " sent for 60 s, the others for less (the commands are below).",
        _by_rows,
    ),
    Plot(
        "ingest-size",
        "Ingest by message size",
        "Two clients, batches of 1000, due over two hours.",
        _by_bytes,
        (8.0, 3.4),
    ),
    Plot(
        "ingest-clients",
        "Ingest by number of clients",
        "Batches of 1000 messages of 100 B; node and clients share the machine's cores.",
        _by_clients,
    ),
    Plot(
        "queues",
        "Durable intake beside other delay queues",
        "One client, each batch durable before the next is sent, 100 B a message; below each name"
        " the settings that it ran with. What is not shown was not installed, and is named as"
        " missing in the table below.",
        _queues,
        (8.6, 5.2),
    ),
    Plot(
        "lateness",
        "Lateness at a steady rate",
        "Embedded topics; messages come in and leave at the same rate. From the due time to the"
        " record in the topic.",
        _lateness,
    ),
    Plot(
        "pending",
        "Memory, restart and status by what is pending",
        "Memory 15 s after the last message; restart from the start of the process, after SIGKILL,"
        " until it listens.",
        _pending,
        (8.6, 3.2),
    ),
    Plot(
        "stages",
        "Processor time of one message by stage",
        "One thread that does each stage in turn, without transport and client. Due over a minute,"
        " or over two hours, where a spill writes 7200 files.",
        _stages,
        (8.0, 3.8),
    ),
)
