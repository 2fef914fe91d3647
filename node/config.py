"""The settings of a node, in one immutable value.

The limits of the engine are in ``WheelConfig``; here is the rest: the data directory, the address
that the node listens on, its peers, and the ways in and out. Each field declares its option, from
which the command line fills it in; nothing in this room reads the environment.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ..broker.sources import CHOICES, ranges
from ..delivery.semantics import AT_LEAST_ONCE, EXACTLY_ONCE, SEMANTICS
from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..policy.policyset import PolicySet
from ..replication.rules.group import Group
from ..replication.rules.timing import Timing
from ..security.clientcerts import CLIENT_CERTS, OFF
from ..wheel.checks import check_topic
from ..wheel.config import WheelConfig, setting, settings_of
from ..wheel.errors import InvalidConfiguration
from ..wheel.protocol import DEFAULT_ADDRESS, is_loopback, split_address
from .budget import MemoryLimit
from .logs import FORMATS, LEVELS, TEXT

EMBEDDED, KAFKA_PYTHON, CONFLUENT = SINKS = ("embedded", "kafka-python", "confluent")
REFUSE, ACCEPT = UNKNOWN_TOPICS = ("refuse", "accept")
DEFAULT_METRICS_ADDRESS = "127.0.0.1:7701"
_HELD_MAX = 64
_FLEET = re.compile(r"[A-Za-z0-9._-]{1,64}")
ELECTION_MS = (50, 60_000)
"""With a shorter one, a busy machine loses its mastership; a longer one is a mistake."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings of one node. Addresses are ``host:port``; port 0 takes any free one.

    Errors on construction: ``InvalidConfiguration``, ``InvalidMessage`` for a topic's name.
    """

    data: Path = setting("data", "The data directory; made if it is not there.", gateway="data")
    data_mode: str = setting("data-mode", default="0700", gateway="data_mode")
    """The permissions of the data directory, octal."""
    listen: str = setting(
        "listen",
        "Where clients connect; port 0 takes a free one. With peers the default is this node's own"
        " address among them, unless --peer-cert is given. Without --tls-cert and --client-ca it"
        " has no authentication: keep it on a trusted network.",
        "HOST:PORT",
        default=DEFAULT_ADDRESS,
    )
    tls_cert: Path | None = setting(
        "tls-cert",
        "Use TLS at --listen, with this certificate and those that prove it, in PEM. Files of"
        " certificates, keys and authorities may be exchanged while the node runs.",
        "FILE",
        default=None,
        kind="file",
        gateway="tls_cert",
    )
    """None: connections of clients are plain."""
    tls_key: Path | None = setting(
        "tls-key",
        "The key of --tls-cert, without a password, if it is not in the same file.",
        "FILE",
        default=None,
        kind="file",
        gateway="tls_key",
    )
    client_ca: Path | None = setting(
        "client-ca",
        "With --tls-cert: let only those clients connect that prove a certificate of these"
        " authorities.",
        "FILE",
        default=None,
        kind="file",
        gateway="client_ca",
    )
    """None: a client needs no certificate."""
    tls_ca: Path | None = setting(
        "tls-ca",
        "With --http and --tls-cert: the authorities that prove this node, and other peers, to the"
        " gateway beside it. [default: those that the system trusts]",
        "FILE",
        default=None,
        kind="file",
        gateway="tls_ca",
    )
    http_client_certs: str = setting(
        "http-client-certs",
        "With --http: ask HTTP clients for a certificate of --client-ca; a browser then asks its"
        " user.",
        choices=CLIENT_CERTS,
        default=OFF,
        gateway="client_certs",
    )
    security: Path | None = setting(
        "security",
        "Who may do what: a security file, mode 0600. Whoever connects proves itself then, by a"
        " token or a certificate. [default: whoever connects may do everything]",
        "FILE",
        default=None,
        kind="file",
        gateway="security",
    )
    access_log: str | None = setting(
        "access-log",
        "Write each login, denial, read and administrative action there, as a line of JSON.",
        "FILE|-",
        default=None,
        gateway="access_log",
    )
    token_file: Path | None = setting(
        "token-file",
        "With --security and --http: the token of the gateway, of a role with gateway = true.",
        "FILE",
        default=None,
        kind="file",
        gateway="token_file",
    )
    allow_insecure: bool = setting(
        "allow-insecure",
        "Listen on addresses that others can reach although there is no TLS or no --security:"
        " whoever reaches one may read, forge and delete messages.",
        default=False,
        gateway="allow_insecure",
    )
    metrics: str | None = setting(
        "metrics",
        "Where /metrics, /healthz and /readyz are served.",
        "HOST:PORT|off",
        default=DEFAULT_METRICS_ADDRESS,
    )
    """None: they are not served there."""
    http: str | None = setting(
        "http",
        "Start a gateway beside the node, which serves HTTP there: messages, Kafka's REST proxy,"
        " search, and metrics and health instead of --metrics. It has the node's --tls-cert and"
        " --security.",
        "HOST:PORT",
        default=None,
        gateway="listen",
    )
    http_names: tuple[str, ...] = setting(
        "http-name",
        "Let --http and --metrics answer requests for this name, too; may be repeated.",
        "NAME",
        default=(),
        kind="host name",
        gateway="names",
    )
    http_log: bool = setting(
        "http-log", "With --http: log each request.", default=False, gateway="http_log"
    )
    audit: bool = setting(
        "audit",
        "With --http: compare what was sent, stored, delivered and consumed.",
        default=False,
        gateway="audit",
    )
    node_id: str = setting(
        "node-id", "Name of this node. [default: the machine's name]", factory=socket.gethostname
    )
    peers: dict[str, str] = setting(
        "peer",
        "A peer of the group: node id, and where others reach it. Name all of them, this node too,"
        " the same on each.",
        "ID=HOST:PORT",
        factory=dict,
    )
    """Node id to ``host:port`` of all peers, this node among them; empty: it stands alone."""
    peer_listen: str | None = setting(
        "peer-listen",
        "With --peer-cert: where peers connect. [default: this node's address among the peers]",
        "HOST:PORT",
        default=None,
    )
    """None: where clients do."""
    peer_cert: Path | None = setting(
        "peer-cert",
        "Use TLS between peers, at an address of their own, with this certificate in PEM. Its name"
        " is the node id.",
        "FILE",
        default=None,
        kind="file",
    )
    peer_key: Path | None = setting(
        "peer-key",
        "The key of --peer-cert, without a password, if it is not in the same file.",
        "FILE",
        default=None,
        kind="file",
    )
    peer_ca: Path | None = setting(
        "peer-ca",
        "The authorities that prove the certificates of peers, and of nobody else.",
        "FILE",
        default=None,
        kind="file",
    )
    election_ms: int = setting(
        "election",
        "With peers: how long without a word from the master before another is elected."
        " Three quarters of it is the lease within which a master may deliver.",
        default=800,
    )
    sink: str = setting(
        "sink",
        "Where due messages go: topics in the data directory, or Kafka by either client.",
        default=EMBEDDED,
        choices=SINKS,
    )
    bootstrap: str | None = setting(
        "bootstrap", "Kafka's brokers.", "HOST:PORT,…", default=None, gateway="bootstrap"
    )
    """Needed by the Kafka sinks and for a delay topic."""
    kafka_settings: dict[str, str] = setting("kafka", factory=dict, gateway="kafka")
    """Further settings of the node's Kafka clients, in librdkafka's names."""
    delay_topics: tuple[str, ...] = setting(
        "delay-topic",
        "Take messages from this Kafka topic, too; may be repeated.",
        "TOPIC",
        default=(),
    )
    delay_partitions: tuple[int, ...] | None = setting(
        "delay-partitions",
        "The partitions of the delay topics that this node reads. [default: all]",
        "N,N-N,…",
        default=None,
        kind="partitions",
    )
    delay_fleet: str | None = setting(
        "delay-fleet",
        "Share the partitions of the delay topics with the other wheels of this fleet, by Kafka's"
        " consumer group of that name. [default: read them alone]",
        "NAME",
        default=None,
    )
    delay_from: str | None = setting(
        "delay-from",
        "Where to begin in a partition of which the data directory has no position: at the offset"
        " that the group has stored in Kafka, at the first record, or behind the last one."
        " [default: at the stored one; without it at the first record, if that cannot repeat"
        " anything]",
        default=None,
        choices=CHOICES,
    )
    dead_letter_topic: str = setting(
        "dead-letter-topic",
        "Where messages go that no topic takes or that have expired, with the reason.",
        "TOPIC",
        default=DEAD_LETTER_TOPIC,
        gateway="dead_letter_topic",
    )
    unknown_topics: str = setting(
        "unknown-topics",
        "With a Kafka sink, what to do with a message to a topic that Kafka does not have: refuse"
        " it when it is sent, or accept it. Once accepted, it becomes a dead letter if the topic"
        " is still missing when it is due.",
        default=REFUSE,
        choices=UNKNOWN_TOPICS,
    )
    delivery: str = setting(
        "delivery",
        "Whether a crash may repeat messages that are just leaving, lose them, or neither; the"
        " same on all peers.",
        default=AT_LEAST_ONCE,
        choices=SEMANTICS,
    )
    accept_repeats: bool = setting(
        "accept-repeats",
        "With exactly-once: begin although nobody knows which of the last messages have left.",
        default=False,
    )
    policies: PolicySet | None = setting(
        "policies",
        "A TOML file with levels, retry policies and routes: those of the group when this node"
        " becomes its master.",
        default=None,
        kind="file",
    )
    """None: the group keeps those that it has."""
    log_format: str = setting(
        "log-format",
        "One line an event on stderr, as text or as JSON.",
        default=TEXT,
        choices=FORMATS,
        gateway="log_format",
    )
    log_level: str = setting(
        "log-level",
        "The least important events that are logged.",
        default="info",
        choices=LEVELS,
        gateway="log_level",
    )
    trace_retain_ms: int = setting(
        "trace-retain",
        "Keep for so long which messages left, when and how, for `slotwheel search --id` and"
        " tracing; and with --http the events of the trace topic. [default: keep nothing]",
        "SPAN",
        default=0,
        kind="positive span",
        gateway="trace_retain_ms",
    )
    memory: MemoryLimit | None = setting(
        "memory",
        "How much memory the node and its gateway may use. Where that is less than they need,"
        " --tail-bytes, --tail-bytes-refuse, --window-bytes and --chunk-bytes have smaller"
        " defaults. [default: the limit of the process's control group, or the machine's memory]",
        "BYTES",
        default=None,
        kind="size",
    )
    wheel: WheelConfig = field(default_factory=WheelConfig)

    def __post_init__(self) -> None:
        check_address(self.listen, "--listen")
        if self.metrics is not None:
            check_address(self.metrics, "--metrics")
        if self.http is not None:
            check_address(self.http, "--http")
        for name, declared in settings_of(type(self)).items():
            chosen = getattr(self, name)
            if declared.choices and chosen not in (None, *declared.choices):
                raise InvalidConfiguration(
                    f"no such {declared.option}",
                    got=chosen,
                    limit=", ".join(declared.choices),
                    remedy=f"Choose another --{declared.option}",
                )
        if self.bootstrap is None and (self.to_kafka or self.delay_topics):
            raise InvalidConfiguration(
                f"the sink {self.sink!r} needs a Kafka to connect to"
                if self.to_kafka
                else "a delay topic needs a Kafka to read it from",
                remedy="Give --bootstrap HOST:PORT",
            )
        if self.kafka_settings and self.bootstrap is None:
            raise InvalidConfiguration(
                "settings of Kafka's clients are given, and no Kafka",
                got=", ".join(self.kafka_settings),
                remedy="Give --bootstrap HOST:PORT, and --sink kafka-python or --sink confluent",
            )
        if self.delivery == EXACTLY_ONCE and self.peers and not self.to_kafka:
            raise InvalidConfiguration(
                "exactly-once with peers needs a Kafka: embedded topics are each peer's own, and"
                " after a change of master nobody sees what the last one has delivered",
                got=f"--sink {self.sink} with {len(self.peers)} peers",
                remedy="Choose --sink confluent or kafka-python, a node without --peer, or"
                f" --delivery {AT_LEAST_ONCE}",
            )
        if self.delivery == EXACTLY_ONCE and self.wheel.held_topics_max > _HELD_MAX:
            raise InvalidConfiguration(
                "under exactly-once Kafka's mark has no room for so many held-back topics",
                got=self.wheel.held_topics_max,
                limit=_HELD_MAX,
                remedy="Lower --held-topics",
            )
        if self.accept_repeats and self.delivery != EXACTLY_ONCE:
            raise InvalidConfiguration(
                "only exactly-once asks whether repeats are accepted",
                got=f"--accept-repeats with --delivery {self.delivery}",
                remedy="Leave out --accept-repeats",
            )
        check_topic(self.dead_letter_topic)
        for topic in self.delay_topics:
            check_topic(topic)
            if topic == self.dead_letter_topic:
                raise InvalidConfiguration(
                    "the delay topic is the dead-letter topic, so bad records come back for ever",
                    got=topic,
                    remedy="Choose another --dead-letter-topic",
                )
        if any(one < 0 for one in self.delay_partitions or ()):
            raise InvalidConfiguration(
                "a partition's number is negative",
                got=self.delay_partitions,
                limit=0,
                remedy="Change --delay-partitions",
            )
        self._check_fleet()
        low, high = ELECTION_MS
        if not low <= self.election_ms <= high:
            raise InvalidConfiguration(
                "no usable time for an election",
                got=f"{self.election_ms} ms",
                limit=f"{low} to {high} ms",
                remedy="Change --election; a few times the slowest round trip between peers",
            )
        self._check_tls()
        self._check_security()
        if self.policies is not None:
            self.policies.check_horizon(self.wheel.horizon_ms)
        self.group()

    def _check_fleet(self) -> None:
        """Errors: ``InvalidConfiguration``."""
        fleet = self.delay_fleet
        if fleet is None:
            return
        if not _FLEET.fullmatch(fleet):
            raise InvalidConfiguration(
                "the fleet's name is not usable",
                got=repr(fleet),
                limit="1 to 64 letters, digits, '.', '_' and '-'",
                remedy="Choose another --delay-fleet",
            )
        if not self.delay_topics:
            raise InvalidConfiguration(
                "a fleet shares delay topics, and none is given",
                got=f"--delay-fleet {fleet}",
                remedy="Give --delay-topic, too, or leave --delay-fleet out",
            )
        if self.delay_partitions is not None:
            raise InvalidConfiguration(
                "the fleet's group says which partitions this wheel reads",
                got=f"--delay-fleet {fleet} and --delay-partitions {ranges(self.delay_partitions)}",
                remedy="Leave one of them out",
            )

    def _check_tls(self) -> None:
        """Errors: ``InvalidConfiguration`` for files of TLS that would not be used, and where a
        part of what the node says would go to anybody."""
        for option, path, of, needed in (
            ("tls-key", self.tls_key, "tls-cert", self.tls_cert),
            ("client-ca", self.client_ca, "tls-cert", self.tls_cert),
            ("tls-ca", self.tls_ca, "tls-cert", self.tls_cert),
            ("tls-ca", self.tls_ca, "http", self.http),
            ("peer-key", self.peer_key, "peer-cert", self.peer_cert),
            ("peer-ca", self.peer_ca, "peer-cert", self.peer_cert),
            ("peer-listen", self.peer_listen, "peer-cert", self.peer_cert),
            ("peer-cert", self.peer_cert, "peer-ca", self.peer_ca),
            ("peer-cert", self.peer_cert, "peer", self.peers or None),
        ):
            if path is not None and needed is None:
                raise InvalidConfiguration(
                    f"--{option} says nothing without --{of}",
                    got=str(path),
                    remedy=f"Give --{of}, too, or leave --{option} out",
                )
        if self.http_client_certs != OFF and (self.http is None or self.client_ca is None):
            raise InvalidConfiguration(
                "certificates of HTTP clients are asked for, and nobody could verify one",
                got=f"--http-client-certs {self.http_client_certs}",
                limit="with --http, --tls-cert and --client-ca",
                remedy="Give them, or leave --http-client-certs out",
            )
        if self.peers and self.tls_cert is not None and self.peer_cert is None:
            raise InvalidConfiguration(
                "clients use TLS, and peers do not",
                got="--tls-cert without --peer-cert",
                limit="TLS for both, each with its own authorities",
                remedy="Give --peer-cert, --peer-key and --peer-ca, too",
            )
        if self.peer_listen is not None:
            check_address(self.peer_listen, "--peer-listen")
            if self.peer_listen == self.listen:
                raise InvalidConfiguration(
                    "peers with TLS need an address of their own",
                    got=self.peer_listen,
                    limit="another one than --listen",
                    remedy="Change --listen or --peer-listen",
                )

    def _check_security(self) -> None:
        """Errors: ``InvalidConfiguration`` for settings with which strangers could come in, or a
        part of this node could not."""
        if self.security is None and self.token_file is not None:
            raise InvalidConfiguration(
                "a token is given, and nobody asks for it",
                got=f"--token-file {self.token_file}",
                remedy="Give --security, too, or leave it out",
            )
        if self.security is not None and self.peers and self.peer_cert is None:
            raise InvalidConfiguration(
                "callers have to prove who they are, and peers cannot",
                got="--security with --peer and without --peer-cert",
                remedy="Give --peer-cert, --peer-key and --peer-ca, too",
            )
        if self.security is not None and self.http is not None and self.token_file is None:
            raise InvalidConfiguration(
                "the gateway beside the node has nothing to prove itself with",
                got="--security with --http and without --token-file",
                remedy="Make a token for it with 'slotwheel token new', give its principal a role"
                " with gateway = true, and give --token-file",
            )
        if (exposed := self.exposed()) and not self.allow_insecure:
            raise InvalidConfiguration(
                f"strangers could reach this node: {exposed[0]}",
                got=", ".join(exposed[1:]) or None,
                remedy="Listen on 127.0.0.1; or give --tls-cert and --security; or, where the"
                " network keeps strangers away, --allow-insecure",
            )

    def exposed(self) -> list[str]:
        """A text for each address that other machines can reach though nobody has to prove there
        who it is, or others can read along. Metrics are meant to be read by everybody."""
        lacking = {"no --tls-cert": self.tls_cert is None, "no --security": self.security is None}
        addresses = {"--listen": (self.listen, lacking), "--http": (self.http, lacking)}
        if self.peers and self.peer_cert is None:
            own = self.peers.get(self.node_id)
            addresses["--peer"] = (own, {"no --peer-cert": True})
        texts = []
        for option, (address, lacks) in addresses.items():
            names = [name for name, lacking_here in lacks.items() if lacking_here]
            if address is not None and names:
                host, _ = split_address(address, to_listen=True)
                if not is_loopback(host):
                    texts.append(f"{option} {address} has {' and '.join(names)}")
        return texts

    @property
    def peers_at(self) -> str:
        """Where peers connect, with TLS: ``--peer-listen``, or this node's address among them."""
        return self.peer_listen or self.peers[self.node_id]

    @property
    def to_kafka(self) -> bool:
        """Whether due messages go to Kafka, and not to topics in the data directory."""
        return self.sink != EMBEDDED

    def group(self) -> Group | None:
        """The peers and their timing; None for a node that stands alone.

        Errors: ``InvalidConfiguration``.
        """
        if not self.peers:
            return None
        timing = Timing.of_promise(self.election_ms / 1000)
        return Group(self.node_id, self.peers, timing, self.delivery, self._clients_at)

    @property
    def _clients_at(self) -> str | None:
        """Where clients reach this node among peers: its own host's name among them, as that is one
        that others know, with the port for clients. None: where the peers do."""
        if self.peer_cert is None or self.node_id not in self.peers:
            return None
        _, port = split_address(self.listen, to_listen=True)
        return with_port(self.peers[self.node_id], port) if port else ""


def check_address(address: str, option: str) -> tuple[str, int]:
    """Host and port of ``host:port``. Errors: ``InvalidConfiguration``."""
    try:
        return split_address(address, to_listen=True)
    except ValueError:
        raise InvalidConfiguration(
            "not an address",
            got=repr(address),
            limit="host:port, [host]:port for IPv6; port 0 takes any free one",
            remedy=f"Change {option}",
        ) from None


def with_port(address: str, port: int) -> str:
    """The address with another port."""
    host, _ = split_address(address, to_listen=True)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
