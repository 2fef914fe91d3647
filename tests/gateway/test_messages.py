"""Messages over HTTP: stored before the answer, whole or not at all, delivered as they are."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from slotwheel import Client
from support.gatewayprocess import NodeWithGateway, ask
from support.waiting import now_ms

SEND = "/v1/messages"
NDJSON = {"Content-Type": "application/x-ndjson"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    with NodeWithGateway(tmp_path_factory.mktemp("gateway") / "data") as node:
        yield node


def test_one_message_with_everything_is_delivered_as_it_is(node: NodeWithGateway) -> None:
    due_ms = now_ms() + 300
    odd = base64.b64encode(b"\x00\xff").decode()
    message = {
        "topic": "whole",
        "value": "ünïcode",
        "key_base64": odd,
        "headers": [["trace", "1"], ["trace", None], ["raw", {"base64": odd}]],
        "partition": 2,
        "due_ms": due_ms,
        "ttl_ms": 60_000,
    }
    sent = ask(node, "POST", SEND, message)
    assert sent.status_code == 201
    assert sent.json()["due_ms"] == due_ms
    (row,) = node.wait_for("whole", 1)
    assert (row["value"], row["key"], row["partition"]) == ("ünïcode".encode(), b"\x00\xff", 2)
    headers = [(one["key"], one["value"]) for one in row["headers"]]
    assert headers[:3] == [("trace", b"1"), ("trace", None), ("raw", b"\x00\xff")]
    assert dict(headers)["slotwheel-expires-ms"] == b"%d" % (due_ms + 60_000)
    assert row["delivered"].timestamp() * 1000 >= due_ms
    with Client(node.address) as client:
        assert client.cancel([sent.json()["id"]]) == ["already delivered"]


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_many_are_stored_in_their_order(node: NodeWithGateway, form: str) -> None:
    topic, due_ms = f"many-{form}", now_ms() + 200
    messages = [{"topic": topic, "value": str(n), "due_ms": due_ms} for n in range(1000)]
    if form == "json":
        sent = ask(node, "POST", SEND, messages)
    else:
        sent = ask(node, "POST", SEND, "\n".join(map(json.dumps, messages)) + "\n", NDJSON)
    assert sent.status_code == 200
    assert sent.json()["stored"] == len(set(sent.json()["ids"])) == 1000
    rows = node.wait_for(topic, 1000)
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(1000)]


def test_single_messages_of_many_callers_share_batches_and_not_their_errors(
    node: NodeWithGateway,
) -> None:
    before = _figure(node, "slotwheel_http_batches")
    messages: list[dict[str, Any]] = [
        {"topic": "shared", "value": str(n), "delay_ms": 1 if n % 10 else 1 << 50}
        for n in range(300)
    ]
    with ThreadPoolExecutor(30) as callers:
        answers = list(callers.map(lambda one: ask(node, "POST", SEND, one), messages))
    assert [one.status_code for one in answers] == [201 if n % 10 else 422 for n in range(300)]
    assert "place" not in answers[0].json()
    rows = node.wait_for("shared", 270)
    assert {row["value"] for row in rows} == {b"%d" % n for n in range(300) if n % 10}
    assert _figure(node, "slotwheel_http_batches") - before < 270


def test_a_level_of_the_group(node: NodeWithGateway) -> None:
    sent = ask(node, "POST", SEND, {"topic": "level", "level": "5s"})
    assert sent.status_code == 201
    assert 3_000 < sent.json()["due_ms"] - now_ms() <= 5_000


def _figure(node: NodeWithGateway, name: str) -> float:
    for line in ask(node, "GET", "/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise AssertionError(name)


def test_an_arrow_stream_is_stored_whole(node: NodeWithGateway) -> None:
    due_ms = now_ms() + 200
    table = pa.table(
        {
            "due": pa.array([due_ms] * 300, pa.timestamp("ms", "UTC")),
            "topic": ["arrow"] * 300,
            "value": [b"%d" % n for n in range(300)],
        }
    )
    sent = ask(node, "POST", SEND, _stream(table), ARROW)
    assert (sent.status_code, sent.json()["stored"]) == (200, 300)
    rows = node.wait_for("arrow", 300)
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(300)]
    offsets = [int(id_.split(".")[2]) for id_ in sent.json()["ids"]]
    assert offsets == [row["offset"] for row in rows]


def test_an_arrow_stream_that_could_do_harm_is_refused(node: NodeWithGateway) -> None:
    table = pa.table({"due": pa.array([now_ms()], pa.int64()), "topic": ["t"], "value": [b"v"]})
    good = _stream(table)
    bad = bytearray(good)
    at = good.index(b"t" + bytes(7))  # the topic; its offsets stand in the buffer before
    bad[at - 8 : at] = b"\xff\xff\xff\x7f" * 2
    words = pa.array(["t"]).dictionary_encode()
    refused = {
        "compressed": (_stream(table, compression="zstd"), 422),
        "dictionary": (_stream(table.set_column(1, "topic", words)), 422),
        "offsets": (bytes(bad), 400),
        "cut": (good[: len(good) // 2], 400),
        "empty": (b"", 400),
        "no Arrow": (b"x" * 1000, 400),
        "no messages": (_stream(table.slice(0, 0)), 422),
        "another column": (_stream(table.append_column("more", [[1]])), 422),
        "views": (_stream(table.set_column(2, "value", pa.array([b"v"], pa.binary_view()))), 422),
        "nulls": (_stream(table.append_column("key", pa.nulls(1))), 422),
        "too many": (_stream(pa.concat_tables([table] * 70_000).combine_chunks()), 422),
        "late": (_stream(table.set_column(0, "due", pa.array([1 << 60]))), 422),
    }
    for what, (body, status) in refused.items():
        answer = ask(node, "POST", SEND, body, ARROW)
        assert answer.status_code == status, (what, answer)
    assert ask(node, "GET", "/healthz").status_code == 200


def test_a_request_with_a_key_is_stored_once_with_the_same_answer(node: NodeWithGateway) -> None:
    def message(form: str, value: str = "x") -> dict[str, Any]:
        when = {"due_ms": due_ms} if form == "one due time" else {"delay_ms": 1500}
        return {"topic": f"key-{form.replace(' ', '-')}", "value": value, **when}

    def answers(number: int) -> dict[str, httpx.Response]:
        return {
            form: ask(
                node, "POST", SEND, body, {"Idempotency-Key": f"{form.replace(' ', '-')}/{number}"}
            )
            for form, body in bodies.items()
        }

    def contents(found: dict[str, httpx.Response]) -> dict[str, bytes]:
        return {form: one.content for form, one in found.items()}

    due_ms = now_ms() + 1500
    bodies: dict[str, Any] = {form: message(form) for form in ("one delay", "one due time")}
    bodies["many delays"] = [message("many delays")] * 3
    first = answers(1)
    assert [one.status_code for one in first.values()] == [201, 201, 200]
    node.kill_gateway()
    assert contents(answers(1)) == contents(first)
    node.kill()
    node.start()
    assert contents(answers(1)) == contents(first)
    again = answers(2)
    for form, body in bodies.items():
        key = {"Idempotency-Key": f"{form.replace(' ', '-')}/1"}
        other = ask(node, "POST", SEND, message(form, "y"), key)
        assert other.status_code == 422
        assert "used for another request" in other.json()["message"]
        assert again[form].status_code == first[form].status_code
        assert again[form].content != first[form].content
        count = len(body) if form == "many delays" else 1
        assert len(node.wait_for(message(form)["topic"], 2 * count)) == 2 * count


REST = {"Content-Type": "application/vnd.kafka.json.v2+json"}
POLICIES = """
levels = {levels}

