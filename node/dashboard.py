"""The dashboard for Grafana, made of a table of panels.

Rules
- Each figure that a rule of ``alarmrules.py`` watches is drawn, so that whoever is called by an
  alarm sees when it began and how fast it grows.
- Everything is by ``instance``: the sum over three peers would count each message three times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_JOB = 'job="slotwheel",instance=~"$instance"'
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. ``lines``: the expression of each line, by its legend; ``@`` stands in them for the
    labels that choose the nodes. ``unit``: as Grafana names it."""

    title: str
    unit: str
    lines: dict[str, str]
    text: str = ""


def _rate(metric: str) -> str:
    return f"rate(slotwheel_{metric}{{@}}[$__rate_interval])"


def _quantile(quantile: float, metric: str) -> str:
    buckets = _rate(f"{metric}_bucket")
    return f"histogram_quantile({quantile}, sum by (instance, le) ({buckets}))"


def _level(metric: str) -> str:
    return f"slotwheel_{metric}{{@}}"


_EACH = "{{instance}}"
ROWS: dict[str, list[Panel]] = {
    "Is it well": [
        Panel(
            "Ready",
            "none",
            {f"ready {_EACH}": _level("ready"), f"up {_EACH}": "up{@}"},
            "1 while the node does all that it was told to do.",
        ),
        Panel(
            "Alarms, in ten minutes",
            "none",
            {
                "{{kind}} "
                + _EACH: "sum by (instance, kind) (increase(slotwheel_alarms_total{@}[10m])) > 0"
            },
            "docs/alarms.md says of each kind what it means, and what to do.",
        ),
        Panel(
            "Kafka, topics, files",
            "none",
            {
                f"sink up {_EACH}": _level("sink_up"),
                f"held topics {_EACH}": _level("held_topics"),
                f"damaged files {_EACH}": _level("damaged_files"),
            },
        ),
    ],
    "Messages": [
        Panel("Pending", "short", {_EACH: _level("pending")}),
        Panel(
            "In and out, a second",
            "cps",
            {
                f"in {_EACH}": _rate("accepted_total"),
                f"out {_EACH}": _rate("delivered_total"),
                f"cancelled {_EACH}": _rate("cancelled_total"),
            },
        ),
        Panel(
            "Dead, expired, refused, a second",
            "cps",
            {
                f"dead {_EACH}": _rate("dead_total"),
                f"expired {_EACH}": _rate("expired_total"),
                "refused {{code}} " + _EACH: _rate("refused_rows_total"),
            },
        ),
        Panel(
            "Lateness",
            "s",
            {
                f"p50 {_EACH}": _quantile(0.5, "lateness_seconds"),
                f"p99 {_EACH}": _quantile(0.99, "lateness_seconds"),
            },
            "Delivered, less the later of due and created.",
        ),
        Panel("Behind the clock", "s", {_EACH: _level("mark_age_seconds")}),
        Panel(
            "Time to a receipt",
            "s",
            {
                f"p50 {_EACH}": _quantile(0.5, "append_seconds"),
                f"p99 {_EACH}": _quantile(0.99, "append_seconds"),
            },
        ),
    ],
    "Delay topics": [
        Panel(
            "Not read yet", "short", {"{{topic}}/{{partition}} " + _EACH: _level("delay_topic_lag")}
        ),
        Panel("Is read", "none", {"{{topic}}/{{partition}} " + _EACH: _level("delay_topic_read")}),
        Panel(
            "The fleet",
            "short",
            {
                f"wheels {_EACH}": _level("delay_fleet_members"),
                f"partitions {_EACH}": _level("delay_fleet_partitions"),
                f"shared out {_EACH}": "increase(slotwheel_delay_fleet_shares_total{@}[30m])",
            },
        ),
    ],
    "Peers": [
        Panel(
            "Master",
            "none",
            {f"is master {_EACH}": _level("master"), f"known {_EACH}": _level("master_known")},
        ),
        Panel("Behind the master, entries", "short", {"{{peer}}": _level("peer_lag_entries")}),
        Panel("Last heard", "s", {"{{peer}}": _level("peer_heard_seconds")}),
    ],
    "Disk and memory": [
        Panel("Disk free", "bytes", {_EACH: _level("disk_free_bytes")}),
        Panel(
            "Data",
            "bytes",
            {
                f"slot files {_EACH}": _level("slot_bytes"),
                f"journal {_EACH}": _level("journal_bytes"),
                f"archive {_EACH}": _level("archive_bytes"),
            },
        ),
        Panel(
            "In memory",
            "bytes",
            {f"tail {_EACH}": _level("tail_bytes"), f"queued {_EACH}": _level("queued_bytes")},
        ),
    ],
    "Gateway, audit, traces": [
        Panel(
            "Requests, a second",
            "reqps",
            {
                "{{status}} " + _EACH: "sum by (instance, status)"
                " (rate(slotwheel_http_requests_total{@}[$__rate_interval]))"
            },
        ),
        Panel(
            "Audit",
            "none",
            {
                f"buckets that differ {_EACH}": _level("audit_differs"),
                f"age, s {_EACH}": _level("audit_age_seconds"),
            },
        ),
        Panel(
            "Not kept, and restarts",
            "none",
            {
                f"archive {_EACH}": _level("archive_missed"),
                f"departures {_EACH}": "increase(slotwheel_departures_missed_total{@}[10m])",
                f"trace store starts {_EACH}": "slotwheel_trace_store_starts_total{@}",
            },
        ),
    ],
}
"""The panels, by the title of their row."""


def dashboard_json() -> str:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": _WIDTH * _ACROSS, "x": 0, "y": y}
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place})
        y += 1
        for number, panel in enumerate(row):
            x, down = number % _ACROSS, number // _ACROSS
            place = {"h": _HEIGHT, "w": _WIDTH, "x": x * _WIDTH, "y": y + down * _HEIGHT}
            panels.append(_panel(panel, place))
        y += -(-len(row) // _ACROSS) * _HEIGHT
    for number, drawn in enumerate(panels, 1):
        drawn["id"] = number
    model = {
        "title": "slotwheel",
        "uid": "slotwheel",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_DATASOURCE, _INSTANCE]},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(model, indent=1) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_DATASOURCE = {"name": "datasource", "type": "datasource", "query": "prometheus"}
_INSTANCE = {
    "name": "instance",
    "type": "query",
    "datasource": _SOURCE,
    "query": 'label_values(up{job="slotwheel"}, instance)',
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": expr.replace("@", _JOB),
            "legendFormat": legend,
        }
        for number, (legend, expr) in enumerate(panel.lines.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }
