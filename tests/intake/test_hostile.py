"""Hostile and broken clients: each gets an error or a closed connection, and the node lives."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from slotwheel.intake.flight import FlightIntake
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.protocol import AppendCommand, decode_answer, encode_json, encode_sequence
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import HEADERS, INPUT, TIME
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms

MIB = 1 << 20


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def server(wheel: FakeWheel) -> Iterator[FlightIntake]:
    made = FlightIntake(wheel, "127.0.0.1:0")
    yield made
    # Whatever a test did: the node still serves an honest client.
    wheel.batches.clear()
    assert answer_to(made, good(3)) == "stored"
    assert len(wheel.values()) == 3
    made.close()


def good(rows: int, value: bytes = b"v") -> pa.RecordBatch:
    due = [now_ms()] * rows
    absent = [None] * rows
    return from_columns(due, ["t"] * rows, absent, absent, [value] * rows, [()] * rows)


def answer_to(
    server: FlightIntake,
    batch: pa.RecordBatch | None,
    *,
    command: bytes = AppendCommand(0).encode(),
    metadata: bytes | None = encode_sequence(0),
) -> str:
    """The code of the error a client gets for this batch, or "stored", or "ended"."""
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command))
        try:
            if batch is not None:
                writer.begin(batch.schema)
                if metadata is None:
                    writer.write_batch(batch)
                else:
                    writer.write_with_metadata(batch, pa.py_buffer(metadata))
            writer.done_writing()
            answer = decode_answer(reader.read_chunk().app_metadata.to_pybytes())
            error = getattr(answer, "error", None)
            return "stored" if error is None else str(error.code)
        except StopIteration:
            return "ended"
        except flight.FlightError as failure:
            return str(json.loads(failure.extra_info)["code"])
        except pa.ArrowException as failure:
            return f"refused by Arrow: {type(failure).__name__}"
        finally:
            with contextlib.suppress(pa.ArrowException):
                writer.close()


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\x00" * 100,
        b"append",
        encode_json({"do": "append", "producer": "ffffffffffffffff"}),
        encode_json({"do": "delete", "producer": "1"}),
    ],
)
def test_wrong_command(server: FlightIntake, command: bytes) -> None:
    assert answer_to(server, good(1), command=command) == "invalid-batch"


def test_other_protocol_version(server: FlightIntake) -> None:
    body = b'{"slotwheel": 99, "do": "append", "producer": "1"}'
    assert answer_to(server, good(1), command=body) == "unsupported-version"


@pytest.mark.parametrize("metadata", [None, b"", b"1234567", b"123456789", b"\xff" * 8, b"x" * MIB])
def test_wrong_metadata(server: FlightIntake, metadata: bytes | None) -> None:
    assert answer_to(server, good(1), metadata=metadata) == "invalid-batch"


def test_stream_with_no_batches(server: FlightIntake, wheel: FakeWheel) -> None:
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        descriptor = flight.FlightDescriptor.for_command(AppendCommand(0).encode())
        writer, reader = client.do_exchange(descriptor)
        writer.begin(INPUT)
        writer.done_writing()
        with pytest.raises(StopIteration):
            reader.read_chunk()
        writer.close()
    assert answer_to(server, None) != "stored"
    assert wheel.values() == []


def test_zero_rows(server: FlightIntake) -> None:
    assert answer_to(server, good(1).slice(0, 0)) == "invalid-batch"


def test_a_header_that_only_slotwheel_may_add(server: FlightIntake, wheel: FakeWheel) -> None:
    headers: list[list[tuple[str, bytes | None]]] = [[("slotwheel-id", b"made up")]]
    batch = from_columns([now_ms()], ["t"], [None], [None], [b"v"], headers)
    assert answer_to(server, batch) == "invalid-message"
    assert wheel.values() == []


_GOOD = {"due": pa.array([1]), "topic": pa.array(["t"]), "value": pa.array([b""])}
_RUN = pa.RunEndEncodedArray.from_arrays([1], pa.array([b""]))
WRONG_SCHEMAS = [
    {"a": pa.array([1])},
    {"due": pa.array([1]), "topic": pa.array(["t"])},
    {"due": pa.array([1]), "topic": pa.array(["t"]), "value": pa.array([b""]), "z": pa.array([1])},
    {"due": pa.array([[1]]), "topic": pa.array(["t"]), "value": pa.array([b""])},
    {"due": pa.array([1]), "topic": pa.array(["t"]).dictionary_encode(), "value": pa.array([b""])},
    {"due": pa.array([1]), "topic": pa.array(["t"]), "value": pa.array([{"deep": [[[1]]]}])},
    # Columns that become larger than their buffers when they are cast.
    {"due": pa.array([1]), "topic": pa.array(["t"], pa.string_view()), "value": pa.array([b""])},
    {"due": pa.array([1]), "topic": pa.array(["t"]), "value": pa.array([b""], pa.binary_view())},
    {"due": pa.array([1]), "topic": pa.array(["t"]), "value": pa.array([b""]), "key": pa.nulls(1)},
    {"due": pa.array([1]), "topic": pa.array(["t"]), "value": _RUN},
    {**_GOOD, "headers": pa.array([[]], pa.list_view(HEADERS.value_type))},
    {**_GOOD, "headers": pa.array([[]], pa.list_(pa.struct({"key": pa.string_view()})))},
]


@pytest.mark.parametrize("columns", WRONG_SCHEMAS, ids=range(len(WRONG_SCHEMAS)))
def test_wrong_schema(server: FlightIntake, columns: dict[str, pa.Array]) -> None:
    assert answer_to(server, pa.record_batch(columns)) == "invalid-batch"


def test_the_same_column_twice(server: FlightIntake) -> None:
    one = good(1)
    schema = pa.schema([*one.schema, one.schema.field("value")])
    twice = pa.RecordBatch.from_arrays([*one.columns, one.column("value")], schema=schema)
    assert answer_to(server, twice) == "invalid-batch"


def raw_flight_messages(batch: pa.RecordBatch) -> tuple[bytes, bytes]:
    return batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()


def h2_frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
    )


def h2_literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def raw_exchange(port: int) -> socket.socket:
    """A hand-made HTTP/2 connection with an open DoExchange, for whatever bytes one likes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    path = b"/arrow.flight.protocol.FlightService/DoExchange"
    headers = b"".join(
        h2_literal(name, value)
        for name, value in [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
    )
    connection.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(4, 0, 0, b"") + h2_frame(1, 4, 1, headers)
    )
    return connection


