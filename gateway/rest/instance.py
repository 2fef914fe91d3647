"""A consumer instance, by which one client reads, one request after the other.

Rules
- Requests come one at a time, each with its ``lock``; their calls run in threads of a pool, each
  with ``calling``.
- A request that is given up lets go of ``lock`` while its call goes on. So whoever ends an instance
  waits for ``calling``: a client of Kafka that is closed by one thread while another one polls may
  commit what nobody has had, or never end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...consumer.message import SourcePartition
from ...consumer.source import PositionedSource, SourceAway
from ...security.rights import EVERYTHING, Operation, Rights
from ..errors import HttpError
from .cluster import Cluster
from .errors import illegal_state, no_topic
from .holdings import Holdings
from .media import EmbeddedFormat

_log = logging.getLogger("slotwheel.gateway")
RECORDS_AT_ONCE = 500
JOIN_S = 5.0
"""A request that needs a partition waits for so long, s, until the group has shared them out."""
PATTERN_EVERY_S = 5.0
"""A pattern is matched with all topics again after so long, s."""


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """The settings that the client gave when it made the instance."""

    name: str
    embedded: EmbeddedFormat
    latest: bool
    auto_commit: bool
    min_bytes: int
    timeout_ms: int


class ConsumerInstance:
    """A consumer instance. A request must have its ``lock``, and a thread that calls it
    ``calling``. ``owner``: the principal whose it is. ``used``: when the last request was, by the
    loop's clock. ``ended``: no more calls are allowed."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        settings: InstanceSettings,
        now: float,
        owner: str = "",
    ) -> None:
        self.owner = owner
        self._rights = EVERYTHING
        self.group, self.settings = group, settings
        self.lock = asyncio.Lock()
        self.calling = threading.Lock()
        self.used = now
        self.ended = False
        self._cluster = cluster
        self._source: PositionedSource | None = None
        self._topics: list[str] = []
        self._pattern: str | None = None
        self._matched_at = 0.0
        self._manual = False
        self.holdings = Holdings(auto_commit=settings.auto_commit)

    # Rights

    def limit_to(self, rights: Rights) -> None:
        """Go by these rights of its owner, which may be others than at the last request. Errors:
        ``Forbidden``: one of its topics is not among them any more, so it can only be deleted."""
        self._rights = rights
        if rights.is_unlimited:
            return
        for topic in [*self._topics, *(held.topic for held in self.holdings.partitions)]:
            rights.demand(Operation.CONSUME, topic)

    def check_topic(self, topic: str, place: str = "") -> None:
        """Errors: 40401: a topic that the owner may not consume looks as if there were none."""
        if not self._rights.may(Operation.CONSUME, topic):
            raise no_topic(topic, place)

    def _matching(self, pattern: str) -> list[str]:
        return [
            topic
            for topic in matching(pattern, self._cluster.topics())
            if self._rights.may(Operation.CONSUME, topic)
        ]

    # Subscription and assignment

    def subscribe(self, topics: Sequence[str]) -> None:
        self._check_kind("topics")
        self._open(topics)
        self._topics = list(topics)

    def subscribe_to_pattern(self, pattern: str) -> None:
        self._check_kind("pattern")
        topics = self._matching(pattern)
        self._open(topics)
        self._topics, self._pattern, self._matched_at = topics, pattern, time.monotonic()

    def assign(self, partitions: Sequence[SourcePartition]) -> None:
        self._check_kind("partitions")
        self._close_source()
        self._source = self._cluster.open_source(
            self.group, self.holdings, partitions=partitions, latest=self.settings.latest
        )
        self._manual = True

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        self._close_source()
        self._topics, self._pattern, self._manual = [], None, False

    def _check_kind(self, required: str) -> None:
        """Errors: 40903."""
        if self._manual:
            kind = "partitions"
        elif self._pattern is not None:
            kind = "pattern"
        else:
            kind = "topics" if self._topics else required
        if kind != required:
            raise illegal_state(
                f"the consumer has {kind}; subscription to topics, partitions and pattern are"
                " mutually exclusive",
                "DELETE its subscription first",
            )

    def _open(self, topics: Sequence[str]) -> None:
        if self._source is None:
            if topics:
                self._source = self._cluster.open_source(
                    self.group, self.holdings, topics=topics, latest=self.settings.latest
                )
            return
        if topics:
            self._source.subscribe(topics)
        else:
            self._close_source()

    @property
    def topics(self) -> list[str]:
        """The topics of its subscription."""
        return list(self._topics)

    # Records

    def fetch(self, timeout_s: float) -> None:
        """Wait for records, unless some are waiting. Errors: ``SourceAway``, ``ConsumerFailed``."""
        self._match_again()
        source = self._source
        if source is None and self._pattern is None:
            raise illegal_state(
                "the consumer is not subscribed to any topics or assigned any partitions",
                "POST its subscription or its assignments first",
            )
        if source is None:
            time.sleep(timeout_s)
            return
        if not self.holdings.more_waits:
            self.holdings.keep(source.poll(timeout_s, RECORDS_AT_ONCE), source.seen)

    def _match_again(self) -> None:
        if self._pattern is None or time.monotonic() - self._matched_at < PATTERN_EVERY_S:
            return
        self._matched_at = time.monotonic()
        topics = self._matching(self._pattern)
        if topics != self._topics:
            self._open(topics)
            self._topics = topics

    # Positions

    def seek(self, positions: Mapping[SourcePartition, int]) -> None:
        """Read on from ``positions``. Errors: 40903 for a partition that it does not have;
        ``SourceAway``."""
        source = self._reading()
        self._wait_until_held(source, positions)
        source.seek(positions)
        self.holdings.sought(positions)

    def _wait_until_held(
        self, source: PositionedSource, partitions: Collection[SourcePartition]
    ) -> None:
        deadline = time.monotonic() + JOIN_S
        while missing := self.holdings.missing(partitions):
            if self._manual or time.monotonic() > deadline or self.ended:
                topic, partition = missing[0]
                raise illegal_state(
                    f"no current assignment for partition {topic}-{partition}",
                    "GET its assignments to see which it has",
                )
            self.holdings.keep(source.poll(0.1, RECORDS_AT_ONCE), source.seen)

    def commit(self, positions: Mapping[SourcePartition, int] | None = None) -> None:
        """Commit positions; by default those behind all records that answers had. Errors:
        ``SourceAway``."""
        source = self._reading()
        new = self.holdings.uncommitted() if positions is None else dict(positions)
        if new:
            source.commit(new)
            self.holdings.committed(new)

    def commit_by_itself(self) -> None:
        """Commit the records that answers had, if ``auto_commit`` is set."""
        if not self.settings.auto_commit or self._source is None:
            return
        try:
            self.commit()
        except SourceAway as error:  # the next commit has these positions, too
            _log.warning("consumer %s/%s: %s", self.group, self.settings.name, error)

    def positions_of(self, partitions: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        """The committed positions of the group. Errors: ``SourceAway``."""
        return self._reading().committed(partitions)

    def _reading(self) -> PositionedSource:
        if self._source is None:
            raise illegal_state(
                "the consumer has no partitions", "POST its subscription or its assignments first"
            )
        return self._source

    def close(self) -> None:
        self._close_source()

    def _close_source(self) -> None:
        self.commit_by_itself()
        source, self._source = self._source, None
        if source is not None:
            source.close()
        self.holdings.clear()


def matching(pattern: str, topics: Sequence[str]) -> list[str]:
    """The topics whose whole names match. The pattern may be an attacker's, so it is matched by
    RE2, whose time is linear in the name. Errors: ``HttpError`` 422."""
    names = pa.array([*topics, ""], pa.utf8())  # without a name, a bad pattern would be no error
    try:
        mask = pc.match_substring_regex(names, pattern=f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise HttpError(
            422,
            f"unusable pattern: {error}",
            place="$.topic_pattern",
            got=pattern,
            limit="a regular expression as RE2 has them",
        ) from None
    matched: list[str] = names.filter(mask).to_pylist()
    return [name for name in matched if name]
