"""Topics, partitions, brokers and records sent, as the documentation of that interface has them."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from support.broker import TopicFactory
from support.gatewayprocess import NodeWithGateway
from support.rest import BINARY, JSON, V2, refused
from support.waiting import eventually, now_ms

ANY = {"Accept": "application/vnd.kafka.v2+json, application/vnd.kafka+json, application/json"}


def offsets(answer: httpx.Response) -> list[dict[str, Any]]:
    """Of records that are stored."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["key_schema_id"] is None
    assert body["value_schema_id"] is None
    found: list[dict[str, Any]] = body["offsets"]
    for one in found:
        assert one["id"]
        assert one["error_code"] is one["error"] is one["offset"] is None
    return found


# The documented examples

DOCUMENTED_BINARY = {
    "records": [
        {"key": "a2V5", "value": "Y29uZmx1ZW50"},
        {"value": "a2Fma2E=", "partition": 1},
        {"value": "bG9ncw=="},
    ]
}
DOCUMENTED_JSON = {
    "records": [
        {"key": "somekey", "value": {"foo": "bar"}},
        {"value": ["foo", "bar"], "partition": 1},
        {"value": 53.5},
    ]
}


def test_the_documented_requests_of_records_to_a_topic(
    with_kafka: NodeWithGateway, topic: TopicFactory
) -> None:
    test = topic("test", 3)
    for headers, body in ((BINARY, DOCUMENTED_BINARY), (JSON, DOCUMENTED_JSON)):
        answer = with_kafka.ask("POST", f"/topics/{test}", json=body, headers=headers | ANY)
        assert answer.headers["content-type"] == V2
        assert [one["partition"] for one in offsets(answer)] == [None, 1, None]
    eventually(lambda: sum(ends(with_kafka, test, 3)) == 6)
    assert ends(with_kafka, test, 3)[1] >= 2


def test_the_documented_requests_of_records_to_a_partition(
    with_kafka: NodeWithGateway, topic: TopicFactory
) -> None:
    test = topic("test", 2)
    binary = {"records": [{"key": "a2V5", "value": "Y29uZmx1ZW50"}, {"value": "a2Fma2E="}]}
    texts = {"records": [{"key": "somekey", "value": {"foo": "bar"}}, {"value": 53.5}]}
    for headers, body in ((BINARY, binary), (JSON, texts)):
        path = f"/topics/{test}/partitions/1"
        answer = with_kafka.ask("POST", path, json=body, headers=headers | ANY)
        assert [one["partition"] for one in offsets(answer)] == [1, 1]
    eventually(lambda: ends(with_kafka, test, 2) == [0, 4])


def ends(node: NodeWithGateway, topic: str, partitions: int) -> list[int]:
    return [
        node.ask("GET", f"/topics/{topic}/partitions/{one}/offsets").json()["end_offset"]
        for one in range(partitions)
    ]


def test_the_documented_requests_of_metadata(
    with_kafka: NodeWithGateway, topic: TopicFactory
) -> None:
    test = topic("test", 2, **{"cleanup.policy": "compact"})
    (own,) = with_kafka.ask("GET", "/brokers", headers=ANY).json()["brokers"]
    assert test in with_kafka.ask("GET", "/topics", headers={"Accept": V2}).json()
    partitions = [
        {
            "partition": number,
            "leader": own,
            "replicas": [{"broker": own, "leader": True, "in_sync": True}],
        }
        for number in range(2)
    ]
    answer = with_kafka.ask("GET", f"/topics/{test}", headers={"Accept": V2})
    assert answer.headers["content-type"] == V2
    told = answer.json()
    assert told.pop("configs")["cleanup.policy"] == "compact"
    assert told == {"name": test, "partitions": partitions}
    path = f"/topics/{test}/partitions"
    assert with_kafka.ask("GET", path, headers=ANY).json() == partitions
    assert with_kafka.ask("GET", f"{path}/1", headers=ANY).json() == partitions[1]
    refused(with_kafka.ask("GET", "/topics/nowhere"), 40401)
    refused(with_kafka.ask("GET", "/topics/nowhere/partitions"), 40401)
    refused(with_kafka.ask("GET", f"{path}/2"), 40402)
    refused(with_kafka.ask("GET", f"{path}/2/offsets"), 40402)


