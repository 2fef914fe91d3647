"""Attacks on the listeners of a node, carried out by a process of its own: ``attack`` starts one.

Theory: an attacker is bound by nothing that a client of ours is bound by, so none of this is made
with it: sockets, the frames' bytes, and TLS that accepts any certificate. Each attack does one
thing as fast as half a processor can, until its time is over. ``ATTACKS`` says which listeners it
is made against and what the attacker has proven: nothing, a token with the right to one topic of
its own, or the certificate of one peer.

Everything that is answered to somebody who has proven nothing is kept, decrypted, for the test to
look through: an address or a name in a refusal would tell a stranger where to go on.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from slotwheel.delivery.semantics import AT_LEAST_ONCE
from slotwheel.replication.rules.messages import Heartbeat, PeerMessage, RequestVote, Vote
from slotwheel.replication.transport import encoding
from slotwheel.replication.transport.handshake import CONTROL, LANES, SNAPSHOT, Greeting
from slotwheel.wheel.peers.snapshot_request import SnapshotRequest
from slotwheel.wheel.plain import encode_records
from slotwheel.wheel.protocol import (
    ACTIONS,
    CANCEL,
    STEP_DOWN,
    AppendCommand,
    encode_json,
    encode_request,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.rows import from_columns
from slotwheel.wire.frames import Kind, encode_action, encode_frame, encode_hello

WIRE, PEER_PORT, HTTP, METRICS = LISTENERS = ("wire", "peer port", "HTTP", "metrics")
LITTLE = "little"
"""The only topic to which an attacker with a token may schedule."""
HELD_MAX = 3_000
"""Connections that an attack holds at once."""
_FROM = "127.0.0.2"
"""The attacker's address: another one than that of honest callers, as another machine has."""
_TIMEOUT_S = 2.0
_PROCESSOR_SHARE = 0.5
"""An attacker takes so much of a processor at most. It shares the machine with those whom it
attacks: one that only computes, at the lowest priority, and connects to nobody, makes a caller that
waits wait six times as long, for the kernel lets it go on until the next tick."""
_TLS_MAJOR = b"\x03"
"""The second byte of each record of TLS: the version, 3."""
_HEARD_MAX = 200
_HEARD_BYTES = 4_000
_NEAR_THE_END = (1 << 62) - 1
"""The highest epoch that a message can have."""
_STORE = bytes(16)


@dataclass(frozen=True)
class Target:
    """One listener. ``has_tls``: it speaks TLS. ``token``: of the attacker; ``cert`` and ``key``:
    files of a certificate that it has. ``peers``: the group, ids to addresses; ``poses_as`` and
    ``to``: the ids of the peer whose place the attacker takes, and of the one it connects to."""

    listener: str
    address: str
    has_tls: bool = True
    token: str = ""
    cert: str = ""
    key: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)
    poses_as: str = ""
    to: str = ""


class Result(NamedTuple):
    """``tries``: what was begun. ``let_in``: how often somebody was let in. ``heard``: what was
    answered, each different text once."""

    tries: int
    let_in: int
    heard: list[str]


