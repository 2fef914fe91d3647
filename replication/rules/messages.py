"""The messages between peers, as values. No bytes, no sockets: ``transport/wire.py`` encodes them.

Theory: every message goes one way and may be lost, late, repeated or overtaken; an answer is one
more message. Each names its sender, the sender's store and the sender's epoch. Entries are opaque
here: the core gets of each only what Raft's rules need (``EntryMeta``), the driver carries the
bytes.

Source: Raft (Ongaro and Ousterhout, sections 5 and 6; Ongaro's thesis, sections 6.4.1 and 9.6).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...wheel.state import StoreIds


@dataclass(frozen=True, slots=True)
class EntryMeta:
    """What the core sees of an entry. ``stores``: the admitted stores, of a configuration entry."""

    epoch: int
    stores: StoreIds | None = None


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """Base of all. ``store``: the sender's store id, 16 bytes. ``epoch``: the sender's (for a
    pre-vote the epoch it would ask in)."""

    sender: str
    to: str
    store: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class RequestVote(PeerMessage):
    """Vote for me. ``pre``: would you? ``founding``: the first epoch of all, every peer is asked.
    ``transfer``: the master told me to; its lease is given up."""

    last_index: int
    last_epoch: int
    pre: bool = False
    founding: bool = False
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class Vote(PeerMessage):
    """Answer to ``RequestVote``. ``reason``: why not, for people; empty when granted."""

    granted: bool
    pre: bool = False
    founding: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Append(PeerMessage):
    """Entries ``prev_index + 1`` and on. ``sent_at``: the master's monotonic clock, echoed."""

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
    """I am master. ``commit``: never beyond what this follower is known to hold."""

    commit: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class Ack(PeerMessage):
    """Answer to ``Append``, ``Heartbeat`` and ``SnapshotOffer``; to an ``Append`` with news when
    that is durable.

    ``durable``: the highest index verified against this master *and* on this peer's disk.
    ``verified``: the same without the disk. ``rejected``: the entry before an ``Append``'s first
    did not match; ``hint``: the highest index at which it could. ``sent_at``: echoed; -1.0 if
    unasked, or if what was asked is of an older epoch (then only ``epoch`` means anything).
    ``voter``: the store may vote (``HardState``); otherwise nothing of this counts for a majority.
    """

    durable: int
    verified: int
    sent_at: float = -1.0
    rejected: bool = False
    hint: int = 0
    voter: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotOffer(PeerMessage):
    """What you need next is no longer in my journal: fetch a snapshot from me."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class TakeOver(PeerMessage):
    """Ask for votes now: the master has stopped delivering and gives up its lease."""


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on disk before a message that depends on it leaves.

    ``voter``: this store may vote: it took part in the founding, or saw its own admission
    committed, and no later configuration without it.
    """

    epoch: int = 0
    vote: str = ""
    voter: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """For the driver of the master: append a configuration entry with these stores."""

    stores: StoreIds = field(default_factory=dict)