def test_metadata_of_embedded_topics(embedded: NodeWithGateway) -> None:
    send(embedded, "told", [{"value": "aGk="}, {"value": "aG8="}])
    embedded.wait_for("told", 2)
    alone = {
        "partition": 0,
        "leader": 0,
        "replicas": [{"broker": 0, "leader": True, "in_sync": True}],
    }
    assert "told" in embedded.ask("GET", "/topics").json()
    assert embedded.ask("GET", "/topics/told/").json() == {
        "name": "told",
        "configs": {},
        "partitions": [alone],
    }
    assert embedded.ask("GET", "/topics/told/partitions/0").json() == alone
    found = embedded.ask("GET", "/topics/told/partitions/0/offsets").json()
    assert found == {"beginning_offset": 0, "end_offset": 2}
    assert embedded.ask("GET", "/brokers").json() == {"brokers": [0]}
    for path in ("/topics/nowhere", "/topics/" + "a" * 300):
        refused(embedded.ask("GET", path), 40401)


def send(node: NodeWithGateway, topic: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return offsets(node.ask("POST", f"/topics/{topic}", json={"records": records}, headers=BINARY))


# Times


def test_a_record_says_when_it_is_due(embedded: NodeWithGateway) -> None:
    before, due = now_ms(), now_ms() + 60_000
    found = send(
        embedded,
        "later",
        [
            {"value": "YQ=="},
            {"value": "YQ==", "due_ms": due, "ttl_ms": 5},
            {"value": "YQ==", "delay_ms": 60_000, "expires_ms": due + 100_000},
            {"value": "YQ==", "level": "1h"},
        ],
    )
    after = now_ms()
    assert before <= found[0]["due_ms"] <= after
    assert found[1]["due_ms"] == due
    assert before <= found[2]["due_ms"] - 60_000 <= after
    assert before <= found[3]["due_ms"] - 3_600_000 <= after
    assert len({one["id"] for one in found}) == 4


def test_every_byte_arrives(embedded: NodeWithGateway) -> None:
    every = bytes(range(256))
    record = {
        "key": base64.b64encode(every).decode(),
        "value": base64.b64encode(every[::-1]).decode(),
        "headers": [{"name": "a", "value": "/w=="}, {"name": "a"}, {"name": "é", "value": ""}],
    }
    send(embedded, "bytes", [record, {}])
    first, second = embedded.wait_for("bytes", 2)
    assert (first["key"], first["value"]) == (every, every[::-1])
    own = [(one["key"], one["value"]) for one in first["headers"]]
    assert own == [("a", b"\xff"), ("a", None), ("é", b"")]
    assert (second["key"], second["value"]) == (None, None)


def test_json_is_stored_as_it_stands(embedded: NodeWithGateway) -> None:
    body = (
        b'{"records": [{"key": "k", "value": {"n": 12345678901234567890.10, "e": "\\u00e9"}},'
        b' {"value": null}, {"value": "null"}, {"key": 7}]}'
    )
    offsets(embedded.ask("POST", "/topics/texts", content=body, headers=JSON))
    rows = embedded.wait_for("texts", 4)
    assert [(row["key"], row["value"]) for row in rows] == [
        (b'"k"', b'{"n": 12345678901234567890.10, "e": "\\u00e9"}'),
        (None, None),
        (None, b'"null"'),
        (b"7", None),
    ]


# Many topics at once


def test_many_topics_in_one_request(embedded: NodeWithGateway) -> None:
    records = [{"topic": "many-a", "value": 1}, {"topic": "many-b", "value": 2}]
    answer = embedded.ask("POST", "/topics", json={"records": records}, headers=JSON)
    assert [one["topic"] for one in offsets(answer)] == ["many-a", "many-b"]
    assert embedded.wait_for("many-a", 1)[0]["value"] == b"1"
    assert embedded.wait_for("many-b", 1)[0]["value"] == b"2"


def test_a_request_is_stored_whole_or_not_at_all(
    embedded: NodeWithGateway, with_kafka: NodeWithGateway, topic: TopicFactory
) -> None:
    good = {"topic": "whole", "value": 1, "delay_ms": 3_600_000}
    bad = [
        ({"topic": "no such name", "value": 1}, 422),
        ({"topic": "whole", "value": 1, "delay_ms": 10**9}, 422),
        ({"topic": "whole", "value": 1, "partition": 1}, 40402),
        ({"topic": "whole", "value": 1, "level": "nowhere"}, 422),
    ]
    before = embedded.metric("slotwheel_pending")
    for record, code in bad:
        body = {"records": [good, record]}
        answer = embedded.ask("POST", "/topics", json=body, headers=JSON)
        assert "$.records[1]" in refused(answer, code)
    assert embedded.metric("slotwheel_pending") == before
    there = topic("whole", 1)
    for record, code in (
        ({"topic": "nowhere", "value": 1}, 40401),
        ({"topic": there, "value": 1, "partition": 1}, 40402),
    ):
        body = {"records": [{"topic": there, "value": 1}, record]}
        answer = with_kafka.ask("POST", "/topics", json=body, headers=JSON)
        assert "$.records[1]" in refused(answer, code)
    refused(with_kafka.ask("POST", "/topics/nowhere", json=body, headers=JSON), 422)
    one = {"records": [{"value": 1}]}
    refused(with_kafka.ask("POST", "/topics/nowhere", json=one, headers=JSON), 40401)
    path = f"/topics/{there}/partitions/1"
    refused(with_kafka.ask("POST", path, json=one, headers=JSON), 40402)
    assert ends(with_kafka, there, 1) == [0]


# Content types


@pytest.mark.parametrize(
    "kind",
    [
        "application/vnd.kafka.binary.v2+json",
        "application/vnd.kafka.binary.v2+json; charset=utf-8",
        "Application/VND.Kafka.Binary.V2+JSON",
        "application/vnd.kafka.binary+json",
        "application/vnd.kafka.v2+json",
        "application/vnd.kafka+json",
        "application/json",
        "application/octet-stream",
    ],
)
def test_short_content_types_mean_binary(embedded: NodeWithGateway, kind: str) -> None:
    content = b'{"records": [{"value": "YQ==", "delay_ms": 3600000}]}'
    offsets(embedded.ask("POST", "/topics/short", content=content, headers={"Content-Type": kind}))


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/vnd.kafka.avro.v2+json",
        "application/vnd.kafka.protobuf.v2+json",
        "application/vnd.kafka.json.v1+json",
        "application/vnd.kafka.json.v3+json",
        "application/vnd.kafka.json.v2",
        "application/vnd.kafka.json.v2+xml",
        "application/json; charset=latin-1",
        "",
    ],
)
def test_other_content_types_are_refused(embedded: NodeWithGateway, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = embedded.ask("POST", "/topics/other", content=b'{"records": []}', headers=headers)
    assert answer.status_code == 415
    usable = answer.headers["accept"]
    assert "application/vnd.kafka.json.v2+json" in usable
    message = f"HTTP 415 Unsupported Media Type; got {kind or 'none'}; allowed {usable}"
    assert answer.json() == {"error_code": 415, "message": message}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/vnd.kafka.v2+json; q=0.9, application/json; q=0.5", V2),
        ("application/vnd.kafka.v2+json; q=0.5, application/json; q=0.9", "application/json"),
        ("application/vnd.kafka.v1+json, application/vnd.kafka+json", "application/vnd.kafka+json"),
        ("*/*", V2),
        ("application/*; q=0.1", V2),
        ("application/vnd.kafka.v2+json; q=0, */*", "application/vnd.kafka+json"),
        (None, V2),
    ],
)
def test_the_answer_is_of_the_type_that_is_wanted_most(
    embedded: NodeWithGateway, accept: str | None, kind: str
) -> None:
    headers = {} if accept is None else {"Accept": accept}
    request = embedded.http.build_request("GET", "/topics", headers=headers)
    if accept is None:
        del request.headers["accept"]
    assert embedded.http.send(request).headers["content-type"] == kind


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kafka.v1+json", "*/*; q=0"])
def test_what_is_not_there_cannot_be_accepted(embedded: NodeWithGateway, accept: str) -> None:
    for method, path in (("GET", "/topics"), ("POST", "/topics/a"), ("POST", "/topics")):
        answer = embedded.ask(method, path, headers={"Accept": accept} | JSON)
        assert refused(answer, 406).startswith("header Accept: HTTP 406 Not Acceptable")


# What a client does wrong


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (b"", 400, ""),
        (b"{", 400, ""),
        (b'{"records": [', 400, ""),
        (b'{"records": []}', 422, "$.records"),
        (b"{}", 422, "records"),
        (b"[]", 422, "$"),
        (b"null", 422, "$"),
        (b'{"records": {}}', 422, "$.records"),
        (b'{"records": [1]}', 422, "$.records[0]"),
        (b'{"records": [{"value": 1}]}', 422, "$.records[0].value"),
        (b'{"records": [{}, {"value": "a"}]}', 422, "$.records[1].value"),
        (b'{"records": [{"value": "!!!!"}]}', 422, "$.records[0].value"),
        (b'{"records": [{"value": "YQ"}]}', 422, "$.records[0].value"),
        (b'{"records": [{"key": "YQ=\\n="}]}', 422, "$.records[0].key"),
        (b'{"records": [{"values": "YQ=="}]}', 422, "values"),
        (b'{"records": [{"partition": -1}]}', 422, "$.records[0].partition"),
        (b'{"records": [{"partition": "1"}]}', 422, "$.records[0].partition"),
        (b'{"records": [{"partition": 1.5}]}', 422, "$.records[0].partition"),
        (b'{"records": [{"partition": 99999999999999999999}]}', 422, "$.records[0].partition"),
        (b'{"records": [{"due_ms": -1}]}', 422, "$.records[0].due_ms"),
        (b'{"records": [{"due_ms": true}]}', 422, "$.records[0].due_ms"),
        (b'{"records": [{"due_ms": 1, "delay_ms": 1}]}', 422, "$.records[0]"),
        (b'{"records": [{"due_ms": 1, "level": "1h"}]}', 422, "$.records[0]"),
        (b'{"records": [{"ttl_ms": 1, "expires_ms": 1}]}', 422, "$.records[0]"),
        (b'{"records": [{"ttl_ms": 0}]}', 422, "$.records[0]"),
        (b'{"records": [{"headers": {"a": "YQ=="}}]}', 422, "$.records[0].headers"),
        (b'{"records": [{"headers": [{"value": "YQ=="}]}]}', 422, "$.records[0].headers[0]"),
        (b'{"records": [{"headers": [{"name": "slotwheel-id"}]}]}', 422, "$.records[0]"),
        (b'{"records": [{"value": "YQ=="}], "value_schema": "{}"}', 422, "$.value_schema"),
        (b'{"records": [{"topic": "a"}]}', 422, "topic"),
        (b'{"records": [{"value": "YQ=="}]} x', 400, ""),
        (b'{"records": [{"value": "\xff"}]}', 422, "$.records[0].value"),
    ],
)
def test_bad_records_are_refused_with_their_place(
    embedded: NodeWithGateway, content: bytes, code: int, place: str
) -> None:
    answer = embedded.ask("POST", "/topics/bad", content=content, headers=BINARY)
    assert place in refused(answer, code)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"records": [{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", 400),
        (b'{"records": [{"value": "\xff"}]}', 400),
        (b'{"records": [{"value": nope}]}', 400),
        (b'{"records": [{"value": 1e}]}', 400),
    ],
)
def test_bad_json_is_refused(embedded: NodeWithGateway, content: bytes, code: int) -> None:
    refused(embedded.ask("POST", "/topics/bad", content=content, headers=JSON), code)


def test_too_much_is_refused(embedded: NodeWithGateway) -> None:
    large = {"records": [{"value": "x" * (2 << 20)}]}
    message = refused(embedded.ask("POST", "/topics/large", json=large, headers=JSON), 422)
    assert "$.records[0]: message too large" in message
    for content, code, message in (
        (b'{"value":1},' * 70_000, 422, "$.records: more records than can be stored at once"),
        (b"{}," * 2_000_000, 413, "too many objects in one request"),
    ):
        body = b'{"records": [' + content + b"{}]}"
        assert message in refused(
            embedded.ask("POST", "/topics/large", content=body, headers=JSON), code
        )
    huge = {"records": [{"value": "x" * (9 << 20)}]}
    refused(embedded.ask("POST", "/topics/large", json=huge, headers=JSON), 413)
    assert embedded.delivered("large") == []


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/topics/a/b", 404),
        ("GET", "/topics/%2e%2e", 40401),
        ("GET", "/topics/%00", 40401),
        ("GET", "/topics/a/partitions/x", 40402),
        ("GET", "/topics/a/partitions/-1", 40402),
        ("GET", "/topics/a/partitions/" + "9" * 5000, 40402),
        ("GET", "/topics/a/partitions/%D9%A1", 40402),
        ("POST", "/topics/a/partitions/1", 40402),
        ("POST", "/topics/%20", 422),
        ("POST", "/topics/..%2f..", 404),
        ("DELETE", "/topics/a", 405),
        ("PUT", "/brokers", 405),
    ],
)
def test_bad_paths_are_refused(
    embedded: NodeWithGateway, method: str, path: str, code: int
) -> None:
    content = b'{"records": [{"value": 1}]}' if method == "POST" else None
    request = embedded.http.build_request(method, embedded.url, content=content, headers=JSON)
    request.url = request.url.copy_with(raw_path=path.encode())
    refused(embedded.http.send(request), code)
