"""The chain of a message: all that happened to it, from its sender to the consumers.

Theory: one message of an application may be several in the wheel: each retry, each dead letter, and
each letter that is sent again has an id of its own, and names the message that it comes from. A
chain is all of them. It ends at each group of consumers on its own, so an outcome is a group's. The
chain's state is the worst outcome; or dead or expired, if the wheel made a dead letter of the last
message, which no group gets then.

Rules
- Nothing is guessed: a step without a time has happened, and nothing says when.
- Whatever may be missing stands in ``missing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...reading.search.fate import FateBefore
from .anomalies import AnomalyKind


class ChainState(StrEnum):
    """Where a message stands, the worst state first."""

    UNKNOWN = "unknown"
    DEAD = "dead"
    EXPIRED = "expired"
    FAILED = "failed"
    """An attempt has failed, and no event says what followed."""
    RETRYING = "retrying"
    RECEIVED = "received"
    """An application has it, and has not answered for it."""
    PENDING = "pending"
    DELIVERED = "delivered"
    """It is on its topic, and there is no event of a consumer."""
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
    """The one whose event or file says that something happened."""

    CLIENT = "client"
    WHEEL = "wheel"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One thing that happened, or the due time of a message that waits. ``at_ms``: when it began;
    None: not known. ``took_us``: how long it took, if known. ``id``: of its message; empty: that
    was not stored. ``why``: its error, or the source of the wheel's knowledge."""

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


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An anomaly of the chain. ``at_ms``: None: not known. ``id``: of its message; empty: it has
    none."""

    kind: AnomalyKind
    at_ms: int | None
    id: str
    text: str
    topic: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ChainMessage:
    """A message of the wheel that belongs to the chain. ``comes_from``: the id of its parent; None:
    it has none. ``state``, ``why``, ``before``, ``replaced_by``: as of ``MessageFate``."""

    id: str
    comes_from: str | None
    topic: str | None
    state: str
    why: str
    due_ms: int | None
    created_ms: int | None
    left_ms: int | None
    before: FateBefore | None = None
    replaced_by: str | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """``id``: the one that was asked for. ``outcomes``: by group of consumers; the empty name is of
    programs without a group. ``messages``: the first one, then those that came of it.
    ``latency_ms``: by ``LatencyStep``, of the first message. ``missing``: lines that say what may
    be missing."""

    id: str
    state: ChainState
    outcomes: Mapping[str, ChainState]
    messages: tuple[ChainMessage, ...]
    steps: tuple[ChainStep, ...]
    latency_ms: Mapping[str, float]
    anomalies: tuple[Anomaly, ...]
    missing: tuple[str, ...] = field(default=())
