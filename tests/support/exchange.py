"""The bare protocol, as a client that is not ours could speak it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from slotwheel.intake.flight import FlightIntake
from slotwheel.wheel.protocol import (
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    decode_answer,
    encode_sequence,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.schema import INPUT
from support.waiting import now_ms
from support.wheels import batch


class Exchange:
    """A client of the bare protocol."""

    def __init__(
        self,
        server: FlightIntake,
        command: AppendCommand | bytes | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        command = AppendCommand(7) if command is None else command
        encoded = command if isinstance(command, bytes) else command.encode()
        # A connection of its own, as ours make one, too.
        self.client = flight.FlightClient(
            f"grpc://{host}:{server.port}",
            generic_options=[("grpc.use_local_subchannel_pool", 1)],
        )
        descriptor = flight.FlightDescriptor.for_command(encoded)
        self.writer, self.reader = self.client.do_exchange(descriptor)

    def begin(self, schema: pa.Schema = INPUT) -> Exchange:
        self.writer.begin(schema)
        return self

    def send(self, rows: pa.RecordBatch, sequence: int, request: RequestKey | None = None) -> None:
        metadata = encode_sequence(sequence, request)
        self.writer.write_with_metadata(rows, pa.py_buffer(metadata))

    def answer(self) -> StoredBatch | RefusedBatch:
        return decode_answer(self.reader.read_chunk().app_metadata.to_pybytes())

    def close(self) -> None:
        self.writer.done_writing()
        with pytest.raises(StopIteration):
            self.reader.read_chunk()
        self.writer.close()


def rows(*values: bytes, due: int | None = None) -> pa.RecordBatch:
    when = now_ms() + 60_000 if due is None else due
    return batch([(when, "t", value) for value in values])


def action(server: FlightIntake, name: str, body: bytes) -> dict[str, Any]:
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        try:
            results = list(client.do_action(flight.Action(name, body)))
        except flight.FlightError as error:
            return dict(json.loads(error.extra_info))
    return dict(json.loads(results[0].body.to_pybytes()))
