"""Chooses the address to try next, when a group of peers has several and one is the master's.

Theory: a standby usually knows the master, and its error (``NotMaster``) has the address. So after
a failure this hint is followed first, and the given addresses are tried in turn when there is none.
In *one round* each address is tried once; then there is a pause, and the next round begins. So a
group without a master, or one whose peers name each other, gets only a few requests a second.

                 hint, or the next in turn
    current ---failed---> current ---failed---> ... ---failed---> pause, and the next round
       ^                                                              |
       +--------------------------------------------------------------+

Rules:
- An address that did not answer is skipped for ``DOUBT_S``, unless there is no other: peers name a
  dead master for about that long, and a connection to a machine that is off takes long to fail.
- A hint may be an address that was not given. It is dropped when it fails.
- With a single address and no hint, every failure ends a round.
- A round in which nobody knows the caller is the last one: the caller gets that error at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..wheel.errors import (
    InvalidConfiguration,
    NodeUnreachable,
    NotMaster,
    SlotwheelError,
    Unauthenticated,
)
from ..wheel.protocol import DEFAULT_ADDRESS, is_loopback, split_address

if TYPE_CHECKING:
    from ..security.tls import Tls

SCHEMES = ("http://", "https://")
"""The address of a gateway begins with one of these."""
SECURE = "tls://"
"""The address of a node with TLS begins with this; that of the first one is enough."""
DOUBT_S = 1.0
HINTS_MAX = 8
"""The most hints that are followed in one round."""
ATTEMPT_S = (1.0, 5.0)
"""Time, s, for the first answer of one of several addresses: in the first round, and at most."""
PAUSE_MAX_S = (0.25, 1.0)
"""The longest pause, s, between two rounds: with several addresses, whose peers elect a master
within a second; and with one."""
_REASON_CHARS = 160
_ADDRESS_CHARS = 200


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where the nodes of a group are, and how they are reached: for whoever hands that on.
    ``given``: as ``Client`` takes it; ``tls``: with ``tls://``, the files that are used; ``token``:
    ``file:PATH`` or ``env:NAME``, the place of the token that proves who calls."""

    given: str | Sequence[str]
    tls: Tls | None = None
    token: str | None = None

    def __str__(self) -> str:
        return self.given if isinstance(self.given, str) else ",".join(self.given)

    @classmethod
    def of(
        cls,
        address: str | Sequence[str] | Nodes,
        tls: Tls | None = None,
        token: str | None = None,
    ) -> Nodes:
        """``address`` itself, or what it says, reached by ``tls`` and ``token``."""
        return address if isinstance(address, Nodes) else cls(address, tls, token)


