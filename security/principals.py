"""Who a caller is: a proof becomes a principal with its rights and its meter, once a connection.

    certificate, token ──> IdentityProof ──Authenticator──> Identity: principal, rights, meter
    claims of OIDC, a delay topic ──────identify──┘

Principals are texts: ``cert:NAME`` (the first name of a verified certificate), ``token:NAME``,
``oidc:ISSUER:SUB``, ``oidc:ISSUER:group:GROUP``, ``delay:TOPIC``, and ``local``, which every caller
is where there is no security file.

Rules
- A token that is given has to be good, whatever certificate stands beside it: otherwise a program
  whose token has expired went on under another name, with other rights, unseen.
- Who is no member of anything is not known, so nobody gets a connection merely by a certificate.
- A stranger never learns why. ``Unauthenticated.reason`` has it, for the server's own log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..wheel.errors import OverQuota, Unauthenticated
from .pending import NO_LIMITS, Amounts, PendingLedger, PendingOffer
from .quotas import Meter
from .rights import EVERYTHING, QUESTIONS, TOPIC_RIGHTS, Operation, Right, Rights, is_own
from .securityfile import SecurityFile
from .tokens import digest_of

LOCAL = "local"
_NOTHING = Rights({})
_METERS_MAX = 10_000
"""So many principals have a meter; idle ones go first. Only as many principals as a file has
members can be known, and the callers that an OIDC group names."""


@dataclass(frozen=True, slots=True)
class IdentityProof:
    """What a caller has shown. ``certificate_names``: of its verified certificate, in order.
    ``token_digest``: SHA-256 of its token; empty without one. The token itself is not kept."""

    certificate_names: tuple[str, ...] = ()
    token_digest: str = field(default="", repr=False)

    @classmethod
    def of(cls, certificate_names: Sequence[str] = (), token: str = "") -> IdentityProof:
        return cls(tuple(certificate_names), digest_of(token))


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller that is known. ``principals``: all that it has proved to be; the first one is its
    name."""

    principals: tuple[str, ...]
    rights: Rights
    meter: Meter

    @contextmanager
    def doing(self, operation: Operation) -> Iterator[None]:
        """Count an operation against its quota while it is done, if it is a question. Errors:
        ``OverQuota``."""
        if operation.right not in QUESTIONS:
            yield
            return
        self.meter.ask()
        try:
            yield
        finally:
            self.meter.answered()

    @property
    def principal(self) -> str:
        return self.principals[0]


