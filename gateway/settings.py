"""What a gateway is told when it starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..account.limits import INTERVAL_MS
from ..client.addresses import Nodes, split, without_scheme
from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..security.clientcerts import CLIENT_CERTS, OFF, REQUIRED
from ..security.tls import Tls, TlsFiles, check_pair
from ..trace.chains.lookup import STORE_DIRECTORY
from ..trace.events import TRACE_TOPIC
from ..wheel.config import WheelConfig, setting
from ..wheel.errors import InvalidConfiguration
from ..wheel.protocol import DEFAULT_ADDRESS, is_loopback, split_address

DEFAULT_LISTEN = "127.0.0.1:8082"
log = logging.getLogger("slotwheel.gateway")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits are in bytes and seconds, spans of the command line in ms.

    - ``names``: ``gateway/sites.py`` says which hosts may be named anyway.
    - ``data``: None: there is no search. ``bootstrap``: None: topics of the REST proxy, and the
      trace topic, are the embedded ones in ``data``.
    - ``trace_store``: None: ``trace/`` in ``data``. ``trace_retain_ms``: 0: no events are stored.
    - ``waiting_bytes_max``: of all messages that are not stored yet; more are answered 429.
    - ``instances_max``: of the REST proxy's consumers; more are answered 429. ``instance_idle_s``:
      after so long without a request one ends.
    """

    listen: str = setting(
        "listen",
        "Where HTTP is served; port 0 takes a free one. An address that other machines can reach"
        " needs --tls-cert and --security.",
        "HOST:PORT",
        default=DEFAULT_LISTEN,
    )
    tls_cert: Path | None = setting(
        "tls-cert",
        "Serve HTTPS with this certificate (PEM, with those between it and its authority).",
        "FILE",
        default=None,
        kind="file",
    )
    tls_key: Path | None = setting(
        "tls-key",
        "Its key, if that is in a file of its own.",
        "FILE",
        default=None,
        kind="file",
    )
    client_ca: Path | None = setting(
        "client-ca",
        "Authorities that have signed the certificates of clients.",
        "FILE",
        default=None,
        kind="file",
    )
    client_certs: str = setting(
        "http-client-certs",
        "Ask HTTP clients for a certificate of --client-ca; a browser then asks its user.",
        choices=CLIENT_CERTS,
        default=OFF,
    )
    security: Path | None = setting(
        "security",
        "Who may do what: a security file. Without it everybody may do everything.",
        "FILE",
        default=None,
        kind="file",
    )
    allow_insecure: bool = setting(
        "allow-insecure",
        "Listen on an address that others can reach although there is no TLS or no --security:"
        " whoever reaches it may read, forge and delete messages.",
        default=False,
    )
    names: tuple[str, ...] = setting(
        "http-name",
        "Take requests for this name, too (*.example.com: for all below that one); may be"
        " repeated. Names that a page of another site could have are refused otherwise.",
        "NAME",
        default=(),
        kind="host name",
    )
    nodes: tuple[str, ...] = setting(
        "node",
        "The node; of a group of peers all of them, the one beside the gateway first.",
        "HOST:PORT,…",
        default=(DEFAULT_ADDRESS,),
        kind="nodes",
        shown=DEFAULT_ADDRESS,
    )
    fleet: Path | None = setting(
        "fleet",
        "Serve for all wheels of a fleet, which this file names, in the place of --node. Searches"
        " ask the gateways in it.",
        "FILE",
        default=None,
        kind="file",
    )
    tls_ca: Path | None = setting(
        "tls-ca",
        "With --node tls://…: the authorities that prove the nodes' certificates, in PEM. [default:"
        " those that the system trusts]",
        "FILE",
        default=None,
        kind="file",
    )
    token_file: Path | None = setting(
        "token-file",
        "The token by which the gateway proves itself to the nodes, of a role with gateway = true.",
        "FILE",
        default=None,
        kind="file",
    )
    data: Path | None = setting(
        "data",
        "The data directory of the node beside the gateway, for search and embedded topics."
        " Without it search, and what is known of a message, are off.",
        default=None,
    )
    data_mode: str = setting("data-mode", default="0700")
    bootstrap: str | None = setting(
        "bootstrap", "Kafka's brokers, for the REST proxy.", "HOST:PORT,…", default=None
    )
    kafka: Mapping[str, str] = setting("kafka", factory=dict)
    dead_letter_topic: str = setting(
        "dead-letter-topic",
        "The dead-letter topic of the node.",
        "TOPIC",
        default=DEAD_LETTER_TOPIC,
    )
    trace_retain_ms: int = setting(
        "trace-retain",
        "Store the events of the trace topic, for so long, for `slotwheel trace` and /v1/trace."
        " [default: store none]",
        "SPAN",
        default=0,
        kind="positive span",
    )
    trace_topic: str = setting(
        "trace-topic",
        "Where clients and consumers send events: a topic of Kafka with --bootstrap, or else an"
        " embedded one.",
        "TOPIC",
        default=TRACE_TOPIC,
    )
    trace_store: Path | None = setting(
        "trace-store",
        "Where they are stored, if it is not trace/ in the data directory.",
        default=None,
    )
    audit: bool = setting(
        "audit", "Compare all tiers of the node beside it: /v1/audit, metrics.", default=False
    )
    audit_interval_ms: int = setting(
        "audit-interval",
        "With --audit: as of 'slotwheel audit --interval'.",
        default=INTERVAL_MS,
        kind="positive span",
        shown="10s",
    )
    audit_ahead_ms: int = setting(
        "audit-ahead",
        "With --audit: as of 'slotwheel audit --ahead'; a node tells its own.",
        default=WheelConfig().short_horizon_ms,
        kind="positive span",
        shown="2h",
    )
    audit_others: tuple[str, ...] = setting(
        "others",
        "With --audit: as of 'slotwheel audit --others'; may be repeated.",
        "TOPIC",
        default=(),
    )
    http_log: bool = setting("http-log", "Log each request.", default=False)
    access_log: str | None = setting(
        "access-log",
        "With --security: a line of JSON for each denial, read and administrative action; -:"
        " standard output.",
        "FILE|-",
        default=None,
    )
    log_format: str = setting(
        "log-format", "As of 'slotwheel node'.", default="text", kind="log format"
    )
    log_level: str = setting(
        "log-level", "As of 'slotwheel node'.", default="info", kind="log level"
    )
    connections_max: int = 10_000
    body_bytes_max: int = 8 << 20
    header_bytes_max: int = 16 << 10
    receive_s: float = 30.0
    """How long a request may take to arrive, and an answer to be taken."""
    idle_s: float = 75.0
    """How long a connection may be quiet between two requests."""
    answer_s: float = 30.0
    """How long a message is tried before its request is answered 503."""
    letters_s: float = 20.0
    """How long dead letters are counted for one answer."""
    waiting_bytes_max: int = 64 << 20
    instances_max: int = 100
    instance_idle_s: float = 300.0

    @property
    def at_nodes(self) -> Nodes:
        """The way to the nodes."""
        return self.way_to(self.nodes)

    def way_to(self, addresses: str | Sequence[str]) -> Nodes:
        """The way to nodes at ``addresses``. With TLS the gateway's own certificate is that of its
        port, too: whoever calls by it is the same."""
        is_secure, _ = without_scheme(split(addresses))
        return Nodes(addresses, self.calling if is_secure else None, self.token)

    @property
    def calling(self) -> Tls:
        """The files by which it calls others with TLS."""
        return Tls(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def token(self) -> str | None:
        """The place of the token by which it calls others."""
        return None if self.token_file is None else f"file:{self.token_file}"

    def __post_init__(self) -> None:
        if self.fleet is not None and self.data is not None:
            raise InvalidConfiguration(
                "a data directory is that of one wheel",
                got="--fleet and --data",
                limit="one of them",
                remedy="Leave --data out: the gateways that the fleet's file names search",
            )
        if self.fleet is not None and self.audit:
            raise InvalidConfiguration(
                "an audit compares the tiers of one wheel",
                got="--fleet and --audit",
                limit="one of them",
                remedy="Give --audit to the wheels' own gateways, and ask for one: wheel=NAME",
            )
        if self.trace_retain_ms and self.store is None:
            raise InvalidConfiguration(
                "nowhere to store trace events",
                remedy="Give --trace-store, or the --data directory of the node",
            )
        if self.trace_retain_ms and self.data is None and self.bootstrap is None:
            raise InvalidConfiguration(
                "nowhere to read trace events from",
                remedy="Give --bootstrap, or the --data directory of the node",
            )
        for address in (self.listen, *without_scheme(self.nodes)[1]):
            try:
                split_address(address, to_listen=address == self.listen)
            except ValueError as error:
                raise InvalidConfiguration(
                    f"unusable address: {error}",
                    got=repr(address)[:100],
                    limit="host:port",
                    remedy=f"Give an address like {DEFAULT_LISTEN}",
                ) from None

        self._check_tls()

    @property
    def exposed(self) -> str:
        """What other machines could misuse, where the port is neither private nor secured; empty:
        nothing."""
        host, _ = split_address(self.listen, to_listen=True)
        lacking = {"--tls-cert": self.tls_cert, "--security": self.security}
        names = [name for name, value in lacking.items() if value is None]
        if not names or is_loopback(host):
            return ""
        return f"--listen {self.listen} has no {' and no '.join(names)}"

    def _check_tls(self) -> None:
        if self.exposed and not self.allow_insecure:
            raise InvalidConfiguration(
                f"strangers could reach this gateway: {self.exposed}",
                remedy="Listen on 127.0.0.1; or give --tls-cert and --security; or, where the"
                " network keeps strangers away, --allow-insecure",
            )
        check_pair(self.tls_cert, self.tls_key, "--tls")
        if self.client_certs == OFF:
            return
        if self.tls_cert is None or self.client_ca is None:
            raise InvalidConfiguration(
                "certificates of clients are asked for, and cannot be verified",
                got=f"--http-client-certs {self.client_certs}",
                limit="with --tls-cert and --client-ca",
                remedy="Give both, or leave out --http-client-certs",
            )

    def tls_files(self) -> TlsFiles | None:
        """The certificate of the port; None: it has no TLS. Errors: ``InvalidConfiguration``."""
        if self.tls_cert is None:
            return None
        authorities = None if self.client_certs == OFF else self.client_ca
        return TlsFiles(
            Tls(authorities, self.tls_cert, self.tls_key),
            accepts=True,
            requires_certificate=self.client_certs == REQUIRED,
            alarm=lambda error: log.warning("the old files stay in use: %s", error),
        )

    @property
    def store(self) -> Path | None:
        """Where trace events are stored."""
        if self.trace_store is not None or self.data is None:
            return self.trace_store
        return self.data / STORE_DIRECTORY
