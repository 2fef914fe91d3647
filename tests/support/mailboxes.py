"""Transports of several peers on loopback, each behind a node's real server, without a wheel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from slotwheel.replication.rules.group import Group
from slotwheel.replication.rules.messages import PeerMessage
from slotwheel.replication.rules.timing import Timing
from slotwheel.replication.transport.handshake import Greeting
from slotwheel.replication.transport.parts import SendPart
from slotwheel.replication.transport.transport import Transport
from slotwheel.wheel.journal.entry import Entry, EntryKind
from support.events import ToldEvents
from support.fakewheel import FakeWheel
from support.served import ServedIntake


def store_of(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def entries_from(first: int, last: int, nbytes: int = 100, epoch: int = 1) -> list[Entry]:
    return [
        Entry(EntryKind.ROWS, epoch, index, index, 1, 0, -1, b"%d" % index + b"x" * nbytes)
        for index in range(first, last + 1)
    ]


class Mailbox:
    """One peer: a node's server and a transport. It is its own receiver, and keeps what comes."""

    def __init__(
        self,
        name: str,
        peers: Mapping[str, str],
        *,
        group_name: str = "g",
        key: str = "",
        timing: Timing | None = None,
        delivery: str = "",
        listen: str | None = None,
        dial: Mapping[str, str] | None = None,
        load: Callable[[int, int, int], Sequence[Entry]] | None = None,
    ) -> None:
        self.name = name
        self.events = ToldEvents()
        self.messages: list[PeerMessage] = []
        self.entries: list[Entry] = []
        self.lost: list[tuple[str, int]] = []
        self.has_room = threading.Event()
        self.has_room.set()
        self.loaded: list[tuple[int, int, int]] = []
        self._load = load or (lambda first, last, nbytes: entries_from(first, last))
        group = Group(name, peers, timing or Timing.of_promise(0.8), delivery)
        self.transport = Transport(
            group,
            group_name,
            store_of(name),
            self,
            self.load,
            self.snapshot,
            lambda _request, _send: None,
            key=lambda: key,
            events=self.events,
            address_of=(dict(peers) | dict(dial or {})).__getitem__,
            refused_pause_s=0.2,
        )
        self.server = ServedIntake(
            FakeWheel(), listen or peers[name], peers=self.transport.incoming
        )
        self.transport.start()

    # -- Receiver

    def receive(self, message: PeerMessage, entries: Sequence[Entry]) -> None:
        self.messages.append(message)
        self.entries.extend(entries)

    def unsent(self, peer: str, index: int) -> None:
        self.lost.append((peer, index))

    def room(self) -> bool:
        return self.has_room.is_set()

    # --

    def load(self, first: int, last: int, nbytes: int) -> Sequence[Entry]:
        self.loaded.append((first, last, nbytes))
        return self._load(first, last, nbytes)

    def snapshot(self, greeting: Greeting, request: bytes, send: SendPart) -> None:
        raise AssertionError("not here")

    def of(self, kind: type[PeerMessage]) -> list[Any]:
        return [message for message in list(self.messages) if type(message) is kind]

    def close(self) -> None:
        self.transport.stop()
        self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
