"""TLS: what a side proves, what it accepts, and one connection's bytes.

Theory: TLS is a translation between two streams of bytes. Here it has no socket: ciphertext that
was received goes in and plain bytes come out, plain bytes go in and ciphertext to be sent comes
out (``TlsStream``). So one server thread serves many connections without waiting for any, and a
thread that waits in ``recv`` holds no lock that another needs to send.

    socket --received--> [ incoming | OpenSSL | outgoing ] --to be sent--> socket
                               read |         | seal
                                    v         |
                                  plain      plain

Rules
- TLS 1.2 and 1.3 only. The name of whoever is connected to is always compared, by OpenSSL with the
  host's name for a node's clients, here with the node id for peers; nothing switches that off.
- An OpenSSL object is used by one thread at a time, under the stream's lock: two at once would
  break its state. What reading wants to send, such as the answer to a key update, leaves with the
  next bytes.
- The context is that of the moment at which a connection begins. A certificate that was proven by
  an authority that is gone since, or that has expired, does not stand any more (``stands``), and
  whoever holds the connection ends it: a connection may else outlive its trust by weeks.
- Sessions are never resumed, since a resumed one would prove its certificate to no authority.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..wheel.errors import InvalidConfiguration, NodeUnreachable, SlotwheelError
from ..wheel.files import Bytes
from .watched import WatchedFiles

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_NAMES = frozenset({"DNS", "URI"})


@dataclass(frozen=True, slots=True)
class Tls:
    """The files, in PEM, by which a client of nodes uses TLS. ``ca``: the authorities that the
    node's certificate has to be proven by; None: those that the system trusts. ``cert`` and
    ``key``: the certificate that the client proves itself with; the key may be in the same file.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_pair(self.cert, self.key, "tls")


