"""Consumer instances, as the documentation of that interface has them, and what else may happen."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.broker import TopicFactory
from support.consuming import committed, fill
from support.gatewayprocess import NodeWithGateway
from support.rest import BINARY, JSON, V2, refused
from support.sourcecontract import send_not_text
from support.waiting import eventually

PLAIN = {"Content-Type": V2}
RECORDS_BINARY = "application/vnd.kafka.binary.v2+json"
RECORDS_JSON = "application/vnd.kafka.json.v2+json"
_numbers = itertools.count()


class Instance:
    """One consumer instance, by its ``base_uri``."""

    def __init__(self, node: NodeWithGateway, group: str, **settings: Any) -> None:
        settings = {"auto.offset.reset": "earliest"} | settings
        self.node = node
        answer = node.ask("POST", f"/consumers/{group}", json=settings, headers=PLAIN)
        assert answer.status_code == 200, answer.text
        self.uri: str = answer.json()["base_uri"]

    def ask(self, method: str, path: str = "", **request: Any) -> httpx.Response:
        return self.node.ask(method, self.uri + path, headers=PLAIN, **request)

    def done(self, path: str, body: Any) -> None:
        answer = self.ask("POST", path, json=body)
        assert (answer.status_code, answer.content) == (204, b""), answer.text

    def records(
        self, timeout: int = 500, accept: str = "*/*", **query: Any
    ) -> list[dict[str, Any]]:
        answer = self.get(timeout, accept, **query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    def get(self, timeout: int = 500, accept: str = "*/*", **query: Any) -> httpx.Response:
        url = f"{self.uri}/records"
        return self.node.ask(
            "GET", url, params={"timeout": timeout} | query, headers={"Accept": accept}
        )

    def read(self, count: int, **query: Any) -> list[dict[str, Any]]:
        """Ask until there are so many."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            found.extend(self.records(**query))
            return len(found) >= count

        eventually(enough)
        return found

    def offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        answer = self.ask("GET", "/offsets", json=places(partitions))
        assert answer.status_code == 200, answer.text
        found = answer.json()["offsets"]
        assert all(one["metadata"] == "" for one in found)
        return {(one["topic"], one["partition"]): one["offset"] for one in found}

    def delete(self) -> None:
        assert self.ask("DELETE").status_code == 204


def places(partitions: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {"partitions": [{"topic": topic, "partition": one} for topic, one in partitions]}


def at(offsets: dict[tuple[str, int], int]) -> dict[str, Any]:
    return {
        "offsets": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in offsets.items()
        ]
    }


