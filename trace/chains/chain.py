"""The chain of a message: all that happened to it, from its sender to whoever answered for it.

Theory: what is called one message outside may be several in the wheel: each retry, each dead
letter, and what is sent again has an id of its own, and leads to the message that it comes from. A
chain is all of them. At each group of consumers it ends on its own; so an outcome is a group's, and
the chain's state is the one of its groups that needs a look most; or that the wheel made a dead
letter of what came last, which no group gets then.

Rules
- What is not known is not there: a step without a time has happened, but nobody says when.
- Whatever could be missing is said in ``missing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .anomalies import AnomalyKind


class ChainState(StrEnum):
    """Where a message stands. Of a chain with several groups the first of these that one has."""

    UNKNOWN = "unknown"
    DEAD = "dead"
    EXPIRED = "expired"
    FAILED = "failed"
    """An attempt has failed, and nothing says what came of that."""
    RETRYING = "retrying"
    RECEIVED = "received"
    """An application has it, and has not answered for it."""
    PENDING = "pending"
    DELIVERED = "delivered"
    """It is on its topic. No consumer has said anything."""
    CANCELLED = "cancelled"
    PROCESSED = "processed"


class StepKind(StrEnum):
    """The kinds of steps, in the order in which they happen to a message."""

    PRODUCED = "produced"
    ACCEPTED = "accepted"
    CANCELLED = "cancelled"
    DUE = "due"
    EXPIRED = "expired"
    DELIVERED = "delivered"
    RECEIVED = "received"
    PROCESSED = "processed"
    RETRIED = "retried"
    DEAD = "dead"
    COMMITTED = "committed"


class Witness(StrEnum):
    """Whose event or file says that something happened."""

    CLIENT = "client"
    WHEEL = "wheel"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One thing that happened, or the due time of a message that waits. ``at_ms``: when it began;
    None: not known. ``took_us``: how long it took, if it took time. ``id``: of the message of the
    chain that it happened to; empty: of none that was stored. ``why``: its error, or what the wheel
    knows it by."""

    kind: StepKind
    tier: Witness
    at_ms: int | None
    id: str
    took_us: int | None = None
    failed: bool = False
    why: str = ""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: bytes | None = None
    group: str | None = None
    attempt: int | None = None
    client: str = ""
    address: str = ""
    tag: str | None = None
    traceparent: str | None = None

    @property
    def end_ms(self) -> float | None:
        return None if self.at_ms is None else self.at_ms + (self.took_us or 0) / 1000


@dataclass(frozen=True, slots=True)
class Anomaly:
    """``at_ms``: when; None: not known. ``id``: of which message; empty: of none by itself."""

    kind: AnomalyKind
    at_ms: int | None
    id: str
    text: str
    topic: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ChainMessage:
    """A message of the wheel that belongs to the chain. ``comes_from``: the id of the one that it
    was made of; None: of none. ``state``, ``why``: what the wheel knows of it."""

    id: str
    comes_from: str | None
    topic: str | None
    state: str
    why: str
    due_ms: int | None
    created_ms: int | None
    left_ms: int | None


@dataclass(frozen=True, slots=True)
class Chain:
    """``id``: that was asked for. ``outcomes``: of each group of consumers that said anything; the
    empty one is of programs that name none. ``messages``: the first one, then those that came of
    it. ``latency_ms``: of each step that is known (``LatencyStep``), of the first message.
    ``missing``: what may be missing, a line each."""

    id: str
    state: ChainState
    outcomes: Mapping[str, ChainState]
    messages: tuple[ChainMessage, ...]
    steps: tuple[ChainStep, ...]
    latency_ms: Mapping[str, float]
    anomalies: tuple[Anomaly, ...]
    missing: tuple[str, ...] = field(default=())
