"""Alarms: each kind that is raised has a row, a place on the page and a rule, and each rule fires
when it should, by Prometheus' own program."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel.broker.sources import MADE_ANEW, MISSED
from slotwheel.node.alarmrules import WATCHES, alarms_page, rule_name, rules_yaml
from slotwheel.node.alarms import ALARMS
from slotwheel.node.metrics import Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/slotwheel.rules.yml"
ROOMS = ("broker", "delivery", "node", "replication")
AGAIN = "from slotwheel.node.alarmrules import {0} as f; print(f(), end='')"
UNSEEN = {MISSED, MADE_ANEW, "snapshot-lost"}
"""Kinds of which the call that raises them has no literal, or is not called ``alarm``."""


def raised() -> Iterator[str]:
    """The kinds that the code names: the literals that are given to ``alarm``, and the names of
    loops that go on after an error."""
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            ends = any(ast.unparse(keyword) == "fatal=(Exception,)" for keyword in call.keywords)
            for literal in _literals(call.args[:1]):
                if name == "alarm":
                    yield literal
                elif name == "loop" and not ends:
                    yield f"{literal}-failed"


def _literals(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.IfExp):
            yield from _literals([node.body, node.orelse])


def test_each_kind_that_is_raised_has_a_row_and_each_row_is_raised() -> None:
    kinds = set(raised()) | UNSEEN
    assert len(kinds) > 40, "the code was not understood"
    assert sorted(ALARMS) == sorted(kinds)


@pytest.mark.parametrize(
    ("path", "made"),
    [(RULES, rules_yaml), (ROOT / "docs/alarms.md", alarms_page)],
    ids=["rules", "page"],
)
def test_the_files_are_what_the_rows_make(path: Path, made: Any) -> None:
    assert path.read_text() == made(), f"write it again: {AGAIN.format(made.__name__)} > {path}"


def test_each_kind_is_served_before_it_is_raised() -> None:
    """Otherwise its count would begin with 1, in which Prometheus sees no growth."""
    lines = set(Metrics().render().decode().splitlines())
    assert {f'slotwheel_alarms_total{{kind="{kind}"}} 0.0' for kind in ALARMS} <= lines


MINUTES = 30
FIRING = {
    "SlotwheelDown": 'up{job="slotwheel"} 0x30',
    "SlotwheelNotReady": "slotwheel_ready 0x30",
    "SlotwheelSinkDown": "slotwheel_sink_up 0x30",
    "SlotwheelBehind": "slotwheel_mark_age_seconds 11x30",
    "SlotwheelLate": 'slotwheel_lateness_seconds_bucket{le="1"} 0+97x30\n'
    'slotwheel_lateness_seconds_bucket{le="2"} 0+100x30\n'
    'slotwheel_lateness_seconds_bucket{le="+Inf"} 0+100x30',
    "SlotwheelHeldTopics": "slotwheel_held_topics 1x30",
    "SlotwheelRefuses": 'slotwheel_refused_rows_total{code="overloaded"} 0+9x30',
    "SlotwheelDeadLetters": "slotwheel_dead_total 0x25 1x5",
    "SlotwheelDiskFills": "slotwheel_disk_free_bytes 3000000000-20000000x30",
    "SlotwheelDamagedFiles": "slotwheel_damaged_files 1x30",
    "SlotwheelDelayTopicLag": 'slotwheel_delay_topic_lag{topic="t",partition="0"} 9000+900x30',
    "SlotwheelFleetShares": "slotwheel_delay_fleet_shares_total 0+1x30",
    "SlotwheelNoMaster": "slotwheel_master_known 0x30",
    "SlotwheelPeerAway": 'slotwheel_peer_heard_seconds{peer="b"} 0+60x30',
    "SlotwheelPeerLags": 'slotwheel_peer_lag_entries{peer="b"} 20000x30',
    "SlotwheelAuditDiffers": "slotwheel_audit_differs 1x30",
    "SlotwheelAuditStands": "slotwheel_audit_age_seconds 0+60x30",
    "SlotwheelArchiveMissed": "slotwheel_departures_missed_total 0x25 5x5",
    "SlotwheelTraceStoreRestarts": "slotwheel_trace_store_starts_total 1+1x30",
    "SlotwheelHttpErrors": 'slotwheel_http_requests_total{route="/v1/messages",status="503"}'
    " 0+60x30",
}
"""Series, a sample each minute, by which a rule fires at the end of half an hour."""
SOUND = """up{job="slotwheel"} 1x30
slotwheel_ready 1x30
slotwheel_sink_up 1x30
slotwheel_mark_age_seconds 0 0 12 0x27
slotwheel_lateness_seconds_bucket{le="1"} 0+100x30
slotwheel_lateness_seconds_bucket{le="+Inf"} 0+100x30
slotwheel_held_topics 0x30
slotwheel_refused_rows_total{code="invalid-message"} 0+9x30
slotwheel_dead_total 7x30
slotwheel_disk_free_bytes 3000000000-200000x30
slotwheel_damaged_files 0x30
slotwheel_delay_topic_lag{topic="t",partition="0"} 90000-900x30
slotwheel_delay_fleet_shares_total 0 2x29
slotwheel_master_known 1x30
slotwheel_peer_heard_seconds{peer="b"} 0.2x30
slotwheel_peer_lag_entries{peer="b"} 300x30
slotwheel_audit_differs 0x30
slotwheel_audit_age_seconds 2x30
slotwheel_archive_missed 0x30
slotwheel_departures_missed_total 5x30
slotwheel_trace_store_starts_total 1x30
slotwheel_http_requests_total{route="/v1/messages",status="201"} 0+60x30
slotwheel_http_requests_total{route="/readyz",status="503"} 0+60x30"""


def case(series: str, fires: Collection[str] = ()) -> dict[str, Any]:
    """A test of promtool: which of all rules fire at the end, each once."""
    lines = [line.replace("}", ',instance="a"}') for line in series.splitlines()]
    lines = [line if "{" in line else line.replace(" ", '{instance="a"} ', 1) for line in lines]
    split = [line.rpartition("} ") for line in lines]
    return {
        "interval": "1m",
        "input_series": [{"series": f"{name}}}", "values": values} for name, _, values in split],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires
                ],
            }
        ],
    }


def test_each_rule_fires_when_it_should_and_no_other(tmp_path: Path) -> None:
    assert set(FIRING) == {watch.name for watch in WATCHES}
    counts = [f'slotwheel_alarms_total{{kind="{kind}"}}' for kind in ALARMS]
    kinds = [rule_name(kind) for kind in ALARMS]
    cases = [
        case(SOUND),
        case("\n".join(FIRING.values()), FIRING),
        case("\n".join(f"{count} 4x30" for count in counts)),
        case("\n".join(f"{count} 0x25 1x5" for count in counts), kinds),
        # A process that began with it.
        case("\n".join(f"{count} _x25 1x5" for count in counts), kinds),
    ]
    prove(tmp_path, cases)


def test_promtool_finds_a_rule_that_does_not_fire(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="SlotwheelNotReady"):
        prove(tmp_path, [case("slotwheel_ready 1x30", ["SlotwheelNotReady"])])


def prove(folder: Path, cases: list[dict[str, Any]]) -> None:
    file = folder / "rules.test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": cases}))
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_figure_of_a_rule_is_explained() -> None:
    """The page of operations says what it is, or it is one of Prometheus' own."""
    text = (ROOT / "docs/operations.md").read_text()
    names = {
        re.sub(r"_bucket$", "", name)
        for watch in WATCHES
        for name in re.findall(r"slotwheel_\w+", watch.expr)
    }
    assert [name for name in sorted(names) if name not in text] == []
