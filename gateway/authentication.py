"""Who calls, found out for each request by its head alone, before anything of its body is read.

Theory: HTTP has no hello. Each request brings its proof along, a token in ``Authorization``, the
cookie of a session or the certificate of its connection, so each is looked up anew: 1 µs for a
token by its SHA-256, or for a token of an issuer that was verified before.

    head --token--> Authenticator (SHA-256), or OidcVerifier (a JWT) --> Identity: rights, meter
         --no token, a session--> what its login proved --> Authenticator
         --neither, a certificate--> Authenticator

Rules
- There is one place for it (``GatewayApp``), and only what is declared public is reached without
  proof. A path that there is not is refused as well: a stranger cannot find out which there are.
- A token that was given has to be good, whatever certificate stands beside it; so has a session.
- A session counts for pages of the console alone. Elsewhere programs call, which a page of another
  site could otherwise have a browser do in its user's name.
- Nobody learns why a proof is refused. The access log has the reason.
- The loop's thread never waits for an issuer: an unknown key is fetched by another thread, and one
  fetch serves all requests that wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, assert_never

import msgspec

from ..security.accesslog import EVENT_OF, AccessLog, StrangerNotes
from ..security.oidc import KeyWanted, OidcVerifier, RefusedToken
from ..security.oidclogin import OidcLogins
from ..security.pending import Amounts, PendingLedger
from ..security.principals import Authenticator, Identity, IdentityProof
from ..security.quotas import Meter
from ..security.rights import Operation, Right, Rights, forbidden
from ..security.securityfile import SecurityFile
from ..security.watched import WatchedFiles
from ..wheel.errors import Forbidden, MissingExtra, Unauthenticated
from .errors import HttpError
from .requests import RawHeaders, cookie_of, header_of
from .sessions import COOKIE, BrowserSessions, SessionProof, UserProof, host_cookie

log = logging.getLogger("slotwheel.gateway")

IDENTITY = "identity"
"""Where the scope of a request has the ``Identity`` of its caller."""
SESSION = "session"
"""Where the scope of a request has the ``BrowserSession`` by which its caller is known."""
CONSOLE = "/console"
"""The path of the pages, for which sessions count."""
_BY_ITSELF = b"hx-request"
"""A header of what a page fetches by itself."""
TOPICS = b"slotwheel-topics"
"""A header by which the gateway of a fleet says which topics its own caller has, as a JSON list of
patterns: as a gateway does on the wire."""
COUNTED = "counted_connection"
"""Where it has the ``CountedConnection`` by which it came."""
_BEARER = "bearer"
T = TypeVar("T")


STRANGER = Identity(("",), Rights({}), Meter(""))
"""The identity of a caller without proof, which may do only what is public."""


def identity_of(scope: Any) -> Identity:
    """The caller of a request."""
    identity: Identity = scope[IDENTITY]
    return identity


class RequestAuthenticator:
    """Knows the callers of requests. ``security``: the security file; None: everybody is ``local``
    and may do everything. ``sessions``: of browsers that have logged in. ``identify`` and all that
    has to do with sessions belong to one event loop. ``clock``: seconds since 1970. ``own``: as of
    ``Authenticator``. Errors on construction: ``InvalidConfiguration``."""

    def __init__(
        self,
        security: Path | None = None,
        access_log: AccessLog | None = None,
        sessions: BrowserSessions | None = None,
        clock: Callable[[], float] = time.time,
        own: Collection[str] = (),
    ) -> None:
        self.log = access_log or AccessLog(None)
        self.sessions = BrowserSessions() if sessions is None else sessions
        self._clock = clock
        self._watched: WatchedFiles[SecurityFile] | None = None
        self._verifier = OidcVerifier((), clock=clock)
        self._authenticator = Authenticator(own=own)
        if security is not None:
            self._watched = WatchedFiles(
                [security],
                partial(_read, security),
                lambda error: log.warning("the old security file stays in use: %s", error),
            )
            self._authenticator = Authenticator(
                self._watched.value, now_ms=lambda: int(clock() * 1000), own=own
            )
            self._verifier = OidcVerifier(self._watched.value.issuers.values(), clock=clock)
        self.logins = OidcLogins(self._verifier)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="gateway-issuers")
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._strangers = StrangerNotes(self.log, _report_strangers)

    @property
    def is_open(self) -> bool:
        """True without a security file."""
        return self._authenticator.is_open

    def is_own(self, topic: str) -> bool:
        """Returns True for a topic of slotwheel's own, or of Kafka's."""
        return self._authenticator.is_own(topic)

    @property
    def security(self) -> SecurityFile | None:
        """The security file that is in use."""
        return self._authenticator.security

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.log.close()

    def look(self) -> None:
        """Look at the security file and at issuers' keys, and count what was written. It waits;
        called every few seconds, by one thread at a time. A file of which an error is found changes
        nothing."""
        if self._watched is not None and self._watched.look():
            old, new = self._authenticator.security, self._watched.value
            if old is None or old.issuers != new.issuers:
                self._verifier = OidcVerifier(new.issuers.values(), clock=self._clock)
                self.logins = OidcLogins(self._verifier)
            self._authenticator.change(new)
        self._verifier.refresh_stale()
        self.log.look(self._authenticator.meters())

    def recall(self, headers: RawHeaders, certificate_names: Sequence[str]) -> Identity:
        """The caller of a request with this head. It never waits. Errors: ``Unauthenticated``;
        ``KeyWanted``; ``HttpError``: two proofs."""
        authenticator = self._authenticator
        security = authenticator.security
        if security is None:
            return authenticator.authenticate(IdentityProof())
        given = header_of(headers, b"authorization")
        if given is None:
            return authenticator.authenticate(IdentityProof.of(certificate_names))
        scheme, _, token = given.partition(" ")
        token = token.strip(" ")
        if scheme.lower() != _BEARER or not token:
            raise Unauthenticated(reason="a header Authorization that has no bearer token")
        if _is_signed(token, security):
            return authenticator.identify(self._verifier.verify(token).principals)
        return authenticator.authenticate(IdentityProof.of(certificate_names, token))

    def _proved(self, token: str, security: SecurityFile) -> SessionProof:
        """What a token proves. It never waits. Errors: ``KeyWanted``; ``RefusedToken``."""
        if not _is_signed(token, security):
            return IdentityProof.of((), token)
        user = self._verifier.verify(token)
        table = security.issuers.get(user.issuer)
        if table is None:
            raise RefusedToken(f"issuer {user.issuer} is in another security file")
        return UserProof(user, table)

    def _identity(self, proof: SessionProof) -> Identity:
        """Who has shown this, by the security file of now. Errors: ``Unauthenticated``."""
        match proof:
            case IdentityProof():
                return self._authenticator.authenticate(proof)
            case UserProof(user, table):
                security = self.security
                if security is None or security.issuers.get(table.name) != table:
                    raise Unauthenticated(reason=f"the table of {table.name} is another one by now")
                if self._clock() >= user.expires_s:
                    raise Unauthenticated(reason=f"the login of {user.principals[0]} has expired")
                return self._authenticator.identify(user.principals)
            case _:
                assert_never(proof)

    def _recall_session(self, scope: Any) -> Identity | None:
        """The caller whose session's cookie comes with a request for a page; None: none does, or a
        token. Errors: ``Unauthenticated``: the session has ended; ``HttpError``: two headers."""
        path, headers = scope["path"], scope["headers"]
        if self.is_open or not (path == CONSOLE or path.startswith(f"{CONSOLE}/")):
            return None
        session_id = cookie_of(headers, COOKIE)
        if not session_id or header_of(headers, b"authorization") is not None:
            return None
        is_use = header_of(headers, _BY_ITSELF) is None
        session = self.sessions.recall(session_id, is_use=is_use)
        if session is None:
            raise Unauthenticated(reason="a session that has ended")
        try:
            identity = self._identity(session.proof)
        except Unauthenticated:
            self.sessions.end(session_id)
            raise
        scope[SESSION] = session
        return identity

    def log_in(self, scope: Any, proof: SessionProof) -> tuple[bytes, bytes]:
        """Begin a session for who has shown this, in place of the one that the browser has; the
        header with its cookie. The request is theirs from then on. Errors: ``Unauthenticated``.
        """
        identity = self._identity(proof)
        self.log_out(scope)
        scope[IDENTITY] = identity
        session_id = self.sessions.begin(identity.principal, proof)
        self.log.note("login", identity.principal, host=_host(scope))
        return host_cookie(COOKIE, session_id)

    def log_out(self, scope: Any) -> None:
        """End the session of a browser, if it has one."""
        session = self.sessions.end(cookie_of(scope["headers"], COOKIE))
        if session is not None:
            self.log.note("logout", session.principal, host=_host(scope))

    def recall_public(self, scope: Any) -> Identity:
        """The caller of a request for something public; ``STRANGER`` without a good proof."""
        try:
            identity = self._recall_session(scope)
            return identity or self.recall(scope["headers"], scope["certificate_names"])
        except (HttpError, RefusedToken, Unauthenticated):
            return STRANGER

    async def identify(self, scope: Any) -> Identity:
        """The caller of a request, for whom its connection counts from now on. Errors:
        ``Unauthenticated``; ``HttpError``: two proofs; ``OverQuota``: too many connections."""
        headers, names = scope["headers"], scope["certificate_names"]
        identity = await self._waiting_for_keys(
            scope, lambda: self._recall_session(scope) or self.recall(headers, names)
        )
        identity = self._asking_for(identity, headers)
        scope[COUNTED].count_for(identity.meter)
        return identity

    def _asking_for(self, identity: Identity, headers: RawHeaders) -> Identity:
        """The caller, with the topics of its own caller alone if it is a gateway that names them.
        Errors: ``HttpError`` 400, 403."""
        given = header_of(headers, TOPICS)
        if given is None:
            return identity
        if not identity.rights.is_unlimited:
            raise HttpError(
                403,
                f"only a gateway asks for a caller of its own, by {TOPICS.decode()}",
                got=identity.principal,
                remedy="Leave the header out, or give this principal a role with gateway = true",
            )
        try:
            patterns = msgspec.json.decode(given, type=list[str])
        except msgspec.MsgspecError as error:
            raise HttpError(
                400, f"not a list of topics: {error}"[:200], place=TOPICS.decode()
            ) from None
        return self._authenticator.limited(identity, patterns)

    async def prove(self, scope: Any, token: str) -> SessionProof:
        """What a token proves by which a browser wants to log in; ``log_in`` finds out who may.
        Errors: ``Unauthenticated``."""
        security = self.security
        if security is None or not token:
            raise Unauthenticated(reason="a login without a token")
        return await self._waiting_for_keys(scope, lambda: self._proved(token, security))

    async def _waiting_for_keys(self, scope: Any, recall: Callable[[], T]) -> T:
        """The result of ``recall``, once the issuer's keys are there that it wants. Errors:
        ``Unauthenticated``; ``HttpError``."""
        with self.noting_strangers(scope):
            try:
                return recall()
            except KeyWanted as wanted:
                await self._refresh(wanted.issuer)
                return recall()

    @contextmanager
    def noting_strangers(self, scope: Any) -> Iterator[None]:
        """Note each proof that is refused inside, with its reason; the caller gets
        ``Unauthenticated``, which has none."""
        try:
            yield
        except RefusedToken as error:
            self.note_stranger(scope, str(error))
            raise Unauthenticated from None
        except Unauthenticated as error:
            self.note_stranger(scope, error.reason)
            raise

    async def _refresh(self, issuer: str) -> None:
        asking = self._asking.get(issuer)
        if asking is None:
            loop = asyncio.get_running_loop()
            asking = loop.run_in_executor(self._threads, self._verifier.refresh, issuer)
            self._asking[issuer] = asking
            asking.add_done_callback(lambda _: self._asking.pop(issuer, None))
        await asyncio.shield(asking)

    def note_stranger(self, scope: Any, reason: str) -> None:
        """Note that somebody proved nothing, and why."""
        self._strangers.note(_host(scope), reason)

    def demand(self, scope: Any, operation: Operation, topic: str = "") -> None:
        """Check an operation for the caller of a request. Errors: ``Forbidden``, which names
        operation and topic."""
        identity = identity_of(scope)
        if not identity.rights.may(operation, topic):
            raise self._denied(identity, operation, topic, _host(scope))

    def check(self, scope: Any, operation: Operation, topic: str = "") -> None:
        """Check an operation for the caller of a request, and log it. Errors: as of ``demand``."""
        self.demand(scope, operation, topic)
        if event := EVENT_OF.get(operation.right):
            self.log.note(
                event,
                identity_of(scope).principal,
                operation=operation.label,
                topic=topic,
                host=_host(scope),
            )

    def topics_for(self, scope: Any, right: Right) -> Callable[[str], bool] | None:
        """Tells of a topic whether the caller of a request has the right for it; None: for every
        topic."""
        rights = identity_of(scope).rights
        return None if rights.is_unlimited else rights.topics(right).has

    @property
    def pending(self) -> PendingLedger:
        """What is pending for the prefixes that the security file's quotas name."""
        return self._authenticator.pending

    def admit_rows(self, identity: Identity, topics: Mapping[str, int], nbytes: int) -> None:
        """Check that a caller may send messages to topics, and count them against its quota.
        ``topics``: the number of messages for each; ``nbytes``: of the request that has them.
        Errors: ``Forbidden``, ``OverQuota``; nothing was stored."""
        authenticator, rows = self._authenticator, sum(topics.values())

        def shares() -> Amounts:
            return {topic: (count, nbytes * count // rows) for topic, count in topics.items()}

        if identity.rights.is_unlimited:
            offer = authenticator.offer(identity, shares)
        else:
            self.demand_topics(identity, Operation.APPEND, topics)
            offer = authenticator.charge(identity, rows, nbytes, shares)
        if offer is not None:
            offer.settle(time.monotonic())  # what the node is asked for from now on has it

    def demand_topics(
        self, identity: Identity, operation: Operation, topics: Iterable[str]
    ) -> None:
        """Check an operation on topics that a request names. Errors: ``Forbidden``, which names
        operation and topic."""
        for topic in topics:
            if not identity.rights.may(operation, topic):
                raise self._denied(identity, operation, topic)

    def renewed(self, identity: Identity) -> Identity:
        """A caller that was known, with its rights by the security file as it is now; without any
        when it is no member any more. For what goes on behind its request's begin."""
        return self._authenticator.renewed(identity)

    def _denied(
        self, identity: Identity, operation: Operation, topic: str, host: str = ""
    ) -> Forbidden:
        self.log.note(
            "denied", identity.principal, operation=operation.label, topic=topic, host=host
        )
        return forbidden(operation, topic)


def _is_signed(token: str, security: SecurityFile) -> bool:
    """Returns True for a token of an issuer, a JWT."""
    return token.count(".") == 2 and bool(security.issuers)


def _report_strangers(host: str, reason: str, count: int) -> None:
    log.warning("%d requests without proof; the last, from %s: %s", count, host or "?", reason)


def _host(scope: Any) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _read(path: Path, contents: Sequence[bytes]) -> SecurityFile:
    """Errors: ``InvalidConfiguration``, ``MissingExtra``; ``OSError``."""
    security = SecurityFile.of_watched(path, contents)
    OidcVerifier(security.issuers.values())
    if security.issuers and find_spec("jwt") is None:
        raise MissingExtra(
            "tokens of issuers need PyJWT",
            got=f"{path}: {', '.join(security.issuers)}",
            remedy="Run: pip install 'slotwheel[http]'",
        )
    for issuer in security.issuers.values():
        if issuer.client_secret is not None:  # the gateway's processes must not inherit it
            issuer.client_secret.take()
    return security