class Attacker:
    """``seconds``: from the first connection on."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self._seconds = seconds
        self._end_s = 0.0
        self._used_s = 0.0
        self.tries = 0
        self.let_in = 0
        self.heard: set[str] = set()
        host, _, port = target.address.rpartition(":")
        self._place = host, int(port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        if target.cert:
            self._context.load_cert_chain(target.cert, target.key or None)

    @property
    def goes_on(self) -> bool:
        now_s = time.monotonic()
        if not self._end_s:
            self._end_s = now_s + self._seconds
            self._used_s = time.process_time()
        since_s = now_s - self._end_s + self._seconds
        ahead_s = time.process_time() - self._used_s - _PROCESSOR_SHARE * since_s
        if ahead_s > 0:
            time.sleep(ahead_s / _PROCESSOR_SHARE)
        return now_s < self._end_s

    def tcp(self) -> socket.socket:
        """Connect, and say nothing. Errors: ``OSError``."""
        self.tries += 1
        return socket.create_connection(self._place, _TIMEOUT_S, (_FROM, 0))

    def open(self) -> socket.socket:
        """Connect, with a handshake if there is TLS. Errors: ``OSError``."""
        sock = self.tcp()
        if not self.target.has_tls:
            return sock
        try:
            return self._context.wrap_socket(sock, server_hostname="x")
        except BaseException:
            sock.close()
            raise

    def client_hello(self) -> bytes:
        """The first bytes of a handshake."""
        outgoing = ssl.MemoryBIO()
        shaking = self._context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
        with contextlib.suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        return outgoing.read()

    def greeted(self) -> socket.socket:
        """Connect, say hello with the attacker's token, and read the welcome. Errors:
        ``OSError``."""
        sock = self.open()
        try:
            producer = secrets.randbits(60) or 1
            sock.sendall(encode_hello(AppendCommand(producer, "all", self.target.token).encode()))
            first = sock.recv(1 << 16)
            if first[:1] != bytes([Kind.WELCOME]):
                self.hear(first)
                raise ConnectionRefusedError
            self.let_in += 1
        except BaseException:
            sock.close()
            raise
        return sock

    def hear(self, answer: bytes) -> None:
        """Keep what is answered, but for records of TLS, whose bytes say whatever chance makes."""
        if answer and answer[1:2] != _TLS_MAJOR and len(self.heard) < _HEARD_MAX:
            self.heard.add(answer[:_HEARD_BYTES].decode("latin-1"))

    def listen(self, sock: socket.socket, timeout_s: float = 0.3) -> None:
        """Keep what is answered, and close."""
        with contextlib.closing(sock), contextlib.suppress(OSError):
            sock.settimeout(timeout_s)
            self.hear(sock.recv(_HEARD_BYTES))

    def again_and_again(self, do: Callable[[], None], threads: int = 4) -> None:
        """Do it until the end, in some threads."""

        def run() -> None:
            while self.goes_on:
                try:
                    do()
                except OSError:
                    time.sleep(0.001)

        running = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(self._seconds + 5)

    def crowd(
        self,
        begin: Callable[[], socket.socket],
        rest: bytes = b"",
        held_max: int = HELD_MAX,
    ) -> None:
        """Hold as many connections as may be, and send ``rest`` byte by byte on them, in turn;
        those that have been held longest leave for new ones."""
        held: deque[tuple[socket.socket, Iterator[int]]] = deque()
        while self.goes_on:
            try:
                held.append((begin(), iter(rest)))
            except OSError:
                time.sleep(0.001)
            for _ in range(4 if rest and held else 0):
                sock, left = held[0]
                held.rotate(-1)
                with contextlib.suppress(OSError):
                    sock.send(bytes([next(left, 0x20)]))
            if len(held) > held_max:
                self.listen(held.popleft()[0], 0.001)
        for sock, _ in held:
            self.listen(sock, 0.001)


# Who has proven nothing


def silent(attacker: Attacker) -> None:
    attacker.crowd(attacker.tcp)


def half_handshakes(attacker: Attacker) -> None:
    hello = attacker.client_hello()

    def begin() -> socket.socket:
        sock = attacker.tcp()
        sock.send(hello[:40])
        return sock

    attacker.crowd(begin, hello[40:])


def stalled_handshakes(attacker: Attacker) -> None:
    """The node signs and answers; nothing comes back."""

    def begin() -> socket.socket:
        sock = attacker.tcp()
        sock.send(attacker.client_hello())
        return sock

    attacker.crowd(begin)


def handshakes(attacker: Attacker) -> None:
    attacker.again_and_again(lambda: attacker.open().close(), threads=8)


def half_hellos(attacker: Attacker) -> None:
    hello = _REQUEST if attacker.target.listener != WIRE else encode_hello(b"{" + b" " * 9_000)

    def begin() -> socket.socket:
        sock = attacker.open()
        sock.send(hello[:10])
        return sock

    attacker.crowd(begin, hello[10:])


_REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 9_000


def other_protocols(attacker: Attacker) -> None:
    begins = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x40\x00" + bytes(100),
        b"\x80\x2e\x01\x00\x02",
        encode_hello(AppendCommand(7).encode()),
        encode_hello(_greeting(attacker.target)),
        b"\x00" * 400,
        secrets.token_bytes(20_000),
    ]

    def do() -> None:
        sock = attacker.tcp()
        sock.sendall(secrets.choice(begins))
        attacker.listen(sock)

    attacker.again_and_again(do)


def huge_claims(attacker: Attacker) -> None:
    largest = (1 << 32) - 1
    head = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    begins = [
        head + b"Content-Length: 9223372036854775807\r\n\r\n",
        head + b"Content-Length: 99999999999999999999999999\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
        head + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        head + b"X: " + b"x" * 300_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 300_000,
    ]
    if attacker.target.listener == WIRE:
        magic = encode_hello(b"")[:8]
        begins = [magic + encode_frame(kind, b"", largest) + bytes(5_000) for kind in Kind]
        begins.append(magic + encode_frame(Kind.HELLO, bytes(60_000), 16 << 10))

    def do() -> None:
        sock = attacker.open()
        with contextlib.suppress(OSError):
            sock.sendall(secrets.choice(begins))
        attacker.listen(sock)

    attacker.again_and_again(do)


def guesses(attacker: Attacker) -> None:
    """Tokens: close to a real one's form, and none of them one."""

    def do() -> None:
        token = "swt_" + secrets.token_urlsafe(32)
        sock = attacker.open()
        if attacker.target.listener == WIRE:
            sock.sendall(encode_hello(AppendCommand(1, "all", token).encode()))
        else:
            sock.sendall(_get("/v1/status", token) * 20)
        attacker.listen(sock, _TIMEOUT_S)

    attacker.again_and_again(do)


