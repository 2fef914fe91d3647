"""Kafka's REST proxy while something is away or full: what is not stored is never answered 2xx."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.rest.consumer_types import InstanceBody
from slotwheel.gateway.rest.instances import Instances
from slotwheel.gateway.settings import GatewaySettings
from support.broker import Broker, TopicFactory
from support.gatewayprocess import GatewayProcess, NodeWithGateway
from support.kafkaread import read_committed
from support.nodeprocess import NodeProcess
from support.rest import BINARY, JSON, V2, refused
from support.waiting import eventually

PLAIN = {"Content-Type": V2}
ONE = {"records": [{"value": 1}]}


def test_brokers_that_are_away(own_broker: Broker, tmp_path: Path) -> None:
    """What needs them is answered 503; messages to topics that were seen are stored all the same,
    and come when the brokers come."""
    seen, unseen = own_broker.create_topic("seen"), own_broker.create_topic("unseen")
    own_broker.create_topic("dead-letters")
    sink = ("--sink", "kafka-python", "--bootstrap", own_broker.bootstrap)
    with NodeWithGateway(tmp_path / "data", *sink, "--dead-letter-topic", "dead-letters") as node:
        assert node.ask("POST", f"/topics/{seen}", json=ONE, headers=JSON).status_code == 200
        body = {"auto.offset.reset": "earliest"}
        made = node.ask("POST", "/consumers/g", json=body, headers=PLAIN)
        uri = made.json()["base_uri"]
        (cluster,) = node.ask("GET", "/v3/clusters").json()["data"]
        node.ask("POST", f"{uri}/subscription", json={"topics": [seen]}, headers=PLAIN)
        eventually(lambda: node.ask("GET", f"{uri}/records").json())

        own_broker.kill()
        for method, path, sent in (
            ("GET", "/topics", None),
            ("GET", f"/topics/{seen}", None),
            ("GET", "/brokers", None),
            ("POST", f"/topics/{unseen}", ONE),
            ("GET", f"{uri}/records?timeout=100", None),
            ("POST", f"{uri}/offsets", {"offsets": [{"topic": seen, "partition": 0, "offset": 0}]}),
        ):
            answer = node.ask(method, path, json=sent, headers=JSON if sent == ONE else PLAIN)
            refused(answer, 50302)
            assert answer.headers["retry-after"]
        for method in ("POST", "GET"):
            new = {"topic_name": "new"} if method == "POST" else None
            answer = node.ask(method, cluster["topics"]["related"], json=new)
            assert (answer.status_code, answer.json()["error_code"]) == (503, 50302)
            assert answer.headers["retry-after"]
        stored = node.ask("POST", f"/topics/{seen}", json=ONE, headers=JSON)
        assert stored.status_code == 200

        own_broker.start()
        # The first one may come again: that it was read could not be committed.
        eventually(lambda: 1 in [one["offset"] for one in records_or_nothing(node, uri)])
        node.signal()
    assert len(read_committed(own_broker.bootstrap, seen, 2)) == 2


def records_or_nothing(node: NodeWithGateway, uri: str) -> list[dict[str, Any]]:
    answer = node.ask("GET", f"{uri}/records")
    found: list[dict[str, Any]] = answer.json() if answer.status_code == 200 else []
    return found


def test_what_kafka_refuses_as_too_large_is_a_dead_letter(
    with_kafka: NodeWithGateway, topic: TopicFactory
) -> None:
    """It is stored, so 200 is true; and its neighbours arrive."""
    name = topic("small", 1, **{"max.message.bytes": 1000})
    body = {"records": [{"value": "small"}, {"value": "x" * 5000}, {"value": "small"}]}
    before = with_kafka.metric("slotwheel_dead_total")
    assert with_kafka.ask("POST", f"/topics/{name}", json=body, headers=JSON).status_code == 200
    path = f"/topics/{name}/partitions/0/offsets"
    eventually(lambda: with_kafka.ask("GET", path).json()["end_offset"] == 2)
    eventually(lambda: with_kafka.metric("slotwheel_dead_total") == before + 1)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A node that has no room on its disk, and a gateway that gives up soon."""
    data = tmp_path_factory.mktemp("full") / "data"
    with (
        NodeProcess(data, "--disk-reserve", str(1 << 60)) as node,
        GatewayProcess(node, answer_s=1.0, instance_idle_s=0.5, instances_max=2) as gateway,
    ):
        yield gateway