def split(given: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses in ``"host:port,host:port"``, or in a sequence of such texts: each once."""
    texts = [given] if isinstance(given, str) else given
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(filter(None, parts))) or ("",)


def without_scheme(addresses: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """True for nodes with TLS, ``("tls://a:7200", "b:7200")``, and the addresses without it: ``a``
    and ``b`` are both with TLS then, as all are that are found by them. Errors:
    ``InvalidConfiguration`` when a later address has it and the first one has not: a client would
    else speak to some nodes of a group where everybody can read it."""
    with_tls = [address for address in addresses if address.startswith(SECURE)]
    if with_tls and not addresses[0].startswith(SECURE):
        raise InvalidConfiguration(
            "some addresses are with TLS, and the first is not",
            got=", ".join(addresses)[:_ADDRESS_CHARS],
            limit="tls://host:port,host:port",
            remedy="Begin the first address with tls://, which stands for all",
        )
    return bool(with_tls), tuple(address.removeprefix(SECURE) for address in addresses)


def check_private_way(addresses: Sequence[str]) -> None:
    """Errors: ``InvalidConfiguration`` for the plain address of another machine, to which a token
    must not go: whoever is on the way could take it and be the client from then on."""
    for address in addresses:
        if not is_loopback(split_address(address)[0]):
            raise InvalidConfiguration(
                "a token would go to another machine where everybody can read it",
                got=address[:_ADDRESS_CHARS],
                limit="tls://host:port, or an address of this machine",
                remedy="Begin the address with tls://",
            )


def check_addresses(addresses: Sequence[str]) -> None:
    """Errors: ``InvalidConfiguration`` for an address that no node can have."""
    remedy = f"Give host and port; without --listen a node is at {DEFAULT_ADDRESS}"
    _check_each(addresses, split_address, "a node", "host:port, [host]:port for IPv6", remedy)


def is_http(addresses: Sequence[str]) -> bool:
    """Returns True for addresses of gateways. Errors: ``InvalidConfiguration`` for one that no
    gateway can have, and for a mixture."""
    gateways = [address for address in addresses if address.startswith(SCHEMES)]
    if gateways:
        remedy = "Give scheme, host and port alone, and gateways or nodes, not both"
        _check_each(addresses, place_of, "a gateway", "http://host:port", remedy)
    return bool(gateways)


def _check_each(
    addresses: Sequence[str],
    read: Callable[[str], object],
    owner: str,
    limit: str,
    remedy: str,
) -> None:
    for address in addresses:
        try:
            read(address)
        except ValueError:
            raise InvalidConfiguration(
                f"not the address of {owner}",
                got=repr(address)[:_ADDRESS_CHARS],
                limit=limit,
                remedy=remedy,
            ) from None


def place_of(address: str) -> tuple[bool, str, int]:
    """True for TLS, host and port of a gateway's address. Errors: ``ValueError``."""
    scheme = next((prefix for prefix in SCHEMES if address.startswith(prefix)), None)
    if scheme is None:
        raise ValueError("no scheme")
    host, port = split_address(address.removeprefix(scheme).removesuffix("/"))
    return scheme == "https://", host, port


class Addresses:
    """A group's addresses, of which ``current`` is in use. ``clock``: monotonic, s. Thread-safe."""

    def __init__(
        self, given: str | Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.given = split(given)
        self._clock = clock
        self._lock = threading.Lock()
        self._current = self.given[0]
        self._several = len(self.given) > 1
        self._hint = ""
        self._hints = 0
        self._tried: set[str] = set()
        self._doubted: dict[str, float] = {}
        self._reasons: dict[str, SlotwheelError] = {}
        self._rounds = 0

    @property
    def current(self) -> str:
        return self._current

    @property
    def several(self) -> bool:
        """True when there is more than one address, given or by a hint."""
        return self._several

    @property
    def others(self) -> list[str]:
        """All given addresses but the current one, beginning behind it."""
        with self._lock:
            return [address for address in self._in_turn() if address != self._current]

    @property
    def hopeless(self) -> bool:
        """True when a round is over, every address has failed, and another round will not help
        (``_refusal``). In the middle of a round some reasons are those of an earlier one: a token
        that is accepted again would be given up for them."""
        with self._lock:
            asked = not self._tried and all(address in self._reasons for address in self.given)
            return asked and self._refusal() is not None

    @property
    def attempt_s(self) -> float:
        """The time to wait for a first answer, s."""
        low, high = ATTEMPT_S
        return min(high, low * 2.0 ** min(self._rounds, 10)) if self._several else high

    @property
    def pause_max_s(self) -> float:
        return PAUSE_MAX_S[0 if self._several else 1]

    def served(self) -> None:
        """Note that the current address is the master's: it did what it was asked for."""
        with self._lock:
            self._tried.clear()
            self._reasons.clear()
            self._doubted.pop(self._current, None)
            self._hint = ""
            self._hints = self._rounds = 0

    def failed(self, address: str, error: SlotwheelError, *, doubt: bool = True) -> bool:
        """Go on to the next address, as ``address`` failed. Returns False when the caller has to
        pause first: the round is over. ``doubt``: it did not answer; False: an open connection
        broke."""
        with self._lock:
            self._reasons[address] = error
            if address != self._current:  # another thread has gone on already
                return True
            self._tried.add(address)
            hint = error.master if isinstance(error, NotMaster) else ""
            if isinstance(error, NodeUnreachable):
                if doubt:
                    self._doubted[address] = self._clock() + DOUBT_S
                if self._hint == address:
                    self._hint = ""
            self._hint = hint or self._hint
            return self._go_on(hint)

    def explain(self, error: SlotwheelError) -> SlotwheelError:
        """The error for people: ``error`` itself, or the errors of all addresses, under the code of
        the refusal if there is one."""
        with self._lock:
            reasons, refusal = dict(self._reasons), self._refusal()
        if not self._several or not reasons:
            return error
        names = [*self.given, *(address for address in reasons if address not in self.given)]
        failures = [
            f"{address}: {_short(reasons[address])}" for address in names if address in reasons
        ]
        if refusal is not None:
            return refusal.showing("; ".join(failures))
        return NodeUnreachable(
            "none of the peers could do it",
            got="; ".join(failures),
            remedy="Check that a majority of the peers runs, and that they reach each other",
        )

    def _refusal(self) -> SlotwheelError | None:
        """The error that another try will not change, if no address has said anything that it may
        change. Peers have the same security file, so where some do not know the caller, those that
        are away would not know it either: a peer that is down would else turn ``unauthenticated``
        into ``node-unreachable``, and that only when the caller's time is over."""
        reasons = [self._reasons[address] for address in self.given if address in self._reasons]
        lasting = [reason for reason in reasons if not reason.retryable]
        unknown = [reason for reason in lasting if isinstance(reason, Unauthenticated)]
        away = sum(isinstance(reason, NodeUnreachable) for reason in reasons) if unknown else 0
        if not lasting or len(lasting) + away < len(reasons):
            return None
        return (unknown or lasting)[-1]

    def _go_on(self, hint: str) -> bool:
        now = self._clock()
        self._doubted = {doubted: until for doubted, until in self._doubted.items() if until > now}
        new = hint and hint not in self._tried and hint not in self._doubted
        if new and self._hints < HINTS_MAX:
            self._hints += 1
            self._several = True
            self._current = hint
            return True
        turn = self._in_turn()
        for address in turn:
            if address not in self._tried and address not in self._doubted:
                self._current = address
                return True
        # The round is over; the next one begins with the latest hint, if there is one.
        good = [address for address in (self._hint, *turn) if address not in ("", *self._doubted)]
        self._current = (good or turn)[0]
        self._tried.clear()
        self._hints = 0
        self._rounds += 1
        return False

    def _in_turn(self) -> list[str]:
        given = self.given
        start = given.index(self._current) + 1 if self._current in given else 0
        return [*given[start:], *given[:start]]


def _short(error: SlotwheelError) -> str:
    if isinstance(error, NotMaster):
        return "a standby" + (f", the master is {error.master}" if error.master else "")
    text = error.message
    return text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + "…"