class Authenticator:
    """Knows callers by one security file at a time; None: everybody is ``local`` and may do
    everything. Thread-safe. ``now_ms``: the wall clock, for the end of tokens. ``own``: topics
    that belong to slotwheel though their names do not say so, as those of dead letters may."""

    def __init__(
        self,
        security: SecurityFile | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        own: Collection[str] = (),
    ) -> None:
        self._now_ms = now_ms
        self._own = frozenset(own)
        self._any_topic = Rights({Right.SCHEDULE: ["*"]}, own=self._own)
        self._meters: dict[str, Meter] = {}
        # One value: an identity that was made by an old file must not be found under a new one.
        self._current: tuple[SecurityFile | None, dict[tuple[str, ...], Identity]] = security, {}
        self.pending = PendingLedger()
        """What is pending for the prefixes that the file's quotas name."""
        if security is not None:
            self.pending.change(security.pending_prefixes)
        self._local = Identity((LOCAL,), EVERYTHING, Meter(LOCAL))

    @property
    def is_open(self) -> bool:
        """True without a security file."""
        return self._current[0] is None

    @property
    def security(self) -> SecurityFile | None:
        return self._current[0]

    def change(self, security: SecurityFile) -> None:
        """Go by another file from now on. Callers that are known keep their ``Identity`` until they
        are authenticated anew."""
        self._current = security, {}
        if security.pending_prefixes != self.pending.patterns:
            self.pending.change(security.pending_prefixes)
        for principal, meter in list(self._meters.items()):
            meter.change(security.quota_of(principal))

    def authenticate(self, proof: IdentityProof) -> Identity:
        """Errors: ``Unauthenticated``."""
        security = self.security
        if security is None:
            return self._local
        if proof.token_digest:
            token = security.tokens.get(proof.token_digest)
            if token is None:
                raise Unauthenticated(reason="a token that the security file does not have")
            if not token.is_valid(self._now_ms()):
                raise Unauthenticated(reason=f"{token.principal} has expired")
            return self.identify([token.principal])
        if proof.certificate_names:
            return self.identify([f"cert:{proof.certificate_names[0]}"])
        raise Unauthenticated(reason="neither a token nor a certificate")

    def identify(self, principals: Sequence[str]) -> Identity:
        """The identity of a caller who has proved to be all of these principals; the first is its
        name. Errors: ``Unauthenticated``: none of them is a member."""
        security, known = self._current
        if security is None:
            return self._local
        key = tuple(principals)
        identity = known.get(key)
        if identity is None:
            if not any(principal in security.members for principal in key):
                names = ", ".join(key)[:200]
                raise Unauthenticated(reason=f"{names} is no member in the security file")
            identity = Identity(
                key, security.rights_of(key, self._own), self._meter(key[0], security)
            )
            if len(known) >= _METERS_MAX:
                known.clear()
            known[key] = identity
        return identity

    def limited(self, identity: Identity, patterns: Sequence[str]) -> Identity:
        """A gateway that asks for a caller of its own, who has the topics of these ``patterns``:
        it may do what needs a right for topics, for these, and nothing else."""
        rights = Rights(dict.fromkeys(TOPIC_RIGHTS, patterns), own=self._own)
        return Identity(identity.principals, rights, identity.meter)

    def renewed(self, identity: Identity) -> Identity:
        """A caller with its rights of now; without any when it is no member any more. Its proof is
        not looked at again: a token that ends does not end what was begun under it."""
        try:
            return self.identify(identity.principals)
        except Unauthenticated:
            return replace(identity, rights=_NOTHING)

    def rights_of_delay_topic(self, topic: str) -> Rights:
        """The rights of a delay topic's records: without a security file all but slotwheel's own
        topics, as whoever may write to the delay topic need not have Kafka's rights for them."""
        security = self.security
        return (
            self._any_topic
            if security is None
            else security.rights_of([f"delay:{topic}"], self._own)
        )

    def is_own(self, topic: str) -> bool:
        """Returns True for a topic of slotwheel's own, or of Kafka's."""
        return is_own(topic) or topic in self._own

    def offer(self, identity: Identity, amounts: Callable[[], Amounts]) -> PendingOffer | None:
        """Let rows of a caller in. ``amounts``: called only if some quota limits what is pending.
        Returns the offer to be settled when it is known whether they are stored; None: there is
        none. Errors: ``OverQuota``."""
        if not self.pending.patterns:
            return None
        # A gateway has held each row against the quota of its own caller.
        limits = NO_LIMITS if identity.rights.is_unlimited else identity.meter.quota.pending
        return self.pending.offer(identity.principal, limits, amounts())

    def charge(
        self, identity: Identity, rows: int, nbytes: int, amounts: Callable[[], Amounts]
    ) -> PendingOffer | None:
        """As ``offer``, and count the rows against the rates of the caller's quota. Errors:
        ``OverQuota``; nothing is counted then."""
        offer = self.offer(identity, amounts)
        try:
            identity.meter.charge(rows, nbytes)
        except OverQuota:
            if offer is not None:
                offer.settle(-1)
            raise
        return offer

    def offer_of_delay_topic(self, topic: str, amounts: Amounts) -> PendingOffer | None:
        """Let records of a delay topic in; None: no quota counts what is pending. Errors:
        ``OverQuota``."""
        security = self.security
        if security is None or not self.pending.patterns:
            return None
        principal = f"delay:{topic}"
        return self.pending.offer(principal, security.quota_of(principal).pending, amounts)

    def meters(self) -> list[Meter]:
        """The meters of all principals that were known since the start."""
        return [self._local.meter, *list(self._meters.values())]

    def _meter(self, principal: str, security: SecurityFile) -> Meter:
        meter = self._meters.get(principal)
        if meter is None:
            if len(self._meters) >= _METERS_MAX:
                self._meters = {
                    name: kept for name, kept in list(self._meters.items()) if not kept.idle
                }
            meter = self._meters.setdefault(
                principal, Meter(principal, security.quota_of(principal))
            )
        return meter