def test_a_full_disk_is_never_2xx(full: GatewayProcess) -> None:
    for body in (ONE, {"records": [{"value": 1}, {"value": 2}]}):
        answer = full.request("POST", "/topics/full", json=body, headers=JSON)
        refused(answer, 429 if answer.status_code == 429 else 50303)
        assert answer.headers["retry-after"]


def test_instances_are_few_and_end_when_nobody_uses_them(full: GatewayProcess) -> None:
    made = [full.request("POST", "/consumers/g", json={}, headers=PLAIN) for _ in range(3)]
    assert [one.status_code for one in made] == [200, 200, 429]
    assert "too many consumer instances" in refused(made[2], 429)
    assert made[2].headers["retry-after"]
    eventually(lambda: full.request("POST", "/consumers/g", json={}).status_code == 200)
    uri = made[0].json()["base_uri"]
    refused(full.request("GET", f"{uri}/records"), 40403)


def test_a_node_that_is_away(full: GatewayProcess) -> None:
    """The last of this file that uses it."""
    full.node.kill()
    answer = full.request("POST", "/topics/away", json=ONE, headers=JSON)
    refused(answer, 50303)
    assert answer.headers["retry-after"]


def test_a_gateway_that_reads_no_topics_still_stores(
    embedded: NodeWithGateway, tmp_path: Path
) -> None:
    class WithoutData(GatewayProcess):
        def command(self) -> list[str]:
            command = super().command()
            at = command.index("--data")
            return command[:at] + command[at + 2 :]

    with WithoutData(embedded) as gateway:
        for path in ("/topics", "/topics/a", "/topics/a/partitions/0/offsets", "/brokers"):
            assert "--bootstrap" in refused(gateway.request("GET", path), 404)
        refused(gateway.request("POST", "/consumers/g", json={}, headers=PLAIN), 404)
        body = {"records": [{"value": 1, "partition": 7}]}
        answer = gateway.request("POST", "/topics/unread", json=body, headers=JSON)
        assert answer.status_code == 200
        assert answer.json()["offsets"][0]["partition"] == 7
    embedded.wait_for("unread", 1)


def test_a_gateway_that_ends_commits_what_was_read(embedded: NodeWithGateway) -> None:
    assert embedded.ask("POST", "/topics/ends", json=ONE, headers=JSON).status_code == 200
    embedded.wait_for("ends", 1)
    with GatewayProcess(embedded) as gateway:
        body = {"auto.offset.reset": "earliest"}
        made = gateway.request("POST", "/consumers/enders", json=body, headers=PLAIN)
        uri = made.json()["base_uri"]
        gateway.request("POST", f"{uri}/subscription", json={"topics": ["ends"]}, headers=PLAIN)
        assert len(gateway.request("GET", f"{uri}/records").json()) == 1
    positions = embedded.data / "consumers/enders/positions.json"
    assert json.loads(positions.read_text())["positions"] == {"ends": 1}


def test_a_repeat_with_its_key_is_stored_once(embedded: NodeWithGateway) -> None:
    headers = JSON | {"Idempotency-Key": "rest-1"}
    body = {"records": [{"value": 1}, {"value": 2}]}
    first, again = (
        embedded.ask("POST", "/topics/once", json=body, headers=headers).json() for _ in range(2)
    )
    assert first == again
    assert len(embedded.wait_for("once", 2)) == 2
    for path, sent in (("/topics/once", ONE), ("/topics/twice", body)):
        answer = embedded.ask("POST", path, json=sent, headers=headers)
        assert "used for another request" in refused(answer, 422)


