"""A channel waits for nothing without an end, whatever the other side does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from slotwheel.wheel.errors import NotRunning
from slotwheel.wire import channel as channel_module
from slotwheel.wire.channel import Channel
from slotwheel.wire.frames import FrameReader, Kind, encode_frame


def test_the_last_word_ends_though_the_other_side_sends_a_byte_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "_LAST_WORD_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        mine = server.accept()[0]
    said = threading.Event()

    def drip() -> None:
        while not said.wait(0.02):
            theirs.send(b"x")

    with theirs, contextlib.closing(Channel(mine, FrameReader({}, greeted=True))) as channel:
        dripping = threading.Thread(target=drip)
        dripping.start()
        failing = threading.Thread(target=channel.fail, args=(NotRunning("over"),))
        failing.start()
        failing.join(60)
        ended = not failing.is_alive()
        said.set()
        dripping.join()
        channel.shut()
        failing.join()
        assert ended
        assert b"over" in theirs.recv(1000)


def test_a_welcome_may_take_longer_than_the_connection() -> None:
    """The other side's kernel has accepted, and its server's thread waits for a disk."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def welcome() -> None:
            time.sleep(0.3)
            with server.accept()[0] as sock:
                sock.sendall(encode_frame(Kind.WELCOME, b"", 2) + b"hi")
                sock.recv(1000)

        late = threading.Thread(target=welcome)
        late.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with contextlib.closing(Channel.open(address, b"", {}, 0.1, welcome_s=60)) as channel:
            assert channel.welcome == b"hi"
        late.join()
