"""The settings of a node, in one immutable value.

The limits of the engine are in ``WheelConfig``; here is the rest: the data directory, the address
that the node listens on, its peers, and the ways in and out. The command line fills it in; nothing
in this room reads the environment.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from ..delivery.semantics import AT_LEAST_ONCE, EXACTLY_ONCE, SEMANTICS
from ..intake.sources import CHOICES
from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..policy.policyset import PolicySet
from ..replication.rules.group import Group
from ..replication.rules.timing import Timing
from ..wheel.checks import check_topic
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration
from ..wheel.protocol import DEFAULT_ADDRESS, split_address
from .budget import MemoryLimit

EMBEDDED, KAFKA_PYTHON, CONFLUENT = SINKS = ("embedded", "kafka-python", "confluent")
REFUSE, ACCEPT = UNKNOWN_TOPICS = ("refuse", "accept")
DEFAULT_METRICS_ADDRESS = "127.0.0.1:7701"
_HELD_MAX = 64
ELECTION_MS = (50, 60_000)
"""With a shorter one, a busy machine loses its mastership; a longer one is a mistake."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings of one node. Addresses are ``host:port``; port 0 takes any free one.

    Errors on construction: ``InvalidConfiguration``, ``InvalidMessage`` for a topic's name.
    """

    data: Path
    """The data directory; created if it does not exist."""
    listen: str = DEFAULT_ADDRESS
    metrics: str | None = DEFAULT_METRICS_ADDRESS
    """Address of metrics and health; None: they are not served there."""
    http: str | None = None
    """Address of the gateway that is started beside this node; None: there is none."""
    http_names: tuple[str, ...] = ()
    """Further names that the gateway, and metrics and health, are called by."""
    http_log: bool = False
    """Whether the gateway logs each request."""
    audit: bool = False
    """Whether the gateway compares all tiers of this node."""
    log_format: str = "text"
    log_level: str = "info"
    """How the node logs, for the gateway to do the same."""
    node_id: str = field(default_factory=socket.gethostname)
    peers: dict[str, str] = field(default_factory=dict)
    """Node id to ``host:port`` of all peers, this node among them; empty: it stands alone."""
    election_ms: int = 800
    """How long without a message of the master until peers elect another, ms."""
    wheel: WheelConfig = field(default_factory=WheelConfig)
    memory: MemoryLimit | None = None
    """How much memory this node and its gateway may use; None: not known."""
    sink: str = EMBEDDED
    """The sink of due messages: one of ``SINKS``."""
    bootstrap: str | None = None
    """Kafka's ``host:port,…``; needed by the Kafka sinks and for a delay topic."""
    kafka_settings: dict[str, str] = field(default_factory=dict)
    """Further settings of the sink's Kafka client, in its own names."""
    delay_topics: tuple[str, ...] = ()
    """Kafka topics whose records are appended, too."""
    delay_partitions: tuple[int, ...] | None = None
    """The partitions of them that are read; None: all."""
    delay_from: str | None = None
    """Where the reading of a partition begins of which the data directory has no position: one of
    ``sources.CHOICES``; None: where that is certain."""
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    unknown_topics: str = REFUSE
    """What becomes of a message to a topic that Kafka does not have: one of ``UNKNOWN_TOPICS``."""
    delivery: str = AT_LEAST_ONCE
    """One of ``SEMANTICS``; all peers of a group have the same."""
    accept_repeats: bool = False
    """Begin exactly-once where nobody knows what has left."""
    trace_retain_ms: int = 0
    """How long it is kept which messages left, when and how, ms; 0: not at all."""
    data_mode: str = "0700"
    """The permissions of the data directory, for the gateway to keep, too."""
    policies: PolicySet | None = None
    """Levels, retry policies and routes for the group, while this node is master; None: those that
    it has."""

    def __post_init__(self) -> None:
        check_address(self.listen, "--listen")
        if self.metrics is not None:
            check_address(self.metrics, "--metrics")
        if self.http is not None:
            check_address(self.http, "--http")
        if self.sink not in SINKS:
            raise InvalidConfiguration(
                "no such sink",
                got=self.sink,
                limit=", ".join(SINKS),
                remedy="Choose another --sink",
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
        if self.delivery not in SEMANTICS:
            raise InvalidConfiguration(
                "no such delivery",
                got=self.delivery,
                limit=", ".join(SEMANTICS),
                remedy="Choose another --delivery",
            )
        if self.unknown_topics not in UNKNOWN_TOPICS:
            raise InvalidConfiguration(
                "no such choice for unknown topics",
                got=self.unknown_topics,
                limit=", ".join(UNKNOWN_TOPICS),
                remedy="Change --unknown-topics",
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
        if self.delay_from not in (None, *CHOICES):
            raise InvalidConfiguration(
                "no such choice of where to begin reading",
                got=self.delay_from,
                limit=", ".join(CHOICES),
                remedy="Change --delay-from",
            )
        if any(one < 0 for one in self.delay_partitions or ()):
            raise InvalidConfiguration(
                "a partition's number is negative",
                got=self.delay_partitions,
                limit=0,
                remedy="Change --delay-partitions",
            )
        low, high = ELECTION_MS
        if not low <= self.election_ms <= high:
            raise InvalidConfiguration(
                "no usable time for an election",
                got=f"{self.election_ms} ms",
                limit=f"{low} to {high} ms",
                remedy="Change --election; a few times the slowest round trip between peers",
            )
        if self.policies is not None:
            self.policies.check_horizon(self.wheel.horizon_ms)
        self.group()

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
        promise_s = self.election_ms / 1000
        timing = Timing(
            heartbeat_s=promise_s / 10,
            lease_s=promise_s * 3 / 4,
            promise_s=promise_s,
            election_spread_s=promise_s / 2,
        )
        return Group(self.node_id, self.peers, timing, self.delivery)


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