def grpc_message(body: bytes, claimed: int | None = None) -> bytes:
    return b"\x00" + struct.pack(">I", len(body) if claimed is None else claimed) + body


def protobuf(field: int, body: bytes) -> bytes:
    size, length = len(body), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    length += bytes([size])
    key = field << 3 | 2
    tag = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return tag + length + body


def flight_data(header: bytes, body: bytes = b"", *, first: bool = False) -> bytes:
    descriptor = protobuf(1, b"\x08\x02" + protobuf(2, AppendCommand(0).encode())) if first else b""
    metadata = b"" if first else protobuf(3, encode_sequence(0))
    return descriptor + protobuf(2, header) + metadata + protobuf(1000, body)


def split_ipc(message: bytes) -> tuple[bytes, bytes]:
    """The flatbuffer and the body of an encapsulated IPC message."""
    length = struct.unpack_from("<i", message, 4)[0]
    return message[8 : 8 + length], message[8 + length :]


def finish(connection: socket.socket) -> bytes:
    """Read until the server has answered or closed."""
    connection.settimeout(2)
    received = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            received += data
            if b"grpc-status" in received:
                break
    connection.close()
    return received


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


def raw_answer(server: FlightIntake, *messages: tuple[bytes, bytes]) -> bytes:
    """What the server sends for a schema and batches given as (flatbuffer, body)."""
    connection = raw_exchange(server.port)
    data = b""
    for number, message in enumerate(messages):
        data += grpc_message(flight_data(*message, first=number == 0))
    connection.sendall(h2_frame(0, 1, 1, data))
    return finish(connection)


@pytest.mark.parametrize(("name", "offsets"), BROKEN)
def test_wrong_offsets_inside(
    server: FlightIntake, wheel: FakeWheel, name: str, offsets: tuple[int, ...]
) -> None:
    schema, (header, body) = (split_ipc(part) for part in raw_flight_messages(two_rows()))
    sound = struct.pack("<3i", *OFFSETS[name])
    assert body.count(sound) == 1
    broken = body.replace(sound, struct.pack("<3i", *offsets))
    assert b"not valid Arrow data" in raw_answer(server, schema, (header, broken))
    assert wheel.values() == []
    raw_answer(server, schema, (header, body))
    assert wheel.values() == [b"v" * 77, b"v" * 99]


def test_text_that_is_not_utf8(server: FlightIntake, wheel: FakeWheel) -> None:
    schema, (header, body) = (split_ipc(part) for part in raw_flight_messages(two_rows()))
    broken = body.replace(b"t" * 13, b"\xff" * 13)
    assert b"not valid Arrow data" in raw_answer(server, schema, (header, broken))
    assert wheel.values() == []


