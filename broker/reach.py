"""Finds out why a client of Kafka cannot reach any broker, by connecting step by step itself.

Theory: to a client, a broker that closes the connection is one that does not answer, whatever the
reason: both libraries report "timed out" for a wrong password, for TLS that one side does not
speak, and for a certificate that nobody trusts. So each step of a login is done once more by hand,
until one fails: name, port, TLS, whether the broker wants a login, mechanism, password.

This happens only after a client has failed and takes ``_ALL_S`` at most; the result is remembered
for ``_REMEMBERED_S``, so that many clients that fail together ask once. Thread-safe.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from cachetools import TTLCache

from ..wheel.errors import SlotwheelError
from .limits import within
from .settings import ClientKind, for_kafka_python

_STEP_S = 2.0
_ALL_S = 8.0
"""The longest time, s, that all steps together take, also for a name that nobody resolves."""
_REMEMBERED_S = 5.0
_ADDRESSES_MAX = 3
_ANSWER_BYTES_MAX = 1 << 20
_HANDSHAKE, _AUTHENTICATE = 17, 36
_NO_SASL, _OTHER_MECHANISM = 34, 33
"""Kafka's error codes: a listener without SASL; another mechanism."""
_reasons: TTLCache[Any, tuple[str, bool]] = TTLCache(64, _REMEMBERED_S)
_lock = threading.Lock()
"""Guards ``_reasons``."""


class _StepFailed(Exception):
    """The text says which step failed, and what to do."""


class _NoListener(_StepFailed):
    """Nobody answers at this address; waiting may help."""


def why_not(bootstrap: str, settings: Mapping[str, Any], error: Exception | str) -> str:
    """The reason that keeps a client out, with a remedy. It is the text of the client's ``error``
    if a broker lets us in, or if none says why it refuses us. May take ``_ALL_S``."""
    return _recent_reason(bootstrap, settings)[0] or str(error) or type(error).__name__


def is_kept_out(bootstrap: str, settings: Mapping[str, Any]) -> bool:
    """True when a broker refuses the client: waiting would not help. May take ``_ALL_S``."""
    return _recent_reason(bootstrap, settings)[1]


def _recent_reason(bootstrap: str, settings: Mapping[str, Any]) -> tuple[str, bool]:
    key = bootstrap, repr(sorted((name, str(value)) for name, value in settings.items()))
    with _lock:
        reason = _reasons.get(key)
    if reason is None:
        answers: list[tuple[str, bool]] = []
        within(_ALL_S, lambda: answers.append(_try_brokers(bootstrap, settings)))
        reason = answers[0] if answers else ("", False)
        with _lock:
            _reasons[key] = reason
    return reason


def _try_brokers(bootstrap: str, settings: Mapping[str, Any]) -> tuple[str, bool]:
    """The reason that keeps us out, or an empty text, and True if a broker refuses us."""
    try:
        config = for_kafka_python(settings, ClientKind.ADMIN)
    except SlotwheelError as error:
        return str(error), True
    first, kept_out = "", False
    for address in bootstrap.split(",")[:_ADDRESSES_MAX]:
        host, _, port = address.strip().rpartition(":")
        try:
            _enter(host.strip("[]"), int(port), config)
        except _StepFailed as failure:
            refused = not isinstance(failure, _NoListener)
            if not first or (refused and not kept_out):
                first, kept_out = f"{address.strip()}: {failure}", refused
        except (OSError, ValueError, struct.error):
            continue
        else:
            return "", False
    return first, kept_out


def _enter(host: str, port: int, config: Mapping[str, Any]) -> None:
    """Do all steps to one broker. Errors: ``_StepFailed`` where a step fails for a known reason;
    others, such as a timeout, where the reason is not known."""
    protocol = config.get("security_protocol", "PLAINTEXT")
    try:
        plain = socket.create_connection((host, port), _STEP_S)
    except socket.gaierror as error:
        raise _NoListener(f"no such host ({error.strerror})") from None
    except ConnectionRefusedError:
        raise _NoListener("nothing listens there (connection refused)") from None
    with closing(plain):
        plain.settimeout(_STEP_S)
        connection = _tls_socket(plain, host, config) if protocol.endswith("SSL") else plain
        with closing(connection):
            _log_in(connection, host, port, protocol, config)