Make = Callable[..., Instance]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes instances, which are deleted in the end."""
    made: list[Instance] = []

    def new(node: NodeWithGateway, group: str = "", **settings: Any) -> Instance:
        made.append(Instance(node, group or f"group-{next(_numbers)}", **settings))
        return made[-1]

    yield new
    for one in made:
        one.ask("DELETE")


def put(node: NodeWithGateway, topic: str, count: int) -> str:
    """An embedded topic with records 0, 1, …"""
    name = f"{topic}-{next(_numbers)}"
    records = {"records": [{"key": "k", "value": number} for number in range(count)]}
    assert node.ask("POST", f"/topics/{name}", json=records, headers=JSON).status_code == 200
    node.wait_for(name, count)
    return name


# The documented examples


def test_the_documented_walk_through_kafka(
    with_kafka: NodeWithGateway, topic: TopicFactory
) -> None:
    test1, test2 = topic("walk", 2), topic("walk", 1)
    group = f"{test1}-group"
    body = {
        "name": "my_consumer",
        "format": "binary",
        "auto.offset.reset": "earliest",
        "auto.commit.enable": "false",
    }
    answer = with_kafka.ask("POST", f"/consumers/{group}/", json=body, headers=PLAIN)
    base = f"{with_kafka.url}/consumers/{group}/instances/my_consumer"
    assert answer.status_code == 200
    assert answer.headers["content-type"] == V2
    assert answer.json() == {"instance_id": "my_consumer", "base_uri": base}
    again = with_kafka.ask("POST", f"/consumers/{group}/", json=body, headers=PLAIN)
    refused(again, 40902)

    def ask(method: str, path: str, body: Any = None, accept: str = V2) -> httpx.Response:
        headers = {"Accept": accept} | ({} if body is None else PLAIN)
        return with_kafka.ask(method, base + path, json=body, headers=headers)

    def done(answer: httpx.Response) -> bool:
        return (answer.status_code, answer.content) == (204, b"")

    # Subscription
    assert done(ask("POST", "/subscription", {"topics": [test1, test2]}))
    assert ask("GET", "/subscription").json() == {"topics": [test1, test2]}
    refused(ask("POST", "/assignments", places([(test1, 0)])), 40903)
    assert done(ask("DELETE", "/subscription"))
    assert ask("GET", "/subscription").json() == {"topics": []}
    assert done(ask("POST", "/subscription", {"topic_pattern": f"{test1[:-1]}.*"}))
    assert set(ask("GET", "/subscription").json()["topics"]) == {test1, test2}
    assert done(ask("DELETE", "/subscription"))

    # Assignments
    both = [(test1, 0), (test1, 1)]
    assert done(ask("POST", "/assignments", places(both)))
    assert ask("GET", "/assignments").json() == places(both)
    refused(ask("POST", "/subscription", {"topics": [test2]}), 40903)

    # Records
    send = {"records": [{"key": "a2V5", "value": "Y29uZmx1ZW50"}, {"value": "a2Fma2E="}]}
    for partition in (0, 1):
        path = f"/topics/{test1}/partitions/{partition}"
        assert with_kafka.ask("POST", path, json=send, headers=BINARY).status_code == 200
    found: list[dict[str, Any]] = []

    def all_came() -> bool:
        query = "/records?timeout=3000&max_bytes=300000"
        answer = ask("GET", query, accept=RECORDS_BINARY)
        assert answer.headers["content-type"] == RECORDS_BINARY
        found.extend(answer.json())
        return len(found) == 4

    eventually(all_came)
    assert sorted(found, key=lambda one: (one["partition"], one["offset"])) == [
        {
            "topic": test1,
            "key": None if offset else "a2V5",
            "value": "a2Fma2E=" if offset else "Y29uZmx1ZW50",
            "partition": partition,
            "offset": offset,
        }
        for partition in (0, 1)
        for offset in (0, 1)
    ]

    # Positions
    assert done(ask("POST", "/positions", at({(test1, 0): 1, (test1, 1): 0})))
    assert [one["offset"] for one in read(ask, 3) if one["partition"] == 0] == [1]
    assert done(ask("POST", "/positions/beginning", places(both)))
    assert len(read(ask, 4)) == 4
    assert done(ask("POST", "/positions/beginning", places(both)))
    assert done(ask("POST", "/positions/end", places(both)))
    assert ask("GET", "/records?timeout=300", accept=RECORDS_BINARY).json() == []

    # Offsets
    assert ask("GET", "/offsets", places(both)).json() == {"offsets": []}
    answer = ask("POST", "/offsets", at({(test1, 0): 20, (test1, 1): 30}))
    assert (answer.status_code, answer.json()) == (200, [])
    assert ask("GET", "/offsets", places(both)).json() == {
        "offsets": [
            {"topic": test1, "partition": 0, "offset": 21, "metadata": ""},
            {"topic": test1, "partition": 1, "offset": 31, "metadata": ""},
        ]
    }
    refused(ask("GET", "/offsets", places([(test1, 2)])), 40402)
    assert ask("POST", "/offsets").json() == []
    assert committed_of(ask, both) == {0: 2, 1: 2}

    assert done(ask("DELETE", ""))
    refused(ask("DELETE", ""), 40403)


Ask = Callable[..., httpx.Response]


def read(ask: Ask, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        found.extend(ask("GET", "/records", accept="*/*").json())
        return len(found) >= count

    eventually(enough)
    return found


def committed_of(ask: Ask, partitions: Sequence[tuple[str, int]]) -> dict[int, int]:
    found = ask("GET", "/offsets", places(partitions)).json()["offsets"]
    return {one["partition"]: one["offset"] for one in found}


def test_the_documented_records_in_json(embedded: NodeWithGateway, make: Make) -> None:
    records: list[dict[str, Any]] = [
        {"key": "somekey", "value": {"foo": "bar"}},
        {"key": "somekey", "value": ["foo", "bar"]},
    ]
    test = f"json-{next(_numbers)}"
    body = {"records": records}
    assert embedded.ask("POST", f"/topics/{test}", json=body, headers=JSON).status_code == 200
    reader = make(embedded, format="json")
    reader.done("/subscription", {"topics": [test]})
    embedded.wait_for(test, 2)
    answer = reader.get(3000, RECORDS_JSON, max_bytes=300000)
    assert answer.headers["content-type"] == RECORDS_JSON
    assert answer.json() == [
        one | {"topic": test, "partition": 0, "offset": offset}
        for offset, one in enumerate(records)
    ]


def test_the_same_over_an_embedded_topic(embedded: NodeWithGateway, make: Make) -> None:
    test = put(embedded, "walk", 5)
    reader = make(embedded, "walkers", **{"auto.commit.enable": "false"})
    assert reader.uri.startswith(f"{embedded.url}/consumers/walkers/instances/rest-consumer-")
    reader.done("/subscription", {"topics": [test]})
    assert reader.ask("GET", "/assignments").json() == places([(test, 0)])
    assert [one["offset"] for one in reader.records()] == [0, 1, 2, 3, 4]
    assert reader.records(timeout=0) == []
    reader.done("/positions", at({(test, 0): 3}))
    assert [one["offset"] for one in reader.records()] == [3, 4]
    reader.done("/positions/beginning", places([(test, 0)]))
    assert len(reader.records()) == 5
    reader.done("/positions/end", places([(test, 0)]))
    assert reader.records(timeout=0) == []
    assert reader.offsets([(test, 0)]) == {}
    assert reader.ask("POST", "/offsets", json=at({(test, 0): 1})).json() == []
    assert reader.offsets([(test, 0)]) == {(test, 0): 2}
    reader.delete()
    again = make(embedded, "walkers")
    again.done("/assignments", places([(test, 0)]))
    assert [one["offset"] for one in again.records()] == [2, 3, 4]


# Groups


def test_instances_are_members_of_a_group(
    with_kafka: NodeWithGateway, topic: TopicFactory, make: Make
) -> None:
    """They share the partitions; who leaves commits, and the other goes on there."""
    name = topic("shared", 2)
    members = [make(with_kafka, f"{name}-group") for _ in range(2)]
    for one in members:
        one.done("/subscription", {"topics": [name]})

    def shared() -> bool:
        with ThreadPoolExecutor(2) as both:  # one that does not poll keeps the other waiting
            list(both.map(lambda one: one.records(timeout=500), members))
        return all(len(one.ask("GET", "/assignments").json()["partitions"]) == 1 for one in members)

    eventually(shared)
    bootstrap = with_kafka_bootstrap(with_kafka)
    sent = 0

    def each_reads_its_own() -> bool:
        """Not if they were made to share anew meanwhile, as on a busy machine they may be."""
        nonlocal sent
        for partition in range(2):
            fill(bootstrap, name, [b"%d" % one for one in range(10)], partition=partition)
        places: list[set[tuple[int, int]]] = [set(), set()]

        def all_read() -> bool:
            with ThreadPoolExecutor(2) as both:
                found = list(both.map(lambda one: one.records(), members))
            for mine, records in zip(places, found, strict=True):
                mine.update((one["partition"], one["offset"]) for one in records)
            return len({place for place in places[0] | places[1] if place[1] >= sent}) == 20

        eventually(all_read)
        sent += 10
        first, second = ({partition for partition, _ in mine} for mine in places)
        return bool(first) and bool(second) and first.isdisjoint(second)

    eventually(each_reads_its_own)
    members[0].delete()
    for partition in range(2):
        fill(bootstrap, name, [b"more"], partition=partition)
    assert sorted(one["offset"] for one in members[1].read(2)) == [sent, sent]
    members[1].delete()
    ends = [committed(bootstrap, f"{name}-group", name, one) for one in range(2)]
    assert ends == [sent + 1, sent + 1]


def with_kafka_bootstrap(node: NodeWithGateway) -> str:
    command = node.command()
    return command[command.index("--bootstrap") + 1]


def test_an_embedded_topic_has_one_member_a_group(embedded: NodeWithGateway, make: Make) -> None:
    test = put(embedded, "alone", 1)
    first, second = make(embedded, "alone"), make(embedded, "alone")
    first.done("/subscription", {"topics": [test]})
    message = refused(second.ask("POST", "/subscription", json={"topics": [test]}), 40903)
    assert "another process consumes as this group" in message
    first.delete()
    second.done("/subscription", {"topics": [test]})
    assert len(second.records()) == 1


def test_what_an_answer_had_is_committed_by_the_next_request(
    embedded: NodeWithGateway, make: Make
) -> None:
    test = put(embedded, "auto", 10)
    reader = make(embedded)
    reader.done("/subscription", {"topics": [test]})
    assert [one["offset"] for one in reader.records(max_bytes=8)] == [
        0,
        1,
    ]  # 3 bytes of "k", 1 of 0
    assert reader.offsets([(test, 0)]) == {}
    assert [one["offset"] for one in reader.records(max_bytes=4)] == [2]
    assert reader.offsets([(test, 0)]) == {(test, 0): 2}


# Reading


def test_an_answer_has_no_more_bytes_than_are_wanted_but_one_record(
    embedded: NodeWithGateway, make: Make
) -> None:
    test = put(embedded, "bytes", 3)
    reader = make(embedded, format="json")
    reader.done("/subscription", {"topics": [test]})
    assert [one["value"] for one in reader.records(max_bytes=0)] == [0]
    assert [one["value"] for one in reader.records(max_bytes=1)] == [1]
    assert [one["value"] for one in reader.records()] == [2]


def test_a_request_waits_for_records(embedded: NodeWithGateway, make: Make) -> None:
    reader = make(embedded, format="json")
    name = f"appears-{next(_numbers)}"
    reader.done("/subscription", {"topics": [name]})
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.extend(reader.records(timeout=60_000)))
    thread.start()
    record = {"records": [{"value": "here", "delay_ms": 300}]}
    answer = embedded.http.post(f"/topics/{name}", json=record, headers=JSON)
    assert answer.status_code == 200
    thread.join(60)
    assert [one["value"] for one in found] == ["here"]


def test_a_request_waits_for_as_many_bytes_as_its_instance_wants(
    embedded: NodeWithGateway, make: Make
) -> None:
    test = put(embedded, "least", 1)
    reader = make(embedded, **{"fetch.min.bytes": "8", "consumer.request.timeout.ms": 60_000})
    reader.done("/subscription", {"topics": [test]})
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.extend(reader.records(timeout=60_000)))
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    embedded.ask("POST", f"/topics/{test}", json={"records": [{"value": "twelve"}]}, headers=JSON)
    thread.join(60)
    assert len(found) == 2


def test_records_may_have_headers_and_timestamps(embedded: NodeWithGateway, make: Make) -> None:
    name = f"headers-{next(_numbers)}"
    record = {"value": 1, "headers": [{"name": "a", "value": "/w=="}]}
    sent = embedded.ask("POST", f"/topics/{name}", json={"records": [record]}, headers=JSON)
    embedded.wait_for(name, 1)
    reader = make(embedded, format="json")
    reader.done("/subscription", {"topics": [name]})
    (one,) = reader.records(headers="true")
    assert one["headers"][0] == {"name": "a", "value": "/w=="}
    assert [each["name"] for each in one["headers"]][1] == "slotwheel-id"
    assert one["timestamp"] >= sent.json()["offsets"][0]["due_ms"]


def test_a_header_name_that_is_no_text_is_shown_as_far_as_it_can_be(
    with_kafka: NodeWithGateway, topic: TopicFactory, make: Make
) -> None:
    name = topic("names", 1)
    send_not_text(with_kafka_bootstrap(with_kafka), name, b"1", [("a", b"2")])
    reader = make(with_kafka, f"{name}-group")
    reader.done("/assignments", places([(name, 0)]))
    (one,) = reader.read(1, headers="true")
    assert [each["value"] for each in one["headers"]] == ["MQ==", "Mg=="]


def test_what_is_no_json_is_not_passed_over(embedded: NodeWithGateway, make: Make) -> None:
    name = f"mixed-{next(_numbers)}"
    for headers, value in ((JSON, 1), (BINARY, "/w=="), (JSON, 3), (BINARY, "W1s=")):
        body = {"records": [{"value": value}]}
        assert (
            embedded.ask("POST", f"/topics/{name}", json=body, headers=headers).status_code == 200
        )
        embedded.wait_for(name, 1)
    embedded.wait_for(name, 4)
    reader = make(embedded, format="json")
    reader.done("/subscription", {"topics": [name]})
    assert [one["value"] for one in reader.records()] == [1]
    for _ in range(2):
        assert f"{name}, partition 0, offset 1" in refused(reader.get(), 42203)
    reader.done("/positions", at({(name, 0): 2}))
    assert [one["value"] for one in reader.records()] == [3]
    refused(reader.get(), 42203)


def test_a_pattern_finds_topics_that_come_later(embedded: NodeWithGateway, make: Make) -> None:
    mark = f"late{next(_numbers)}"
    reader = make(embedded, format="json")
    reader.done("/subscription", {"topic_pattern": f"{mark}-.*"})
    assert reader.ask("GET", "/subscription").json() == {"topics": []}
    refused(reader.ask("POST", "/subscription", json={"topics": ["a"]}), 40903)
    first = put(embedded, mark, 2)
    assert len(reader.read(2)) == 2
    assert reader.ask("GET", "/subscription").json() == {"topics": [first]}


def test_latest_begins_at_the_end(embedded: NodeWithGateway, make: Make) -> None:
    test = put(embedded, "latest", 3)
    reader = make(embedded, format="json", **{"auto.offset.reset": "latest"})
    reader.done("/subscription", {"topics": [test]})
    body = {"records": [{"value": "new"}]}
    embedded.ask("POST", f"/topics/{test}", json=body, headers=JSON)
    assert [one["value"] for one in reader.read(1)] == ["new"]


# What a client does wrong


def test_an_unknown_instance_is_not_found(embedded: NodeWithGateway) -> None:
    base = "/consumers/nobody/instances/none"
    for method, path in (
        ("DELETE", ""),
        ("POST", "/subscription"),
        ("GET", "/subscription"),
        ("DELETE", "/subscription"),
        ("POST", "/assignments"),
        ("GET", "/assignments"),
        ("POST", "/positions"),
        ("POST", "/positions/beginning"),
        ("POST", "/positions/end"),
        ("POST", "/offsets"),
        ("GET", "/offsets"),
        ("GET", "/records"),
    ):
        body = {"topics": ["a"]} if path == "/subscription" else at({("a", 0): 1})
        if path in ("/assignments", "/positions/beginning", "/positions/end", "/offsets"):
            body = places([("a", 0)]) if (method, path) != ("POST", "/offsets") else body
        sent = {} if method == "DELETE" or path == "/records" else {"json": body}
        refused(embedded.ask(method, base + path, headers=PLAIN, **sent), 40403)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"format": "avro"}, 42204),
        ({"format": "xml"}, 42204),
        ({"auto.offset.reset": "smallest"}, 42204),
        ({"auto.commit.enable": "maybe"}, 42204),
        ({"fetch.min.bytes": -2}, 42204),
        ({"fetch.min.bytes": "many"}, 42204),
        ({"fetch.min.bytes": 1 << 40}, 42204),
        ({"consumer.request.timeout.ms": 1_000_000}, 42204),
        ({"name": "../x"}, 42204),
        ({"name": ""}, 42204),
        ({"name": "a" * 300}, 42204),
        ({"name": 1}, 422),
        ({"id": "v1"}, 422),
        ({"format": None}, 422),
        ([], 422),
    ],
)
def test_unusable_settings_are_refused(embedded: NodeWithGateway, settings: Any, code: int) -> None:
    refused(embedded.ask("POST", "/consumers/g", json=settings, headers=PLAIN), code)


@pytest.mark.parametrize("group", ["%2e%2e", "%2e", "a%20b", "a" * 300])
def test_unusable_groups_are_refused(embedded: NodeWithGateway, group: str) -> None:
    """A group's name is that of a folder."""
    refused(embedded.ask("POST", f"/consumers/{group}", json={}, headers=PLAIN), 42204)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/subscription", {}, 422),
        ("/subscription", {"topics": []}, 422),
        ("/subscription", {"topics": "a"}, 422),
        ("/subscription", {"topics": ["a"] * 1001}, 422),
        ("/subscription", {"topics": ["../a"]}, 40401),
        ("/subscription", {"topics": ["a"], "topic_pattern": "a"}, 40903),
        ("/subscription", {"topic_pattern": "("}, 422),
        ("/subscription", {"topic_pattern": "(a"}, 422),
        ("/subscription", {"topic_pattern": "(?<=a)b"}, 422),
        ("/subscription", {"topic_pattern": "((a{1000}){1000}){1000}"}, 422),
        ("/subscription", {"topic_pattern": "a" * 1001}, 422),
        ("/assignments", {"partitions": []}, 422),
        ("/assignments", {"partitions": [{"topic": "a"}]}, 422),
        ("/assignments", {"partitions": [{"topic": "a", "partition": "0"}]}, 422),
        ("/assignments", places([("a", 1)]), 40402),
        ("/assignments", places([("a/b", 0)]), 40401),
        ("/positions", at({("a", 0): -1}), 422),
        ("/positions", at({("a", 0): 1 << 63}), 422),
        ("/positions", at({("a", 0): 1}), 40903),
        ("/positions/beginning", places([("a", 0)]), 40903),
        ("/positions/end", {"offsets": []}, 422),
        ("/offsets", at({("a", 0): 1}), 40903),
        ("/offsets", {"offsets": [{"topic": "a", "partition": 0}]}, 422),
    ],
)
def test_bad_requests_are_refused(
    embedded: NodeWithGateway, make: Make, path: str, body: Any, code: int
) -> None:
    refused(make(embedded).ask("POST", path, json=body), code)