def test_random_bytes_on_the_port(server: FlightIntake) -> None:
    source = random.Random(1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(60):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            noise = source.randbytes(source.randrange(1, 20_000))
            with contextlib.suppress(OSError):
                connection.sendall(preface + noise if number % 2 else noise)


def test_flipped_bits_in_the_messages(server: FlightIntake, wheel: FakeWheel) -> None:
    """Every part of schema and batch, damaged on the way: an error, or what was sent."""
    source = random.Random(2)
    schema, batch = (split_ipc(part) for part in raw_flight_messages(good(20)))
    for _ in range(300):
        parts = [bytearray(schema[0]), bytearray(batch[0]), bytearray(batch[1])]
        for _ in range(source.randrange(1, 4)):
            part = source.choice(parts)
            part[source.randrange(len(part))] ^= 1 << source.randrange(8)
        raw_answer(server, (bytes(parts[0]), b""), (bytes(parts[1]), bytes(parts[2])))
    for stored in wheel.batches:
        stored.validate(full=True)


def test_random_messages_in_an_exchange(server: FlightIntake, wheel: FakeWheel) -> None:
    source = random.Random(3)
    for number in range(60):
        connection = raw_exchange(server.port)
        noise = source.randbytes(source.randrange(0, 5000))
        message = flight_data(noise, noise, first=True) if number % 2 else noise
        connection.sendall(h2_frame(0, 1, 1, grpc_message(message)))
        finish(connection)
    assert wheel.values() == []


def test_half_a_message_and_gone(server: FlightIntake, wheel: FakeWheel) -> None:
    schema, batch = (split_ipc(part) for part in raw_flight_messages(good(20)))
    data = grpc_message(flight_data(schema[0], first=True))
    data += grpc_message(flight_data(*batch))
    for length in range(0, len(data), max(1, len(data) // 40)):
        connection = raw_exchange(server.port)
        connection.sendall(h2_frame(0, 0, 1, data[:length]))
        connection.close()
    eventually(lambda: not server._calls.streams)
    assert all(value == b"v" for value in wheel.values())


def test_an_honest_raw_client_is_served(server: FlightIntake, wheel: FakeWheel) -> None:
    """The hand-made bytes above are right when nobody damages them."""
    schema, batch = (split_ipc(part) for part in raw_flight_messages(good(20)))
    raw_answer(server, schema, batch)
    assert len(wheel.values()) == 20


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


def test_memory_returns_after_refusals(server: FlightIntake, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_bytes_max=MIB, message_bytes_max=MIB // 2)
    too_large = good(64, b"x" * MIB)
    too_many = good(70_000)
    wrong = pa.record_batch({"due": [1], "topic": ["t"], "value": [1], "z": [b"x" * 64 * MIB]})

    def attack() -> None:
        assert answer_to(server, too_large) == "invalid-batch"
        assert answer_to(server, too_many) == "invalid-batch"
        assert answer_to(server, wrong) == "invalid-batch"
        assert answer_to(server, good(1), metadata=b"x" * 32 * MIB) == "invalid-batch"
        connection = raw_exchange(server.port)
        # Half of a message that claims two gigabytes.
        connection.sendall(h2_frame(0, 0, 1, grpc_message(b"x" * 10_000, claimed=2_000_000_000)))
        connection.close()

    for _ in range(2):  # what the allocators keep for themselves, they have after this
        attack()
    before = in_use()
    for _ in range(8):
        attack()
    eventually(lambda: not server._calls.streams)
    eventually(lambda: in_use() < before + 8)
    assert pa.total_allocated_bytes() < 200 * MIB


def test_client_that_reads_no_answers(server: FlightIntake, wheel: FakeWheel) -> None:
    """It is stopped by the window and the transport's flow control, and costs nobody else."""
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        descriptor = flight.FlightDescriptor.for_command(AppendCommand(0).encode())
        writer, reader = client.do_exchange(descriptor)
        writer.begin(INPUT)
        for sequence in range(200):
            writer.write_with_metadata(good(50), pa.py_buffer(encode_sequence(sequence)))
        assert answer_to(server, good(1)) == "stored"
        reader.cancel()
    eventually(lambda: not server._calls.streams)


def test_errors_name_the_limit_and_the_remedy(server: FlightIntake, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_bytes_max=10_000)
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        descriptor = flight.FlightDescriptor.for_command(AppendCommand(0).encode())
        writer, reader = client.do_exchange(descriptor)
        writer.begin(INPUT)
        writer.write_with_metadata(good(100, b"x" * 1000), pa.py_buffer(encode_sequence(5)))
        answer: Any = decode_answer(reader.read_chunk().app_metadata.to_pybytes())
        writer.close()
    assert answer.sequence == 5
    assert isinstance(answer.error, SlotwheelError)
    assert "10000 bytes" in str(answer.error)
    assert "smaller batches" in str(answer.error)


def test_due_that_is_null_or_absurd(server: FlightIntake) -> None:
    batch = good(2)
    for due in (np.array([1 << 62, 0]), np.array([-1, 0]), np.array([-(1 << 63), 0])):
        columns = [pa.array(due).view(TIME), *batch.columns[1:]]
        bad = pa.RecordBatch.from_arrays(columns, schema=INPUT)
        assert answer_to(server, bad) == "invalid-message"
    nullable = pa.schema([pa.field("due", TIME), *list(INPUT)[1:]])
    columns = [pa.array([None, 1], TIME), *batch.columns[1:]]
    assert answer_to(server, pa.RecordBatch.from_arrays(columns, schema=nullable)) in (
        "invalid-batch",
        "invalid-message",
    )
