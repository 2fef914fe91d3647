"""Cancels, other due times, and what a group says of itself, over HTTP."""

from __future__ import annotations

from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess

HOUR_MS = 3_600_000
NOBODYS = "slotwheel.1.1.AAAAAAAAAAA"


def test_each_id_gets_its_own_answer(gateway: GatewayProcess, node: NodeProcess) -> None:
    pending = gateway.send(topic="a", value="x", delay_ms=HOUR_MS)
    gone = gateway.send(topic="gone", value="x", delay_ms=0)
    node.wait_for("gone", 1)
    given = {"ids": [pending, gone, "no id at all", pending]}
    answer = gateway.request("POST", "/v1/cancel", json=given)
    assert answer.status_code == 200
    answers = [one["answer"] for one in answer.json()["answers"]]
    assert answers == ["cancelled", "already delivered", "unknown", "cancelled"]
    assert [one["id"] for one in answer.json()["answers"]] == given["ids"]


def test_one_message_is_cancelled_by_its_path(gateway: GatewayProcess, node: NodeProcess) -> None:
    path = "/v1/messages/" + gateway.send(topic="a", value="x", delay_ms=HOUR_MS)
    assert gateway.request("DELETE", path).json()["answer"] == "cancelled"
    gone = gateway.send(topic="gone-too", value="x", delay_ms=0)
    node.wait_for("gone-too", 1)
    late = gateway.request("DELETE", f"/v1/messages/{gone}")
    assert (late.status_code, late.json()["code"]) == (409, "already-delivered")
    unknown = gateway.request("DELETE", "/v1/messages/whatever")
    assert (unknown.status_code, unknown.json()["error_code"]) == (404, 404)


def test_a_message_gets_another_due_time_once(gateway: GatewayProcess, node: NodeProcess) -> None:
    first = gateway.send(topic="moved", value="x", delay_ms=HOUR_MS)
    path = f"/v1/messages/{first}/reschedule"
    answer = gateway.request("POST", path, json={"delay_ms": 0})
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == first
    assert answer.json()["new_id"] != first
    (row,) = node.wait_for("moved", 1)
    assert row["value"] == b"x"
    again = gateway.request("POST", path, json={"delay_ms": 0})
    assert (again.status_code, again.json()["code"]) == (409, "already-cancelled")


def test_the_group_says_what_it_has(gateway: GatewayProcess) -> None:
    assert gateway.get("/v1/status")["group"]
    assert gateway.get("/v1/peers") == {}
    assert gateway.get("/v1/levels") == {"levels": {"5s": 5000, "10m": 600_000}}
    assert gateway.get("/v1/policies")["levels"] == ["5s", "10m"]
    (branch,) = gateway.get("/v1/routes")["routes"]["invoices"]
    assert branch["to"] == ["invoices-eu", "audit"]


def test_a_route_explains_itself(gateway: GatewayProcess) -> None:
    def explained(headers: object) -> dict[str, object]:
        body = {"route": "invoices", "headers": headers}
        answer = gateway.request("POST", "/v1/routes/explain", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    assert explained({"region": "eu"})["topics"] == ["invoices-eu", "audit"]
    assert explained([["region", {"base64": "ZXU="}]])["topics"] == ["invoices-eu", "audit"]
    assert explained({"region": "us"})["topics"] == []
    unknown = gateway.request("POST", "/v1/routes/explain", json={"route": "none"})
    assert unknown.status_code == 422
