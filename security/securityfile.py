"""The security file: who may do what, as TOML.

    [tokens.billing]                       # the principal token:billing
    sha256 = "9f86d0…"                     # slotwheel token new billing
    until = 2027-06-30T00:00:00Z           # it proves nothing from then on

    [oidc.corp]
    issuer = "https://login.example"
    audience = "slotwheel"
    client-id = "slotwheel-console"        # people may log in to the console by it

    [roles.orders]
    schedule = ["orders", "orders-*"]
    cancel = ["orders-*"]
    observe = true

    [members]
    "token:billing" = ["orders"]
    "cert:gateway.example" = ["gateway"]   # a role of that name, with gateway = true

    [quotas."token:billing"]               # or "default", for every principal without one
    rows-per-second = 5000

    [quotas."token:billing".pending."orders-*"]   # what may be pending when it sends
    rows = 1000000

Rules
- What is not known is refused, with the key and the nearest one that is: a right that is misspelt
  must not be one that is missing, nor ``until`` one that never comes.
- Only a file that its owner alone can read is taken. Others could add a role to it, or take its
  digests to try tokens against.
- A value is immutable. Whoever exchanges it exchanges the whole, so no caller sees half of a
  change.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from ..wheel.checks import is_topic
from ..wheel.errors import InvalidConfiguration
from .pending import PREFIXES_MAX, PendingLimit
from .quotas import NO_QUOTA, Quota
from .rights import FLAGS, TOPIC_RIGHTS, Operation, Right, Rights, TopicList
from .secretplace import SecretPlace, check_private, read_private

FILE_BYTES_MAX = 4 << 20
DEFAULT = "default"
"""The quota of every principal that has none of its own."""
KINDS = ("token", "cert", "oidc", "delay")
"""The first parts of the names of principals."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAMES = "1 to 100 letters, digits, '.', '_' or '-'"
_SCOPE = re.compile(r"[!#-\[\]-~]{1,100}")
"""RFC 6749, 3.3."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 100
OPENID = "openid"
"""The scope without which an issuer makes no ID token."""
DEFAULT_ALGORITHMS = ("RS256", "ES256")
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token that the file names. ``digest``: SHA-256, hex. ``until_ms``: it proves nothing from
    then on, ms since the epoch; None: it has no end."""

    name: str
    digest: str = field(repr=False)
    until_ms: int | None = None

    @property
    def principal(self) -> str:
        return f"token:{self.name}"

    def is_valid(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class OidcIssuer:
    """An issuer of OpenID Connect tokens. ``jwks``: the address of its keys; empty: its discovery
    document has it. ``groups_claim``: the claim with the groups of a caller. ``client_id``: the
    name of the console at the issuer; empty: nobody logs in by it. ``client_secret``: None: a
    public client, which proves itself by PKCE alone. ``scopes``: what the console asks for."""

    name: str
    issuer: str
    audience: str
    jwks: str = ""
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    groups_claim: str = "groups"
    client_id: str = ""
    client_secret: SecretPlace | None = None
    scopes: tuple[str, ...] = (OPENID,)


@dataclass(frozen=True, slots=True)
class AccessRole:
    """A role of the file. ``topics``: patterns by the right."""

    name: str
    topics: Mapping[Right, tuple[str, ...]]
    flags: frozenset[Right]


@dataclass(frozen=True, slots=True)
class SecurityFile:
    """The content of a security file. ``members``: names of roles by principal; ``quotas``: by
    principal, or ``DEFAULT``."""

    tokens: Mapping[str, TokenEntry] = field(repr=False)
    """By digest, against which others could try tokens."""
    issuers: Mapping[str, OidcIssuer]
    """By the name in the file."""
    roles: Mapping[str, AccessRole]
    members: Mapping[str, tuple[str, ...]]
    quotas: Mapping[str, Quota]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file. Errors: ``InvalidConfiguration`` with the file and the line or key;
        ``OSError`` when it cannot be opened."""
        return cls.parse(read_private(path, FILE_BYTES_MAX), os.fspath(path))

    @classmethod
    def of_watched(cls, path: Path, contents: Sequence[bytes]) -> Self:
        """As ``load``, of the content that ``WatchedFiles`` has read of it. Errors: as of
        ``load``."""
        check_private(path)
        return cls.parse(contents[0], str(path))

    @classmethod
    def parse(cls, content: bytes, name: str | Path = "security.toml") -> Self:
        """Decode the content of a file called ``name``. Errors: ``InvalidConfiguration``."""
        try:
            fields = tomllib.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # its text may quote a line, but no digest
            raise InvalidConfiguration(
                f"{name} is not TOML: {_reason(error)}",
                remedy="Write name = value, texts in quotes",
            ) from None
        whole = _Table(str(name), "", fields)
        readers = {
            "tokens": _token,
            "oidc": _issuer,
            "roles": _role,
            "quotas": _quota,
        }
        whole.check_keys((*readers, "members"))
        parts: dict[str, dict[str, Any]] = {
            table: {
                entry: read(entry, whole.table(table).table(entry))
                for entry in whole.table(table).fields
            }
            for table, read in readers.items()
        }
        tokens: dict[str, TokenEntry] = {}
        for entry in parts["tokens"].values():
            if entry.digest in tokens:
                other = tokens[entry.digest].name
                raise whole.table("tokens").wrong(
                    entry.name, f"is the same token as {other}", None, "Make one for each of them"
                )
            tokens[entry.digest] = entry
        prefixes = {prefix for quota in parts["quotas"].values() for prefix in quota.pending}
        if len(prefixes) > PREFIXES_MAX:
            raise whole.wrong(
                "quotas",
                "limits what is pending for more prefixes than are counted",
                len(prefixes),
                "Let one prefix stand for several topics",
                PREFIXES_MAX,
            )
        names = {token.principal for token in tokens.values()}
        members = {
            principal: _memberships(whole.table("members"), principal, parts["roles"], names)
            for principal in whole.table("members").fields
        }
        return cls(
            MappingProxyType(tokens),
            MappingProxyType(parts["oidc"]),
            MappingProxyType(parts["roles"]),
            MappingProxyType(members),
            MappingProxyType(parts["quotas"]),
        )

    @property
    def pending_prefixes(self) -> tuple[str, ...]:
        """The topics, or begins of names and ``*``, for which some quota limits what is pending."""
        return tuple(sorted({prefix for quota in self.quotas.values() for prefix in quota.pending}))

    def rights_of(self, principals: Iterable[str], own: Collection[str] = ()) -> Rights:
        """The rights of a caller that is all of these principals: its roles add up. ``own``: as of
        ``Rights``."""
        names = [name for principal in principals for name in self.members.get(principal, ())]
        roles = [self.roles[name] for name in dict.fromkeys(names)]
        topics = {
            right: [pattern for role in roles for pattern in role.topics.get(right, ())]
            for right in TOPIC_RIGHTS
        }
        return Rights(topics, (flag for role in roles for flag in role.flags), own)

    def grants(self, principal: str, operation: Operation, topic: str = "") -> list[str]:
        """The reasons for which a principal may do an operation, one for each role that allows it:
        ``orders: schedule = orders-*``. Empty: it may not."""
        reasons: list[str] = []
        right = operation.right
        if not self.rights_of([principal]).may(operation, topic):
            return reasons
        for name in dict.fromkeys(self.members.get(principal, ())):
            role = self.roles[name]
            if Right.GATEWAY in role.flags:
                reasons.append(f"{name}: {Right.GATEWAY.value}")
            elif right is Right.CONNECT:
                reasons.append(f"{name}: any member")
            elif right in role.flags:
                reasons.append(f"{name}: {right.value}")
            elif right in TOPIC_RIGHTS and topic:
                pattern = TopicList(role.topics.get(right, ())).pattern_of(topic)
                reasons += [] if pattern is None else [f"{name}: {right.value} = {pattern}"]
            elif role.topics.get(right):
                reasons.append(f"{name}: {right.value} = {' '.join(role.topics[right])}")
        if not reasons and right is Right.CONNECT and principal in self.members:
            reasons.append("any member")
        return reasons

    def quota_of(self, principal: str) -> Quota:
        return self.quotas.get(principal, self.quotas.get(DEFAULT, NO_QUOTA))


class _Table:
    """A table of the file, with its place for errors."""

    def __init__(self, file: str, place: str, fields: Any) -> None:
        self.file = file
        self.place = place
        if not isinstance(fields, dict):
            raise self.wrong("", "is no table", type(fields).__name__, f"Write [{place}] above it")
        self.fields: dict[str, Any] = fields

    def table(self, key: str) -> _Table:
        return _Table(self.file, self._at(key), self.fields.get(key, {}))

    def _at(self, key: str) -> str:
        shown = key if _NAME.fullmatch(key) and "." not in key else repr(key[:_SHOWN])
        return ".".join(filter(None, (self.place, shown if key else "")))

    def wrong(
        self, key: str, what: str, got: Any, remedy: str, limit: Any = None
    ) -> InvalidConfiguration:
        where = self._at(key)
        return InvalidConfiguration(
            f"{self.file}: {where} {what}",
            got=None if got is None else str(got)[:_SHOWN],
            limit=limit,
            remedy=remedy,
        )

    def check_keys(self, known: Sequence[str]) -> None:
        for key in self.fields:
            if key not in known:
                near = get_close_matches(key, known, 1, 0.5)
                remedy = f"Do you mean {near[0]!r}?" if near else "Leave it out"
                raise self.wrong(
                    key, "is no setting of a security file", None, remedy, ", ".join(known)
                )

    def get(self, key: str, kind: type[T], what: str, default: T | None = None) -> T:
        """The value of a key. Errors: ``InvalidConfiguration``: missing without a ``default``, or
        of another type than ``what`` says."""
        value = self.fields.get(key, default)
        if value is None:
            raise self.wrong(key, "is missing", None, f"Give {what}")
        if not isinstance(value, kind):
            raise self.wrong(key, f"is not {what}", type(value).__name__, f"Give {what}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.get(key, list, "a list of texts", [])
        for value in values:
            if not isinstance(value, str):
                raise self.wrong(
                    key, "has an entry that is no text", repr(value), "Put it in quotes"
                )
        return tuple(values)


def _token(name: str, table: _Table) -> TokenEntry:
    _check_name(name, table)
    table.check_keys(("sha256", "until"))
    digest = table.get("sha256", str, "the token's SHA-256 as 64 hexadecimal digits").lower()
    if not _DIGEST.fullmatch(digest):  # not shown, as it may be the token itself
        raise table.wrong(
            "sha256",
            "is no SHA-256",
            f"{len(digest)} characters",
            "Take the line that 'slotwheel token new' prints",
            "64 hexadecimal digits",
        )
    return TokenEntry(name, digest, _moment_ms(table, "until"))


def check_token_name(name: str) -> None:
    """Errors: ``InvalidConfiguration`` for a name that no token of a security file can have."""
    if not _NAME.fullmatch(name):
        raise InvalidConfiguration(
            "no usable name for a token",
            got=repr(name)[:_SHOWN],
            limit=_NAMES,
            remedy="Choose another name",
        )


def _check_name(name: str, table: _Table) -> None:
    if not _NAME.fullmatch(name):
        raise table.wrong("", "has no usable name", None, "Choose another name", _NAMES)


def _moment_ms(table: _Table, key: str) -> int | None:
    if key not in table.fields:
        return None
    value = table.fields[key]
    if not isinstance(value, datetime) or value.tzinfo is None:
        got = value if isinstance(value, date) else type(value).__name__
        remedy = "Write it without quotes: 2027-06-30T00:00:00Z"
        raise table.wrong(key, "is no time with a time zone", got, remedy)
    return int(value.timestamp() * 1000)


def _issuer(name: str, table: _Table) -> OidcIssuer:
    _check_name(name, table)
    table.check_keys(
        (
            *("issuer", "audience", "jwks", "algorithms", "groups-claim"),
            *("client-id", "client-secret", "scopes"),
        )
    )
    algorithms = table.texts("algorithms") or DEFAULT_ALGORITHMS
    for algorithm in algorithms:
        if algorithm not in _ALGORITHMS:
            remedy = "Name signatures with a public key: a secret that both share can sign, too"
            raise table.wrong(
                "algorithms", "has one that is not taken", algorithm, remedy, ", ".join(_ALGORITHMS)
            )
    client_id = table.get("client-id", str, "the client's name at the issuer", "")
    for key in ("client-secret", "scopes"):
        if key in table.fields and not client_id:
            raise table.wrong(key, "is for a login, and there is no client-id", None, "Give both")
    return OidcIssuer(
        name,
        _address(table, "issuer"),
        _text(table, "audience", "the audience that tokens for slotwheel have"),
        _address(table, "jwks") if "jwks" in table.fields else "",
        algorithms,
        table.get("groups-claim", str, "the name of a claim", "groups"),
        client_id,
        _secret(table, "client-secret"),
        _scopes(table),
    )


def _secret(table: _Table, key: str) -> SecretPlace | None:
    if key not in table.fields:
        return None
    text = table.get(key, str, "the place of the secret, file:PATH or env:NAME")
    try:
        return SecretPlace.parse(text)
    except InvalidConfiguration as error:  # the text is not shown, as it may be the secret itself
        raise table.wrong(key, "names no place", None, error.remedy, error.limit) from None


def _scopes(table: _Table) -> tuple[str, ...]:
    scopes = table.texts("scopes")
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise table.wrong("scopes", "has one that is no scope", scope, "Write each by itself")
    return tuple(dict.fromkeys((OPENID, *scopes)))


def _text(table: _Table, key: str, what: str) -> str:
    text = table.get(key, str, what)
    if not text.strip():
        raise table.wrong(key, "is empty", None, f"Give {what}")
    return text


def _address(table: _Table, key: str) -> str:
    text = _text(table, key, "an address, https://…")
    try:
        parts = urlsplit(text)
        host, secure = parts.hostname or "", parts.scheme == "https"
        nearby = parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        host, secure, nearby = "", False, False
    if not host or not (secure or nearby):
        remedy = "Give https://…: over http anybody on the way could answer with keys of their own"
        raise table.wrong(key, "is no address of an issuer", text, remedy)
    return text


def _role(name: str, table: _Table) -> AccessRole:
    _check_name(name, table)
    table.check_keys([right.value for right in (*TOPIC_RIGHTS, *FLAGS)])
    topics: dict[Right, tuple[str, ...]] = {}
    for right in TOPIC_RIGHTS:
        patterns = table.texts(right.value)
        for pattern in patterns:
            if not _is_pattern(pattern):
                raise table.wrong(right.value, "has an entry that is no topic", pattern, _PATTERN)
        if patterns:
            topics[right] = patterns
    flags = [flag for flag in FLAGS if table.get(flag.value, bool, "true or false", False)]
    return AccessRole(name, MappingProxyType(topics), frozenset(flags))


_PATTERN = "Write a topic's name, or the begin of names and a single * at the end"


def _is_pattern(text: str) -> bool:
    return text == "*" or is_topic(text.removesuffix("*"))


def _memberships(
    table: _Table, principal: str, roles: Mapping[str, AccessRole], tokens: set[str]
) -> tuple[str, ...]:
    kind, colon, rest = principal.partition(":")
    if kind not in KINDS or not colon or not rest or not principal.isprintable():
        limit = "token:NAME, cert:NAME, oidc:ISSUER:SUB, oidc:ISSUER:group:GROUP or delay:TOPIC"
        raise table.wrong(principal, "is no principal", None, "Write one of these in quotes", limit)
    if kind == "token" and principal not in tokens:
        raise table.wrong(
            principal,
            "is a member, and there is no such token",
            None,
            f"Add [tokens.{rest[:_SHOWN]}]",
        )
    if kind == "delay" and not is_topic(rest):
        raise table.wrong(
            principal, "names no topic", None, "Write delay: and the delay topic's name"
        )
    names = table.texts(principal)
    for name in names:
        if name not in roles:
            near = get_close_matches(name, roles, 1, 0.5)
            remedy = f"Do you mean {near[0]!r}?" if near else f"Add [roles.{name[:_SHOWN]}]"
            raise table.wrong(principal, "has a role that is not there", repr(name), remedy)
    return names


_QUOTAS = {
    "rows-per-second": "rows_per_second",
    "bytes-per-second": "bytes_per_second",
    "connections": "connections",
    "questions": "questions",
}
_PENDING = "pending"
_PENDING_LIMITS = {"rows": "rows", "bytes": "nbytes"}


def _quota(principal: str, table: _Table) -> Quota:
    table.check_keys((*_QUOTAS, _PENDING))
    kind = principal.partition(":")[0]
    if principal != DEFAULT and (kind not in KINDS or kind == principal):
        limit = f"a principal, as in [members], or {DEFAULT}"
        raise table.wrong("", "is a quota of nobody", None, "Name a principal in quotes", limit)
    pending = table.table(_PENDING)
    limits = {pattern: _pending(pending, pattern) for pattern in pending.fields}
    return Quota(**_numbers(table, _QUOTAS), pending=MappingProxyType(limits))


def _pending(pending: _Table, pattern: str) -> PendingLimit:
    if not _is_pattern(pattern):
        raise pending.wrong(pattern, "is no topic", None, _PATTERN)
    table = pending.table(pattern)
    table.check_keys(tuple(_PENDING_LIMITS))
    if not table.fields:
        raise table.wrong("", "limits nothing", None, "Give rows, bytes or both")
    return PendingLimit(**_numbers(table, _PENDING_LIMITS))


def _numbers(table: _Table, names: Mapping[str, str]) -> dict[str, int]:
    """The limits of a table, by the fields that they are for. ``names``: of the fields, by key."""
    limits: dict[str, int] = {}
    for key, name in names.items():
        if key in table.fields:
            number = table.get(key, int, "a whole number")
            if isinstance(number, bool) or not 0 < number < 1 << 53:
                remedy = "Give a whole number above 0, or leave it out"
                raise table.wrong(key, "is no limit", number, remedy)
            limits[name] = number
    return limits


def _reason(error: Exception) -> str:
    return str(error)[:_SHOWN] if isinstance(error, ValueError) else "it is nested too deeply"