def peers_messages(attacker: Attacker) -> None:
    """Greetings, votes and requests for snapshots where clients connect, by who is no peer."""

    def do() -> None:
        sock = attacker.open()
        lane = secrets.choice(LANES)
        with contextlib.suppress(OSError):
            sock.sendall(encode_hello(_greeting(attacker.target, lane)))
            sock.sendall(_peer_frame(attacker.target, lane))
        attacker.listen(sock, _TIMEOUT_S)

    attacker.again_and_again(do)


def unread_metrics(attacker: Attacker) -> None:
    def begin() -> socket.socket:
        sock = attacker.open()
        sock.send(_get("/metrics"))
        return sock

    attacker.crowd(begin)


# Who has a token with a little right


def bombs(attacker: Attacker) -> None:
    """Rows whose buffers claim, view or unpack to more than was sent."""
    attacker.again_and_again(
        _bomb_of_http(attacker) if attacker.target.listener == HTTP else _bomb_of_wire(attacker)
    )


def _bomb_of_wire(attacker: Attacker) -> Callable[[], None]:
    frames = [encode_frame(Kind.BATCH, bytes(8), len(body)) + body for body in _bodies()]
    frames += [
        encode_frame(kind, bytes(8), (1 << 32) - 1) + bytes(1 << 16)
        for kind in (Kind.BATCH, Kind.ROWS, Kind.ACTION)
    ]

    def do() -> None:
        sock = attacker.greeted()
        with contextlib.suppress(OSError):
            sock.sendall(secrets.choice(frames))
        attacker.listen(sock)

    return do


def _bomb_of_http(attacker: Attacker) -> Callable[[], None]:
    streams = [_stream(body) for body in (_bomb_batch(), _view_batch())]
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    bodies = [("application/vnd.apache.arrow.stream", _stream(_bomb_batch(), compressed))]
    bodies += [("application/vnd.apache.arrow.stream", stream[: 2 << 20]) for stream in streams]
    bodies.append(("application/json", b"[" * 100_000))
    bodies.append(("application/json", b'{"topic": "' + b"\\u0041" * 100_000 + b'"}'))
    bodies.append(("application/x-ndjson", b"{}\n" * 100_000))

    def do() -> None:
        kind, body = secrets.choice(bodies)
        sock = attacker.open()
        with contextlib.suppress(OSError):
            sock.sendall(_post("/v1/messages", attacker.target.token, body, kind))
        attacker.listen(sock, _TIMEOUT_S)

    return do


def unfinished_bodies(attacker: Attacker) -> None:
    """Most of a body that is as large as may be, and no more of it."""
    size = 4 << 20

    def begin() -> socket.socket:
        if attacker.target.listener == WIRE:
            sock = attacker.greeted()
            head = encode_frame(Kind.BATCH, bytes(8), size)
        else:
            sock = attacker.open()
            head = _post("/v1/messages", attacker.target.token, b"", "application/json", size)
        sock.settimeout(0.02)  # what does not go out is not sent
        with contextlib.suppress(OSError):
            sock.sendall(head)
            sock.sendall(bytes(size - 1))
        return sock

    attacker.crowd(begin, held_max=400)


def unread_answers(attacker: Attacker) -> None:
    """Questions without end, whose answers nobody reads."""
    if attacker.target.listener == WIRE:
        names = [name for name in ACTIONS if name != STEP_DOWN]
        bodies = b"{}", encode_json({})  # the first one is none
        questions = b"".join(
            encode_frame(Kind.ACTION, encode_action(n, names[n % len(names)]), len(body)) + body
            for n in range(1_000)
            for body in bodies
        )
    else:
        questions = _get("/openapi.json", attacker.target.token) * 500

    def begin() -> socket.socket:
        sock = attacker.greeted() if attacker.target.listener == WIRE else attacker.open()
        sock.settimeout(0.02)
        with contextlib.suppress(OSError):
            sock.sendall(questions)
        return sock

    attacker.crowd(begin, held_max=400)