@pytest.mark.parametrize(
    ("query", "accept", "code"),
    [
        ("", "*/*", 40903),
        ("?timeout=x", "*/*", 422),
        ("?timeout=-1", "*/*", 422),
        ("?timeout=60001", "*/*", 422),
        ("?timeout=1&timeout=2", "*/*", 422),
        ("?max_bytes=1.5", "*/*", 422),
        ("?max_bytes=" + "9" * 5000, "*/*", 422),
        ("?headers=1", "*/*", 422),
        ("?count=1", "*/*", 422),
        ("", RECORDS_JSON, 40601),
        ("", "application/vnd.kafka.avro.v2+json", 406),
        ("", "text/html", 406),
    ],
)
def test_bad_reads_are_refused(
    embedded: NodeWithGateway, make: Make, query: str, accept: str, code: int
) -> None:
    uri = make(embedded).uri
    refused(embedded.ask("GET", f"{uri}/records{query}", headers={"Accept": accept}), code)


def test_a_body_needs_its_content_type(embedded: NodeWithGateway, make: Make) -> None:
    uri = make(embedded).uri
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = embedded.ask(
            "POST", f"{uri}/subscription", content=b"{}", headers={"Content-Type": kind}
        )
        refused(answer, 415)


def test_unknown_topics_of_kafka_are_not_found(with_kafka: NodeWithGateway, make: Make) -> None:
    reader = make(with_kafka)
    refused(reader.ask("POST", "/subscription", json={"topics": ["nowhere"]}), 40401)
    refused(reader.ask("POST", "/assignments", json=places([("nowhere", 0)])), 40401)


def test_instances_are_few(embedded: NodeWithGateway, make: Make) -> None:
    made = 0
    for made in range(101):
        name = f"many-{made}"
        answer = embedded.ask("POST", "/consumers/many", json={"name": name}, headers=PLAIN)
        if answer.status_code != 200:
            break
    try:
        assert "too many consumer instances" in refused(answer, 429)
        assert answer.headers["retry-after"]
    finally:
        for number in range(made):
            path = f"/consumers/many/instances/many-{number}"
            assert embedded.ask("DELETE", path).status_code == 204
    assert json.loads(embedded.ask("POST", "/consumers/many").text)["instance_id"]
