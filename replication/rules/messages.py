"""The messages between peers, as values. No bytes, no sockets: they are encoded by
``transport/encoding.py``.

Theory: messages go one way and may be lost, late, repeated or overtaken; an answer is another
message. Each names its sender, the sender's store and the sender's epoch. Entries are opaque here:
the core gets only what Raft's rules need of each (``EntryMeta``), the driver carries the bytes.

Source: Raft (Ongaro and Ousterhout, sections 5 and 6; Ongaro's thesis, sections 6.4.1 and 9.6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from ...wheel.state import StoreIds


@dataclass(frozen=True, slots=True)
class EntryMeta:
    """The part of an entry that the core uses. ``stores``: those a configuration admits."""

    epoch: int
    stores: StoreIds | None = None


class MessageHead(TypedDict):
    """The fields that every message begins with."""

    sender: str
    to: str
    store: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """Base of all messages. ``store``: the sender's store id, 16 bytes. ``epoch``: the sender's (in
    a pre-vote: the one in which it would stand)."""

    sender: str
    to: str
    store: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class RequestVote(PeerMessage):
    """Ask for a vote. ``pre``: if it would be granted. ``founding``: for the first epoch, which
    every peer must grant. ``transfer``: the master asked for it, and gave up its lease."""

    last_index: int
    last_epoch: int
    pre: bool = False
    founding: bool = False
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class Vote(PeerMessage):
    """Answer to ``RequestVote``. ``reason``: why it is refused, for people; empty if granted."""

    granted: bool
    pre: bool = False
    founding: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Append(PeerMessage):
    """Entries from ``prev_index + 1`` on. ``sent_at``: the master's monotonic clock, s; echoed."""

    prev_index: int
    prev_epoch: int
    entries: tuple[EntryMeta, ...]
    commit: int
    sent_at: float

    @property
    def last_index(self) -> int:
        return self.prev_index + len(self.entries)


@dataclass(frozen=True, slots=True)
class Heartbeat(PeerMessage):
    """Sign of life of a master. ``commit``: never beyond what this follower is known to hold."""

    commit: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class Ack(PeerMessage):
    """Answer to ``Append``, ``Heartbeat`` and ``SnapshotOffer``. New entries are acknowledged when
    they are durable.

    ``durable``: the highest index verified against this master *and* on this peer's disk.
    ``verified``: the same without the disk. ``rejected``: the entry before an ``Append``'s first
    did not match; ``hint``: the highest index at which it could. ``sent_at``: echoed; -1.0 if it
    answers no message, or one of an older epoch (then only ``epoch`` is valid). ``voter``: the
    store may vote (``HardState``); otherwise nothing of this counts for a majority.
    """

    durable: int
    verified: int
    sent_at: float = -1.0
    rejected: bool = False
    hint: int = 0
    voter: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotOffer(PeerMessage):
    """The next entries are no longer in the master's journal: the peer may fetch a snapshot."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class TakeOver(PeerMessage):
    """Ask the peer to stand for election now: the master has stopped, and gives up its lease."""


@dataclass(frozen=True, slots=True)
class HardState:
    """State that must be durable before a message that depends on it is sent.

    ``voter``: this store may vote: it took part in the founding, or saw its own admission
    committed, and no later configuration without it.
    """

    epoch: int = 0
    vote: str = ""
    voter: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """Ask the master's driver to append a configuration entry with these stores."""

    stores: StoreIds = field(default_factory=dict)
