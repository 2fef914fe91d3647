"""Redis: a sorted set by due time, and a mover that takes what is due to a list."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from .server import Missing, Receiver, Sender, Server, output_of, program

_MOVE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)
if #due > 0 then
    redis.call('ZREM', KEYS[1], unpack(due))
    redis.call('RPUSH', KEYS[2], unpack(due))
end
return #due
"""
_PREFIX = 16


class Redis(Server):
    name = "Redis"
    durability = "AOF (appendonly yes, appendfsync always), ZADD and a mover in Lua"

    def version(self) -> str:
        return output_of(program("redis-server"), "--version").split("v=")[-1].split()[0]

    def command(self) -> list[str]:
        return [
            program("redis-server"),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ]

    def sender(self) -> Sender:
        return _Sender(_connect(self.port))

    def receiver(self) -> Receiver:
        return _Receiver(self.port)


def _connect(port: int) -> Any:
    try:
        import redis
    except ImportError:
        raise Missing("the Python package redis is not installed") from None
    return redis.Redis(port=port)


class _Sender:
    _numbers = count()

    def __init__(self, client: Any) -> None:
        self._client = client

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        # Members are unique: equal ones would be one message.
        members = {
            b"%0*x" % (_PREFIX, next(self._numbers)) + value: due
            for value, due in zip(values, due_ms, strict=True)
        }
        self._client.zadd("delayed", members)

    def close(self) -> None:
        self._client.close()


class _Receiver:
    """The mover is a thread of its own; it looks again after a millisecond without work."""

    def __init__(self, port: int) -> None:
        self._client = _connect(port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._move, args=(_connect(port),), daemon=True)
        self._thread.start()

    def _move(self, client: Any) -> None:
        move = client.register_script(_MOVE)
        while not self._stop.is_set():
            if not move(keys=["delayed", "ready"], args=[time.time_ns() // 1_000_000]):
                self._stop.wait(0.001)

    def receive(self) -> list[bytes]:
        found = self._client.lpop("ready", 1000)
        if found is None:
            one = self._client.blpop("ready", 1)
            found = [] if one is None else [one[1]]
        return [value[_PREFIX:] for value in found]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()
