"""What a client does wrong: 4xx with the place and what is allowed, in bounded memory and time,
while others are served; never 2xx for what is not stored, never 5xx."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess
from support.waiting import eventually

BODY_MAX = 100_000
HEADERS_MAX = 8_192
CONNECTIONS_MAX = 30
RECEIVE_S = 1.5
JSON = b"Content-Type: application/json\r\n"
GROWTH_MB = 60
"""More than memory may grow by whatever a test sends: these would send far more."""


@pytest.fixture(scope="module")
def limited(node: NodeProcess) -> Iterator[GatewayProcess]:
    given = GatewayProcess(
        node,
        body_bytes_max=BODY_MAX,
        header_bytes_max=HEADERS_MAX,
        connections_max=CONNECTIONS_MAX,
        receive_s=RECEIVE_S,
        idle_s=60.0,
    )
    with given as one:
        yield one


@pytest.fixture(autouse=True)
def sound(limited: GatewayProcess) -> Iterator[None]:
    """However a test ends, the gateway serves others, has not grown, and has not failed."""
    before = limited.rss_mb()
    yield
    assert limited.get("/v1/levels")["levels"]
    eventually(lambda: limited.rss_mb() < before + GROWTH_MB)
    assert "a request failed" not in limited.log_text()
    assert "Traceback" not in limited.log_text()


def pending(gateway: GatewayProcess) -> int:
    return int(gateway.get("/v1/status")["pending"])


def exchange(gateway: GatewayProcess, sent: bytes) -> bytes:
    """What a connection answers to these bytes until it is closed or silent."""
    with gateway.connect() as one:
        one.sendall(sent)
        return received(one)


def received(one: socket.socket, timeout_s: float = 30.0) -> bytes:
    """Until the other side closes."""
    one.settimeout(timeout_s)
    found = b""
    try:
        while part := one.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def statuses(answer: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d\d\d) ", answer)]


def body_of(answer: bytes) -> Any:
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])


def posted(body: bytes, headers: bytes = JSON, path: bytes = b"/v1/messages") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return (
        b"POST "
        + path
        + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        + headers
        + length
        + (b"\r\n" + body)
    )


MESSAGE = {"topic": "t", "value": "x", "delay_ms": 3_600_000}


def message(**more: Any) -> bytes:
    return json.dumps({**MESSAGE, **more}).encode()


@pytest.mark.parametrize(
    ("body", "status", "place"),
    [
        (b"", 400, ""),
        (b"{", 400, ""),
        (b"\xff\xfe", 400, ""),
        (message() + b" {}", 400, ""),
        (b'{"topic": "t\xff"}', 400, ""),
        (b"null", 422, "$"),
        (b"12", 422, "$"),
        (b'"text"', 422, "$"),
        (b"[]", 422, ""),
        (b"[1]", 422, "$[0]"),
        (message(topic=5), 422, "$.topic"),
        (message(value={"a": 1}), 422, "$.value"),
        (message(due_ms=True), 422, "$.due_ms"),
        (message(delay_ms=1.5), 422, "$.delay_ms"),
        (message(delay_ms=-1), 422, "$.delay_ms"),
        (message(ttl_ms=1 << 61), 422, "$.ttl_ms"),
        (message(partition=1 << 31), 422, "$.partition"),
        (message(delay_ms=10**30), 422, "$.delay_ms"),
        (message(value_base64="%%%"), 422, "$.value_base64"),
        (message(headers={"a": 1}), 422, "$.headers[...]"),
        (message(headers=[["a"]]), 422, "$.headers[0]"),
        (message(headers=[["a", {"base64": "?"}]]), 422, "$.headers[0][1].base64"),
        (message(priority=1), 422, "$"),
        (message(topic=""), 422, "$"),
        (message(topic="../x"), 422, ""),
        (message(due_ms=1), 422, ""),
        (message(level="5s"), 422, ""),
        (message(value="a", value_base64="YQ=="), 422, ""),
        (message(headers={"slotwheel-id": "1"}), 422, ""),
        (b"[" + message() + b"," + message(topic=7) + b"]", 422, "$[1].topic"),
        (b"[" + message() + b"," + message(due_ms=1) + b"]", 422, "$[1]"),
    ],
)
def test_a_bad_message_is_refused_with_its_place(
    limited: GatewayProcess, body: bytes, status: int, place: str
) -> None:
    before = pending(limited)
    answer = exchange(limited, posted(body))
    assert statuses(answer) == [status], answer
    error = body_of(answer)
    assert error["error_code"] == status
    assert error["message"]
    assert error.get("place", "") == place, error
    assert pending(limited) == before


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"headers":' * 9_000,
        b'{"topic": ' + b"[" * 90_000,
        b'{"headers": [["a", ' + b"[" * 50_000,
        b'{"extra": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    ],
)
def test_nesting_without_end_is_refused(limited: GatewayProcess, body: bytes) -> None:
    for path in (b"/v1/messages", b"/v1/routes/explain", b"/v1/cancellations"):
        answer = exchange(limited, posted(body, path=path))
        assert statuses(answer)[0] in (400, 422), answer


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"Content-Type: text/plain\r\n",
        b"Content-Type: application/x-www-form-urlencoded\r\n",
        b"Content-Type: application/json2\r\n",
        b"Content-Type: \xff\r\n",
        JSON + b"Content-Type: text/plain\r\n",
    ],
)
def test_another_content_type_is_refused(limited: GatewayProcess, headers: bytes) -> None:
    for path in (b"/v1/messages", b"/v1/cancel"):
        answer = exchange(limited, posted(message(), headers, path))
        assert statuses(answer)[0] in (400, 415), answer


NDJSON = b"Content-Type: application/x-ndjson\r\n"
KAFKA = b"Content-Type: application/vnd.kafka.json.v2+json\r\n"
TWICE = [
    (b"/v1/messages", JSON, b'{"topic": "t", "value": "1", "delay_ms": 9999, "value": "2"}'),
    (b"/v1/messages", JSON, b'{"topic": "t", "topic": "u", "delay_ms": 9999}'),
    (b"/v1/messages", JSON, b'{"route": "r", "route": "s", "delay_ms": 9999}'),
    (b"/v1/messages", JSON, b'{"topic": "t", "delay_ms": null, "delay_ms": 9999}'),
    (b"/v1/messages", JSON, b'{"topic": "t", "delay_ms" : 9999, "\\u0074opic": "u"}'),
    (b"/v1/messages", JSON, b'{"topic": "t", "delay_ms": 9999, "headers": {"a": "1", "a": "2"}}'),
    (b"/v1/messages", JSON, b'{"topic": "t", "delay_ms": 9999, "headers": [], "headers": []}'),
    (
        *(b"/v1/messages", JSON),
        b'{"topic": "t", "delay_ms": 9999, "headers": [["a", {"base64": "", "base64": ""}]]}',
    ),
    (
        *(b"/v1/messages", JSON),
        b'[{"topic": "t", "delay_ms": 9999}, {"topic": "t", "key": "", "key": "b", "delay_ms": 1}]',
    ),
    (
        *(b"/v1/messages", NDJSON),
        b'{"topic": "t", "delay_ms": 9999}\n{"topic": "t", "key": "a", "key": "b", "delay_ms": 1}',
    ),
    (b"/v1/cancel", JSON, b'{"ids": ["a"], "ids": ["b"]}'),
    (b"/v1/cancellations", JSON, b'{"where": {"topic": "t", "topic": "u"}}'),
    (b"/v1/cancellations", JSON, b'{"where": {"headers": {"a": "1", "a": "2"}}}'),
    (b"/v1/routes/explain", JSON, b'{"route": "invoices", "route": "x", "headers": {}}'),
    (b"/v1/dead/redrive?dry_run=true", JSON, b'{"reason": ["a"], "reason": ["expired"]}'),
    (b"/topics/t", KAFKA, b'{"records": [], "records": [{"value": 1}]}'),
    (b"/topics/t", KAFKA, b'{"records": [{"value": 1, "value": 2}]}'),
    (b"/topics/t", KAFKA, b'{"records": [{"value": {"a": [{"b": 1, "b": 2}]}}]}'),
    (b"/consumers/g", KAFKA, b'{"name": "a", "name": "b"}'),
    (b"/v1/jobs?limit=1&limit=2", JSON, b""),
    (b"/v1/messages/x/reschedule", JSON, b'{"delay_ms": 1, "delay_ms": 2}'),
]


@pytest.mark.parametrize(("path", "headers", "body"), TWICE)
def test_what_is_given_twice_is_refused(
    limited: GatewayProcess, path: bytes, headers: bytes, body: bytes
) -> None:
    before = pending(limited)
    sent = posted(body, headers, path)
    answer = exchange(limited, sent if body else sent.replace(b"POST", b"GET", 1))
    assert statuses(answer) == [422], answer
    assert re.search(rb"twice|no such parameter|given once", answer), answer
    assert pending(limited) == before


def test_what_only_looks_like_a_name_twice_is_taken(limited: GatewayProcess) -> None:
    text = 'a": 1, "value": "x": :::: \\ \u00e9'
    nested = [{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}, 10**400, -1.5e300, None, text]
    assert limited.send(**{**MESSAGE, "value": text, "headers": [["a", "1"], ["a", ":"]]})
    body = json.dumps({"records": [{"value": nested, "delay_ms": 3_600_000}]}).encode()
    assert statuses(exchange(limited, posted(body, KAFKA, b"/topics/t"))) == [200]


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Encoding: gzip\r\n",
        b"content-encoding: br\r\n",
        b"Content-Encoding: identity\r\nContent-Encoding: deflate\r\n",
        b"Content-Encoding: identity, gzip\r\n",
    ],
)
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"/v1/messages", JSON),
        (b"/v1/messages", NDJSON),
        (b"/v1/messages", b"Content-Type: application/vnd.apache.arrow.stream\r\n"),
        (b"/v1/cancel", JSON),
        (b"/topics/t", KAFKA),
        (b"/consumers/g", KAFKA),
        (b"/console/job/stop?id=x", b"Content-Type: application/x-www-form-urlencoded\r\n"),
    ],
)
def test_an_encoded_body_is_refused_as_that(
    limited: GatewayProcess, path: bytes, kind: bytes, headers: bytes
) -> None:
    body = gzip.compress(message())
    for sent in (body, message()):  # also where it is not what it says
        answer = exchange(limited, posted(sent, kind + headers, path))
        assert statuses(answer) == [415], answer
        assert b"Content-Encoding" in answer
        assert b"accept-encoding: identity" in answer


def test_text_that_is_not_utf8_is_refused_as_that(limited: GatewayProcess) -> None:
    for charset, status in (("utf-8", 201), ('"UTF-8"', 201), ("iso-8859-1", 415), ("utf-16", 415)):
        headers = JSON[:-2] + f"; charset={charset}\r\n".encode()
        answer = exchange(limited, posted(message(), headers))
        assert statuses(answer) == [status], (charset, answer)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(limited: GatewayProcess) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + JSON
    answer = exchange(limited, head + b"Content-Length: 100000000000\r\n\r\n")
    assert statuses(answer) == [413]
    assert body_of(answer)["limit"] == f"{BODY_MAX} bytes"
    with limited.connect() as one:  # without a length, as long as the other side listens
        one.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        try:
            while sent < 200 << 20:
                one.sendall(chunk)
                sent += len(chunk)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert sent < 200 << 20
    for length in (b"-5", b"1e3", b"x", b"5\r\nContent-Length: 6", b"9" * 40):
        answer = exchange(limited, head + b"Content-Length: " + length + b"\r\n\r\n12345")
        assert statuses(answer)[0] in (400, 413), (length, answer)


REFUSED_EARLY = {
    413: ("POST", "/v1/messages", {"Content-Type": "application/json"}),
    415: ("POST", "/v1/messages", {"Content-Type": "text/plain"}),
    400: ("POST", "/v1/messages", {"Content-Type": "application/json", "Idempotency-Key": "a b"}),
    403: ("POST", "/v1/cancel", {"Content-Type": "application/json", "Origin": "http://evil.x"}),
    404: ("POST", "/nowhere", {"Content-Type": "application/json"}),
    405: ("PUT", "/v1/messages", {"Content-Type": "application/json"}),
    406: ("POST", "/topics/t", {"Content-Type": "application/json", "Accept": "text/html"}),
    421: ("POST", "/v1/cancel", {"Content-Type": "application/json", "Host": "evil.x"}),
    431: ("POST", "/v1/cancel", {"Content-Type": "application/json", "X": "x" * HEADERS_MAX}),
    200: ("GET", "/v1/levels", {}),
}
"""A request that is answered before its body has come, by the answer."""


@pytest.mark.parametrize("status", REFUSED_EARLY)
@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_a_body_before_it_reads_gets_the_answer(
    limited: GatewayProcess, status: int, chunked: bool
) -> None:
    """As Python's ``http.client`` does, and as a connection that is reset would not let it."""
    method, path, headers = REFUSED_EARLY[status]
    part = b"x" * (1 << 20)
    length = {} if chunked else {"Content-Length": str(len(part) * 20)}
    connection = http.client.HTTPConnection(limited.address, timeout=30)
    body = (part for _ in range(20))
    connection.request(method, path, body, {**headers, **length}, encode_chunked=chunked)
    answer = connection.getresponse()
    assert answer.status == status
    assert answer.read()
    assert answer.will_close
    connection.close()


