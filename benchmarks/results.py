"""What the suite found: figures by benchmark, and the file that keeps them.

Rules
- A figure is kept as its median, lowest and highest, and the number of runs behind them.
- Each benchmark says when, at which revision and on which machine it ran: a file that was put
  together from several runs hides nothing.
- A file is replaced as a whole or not at all.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .harness import RATIO

RESULTS = "results.json"


@dataclass(frozen=True)
class Figure:
    median: float
    lowest: float
    highest: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass
class Result:
    """Of one benchmark. ``failure``: what its last run said, if it failed; its figures are then
    those of the runs before."""

    command: str
    figures: dict[str, Figure] = field(default_factory=dict)
    failure: str = ""
    seconds: float = 0.0
    at: str = ""
    revision: str = ""
    machine: dict[str, str] = field(default_factory=dict)


Results = Mapping[str, Result]


def save(folder: Path, results: Results) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"results": {name: asdict(result) for name, result in results.items()}}
    unfinished = folder / f"{RESULTS}.new"
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(folder / RESULTS)


def load(path: Path) -> dict[str, Result]:
    """Errors: ``FileNotFoundError``; ``ValueError`` for what the suite did not write."""
    try:
        content = json.loads(path.read_text())["results"]
        return {name: _result(found) for name, found in content.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not written by this suite: {error!r}") from error


def _result(found: dict[str, Any]) -> Result:
    figures = {name: Figure(**one) for name, one in found["figures"].items()}
    return Result(**{**found, "figures": figures})


def medians(results: Results) -> dict[tuple[str, str], float]:
    """By benchmark and figure."""
    return {
        (name, figure): one.median
        for name, result in results.items()
        for figure, one in result.figures.items()
    }


def text_of(name: str, value: float) -> str:
    """A figure's value for people; what kind it is, its name says."""
    if name.startswith(RATIO):
        return f"{value:.1%}" if value < 2 else f"{value:.1f} x"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"