def _tls_socket(plain: socket.socket, host: str, config: Mapping[str, Any]) -> socket.socket:
    context = ssl.create_default_context(cafile=config.get("ssl_cafile"))
    context.check_hostname = config.get("ssl_check_hostname", True)
    if config.get("ssl_certfile"):
        password = config.get("ssl_password") or ""
        context.load_cert_chain(config["ssl_certfile"], config.get("ssl_keyfile"), password)
    ip, port = plain.getpeername()[:2]
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise _StepFailed(
            f"its certificate is not trusted: {error.verify_message}. Check ssl.ca.location"
        ) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
        # A broker without TLS closes; so does a proxy whose broker is away, which says nothing.
        if _speaks_plain(ip, port):
            raise _StepFailed("it does not speak TLS there. Check security.protocol") from None
        raise _NoListener("it closed the connection before TLS had begun") from None
    except ssl.SSLError as error:
        raise _StepFailed(
            f"no TLS with it ({error.reason or error}). Check security.protocol, and whether the"
            " broker wants a certificate (ssl.certificate.location)"
        ) from None


def _log_in(
    connection: socket.socket, host: str, port: int, protocol: str, config: Mapping[str, Any]
) -> None:
    mechanism = config.get("sasl_mechanism") or "PLAIN"
    try:
        answer = _exchange(connection, _HANDSHAKE, 1, _string(mechanism))
    except (OSError, struct.error):
        if not protocol.endswith("SSL") and _speaks_tls(host, port):
            remedy = "SASL_SSL" if protocol.startswith("SASL_") else "SSL, or SASL_SSL"
            raise _StepFailed(f"it speaks TLS there. Set security.protocol={remedy}") from None
        raise
    (code,) = struct.unpack_from("!h", answer)
    wants_login = code != _NO_SASL
    if not protocol.startswith("SASL_"):
        if wants_login:
            remedy = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
            raise _StepFailed(
                f"it wants a login ({', '.join(_mechanisms(answer))}). Set"
                f" security.protocol={remedy}, sasl.mechanism, sasl.username and sasl.password"
            )
        return
    if not wants_login:
        raise _StepFailed("it takes no login there (SASL). Check security.protocol")
    if code == _OTHER_MECHANISM:
        mechanisms = ", ".join(_mechanisms(answer))
        raise _StepFailed(f"it does not take sasl.mechanism={mechanism}, but {mechanisms}")
    _authenticate(connection, host, mechanism, config)


def _authenticate(
    connection: socket.socket, host: str, mechanism: str, config: Mapping[str, Any]
) -> None:
    from kafka.net.sasl import get_sasl_mechanism

    login = get_sasl_mechanism(mechanism)(host=host, **config)
    while not login.is_done():
        token = login.auth_bytes()
        answer = _exchange(connection, _AUTHENTICATE, 0, struct.pack("!i", len(token)) + token)
        code, length = struct.unpack_from("!hh", answer)
        if code:
            reason = answer[4 : 4 + max(0, length)].decode("utf-8", "replace")
            user = config.get("sasl_plain_username")
            raise _StepFailed(
                f"it refuses the login of {user!r}: {reason or code}. Check sasl.username,"
                " sasl.password and sasl.mechanism"
            )
        at = 4 + max(0, length)
        (size,) = struct.unpack_from("!i", answer, at)
        login.receive(answer[at + 4 : at + 4 + max(0, size)])


def _speaks_plain(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _STEP_S) as plain:
            _exchange(plain, _HANDSHAKE, 1, _string("PLAIN"))
            return True
    except (OSError, struct.error):
        return False


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), _STEP_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLEOFError:  # a proxy whose broker is away accepts, and closes: that says nothing
        return False
    except ssl.SSLError as error:
        return "WRONG_VERSION" not in str(error)
    except OSError:
        return False


def _exchange(connection: socket.socket, kind: int, version: int, body: bytes) -> bytes:
    request = struct.pack("!hhi", kind, version, 1) + _string("slotwheel") + body
    connection.sendall(struct.pack("!i", len(request)) + request)
    (size,) = struct.unpack("!i", _read_exactly(connection, 4))
    if not 4 <= size <= _ANSWER_BYTES_MAX:
        raise ConnectionError("no answer of Kafka's")
    return _read_exactly(connection, size)[4:]


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    received, end = b"", time.monotonic() + _STEP_S
    while len(received) < count:
        if time.monotonic() > end:
            raise TimeoutError("too slow")
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError("closed")
        received += part
    return received


def _mechanisms(answer: bytes) -> list[str]:
    (count,) = struct.unpack_from("!i", answer, 2)
    at, names = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from("!h", answer, at)
        names.append(answer[at + 2 : at + 2 + length].decode("utf-8", "replace"))
        at += 2 + length
    return names


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("!h", len(encoded)) + encoded
