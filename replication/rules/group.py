"""The peers of a group: node ids and addresses, the same on every peer.

Theory: membership is configured, never negotiated. Each peer is configured with the whole list and
its own id; a handshake (``transport/handshake.py``) compares the lists of two peers, so a typing
error is found when they first meet and not when a majority is miscounted.

Rules: an address serves peers and clients alike, so clients can use "the master's address". Where
peers have a port of their own, each tells the others where its clients connect (``clients_at``).
One peer is a group, too. An even number works, with a warning: it needs a larger majority and
survives no more failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from ...wheel.errors import InvalidConfiguration
from ...wheel.protocol import split_address
from .timing import Timing

PEERS_MAX = 7
NODE_ID_CHARS_MAX = 64
_EVERYWHERE = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104


@dataclass(frozen=True, slots=True)
class Group:
    """The peers of one wheel group, seen from ``me``. ``peers``: node id to ``host:port``.
    ``delivery``: the delivery semantics, for whoever becomes the master. ``clients_at``: where
    clients reach this node, ``host:port``, if that is not where its peers do; it may be empty, as
    it is not known of a node that takes any free port.

    Errors on construction: ``InvalidConfiguration``.
    """

    me: str
    peers: Mapping[str, str]
    timing: Timing = field(default_factory=lambda: Timing.of_promise(0.8))
    delivery: str = ""
    clients_at: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "peers", MappingProxyType(dict(sorted(self.peers.items()))))
        for node_id, address in self.peers.items():
            _check_node_id(node_id)
            _check_address(node_id, address)
        if self.me not in self.peers:
            raise InvalidConfiguration(
                "this node is not among its peers",
                got=repr(self.me),
                limit=", ".join(self.peers) or "no peers",
                remedy="Name this node, with its own address, in the list of peers as well",
            )
        if len(self.peers) > PEERS_MAX:
            raise InvalidConfiguration(
                "too many peers",
                got=len(self.peers),
                limit=PEERS_MAX,
                remedy="Three survive one failure, five survive two",
            )
        owners: dict[str, str] = {}
        for node_id, address in self.peers.items():
            other = owners.setdefault(address.lower(), node_id)
            if other != node_id:
                raise InvalidConfiguration(
                    f"peers {other!r} and {node_id!r} have the same address",
                    got=address,
                    remedy="Give each peer an address of its own",
                )

    @classmethod
    def parse(cls, me: str, texts: Iterable[str]) -> Self:
        """From texts ``ID=HOST:PORT``, as the command line takes them.

        Errors: ``InvalidConfiguration``, also for an id that occurs twice.
        """
        peers: dict[str, str] = {}
        for text in texts:
            node_id, equals, address = text.partition("=")
            node_id, address = node_id.strip(), address.strip()
            if not equals:
                raise InvalidConfiguration(
                    "not a peer", got=repr(text), limit="ID=HOST:PORT", remedy="Change --peer"
                )
            if node_id in peers:
                raise InvalidConfiguration(
                    "the same peer is named twice",
                    got=f"{node_id}={peers[node_id]} and {text}",
                    remedy="Give every peer an id of its own, and name it once",
                )
            peers[node_id] = address
        return cls(me, peers)

    @property
    def others(self) -> tuple[str, ...]:
        """Ids of all peers but this one, sorted."""
        return tuple(node_id for node_id in self.peers if node_id != self.me)

    @property
    def majority(self) -> int:
        return len(self.peers) // 2 + 1

    @property
    def address(self) -> str:
        """The address at which the other peers reach this node."""
        return self.peers[self.me]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about settings that work and are rarely intended."""
        count = len(self.peers)
        if count % 2:
            return ()
        survived = count - self.majority
        return (f"{count} peers survive as many failures as {count - 1} would ({survived})",)


def _check_node_id(node_id: str) -> None:
    good = node_id and all(c.isascii() and (c.isalnum() or c in "._-") for c in node_id)
    if not good or len(node_id) > NODE_ID_CHARS_MAX:
        raise InvalidConfiguration(
            "a peer's node id is not usable",
            got=repr(node_id)[:100],
            limit=f"1 to {NODE_ID_CHARS_MAX} letters, digits, '.', '_' or '-'",
            remedy="Choose another id",
        )


def _check_address(node_id: str, address: str) -> None:
    try:
        host, _ = split_address(address)
    except ValueError:
        raise InvalidConfiguration(
            f"the address of peer {node_id!r} is not usable",
            got=repr(address)[:100],
            limit="host:port, [host]:port for IPv6, with a port other than 0",
            remedy="Give the address under which the other peers and clients reach it",
        ) from None
    if host in _EVERYWHERE:
        raise InvalidConfiguration(
            f"the address of peer {node_id!r} names no machine",
            got=address,
            remedy="Listen there if you like, but give the address under which others reach it",
        )
