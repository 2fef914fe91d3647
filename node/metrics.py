"""The metrics of a node, in Prometheus' form, in a registry of its own.

Two kinds: figures that are read from the wheel's status at a scrape (``_Standing``), so that they
cannot differ from it, and those that are counted at each event. Counts that the wheel itself keeps
(accepted, delivered, dead) continue after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..wheel.answers import Status
from .histogram import ArrayHistogram

LATENESS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
APPEND_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SPILL_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_COUNTS: dict[str, tuple[str, Callable[[Status], float]]] = {
    "accepted": ("Messages committed to the log", lambda s: s.accepted),
    "delivered": ("Messages a sink accepted", lambda s: s.delivered),
    "dead": ("Messages that became dead letters", lambda s: s.dead),
    "cancelled": ("Messages cancelled", lambda s: s.cancelled),
}
_LEVELS: dict[str, tuple[str, Callable[[Status], float]]] = {
    "pending": ("Messages accepted, not yet delivered, dead or cancelled", lambda s: s.pending),
    "tail_bytes": ("Bytes of committed rows held in memory", lambda s: s.tail_bytes),
    "tail_rows": ("Committed rows held in memory", lambda s: s.tail_rows),
    "queued_bytes": ("Bytes waiting to be written to the journal", lambda s: s.queued_bytes),
    "open_handles": ("Slot files held open", lambda s: s.open_handles),
    "held_topics": ("Topics held back because they say not now", lambda s: len(s.held_topics)),
    "slot_files": ("Slot files on disk", lambda s: s.slot_files),
    "slot_bytes": ("Bytes in slot files", lambda s: s.slot_bytes),
    "slot_rows": ("Rows in slot files", lambda s: s.slot_rows),
    "journal_bytes": ("Bytes in journal segments", lambda s: s.journal_bytes),
    "archive_bytes": ("Bytes kept in the archive", lambda s: s.archive_bytes),
    "archive_missed": ("Files the archive could not keep", lambda s: s.archive_missed),
    "producers": ("Producers whose last sequences are remembered", lambda s: s.producers),
    "epoch": ("The epoch of this node's log", lambda s: s.epoch),
    "commit_index": ("Index up to which the log is committed", lambda s: s.commit_index),
    "checkpoint_index": ("Index up to which slot files hold it", lambda s: s.checkpoint_index),
}


class Metrics:
    """All of a node's metrics. Names begin with ``slotwheel_``; times are in seconds."""

    def __init__(self) -> None:
        registry = CollectorRegistry(auto_describe=False)
        self._registry = registry
        self.refused = Counter(
            "slotwheel_refused_rows", "Rows refused on the way in", ["code"], registry=registry
        )
        self.refused_batches = Counter(
            "slotwheel_refused_batches",
            "Batches refused on the way in",
            ["code"],
            registry=registry,
        )
        self.appended = Counter(
            "slotwheel_appended_rows", "Rows committed since the start", registry=registry
        )
        self.appended_bytes = Counter(
            "slotwheel_appended_bytes", "Bytes committed since the start", registry=registry
        )
        self.early = Counter(
            "slotwheel_early_rows", "Rows delivered before their due time", registry=registry
        )
        self.group_commits = Counter(
            "slotwheel_group_commits", "Writes of the journal, each one sync", registry=registry
        )
        self.spilled = Counter(
            "slotwheel_spilled_rows", "Rows moved into slot files", registry=registry
        )
        self.alarms = Counter(
            "slotwheel_alarms", "Things a person should look at", ["kind"], registry=registry
        )
        self.scrubbed_bytes = Counter(
            "slotwheel_scrubbed_bytes", "Bytes of slot files read ahead", registry=registry
        )
        self.scrub_passes = Counter(
            "slotwheel_scrub_passes", "How often all slot files were read ahead", registry=registry
        )
        self.recovery = Gauge(
            "slotwheel_recovery_seconds",
            "How long the data directory took to open",
            registry=registry,
        )
        self.lateness = ArrayHistogram(
            "slotwheel_lateness_seconds", "Delivered, less the later of due and created", LATENESS_S
        )
        self.append_seconds = ArrayHistogram(
            "slotwheel_append_seconds", "From a batch's receipt to its commit", APPEND_S
        )
        self.spill_seconds = ArrayHistogram(
            "slotwheel_spill_seconds", "How long a spill into slot files took", SPILL_S
        )
        for histogram in (self.lateness, self.append_seconds, self.spill_seconds):
            registry.register(histogram)

    def watch(
        self,
        status: Callable[[], Status],
        clock: Callable[[], int],
        disk_free: Callable[[], int],
        sink_up: Callable[[], bool],
        source_lag: Callable[[], int | None],
        damaged: Callable[[], int],
        group: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Report a wheel's status, and that of its surroundings, at each scrape. ``clock``: ms;
        ``damaged``: number of damaged files; ``group``: the status of the peers, if any."""
        standing = _Standing(status, clock, disk_free, sink_up, source_lag, damaged, group)
        self._registry.register(standing)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Standing:
    def __init__(
        self,
        status: Callable[[], Status],
        clock: Callable[[], int],
        disk_free: Callable[[], int],
        sink_up: Callable[[], bool],
        source_lag: Callable[[], int | None],
        damaged: Callable[[], int],
        group: Callable[[], dict[str, Any]] | None,
    ) -> None:
        self._group = group
        self._damaged = damaged
        self._status = status
        self._clock = clock
        self._disk_free = disk_free
        self._sink_up = sink_up
        self._source_lag = source_lag

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        for name, (text, read) in _COUNTS.items():
            yield CounterMetricFamily(f"slotwheel_{name}", text, value=read(status))
        for name, (text, read) in _LEVELS.items():
            yield GaugeMetricFamily(f"slotwheel_{name}", text, value=read(status))
        age_s = max(0.0, (self._clock() - status.mark_c) / 1000)
        yield GaugeMetricFamily(
            "slotwheel_mark_age_seconds",
            "How far the mark stands behind the clock: delivery is late by that",
            value=age_s if status.pending else 0.0,
        )
        yield GaugeMetricFamily(
            "slotwheel_disk_free_bytes", "Free on the data directory's disk", self._disk_free()
        )
        yield GaugeMetricFamily(
            "slotwheel_sink_up", "Whether the sink can be reached", float(self._sink_up())
        )
        yield GaugeMetricFamily(
            "slotwheel_damaged_files",
            "Slot files and segments of embedded topics that are not what was written",
            self._damaged(),
        )
        lag = self._source_lag()
        if lag is not None:
            yield GaugeMetricFamily(
                "slotwheel_delay_topic_lag", "Records of the delay topic not yet taken", lag
            )
        group = {} if self._group is None else self._group()
        if group:  # empty while the node is starting
            yield from _of_group(group)


def _of_group(group: dict[str, Any]) -> Iterable[Metric]:
    """Metrics of the peers, from ``Driver.status``."""
    yield GaugeMetricFamily(
        "slotwheel_master", "Whether this peer is the master", float(group["role"] == "master")
    )
    yield GaugeMetricFamily(
        "slotwheel_master_known", "Whether a master is known", float(bool(group["master"]))
    )
    yield GaugeMetricFamily(
        "slotwheel_lease_seconds", "How long this master may still act", group["lease_ms"] / 1000
    )
    lag = GaugeMetricFamily(
        "slotwheel_peer_lag_entries", "Entries a peer does not have on disk yet", labels=["peer"]
    )
    heard = GaugeMetricFamily(
        "slotwheel_peer_heard_seconds", "How long ago a peer was heard", labels=["peer"]
    )
    for peer in group["peers"]:
        if peer.get("lag_entries") is not None:
            lag.add_metric([peer["id"]], peer["lag_entries"])
        if peer.get("heard_ms") is not None:
            heard.add_metric([peer["id"]], peer["heard_ms"] / 1000)
    yield lag
    yield heard
