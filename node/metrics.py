"""The metrics of a node, in Prometheus' form, in a registry of its own.

There are two kinds: figures that are read from the wheel's status at a scrape (``Scrape``), so that
they cannot differ from it, and those that are counted at each event. Counts that the wheel itself
keeps (accepted, delivered, dead) continue after a restart; the others begin at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..wheel.answers import Status
from .alarms import ALARMS
from .histogram import ArrayHistogram
from .intake.delay_source import SourceState
from .intake.fleet import FleetState

LATENESS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
APPEND_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SPILL_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_COUNTS: dict[str, tuple[str, Callable[[Status], float]]] = {
    "accepted": ("Messages committed to the log", lambda s: s.accepted),
    "delivered": ("Messages a sink accepted", lambda s: s.delivered),
    "dead": ("Messages that no topic took, and that became dead letters", lambda s: s.dead),
    "expired": ("Messages not delivered as their time was over", lambda s: s.expired),
    "cancelled": ("Messages cancelled", lambda s: s.cancelled),
    "schedule_runs": ("Messages of schedules, stored here as master", lambda s: s.schedule_runs),
    "schedule_missed": (
        "Runs of schedules that were missed before those, and became no messages",
        lambda s: s.schedule_missed,
    ),
    "names_replaced": (
        "Messages replaced by a later one of their name, since the start",
        lambda s: s.names_replaced,
    ),
    "names_kept": (
        "Messages dropped as another one of their name was kept, since the start",
        lambda s: s.names_kept,
    ),
}
_LEVELS: dict[str, tuple[str, Callable[[Status], float]]] = {
    "pending": (
        "Messages accepted, and not delivered, dead, expired or cancelled",
        lambda s: s.pending,
    ),
    "tail_bytes": ("Bytes of committed rows held in memory", lambda s: s.tail_bytes),
    "tail_rows": ("Committed rows held in memory", lambda s: s.tail_rows),
    "queued_bytes": ("Bytes waiting to be written to the journal", lambda s: s.queued_bytes),
    "open_handles": ("Slot files held open", lambda s: s.open_handles),
    "held_topics": ("Topics held back because they say not now", lambda s: len(s.held_topics)),
    "slot_files": ("Slot files on disk", lambda s: s.slot_files),
    "slot_bytes": ("Bytes in slot files", lambda s: s.slot_bytes),
    "slot_rows": ("Rows in slot files", lambda s: s.slot_rows),
    "far_files": ("Slot files of an hour or of a day", lambda s: s.far_files),
    "far_bytes": ("Bytes in slot files of an hour or of a day", lambda s: s.far_bytes),
    "far_rows": ("Rows in slot files of an hour or of a day", lambda s: s.far_rows),
    "journal_bytes": ("Bytes in journal segments", lambda s: s.journal_bytes),
    "archive_bytes": ("Bytes kept in the archive", lambda s: s.archive_bytes),
    "archive_missed": ("Files the archive could not keep", lambda s: s.archive_missed),
    "names": (
        "Names in the table: of pending messages, and of some that have left",
        lambda s: s.names,
    ),
    "draining": ("1 while the group takes no new messages", lambda s: s.draining),
    "schedules": ("Schedules that the group has", lambda s: s.schedules),
    "producers": ("Producers whose last sequences are remembered", lambda s: s.producers),
    "requests": ("Requests with a key that are remembered", lambda s: s.requests),
    "epoch": ("The epoch of this node's log", lambda s: s.epoch),
    "commit_index": ("Index up to which the log is committed", lambda s: s.commit_index),
    "checkpoint_index": ("Index up to which slot files hold it", lambda s: s.checkpoint_index),
}


class Metrics:
    """All of a node's metrics. Names begin with ``slotwheel_``; times are in seconds."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)
        counter = partial(Counter, namespace="slotwheel", registry=registry)
        self.refused = counter("refused_rows", "Rows refused on the way in", ["code"])
        self.refused_batches = counter("refused_batches", "Batches refused on the way in", ["code"])
        self.appended = counter("appended_rows", "Rows committed since the start")
        self.appended_bytes = counter("appended_bytes", "Bytes committed since the start")
        self.early = counter("early_rows", "Rows delivered before their due time")
        self.group_commits = counter("group_commits", "Writes of the journal, each one sync")
        self.spilled = counter("spilled_rows", "Rows moved into slot files")
        self.alarms = counter("alarms", "Things a person should look at", ["kind"])
        for kind in ALARMS:
            self.alarms.labels(kind)
        self.departures_missed = counter(
            "departures_missed", "Messages of which it could not be kept how they left"
        )
        self.scrubbed_bytes = counter("scrubbed_bytes", "Bytes of slot files read ahead")
        self.scrub_passes = counter("scrub_passes", "How often all slot files were read ahead")
        self.recovery = Gauge(
            "recovery_seconds",
            "How long the data directory took to open",
            namespace="slotwheel",
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

    def watch(self, look: Callable[[], Scrape]) -> None:
        """Call ``look`` at each scrape, and report the figures that it returns."""
        self._registry.register(_Watched(look))

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The wheel's status and its surroundings at a scrape. ``sources``: the partitions of the delay
    topics, while this node reads them; ``fleet``: the fleet that shares them, None without one.
    ``notes``: the number of delay topics with records that were deleted unread. ``damaged``: the
    number of damaged files. ``group``: the status of the peers; empty without peers, and while the
    node is starting. ``ready``: as of ``/readyz``."""

    status: Status
    now_ms: int
    disk_free: int
    sink_up: bool
    sources: Sequence[SourceState]
    notes: int
    damaged: int
    group: dict[str, Any]
    ready: bool
    fleet: FleetState | None = None


class _Watched:
    def __init__(self, look: Callable[[], Scrape]) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        now = self._look()
        for name, (text, read) in _COUNTS.items():
            yield CounterMetricFamily(f"slotwheel_{name}", text, value=read(now.status))
        for name, (text, read) in _LEVELS.items():
            yield _gauge(name, text, read(now.status))
        age_s = max(0.0, (now.now_ms - now.status.mark_c) / 1000)
        yield _gauge(
            "mark_age_seconds",
            "How far the mark stands behind the clock: delivery is late by that",
            age_s if now.status.pending else 0.0,
        )
        yield _gauge("disk_free_bytes", "Free on the data directory's disk", now.disk_free)
        yield _gauge("ready", "Whether the node does all that it was told to do", float(now.ready))
        yield _gauge("sink_up", "Whether the sink can be reached", float(now.sink_up))
        yield _gauge(
            "damaged_files",
            "Slot files and segments of embedded topics that are not what was written",
            now.damaged,
        )
        yield _gauge(
            "delay_topic_notes",
            "Delay topics with records deleted before they were read, not acknowledged",
            now.notes,
        )
        yield from _of_sources(now.sources)
        if now.fleet is not None:
            yield from _of_fleet(now.fleet)
        if now.group:
            yield from _of_group(now.group)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"slotwheel_{name}", text, value)


def _of_sources(sources: Sequence[SourceState]) -> Iterable[Metric]:
    """Metrics of delay topics' partitions; a topic of unknown partitions has one without number."""
    labels = ["topic", "partition"]
    read = GaugeMetricFamily(
        "slotwheel_delay_topic_read", "Whether a partition of a delay topic is read", labels=labels
    )
    lag = GaugeMetricFamily(
        "slotwheel_delay_topic_lag", "Offsets of a delay topic not yet taken", labels=labels
    )
    for source in sources:
        place = [source.topic, "" if source.partition is None else str(source.partition)]
        read.add_metric(place, float(not source.problem))
        if source.lag is not None:
            lag.add_metric(place, source.lag)
    yield read
    yield lag


def _of_fleet(fleet: FleetState) -> Iterable[Metric]:
    yield _gauge("delay_fleet_members", "Wheels that share the delay topics", len(fleet.members))
    yield _gauge(
        "delay_fleet_partitions",
        "Partitions that the fleet gave to this wheel",
        0 if fleet.problem else fleet.partitions,
    )
    yield CounterMetricFamily(
        "slotwheel_delay_fleet_shares",
        "How often the fleet has shared its partitions out since this node became master",
        value=fleet.shared,
    )


def _of_group(group: dict[str, Any]) -> Iterable[Metric]:
    is_master = group["role"] == "master"
    yield _gauge("master", "Whether this peer is the master", float(is_master))
    yield _gauge("master_known", "Whether a master is known", float(bool(group["master"])))
    yield _gauge("lease_seconds", "How long this master may still act", group["lease_ms"] / 1000)
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
