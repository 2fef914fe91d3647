"""A node's metrics as numbers and histograms, and why it does not work or is not ready."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ..services import Services

_PREFIX = "slotwheel_"


@dataclass(frozen=True, slots=True)
class NodeFigure:
    """A number of a metric. ``labels``: as text, such as ``kind disk-low``."""

    name: str
    labels: str
    help: str
    value: float


@dataclass(frozen=True, slots=True)
class FigureSpread:
    """A histogram. ``bounds``: upper bounds, s, the last is infinite; ``counts``: of each bucket by
    itself, where Prometheus adds up all buckets below; ``seconds``: the sum of all values."""

    name: str
    help: str
    bounds: Sequence[float]
    counts: Sequence[int]
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float:
        return self.seconds / self.total if self.total else 0.0

    def within(self, share: float) -> float:
        """The least bound, s, that at least this share of the values keeps. For example, of counts
        6, 3 and 1 up to 1 ms, 100 ms and without a limit, 0.9 keep 100 ms."""
        seen, wanted = 0, share * self.total
        for bound, count in zip(self.bounds, self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        return self.bounds[-1]


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """All metrics of a node and its gateway."""

    figures: list[NodeFigure]
    spreads: list[FigureSpread]

    def value(self, name: str) -> float | None:
        return next((figure.value for figure in self.figures if figure.name == name), None)

    def spread(self, name: str) -> FigureSpread | None:
        return next((spread for spread in self.spreads if spread.name == name), None)


def figures_of(text: str) -> NodeFigures:
    """The metrics in a text of Prometheus' format."""
    figures: list[NodeFigure] = []
    spreads: list[FigureSpread] = []
    for family in text_string_to_metric_families(text):
        name = family.name.removeprefix(_PREFIX)
        if family.type == "histogram":
            spreads.append(_spread(name, family.documentation, family.samples))
            continue
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = ", ".join(f"{k} {v}" for k, v in sorted(sample.labels.items()))
                figures.append(NodeFigure(name, labels, family.documentation, sample.value))
    return NodeFigures(figures, spreads)


def _spread(name: str, text: str, samples: Iterable[Any]) -> FigureSpread:
    bounds, counts, seconds, before = [], [], 0.0, 0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            counts.append(int(sample.value) - before)
            before = int(sample.value)
        elif sample.name.endswith("_sum"):
            seconds = sample.value
    return FigureSpread(name, text, bounds, counts, seconds)


async def node_figures(services: Services) -> NodeFigures:
    """The metrics of the node and of this gateway. Errors: ``NodeUnreachable``."""
    page = await services.pages["/metrics"]()
    return figures_of(page["body"] + services.metrics.render().decode())


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Reasons why the node does not work, and further ones why it takes no messages."""

    unhealthy: list[str]
    unready: list[str]

    @property
    def word(self) -> str:
        if self.unhealthy:
            return "not working"
        return "not ready" if self.unready else "ready"


async def node_health(services: Services) -> NodeHealth:
    """Why the node does not work, or takes no messages, by itself. Errors: ``NodeUnreachable``."""
    healthy, ready = [
        json.loads((await services.pages[path]())["body"])["reasons"]
        for path in ("/healthz", "/readyz")
    ]
    return NodeHealth(healthy, [reason for reason in ready if reason not in healthy])
