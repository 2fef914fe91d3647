"""Topics of Kafka as something that is made, changed and deleted: what routes ask for, whatever
client of Kafka carries it out (``rest/kafka_administration.py``).

Rules
- Calls wait, for a bounded time, and come from any thread.
- Errors are ``HttpError`` with the codes of Kafka's REST proxy, version 3: what Kafka refuses is
  ``REFUSED``, and the same request fails again; what it could not do now is 503, and a client may
  send the request again.
- A call returns when what it did can be seen, so that a program may send to the topic that it has
  just made, and a topic that was deleted is not found any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

REFUSED = 40002
"""With status 400: Kafka has looked at the request and does not do it."""
KEPT_OUT = 40301
"""With status 403: Kafka does not let the gateway do it."""
NOT_FOUND = 40403
"""With status 404: there is no such topic."""
PARTITIONS_MAX = 10_000
"""Kafka makes no more at once. Of an increase by a million it does not check that, and its
controller is busy with it for so long that the whole cluster stands."""
REPLICAS_MAX = 0x7FFF


@dataclass(frozen=True, slots=True)
class AdministeredTopic:
    """A topic. ``replicas``: of each partition. A number is 0 where Kafka does not tell it.
    ``is_internal``: it belongs to Kafka itself."""

    name: str
    partitions: int
    replicas: int
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A config of a topic. ``value``: None for one that Kafka keeps secret. ``source``: where the
    value comes from, in Kafka's words, such as ``DYNAMIC_TOPIC_CONFIG``."""

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        """False when the topic itself has the value, and not its broker or Kafka."""
        return self.source != "DYNAMIC_TOPIC_CONFIG"


class TopicAdministration(Protocol):
    """Administers the topics of one Kafka. ``validate_only``: Kafka judges the request, and does
    nothing."""

    def cluster_id(self) -> str:
        """The id of the Kafka, by which it is told from others."""

    def topics(self) -> list[AdministeredTopic]:
        """All topics by name, but for those that belong to Kafka itself."""

    def topic(self, name: str) -> AdministeredTopic:
        """Errors: ``NOT_FOUND``."""

    def create(
        self,
        name: str,
        partitions: int | None,
        replicas: int | None,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool,
    ) -> AdministeredTopic:
        """Make a topic; None: as many as the brokers' default. Errors: ``REFUSED``: it exists, or
        Kafka makes no such topic."""

    def grow(self, name: str, partitions: int) -> AdministeredTopic:
        """Let a topic have so many partitions. Nothing happens if it has them, so that the request
        may be sent again. Errors: ``REFUSED``: it has more; ``NOT_FOUND``."""

    def configs(self, name: str) -> list[TopicConfig]:
        """All configs of a topic, by name. Errors: ``NOT_FOUND``."""

    def alter(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Give configs of a topic other values, all or none; None: the default again. Errors:
        ``REFUSED``: a config that Kafka does not know, or a value that it does not take;
        ``NOT_FOUND``."""

    def delete(self, name: str) -> None:
        """Delete a topic and all that is in it. Errors: ``NOT_FOUND``."""
