"""Small charts as SVG text, without a library: a report must open anywhere, years later, offline.

Rules
- A chart has a view box and no size: it is as wide as its place, on a phone as on a desk.
- Colours are CSS variables of the page, which decides about light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 10, 12, 30
BARS_MAX = 160


def lines(times_ms: Sequence[int], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """A line chart over at least one time, one line a series; a logarithmic scale from 1 on."""
    top = max(10.0, *(value for _, values in series for value in values))
    parts = [_axes(times_ms, top, logarithmic=True)]
    for number, (name, values) in enumerate(series):
        points = " ".join(
            f"{_x(times_ms, at):.1f},{_y(value, top, logarithmic=True):.1f}"
            for at, value in zip(times_ms, values, strict=True)
        )
        shape = (
            f'<polyline points="{points}"/>'
            if len(times_ms) > 1
            else f'<circle cx="{points.split(",")[0]}" cy="{points.split(",")[1]}" r="3"/>'
        )
        parts.append(f'<g class="line line{number}"><title>{escape(name)}</title>{shape}</g>')
    return _svg("".join(parts), ", ".join(name for name, _ in series))


def bars(times_ms: Sequence[int], values: Sequence[float], label: str) -> str:
    """A bar chart over at least one time; neighbours are summed when there are more than
    ``BARS_MAX``."""
    step = -(-len(values) // BARS_MAX)
    times = list(times_ms[::step])
    sums = [sum(values[at : at + step]) for at in range(0, len(values), step)]
    top = max(1.0, *sums)
    width = max(1.0, (WIDTH - _LEFT - _RIGHT) / len(sums) * 0.8)
    parts = [_axes(times, top, logarithmic=False)]
    for at, (time_ms, value) in enumerate(zip(times, sums, strict=True)):
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * (at + 0.1) / len(sums)
        y = _y(value, top, logarithmic=False)
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}"'
            f' height="{HEIGHT - _BOTTOM - y:.1f}">'
            f"<title>{clock(time_ms)}: {value:,.0f}</title></rect>"
        )
    return _svg("".join(parts), label)


def clock(time_ms: int) -> str:
    """The time of day, UTC. ``moment`` gives the date, too."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S")


def _x(times_ms: Sequence[int], at: int) -> float:
    span = max(1, times_ms[-1] - times_ms[0])
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at - times_ms[0]) / span


def _y(value: float, top: float, *, logarithmic: bool) -> float:
    share = math.log10(max(1.0, value)) / math.log10(top) if logarithmic else value / top
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * min(1.0, share)


def _axes(times_ms: Sequence[int], top: float, *, logarithmic: bool) -> str:
    if logarithmic:
        ticks = [10.0**power for power in range(math.floor(math.log10(top)) + 1)]
    else:
        ticks = [0.0, top / 2, top]
    parts = []
    for tick in ticks:
        y = _y(tick, top, logarithmic=logarithmic)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_short(tick)}</text>"
        )
    marks = {0: "start", len(times_ms) // 2: "middle", len(times_ms) - 1: "end"}
    for at, anchor in marks.items():
        x = {"start": _LEFT, "middle": (WIDTH + _LEFT) / 2, "end": WIDTH - _RIGHT}[anchor]
        if len(times_ms) > 2 or anchor == "start":
            parts.append(
                f'<text class="tick" x="{x:.0f}" y="{HEIGHT - 8}" text-anchor="{anchor}">'
                f"{clock(times_ms[at])}</text>"
            )
    return "".join(parts)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:  # a value that rounds up to the next unit gets that unit
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _svg(inner: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{inner}</svg>'
    )