[[routes.all]]
to = {topics}
"""


def test_a_repeat_whose_level_or_route_is_another_now_gets_no_ids_that_no_message_has(
    tmp_path: Path,
) -> None:
    policies = tmp_path / "policies.toml"

    def define(levels: list[str], topics: list[str]) -> None:
        policies.write_text(POLICIES.format(levels=json.dumps(levels), topics=json.dumps(topics)))

    def answers() -> list[httpx.Response]:
        return [
            ask(node, "POST", SEND, level, {"Idempotency-Key": "one"}),
            ask(node, "POST", SEND, [level, level], {"Idempotency-Key": "many"}),
            ask(node, "POST", SEND, route, {"Idempotency-Key": "route"}),
            ask(node, "POST", "/topics/t", records, REST | {"Idempotency-Key": "rest"}),
        ]

    level = {"topic": "t", "level": "2"}
    route = {"route": "all", "due_ms": now_ms() + 3_600_000}
    records = json.dumps({"records": [{"value": 1, "level": "2"}]})
    define(["5s", "30m"], ["a", "b"])
    with NodeWithGateway(tmp_path / "data", "--policies", str(policies)) as node:
        first = answers()
        assert {one.status_code for one in first} == {200, 201}, first
        node.signal()
        define(["5s", "30m", "1h"], ["a", "b"])
        node.start()
        assert [one.content for one in answers()] == [one.content for one in first]
        node.signal()
        define(["5s", "1h"], ["a", "b", "c"])
        node.start()
        for one in answers():
            assert one.status_code == 422, one.text
            assert "used for another request" in one.text
        one, many, routed, rest = (answer.json() for answer in first)
        ids = [one["id"], *many["ids"], *routed["ids"], rest["offsets"][0]["id"]]
        with Client(node.address) as client:
            assert client.cancel(ids) == ["cancelled"] * 6


def test_a_bad_message_is_named_by_its_number_in_the_request_whatever_routes_make_of_it(
    tmp_path: Path,
) -> None:
    policies = tmp_path / "policies.toml"
    policies.write_text(
        POLICIES.format(levels='["5s"]', topics='["a", "b", "c"]')
        + '[[routes.some]]\nwhere = { header = "region", equals = "eu" }\nto = ["a"]\n'
    )
    good = {"route": "all", "delay_ms": 60_000}
    late = {"route": "all", "delay_ms": 1 << 40}
    nowhere = {"route": "some", "delay_ms": 60_000}
    with NodeWithGateway(tmp_path / "data", "--policies", str(policies)) as node:
        for bad in (late, late, nowhere):  # first the gateway does not know what the node takes
            refused = ask(node, "POST", SEND, [good, good, bad])
            assert (refused.status_code, refused.json()["place"]) == (422, "$[2]"), refused.json()


def test_large_messages_of_many_callers_are_not_refused_for_each_other(
    node: NodeWithGateway,
) -> None:
    message = {"topic": "large", "value": "x" * 900_000, "delay_ms": 3_600_000}
    with ThreadPoolExecutor(40) as callers:
        answers = list(callers.map(lambda _: ask(node, "POST", SEND, message), range(40)))
    assert {one.status_code for one in answers} <= {201, 429}
    assert [one.status_code for one in answers].count(201) > 20


def test_a_repeat_with_a_key_has_the_times_of_the_first_one(node: NodeWithGateway) -> None:
    """Also where its delay would end behind its time to expire by then."""
    kept: dict[str, object] = {"topic": "kept", "delay_ms": 600_000}
    moving = {**kept, "expires_ms": now_ms() + 601_500}
    both = [kept, {"topic": "kept", "due_ms": now_ms() + 600_000}]
    bodies: list[object] = [kept, moving, both, {**kept, "ttl_ms": 5}]
    keys = [{"Idempotency-Key": f"moving-{number}"} for number in range(len(bodies))]
    first = [ask(node, "POST", SEND, *one) for one in zip(bodies, keys, strict=True)]
    assert {one.status_code for one in first} == {200, 201}, [one.text for one in first]
    time.sleep(1.6)
    again = [ask(node, "POST", SEND, *one) for one in zip(bodies, keys, strict=True)]
    assert [one.json() for one in again] == [one.json() for one in first]


def _stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=settings) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def test_a_body_of_another_type_is_answered_with_those_that_are_taken(
    node: NodeWithGateway,
) -> None:
    answer = ask(node, "POST", SEND, b"topic=t", {"Content-Type": "text/plain"})
    assert answer.status_code == 415
    described = ask(node, "GET", "/openapi.json").json()["paths"][SEND]["post"]["requestBody"]
    assert answer.json()["limit"].split(" or ") == list(described["content"])
    arrow = described["content"][ARROW["Content-Type"]]["schema"]
    assert (arrow["type"], arrow["format"]) == ("string", "binary")
