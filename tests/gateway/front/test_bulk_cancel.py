"""A cancel of 200,000 messages over three wheels, and of a wheel that is killed while it runs.

In full: ``python -m pytest -m soak tests/gateway/front/test_bulk_cancel.py``
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Fleet, Message
from slotwheel.wheel.ids import MessageId
from support.fleetofnodes import FleetOfNodes, fleet_of_nodes
from support.waiting import eventually

ROWS = 200_000
WHERE = {"where": {"topic": "bulk"}}


def send(fleet: FleetOfNodes) -> Counter[str]:
    """Send the messages, and one in twenty of another topic; how many each wheel has of the
    first."""
    with Fleet(fleet.file) as client:
        receipts = client.send_many(
            Message("bulk" if n % 21 else "other", b"x", key=f"k{n % 977}", delay=3000 + n % 600)
            for n in range(ROWS * 21 // 20)
        ).result(120)
        return Counter(MessageId.parse(text).group for n, text in enumerate(receipts) if n % 21)


def begin(fleet: FleetOfNodes) -> str:
    begun = fleet.front.request("POST", "/v1/cancellations", json=WHERE)
    assert begun.status_code == 202, begun.text
    return f"/v1/jobs/{begun.json()['id']}"


def ended(fleet: FleetOfNodes, path: str) -> dict[str, Any]:
    eventually(lambda: fleet.front.get(path)["ended_ms"] is not None, 120)
    job: dict[str, Any] = fleet.front.get(path)
    return job


def test_all_are_cancelled_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fleet_of_nodes(tmp_path) as fleet:
        of_wheels = send(fleet)
        assert set(of_wheels) == set(fleet.nodes)
        rows = of_wheels.total()
        began = time.monotonic()
        job = ended(fleet, begin(fleet))
        took_s = time.monotonic() - began
        assert (job["state"], job["done"], job["total"]) == ("done", rows, rows)
        assert job["summary"] == {
            "answers": {"cancelled": rows},
            "unanswered": 0,
            "complete": True,
            "problems": [],
        }
        counted = fleet.front.get("/v1/messages/count", params={"by": "topic"})
        assert counted["topics"] == {"other": ROWS * 21 // 20 - rows}
    with capsys.disabled():
        print(f"\n{rows} messages of three wheels cancelled in {took_s:.1f} s")


def test_what_a_url_cannot_say_is_counted_and_cancelled(tmp_path: Path) -> None:
    """A key that is no text, and a header whose name has a colon."""
    with fleet_of_nodes(tmp_path, ("north", "south")) as fleet:
        with Fleet(fleet.file) as client:
            for n in range(4):
                client.send(Message("t", b"x", key=b"\xff\x00", delay=900))
                client.send(Message("t", b"x", headers=[("a:b", b"c")], key=f"k{n}", delay=900))
                client.send(Message("t", b"x", headers=[("a", b"b:c")], key=f"k{n}", delay=900))
        conditions: list[dict[str, Any]] = [{"key_base64": ["/wA="]}, {"headers": {"a:b": "c"}}]
        for condition in conditions:
            body = {"where": condition}
            counted = fleet.front.request("POST", "/v1/cancellations?dry_run=true", json=body)
            assert counted.json()["messages"] == 4, counted.text
            begun = fleet.front.request("POST", "/v1/cancellations", json=body)
            assert begun.status_code == 202, begun.text
            job = ended(fleet, f"/v1/jobs/{begun.json()['id']}")
            assert job["summary"]["answers"] == {"cancelled": 4}
        assert fleet.front.get("/v1/messages/count")["messages"] == 4


@pytest.mark.soak
def test_a_wheel_that_is_killed_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    with fleet_of_nodes(tmp_path) as fleet:
        of_wheels = send(fleet)
        path = begin(fleet)
        eventually(lambda: fleet.front.get(path)["done"] > 0)
        fleet.nodes["south"].kill()
        job = ended(fleet, path)
        summary = job["summary"]
        assert not summary["complete"]
        assert any("the wheel south is missing" in text for text in summary["problems"])
        others = of_wheels.total() - of_wheels["south"]
        assert others <= summary["answers"]["cancelled"] < of_wheels.total()
        counted = fleet.front.get("/v1/messages/count", params={"topic": "bulk"})
        assert (counted["messages"], counted["complete"]) == (0, False)
