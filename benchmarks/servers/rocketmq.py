"""RocketMQ: messages with a deliver time, which its broker keeps in a timer wheel.

A broker alone, without a name server; the client knows its address. Spoken to by sockets, with
many requests under way on one connection, as its Java client sends asynchronously. Its batches
take no deliver times (the Java client refuses them), so each message is a request. The wheel's
precision is 100 ms, a tenth of its own; queues and pulls take the benchmarks' batches whole.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from .server import CACHE, Missing, Receiver, Sender, Server, accepts, free_port, program

_TOPIC = "due"
_SEND, _PULL = 310, 11
_SUCCESS, _NOTHING = 0, (19, 20)
"""Codes of answers; the latter of a pull that found no message yet."""
_PULL_FLAGS = 0b111
"""It brings a subscription, may wait for a message, and acknowledges those before its offset."""
_WAIT_MS = 1_000
_PULLED_MAX = 1_000
_BODY_AT = 84
"""A stored message: its length, what is of a fixed length, and the length of its body here."""
_SETTINGS = f"""\
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
brokerName=bench
flushDiskType=SYNC_FLUSH
timerPrecisionMs=100
sendThreadPoolQueueCapacity=100000
waitTimeMillsInSendQueue=60000
maxTransferCountOnMessageInMemory={_PULLED_MAX}
maxTransferBytesOnMessageInMemory=1048576
"""


class RocketMq(Server):
    name = "RocketMQ"
    durability = "SYNC_FLUSH, timer messages with a precision of 100 ms"

    def _jars(self) -> Path:
        found = sorted(CACHE.glob("rocketmq-*"))
        if not found:
            raise Missing("its jars are not in .cache")
        return found[-1]

    def version(self) -> str:
        return self._jars().name.removeprefix("rocketmq-")

    def command(self) -> list[str]:
        jars = self._jars()
        settings = self.directory / "broker.conf"
        store = f"storePathRootDir={self.directory}/store\n"
        store += f"storePathCommitLog={self.directory}/store/commitlog\n"
        ports = f"listenPort={self.port}\nhaListenPort={free_port()}\n"
        settings.write_text(_SETTINGS + store + ports)
        memory = ["-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC"]
        home = f"-Duser.home={self.directory}"  # for its logs
        broker = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(settings)]
        return [program("java"), *memory, home, "-cp", f"{jars}/*", *broker]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.directory)}

    def is_ready(self) -> bool:
        # Its port is open before the timer runs.
        log = self.directory / "server.log"
        return "boot success" in log.read_text("utf-8", "replace") and accepts(self.port)

    def prepare(self) -> None:
        """A broker makes a topic at its first message."""
        sender = _Sender(self.port)
        sender.send([b"first"], [0])
        sender.close()

    def sender(self) -> Sender:
        return _Sender(self.port)

    def receiver(self) -> Receiver:
        return _Receiver(self.port)


class _Connection:
    """Frames both ways: length, length of the header, header (JSON), body."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.settimeout(60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", 1 << 18)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[dict[str, object], bytes]:
        size, header_size = struct.unpack(">II", self._file.read(8))
        data = self._file.read(size - 4)
        return json.loads(data[:header_size]), data[header_size:]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def _header(code: int, fields: dict[str, str]) -> str:
    """A request's header, up to its number; numbers of one connection differ."""
    request = {"code": code, "language": "OTHER", "version": 0, "flag": 0, "extFields": fields}
    return json.dumps(request)[:-1] + ', "opaque": %d}'


def _frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class _Sender(_Connection):
    _numbers = count()

    def __init__(self, port: int) -> None:
        super().__init__(port)
        properties = "TIMER_DELIVER_MS\x01DUE\x02"
        wanted = {"a": "bench", "b": _TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0"}
        wanted |= {"h": "0", "i": properties, "j": "0", "k": "false", "l": "0", "m": "false"}
        self._before, self._after = _header(_SEND, wanted).split("DUE")

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        parts = []
        for value, due in zip(values, due_ms, strict=True):
            header = self._before + str(due) + self._after % next(self._numbers)
            parts.append(_frame(header.encode(), value))
        self.write(b"".join(parts))
        for _ in values:
            header_found, _body = self.answer()
            assert header_found["code"] == _SUCCESS, header_found


class _Receiver(_Connection):
    """Pulls the topic's one queue; what it has is acknowledged with the next pull."""

    _numbers = count()

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._offset = 0

    def receive(self) -> list[bytes]:
        offset = str(self._offset)
        wanted = {"consumerGroup": "bench", "topic": _TOPIC, "queueId": "0"}
        wanted |= {"sysFlag": str(_PULL_FLAGS), "queueOffset": offset, "commitOffset": offset}
        wanted |= {"maxMsgNums": str(_PULLED_MAX), "suspendTimeoutMillis": str(_WAIT_MS)}
        wanted |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        header = _header(_PULL, wanted) % next(self._numbers)
        self.write(_frame(header.encode()))
        found, body = self.answer()
        if found["code"] in _NOTHING:
            return []
        assert found["code"] == _SUCCESS, found
        taken = list(_bodies(body))
        self._offset += len(taken)
        return taken


def _bodies(stored: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(stored):
        (size,) = struct.unpack_from(">I", stored, at)
        (length,) = struct.unpack_from(">I", stored, at + _BODY_AT)
        begin = at + _BODY_AT + 4
        yield stored[begin : begin + length]
        at += size