def check_pair(cert: object, key: object, option: str) -> None:
    """Errors: ``InvalidConfiguration`` for a key without its certificate: it proves nothing."""
    if key is not None and cert is None:
        raise InvalidConfiguration(
            "a key is given, and no certificate",
            got=str(key),
            remedy=f"Give the certificate by {option}-cert, too",
        )


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A certificate that the other side has proven. ``names``: its DNS and URI names in their
    order; without any alternative name its common name. ``expires_s``: by the wall clock, since
    the epoch. ``authorities``: digests of all that were accepted when it was proven."""

    names: tuple[str, ...]
    expires_s: float
    authorities: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class _Terms:
    """The contexts that stand at a time. ``authorities``: digests of those that are accepted."""

    accepting: ssl.SSLContext | None
    dialling: ssl.SSLContext | None
    authorities: frozenset[bytes]


class TlsFiles:
    """One side's certificate, key and authorities, from files that may be exchanged. Thread-safe.

    Errors on construction: ``InvalidConfiguration`` that names the file.
    """

    def __init__(
        self,
        tls: Tls,
        *,
        accepts: bool = False,
        dials: bool = False,
        requires_certificate: bool = False,
        compares_node_ids: bool = False,
        alarm: Callable[[SlotwheelError], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``accepts``, ``dials``: the ends of connections for which it is used.
        ``requires_certificate``: who connects has to prove a certificate; else who has none may
        connect as well. ``compares_node_ids``: ``dial`` gets a node id and not a host's name."""
        self._tls = tls
        self._accepts = accepts
        self._dials = dials
        self._requires = requires_certificate
        self._compares_node_ids = compares_node_ids
        self._clock = clock
        files = [path for path in (tls.cert, tls.key, tls.ca) if path is not None]
        self._watched: WatchedFiles[_Terms] = WatchedFiles(files, self._load, alarm)

    @classmethod
    def of_client(cls, tls: Tls) -> Self:
        """For who connects to nodes; the host's name is compared with the node's certificate."""
        return cls(tls, dials=True)

    @property
    def error(self) -> SlotwheelError | None:
        """The reason for which the files as they are now are not in use; None: they are."""
        return self._watched.error

    def look(self) -> bool:
        """Look if the files changed. Returns True if new ones count from now on."""
        return self._watched.look()

    def accept(self) -> TlsStream:
        """The stream of a connection that has come in."""
        terms = self._watched.value
        assert terms.accepting is not None, "made without `accepts`"
        return TlsStream(terms.accepting, terms.authorities, server_side=True)

    def dial(self, name: str) -> TlsStream:
        """The stream of a connection that was made to ``name``: a host's name or address, or with
        ``compares_node_ids`` a node id."""
        terms = self._watched.fresh
        assert terms.dialling is not None, "made without `dials`"
        if self._compares_node_ids:
            return TlsStream(terms.dialling, terms.authorities, expected_name=name)
        return TlsStream(terms.dialling, terms.authorities, server_hostname=name)

    @property
    def dialling(self) -> ssl.SSLContext:
        """The context for a program that does its own input and output, such as an event loop. It
        compares the host's name, which it has to be given."""
        terms = self._watched.fresh
        assert terms.dialling is not None, "made without `dials`"
        assert terms.dialling.check_hostname, "made with `compares_node_ids`"
        return terms.dialling

    def stands(self, certificate: PeerCertificate | None) -> bool:
        """False for a certificate that has expired, or that was proven while an authority was
        accepted that is gone since: it may have been that one that had signed it."""
        if certificate is None:
            return True
        proven_by, accepts = certificate.authorities, self._watched.value.authorities
        accepted = proven_by is accepts or proven_by <= accepts
        return accepted and self._clock() < certificate.expires_s

    def _load(self, contents: Sequence[bytes]) -> _Terms:
        authorities = b"" if self._tls.ca is None else contents[-1]
        digests = frozenset(_digests(authorities, self._tls.ca))
        text = authorities.decode("ascii", errors="replace")
        accepting = self._accepting(text) if self._accepts else None
        return _Terms(accepting, self._dialling(text) if self._dials else None, digests)

    def _accepting(self, authorities: str) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER, authorities)
        # Of TLS 1.3 none is sent: the client would find it unread, and take it for an answer.
        context.num_tickets = 0
        if authorities:
            context.verify_mode = ssl.CERT_REQUIRED if self._requires else ssl.CERT_OPTIONAL
        return context

    def _dialling(self, authorities: str) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_CLIENT, authorities)
        if not authorities:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self._compares_node_ids:
            context.check_hostname = False  # ``TlsStream`` compares: a node id is no host's name
        return context

    def _context(self, protocol: int, authorities: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        tls = self._tls
        if authorities:
            try:
                context.load_verify_locations(cadata=authorities)
            except (ssl.SSLError, ValueError) as error:
                raise _bad_file(tls.ca, "no certificates of authorities", error) from None
        if tls.cert is not None:
            # Without a password of its own, OpenSSL would ask for one at the terminal, and wait.
            try:
                context.load_cert_chain(tls.cert, tls.key, password=_no_password)
            except (ssl.SSLError, ValueError) as error:
                named = f"{tls.cert}, {tls.key}" if tls.key else tls.cert
                raise _bad_file(named, "no certificate with its key", error) from None
        return context


class TlsStream:
    """The bytes of one connection. Thread-safe. ``certificate``: the other side's, once the
    handshake is over; None: it has none, or nobody asked for it.

    Errors of all methods: ``InvalidConfiguration``: the two sides do not agree, with the reason;
    ``NodeUnreachable``: what comes was altered on its way. Then ``outgoing`` has what the other
    side should be told, and nothing else can be done with it.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        authorities: frozenset[bytes] = frozenset(),
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        expected_name: str = "",
    ) -> None:
        """``server_hostname``: OpenSSL compares it with the certificate. ``expected_name``: one of
        the certificate's names has to be equal to it."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._authorities = authorities
        self._expected_name = expected_name
        self._server_side = server_side
        self._lock = threading.Lock()
        self.is_ready = False
        """True once the handshake is over."""
        self.has_unread = False
        """True if more may be read of what was received; False: nothing can."""
        self.certificate: PeerCertificate | None = None
        self._ssl = _wrapped(
            context, self._incoming, self._outgoing, server_side, server_hostname or None
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the other side has proven."""
        return () if self.certificate is None else self.certificate.names

    def feed(self, received: Bytes) -> None:
        """Take ciphertext that was received."""
        with self._lock:
            self._incoming.write(received)
            self.has_unread = True

    def shake_hands(self) -> bool:
        """Go on with the handshake. Returns True once it is over; until then ``outgoing`` has to
        be sent, and more has to come."""
        with self._lock:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                raise self._refusal(error) from None
            self.certificate = self._proven()
            self.is_ready = True
            return True

    def read(self, bytes_max: int, received: Bytes = b"") -> bytes | None:
        """The next plain bytes, of one record at most; empty: the other side ends; None: no record
        is whole. ``received``: ciphertext that is taken first, as ``feed`` takes it."""
        with self._lock:
            if received:
                self._incoming.write(received)
            try:
                plain = self._ssl.read(bytes_max)
            except ssl.SSLError as error:
                return None if self._gave_nothing(error) else b""
            self.has_unread = self._incoming.pending > 0 or (
                len(plain) == bytes_max and self._ssl.pending() > 0
            )
            return plain

    def read_into(self, room: memoryview, received: Bytes = b"") -> int:
        """Read plain bytes, of one record at most, into ``room``, which is not empty. Returns their
        number; 0: the other side ends; -1: no record is whole. ``received``: as of ``read``."""
        with self._lock:
            if received:
                self._incoming.write(received)
            try:
                count = int(self._ssl.read(len(room), room))
            except ssl.SSLError as error:
                return -1 if self._gave_nothing(error) else 0
            self.has_unread = self._incoming.pending > 0 or (
                count == len(room) and self._ssl.pending() > 0
            )
            return count

    def _gave_nothing(self, error: ssl.SSLError) -> bool:
        """Returns True after a read because no record is whole, False because the other side ends.
        Errors: as of all methods."""
        if not isinstance(error, ssl.SSLWantReadError | ssl.SSLZeroReturnError):
            raise self._refusal(error) from None
        self.has_unread = self._incoming.pending > 0
        return isinstance(error, ssl.SSLWantReadError)

    def seal(self, plain: Bytes) -> bytes:
        """The ciphertext of ``plain``, behind all that waits to be sent. It has to be sent in the
        order of the calls."""
        with self._lock:
            try:
                sealed = self._ssl.write(plain) if len(plain) else 0
                while sealed < len(plain):
                    sealed += self._ssl.write(memoryview(plain)[sealed:])
            except ssl.SSLError as error:
                raise self._refusal(error) from None
            return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Ciphertext that waits to be sent; empty if nothing does."""
        with self._lock:
            return self._outgoing.read()

    @property
    def has_outgoing(self) -> bool:
        """True if ciphertext waits to be sent."""
        return self._outgoing.pending > 0

    def end(self) -> bytes:
        """The ciphertext that says that nothing more comes, behind all that waits to be sent. While
        something is unread, the end of TCP has to say it: OpenSSL would look at what is there, and
        take a message for a fault, after which nothing could be read."""
        with self._lock:
            unread = self._incoming.pending > 0 or self._ssl.pending() > 0
            if self.is_ready and not unread:
                with contextlib.suppress(ssl.SSLError):  # the other side has not said so yet
                    self._ssl.unwrap()
            return self._outgoing.read()

    def _refusal(self, error: ssl.SSLError) -> SlotwheelError:
        return refusal_of(error, server_side=self._server_side, is_ready=self.is_ready)

    def _proven(self) -> PeerCertificate | None:
        """The other side's certificate. Errors: ``InvalidConfiguration``: it has another name, or
        one that is no text."""
        if self._server_side and self._ssl.session_reused:
            raise InvalidConfiguration(
                "a session of TLS is not resumed here", remedy="Connect without a session"
            )
        try:
            fields: dict[str, Any] | None = self._ssl.getpeercert()
        except ValueError:  # Python takes a name of any bytes for UTF-8
            raise InvalidConfiguration(
                "the certificate of the other side has a name that is no text",
                remedy="Issue one with names in ASCII",
            ) from None
        certificate = None
        if fields:
            expires_s = float(ssl.cert_time_to_seconds(fields["notAfter"]))
            certificate = PeerCertificate(_names_of(fields), expires_s, self._authorities)
        names = () if certificate is None else certificate.names
        if self._expected_name and self._expected_name not in names:
            raise InvalidConfiguration(
                "the certificate of the other side has another name",
                got=", ".join(names)[:200] or "no name",
                limit=self._expected_name,
                remedy="Check the address, and that the node there has its own certificate",
            )
        return certificate


_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE"}
)


def refusal_of(
    error: OSError, *, server_side: bool = False, is_ready: bool = False
) -> SlotwheelError:
    """What OpenSSL has found, as an error for people. ``server_side``: of who was connected to.
    ``is_ready``: the handshake is over."""
    reason = getattr(error, "reason", None) or ""
    said = reason.lower().replace("_", " ") or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return InvalidConfiguration(
            "the certificate of the other side is not accepted",
            got=error.verify_message,
            remedy="Check the certificate and its dates, the authorities that are accepted here"
            " (--tls-ca, --client-ca, --peer-ca), and the name in the address",
        )
    if "_ALERT_" in reason:
        return InvalidConfiguration(
            "the other side does not accept this one's TLS",
            got=said,
            remedy="Check the certificate that is proven here (--tls-cert,"
            " --peer-cert); the log of the other side has the reason",
        )
    if reason in _NOT_TLS:
        return InvalidConfiguration(
            "what connects does not speak TLS"
            if server_side
            else "what listens there does not speak TLS",
            got=said,
            remedy="Give the address as tls://HOST:PORT to a client of a node that has a"
            " certificate, and without tls:// where it has none",
        )
    if is_ready:
        return NodeUnreachable("what comes over TLS was altered on its way", got=said)
    return InvalidConfiguration(
        "the two sides do not agree on TLS",
        got=said,
        limit="TLS 1.2 or 1.3, and a certificate where it is asked for",
        remedy="Check the versions of TLS, and the certificates of both sides",
    )


def _wrapped(
    context: ssl.SSLContext,
    incoming: ssl.MemoryBIO,
    outgoing: ssl.MemoryBIO,
    server_side: bool,
    server_hostname: str | None,
) -> ssl.SSLObject:
    try:
        return context.wrap_bio(
            incoming, outgoing, server_side=server_side, server_hostname=server_hostname
        )
    except (ValueError, ssl.SSLError) as error:  # ``UnicodeError``, too
        raise InvalidConfiguration(
            "not a name that a certificate can have",
            got=repr(server_hostname)[:200],
            remedy=f"Change the host of the address: {error}",
        ) from None


def _names_of(fields: dict[str, Any]) -> tuple[str, ...]:
    alternatives = fields.get("subjectAltName", ())
    if alternatives:
        return tuple(name for kind, name in alternatives if kind in _NAMES)
    pairs = (pair for group in fields.get("subject", ()) for pair in group)
    return tuple(name for kind, name in pairs if kind == "commonName")[:1]


def _digests(authorities: bytes, path: str | os.PathLike[str] | None) -> list[bytes]:
    """Digests of the certificates in a file. Errors: ``InvalidConfiguration`` for one without."""
    digests = []
    for block in _PEM.findall(authorities):
        try:
            der = ssl.PEM_cert_to_DER_cert(block.decode("ascii"))
        except ValueError as error:
            raise _bad_file(path, "no certificates of authorities", error) from None
        digests.append(hashlib.sha256(der).digest())
    if path is not None and not digests:
        raise _bad_file(path, "no certificates of authorities", ValueError("none begins there"))
    return digests


def _no_password() -> str:
    raise ValueError("the key has a password, which nobody is there to give")


def _bad_file(
    path: str | os.PathLike[str] | None, lacks: str, error: Exception
) -> InvalidConfiguration:
    text = getattr(error, "reason", None) or str(error)
    return InvalidConfiguration(
        f"a file has {lacks}",
        got=f"{Path(path or '')}: {str(text).lower().replace('_', ' ')[:200]}",
        limit="PEM, with -----BEGIN …-----",
        remedy="Check that the files belong together, and that the key has no password",
    )
