"""Hostile and broken clients: each gets an error or a closed connection, and the node lives."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwheel.delivery.embedded.newtopics import NewTopics
from slotwheel.node.intake.door import Door
from slotwheel.wheel.arrowclaims import _buffers, _header
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.protocol import AppendCommand, encode_json, encode_sequence
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import INPUT
from slotwheel.wire.frames import Kind, encode_frame, encode_hello
from support.exchange import Exchange, RawClient, action_frame, batch_frame, rows
from support.fakewheel import FakeWheel
from support.served import ServedIntake
from support.waiting import eventually, now_ms

MIB = 1 << 20
HELLO = encode_hello(AppendCommand(0).encode())
SEQUENCE = encode_sequence(0)


@pytest.fixture
def server(wheel: FakeWheel) -> Iterator[ServedIntake]:
    door = Door(NewTopics(lambda _: None))  # as of each node: it reads the topics of a batch
    made = ServedIntake(wheel, "127.0.0.1:0", commit=wheel.commit, door=door)
    yield made
    # Whatever a test did: the node still serves an honest client.
    eventually(lambda: made.server.open == 0)  # what was sent before the end is done by then
    wheel.batches.clear()
    assert code_of(made, good(3)) == "stored"
    assert len(wheel.values()) == 3
    eventually(lambda: made.server.open == 0)
    made.close()


def good(rows: int, value: bytes = b"v") -> pa.RecordBatch:
    due = [now_ms()] * rows
    absent = [None] * rows
    return from_columns(due, ["t"] * rows, absent, absent, [value] * rows, [()] * rows)


def code_of(server: ServedIntake, body: pa.RecordBatch | bytes, metadata: bytes = SEQUENCE) -> str:
    """The code of the error that a client gets for this batch, or "stored"."""
    with Exchange(server, AppendCommand(0)) as exchange:
        exchange.send_bytes(batch_frame(body, metadata))
        frame = exchange.frame()
        if frame.kind == Kind.ERROR:
            text = bytes(frame.body)
            assert exchange.ended()
        else:
            text = bytes(frame.body)[32:]
        return text.decode().split('"code": "')[1].split('"')[0] if b"code" in text else "stored"


@pytest.mark.parametrize("metadata", [b"", b"1234567", b"123456789", b"\xff" * 8, b"x" * 25])
def test_wrong_metadata(server: ServedIntake, wheel: FakeWheel, metadata: bytes) -> None:
    assert code_of(server, good(1), metadata) == "invalid-batch"
    assert wheel.values() == []


def test_zero_rows(server: ServedIntake) -> None:
    assert code_of(server, good(1).slice(0, 0)) == "invalid-batch"


def compressed() -> bytes:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink, batch = pa.BufferOutputStream(), good(1, bytes(100_000))
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize().to_pybytes())


_ONE = good(1)
NO_BATCHES = {
    "no Arrow": b"no Arrow at all",
    "zeros": bytes(64),
    "a schema": INPUT.serialize().to_pybytes(),
    "compressed": compressed(),
    "one column": pa.record_batch({"a": [1]}).serialize().to_pybytes(),
    "columns missing": _ONE.select(["due", "topic"]).serialize().to_pybytes(),
    "a dictionary": pa.record_batch({"a": pa.array(["t"]).dictionary_encode()})
    .serialize()
    .to_pybytes(),
    "a view": pa.record_batch({"a": pa.array(["t" * 20], pa.string_view())})
    .serialize()
    .to_pybytes(),
    "half of one": _ONE.serialize().to_pybytes()[:-40],
}


@pytest.mark.parametrize("name", NO_BATCHES)
def test_what_is_no_plain_batch_ends_its_connection_after_all_answers(
    server: ServedIntake, wheel: FakeWheel, name: str
) -> None:
    wheel.commit_s = 0.05
    with Exchange(server) as exchange, Exchange(server, AppendCommand(8)) as other:
        exchange.send(rows(b"before"), 0)
        exchange.send_bytes(batch_frame(NO_BATCHES[name], encode_sequence(1)))
        exchange.stored()
        assert exchange.error().code == "invalid-batch"
        assert exchange.ended()
        other.send(rows(b"other"), 0)
        other.stored()
    assert wheel.values() == [b"before", b"other"]


# Offsets as they are in ``two_rows``, and what an attacker writes over them.
OFFSETS = {"topic": (0, 13, 30), "key": (0, 33, 77), "value": (0, 77, 176), "headers": (0, 2, 5)}
BROKEN = [
    ("value", (0, 1_000_000_000, 1_000_000_001)),
    ("value", (0, -5, 176)),
    ("value", (77, 3, 176)),
    ("value", (0, 5, 2_147_483_647)),
    ("value", (-2_147_483_648, 0, 176)),
    ("key", (-1_000_000, 0, 77)),
    ("key", (0, 33, 78_000_000)),
    ("topic", (0, 13, 1 << 30)),
    ("topic", (0, -13, 30)),
    ("headers", (0, 2, 1_000_000)),
    ("headers", (0, -1, 5)),
    ("headers", (5, 2, 0)),
]


def two_rows() -> pa.RecordBatch:
    return from_columns(
        [now_ms()] * 2,
        ["t" * 13, "u" * 17],
        [None, 1],
        [b"k" * 33, b"k" * 44],
        [b"v" * 77, b"v" * 99],
        [[("a", b"1"), ("b", None)], [("c", b"2")] * 3],
    )


@pytest.mark.parametrize(("name", "offsets"), BROKEN)
def test_wrong_offsets_inside(
    server: ServedIntake, wheel: FakeWheel, name: str, offsets: tuple[int, ...]
) -> None:
    body = two_rows().serialize().to_pybytes()
    sound = struct.pack("<3i", *OFFSETS[name])
    assert body.count(sound) == 1
    broken = body.replace(sound, struct.pack("<3i", *offsets))
    assert code_of(server, broken) == "invalid-batch"
    assert wheel.values() == []
    assert code_of(server, body) == "stored"
    assert wheel.values() == [b"v" * 77, b"v" * 99]


def test_buffers_that_lie_outside_of_the_body(server: ServedIntake, wheel: FakeWheel) -> None:
    """Of a negative one Arrow makes an empty column: it would be stored, and never read again."""
    body = two_rows().serialize().to_pybytes()
    size = len(pa.ipc.read_message(body).body)
    sound = body.index(struct.pack("<qq", 0, 16))  # the due times; the others follow
    count = struct.unpack_from("<I", body, sound - 4 - 16)[0]
    assert count > 10
    for number in range(count):
        place = sound - 16 + 16 * number
        at, length = struct.unpack_from("<qq", body, place)
        for wrong in ((at, -8), (-8, length), (at, 1 << 40), (size + 8, 8), (at, -(1 << 63))):
            changed = bytearray(body)
            struct.pack_into("<qq", changed, place, *wrong)
            assert code_of(server, bytes(changed)) == "invalid-batch"
    assert wheel.values() == []


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("offset", [-1, -(1 << 31), 1, 620_756_990, (1 << 31) - 1])
def test_offsets_of_headers_that_nobody_has(
    server: ServedIntake, wheel: FakeWheel, count: int, offset: int
) -> None:
    """Arrow does not look at them, and would write a batch that nobody can read."""
    body = good(count).serialize().to_pybytes()
    message = pa.ipc.read_message(body)
    metadata = message.metadata.to_pybytes()
    places = list(_buffers(metadata, _header(metadata)[1]))
    begin = len(body) - message.body.size
    for at, length in (places[-5], places[-2]):  # of the names, and of the values
        assert length == 4
        changed = bytearray(body)
        struct.pack_into("<i", changed, begin + at, offset)
        assert code_of(server, bytes(changed)) == "invalid-batch"
    assert wheel.values() == []
    assert code_of(server, body) == "stored"


def test_text_that_is_not_utf8(server: ServedIntake, wheel: FakeWheel) -> None:
    body = two_rows().serialize().to_pybytes()
    assert code_of(server, body.replace(b"t" * 13, b"\xff" * 13)) == "invalid-batch"
    assert wheel.values() == []


def test_random_bytes_on_the_port(server: ServedIntake, wheel: FakeWheel) -> None:
    source = random.Random(1)
    for number in range(60):
        noise = source.randbytes(source.randrange(1, 20_000))
        with RawClient(server, HELLO + noise if number % 2 else noise) as client:
            client.socket.shutdown(1)
            client.rest()
    assert wheel.values() == []


STREAM = (
    HELLO
    + batch_frame(good(2), SEQUENCE)
    + action_frame("status", encode_json({}), 5)
    + batch_frame(good(1, bytes(70_000)), encode_sequence(1))
)


def survives(server: ServedIntake, wheel: FakeWheel, sent: bytes) -> None:
    """Whatever is sent: the connection ends, others are served, and what is stored is valid."""
    with RawClient(server, sent) as client, Exchange(server) as other:
        with contextlib.suppress(OSError):  # ended already
            client.socket.shutdown(1)
        client.rest()
        other.send(good(1), len(wheel.batches))
        other.stored()


def test_each_byte_may_be_wrong(server: ServedIntake, wheel: FakeWheel) -> None:
    large = STREAM.index(bytes(70_000))
    for place in (*range(large), *range(large + 70_000, len(STREAM))):
        wrong = bytearray(STREAM)
        wrong[place] ^= 0xFF
        with RawClient(server, bytes(wrong)) as client:
            with contextlib.suppress(OSError):
                client.socket.shutdown(1)
            client.rest()
    for stored in wheel.batches:
        stored.validate(full=True)


_FRAMES = st.builds(
    lambda kind, reserved, metadata, body, lie: (
        struct.pack("<BBHI", kind, reserved, len(metadata), body if lie is None else lie)
        + metadata
        + bytes(body)
    ),
    st.sampled_from([*range(15), 255]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([b"", SEQUENCE, bytes(24), bytes(25), SEQUENCE + b"status"]),
    st.sampled_from([0, 1, 2, 100, 65_536, 70_000]),
    st.sampled_from([None, None, 0, 1, 1 << 20, 1 << 24, 1 << 31, (1 << 32) - 1]),
)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(st.one_of(_FRAMES, st.just(STREAM[len(HELLO) :]), st.binary(max_size=40)), max_size=4),
    st.integers(0, 1 << 17),
    st.booleans(),
)
def test_any_frames_end_no_connection_but_their_own(
    server: ServedIntake, wheel: FakeWheel, frames: list[bytes], cut: int, hello: bool
) -> None:
    """Lengths that lie, halves, silence, kinds that nobody may send, before a hello and after."""
    survives(server, wheel, ((HELLO if hello else HELLO[:8]) + b"".join(frames))[:cut])


class MallInfo2(ctypes.Structure):
    """Of glibc's malloc.h; bytes or counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def in_use() -> float:
    """MiB that are allocated and not freed, by Arrow and in the C library's heaps.

    Not what is resident: how much of what is free an allocator keeps differs by 80 MiB, by which
    threads happened to take and to free it.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallInfo2
    info = libc.mallinfo2()
    return float(info.uordblks + info.hblkhd + pa.total_allocated_bytes()) / MIB


def test_memory_returns_after_refusals(server: ServedIntake, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_bytes_max=MIB, message_bytes_max=MIB // 2)
    too_large = good(64, b"x" * MIB)
    a_bit_too_large = good(1, b"x" * (MIB + MIB // 16))
    too_many = good(70_000)
    lying = two_rows().serialize().to_pybytes()
    lying = lying.replace(struct.pack("<3i", 0, 77, 176), struct.pack("<3i", 0, -5, 1 << 30))

    def attack() -> None:
        assert code_of(server, lying) == "invalid-batch"
        assert code_of(server, too_large) == "invalid-batch"
        assert code_of(server, a_bit_too_large) == "invalid-batch"
        assert code_of(server, too_many) == "invalid-batch"
        with RawClient(server, HELLO, encode_frame(Kind.BATCH, SEQUENCE, 2_000_000_000)) as liar:
            liar.frame()
            assert liar.error().code == "invalid-batch"
        halves = [
            RawClient(server, HELLO, encode_frame(Kind.BATCH, SEQUENCE, MIB), bytes(100_000))
            for _ in range(20)
        ]
        eventually(lambda: server.server._nbytes >= 20 * MIB)
        for half in halves:
            half.close()
        eventually(lambda: server.server.open == 0)

    for _ in range(2):  # what the allocators keep for themselves, they have after this
        attack()
    before = in_use()
    for _ in range(8):
        attack()
    eventually(lambda: in_use() < before + 8)
    assert pa.total_allocated_bytes() < 200 * MIB


def test_errors_name_the_limit_and_the_remedy(server: ServedIntake, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_bytes_max=10_000)
    with Exchange(server) as exchange:
        exchange.send(good(10, b"x" * 1000), 5)
        refused = exchange.refused()
    assert refused.sequence == 5
    assert "10000 bytes" in str(refused.error)
    assert "smaller batches" in str(refused.error)
    wheel.config = WheelConfig(batch_rows_max=6000)
    with Exchange(server) as exchange:
        exchange.send(good(6001), 6)
        error = exchange.refused().error
    assert (error.got, error.limit) == ("6001", "6000")
