"""NATS: a JetStream stream with message schedules, one subject for each message that waits.

Spoken to by sockets, in its text protocol: the acknowledgements of a batch come while it is still
being sent, as with its clients' asynchronous publishing. With ``sync: always`` the server syncs
each message by itself, and what leaves as well, which is stored anew on the subject that is read.
It looks for what is due at most every 250 ms.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from .server import CACHE, Receiver, Sender, Server, output_of, program

_STREAM, _DUE = "bench", "due"
_UNDER_WAY_MAX = 100_000
_HEADER = b"NATS/1.0\r\nNats-Schedule: @at %bZ\r\nNats-Schedule-Target: due\r\n\r\n"


class Nats(Server):
    name = "NATS"
    durability = "JetStream on one server, sync: always; message schedules"

    def _program(self) -> str:
        return program("nats-server", f"{CACHE}/nats-*".lstrip("/"))

    def version(self) -> str:
        return output_of(self._program(), "--version").split("v")[-1]

    def command(self) -> list[str]:
        settings = self.directory / "nats.conf"
        settings.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{store_dir: '{self.directory}', sync: always,"
            f" max_buffered_msgs: {_UNDER_WAY_MAX}}}\n"
        )
        return [self._program(), "-c", str(settings)]

    def prepare(self) -> None:
        stream: dict[str, Any] = {"name": _STREAM, "subjects": [_DUE, "later.>"], "storage": "file"}
        stream |= {"num_replicas": 1, "retention": "limits", "allow_msg_schedules": True}
        connection = _Connection(self.port)
        connection.ask(f"STREAM.CREATE.{_STREAM}", stream)
        connection.close()

    def sender(self) -> Sender:
        return _Sender(self.port)

    def receiver(self) -> Receiver:
        return _Receiver(self.port)


class _Connection:
    """``inbox``: the subject on which the server answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""
        self.inbox = b"_INBOX.%b" % os.urandom(8).hex().encode()
        options = json.dumps({"verbose": False, "pedantic": False, "headers": True})
        self.write(b"CONNECT %b\r\nSUB %b 1\r\n" % (options.encode(), self.inbox))

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def messages(self, wait_s: float = 60.0) -> list[tuple[bytes, bytes]]:
        """Those that the next bytes complete: the subject to answer to, and the body of each.
        Errors: ``TimeoutError`` when no bytes come in time."""
        self._socket.settimeout(wait_s)
        came = self._socket.recv(1 << 18)
        assert came, "the server has closed the connection"
        data, at, found = self._left + came, 0, []
        while (end := data.find(b"\r\n", at)) >= 0:
            words, begin = data[at:end].split(), end + 2
            if words[0] in (b"MSG", b"HMSG"):
                sizes = 1 if words[0] == b"MSG" else 2
                size, header = int(words[-1]), int(words[-2]) if sizes == 2 else 0
                if len(data) < begin + size + 2:
                    break
                reply = words[3] if len(words) == 4 + sizes else b""
                found.append((reply, data[begin + header : begin + size]))
                begin += size + 2
            elif words[0] == b"PING":
                self.write(b"PONG\r\n")
            else:
                assert words[0] in (b"INFO", b"PONG"), words
            at = begin
        self._left = data[at:]
        return found

    def await_answers(self, wanted: int) -> None:
        while wanted:
            for _, answer in self.messages():
                assert b'"error"' not in answer, answer
                wanted -= 1

    def ask(self, subject: str, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode()
        head = b"PUB $JS.API.%b %b %d" % (subject.encode(), self.inbox, len(data))
        self.write(b"%b\r\n%b\r\n" % (head, data))
        self.await_answers(1)

    def close(self) -> None:
        self._socket.close()


class _Sender(_Connection):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._numbers = count()

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        whole = b"HPUB later%b.%d %b %d %d\r\n%b%b\r\n"
        own, parts = self.inbox.removeprefix(b"_INBOX"), []
        at = np.array(due_ms, "datetime64[ms]").astype(bytes).tolist()
        for value, when in zip(values, at, strict=True):
            header = _HEADER % when
            sizes = (len(header), len(header) + len(value))
            parts.append(whole % (own, next(self._numbers), self.inbox, *sizes, header, value))
        self.write(b"".join(parts))
        self.await_answers(len(values))


class _Receiver(_Connection):
    """Is sent what is due, and acknowledges each message together with all before it."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        to = f"{self.inbox.decode()}.due"
        consumer: dict[str, Any] = {"durable_name": _STREAM, "deliver_subject": to}
        consumer |= {"filter_subject": _DUE, "ack_policy": "all", "max_ack_pending": -1}
        self.write(b"SUB %b.due 2\r\n" % self.inbox)
        wanted = {"stream_name": _STREAM, "config": consumer}
        self.ask(f"CONSUMER.DURABLE.CREATE.{_STREAM}.{_STREAM}", wanted)

    def receive(self) -> list[bytes]:
        try:
            found = self.messages(1.0)
        except TimeoutError:
            return []
        if found:
            self.write(b"PUB %b 0\r\n\r\n" % found[-1][0])
        return [body for _, body in found]
