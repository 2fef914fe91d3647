"""What a gateway is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..audit.sums import INTERVAL_MS
from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..trace.chains.lookup import STORE_DIRECTORY
from ..trace.events import TRACE_TOPIC
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidConfiguration
from ..wheel.protocol import DEFAULT_ADDRESS, split_address

DEFAULT_LISTEN = "127.0.0.1:8082"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits are in bytes and seconds.

    - ``names``: of hosts that requests may name besides those that are allowed anyway
      (``gateway/sites.py``).
    - ``nodes``: the addresses of a group's nodes; requests go to its master.
    - ``data``: the data directory of the node beside it, for search; None: there is no search.
    - ``bootstrap``: Kafka's brokers, for topics of the REST proxy; None: topics are the embedded
      ones in ``data``.
    - ``dead_letter_topic``: that of the node, where dead letters are looked for.
    - ``trace_retain_ms``: how long trace events are stored after their arrival; 0: none are stored.
      ``trace_topic``: where they come from, in Kafka or embedded. ``trace_store``: the directory;
      None: ``trace/`` in ``data``.
    - ``audit``: compare the tiers of the node beside it, in buckets of ``audit_interval_ms``;
      messages are due ``audit_ahead_ms`` ahead at most.
      ``audit_others``: topics that programs without an auditor send to, too.
    - ``waiting_bytes_max``: of all messages that are not stored yet; more are answered 429.
    - ``instances_max``: of the REST proxy's consumers; more are answered 429. ``instance_idle_s``:
      after so long without a request one ends.
    """

    listen: str = DEFAULT_LISTEN
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = (DEFAULT_ADDRESS,)
    data: Path | None = None
    bootstrap: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)
    dead_letter_topic: str = DEAD_LETTER_TOPIC
    trace_retain_ms: int = 0
    trace_topic: str = TRACE_TOPIC
    trace_store: Path | None = None
    audit: bool = False
    audit_interval_ms: int = INTERVAL_MS
    audit_ahead_ms: int = WheelConfig().horizon_ms
    audit_others: tuple[str, ...] = ()
    access_log: bool = False
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

    def __post_init__(self) -> None:
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
        for address in (self.listen, *self.nodes):
            try:
                split_address(address, to_listen=address == self.listen)
            except ValueError as error:
                raise InvalidConfiguration(
                    f"unusable address: {error}",
                    got=repr(address)[:100],
                    limit="host:port",
                    remedy=f"Give an address like {DEFAULT_LISTEN}",
                ) from None

    @property
    def store(self) -> Path | None:
        """Where trace events are stored."""
        if self.trace_store is not None or self.data is None:
            return self.trace_store
        return self.data / STORE_DIRECTORY
