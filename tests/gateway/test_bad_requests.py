"""Requests that no caller may make, of every kind of route: each answer has the status, the place
and what was wrong, and nothing was stored, cancelled or moved.

Questions that get the same answer by the command line and the console are in
``test_bad_questions.py``; what is wrong with a body's bytes or a connection is in
``test_bad_input.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.gatewayprocess import GatewayProcess

MESSAGES = "/v1/messages"
CANCEL = "/v1/cancellations"
MOVE = f"{MESSAGES}/ID/reschedule"
GOOD = {"topic": "t", "value": "x", "delay_ms": 3_600_000}
LATER_MS = 1_800_000_000_000
FIELDS = "value, value_base64, key, key_base64, headers, partition, due_ms, delay_ms, level"


def third(**wrong: Any) -> list[dict[str, Any]]:
    """Messages of which the third is wrong."""
    return [GOOD, GOOD, {"topic": "t", **wrong}, GOOD]


NO_CONDITIONS: list[dict[str, Any]] = [
    *({}, {"topic": []}, {"topics": ["a"]}, {"headers": {"a": None}}, {"key_base64": ["%"]}),
    {"from_ms": LATER_MS + 2, "to_ms": LATER_MS + 1},
    {"from_ms": LATER_MS // 1000},
    {"topic": "a", "to_ms": LATER_MS * 1000},
]
ASKED: list[tuple[str, Any, str, str]] = [
    *(
        (f"{MESSAGES}?{query}", None, "", "")
        for query in (
            *(
                "limit=x",
                "limit=1&limit=2",
                "limit=%D9%A1",
                "page=1",
                "page=,",
                f"page=1,{1 << 63}",
            ),
            *("header=:x", "from_ms=-1", "from_ms=1.5", "from_ms=null", "from_ms=5&to_ms=5"),
            *("by=slot", "offset=3"),
        )
    ),
    ("/v1/dead?limit=1001", None, "", ""),
    ("/v1/dead?reasons=buried", None, "", ""),
    ("/v1/trace/<script>", None, "", "<script>"),
    ("/v1/trace?id=nothing", None, "", "nothing"),
    ("/v1/trace?limit=0", None, "", "limit"),
    ("/v1/trace?state=dead", None, "", "no such parameter"),
    ("/v1/trace?from_ms=x", None, "", "not a whole number"),
    ("/v1/trace/anomalies?late_ms=-1", None, "", "late_ms"),
    ("/v1/levels?what=1", None, "query", ""),
    *((CANCEL, {"where": where}, "", "") for where in NO_CONDITIONS),
    *(
        (MOVE, body, "", "")
        for body in (
            *({}, {"due_ms": 1, "delay_ms": 1}, {"due_ms": "soon"}, {"delay_ms": -1}),
            *({"delay_ms": 1 << 61}, {"due": 1}),
        )
    ),
    (MESSAGES, [], "", ""),
    (MESSAGES, third(topic="in/valid", delay_ms=1), "$[2]", "illegal topic name"),
    (MESSAGES, third(delay_ms=1, due_ms=1), "$[2]", ""),
    (MESSAGES, third(), "$[2]", ""),
    (MESSAGES, third(value="x", value_base64="", delay_ms=1), "$[2]", ""),
    (MESSAGES, third(delay_ms=1 << 50), "$[2]", ""),
    (MESSAGES, third(delay_ms="soon"), "$[2].delay_ms", ""),
    (MESSAGES, third(delay_ms=1, value_base64="&"), "$[2].value_base64", ""),
    (MESSAGES, third(delay_ms=1, dalay=1), "$[2]", FIELDS),
    (MESSAGES, {**GOOD, "due": 1}, "$", FIELDS),
    (MESSAGES, {**GOOD, "headers": {"a": {"b64": ""}}}, "$.headers[...]", "base64"),
    (MESSAGES, {**GOOD, "headers": [["a", {"b64": ""}]]}, "$.headers[0][1]", "base64"),
    (MESSAGES, {"topic": "t", "level": "soon"}, "", "soon"),
    (MESSAGES, {"route": "nowhere", "delay_ms": 1}, "", "nowhere"),
]


@pytest.fixture(scope="module")
def kept(gateway: GatewayProcess) -> Iterator[str]:
    """The id of a message that is still pending, and due when it was, after all of it."""
    own = gateway.send(**GOOD)
    yield own
    assert gateway.request("DELETE", f"{MESSAGES}/{own}").json()["answer"] == "cancelled"


@pytest.mark.parametrize(
    ("path", "body", "place", "told"),
    ASKED,
    ids=[f"{path} {json.dumps(body)}"[:90] for path, body, _, _ in ASKED],
)
def test_it_is_refused_with_its_place_and_changes_nothing(
    gateway: GatewayProcess, kept: str, path: str, body: Any, place: str, told: str
) -> None:
    before = gateway.get("/v1/status")
    method = "GET" if body is None else "POST"
    answer = gateway.request(method, path.replace("ID", kept), json=body)
    assert answer.status_code == 422, answer.text
    error = answer.json()
    assert error["message"]
    assert error.get("place", "") == place or not place, error
    assert told in answer.text
    after = gateway.get("/v1/status")
    for figure in ("accepted", "pending", "cancelled"):
        assert before[figure] == after[figure]


def test_an_unreadable_line_is_named_by_its_number(gateway: GatewayProcess) -> None:
    lines = "\n".join([json.dumps(GOOD), "", json.dumps(GOOD)[:-1]])
    headers = {"Content-Type": "application/x-ndjson"}
    before = gateway.get("/v1/status")["pending"]
    answer = gateway.request("POST", MESSAGES, content=lines, headers=headers)
    assert (answer.status_code, answer.json()["place"]) == (400, "line 3")
    assert gateway.get("/v1/status")["pending"] == before


@pytest.mark.parametrize("query", ["%ff=1", "&".join("a=1" for _ in range(2000))])
def test_a_query_that_cannot_be_read_is_refused(gateway: GatewayProcess, query: str) -> None:
    answer = gateway.request("GET", f"/v1/levels?{query}")
    assert answer.status_code in (400, 422)
    assert answer.json()["place"] == "query"


@pytest.mark.parametrize("key", ["", "x" * 256, "two words"])
def test_a_key_that_cannot_be_used_stores_nothing(gateway: GatewayProcess, key: str) -> None:
    before = gateway.get("/v1/status")["accepted"]
    headers = {"Idempotency-Key": key}
    answer = gateway.request("POST", MESSAGES, json=GOOD, headers=headers)
    assert (answer.status_code, answer.json()["place"]) == (400, "header Idempotency-Key")
    assert gateway.get("/v1/status")["accepted"] == before


def test_an_id_with_slashes_is_no_id(gateway: GatewayProcess) -> None:
    answer = gateway.request("GET", "/v1/trace/..%2f..%2fetc")
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-id")
    assert answer.json()["got"].startswith("'../")


@pytest.mark.parametrize("path", ["/v1/trace/a/etc", "/v1/messages/a/b/c"])
def test_a_path_that_is_not_there_is_answered_with_those_that_are(
    gateway: GatewayProcess, path: str
) -> None:
    answer = gateway.request("GET", path)
    assert (answer.status_code, "/v1/" in answer.text) == (404, True), answer.text