def registrations(attacker: Attacker) -> None:
    """Whatever a node could be made to remember: producers, requests by their keys, consumers."""
    due = int(time.time() * 1000) + 3_600_000
    body = encode_records([(due, LITTLE.encode(), None, None, b"x", ())])

    def by_wire() -> None:
        with contextlib.closing(attacker.greeted()) as sock:  # each is another producer
            for number in range(10):
                key = RequestKey.of(secrets.token_hex(16), body)
                metadata = encode_request(number, key, 1)
                sock.sendall(encode_frame(Kind.ROWS, metadata, len(body)) + body)
            sock.recv(1 << 16)

    def by_http() -> None:
        token = attacker.target.token
        rows = encode_json({"topic": LITTLE, "value": "x", "delay_ms": 3_600_000})
        consumer = encode_json({"name": secrets.token_hex(8), "format": "binary"})
        with contextlib.closing(attacker.open()) as sock:
            for _ in range(10):
                key = secrets.token_hex(16)
                sock.sendall(_post("/v1/messages", token, rows, "application/json", key=key))
                sock.recv(1 << 16)
                path, kind = f"/consumers/{key}", "application/vnd.kafka.v2+json"
                sock.sendall(_post(path, token, consumer, kind))
                sock.recv(1 << 16)

    attacker.again_and_again(by_wire if attacker.target.listener == WIRE else by_http)


def guessed_ids(attacker: Attacker) -> None:
    """Cancels of messages of others, by ids that might be theirs."""

    def ids() -> list[str]:
        due = int(time.time() * 1000)
        return [f"default.{due + n}.{n}.{secrets.token_hex(4)}" for n in range(100)]

    def by_wire() -> None:
        with contextlib.closing(attacker.greeted()) as sock:
            for number in range(20):
                fields = encode_json({"ids": ids()})
                metadata = encode_action(number, CANCEL)
                sock.sendall(encode_frame(Kind.ACTION, metadata, len(fields)) + fields)
                sock.recv(1 << 16)

    def by_http() -> None:
        with contextlib.closing(attacker.open()) as sock:
            for number in ids():
                sock.sendall(_get(f"/v1/messages/{number}", attacker.target.token))
                sock.recv(1 << 16)

    attacker.again_and_again(by_wire if attacker.target.listener == WIRE else by_http)


# Who has the certificate of another, or of one peer


def stolen_ids(attacker: Attacker) -> None:
    """Pose as the peer that is down, by a certificate that is not its own."""

    def do() -> None:
        lane = secrets.choice(LANES)
        sock = attacker.open()
        with contextlib.suppress(OSError):
            sock.sendall(encode_hello(_greeting(attacker.target, lane)))
            sock.sendall(_peer_frame(attacker.target, lane))
        attacker.listen(sock, _TIMEOUT_S)

    attacker.again_and_again(do)


def far_epochs(attacker: Attacker) -> None:
    """Messages of a real peer's certificate, in an epoch near the end of the numbers."""

    def do() -> None:
        sock = attacker.open()
        sock.sendall(encode_hello(_greeting(attacker.target)))
        answer = sock.recv(1 << 12)
        if answer[:1] == bytes([Kind.WELCOME]):
            attacker.let_in += 1
        attacker.hear(answer)
        for _ in range(10):
            sock.sendall(_peer_frame(attacker.target, CONTROL))
        attacker.listen(sock, 0.05)

    attacker.again_and_again(do, threads=2)


# What they send


def _greeting(target: Target, lane: str = CONTROL) -> bytes:
    said = Greeting(
        "default",
        target.poses_as or "b",
        target.to or "a",
        "i",
        _STORE,
        target.peers,
        promise_ms=800,
        lane=lane,
        delivery=AT_LEAST_ONCE,
    )
    return said.encode()


def _peer_frame(target: Target, lane: str) -> bytes:
    if lane == SNAPSHOT:
        request = SnapshotRequest({}).encode()
        return encode_frame(Kind.REQUEST, b"", len(request)) + request
    head: dict[str, Any] = {
        "sender": target.poses_as or "b",
        "to": target.to or "a",
        "store": _STORE,
        "epoch": _NEAR_THE_END,
    }
    messages: list[PeerMessage] = [
        RequestVote(**head, last_index=_NEAR_THE_END, last_epoch=_NEAR_THE_END),
        RequestVote(**head, last_index=_NEAR_THE_END, last_epoch=_NEAR_THE_END, pre=True),
        Vote(**head, granted=True),
        Heartbeat(**head, commit=0, sent_at=0.0),
    ]
    return encode_frame(Kind.MESSAGE, encoding.encode(secrets.choice(messages)))


