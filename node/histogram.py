"""A Prometheus histogram that observes a whole array at once.

Observing row by row costs about a microsecond each in Python; at 50 000 rows a second that is a
twentieth of a core for a metric. One ``searchsorted`` a chunk costs next to nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client.core import HistogramMetricFamily, Metric


class ArrayHistogram:
    """A histogram. ``buckets`` are ascending upper bounds; infinity is added. Thread-safe."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = np.asarray(buckets, np.float64)
        self._plain_bounds = self._bounds.tolist()
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, values: npt.NDArray[np.float64]) -> None:
        """Add ``values``, shape (count,)."""
        places = np.searchsorted(self._bounds, values, side="left")
        counts = np.bincount(places, minlength=len(self._counts))
        total = float(values.sum())
        with self._lock:
            self._counts += counts
            self._sum += total

    def observe_one(self, value: float) -> None:
        """Add one value, which must not be NaN."""
        place = bisect_left(self._plain_bounds, value)  # a tenth of what ``searchsorted`` takes
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            counts, total = np.cumsum(self._counts).tolist(), self._sum
        bounds = [*(f"{bound:g}" for bound in self._plain_bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(bounds, counts, strict=True)), total)
        yield family