def test_what_is_thrown_away_is_bounded(limited: GatewayProcess) -> None:
    """In bytes, and in seconds for who sends slowly; until then nothing that comes is a request."""
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    request = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for part, pause_s in ((b"x" * (1 << 20), 0.0), (request, 0.1)):
        with limited.connect() as one:
            one.sendall(head)
            assert statuses(received(one)) == [404]  # to its end: this is no broken connection
            began, sent = time.monotonic(), 0
            with suppress(ConnectionResetError, BrokenPipeError):
                while sent < 100 << 20 and time.monotonic() - began < 30:
                    one.sendall(part)
                    sent += len(part)
                    time.sleep(pause_s)
            assert sent < 100 << 20
            assert sent > 20 << 20 or time.monotonic() - began > RECEIVE_S / 2


def test_a_body_that_nobody_was_told_to_send_is_not_waited_for(limited: GatewayProcess) -> None:
    """Whoever asks first (``Expect``) and is refused may send the body, or its next request."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + JSON
    head += b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (BODY_MAX + 1)
    following = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for rest in (b"x" * (BODY_MAX + 1), following):
        with limited.connect() as one:
            one.sendall(head)
            time.sleep(0.05)
            one.sendall(rest)
            answer = received(one)
            assert statuses(answer) == [413]
            assert b"connection: close" in answer


def test_who_is_turned_away_may_have_sent_a_request(limited: GatewayProcess) -> None:
    limited.get("/v1/levels")
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            stack.enter_context(limited.connect())
        connection = http.client.HTTPConnection(limited.address, timeout=30)
        connection.connect()
        time.sleep(0.1)
        connection.request("POST", "/v1/cancel", b"{}", {"Content-Type": "application/json"})
        assert connection.getresponse().status == 503
        connection.close()
    eventually(lambda: len(remote_ports(limited)) < 5)


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /v1/levels HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /v1/levels HTTP/1.1\r\nX: " + b"y" * 500_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 500_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/levels?" + b"a=1&" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_a_flood_of_headers_is_refused(limited: GatewayProcess, flood: bytes) -> None:
    with limited.connect() as one:
        try:
            one.sendall(flood)
        except (ConnectionResetError, BrokenPipeError):
            return
        assert statuses(received(one)) in ([431], [])


def test_headers_that_never_end_are_not_kept(limited: GatewayProcess) -> None:
    with limited.connect() as one:
        one.sendall(b"GET /v1/levels HTTP/1.1\r\n")
        sent = 0
        try:
            while sent < 100 << 20:
                one.sendall(b"X: " + b"y" * 65536)
                sent += 65536
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert sent < 100 << 20


@pytest.mark.parametrize(
    "start",
    [
        b"POST /v1/messages HTTP/1.1\r\n",
        b"POST /v1/mess",
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        + JSON
        + b"Content-Length: 90000\r\n\r\n{",
    ],
)
def test_who_is_slow_is_ended(limited: GatewayProcess, start: bytes) -> None:
    """Also if it goes on byte by byte."""
    with limited.connect() as one:
        one.sendall(start)
        began = time.monotonic()
        one.settimeout(0.2)
        answer = b""
        while time.monotonic() - began < 30:
            try:
                one.sendall(b" ")
                part = one.recv(65536)
                if not part:
                    break
                answer += part
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
        else:
            raise AssertionError("it was served for ever")
        assert statuses(answer) in ([408], [400], [])


def test_an_upload_that_is_given_up_stores_nothing(limited: GatewayProcess) -> None:
    before = pending(limited)
    body = b"[" + b",".join([message()] * 100) + b"]"
    for cut in (1, len(body) // 2, len(body) - 1):
        one = limited.connect()
        one.sendall(posted(body)[: -(len(body) - cut)])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.close()
    limited.get("/v1/levels")
    assert pending(limited) == before


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 1000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"HELLO THERE FRIEND\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"GET /v1/levels HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /v1/levels HTTP/1.1\r\nTransfer-Encoding: gzip, chunked, x\r\n\r\n",
        b"POST /v1/cancel HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /v1/cancel HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request_is_refused(limited: GatewayProcess, garbage: bytes) -> None:
    good = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for sent, first in ((garbage, []), (good + garbage, [200])):
        with limited.connect() as one:
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            found = statuses(received(one))
            assert found[: len(first)] == first[: len(found)]
            assert all(400 <= status < 500 for status in found[len(first) :]), found
            assert len(found) <= len(first) + 1


def test_each_request_of_a_burst_is_answered(limited: GatewayProcess) -> None:
    """They come at once, and are taken one after the other, as their answers are read."""
    one_request = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    close = b"Connection: close\r\n\r\n"
    with limited.connect() as one:
        one.sendall(one_request * 499 + one_request.replace(b"\r\n\r\n", b"\r\n" + close))
        assert statuses(received(one)) == [200] * 500


def test_who_does_not_read_answers_is_ended(limited: GatewayProcess) -> None:
    request = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        deaf = [stack.enter_context(limited.connect()) for _ in range(10)]
        for one in deaf:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(request * 90)
        assert limited.get("/v1/levels")
        ours = {one.getsockname()[1] for one in deaf}
        eventually(lambda: not ours & remote_ports(limited))


def remote_ports(gateway: GatewayProcess) -> set[int]:
    connections = gateway.process.net_connections("tcp")
    return {one.raddr.port for one in connections if one.status == "ESTABLISHED"}


def test_too_many_connections_are_turned_away(limited: GatewayProcess) -> None:
    limited.get("/v1/levels")  # one that was there before is served on
    with ExitStack() as stack:
        idle = [stack.enter_context(limited.connect()) for _ in range(CONNECTIONS_MAX + 5)]
        refused = [statuses(received(one)) for one in idle[-3:]]
        assert refused == [[503]] * 3
        assert limited.get("/v1/levels")
    eventually(lambda: len(remote_ports(limited)) < 5)


def test_one_address_leaves_places_to_others_and_so_does_who_is_quiet(
    limited: GatewayProcess,
) -> None:
    def connect(host: str) -> socket.socket:
        return socket.create_connection(address, 30, source_address=(host, 0))

    address = limited.connect().getpeername()
    head = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n"
    with ExitStack() as stack:
        many = [stack.enter_context(connect("127.0.0.2")) for _ in range(CONNECTIONS_MAX)]
        assert b"too many connections from one address" in received(many[-1])
        others = [stack.enter_context(connect("127.0.0.3")) for _ in range(CONNECTIONS_MAX // 4)]
        slow = [others[0], many[0]]

        def served() -> bool:
            with suppress(OSError):  # slow, but never silent
                for one in slow:
                    one.sendall(b"A")
            with connect("127.0.0.4") as newcomer:
                newcomer.sendall(head + b"Connection: close\r\n\r\n")
                return statuses(received(newcomer)) == [200]

        for one in slow:
            one.sendall(head)
        eventually(served)
        eventually(lambda: not {one.getsockname()[1] for one in slow} & remote_ports(limited))


def test_nothing_waits_for_who_is_slow(limited: GatewayProcess) -> None:
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        + JSON
        + b"Content-Length: 5000\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(limited.connect()).sendall(head)
        ids = [limited.send(**MESSAGE) for _ in range(20)]
        assert len(set(ids)) == 20
