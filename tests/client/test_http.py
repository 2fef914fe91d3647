"""The client of a gateway: the same client, over HTTP."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from slotwheel import (
    Client,
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    Message,
    NodeUnreachable,
    Overloaded,
    UnknownId,
    UnsupportedVersion,
)
from slotwheel.wheel.ids import IdMint, MessageId
from slotwheel.wheel.schema import times
from support.gatewayprocess import NodeWithGateway
from support.ports import free_address
from support.proxy import Proxy
from support.waiting import eventually

KEY = b"0123456789abcdef"
Reply = tuple[int, Any]


class Gateway:
    """A gateway of a few lines. ``answers``: what it says instead, one after the other."""

    def __init__(self) -> None:
        self.mint = IdMint("default", KEY)
        self.stored: list[pa.RecordBatch] = []
        self.keys: list[str] = []
        self.answers: queue.SimpleQueue[Callable[[Any], Reply | None]] = queue.SimpleQueue()
        self.asked: list[tuple[str, str, Any]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                found = gateway.answer(self, body)
                if found is None:  # it goes without an answer
                    self.close_connection = True
                    return
                data = found[1] if isinstance(found[1], bytes) else json.dumps(found[1]).encode()
                self.send_response(found[0])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Reply | None:
        self.keys.append(request.headers["Idempotency-Key"])
        if not self.answers.empty():
            return self.answers.get()(body)
        return self.store(body)

    def store(self, body: bytes) -> Reply:
        rows = pa.ipc.open_stream(body).read_next_batch()
        base = sum(batch.num_rows for batch in self.stored)
        self.stored.append(rows)
        due = enumerate(times(rows, "due").tolist(), base)
        return 200, {
            "stored": rows.num_rows,
            "ids": [str(self.mint.one(at, offset)) for offset, at in due],
        }

    def values(self) -> list[bytes]:
        return [value for rows in self.stored for value in rows.column("value").to_pylist()]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.close()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with Client(gateway.url, timeout_s=20) as made:
        yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    data = tmp_path_factory.mktemp("gateway") / "data"
    with NodeWithGateway(data, "--http", free_address()) as node:
        yield node


def says(status: int, body: Any) -> Callable[[Any], Reply]:
    return lambda _: (status, body)


def test_messages_are_delivered_as_they_are(node: NodeWithGateway) -> None:
    odd = b"\x00\xff"
    with Client(node.url, timeout_s=30) as client:
        one = client.send("odd", odd, key=odd, headers=[("h", odd), ("h", None)], delay=0.2, ttl=60)
        many = client.send_many([Message("many", b"%d" % n, delay=0.2) for n in range(12_000)])
        bad = client.send_many([Message("many", b"x", delay=0.2), Message("no/t", b"", delay=1)])
        ids = many.result(60)
        assert list(bad.errors(60)) == [1]
        (row,) = node.wait_for("odd", 1)
        assert (row["value"], row["key"]) == (odd, odd)
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        assert headers[:2] == [("h", odd), ("h", None)]
        assert "slotwheel-expires-ms" in dict(headers)
        assert row["offset"] == MessageId.parse(one.id).offset
        rows = node.wait_for("many", 12_001)
        offsets = {MessageId.parse(one).offset for one in [*ids, bad[0].id]}
        assert {row["offset"] for row in rows} == offsets


def test_cancel_reschedule_status_and_policies(node: NodeWithGateway) -> None:
    with Client(node.url, timeout_s=30) as client, Client(node.address) as direct:
        first, second, gone = (client.send("later", b"x", delay=600) for _ in range(3))
        left = client.send("left", b"x", delay=0.01).id
        node.wait_for("left", 1)
        assert client.cancel([gone, left]) == ["cancelled", "already delivered"]
        answer, moved = client.reschedule(first, delay=900)
        assert answer == "cancelled"
        assert moved is not None
        assert MessageId.parse(moved).due > first.due_ms + 200_000
        assert client.reschedule(gone, delay=900) == ("cancelled", None)
        assert client.reschedule(left, delay=900) == ("already delivered", None)
        stranger = str(MessageId("default", second.due_ms, 5, 7))
        assert client.reschedule(stranger, delay=900) == ("unknown", None)
        assert client.cancel(stranger) == ["unknown"]
        with pytest.raises(UnknownId):
            client.cancel("no id")
        assert client.status()["group"] == direct.status()["group"]
        assert client.policies() == direct.policies()
        assert direct.cancel([moved, second]) == ["cancelled"] * 2


def test_a_row_that_only_the_node_refuses_fails_alone(node: NodeWithGateway) -> None:
    with Client(node.url, timeout_s=30) as client:
        messages = [Message("far", b"%d" % n, delay=3600) for n in range(10)]
        messages[7] = Message("far", b"beyond", delay=1e6)
        receipts = client.send_many(messages)
        (bad,) = receipts.errors(60).items()
        assert bad[0] == 7
        assert type(bad[1]) is InvalidMessage
        assert "horizon" in bad[1].message
        assert len({receipt.id for number, receipt in enumerate(receipts) if number != 7}) == 9


def test_a_gateway_that_is_killed_and_a_link_that_is_cut_store_nothing_twice(
    node: NodeWithGateway,
) -> None:
    with (
        Client(node.address) as direct,
        Proxy(int(node.url.rpartition(":")[2])) as proxy,
        Client(f"http://{proxy.address}", timeout_s=60) as client,
    ):
        client.send("once", b"first", delay=600).result(60)
        before = direct.status()["pending"]
        receipts = []
        for number in range(300):
            receipts.append(client.send("once", b"%d" % number, delay=600))
            if number % 50 == 20:
                proxy.cut()
            if number == 200:
                node.gateway.kill()
        assert len({receipt.result(60) for receipt in receipts}) == 300
        assert direct.status()["pending"] == before + 300


def test_waiting_messages_share_a_request(client: Client, gateway: Gateway) -> None:
    go_on = threading.Event()
    gateway.answers.put(lambda body: (go_on.wait(60), gateway.store(body))[1])
    first = client.send("t", b"first", delay=60)
    eventually(lambda: gateway.keys)
    receipts = [client.send("t", b"%d" % number, delay=60) for number in range(1000)]
    go_on.set()
    ids = [MessageId.parse(one.result(60)) for one in (first, *receipts)]
    assert all(gateway.mint.genuine(one) for one in ids)
    assert [one.offset for one in ids] == list(range(1001))
    assert len(gateway.keys) < 50
    assert len(set(gateway.keys)) == len(gateway.keys)


@pytest.mark.parametrize(
    "trouble",
    [
        says(503, {"error_code": 503, "code": "node-unreachable", "message": "not now"}),
        says(429, {"error_code": 429, "code": "overloaded", "message": "too much"}),
        says(502, b"<html>a balancer's page</html>"),
        lambda _: None,
    ],
    ids=["503", "429", "502 of a balancer", "a connection that breaks"],
)
def test_it_is_sent_again_under_the_same_key(
    client: Client, gateway: Gateway, trouble: Callable[[Any], Reply | None]
) -> None:
    gateway.answers.put(trouble)
    gateway.answers.put(trouble)
    assert client.send("t", b"once", delay=60).result(60)
    assert len(gateway.keys) == 3
    assert len(set(gateway.keys)) == 1
    assert gateway.values() == [b"once"]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (422, {"code": "invalid-message", "message": "no", "got": 5, "limit": 4}, InvalidMessage),
        (413, {"error_code": 413, "message": "too large"}, InvalidBatch),
        (501, {"code": "unsupported-version", "message": "old"}, UnsupportedVersion),
        (404, b"not a gateway", InvalidBatch),
    ],
)
def test_errors_are_those_of_a_node(
    client: Client, gateway: Gateway, status: int, body: Any, kind: type[Exception]
) -> None:
    gateway.answers.put(says(status, body))
    error = client.send("t", b"x", delay=60).error(20)
    assert type(error) is kind
    if isinstance(body, dict) and "got" in body:
        assert (error.got, error.limit) == (5, 4)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"ids": []}', b'{"ids": ["x"]}', b'{"ids": 5}'])
def test_an_answer_without_ids_is_no_receipt(client: Client, gateway: Gateway, body: bytes) -> None:
    gateway.answers.put(says(200, body))
    error = client.send("t", b"x", delay=60).error(20)
    assert error is not None
    assert error.uncertain


def test_a_gateway_that_is_away() -> None:
    with Client("http://127.0.0.1:1", timeout_s=0.5) as client:
        error = client.send("t", b"", delay=60).error(10)
        assert isinstance(error, NodeUnreachable)
        assert not error.uncertain
        with pytest.raises(NodeUnreachable):
            client.status()


def test_overloaded_for_too_long(gateway: Gateway) -> None:
    for _ in range(200):
        gateway.answers.put(says(429, {"code": "overloaded", "message": "too much"}))
    with Client(gateway.url, timeout_s=2) as client:  # a busy machine needs some of it to connect
        assert isinstance(client.send("t", b"", delay=60).error(10), Overloaded)


def test_another_gateway_is_asked(gateway: Gateway) -> None:
    with Client(["http://127.0.0.1:1", gateway.url], timeout_s=20) as client:
        client.send("t", b"", delay=60).result(60)


@pytest.mark.parametrize(
    "address",
    ["http://host", "http://host:80/path", "http://:80", "http://a:1,b:2", "https://a:0"],
)
def test_unusable_addresses(address: str) -> None:
    with pytest.raises(InvalidConfiguration, match="gateway"):
        Client(address)


def test_what_a_gateway_does_not_do(gateway: Gateway) -> None:
    with pytest.raises(InvalidConfiguration, match="acks"):
        Client(gateway.url, acks="0")
    with Client(gateway.url) as client, pytest.raises(InvalidConfiguration, match="over HTTP"):
        client.register("group", None)
