"""Messages by their names over HTTP: stored, found, moved, cancelled, and what answers say of the
message before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from slotwheel import Client
from slotwheel.client.predecessor import NamedId, Predecessor
from slotwheel.wheel.errors import NameTaken
from slotwheel.wheel.names import NAME_HEADER
from support.gatewayprocess import NodeWithGateway, ask

HOUR_MS = 3_600_000
NAMES = [
    "plain",
    "a/b",
    "/",
    "a/",
    "a%2Fb",
    "a b",
    "100%",
    "ünï©",
    "reschedule",
    "?x=1#y",
    "x" * 200,
]
REST = {"Content-Type": "application/vnd.kafka.json.v2+json"}
JSON_BODY = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    with NodeWithGateway(tmp_path_factory.mktemp("names") / "data") as node:
        yield node
        assert "Traceback" not in node.log_text()


def path_of(topic: str, name: str) -> str:
    return f"/v1/names/{topic}/{quote(name, safe='')}"


def put(node: NodeWithGateway, topic: str, name: str, **fields: Any) -> httpx.Response:
    body = {"value": "x", "delay_ms": HOUR_MS, **fields}
    return ask(node, "PUT", path_of(topic, name), body)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_is_the_last_part_of_a_path(node: NodeWithGateway, name: str) -> None:
    path = path_of("paths", name)
    assert ask(node, "GET", path).status_code == 404
    stored = put(node, "paths", name)
    assert stored.status_code == 201, stored.text
    message_id = stored.json()["id"]
    found = ask(node, "GET", path)
    assert found.json() == {
        "topic": "paths",
        "name": name,
        "id": message_id,
        "due_ms": stored.json()["due_ms"],
    }
    moved = ask(node, "PATCH", path, {"delay_ms": 2 * HOUR_MS - 60_000})
    assert moved.status_code == 200, moved.text
    assert moved.json()["id"] != message_id
    assert ask(node, "GET", path).json() == moved.json()
    cancelled = ask(node, "DELETE", path)
    assert cancelled.json() == {**moved.json(), "answer": "cancelled"}
    for method, body in (("GET", None), ("PATCH", {"delay_ms": 1}), ("DELETE", None)):
        again = ask(node, method, path_of("paths", f"{name[:150]}?"), body)
        assert (again.status_code, again.json()["code"]) == (404, "unknown")
        assert repr(f"{name[:150]}?") in again.json()["message"]


def test_a_slash_that_is_not_encoded_is_no_part_of_a_name(node: NodeWithGateway) -> None:
    assert put(node, "slashes", "a/b").status_code == 201
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        body = {"delay_ms": HOUR_MS} if method in ("PUT", "PATCH") else None
        cut = ask(node, method, "/v1/names/slashes/a/b", body)
        assert cut.status_code == 404
        assert "a slash within a name is written %2F" in cut.json()["remedy"]
    assert ask(node, "DELETE", path_of("slashes", "a/b")).status_code == 200


def test_an_answer_says_what_became_of_the_message_before(node: NodeWithGateway) -> None:
    first = put(node, "before", "n").json()
    assert "before" not in first
    assert "befores" not in first
    second = put(node, "before", "n").json()
    assert second["before"] == {"what": "replaced", "id": first["id"]}
    kept = put(node, "before", "n", if_exists="keep").json()
    dropped = kept["before"].pop("dropped_id")
    assert kept["before"] == {"what": "kept", "id": second["id"]}
    assert (kept["id"], kept["due_ms"]) == (second["id"], second["due_ms"])
    assert dropped not in (first["id"], second["id"])
    refused = put(node, "before", "n", if_exists="refuse")
    assert (refused.status_code, refused.json()["code"]) == (409, "name-taken")
    assert refused.json()["remedy"]
    assert ask(node, "GET", path_of("before", "n")).json()["id"] == second["id"]


def test_a_message_that_has_left_is_told(node: NodeWithGateway) -> None:
    gone = put(node, "gone", "n", delay_ms=0).json()
    node.wait_for("gone", 1)
    after = put(node, "gone", "n", if_exists="refuse")
    assert after.status_code == 201, after.text
    assert after.json()["before"] == {"what": "already delivered", "id": gone["id"]}
    soon = put(node, "gone", "m", delay_ms=0).json()
    node.wait_for("gone", 2)
    late = ask(node, "DELETE", path_of("gone", "m"))
    assert (late.status_code, late.json()["got"]) == (409, soon["id"])
    assert "of the name 'm' in the topic gone was already delivered" in late.json()["message"]


def test_a_message_shows_which_one_of_its_name_replaced_it(node: NodeWithGateway) -> None:
    first, second = (put(node, "seen", "n").json()["id"] for _ in range(2))
    dropped = put(node, "seen", "n", if_exists="keep").json()["before"]["dropped_id"]
    seen = {each: ask(node, "GET", f"/v1/messages/{each}").json() for each in (first, second)}
    kept_out = ask(node, "GET", f"/v1/messages/{dropped}").json()
    assert (seen[first]["state"], seen[first]["replaced_by"]) == ("cancelled", second)
    assert seen[first]["why"] == f"replaced by {second}, a later message of its name"
    assert seen[second]["before"] == {"what": "replaced", "id": first}
    assert seen[second]["replaced_by"] is None
    assert kept_out["before"] == {"what": "kept", "id": second}
    assert kept_out["why"] == f"kept out: {second} of the same name was there already"
    [link] = ask(node, "GET", f"/v1/trace/{first}").json()["messages"]
    assert (link["replaced_by"], link["state"]) == (second, "cancelled")
    chain = ask(node, "GET", f"/v1/trace/{second}").json()
    assert chain["messages"][0]["before"] == {"what": "replaced", "id": first}
    accepted = next(step for step in chain["steps"] if step["kind"] == "accepted")
    assert accepted["why"] == f"replaced: {first}"
    for shown, begin, other in (
        (first, "<dt>Replaced by</dt><dd>", second),
        (second, "<dt>Before it</dt><dd>replaced: ", first),
    ):
        page = ask(node, "GET", f"/console/message?whole=true&id={shown}").text
        assert f'{begin}<a class="mono" href="/console/message?id={other}">' in page


@pytest.mark.parametrize("form", ["json", "ndjson", "one by one"])
def test_messages_have_names_in_whatever_form_they_come(node: NodeWithGateway, form: str) -> None:
    topic = f"form-{form.replace(' ', '-')}"
    given = [
        {"topic": topic, "value": str(number), "delay_ms": HOUR_MS, "name": name}
        for number, name in enumerate(("n", "m", "n"))
    ]
    if form == "one by one":
        answers = [ask(node, "POST", "/v1/messages", message).json() for message in given]
        ids = [answer["id"] for answer in answers]
        assert answers[2]["before"] == {"what": "replaced", "id": ids[0]}
        assert answers[2]["befores"] == [answers[2]["before"]]
    else:
        sent = (
            ask(node, "POST", "/v1/messages", given)
            if form == "json"
            else ask(
                node,
                "POST",
                "/v1/messages",
                "\n".join(map(json.dumps, given)),
                {"Content-Type": "application/x-ndjson"},
            )
        ).json()
        ids = sent["ids"]
        assert sent["befores"] == [{"what": "replaced", "id": ids[0], "row": 2}]
        assert "before" not in sent
    assert ask(node, "GET", path_of(topic, "n")).json()["id"] == ids[2]
    assert ask(node, "GET", path_of(topic, "m")).json()["id"] == ids[1]


def test_a_repeat_with_a_key_gets_the_answer_of_the_first_time(node: NodeWithGateway) -> None:
    put(node, "again", "n")
    body = {"value": "x", "delay_ms": HOUR_MS}
    key = {"Idempotency-Key": "again-1"}
    once, twice = (ask(node, "PUT", path_of("again", "n"), body, key) for _ in range(2))
    assert once.status_code == 201, once.text
    assert once.json() == twice.json()
    assert once.json()["before"]["what"] == "replaced"
    other = ask(node, "PUT", path_of("again", "m"), body, key)
    assert (other.status_code, other.json()["code"]) == (422, "invalid-message")


def test_records_of_the_rest_proxy_have_names(node: NodeWithGateway) -> None:
    def produce(*records: dict[str, Any]) -> list[dict[str, Any]]:
        sent = ask(
            node,
            "POST",
            "/topics/rest-names",
            json.dumps({"records": [{"delay_ms": HOUR_MS, **record} for record in records]}),
            REST,
        )
        assert sent.status_code == 200, sent.text
        offsets: list[dict[str, Any]] = sent.json()["offsets"]
        return offsets

    [first] = produce({"value": 1, "name": "n"})
    assert "before" not in first
    second, third = produce(
        {"value": 2, "name": "n"}, {"value": 3, "name": "n", "if_exists": "keep"}
    )
    assert second["before"] == {"what": "replaced", "id": first["id"]}
    assert third["before"]["id"] == third["id"] == second["id"]
    [fourth] = produce({"value": 4, "name": "n"})
    assert fourth["before"] == {"what": "replaced", "id": second["id"]}


def test_the_client_over_http_does_what_the_client_of_nodes_does(node: NodeWithGateway) -> None:
    with Client(node.url) as client:
        assert client.get(topic="by-client", name="a/b") is None
        assert client.cancel(topic="by-client", name="a/b") == ("unknown", None)
        assert client.reschedule(topic="by-client", name="a/b", delay=5) == ("unknown", None)
        first = client.store("by-client", b"1", delay=3600, name="a/b")
        assert isinstance(first, NamedId)
        assert first.before is None
        second = client.send("by-client", b"2", delay=3600, name="a/b")
        assert second.before == Predecessor("replaced", str(first))
        third = client.send("by-client", b"3", delay=3600, name="a/b", if_exists="keep")
        assert third.before is not None
        assert (third.before.what, third.before.id, third.id) == ("kept", second.id, second.id)
        assert third.before.dropped_id not in (None, second.id)
        refused = client.send("by-client", b"4", delay=3600, name="a/b", if_exists="refuse")
        assert isinstance(refused.error(30), NameTaken)
        assert client.get(topic="by-client", name="a/b") == second.id
        answer, moved = client.reschedule(topic="by-client", name="a/b", delay=1800)
        assert (answer, client.get(topic="by-client", name="a/b")) == ("cancelled", moved)
        assert client.cancel(topic="by-client", name="a/b") == ("cancelled", moved)


def test_a_search_finds_messages_by_their_name(node: NodeWithGateway) -> None:
    ids = {name: put(node, "found", name).json()["id"] for name in ("a", "b", "c")}
    page = ask(node, "GET", "/v1/messages?topic=found&name=a&name=c").json()["messages"]
    assert sorted(message["id"] for message in page) == sorted([ids["a"], ids["c"]])
    assert [NAME_HEADER, "a"] in [message["headers"][0] for message in page]
    where = {"where": {"topic": "found", "name": "b"}}
    counted = ask(node, "POST", "/v1/cancellations?dry_run=true", where)
    assert counted.json()["messages"] == 1
    other = ask(node, "GET", "/v1/messages/count?topic=found&header=x:a").json()
    assert other["messages"] == 0


def test_the_console_finds_and_shows_a_message_by_its_name(node: NodeWithGateway) -> None:
    ids = {name: put(node, "shown", name).json()["id"] for name in ("a<b", "other")}
    pending = ask(node, "GET", "/console/pending?whole=true&name=" + quote("a<b")).text
    assert ids["a<b"] in pending
    assert ids["other"] not in pending
    message = ask(node, "GET", f"/console/message?whole=true&id={ids['a<b']}").text
    assert '<dt>Name</dt><dd class="mono">a&lt;b</dd>' in message


def produced(node: NodeWithGateway, form: str, messages: list[dict[str, Any]]) -> httpx.Response:
    """Send messages in one request, as a list, as lines, or as records of the REST proxy."""
    if form == "ndjson":
        kind = {"Content-Type": "application/x-ndjson"}
        return ask(node, "POST", "/v1/messages", "\n\n".join(map(json.dumps, messages)), kind)
    if form == "records":
        return ask(node, "POST", "/topics", json.dumps({"records": messages}), REST)
    return ask(node, "POST", "/v1/messages", messages)


@pytest.mark.parametrize(
    ("form", "place"), [("json", "$[1]"), ("ndjson", "line 3"), ("records", "")]
)
@pytest.mark.parametrize("rule", ["replace", "keep", "refuse"])
def test_a_request_with_a_name_twice_is_stored_whole_or_not_at_all(
    node: NodeWithGateway, form: str, place: str, rule: str
) -> None:
    topic = f"twice-{form}-{rule}"
    message = {"topic": topic, "value": "x", "delay_ms": HOUR_MS, "name": "n"}
    before = ask(node, "GET", "/v1/status").json()
    answer = produced(node, form, [message, {**message, "if_exists": rule}])
    after = ask(node, "GET", "/v1/status").json()
    if rule == "refuse":
        assert answer.status_code == 409, answer.text
        assert answer.json().get("place", "") == place
        assert "$.records[1]" in answer.text or place
        for text in (
            "a pending message has this name",
            "an earlier message of the same batch, its row 0",
        ):
            assert text in answer.text
        assert "Cancel that one first" in answer.text
        assert after["accepted"] == before["accepted"]
        assert ask(node, "GET", path_of(topic, "n")).status_code == 404
        assert produced(node, form, [message]).status_code in (200, 201)  # no other is held up
        return
    assert answer.status_code in (200, 201), answer.text
    found = answer.json()
    befores = found["befores"] if form != "records" else [found["offsets"][1]["before"]]
    assert [each["what"] for each in befores] == [{"replace": "replaced", "keep": "kept"}[rule]]
    assert after["accepted"] == before["accepted"] + 2
    assert after["pending"] == before["pending"] + 1


@pytest.mark.parametrize("form", ["json", "ndjson", "records"])
@pytest.mark.parametrize("bad", ["", "x" * 201, "\x07", "\U0001f600" * 51, "\ud800"], ids=ascii)
def test_a_bad_name_stores_nothing_of_its_request_and_holds_up_no_other(
    node: NodeWithGateway, form: str, bad: str
) -> None:
    topic = f"beside-{form}"
    good = {"topic": topic, "value": "x", "delay_ms": HOUR_MS}
    before = ask(node, "GET", "/v1/status").json()["accepted"]
    messages = [{**good, "name": "\U0001f600" * 50}, {**good, "name": bad}]
    if form == "json":
        answer = ask(node, "POST", "/v1/messages", json.dumps(messages), JSON_BODY)
    else:
        answer = produced(node, form, messages)
        place = {"ndjson": "line 3", "records": "$.records[1]"}[form]
        assert place in answer.text or bad == "\ud800", answer.text
    assert answer.status_code == (400 if bad == "\ud800" else 422), answer.text
    assert ask(node, "GET", "/v1/status").json()["accepted"] == before
    other = produced(node, form, messages[:1])
    assert other.status_code in (200, 201), other.text


@pytest.mark.parametrize(
    ("method", "path", "body", "place", "got"),
    [
        ("GET", "/v1/names/t/" + "x" * 201, None, "path name", "201 bytes"),
        ("DELETE", "/v1/names/t/a%0Ab", None, "path name", "a\\nb"),
        ("GET", "/v1/names/t/", None, "path name", "nothing"),
        ("PUT", "/v1/names/t/%FF", {"delay_ms": 1}, "path", "\\xff"),
        ("PATCH", "/v1/names/no%20topic/n", {"delay_ms": 1}, "path topic", "no topic"),
        ("PATCH", "/v1/names/t/n", {}, "$", "exactly one of due_ms and delay_ms"),
        ("PATCH", "/v1/names/t/n", {"due_ms": 1, "delay_ms": 1}, "$", "exactly one of due_ms and"),
        ("PUT", "/v1/names/t/n", {"delay_ms": 1, "topic": "u"}, "$", "topic"),
        ("PUT", "/v1/names/t/n", {"delay_ms": 1, "if_exists": "maybe"}, "$.if_exists", "maybe"),
        (
            "PUT",
            "/v1/names/t/n",
            {"delay_ms": 1, "if_exists": ""},
            "$.if_exists",
            "keep, refuse, replace",
        ),
        ("PUT", "/v1/names/t/n", {"value": "x"}, "$", ""),
        ("POST", "/v1/messages", {"topic": "t", "delay_ms": 1, "name": "\x07"}, "", "\\u{7}"),
        ("POST", "/v1/messages", {"topic": "t", "delay_ms": 1, "if_exists": "keep"}, "", "keep"),
        ("POST", "/v1/messages", {"topic": "t", "delay_ms": 1, "name": 5}, "$.name", "5"),
    ],
)
def test_a_bad_name_is_answered_with_its_place_and_value(
    node: NodeWithGateway, method: str, path: str, body: Any, place: str, got: str
) -> None:
    before = ask(node, "GET", "/v1/status").json()["accepted"]
    answer = ask(node, method, path, body)
    assert answer.status_code == 422, answer.text
    assert (answer.json().get("place", ""), got in answer.text.replace("\\\\", "\\")) == (
        place,
        True,
    ), answer.text
    assert ask(node, "GET", "/v1/status").json()["accepted"] == before