def test_records_for_a_client_that_has_gone_are_there_for_the_next_request(
    embedded: NodeWithGateway,
) -> None:
    body = {"auto.offset.reset": "earliest", "fetch.min.bytes": 1000}
    uri = embedded.ask("POST", "/consumers/gone", json=body, headers=PLAIN).json()["base_uri"]
    embedded.ask("POST", f"{uri}/subscription", json={"topics": ["gone"]}, headers=PLAIN)
    assert embedded.ask("POST", "/topics/gone", json=ONE, headers=JSON).status_code == 200
    embedded.wait_for("gone", 1)
    with pytest.raises(httpx.ReadTimeout):
        embedded.http.get(f"{uri}/records?timeout=60000", timeout=0.3)
    assert [one["value"] for one in embedded.ask("GET", f"{uri}/records?timeout=0").json()] == [
        "MQ=="
    ]
    embedded.ask("DELETE", uri)


def test_many_clients_that_wait_keep_nobody_waiting(embedded: NodeWithGateway) -> None:
    """There are more of them than threads."""
    count = 40
    uris = []
    for number in range(count):
        body = {"auto.offset.reset": "earliest"}
        made = embedded.ask("POST", f"/consumers/wait-{number}", json=body, headers=PLAIN)
        uris.append(made.json()["base_uri"])
        topics = {"topics": [f"wait-{number}"]}
        embedded.ask("POST", f"{uris[-1]}/subscription", json=topics, headers=PLAIN)
    got: dict[int, Any] = {}

    def wait(number: int) -> None:
        url = f"{uris[number]}/records?timeout=60000"
        got[number] = httpx.get(url, timeout=90).json()

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for number in (*range(count - 4, count), *range(count - 4)):
        record = {"records": [{"value": number}]}
        embedded.ask("POST", f"/topics/wait-{number}", json=record, headers=JSON)
        if number == count - 1:  # the last four begin to wait when all threads are taken
            eventually(lambda: set(range(count - 4, count)) <= set(got))
    for thread in threads:
        thread.join(60)
    assert all(len(got[number]) == 1 for number in range(count))
    for uri in uris:
        embedded.ask("DELETE", uri)


FIELDS = ["topic", "key", "value", "partition", "headers", "due_ms", "delay_ms", "level"]
FIELDS += ["ttl_ms", "expires_ms", "name", "records", "odd"]
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "YQ==", "1h", "a", "\x00", "é" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=12,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.builds(dict, records=st.lists(ODD, max_size=3)) | ODD, binary=st.booleans())
def test_whatever_comes_is_stored_or_refused(
    embedded: NodeWithGateway, body: Any, binary: bool
) -> None:
    for path in ("/topics/odd", "/topics"):
        answer = embedded.ask("POST", path, json=body, headers=BINARY if binary else JSON)
        if answer.status_code == 200:
            found = answer.json()["offsets"]
            assert len(found) == len(body["records"])
            assert all(one["id"] and one["error_code"] is None for one in found)
        else:
            assert answer.status_code in (400, 404, 422)
            assert set(answer.json()) == {"error_code", "message"}


def test_one_address_leaves_consumer_instances_to_others() -> None:
    async def made_by(hosts: str) -> list[str]:
        instances = Instances(cast(Any, None), GatewaySettings(instances_max=4))
        found = []
        for host in hosts:
            try:
                instances.create("g", InstanceBody(), host)
            except HttpError as error:
                found.append(error.message)
            else:
                found.append("")
        return found

    one, every = "too many consumer instances from one address", "too many consumer instances"
    assert asyncio.run(made_by("aaaabb")) == ["", "", "", one, "", every]
