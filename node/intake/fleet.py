"""A wheel's membership in a fleet: several wheels that share delay topics by a consumer group.

Theory: the fleet's name is a consumer group of Kafka, and each wheel is one static member of it,
under the name of its own group. The membership only says which partitions are this wheel's; they
are read by a ``SourceReader`` as ever, which knows no group. So both clients share one membership,
by kafka-python, and wheels with either client can be in one fleet.

    share out -> begin each partition -> (read -> append -> store the position)* -> share out
       ^           behind the further of one's own                                     |
       |           position and the stored one                                         |
       +------ lost: throw away what is read, and join anew  <- not confirmed ---------+

Rules
- All calls come from the thread that appends. So while the group shares partitions out, none of
  this wheel's records is under way, and every position is stored: whoever gets a partition begins
  exactly behind the last record that was appended.
- Nothing is read while the group shares out. The broker gives out partitions when every member has
  joined, so none of them is read by two wheels, whatever the assignor makes of it.
- An append needs a membership that was confirmed within ``CONFIRM_SHARE`` of the session timeout.
  A process that was stopped for a minute would else append records that another wheel has read
  since. The confirmation is a commit of positions, which Kafka refuses to whoever is no member.
- Positions are stored by the member, with its generation: Kafka lets nobody else store them while
  the group has members, and refuses a member that was replaced.
- Peers of a wheel have one name and one identity, so their next master takes over the membership at
  once. Another wheel of the same name has another identity. Without that check the two would put
  each other out for ever, and each would read what the other one has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from ...broker.sources import Place, StoredOffset

_PREFIX = "slotwheel-wheel"


class FleetLost(Exception):
    """The wheel is no member any more, or cannot become one; the text says why."""


class FleetName(NamedTuple):
    """The ``client.id`` of a member: its fleet, its wheel, and the wheel's ``identity``, which its
    peers share and no other wheel has."""

    fleet: str
    wheel: str
    identity: str

    def __str__(self) -> str:
        return "/".join((_PREFIX, *self))

    @classmethod
    def parse(cls, client: str) -> Self | None:
        """The name that ``client`` says; None: it is no wheel's."""
        prefix, *parts = client.split("/")
        return cls(*parts) if prefix == _PREFIX and len(parts) == len(cls._fields) else None


class SeenMember(NamedTuple):
    """A member of the group as Kafka describes it. ``instance``: empty for one that is not
    static."""

    instance: str
    client: str
    host: str = ""


def disturbance(members: Iterable[SeenMember], name: FleetName) -> str:
    """The reason that ``members`` and the wheel ``name`` must not share partitions; empty: there is
    none. A member that is no wheel gets partitions, and their records reach no wheel."""
    for member in members:
        other = FleetName.parse(member.client)
        if other is None or (other.fleet, other.wheel) != (name.fleet, member.instance):
            return (
                f"the consumer group {name.fleet!r} has a member that is no wheel of this fleet:"
                f" client.id {member.client!r}, group.instance.id {member.instance!r}, from"
                f" {member.host!r}. It gets partitions whose records no wheel reads: stop it, or"
                " give the fleet another name with --delay-fleet"
            )
        if other.wheel == name.wheel and other.identity != name.identity:
            return (
                f"another wheel of the fleet {name.fleet!r} is called {name.wheel!r} as well, from"
                f" {member.host!r}: stop one of them, or give it another --group"
            )
    return ""


class FleetMember(Protocol):
    """The membership of a wheel in its fleet.

    Every call is bounded in time. Errors of all methods: ``SourceUnreachable``; ``FleetLost``,
    after which only ``close`` is of use."""

    places: frozenset[Place]
    """The partitions of this wheel since the last ``turn`` that returned True."""
    generation: int
    """The number of that sharing; -1: there was none."""

    @property
    def shared(self) -> bool:
        """True unless the group shares out again, or the wheel is no member: then ``turn`` is due.
        It is known within a second, and without asking Kafka."""

    def watch(self) -> list[SeenMember]:
        """The members of the group, this wheel among them if it is one."""

    def turn(self, timeout_s: float) -> bool:
        """Join, or share out again, if that is due; it is called several times a second. Returns
        True when the partitions are shared out: ``places`` are this wheel's then."""

    def count(self, topic: str, partitions: int) -> None:
        """Note how many partitions a topic has: if that has changed, the group shares out again."""

    def store(self, offsets: Mapping[Place, StoredOffset]) -> None:
        """Store positions as a member. Returns when Kafka has them."""

    def confirm(self, offsets: Mapping[Place, StoredOffset]) -> None:
        """Make sure that this wheel still is a member, by storing positions that are stored already
        if the last confirmation is too old."""

    def leave(self) -> None:
        """Leave the group, so that others get the partitions within a second."""

    def close(self) -> None:
        """Close the client. The group waits for its member until the session is over."""


@dataclass(frozen=True, slots=True)
class FleetPlace:
    """The fleet of a wheel. ``join`` makes the membership under a name; ``alone`` True: the wheel
    has no peers, so it leaves when it stops: none of them could take over its membership."""

    name: str
    wheel: str
    join: Callable[[FleetName], FleetMember]
    alone: bool = True


@dataclass(frozen=True, slots=True)
class FleetState:
    """A fleet as this wheel sees it. ``members``: the wheels in the group when it was last asked;
    ``partitions``: the number of those that are this wheel's; ``shared``: how often the group has
    shared out since this node became master, ``shared_at_ms`` when it last did, -1: not yet.
    ``problem``: the reason that this wheel has no partitions; empty: it is a member."""

    fleet: str
    wheel: str
    members: tuple[str, ...] = ()
    partitions: int = 0
    shared: int = 0
    shared_at_ms: int = -1
    problem: str = "it has not joined yet"
