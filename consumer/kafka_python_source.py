"""A group's subscription by kafka-python.

The client's own thread runs its callbacks, where a call that waits is refused; so positions of
revoked partitions are committed by awaiting there.

A partition that a member has both before and after a rebalance counts as never revoked, as the
client goes on reading where it was; unless another member may have had it in between. The number of
the generation does not show that: it may grow by two for a member that is alone in its group, if
that joins again before it has heard of the last time. The group's position shows it: if it is not
as this member has left it, another one has been there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

from ..broker.header_names import missing_codec, read_leniently
from ..broker.limits import within
from ..broker.settings import ClientKind, for_kafka_python
from .making import make_by_kafka_python, no_brokers
from .message import Received, SourcePartition
from .source import (
    CLOSE_S,
    COMMIT_S,
    Assignment,
    ConsumerFailed,
    PositionedSource,
    SourceAway,
    no_topic,
    refuse_cooperative,
)

_log = logging.getLogger("slotwheel.consumer")
_BOOTSTRAP_S = 5.0
_CLOSE_MS = int(CLOSE_S * 1000)
_NO_MEMBER = (
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.CommitFailedError,
)


class KafkaPythonSource(PositionedSource):
    """A ``Source`` of Kafka. Errors on construction: ``InvalidConfiguration`` for a topic that does
    not exist, ``NodeUnreachable``."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        assignment: Assignment,
        *,
        create: Sequence[str] = (),
        needed: Sequence[str] = (),
        partitions: Sequence[SourcePartition] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Read ``topics`` as a member of ``group``; or only ``partitions``, without being a member:
        positions are kept as the group's all the same. ``create``: topics to make if they do not
        exist; ``needed``: further topics that must exist; ``extra``: settings of the client."""
        read_leniently()
        settings = extra or {}
        self._positions: dict[SourcePartition, int] = {}
        """The client's positions as of the last poll."""
        common: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "client_id": "slotwheel-consumer",
            "bootstrap_timeout_ms": int(_BOOTSTRAP_S * 1000),
            "reconnect_backoff_max_ms": 1000,
        }
        config: dict[str, Any] = common | {
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",  # it also asks for stable offsets
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            # A fetch of a partition without new records makes other fetches wait so long.
            "fetch_max_wait_ms": 50,
            "max_partition_fetch_bytes": 4 << 20,
        }
        config |= for_kafka_python(settings, ClientKind.CONSUMER)
        refuse_cooperative(
            strategy.name for strategy in config.get("partition_assignment_strategy", ())
        )
        config |= {"group_id": group, "enable_auto_commit": False}
        try:
            make_by_kafka_python(common, settings, create)
            self._consumer = KafkaConsumer(**config)
            try:
                existing = self._consumer.topics()
                if missing := [name for name in (*topics, *needed) if name not in existing]:
                    raise no_topic(missing, list(existing))
                self._listener = _Listener(self._consumer, assignment)
                if partitions:
                    self._consumer.assign([TopicPartition(*partition) for partition in partitions])
                    self._listener.look()
                else:
                    self.subscribe(topics)
            except BaseException:
                self._consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)
                raise
        except (kafka_errors.KafkaError, OSError) as error:
            raise no_brokers(bootstrap, settings, error) from error

    def subscribe(self, topics: Sequence[str]) -> None:
        try:
            self._consumer.subscribe(list(topics), listener=self._listener)
        except (kafka_errors.KafkaError, OSError) as error:
            raise _meaning(error) from error

    def poll(self, timeout_s: float, count: int) -> list[Received]:
        try:
            polled = self._consumer.poll(int(timeout_s * 1000), max_records=max(1, count))
        except (kafka_errors.KafkaError, OSError) as error:
            self.seen = {}
            raise _meaning(error) from error
        self._listener.look()
        self.seen = {SourcePartition(*part): records[-1].offset for part, records in polled.items()}
        self.seen |= self._passed()
        unwanted = self.unwanted
        return [
            Received(
                record.topic,
                record.partition,
                record.offset,
                record.key,
                record.value,
                record.headers,
                record.timestamp,
            )
            for records in polled.values()
            for record in records
            if unwanted is None or not unwanted(record.topic, record.headers)
        ]

    def _passed(self) -> dict[SourcePartition, int]:
        """The last offset of each partition that the client has passed without a record: a mark of
        a transaction, or records of one that was aborted."""
        passed = {}
        for part, state in [*self._consumer._subscription.assignment.items()]:
            partition = SourcePartition(*part)
            position = state.position.offset if state.position else 0
            if position and position != self._positions.get(
                partition, self._listener.stored.get(partition)
            ):
                passed[partition] = position - 1
            self._positions[partition] = position
        return passed

    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        try:
            self._consumer.commit(offsets_of(positions), timeout_ms=int(COMMIT_S * 1000))
        except _NO_MEMBER as error:
            raise SourceAway(f"not committed: {error}") from error
        except (kafka_errors.KafkaError, OSError) as error:
            raise _meaning(error) from error
        self.stored(positions)

    def stored(self, positions: Mapping[SourcePartition, int]) -> None:
        self._listener.stored |= positions

    def hold(self, partitions: Collection[SourcePartition]) -> None:
        # Another thread may revoke a partition meanwhile: that is no error.
        held = {TopicPartition(*partition) for partition in partitions}
        held &= self._consumer.assignment()
        paused = set(self._consumer.paused())
        for partition in held - paused:
            with suppress(KeyError):
                self._consumer.pause(partition)
        for partition in paused - held:
            with suppress(KeyError):
                self._consumer.resume(partition)
            # kafka-python keeps the records it had fetched, and hands them out only when another
            # partition has new ones: without them it fetches again.
            self._consumer._fetcher._paused_partition_records.pop(partition, None)

    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        assignment = self._consumer.assignment()
        ours = [partition for partition in starts if TopicPartition(*partition) in assignment]
        committed = self.committed(ours)
        self._listener.stored |= {partition: committed.get(partition) for partition in ours}
        self.seek({partition: committed.get(partition, starts[partition]) for partition in ours})

    def seek(self, positions: Mapping[SourcePartition, int]) -> None:
        try:
            for partition, position in positions.items():
                self._consumer.seek(TopicPartition(*partition), position)
        except (ValueError, KeyError) as error:  # it has just been revoked
            raise SourceAway(f"not a partition of this member: {error}") from error

    def committed(self, partitions: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        try:
            # One request for all; the client's ``committed`` sends one for each partition.
            offsets = self._consumer._coordinator.fetch_committed_offsets(
                {TopicPartition(*partition) for partition in partitions},
                timeout_ms=int(COMMIT_S * 1000),
            )
        except (kafka_errors.KafkaError, OSError, AssertionError) as error:
            raise SourceAway(f"positions could not be read: {error}") from error
        return {SourcePartition(*partition): at.offset for partition, at in offsets.items()}

    def close(self) -> None:
        with suppress(kafka_errors.KafkaError):
            within(CLOSE_S, lambda: self._consumer.close(autocommit=False, timeout_ms=_CLOSE_MS))


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Translates the client's reports into calls of ``Assignment``."""

    def __init__(self, consumer: Any, assignment: Assignment) -> None:
        self._consumer, self._assignment = consumer, assignment
        self._lock = threading.Lock()  # the client's thread and ours look
        self._own: set[SourcePartition] = set()
        self._member: Any = None
        self.stored: dict[SourcePartition, int | None] = {}
        """The group's positions as this member last read or stored them; None: there was none."""

    def look(self) -> None:
        """Report partitions that were assigned or revoked since the last look."""
        with self._lock:
            self._look(frozenset())

    def _look(self, moved: Collection[SourcePartition]) -> None:
        """Report changes; ``moved``: partitions that another member may have had meanwhile."""
        member = self._current()
        assigned = {SourcePartition(*partition) for partition in self._consumer.assignment()}
        if member == self._member and assigned == self._own and not moved:
            return
        kept = (assigned & self._own).difference(moved)
        if gone := self._own - kept:
            self._assignment.revoked(list(gone))
        self._assignment.assigned(list(assigned - kept), member)
        self._own, self._member = assigned, member

    def _current(self) -> Any:
        """The member of the group that we are; while the group changes, the one that we were."""
        member = self._consumer.group_metadata()
        stable = member.state == MemberState.STABLE and member.generation_id >= 0
        return member if stable else self._member

    def _stayed(self) -> bool:
        """Returns True when the group surely had no generation without us since we last looked."""
        last, member = self._member, self._current()
        return last is None or (
            member.member_id == last.member_id and member.generation_id <= last.generation_id + 1
        )

    async def on_partitions_assigned(self, assigned: Any) -> None:
        positions = await self._ask_stored(assigned)
        with self._lock:
            moved = set() if self._stayed() else self._moved(positions)
            if moved:
                # The client would go on where it was, and not at the committed position: it
                # forgets a partition that it loses for a moment.
                subscription = self._consumer._subscription
                unmoved = [partition for partition in assigned if _named(partition) not in moved]
                subscription.assign_from_subscribed(unmoved)
                subscription.assign_from_subscribed(list(assigned))
            new = set(map(_named, assigned)) - (self._own - moved)
            self.stored |= {partition: positions.get(partition) for partition in new}
            self._look(moved)

    def _moved(self, positions: Mapping[SourcePartition, int | None]) -> set[SourcePartition]:
        """Those of our partitions whose position in the group is unknown, or not as we left it."""
        unknown = object()
        return {
            partition
            for partition in self._own
            if positions.get(partition, unknown) != self.stored.get(partition, unknown)
        }

    async def _ask_stored(self, assigned: Any) -> dict[SourcePartition, int | None]:
        """The group's positions, None where there is none; empty if Kafka does not answer."""
        coordinator = self._consumer._coordinator
        try:
            offsets = await coordinator.fetch_committed_offsets_async(
                set(assigned), timeout_ms=int(COMMIT_S * 1000)
            )
        except kafka_errors.KafkaError as error:
            _log.warning("slotwheel consumer: positions could not be read: %s", error)
            return {}
        positions = {_named(partition): at.offset for partition, at in offsets.items()}
        return {partition: positions.get(partition) for partition in map(_named, assigned)}

    async def on_partitions_revoked(self, revoked: Any) -> None:
        # A leader that joins again because topics have changed forgets so once it has shared the
        # partitions out; if its poll ends just then, the rebalance would never finish.
        self._consumer._coordinator.request_rejoin()
        positions = self._assignment.finished(list(map(_named, revoked)))
        if positions:
            coordinator = self._consumer._coordinator
            try:
                await coordinator._commit_offsets_sync_async(
                    offsets_of(positions), timeout_ms=int(COMMIT_S * 1000)
                )
                self._assignment.committed(positions)
                self.stored |= positions
            except kafka_errors.KafkaError as error:
                _log.warning("slotwheel consumer: at a rebalance: not committed: %s", error)

    async def on_partitions_lost(self, lost: Any) -> None:
        gone = set(map(_named, lost))
        with self._lock:
            self._assignment.revoked(list(gone))
            self._own -= gone


def _named(partition: Any) -> SourcePartition:
    return SourcePartition(*partition)


def offsets_of(positions: Mapping[SourcePartition, int]) -> dict[Any, Any]:
    return {
        TopicPartition(*partition): OffsetAndMetadata(position, "", -1)
        for partition, position in positions.items()
    }


def _meaning(error: Exception) -> Exception:
    if isinstance(error, OSError) or getattr(error, "retriable", False):
        return SourceAway(str(error) or type(error).__name__)
    if codec := missing_codec(error):
        return ConsumerFailed(codec[0], remedy=codec[1])
    return ConsumerFailed(
        f"Kafka refuses: {type(error).__name__}: {error}",
        remedy="Check the rights of this client and the settings in kafka={…}",
    )
