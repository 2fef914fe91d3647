"""beanstalkd: jobs with a delay in whole seconds, and a binary log that is synced at each write.

Talked to by sockets, with a batch's commands in one write, as it answers them in order; the
clients on PyPI wait for each answer.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence

from .server import Receiver, Sender, Server, output_of, program


class Beanstalkd(Server):
    name = "beanstalkd"
    durability = "binlog (-b), synced at each write (-f0)"

    def version(self) -> str:
        return output_of(program("beanstalkd"), "-v").removeprefix("beanstalkd ")

    def command(self) -> list[str]:
        where = ["-l", "127.0.0.1", "-p", str(self.port)]
        return [program("beanstalkd"), *where, "-b", str(self.directory), "-f0"]

    def sender(self) -> Sender:
        return _Connection(self.port)

    def receiver(self) -> Receiver:
        return _Taking(self.port)


class _Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self._socket.makefile("rb")

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        now = time.time()
        parts = []
        for value, due in zip(values, due_ms, strict=True):
            delay = max(0, math.ceil(due / 1000 - now))  # never early
            parts.append(b"put 1024 %d 600 %d\r\n%b\r\n" % (delay, len(value), value))
        self.write(b"".join(parts))
        for _ in values:
            answer = self.file.readline()
            assert answer.startswith(b"INSERTED"), answer

    def close(self) -> None:
        self._socket.close()


class _Taking(_Connection):
    def receive(self) -> list[bytes]:
        self.write(b"reserve-with-timeout 1\r\n")
        answer = self.file.readline().split()
        if answer[0] == b"TIMED_OUT":
            return []
        assert answer[0] == b"RESERVED", answer
        value = self.file.read(int(answer[2]) + 2)[:-2]
        self.write(b"delete %b\r\n" % answer[1])
        assert self.file.readline() == b"DELETED\r\n"
        return [value]
