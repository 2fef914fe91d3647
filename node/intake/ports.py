"""The protocols by which the ways in use the engine and the node around them.

``wheel.Wheel`` implements ``WheelPort``; the node's ``IntakeEvents`` turns events into metrics, log
lines and alarms. Both are called from the intake's own threads and must not block for long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import pyarrow as pa

from ...policy.policyset import PolicySet
from ...policy.rule import Rule
from ...wheel.checks import InputBatch
from ...wheel.config import WheelConfig
from ...wheel.errors import SlotwheelError
from ...wheel.ids import IdMint, MessageId
from ...wheel.plain import PlainBatch, PlainDone
from ...wire.channel import Channel

Clock = Callable[[], int]
"""The wall clock, ms since the epoch."""
GroupPort = Callable[[], dict[str, Any]]
"""The peers as this one knows them: ``role``, ``epoch``, ``master``, ``master_address``, ..."""
StepDown = Callable[[float], bool]
"""Hands the mastership over within so many seconds. Returns False when that failed."""


Page = Callable[[], tuple[int, str, bytes]]
"""A page of the node: status, media type and content."""


class WheelPort(Protocol):
    """The part of the engine that the ways in use."""

    @property
    def config(self) -> WheelConfig: ...
    @property
    def mint(self) -> IdMint: ...
    @property
    def serving(self) -> bool:
        """True while appends are accepted: always without peers; with peers only on the master."""

    def append_all(
        self, batches: Sequence[InputBatch], now_ms: int, *, wake: bool = True
    ) -> Sequence[Future[Any] | SlotwheelError]:
        """Append batches, each by itself. Returns for each the error with which it is refused, or a
        future that resolves when it is committed (``InputBatch.early``: when it is durable here).
        ``wake`` False: the caller commits them, soon.

        ``NotMaster`` comes at once or by the future, on a standby and when deposed.
        """

    def append_plain(
        self, batches: Sequence[PlainBatch], now_ms: int, done: PlainDone, *, wake: bool = True
    ) -> None:
        """Append plain rows of many callers, each batch stored or refused by itself. ``done`` is
        called with each batch once, by any thread. ``wake``: as of ``append_all``."""

    def stored_before(self, producer: int, sequence: int) -> bool:
        """Returns True when a batch of this producer and sequence was appended before."""

    def check_clock(self, now_ms: int) -> None:
        """Errors: ``Overloaded`` when no message may be accepted at ``now_ms``, a time of the
        node's clock."""

    def wait_for_room(self, timeout_s: float) -> bool: ...
    @property
    def sources(self) -> Mapping[str, Any]:
        """The committed table of the group's sources (``SourceTable``)."""

    def change_sources(
        self, known: Mapping[str, Any], sources: Mapping[str, Any]
    ) -> Future[Any]: ...
    @property
    def draining(self) -> Mapping[str, Any]:
        """``since_ms``, since when the group is emptied; empty: it takes messages."""

    def change_draining(
        self, known: Mapping[str, Any], draining: Mapping[str, Any]
    ) -> Future[Any]: ...
    def source_position(self, source: int) -> int: ...
    def append_source(
        self, rows: pa.RecordBatch, now_ms: int, *, source: int, first: int, last: int
    ) -> Future[Any]: ...
    def cancel(
        self,
        ids: Sequence[MessageId | str],
        now_ms: int,
        timeout_s: float = 10.0,
        *,
        may: Callable[[str], bool] | None = None,
    ) -> Any:
        """Cancel messages. ``may`` tells of a topic whether its messages may be cancelled; those of
        other topics are *unknown*. None: all may."""

    def reschedule(
        self,
        message_id: MessageId,
        due_ms: int,
        now_ms: int,
        timeout_s: float = 10.0,
        *,
        may: Callable[[str], bool] | None = None,
    ) -> Any:
        """Move a message. ``may``: as of ``cancel``."""

    def named(self, topic: str, name: str) -> MessageId | None:
        """The message of the topic for which the name stands; None: none is known."""

    def cancel_named(self, topic: str, name: str, now_ms: int, timeout_s: float = 10.0) -> Any:
        """Cancel the message for which a name stands. Returns the answer, and the message's id;
        *unknown* and None: no message of that name is known."""

    def reschedule_named(
        self, topic: str, name: str, due_ms: int, now_ms: int, timeout_s: float = 10.0
    ) -> Any:
        """Move the message for which a name stands. Returns the answer, its id, and the new one
        that now has the name."""

    def status(self) -> Any: ...


class PoliciesPort(Protocol):
    """The group's policies."""

    @property
    def current(self) -> PolicySet: ...
    def register(self, group: str, rule: Rule | None, host: str) -> PolicySet:
        """Register a consumer group's rule for the address ``host``. Errors: ``InvalidMessage``
        when the group has another rule; ``InvalidConfiguration``, ``Overloaded``: too many, or too
        often; ``NotMaster``, ``NotRunning``."""

    def forget(self, group: str, host: str) -> PolicySet:
        """Forget a consumer group's rule. Errors: ``Overloaded``, ``NotMaster``, ``NotRunning``."""


class ClockPort(Protocol):
    """The node's clock, for an operator."""

    def show(self) -> dict[str, Any]: ...
    def accept(self) -> None:
        """Believe the wall clock, however far it has jumped. Errors: ``OSError``."""

    def set_back(self) -> None:
        """Set the marks back to the clock. Errors: ``NotMaster``, ``Overloaded``."""


class PeerPort(Protocol):
    """The part of replication that the server uses: a connection whose hello begins with
    ``PEER_COMMAND`` is passed to it."""

    def admit(self, hello: bytes, names: Sequence[str] | None = None) -> Callable[[Channel], None]:
        """Check the hello, without waiting. ``names``: those that the caller's certificate has
        proven, of which its node id has to be one; None: there is no TLS. Returns a
        function that answers it and serves the channel until it ends, in a thread of its own.
        Errors of both, which are sent to the peer: ``SlotwheelError``."""


class IntakeEvents:
    """Receives and ignores events of the ways in. Names of events and alarms are stable."""

    def appended(self, rows: int, nbytes: int, seconds: float) -> None:
        """A batch was committed, ``seconds`` after it was received."""

    def refused(self, code: str, rows: int) -> None:
        """A batch was answered with the error ``code``."""

    def event(self, name: str, **fields: object) -> None:
        """An event for the log."""

    def alarm(self, name: str, **fields: object) -> None:
        """A person has to act; ``name`` is the kind of trouble."""
