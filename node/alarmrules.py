"""Rules for Prometheus: one for each kind of alarm, and those over figures that should not be.

Rules
- Each rule leads to the place in docs/alarms.md that says what to do, so nobody is woken without.
- An alarm fires for ten minutes, also one that a new process raised before its first scrape.
- A figure has to be wrong for a while (``for``) where it may be so for a moment in sound operation,
  as the master of a group is unknown during an election.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .alarms import ALARMS, ALARMS_TOTAL, Alarm, Urgency

PAGE = "docs/alarms.md"
_WINDOW = "10m"
_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
_BEGIN = """# Alarms

`deploy/prometheus/slotwheel.rules.yml` has a rule for Prometheus for each heading of this page,
with the same texts. *page* means that somebody has to look now, *ticket* that it has time until the
next working day. Scrape each node, or its gateway, as the job `slotwheel`:

```yaml
rule_files: [slotwheel.rules.yml]
scrape_configs:
  - job_name: slotwheel
    static_configs:
      - targets: ["node-1:9100", "node-2:9100", "node-3:9100"]
```

Errors at a sender, and what is wrong without an alarm, are in
[When something is wrong](operations.md#when-something-is-wrong).

## Figures
"""
_BETWEEN = """## Kinds

A node counts what somebody should look at in `slotwheel_alarms_total`, by `kind`, and logs *alarm
KIND* with the reason. The rule of a kind has its name: *SlotwheelClockBehind* is that of
`clock-behind`. It fires for ten minutes.
"""
_PAGE, _TICKET = Urgency.PAGE, Urgency.TICKET


@dataclass(frozen=True, slots=True)
class Watch:
    """A rule over a figure. ``name``: of the rule, and of its heading on the page; ``expr``: what
    is wrong when it gives a row; ``for_``: for how long it has to be so, empty: not at all."""

    name: str
    expr: str
    for_: str
    row: Alarm


WATCHES = (
    Watch(
        "SlotwheelDown",
        'up{job="slotwheel"} == 0',
        "1m",
        Alarm(
            _PAGE,
            "Prometheus cannot reach `/metrics` of a node: it is down, or the way there is.",
            "`systemctl status slotwheel-node`, or the container's log. With peers the others go on"
            " while a majority is there; alone, messages wait on the disk until it is back.",
        ),
    ),
    Watch(
        "SlotwheelNotReady",
        "slotwheel_ready == 0",
        "2m",
        Alarm(
            _PAGE,
            "The node does not do all that it was told to do.",
            "`curl http://NODE/readyz` names the reasons;"
            " [what they mean](operations.md#when-something-is-wrong).",
        ),
    ),
    Watch(
        "SlotwheelSinkDown",
        "slotwheel_sink_up == 0",
        "1m",
        Alarm(
            _PAGE,
            "Kafka cannot be reached. Messages are stored meanwhile; due ones wait, in order.",
            "Mend Kafka, or the network to it. They leave at once when it is back.",
        ),
    ),
    Watch(
        "SlotwheelBehind",
        "slotwheel_mark_age_seconds > 10",
        "1m",
        Alarm(
            _PAGE,
            "Delivery is more than ten seconds behind the clock: messages leave late.",
            "`slotwheel status` names held topics, and the log the reasons. If nothing is wrong,"
            " more is due than Kafka takes, or than one wheel can hand over:"
            " [more than one wheel](scaling.md).",
        ),
    ),
    Watch(
        "SlotwheelLate",
        "histogram_quantile(0.99, sum by (instance, le)"
        " (rate(slotwheel_lateness_seconds_bucket[5m]))) > 1",
        "5m",
        Alarm(
            _TICKET,
            "One message of a hundred leaves more than a second late.",
            "Compare with the processor and the disk of the machine, and with Kafka's own times:"
            " [where the time goes](performance.md).",
        ),
    ),
    Watch(
        "SlotwheelHeldTopics",
        "slotwheel_held_topics > 0",
        "5m",
        Alarm(
            _PAGE,
            "A topic takes no messages now; all other topics go on.",
            "The log line *topic held back* has the reason:"
            " [what Kafka refuses](operations.md#what-kafka-refuses).",
        ),
    ),
    Watch(
        "SlotwheelRefuses",
        'sum by (instance, code) (rate(slotwheel_refused_rows_total{code="overloaded"}[5m])) > 0',
        "5m",
        Alarm(
            _PAGE,
            "Senders are refused because the node is full; they try again.",
            "The error that they get says what is full: the tail, the disk, the journal.",
        ),
    ),
    Watch(
        "SlotwheelDeadLetters",
        f"increase(slotwheel_dead_total[{_WINDOW}]) > 0",
        "",
        Alarm(
            _TICKET,
            "Messages became dead letters: no topic takes them.",
            "`slotwheel dead list` counts them by reason, `dead show` prints one; when the cause is"
            " mended, [`dead redrive`](operations.md#slotwheel-dead-redrive) sends them.",
        ),
    ),
    Watch(
        "SlotwheelDiskFills",
        "predict_linear(slotwheel_disk_free_bytes[1h], 4 * 3600) < 0",
        "15m",
        Alarm(
            _PAGE,
            "At the pace of the last hour the data directory's disk is full in four hours.",
            "Make room, or a larger disk; `slotwheel status` says how much is pending, and"
            " [what it takes on the disk](operations.md#what-they-take-on-the-disk). At"
            " `--disk-reserve` senders are refused, and nothing is lost.",
        ),
    ),
    Watch(
        "SlotwheelDamagedFiles",
        "slotwheel_damaged_files > 0",
        "10m",
        Alarm(
            _PAGE,
            "A file is not what was written, and nobody has mended it yet.",
            "`slotwheel status` names it. A slot file:"
            " [A damaged slot file](operations.md#a-damaged-slot-file).",
        ),
    ),
    Watch(
        "SlotwheelDelayTopicLag",
        "slotwheel_delay_topic_lag > 10000 and deriv(slotwheel_delay_topic_lag[10m]) > 0",
        "10m",
        Alarm(
            _TICKET,
            "Records of a delay topic come faster than they are read.",
            "[More than one wheel](scaling.md#delay-topics) share its partitions.",
        ),
    ),
    Watch(
        "SlotwheelFleetShares",
        "increase(slotwheel_delay_fleet_shares_total[30m]) > 10",
        "",
        Alarm(
            _TICKET,
            "The wheels of a fleet share out their partitions again and again: one keeps dying.",
            "`slotwheel fleet status` names wheels that do not answer; their logs say why.",
        ),
    ),
    Watch(
        "SlotwheelNoMaster",
        "slotwheel_master_known == 0",
        "30s",
        Alarm(
            _PAGE,
            "A peer knows no master: no majority is there, or it is cut off.",
            "Look at the other peers, and at the network between them.",
        ),
    ),
    Watch(
        "SlotwheelPeerAway",
        "slotwheel_peer_heard_seconds > 30",
        "1m",
        Alarm(
            _PAGE,
            "The master has not heard a peer for half a minute. With one more away, a group of"
            " three stands still.",
            "Start the peer; [a lost machine](operations.md#replacing-a-lost-machine) is replaced.",
        ),
    ),
    Watch(
        "SlotwheelPeerLags",
        "slotwheel_peer_lag_entries > 10000",
        "10m",
        Alarm(
            _TICKET,
            "A peer is far behind the master.",
            "Look at its disk, and at the network. While it is behind it counts for no majority.",
        ),
    ),
    Watch(
        "SlotwheelAuditDiffers",
        "slotwheel_audit_differs > 0",
        "",
        Alarm(
            _PAGE,
            "The audit says that messages were lost or repeated, or are not the same.",
            "`GET /v1/audit?verdict=lost`, or the console's page, names topic and time;"
            " [`slotwheel replay`](replay.md) tells which messages. See [audit](audit.md).",
        ),
    ),
    Watch(
        "SlotwheelAuditStands",
        "slotwheel_audit_age_seconds > 60",
        "5m",
        Alarm(
            _TICKET,
            "The audit has looked at nothing new for a minute.",
            "The gateway's log says why: Kafka cannot be read, or there is more than it keeps up"
            " with.",
        ),
    ),
    Watch(
        "SlotwheelArchiveMissed",
        "slotwheel_archive_missed > 0 or"
        f" increase(slotwheel_departures_missed_total[{_WINDOW}]) > 0",
        "",
        Alarm(
            _TICKET,
            "Files that `--retain`, or departures that `--trace-retain`, should keep could not be"
            " kept: a proof over that time is not complete.",
            "The log says why: mostly a full disk.",
        ),
    ),
    Watch(
        "SlotwheelTraceStoreRestarts",
        "increase(slotwheel_trace_store_starts_total[30m]) > 2",
        "",
        Alarm(
            _TICKET,
            "The process that stores trace events keeps ending.",
            "The gateway's log says why it ended.",
        ),
    ),
    Watch(
        "SlotwheelHttpErrors",
        "sum by (instance) (rate(slotwheel_http_requests_total"
        '{status=~"5..", route!~"/readyz|/healthz"}[5m])) > 0.1',
        "5m",
        Alarm(
            _TICKET,
            "The gateway answers requests by errors of its own, or as no node answers it.",
            "`slotwheel_http_requests_total` has route and status; the gateway's log the errors.",
        ),
    ),
)
"""Rules over figures, the gravest first."""


def rule_name(kind: str) -> str:
    """The name of the rule of an alarm: ``SlotwheelClockBehind`` for ``clock-behind``."""
    return "Slotwheel" + "".join(part.capitalize() for part in kind.split("-"))


def rules_yaml() -> str:
    """The file of rules, as Prometheus reads it."""
    lines = ["groups:", "  - name: slotwheel", "    rules:"]
    for watch in WATCHES:
        lines += _rule(watch.name, watch.expr, watch.for_, watch.row, watch.name.lower())
    lines += ["  - name: slotwheel-alarms", "    rules:"]
    for kind, row in ALARMS.items():
        count = f'{ALARMS_TOTAL}{{kind="{kind}"}}'
        expr = f"increase({count}[{_WINDOW}]) > 0 or ({count} > 0 unless {count} offset {_WINDOW})"
        lines += _rule(rule_name(kind), expr, "", row, kind)
    return "\n".join(lines) + "\n"


def _rule(name: str, expr: str, for_: str, row: Alarm, anchor: str) -> Iterator[str]:
    yield f"      - alert: {name}"
    yield f"        expr: {_quoted(expr)}"
    if for_:
        yield f"        for: {for_}"
    yield "        labels:"
    yield f"          severity: {row.urgency}"
    yield "        annotations:"
    yield f"          summary: {_quoted(_plain(row.meaning))}"
    yield f"          description: {_quoted(_plain(row.remedy))}"
    yield f"          runbook: {PAGE}#{anchor}"


def alarms_page() -> str:
    """The page docs/alarms.md."""
    lines = [_BEGIN]
    for watch in WATCHES:
        after = f", for {watch.for_}" if watch.for_ else ""
        lines.append(_section(watch.name, watch.row, f"Fires when `{watch.expr}`{after}."))
    lines.append(_BETWEEN)
    lines += [_section(kind, row, "") for kind, row in ALARMS.items()]
    return "\n".join(lines)


def _section(heading: str, row: Alarm, when: str) -> str:
    parts = (f"### {heading}", f"*{row.urgency}*. {row.meaning}", row.remedy, when)
    return "\n\n".join(filter(None, parts)) + "\n"


def _plain(text: str) -> str:
    """A text without Markdown's marks: an alarm is read on a telephone."""
    return _LINK.sub(r"\1 (docs/\2)", text).replace("`", "").replace("*", "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
