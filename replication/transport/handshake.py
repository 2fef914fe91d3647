"""The greeting of two peers before their first message, and why one of them is refused.

Theory: a wrong address, a copied configuration or a data directory of another group must be found
when two nodes meet: later it looks like a majority that does not exist. So the connecting node
sends its id, the id it wants to reach and the group as it is configured; the other compares, and
answers with its own, so that both nodes can log a mismatch.

``PeerInstances`` finds two running nodes with one id. A process has a random instance id; while
messages of one arrive, no other instance of that node is admitted. One that ended is replaced at
once.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ...wheel.errors import InvalidConfiguration, SlotwheelError, UnsupportedVersion
from ...wheel.journal.segment import STORE_ID_BYTES
from ...wheel.protocol import JSON_BYTES_MAX, PEER_COMMAND

PEER_VERSION = 6
"""Version of the handshake, and of what peers must do alike. Before 6 they knew no slots of an hour
or a day: one would take the number of such a slot, in a snapshot or a request for rows, for a
second in the far future, and its file for damage."""
CONTROL, BULK, SNAPSHOT, SLOT = LANES = ("control", "bulk", "snapshot", "slot")
LIVE_S = 2.0
"""An instance whose last message is younger than this, s, is alive."""
_VERSION_KEY = "slotwheel-peer"


@dataclass(frozen=True, slots=True)
class Greeting:
    """The sender's identity and configuration. ``to``: the id it wants to reach. ``key``:
    fingerprint of the group's key, empty while it is not known. ``promise_ms``: how long it keeps
    the promise that leases rely on. ``lane``: what the exchange is for. ``delivery``: the delivery
    semantics. ``clients_at``: where clients reach the sender; empty: where its peers do, or it is
    not known."""

    group: str
    node_id: str
    to: str
    instance: str
    store: bytes
    peers: Mapping[str, str]
    key: str = ""
    promise_ms: int = 0
    lane: str = CONTROL
    delivery: str = ""
    clients_at: str = ""

    def encode(self) -> bytes:
        fields = {
            _VERSION_KEY: PEER_VERSION,
            "group": self.group,
            "node": self.node_id,
            "to": self.to,
            "instance": self.instance,
            "store": self.store.hex(),
            "peers": dict(self.peers),
            "key": self.key,
            "promise_ms": self.promise_ms,
            "lane": self.lane,
            "delivery": self.delivery,
            "clients": self.clients_at,
        }
        return PEER_COMMAND + json.dumps(fields).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """The greeting in a message. Errors: ``UnsupportedVersion``, ``InvalidConfiguration``."""
        fields: Any = None
        if body.startswith(PEER_COMMAND) and len(body) <= JSON_BYTES_MAX:
            try:
                fields = json.loads(body[len(PEER_COMMAND) :])
            except (ValueError, RecursionError):
                fields = None
        if not isinstance(fields, dict) or type(fields.get(_VERSION_KEY)) is not int:
            raise _unreadable(body)
        if fields[_VERSION_KEY] != PEER_VERSION:
            raise UnsupportedVersion(
                "a peer speaks another version",
                got=fields[_VERSION_KEY],
                limit=PEER_VERSION,
                remedy="Run the same version of slotwheel on every peer",
            )
        names = ("group", "node", "to", "instance", "key", "lane", "delivery")
        # The last came later: of a peer that does not send it, nothing is known.
        texts: list[Any] = [*(fields.get(name) for name in names), fields.get("clients", "")]
        peers, store = fields.get("peers"), fields.get("store")
        if (
            not all(isinstance(text, str) and len(text) <= 200 for text in texts)
            or not isinstance(store, str)
            or not isinstance(peers, dict)
            or not all(isinstance(address, str) for address in peers.values())
            or fields["lane"] not in LANES
            or type(fields.get("promise_ms")) is not int
        ):
            raise _unreadable(body)
        try:
            store_id = bytes.fromhex(store)
        except ValueError:
            raise _unreadable(body) from None
        if len(store_id) != STORE_ID_BYTES:
            raise _unreadable(body)
        group, node_id, to, instance, key, lane, delivery, clients_at = texts
        return cls(
            group=group,
            node_id=node_id,
            to=to,
            instance=instance,
            store=store_id,
            peers=peers,
            key=key,
            promise_ms=fields["promise_ms"],
            lane=lane,
            delivery=delivery,
            clients_at=clients_at,
        )


def fingerprint(key: bytes | None) -> str:
    """A hash of the group's key: it identifies the group, and cannot make ids."""
    return "" if not key else hashlib.sha256(b"slotwheel group key " + key).hexdigest()[:32]


