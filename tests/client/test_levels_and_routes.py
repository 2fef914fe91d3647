"""Messages with a level or a route: what is sent for them, their receipts, and all or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel import Client, InvalidMessage, Message, NodeUnreachable, Overloaded
from slotwheel.client import levels
from slotwheel.policy.policyset import PolicySet
from slotwheel.policy.rule import Rule, parse_rule
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidConfiguration, SlotwheelError
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.schema import times
from support.fakewheel import FakeWheel
from support.proxy import Proxy
from support.served import ServedIntake
from support.waiting import eventually, now_ms

TOML = """
levels = ["5s", "1m"]
[[routes.three]]
to = ["a", "b", "c"]
[[routes.regions]]
where = { header = "region", equals = "eu" }
to = ["eu", "audit"]
"""


class Policies:
    """As a node has them. ``asked``: how often."""

    def __init__(self) -> None:
        self._current = PolicySet().changed(PolicySet.from_toml(TOML, "test"))
        self.asked = 0

    @property
    def current(self) -> PolicySet:
        self.asked += 1
        return self._current

    def change(self, text: str) -> None:
        self._current = self._current.changed(PolicySet.from_toml(text, "test"))

    def register(self, group: str, rule: Rule | None, host: str) -> PolicySet:
        assert host == "127.0.0.1"
        self._current = self._current.registered(group, rule)
        return self._current

    def forget(self, group: str, host: str) -> PolicySet:
        assert host == "127.0.0.1"
        self._current = self._current.forgotten(group)
        return self._current


@pytest.fixture
def policies() -> Policies:
    return Policies()


@pytest.fixture
def server(wheel: FakeWheel, policies: Policies) -> Iterator[ServedIntake]:
    server = ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05, policies=policies)
    yield server
    server.close()


@pytest.fixture
def address(server: ServedIntake) -> str:
    return f"127.0.0.1:{server.port}"


def routed(value: bytes = b"v", **more: Any) -> Message:
    return Message(value=value, route="three", delay=60, **more)


def topics(wheel: FakeWheel) -> list[str]:
    return [row["topic"] for row in wheel.rows]


# -- levels


def test_a_level_is_a_delay(client: Client, wheel: FakeWheel) -> None:
    before = now_ms()
    receipts = [
        client.send("t", b"1", level="5s"),
        client.send("t", b"2", level="2"),
        client.send(Message("t", b"3", level=" 1m ")),
    ]
    client.flush(60)
    after = now_ms()
    for receipt, delay_ms in zip(receipts, (5000, 60_000, 60_000), strict=True):
        assert before + delay_ms <= receipt.due_ms <= after + delay_ms
        receipt.result(60)
        assert receipt.ids == [receipt.id]
    due = [at for batch in wheel.batches for at in times(batch, "due").tolist()]
    assert due == [receipt.due_ms for receipt in receipts]


def test_a_level_and_how_long_it_lives(client: Client, wheel: FakeWheel) -> None:
    receipt = client.send("t", level="5s", ttl=timedelta(seconds=1))
    receipt.result(60)
    (header,) = wheel.rows[0]["headers"]
    assert header == {"key": "slotwheel-expires-ms", "value": b"%d" % (receipt.due_ms + 1000)}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"level": "7s"}, "no such level; got '7s'; expected one of 5s 1m"),
    ({"level": ""}, "no such level"),
    ({"level": 1}, "unusable level"),
    ({"level": b"5s"}, "unusable level"),
    ({"level": "5s", "delay": 1}, "both a level and a due time"),
    ({"level": "5s", "due": 1}, "both a level and a due time"),
    ({"topic": "", "route": "four", "delay": 1}, "no such route; got 'four'; expected one of"),
    ({"topic": "", "route": "", "delay": 1}, "no such route"),
    ({"topic": "", "route": 3, "delay": 1}, "unusable route"),
    ({"topic": "", "route": ["three"], "delay": 1}, "unusable route"),
    ({"topic": "", "route": "regions", "delay": 1}, "no rule matches"),
    ({"topic": "", "route": "three"}, "neither due nor delay"),
    ({"topic": "", "route": "three", "delay": 1, "partition": 0}, "both a route and a topic"),
    ({"route": "three", "delay": 1}, "both a route and a topic"),
    ({"topic": "", "route": "three", "delay": 1, "headers": [("slotwheel-id", "x")]}, "reserved"),
    ({"topic": "", "route": "three", "delay": 1, "headers": 5}, "unusable headers"),
    ({"topic": "", "route": "three", "delay": 1, "value": 5}, "unusable value"),
    ({"topic": "", "route": "three", "delay": 10**6}, "horizon"),
]


@pytest.mark.parametrize(("fields", "match"), BAD, ids=[match for _, match in BAD])
def test_what_cannot_be_sent_is_told_at_once_or_on_its_receipt(
    client: Client, wheel: FakeWheel, fields: dict[str, Any], match: str
) -> None:
    message = Message(**{"topic": "t", **fields})
    client.send("t", b"warm", delay=60).result(60)
    with pytest.raises(InvalidMessage, match=match):
        client.send(message).result(60)
    many = client.send_many([Message("t", b"1", delay=60), message, Message("t", b"2", level="5s")])
    errors = many.errors(60)
    assert list(errors) == [1]
    assert match in str(errors[1])
    assert wheel.values() == [b"warm", b"1", b"2"]


# -- routes


def test_a_route_becomes_rows_of_one_batch(client: Client, wheel: FakeWheel) -> None:
    receipt = client.send(routed(key="k", headers={"h": "x"}, ttl=5))
    first = receipt.result(60)
    (batch,) = wheel.batches
    assert batch.column("topic").to_pylist() == ["a", "b", "c"]
    for row in batch.to_pylist():
        assert (row["key"], row["value"], row["partition"]) == (b"k", b"v", None)
        assert [pair["key"] for pair in row["headers"]] == ["h", "slotwheel-expires-ms"]
    ids = [MessageId.parse(text) for text in receipt.ids]
    assert receipt.ids[0] == first == receipt.id
    assert [one.offset for one in ids] == [0, 1, 2]
    assert all(wheel.mint.genuine(one) for one in ids)
    assert {one.due for one in ids} == {receipt.due_ms}
    assert times(batch, "due").tolist() == [receipt.due_ms] * 3


def test_headers_decide(client: Client, wheel: FakeWheel) -> None:
    for headers in ({"region": "eu"}, [("region", b"us"), ("region", b"eu")]):
        client.send(Message(route="regions", delay=60, headers=headers)).result(60)
    assert topics(wheel) == ["eu", "audit"] * 2


def test_a_level_and_a_route(client: Client, wheel: FakeWheel) -> None:
    client.send(Message(route="three", level="1m")).result(60)
    assert topics(wheel) == ["a", "b", "c"]


def test_receipts_stand_in_the_order_of_the_messages(client: Client, wheel: FakeWheel) -> None:
    """Plain ones, routed ones, ones with levels, bad ones and none at all, over several chunks."""
    kinds: list[Any] = [
        lambda n: Message("t", b"%d" % n, delay=60),
        lambda n: routed(b"%d" % n),
        lambda n: Message("t", b"%d" % n, level="5s"),
        lambda n: Message("t", b"%d" % n, level="9s"),
        lambda n: Message(value=b"%d" % n, route="four", delay=1),
        lambda n: None,
        lambda n: Message("a b", b"%d" % n, delay=60),
        lambda n: Message("t", b"%d" % n, delay=60),
    ]
    with Client(client.address, batch_rows=50) as small:
        receipts = small.send_many(kinds[n % 8](n) for n in range(1000))
        assert len(receipts) == 1000
        errors = receipts.errors(60)
        assert sorted(errors) == [n for n in range(1000) if n % 8 in (3, 4, 5, 6)]
        assert all(isinstance(error, InvalidMessage) for error in errors.values())
        rows = wheel.rows
        for number, receipt in enumerate(receipts):
            if number in errors:
                with pytest.raises(InvalidMessage):
                    _ = receipt.ids
                continue
            found = [rows[MessageId.parse(text).offset] for text in receipt.ids]
            assert {row["value"] for row in found} == {b"%d" % number}
            wanted = ["a", "b", "c"] if number % 8 == 1 else ["t"]
            assert [row["topic"] for row in found] == wanted
            assert receipts.offsets()[number] == MessageId.parse(receipt.id).offset
    assert len(rows) == 125 * (1 + 3 + 1 + 1)


def test_one_row_that_the_node_refuses_takes_the_others_with_it(
    client: Client, wheel: FakeWheel
) -> None:
    """Its neighbours in the batch are stored."""

    def refuse(rows: pa.RecordBatch) -> None:
        for number, (topic, value) in enumerate(
            zip(rows.column("topic").to_pylist(), rows.column("value").to_pylist(), strict=True)
        ):
            if topic == "b" and value == b"bad":
                raise InvalidMessage("not this one", row=number)

    wheel.before_append = refuse
    messages = [routed(b"1"), Message("t", b"2", delay=60), routed(b"bad"), routed(b"3")]
    receipts = client.send_many([*messages, Message("t", b"4", delay=60)])
    errors = receipts.errors(60)
    assert list(errors) == [2]
    assert errors[2].message == "not this one"
    assert sorted(wheel.values()) == [b"1"] * 3 + [b"2"] + [b"3"] * 3 + [b"4"]
    with pytest.raises(InvalidMessage, match="not this one"):
        receipts[2].result(0)
    assert receipts.offsets().tolist()[2] == -1
    lone = client.send(routed(b"bad"))
    with pytest.raises(InvalidMessage, match="not this one"):
        lone.result(60)


def test_too_large_for_all_topics_together(policies: Policies, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(message_bytes_max=20_000, batch_bytes_max=40_000, batch_rows_max=2)
    server = ServedIntake(wheel, "127.0.0.1:0", policies=policies)
    try:
        with Client(f"127.0.0.1:{server.port}", timeout_s=20) as client:
            for number in range(2):  # before and after the node has told its limits
                with pytest.raises(SlotwheelError, match=r"too many rows|too large") as caught:
                    client.send(routed()).result(60)
                assert not caught.value.retryable
                client.send("t", b"%d" % number, delay=60).result(60)
            wheel.config = WheelConfig(message_bytes_max=20_000, batch_bytes_max=40_000)
        with Client(f"127.0.0.1:{server.port}", timeout_s=20) as client:
            client.send("t", b"2", delay=60).result(60)
            large = routed(bytes(15_000))
            with pytest.raises(InvalidMessage, match="for all topics of its route") as caught:
                client.send(large)
            assert "3 topics" in str(caught.value.got)
            assert list(client.send_many([large, routed(b"3")]).errors(60)) == [0]
    finally:
        server.close()
    assert wheel.values() == [b"0", b"1", b"2", *[b"3"] * 3]


def test_a_lost_connection_stores_nothing_twice(server: ServedIntake, wheel: FakeWheel) -> None:
    with Proxy(server.port) as proxy, Client(proxy.address, timeout_s=30) as client:
        client.send("t", b"warm", delay=60).result(60)
        wheel.before_append = lambda rows: proxy.stall()
        receipts = client.send_many([routed(b"once"), Message("t", b"too", delay=60)])
        eventually(lambda: b"once" in wheel.values())
        wheel.before_append = None
        proxy.cut()
        proxy.go_on()
        receipts.result(60)
        assert wheel.values() == [b"warm", b"once", b"once", b"once", b"too"]
        assert wheel.duplicates > 0
        assert len(receipts[0].ids) == 3


def test_cancel_wants_all_ids_of_a_routed_message(client: Client, wheel: FakeWheel) -> None:
    receipt, plain = client.send(routed()), client.send("t", delay=60)
    with pytest.raises(InvalidMessage, match="an id for each topic") as caught:
        client.cancel([plain, receipt])
    assert "receipt.ids" in caught.value.remedy
    with pytest.raises(InvalidMessage, match="an id for each topic"):
        client.reschedule(receipt, delay=5)
    assert wheel.cancelled == set()
    assert client.cancel([plain, *receipt.ids]) == ["cancelled"] * 4
    assert wheel.cancelled == {0, 1, 2, 3}


def test_receipts_of_a_routed_message_are_kept_row_by_row(
    address: str, wheel: FakeWheel, tmp_path: Path
) -> None:
    path = tmp_path / "receipts"
    with Client(address, receipts=path) as client:
        client.send_many([routed(b"x"), Message("t", b"y", delay=60), routed(b"z")]).result(60)
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        found = stream.read_all()
    offsets = found.column("offset").to_pylist()
    assert sorted(offsets) == list(range(7))
    rows = wheel.rows
    assert [rows[n]["topic"] for n in offsets] == found.column("topic").to_pylist()


def test_without_answers_there_are_no_ids(address: str, wheel: FakeWheel) -> None:
    with Client(address, acks="0") as client:
        receipt = client.send(routed())
        client.flush(60)
        with pytest.raises(SlotwheelError, match="there is no id"):
            _ = receipt.ids
    eventually(lambda: topics(wheel) == ["a", "b", "c"])


# -- the policies of a node


def test_policies_are_asked_for_once_and_again_after_a_while(
    client: Client, policies: Policies, wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "FRESH_S", 3600.0)
    client.send("t", delay=60).result(60)
    assert policies.asked == 0, "who needs none does not ask"
    for _ in range(20):
        client.send("t", level="5s")
    client.send_many([routed()] * 20)
    assert policies.asked == 1
    policies.change("levels = ['7s']")
    with pytest.raises(InvalidMessage, match="no such level"):
        client.send("t", level="7s")
    monkeypatch.setattr(levels, "FRESH_S", 0.0)
    client.send("t", level="7s").result(60)


@pytest.mark.timeout(60)
def test_a_node_that_is_away_keeps_a_call_for_one_timeout() -> None:
    with Client("127.0.0.1:1", timeout_s=1.0) as client:
        started = time.monotonic()
        with pytest.raises(NodeUnreachable):
            client.send("t", level="5s")
        receipts = client.send_many([routed(), Message("t", level="5s")] * 50)
        assert len(receipts) == 100
        assert all(isinstance(e, NodeUnreachable) for e in receipts.errors(60).values())
        assert time.monotonic() - started < 30


def test_a_full_buffer_is_told_by_the_call_and_nothing_is_sent_twice(
    client: Client, wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [Message("t", b"1", delay=60), routed(b"2"), Message("t", b"3", level="5s")]
    sender: Any = client._sender
    submit = sender.submit
    for full_at in range(1, 4):
        submitted: list[list[bytes]] = []

        def until_full(
            shipment: Any, full_at: int = full_at, seen: list[list[bytes]] = submitted, **more: Any
        ) -> None:
            if len(seen) == full_at - 1:
                raise Overloaded("the client's buffer is full")
            seen.append(shipment.columns[4] if shipment.copies else shipment.rows[4].to_pylist())
            submit(shipment, **more)

        monkeypatch.setattr(sender, "submit", until_full)
        with pytest.raises(Overloaded):
            client.send_many(messages)
        assert submitted == [[b"1"], [b"2"] * 3][: full_at - 1]


def test_groups_and_their_rules(client: Client) -> None:
    eu = {"header": "region", "equals": "eu"}
    assert client.register("billing", eu)["groups"] == {"billing": eu}
    assert client.register("all", None)["groups"] == {"all": None, "billing": eu}
    assert client.policies()["version"] == 3
    with pytest.raises(InvalidMessage, match="another rule") as caught:
        client.register("billing", None)
    assert "slotwheel routes forget billing" in caught.value.remedy
    assert set(client.forget("billing")["groups"]) == {"all"}
    client.register("billing", None)
    deep: Any = eu
    for _ in range(400):
        deep = {"all": [deep]}
    hostile: list[dict[str, Any]] = [
        {"header": "h", "equals": "\udc80"},
        {"header": "h", "eval": "1"},
        {"header": deep, "equals": "x"},
        deep,
    ]
    for rule in hostile:
        with pytest.raises(InvalidConfiguration, match="rule: "):
            client.register("hostile", rule)
    for group in ("", "a b", "g" * 244, "../x", "\ud800"):
        with pytest.raises(InvalidMessage):
            client.register(group, eu)
    assert set(client.policies()["groups"]) == {"all", "billing"}
    assert parse_rule(eu).matches([("region", b"eu")])
