"""What the ways in need from the engine and from the node around them, as protocols.

``wheel.Wheel`` fits ``WheelPort``; the node hands in an ``IntakeEvents`` that turns events into
metrics, log lines and alarms. Both are called from the intake's own threads and must not block
for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import pyarrow as pa

from ..wheel.config import WheelConfig
from ..wheel.ids import IdMint, MessageId
from ..wheel.schema import Int64s

Clock = Callable[[], int]
"""Wall clock, ms since the epoch."""
GroupPort = Callable[[], dict[str, Any]]
"""The peers as this one sees them: ``role``, ``epoch``, ``master``, ``master_address`` and more."""
StepDown = Callable[[float], bool]
"""Hand the mastership over within so many seconds; whether that came about."""


class ReceiptPort(Protocol):
    """What an append resolves to; ``due`` has the shape (count,)."""

    @property
    def base_offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def due(self) -> Int64s: ...


class WheelPort(Protocol):
    """The engine, as the ways in see it."""

    @property
    def config(self) -> WheelConfig: ...
    @property
    def mint(self) -> IdMint: ...
    @property
    def serving(self) -> bool:
        """Whether it takes appends: always without peers, with peers only on the master."""

    def append(
        self,
        rows: pa.RecordBatch,
        now_ms: int,
        *,
        producer: int = 0,
        sequence: int = -1,
        early: bool = False,
    ) -> Future[Any]:
        """``early``: resolve when durable here, before a majority has it.

        Errors: ``NotMaster``, at once or by the future, on a standby and when deposed.
        """

    def wait_for_room(self, timeout_s: float) -> bool: ...
    def source_position(self, partition: int) -> int: ...
    def append_source(
        self, rows: pa.RecordBatch, now_ms: int, *, partition: int, first: int, last: int
    ) -> Future[Any]: ...
    def cancel(
        self, ids: Sequence[MessageId | str], now_ms: int, timeout_s: float = 10.0
    ) -> Any: ...
    def reschedule(
        self,
        message_id: MessageId,
        due_ms: int,
        now_ms: int,
        timeout_s: float = 10.0,
    ) -> Any: ...
    def status(self) -> Any: ...


class PeerPort(Protocol):
    """Replication, as the Flight server sees it: what begins with ``PEER_COMMAND`` is handed to it
    unread. ``cut`` ends the caller's connection at once, from any thread. Errors of this package
    cross the wire."""

    def greet(self, body: bytes) -> bytes:
        """Answer the action ``PEER_ACTION``."""

    def exchange(self, command: bytes, reader: Any, writer: Any, cut: Callable[[], object]) -> None:
        """Serve an exchange until it ends."""

    def stream(self, ticket: bytes, cut: Callable[[], object]) -> Any:
        """Flight's data stream for a ticket."""


class IntakeEvents(Protocol):
    """Where the ways in tell what happens. Names of events and alarms are stable."""

    def appended(self, rows: int, nbytes: int, seconds: float) -> None:
        """A batch was committed, ``seconds`` after it was received."""

    def refused(self, code: str, rows: int) -> None:
        """A batch was answered with the error ``code``."""

    def event(self, name: str, **fields: object) -> None:
        """Something worth a log line."""

    def alarm(self, name: str, **fields: object) -> None:
        """Something a person should look at."""


class NoIntakeEvents:
    """``IntakeEvents`` for whoever does not want to know."""

    def appended(self, rows: int, nbytes: int, seconds: float) -> None: ...
    def refused(self, code: str, rows: int) -> None: ...
    def event(self, name: str, **fields: object) -> None: ...
    def alarm(self, name: str, **fields: object) -> None: ...