def check_proof(theirs: Greeting, names: Sequence[str]) -> None:
    """Compare the id in a greeting with the ``names`` that a certificate has proven, before
    anything is answered. Errors: ``InvalidConfiguration``, which names nothing that the caller has
    not said itself: it may have stolen the certificate of a client."""
    if theirs.node_id not in names:
        raise InvalidConfiguration(
            "the certificate is not that peer's",
            got=theirs.node_id,
            remedy="Give each peer a certificate whose name is its node id",
        )


def check_greeting(ours: Greeting, theirs: Greeting) -> None:
    """Compare a peer's greeting with ``ours``, which this node would send. Errors:
    ``InvalidConfiguration``, worded so that a person on either side can act on it."""
    if theirs.to != ours.node_id:
        raise InvalidConfiguration(
            f"connected to the wrong node: {theirs.node_id!r} wants {theirs.to!r},"
            f" and this is {ours.node_id!r}",
            got=theirs.to,
            limit=ours.node_id,
            remedy=f"Correct the address of {theirs.to!r} in the peers of {theirs.node_id!r}",
        )
    if theirs.group != ours.group:
        raise InvalidConfiguration(
            f"peer {theirs.node_id!r} belongs to another wheel group",
            got=theirs.group,
            limit=ours.group,
            remedy="Give all peers the same --group, or correct the peers' addresses",
        )
    if theirs.node_id == ours.node_id:
        raise InvalidConfiguration(
            "two running nodes have the same node id",
            got=theirs.node_id,
            remedy="Give one of them its own --node-id",
        )
    if theirs.node_id not in ours.peers:
        raise InvalidConfiguration(
            f"{theirs.node_id!r} is not among the peers of {ours.node_id!r}",
            got=theirs.node_id,
            limit=", ".join(ours.peers),
            remedy="Give every peer the same list of peers",
        )
    if _folded(theirs.peers) != _folded(ours.peers):
        raise InvalidConfiguration(
            f"{theirs.node_id!r} and {ours.node_id!r} have different lists of peers",
            got=_listed(theirs.peers),
            limit=_listed(ours.peers),
            remedy="Give every peer the same list of peers",
        )
    if theirs.promise_ms != ours.promise_ms:
        raise InvalidConfiguration(
            f"{theirs.node_id!r} and {ours.node_id!r} wait differently long for a master",
            got=f"{theirs.promise_ms} ms",
            limit=f"{ours.promise_ms} ms",
            remedy="Give all peers the same --election: a master's lease relies on it",
        )
    if theirs.delivery != ours.delivery:
        raise InvalidConfiguration(
            f"{theirs.node_id!r} and {ours.node_id!r} deliver differently",
            got=theirs.delivery,
            limit=ours.delivery,
            remedy="Give all peers the same --delivery; to change it, stop all of them first",
        )
    if theirs.key and ours.key and theirs.key != ours.key:
        raise InvalidConfiguration(
            f"the data of {theirs.node_id!r} and of {ours.node_id!r} were made by different groups",
            got=f"key {theirs.key[:8]}",
            limit=f"key {ours.key[:8]}",
            remedy="One of them runs on a directory of another group: give it its own, or an empty"
            " one",
        )


class PeerInstances:
    """The running process of each peer. Thread-safe; times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float]] = {}

    def admit(self, node_id: str, instance: str, now: float) -> None:
        """Accept an instance. Errors: ``InvalidConfiguration`` while another instance is alive."""
        with self._lock:
            known, heard = self._known.get(node_id, (instance, now))
            if known != instance and now - heard < LIVE_S:
                raise InvalidConfiguration(
                    "two running nodes have the same node id",
                    got=node_id,
                    remedy="Give one of them its own --node-id, or end it. A node that was just"
                    " started in the place of another one is let in after two seconds",
                )
            self._known[node_id] = (instance, now)

    def touch(self, node_id: str, instance: str, now: float) -> None:
        with self._lock:
            if self._known.get(node_id, (instance, now))[0] == instance:
                self._known[node_id] = (instance, now)

    def gone(self, node_id: str, instance: str) -> None:
        """Forget an instance, as its connection has ended."""
        with self._lock:
            if self._known.get(node_id, ("", 0.0))[0] == instance:
                del self._known[node_id]


def is_refusal(error: SlotwheelError) -> bool:
    """True if only a person can fix the cause."""
    return isinstance(error, (InvalidConfiguration, UnsupportedVersion))


def _folded(peers: Mapping[str, str]) -> dict[str, str]:
    return {node_id: address.lower() for node_id, address in peers.items()}


def _listed(peers: Mapping[str, str]) -> str:
    return ", ".join(f"{node_id}={address}" for node_id, address in sorted(peers.items()))[:500]


def _unreadable(body: bytes) -> InvalidConfiguration:
    return InvalidConfiguration(
        "not a slotwheel peer's greeting",
        got=f"{len(body)} bytes starting {body[:80]!r}",
        remedy="Check the peers' addresses, and that all run the same version",
    )
