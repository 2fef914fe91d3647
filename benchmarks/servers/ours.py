"""slotwheel itself: a node with embedded topics, used by its public client.

A program that waits for each message calls ``store``; what it sends by hundreds is a table.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import pyarrow as pa

import slotwheel
from slotwheel.client import Client
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles

from .server import Receiver, Sender, Server

_TOPIC = "orders"


class Ours(Server):
    name = "slotwheel"
    durability = "acks=all: fdatasync before every acknowledgement"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def version(self) -> str:
        return slotwheel.__version__

    def command(self) -> list[str]:
        node = [sys.executable, "-m", "slotwheel.cli.main", "node", "--data", str(self._data)]
        return [*node, "--listen", f"127.0.0.1:{self.port}", "--metrics", "off"]

    def environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if not k.startswith("SLOTWHEEL_")}

    def prepare(self) -> None:
        """The topic is there once something was delivered to it."""
        sender = self.sender()
        sender.send([b"first"], [0])
        sender.close()
        files = OsFiles(self._data)
        while not files.list(f"topics/{_TOPIC}"):
            time.sleep(0.01)
        files.close()

    def sender(self) -> Sender:
        return _Sender(f"127.0.0.1:{self.port}")

    def receiver(self) -> Receiver:
        return _Receiver(self._data)


class _Sender:
    """``named``: each message that is sent by itself has a name, which no other one has."""

    def __init__(self, address: str, *, named: bool = False) -> None:
        self._client = Client(address)
        self._names = map("{}-{}".format, repeat(uuid4().hex), count()) if named else repeat(None)

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        if len(values) == 1:
            self._client.store(_TOPIC, values[0], due=due_ms[0], name=next(self._names))
            return
        columns = [pa.array(due_ms, pa.int64()), pa.array([_TOPIC] * len(values)), pa.array(values)]
        batch = pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])
        self._client.send_table(batch).wait()

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True)
class At:
    """A node that somebody else started. ``named``: messages have names."""

    name: ClassVar[str] = Ours.name
    address: str
    named: bool = False

    def sender(self) -> Sender:
        return _Sender(self.address, named=self.named)


class _Receiver:
    """Reads the topic's files, as any consumer of embedded topics."""

    def __init__(self, data: Path) -> None:
        self._reader = TopicReader(OsFiles(data), _TOPIC)

    def receive(self) -> list[bytes]:
        found = [v for b in self._reader.batches() for v in b.column("value").to_pylist()]
        if not found:
            time.sleep(0.001)
        return found

    def close(self) -> None:
        self._reader.close()
