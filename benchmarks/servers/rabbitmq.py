"""RabbitMQ: messages with a time to live in a queue that nobody reads; what expires goes through
its dead-letter exchange to the queue that is read.

A message expires only at the head of its queue, so one queue serves one delay. With due times
spread over hours a user needs a queue for each step of delay; the benchmark of ingest uses one
queue all the same, which is RabbitMQ's best case.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .server import Missing, Receiver, Sender, Server, free_port, output_of, program

_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_WAITING, _READY = "waiting", "ready"
_TAKEN_MAX = 1000


class RabbitMq(Server):
    name = "RabbitMQ"
    durability = "durable queues, persistent messages, publisher confirms; time to live + DLX"

    def version(self) -> str:
        return output_of("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._epmd_port = free_port()

    def command(self) -> list[str]:
        _pika()
        program("rabbitmq-server")  # is Debian's wrapper, which changes the user
        return [str(_SCRIPT)] if _SCRIPT.exists() else [program("rabbitmq-server")]

    def environment(self) -> dict[str, str]:
        place = self.directory
        settings = place / "rabbitmq.conf"
        settings.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nvm_memory_high_watermark.relative = 0.6\n"
            "disk_free_limit.absolute = 1GB\n"
        )
        (place / "plugins").write_text("[].")
        return {
            **os.environ,
            "HOME": str(place),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_MNESIA_BASE": str(place / "store"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -erl_epmd_port "
            + str(free_port()),
        }

    def is_ready(self) -> bool:
        try:
            self.connect().close()
        except _pika().exceptions.AMQPError:
            return False
        return True

    def connect(self) -> Any:
        pika = _pika()
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))

    def prepare(self) -> None:
        connection = self.connect()
        channel = connection.channel()
        channel.queue_declare(_READY, durable=True)
        to_ready = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _READY}
        channel.queue_declare(_WAITING, durable=True, arguments=to_ready)
        connection.close()

    def halt(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        # Where its start took long, Erlang's register of names was started besides, as a daemon.
        with contextlib.suppress(FileNotFoundError):
            output_of("epmd", "-port", str(self._epmd_port), "-kill")

    def sender(self) -> Sender:
        return _Sender(self.port)

    def receiver(self) -> Receiver:
        return _Receiver(self.connect())


def _pika() -> Any:
    try:
        import pika
        import pika.exceptions
    except ImportError:
        raise Missing("the Python package pika is not installed") from None
    return pika


class _Sender:
    """Confirms come for many messages at once, while others are on their way; the simple
    connection of pika would wait for each."""

    def __init__(self, port: int) -> None:
        pika = _pika()
        self._properties = pika.BasicProperties
        self._sent = self._confirmed = 0
        self._ready = threading.Event()
        self._done = threading.Condition()
        self._failure = ""
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", port),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._closed(error),
            on_close_callback=lambda _, error: self._closed(error),
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)
        self._thread.start()
        assert self._ready.wait(20), self._failure

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirm, callback=lambda _: self._ready.set())

    def _confirm(self, frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack", frame
        with self._done:
            if frame.method.multiple:
                self._confirmed = max(self._confirmed, frame.method.delivery_tag)
            else:
                # Single ones may come out of order; the count is what matters.
                self._confirmed += 1
            self._done.notify()

    def _closed(self, error: object) -> None:
        with self._done:
            self._failure = str(error)
            self._done.notify()
        self._connection.ioloop.stop()  # its thread would go on for ever

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        now_ms = time.time_ns() // 1_000_000

        def publish() -> None:
            for value, due in zip(values, due_ms, strict=True):
                kept = self._properties(delivery_mode=2, expiration=str(max(0, due - now_ms)))
                self._channel.basic_publish("", _WAITING, value, kept)

        self._in_its_thread(publish)
        self._sent += len(values)
        with self._done:
            if not self._done.wait_for(self._is_settled, 60) or self._failure:
                raise RuntimeError(f"no confirm from RabbitMQ: {self._failure}")

    def _is_settled(self) -> bool:
        return bool(self._failure) or self._confirmed >= self._sent

    def _in_its_thread(self, call: Callable[[], None]) -> None:
        self._connection.ioloop.add_callback_threadsafe(call)

    def close(self) -> None:
        self._in_its_thread(self._connection.close)
        self._thread.join(10)


class _Receiver:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_TAKEN_MAX)
        channel.basic_consume(_READY, self._take)

    def _take(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        self._found.put(body)

    def receive(self) -> list[bytes]:
        self._connection.process_data_events(time_limit=0.05)
        return [self._found.get() for _ in range(self._found.qsize())]

    def close(self) -> None:
        self._connection.close()
