"""Frames that were changed on their way, against real nodes: nothing ends but their connection.

Each frame is one that a client or a peer sends, changed in a few places: bits, lengths, its end,
what stands around it. In between an honest client stores messages; in the end all of them are there
once, the files are sound, and the node is no larger than it was after the first tenth.

A million frames: ``python -m pytest -m soak tests/node/intake/test_fuzz.py``
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import psutil
import pytest

from slotwheel import Client
from slotwheel.replication.rules.messages import Ack, Append, EntryMeta, Heartbeat, RequestVote
from slotwheel.replication.transport import encoding
from slotwheel.replication.transport.handshake import BULK, CONTROL, LANES, SNAPSHOT, Greeting
from slotwheel.wheel.journal.entry import Entry, EntryKind, EntryPart, with_parts
from slotwheel.wheel.peers.snapshot_request import HeldSlot, SnapshotRequest
from slotwheel.wheel.plain import encode_records
from slotwheel.wheel.protocol import (
    ACTIONS,
    STEP_DOWN,
    AppendCommand,
    encode_json,
    encode_request,
    encode_sequence,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wire.frames import Kind, encode_frame, encode_hello
from support.exchange import action_frame, batch_frame, rows
from support.mailboxes import entries_from
from support.nodeprocess import NodeProcess, run_cli
from support.ports import free_address
from support.waiting import now_ms

Figure = Callable[[str], None]
LONG = [pytest.mark.soak, pytest.mark.timeout(7_200)]
HOUR_MS = 3_600_000
GROWTH_MB = 100
_EACH = 20
"""Frames of a connection."""
_LENGTHS = (0, 1, 0xFF, 0xFFFF, 1 << 20, (1 << 24) + 1, (1 << 31) - 1, (1 << 32) - 1)


def client_frames(rng: Random) -> list[bytes]:
    due = now_ms() + HOUR_MS
    batch = rows(*[rng.randbytes(20) for _ in range(rng.randint(1, 5))], due=due)
    headers = [(b"name", b"value"), (b"none", None)]
    plain = [
        (due, b"fuzzed", rng.choice([None, 3]), rng.choice([None, b"k"]), rng.randbytes(9), headers)
        for _ in range(rng.randint(1, 5))
    ]
    body = encode_records(plain)
    sequence = rng.randrange(1 << 20)
    key = rng.choice([None, RequestKey.of(f"key {sequence}", body)])
    metadata = encode_request(sequence, key, len(plain))
    return [
        batch_frame(batch, encode_sequence(sequence, key)),
        whole(Kind.ROWS, metadata, body),
        # Not the one that a real operator may want: it would do what it says.
        action_frame(rng.choice([name for name in ACTIONS if name != STEP_DOWN]), encode_json({})),
    ]


def client_hello(rng: Random) -> bytes:
    return encode_hello(AppendCommand(rng.randrange(1, 1 << 60)).encode())


def whole(kind: int, metadata: bytes = b"", body: bytes = b"") -> bytes:
    return encode_frame(kind, metadata, len(body)) + body


def of_two_callers(index: int, epoch: int) -> Entry:
    """Rows of two callers, in one entry."""
    payload = with_parts(b"two rows", [EntryPart(5, 0, 1), EntryPart(7, 0, 1)])
    return Entry(EntryKind.ROWS, epoch, index, index, 2, 0, -1, payload)


def changed(frame: bytes, rng: Random) -> bytes:
    found = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        how = rng.randrange(6)
        at = rng.randrange(len(found)) if found else 0
        if how == 0 and found:
            found[at] ^= 1 << rng.randrange(8)
        elif how == 1 and len(found) >= 8:
            struct.pack_into("<I", found, 4, rng.choice(_LENGTHS))
        elif how == 2:
            del found[at:]
        elif how == 3:
            found[at:at] = rng.randbytes(rng.randint(1, 12))
        elif how == 4:
            found[at : at + 4] = struct.pack("<I", rng.choice(_LENGTHS))
        elif found:
            found[0] = rng.randrange(16)
    return bytes(found)


def send(address: str, hello: bytes, frames: Sequence[bytes]) -> None:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 30) as sock, contextlib.suppress(OSError):
        sock.sendall(hello)
        sock.sendall(b"".join(frames))
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(30)
        while sock.recv(65_536):
            pass


def megabytes(node: NodeProcess) -> float:
    return float(psutil.Process(node.running.pid).memory_info().rss) / 1e6


@pytest.mark.parametrize("count", [4_000, pytest.param(800_000, marks=LONG)])
def test_a_clients_frames(tmp_path: Path, count: int, figure: Figure) -> None:
    rng = Random(count)
    address = free_address()
    with NodeProcess(tmp_path / "data", "--listen", address) as node:
        honest: list[str] = []
        first_mb = 0.0
        with Client(address, timeout_s=60) as client:
            for number in range(0, count, _EACH):
                hello = client_hello(rng)
                if rng.random() < 0.1:
                    hello = changed(hello, rng)
                frames = [rng.choice(client_frames(rng)) for _ in range(_EACH)]
                send(
                    address,
                    hello,
                    [changed(one, rng) if rng.random() < 0.5 else one for one in frames],
                )
                if number % (count // 20) == 0:
                    honest.append(client.store("honest", b"%d" % len(honest), delay=2))
                if number == count // 10:
                    first_mb = megabytes(node)
            grown_mb = megabytes(node) - first_mb
        found = node.wait_for("honest", len(honest))
        assert sorted(one["value"] for one in found) == sorted(
            b"%d" % n for n in range(len(honest))
        )
        figure(f"{count} frames of clients: the node grew by {grown_mb:.0f} MB")
        assert grown_mb < GROWTH_MB
        assert "Traceback" not in node.log_text()
    verified = run_cli("verify", tmp_path / "data")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=LONG)])
def test_a_peers_frames(tmp_path: Path, count: int, figure: Figure) -> None:
    rng = Random(count)
    peers = {"a": free_address(), "b": free_address(), "c": free_address()}
    own = [text for name, at in peers.items() for text in ("--peer", f"{name}={at}")]
    store = os.urandom(16)

    def hello(lane: str) -> bytes:
        said = Greeting("default", "b", "a", "1" * 16, store, peers, lane=lane, promise_ms=1000)
        return encode_hello(said.encode())

    entries = [*entries_from(1, 2, epoch=3), of_two_callers(3, epoch=3)]
    append = Append("b", "a", store, 3, 0, 0, (EntryMeta(3),) * 3, 0, 0.0)
    bulk = encoding.encode(append), b"".join(encoding.pack_entries(entries))
    small = [
        RequestVote("b", "a", store, 3, 0, 0, pre=True),
        Heartbeat("b", "a", store, 3, 0, 0.0),
        Ack("b", "a", store, 3, 0, 0, voter=True),
    ]
    held = SnapshotRequest({n: HeldSlot(n, n) for n in range(rng.randint(0, 9))}).encode()

    def frame(lane: str) -> bytes:
        if rng.random() < 0.1:
            lane = rng.choice(LANES)
        if rng.random() < 0.1:
            return whole(Kind.BEAT)
        if lane == CONTROL:
            return whole(Kind.MESSAGE, encoding.encode(rng.choice(small)))
        if lane == BULK:
            return whole(Kind.MESSAGE, *bulk)
        return whole(Kind.REQUEST, b"", held if lane == SNAPSHOT else rng.randbytes(16))

    with NodeProcess(tmp_path / "data", "--listen", peers["a"], "--node-id", "a", *own) as node:
        first_mb = 0.0
        for number in range(0, count, _EACH):
            lane = rng.choice(LANES)
            frames = [changed(frame(lane), rng) for _ in range(_EACH)]
            if lane != BULK:  # whole entries would be stored: this peer could be the master
                frames = [frame(lane) if rng.random() < 0.5 else one for one in frames]
            said = hello(lane)
            send(peers["a"], changed(said, rng) if rng.random() < 0.1 else said, frames)
            if number == count // 10:
                first_mb = megabytes(node)
        grown_mb = megabytes(node) - first_mb
        figure(f"{count} frames of peers: the node grew by {grown_mb:.0f} MB")
        assert grown_mb < GROWTH_MB
        assert "Traceback" not in node.log_text()
        assert run_cli("status", "--node", peers["a"]).returncode == 0
    verified = run_cli("verify", tmp_path / "data")
    assert verified.returncode == 0, verified.stdout + verified.stderr
