"""The audit of a fleet: the comparisons of each wheel, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Message
from slotwheel.account.vocabulary import FAULTS, AuditVerdict, Boundary
from slotwheel.audit.auditor import Auditor
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.v1.audit import AuditAnswer, AuditComparison, AuditDiffering, joined_audit
from slotwheel.trace.events import AUDIT_TOPIC
from slotwheel.trace.targets import WheelTarget
from support.fleetofnodes import FleetOfNodes, fleet_of_nodes
from support.waiting import eventually


def answer(at_ms: int, *buckets: int, problem: str = "") -> AuditAnswer:
    comparisons = [
        AuditComparison(
            "t", bucket, Boundary.CLIENT_WHEEL, "", AuditVerdict.EQUAL, 0, 5, 10, 10, ""
        )
        for bucket in buckets
    ]
    differing = [AuditDiffering("t", Boundary.WHEEL_TOPIC, "", 1, 2, 1, 1, 0)]
    counts = {"equal": len(buckets)}
    return AuditAnswer(
        at_ms, False, 0, counts, comparisons, differing, counts, {"late": 1}, problem, 0
    )


def test_comparisons_stand_side_by_side_and_counts_are_summed() -> None:
    answers = {"north": answer(50, 10, 30), "south": answer(40, 20, problem="Kafka is away")}
    joined = joined_audit(answers, ["the wheel west is missing: x"])
    assert [(row.bucket_ms, row.wheel) for row in joined.comparisons] == [
        (30, "north"),
        (20, "south"),
        (10, "north"),
    ]
    assert [row.wheel for row in joined.differing] == ["north", "south"]
    assert (joined.at_ms, joined.verdicts, joined.refused) == (40, {"equal": 3}, {"late": 2})
    assert joined.problem == "the wheel west is missing: x; south: Kafka is away"
    with pytest.raises(HttpError, match="no wheel tells"):
        joined_audit({}, ["the wheel west is missing: x"])


@pytest.mark.soak  # A bucket of ten seconds, and what may come later for it.
def test_each_wheel_compares_its_own_messages(tmp_path: Path) -> None:
    with fleet_of_nodes(tmp_path, ["north", "south"], "--audit") as fleet:
        sent = send(fleet)
        eventually(lambda: accepted(fleet) == sent, 60)
        found = fleet.front.get("/v1/audit")
        assert found["problem"] == ""
        of_topic = [row for row in found["comparisons"] if row["topic"] == "audited"]
        faults = {row["verdict"] for row in of_topic} & set(FAULTS)
        assert not faults, of_topic
        fleet.nodes["south"].kill()
        partly = fleet.front.get("/v1/audit")
        assert "the wheel south is missing" in partly["problem"]
        assert {row["wheel"] for row in partly["comparisons"]} == {"north"}


def send(fleet: FleetOfNodes) -> dict[str, int]:
    """Send to each wheel through a client of its own, which tells it what was sent."""
    counts = {}
    for count, (name, node) in zip((40, 70), fleet.nodes.items(), strict=True):
        auditor = Auditor(WheelTarget(node.address, AUDIT_TOPIC), client="test", interval_s=10.0)
        with Client(node.address, observer=auditor) as client:
            client.send_many([Message("audited", b"x", delay=3)] * count).result(30)
        auditor.close(10)
        counts[name] = count
    return counts


def accepted(fleet: FleetOfNodes) -> dict[str, int]:
    """How many messages of the topic were produced and accepted, by wheel."""
    totals: dict[str, int] = {}
    rows: list[dict[str, Any]] = fleet.front.get("/v1/audit")["comparisons"]
    for row in rows:
        place = row["topic"], row["boundary"], row["verdict"]
        if place == ("audited", Boundary.CLIENT_WHEEL, AuditVerdict.EQUAL):
            totals[row["wheel"]] = totals.get(row["wheel"], 0) + row["after"]
    return totals
