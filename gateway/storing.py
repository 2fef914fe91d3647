"""Makes the trace store from the trace topic, in a process of its own.

Theory: decoding and merging events is processor time, as search is; so it has a process of low
priority, too. That process has nothing but what is on disk, so it can end at any time: another one
goes on from the positions that the store has.

Rules
- It ends with the gateway. Where it ends by itself it is started again; later each time, if it
  stored nothing before.
- What it counts comes over its line. Counts go on from those of the process before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..aside.process import Aside, log_to
from ..reading.kafka.opening import open_tails
from ..reading.problems import Problem
from ..reading.tailing import TailStart
from ..trace.store import StoreCounts, StoreWriter
from ..wheel.jumps import JumpGuard
from ..wheel.schema import times

log = logging.getLogger("slotwheel.trace")
FLUSH_S = 1.0
_READ_S = 0.2
_LAG_EVERY_S = 5.0
_AGAIN_S = 1.0, 30.0
_END_S = 2.0
_guard = JumpGuard()


@dataclass(frozen=True, slots=True)
class StoringSettings:
    """``store``: the directory; ``topic``: the trace topic, in Kafka at ``bootstrap``, or else the
    embedded one in ``data``. ``retain_ms``: how long events are kept after their arrival."""

    store: Path
    topic: str
    retain_ms: int
    data: Path | None = None
    bootstrap: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class StoringReport:
    """What the process says of itself. ``lag``: records of the topic that it has not read."""

    counts: StoreCounts = field(default_factory=StoreCounts)
    lag: int = 0


class StoreProcess:
    """Runs until ``close``. A collector of Prometheus, too."""

    def __init__(self, settings: StoringSettings) -> None:
        self._before = StoreCounts()
        """Of the processes that have ended."""
        self._report = StoringReport()
        self._lock = threading.Lock()
        self._aside = Aside(
            "the process that stores trace events", _store, settings, again_s=_AGAIN_S
        )
        self._thread = threading.Thread(target=self._run, name="trace-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._aside.close()
        self._thread.join(_END_S)

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            now, before = self._report.counts, self._before
        for name, text, value in (
            ("stored", "Events stored", now.stored + before.stored),
            ("twice", "Events that were stored already", now.twice + before.twice),
        ):
            yield CounterMetricFamily(f"slotwheel_trace_{name}", text, value)
        refused = CounterMetricFamily(
            "slotwheel_trace_refused",
            "Events refused; of not-events and unknown-version, whole records",
            labels=["reason"],
        )
        for reason, count in sorted((now.refused + before.refused).items()):
            refused.add_metric([reason], count)
        yield refused
        yield GaugeMetricFamily(
            "slotwheel_trace_missing", "Events that senders numbered and nobody got", now.missing
        )
        yield GaugeMetricFamily(
            "slotwheel_trace_lag", "Records of the trace topic that are not read", self._report.lag
        )
        yield CounterMetricFamily(
            "slotwheel_trace_store_starts", "Starts of the process that stores", self._aside.starts
        )

    def _run(self) -> None:
        for message in self._aside.messages():
            if isinstance(message, StoringReport):
                self._report = message
            else:
                self._add_up()
                log.warning("%s", message)

    def _add_up(self) -> None:
        ended, before = self._report.counts, self._before
        left = StoreCounts(missing=ended.missing, refused=Counter())
        with self._lock:  # a sum that goes down is a restart for who reads it
            self._before = StoreCounts(
                stored=before.stored + ended.stored,
                twice=before.twice + ended.twice,
                refused=before.refused + ended.refused,
            )
            self._report = StoringReport(left, self._report.lag)


def _store(line: Connection, settings: StoringSettings) -> None:
    """In the process."""
    log_to(line, log.name)
    try:
        _read_and_write(line, settings)
    except BrokenPipeError:
        raise  # the gateway is gone
    except Exception as error:
        log.warning("trace events cannot be stored: %s", error)


def _read_and_write(line: Connection, settings: StoringSettings) -> None:
    writer = StoreWriter(settings.store, settings.topic, retain_ms=settings.retain_ms)
    tails = open_tails(settings.data, settings.bootstrap, settings.kafka)
    tails.follow(settings.topic, TailStart(positions=writer.positions, source=writer.source))
    flushed_s = looked_s = float("-inf")
    lag = 0

    def store() -> None:
        """Store what waits, once in ``FLUSH_S``, and report."""
        nonlocal flushed_s, looked_s, lag
        now_s = time.monotonic()
        if now_s - flushed_s < FLUSH_S:
            return
        writer.flush(_now_ms())
        writer.tidy(_now_ms())
        flushed_s = time.monotonic()
        if now_s - looked_s >= _LAG_EVERY_S:
            lag, looked_s = tails.lag(), now_s
        line.send(StoringReport(writer.counts, lag))

    while True:
        for new in tails.read(_READ_S):
            if isinstance(new, Problem):
                log.warning("%s", new)
                continue
            writer.go_on(new.source)
            positions = times(new.rows, "position").tolist()
            for position, value in zip(
                positions, new.rows.column("value").to_pylist(), strict=True
            ):
                writer.add(new.partition, position + 1, value)
                if writer.full:
                    writer.flush(_now_ms())
            store()
        store()


def _now_ms() -> int:
    """The wall clock, unless it has jumped far ahead: by such a clock all events would be too old
    to be kept. A jump is believed when the gateway is started again."""
    passed_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return _guard.time(time.time_ns() // 1_000_000, passed_ms)