def _get(path: str, token: str = "") -> bytes:
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{proof}\r\n".encode()


def _post(
    path: str, token: str, body: bytes, kind: str, claimed: int | None = None, key: str = ""
) -> bytes:
    size = len(body) if claimed is None else claimed
    named = f"Idempotency-Key: {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n{named}"
        f"Content-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    )
    return head.encode() + body


def _bomb_batch() -> pa.RecordBatch:
    """16 MB of zeros, which are a kilobyte when they are compressed."""
    due = [int(time.time() * 1000)]
    return from_columns(due, [LITTLE], [None], [None], [bytes(16 << 20)], [()])


def _view_batch() -> pa.RecordBatch:
    """Rows that all point at the same 64 kB: 64 MB, as soon as somebody copies them out."""
    size, count = 64 << 10, 1_000
    views = struct.pack("<i4sii", size, b"xxxx", 0, 0) * count
    buffers = [None, pa.py_buffer(views), pa.py_buffer(b"x" * size)]
    return pa.record_batch({"topic": pa.Array.from_buffers(pa.string_view(), count, buffers)})


def _stream(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _bodies() -> list[bytes]:
    """Bodies of record batch messages."""
    stream = _stream(_bomb_batch(), pa.ipc.IpcWriteOptions(compression="zstd"))
    messages = pa.ipc.MessageReader.open_stream(stream)
    messages.read_next_message()
    compressed = messages.read_next_message().serialize().to_pybytes()
    view = _view_batch().serialize().to_pybytes()
    plain = from_columns([1], [LITTLE], [None], [None], [b"x"], [()]).serialize().to_pybytes()
    claims = plain.replace(b"\x01" + bytes(7), b"\xff" * 7 + b"\x3f")
    return [compressed, view, claims, plain[:-16], bytes(len(plain))]


# The table, and the process


@dataclass(frozen=True)
class Attack:
    """``listeners``: against which it is made. ``proves``: nothing, a token with a little right, a
    certificate that is not the peer's, or the peer's own."""

    do: Callable[[Attacker], None]
    listeners: tuple[str, ...]
    proves: str = "nothing"

    @property
    def name(self) -> str:
        return self.do.__name__.replace("_", " ")


NOTHING, TOKEN, CERTIFICATE, PEER = "nothing", "token", "certificate", "peer"
ATTACKS = {
    attack.name: attack
    for attack in (
        Attack(silent, LISTENERS),
        Attack(half_handshakes, (WIRE, PEER_PORT, HTTP)),
        Attack(stalled_handshakes, (WIRE, PEER_PORT, HTTP)),
        Attack(handshakes, (WIRE, PEER_PORT, HTTP)),
        Attack(half_hellos, (WIRE, HTTP, METRICS)),
        Attack(other_protocols, LISTENERS),
        Attack(huge_claims, (WIRE, HTTP, METRICS)),
        Attack(guesses, (WIRE, HTTP)),
        Attack(peers_messages, (WIRE,)),
        Attack(unread_metrics, (METRICS,)),
        Attack(bombs, (WIRE, HTTP), TOKEN),
        Attack(unfinished_bodies, (WIRE, HTTP), TOKEN),
        Attack(unread_answers, (WIRE, HTTP), TOKEN),
        Attack(registrations, (WIRE, HTTP), TOKEN),
        Attack(guessed_ids, (WIRE, HTTP), TOKEN),
        Attack(stolen_ids, (PEER_PORT,), CERTIFICATE),
        Attack(far_epochs, (PEER_PORT,), PEER),
    )
}


class Attacking:
    """One attack, in a process of its own: it connects to nothing before ``begin``. ``result``
    waits for its end."""

    def __init__(self, name: str, target: Target, seconds: float) -> None:
        given = json.dumps([name, asdict(target), seconds])
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_it_is_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def result(self) -> Result:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            text = out.read()
        assert self._process.wait(60) == 0
        return Result(*json.loads(text))

    def end(self) -> None:
        """End it, if it goes on."""
        self._process.kill()
        self._process.wait(60)


def main(given: str) -> None:
    name, fields, seconds = json.loads(given)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(19)  # on a machine of its own it would take no processor time of the node
    print("ready", flush=True)
    sys.stdin.read()
    attacker = Attacker(Target(**fields), seconds)
    ATTACKS[name].do(attacker)
    print(json.dumps([attacker.tries, attacker.let_in, sorted(attacker.heard)]), flush=True)
    os._exit(0)  # threads may still wait for an answer


if __name__ == "__main__":
    main(sys.argv[1])
