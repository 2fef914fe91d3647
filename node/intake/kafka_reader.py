"""Reads delay topics with kafka-python. Every call is bounded in time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
    for_code,
)
from kafka.structs import OffsetAndMetadata

from ...broker.header_names import partition_of, read_leniently
from ...broker.settings import ClientKind, for_kafka_python
from ...broker.sources import Place, StoredOffset
from ...broker.topicids import id_text
from .records import ConsumerRecords
from .source_reader import (
    NO_LEADER,
    RECORDS_MAX,
    TIMEOUT_S,
    DescribedTopic,
    Polled,
    SourceOutOfRange,
    SourceUnreachable,
    SourceUnreadable,
    ask_leaders,
    until_answered,
)

_READ_COMMITTED = 1
_POLLS_MAX = 100
_PASS = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)


class KafkaPythonReader:
    """A ``SourceReader`` for the consumer group ``group``. ``settings``: of the client, in
    librdkafka's names. Errors on construction: ``SourceUnreachable``."""

    def __init__(
        self, bootstrap: str, group: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        read_leniently()
        self._group = group
        timeout_ms = int(TIMEOUT_S * 1000)
        given = {"reconnect.backoff.max.ms": 1000, **(settings or {})}
        common = {"bootstrap_servers": bootstrap, "bootstrap_timeout_ms": timeout_ms}
        admin_config = for_kafka_python(given, ClientKind.ADMIN) | common
        self._leaders: dict[Place, int] = {}
        """The leaders as of the last ``describe``."""
        with reaching():
            self._admin = KafkaAdminClient(**{**admin_config, "request_timeout_ms": timeout_ms})
        try:
            with reaching():
                self.cluster: str = self._admin.describe_cluster()["cluster_id"] or ""
                self._consumer = KafkaConsumer(
                    **{
                        **for_kafka_python(given, ClientKind.CONSUMER),
                        **common,
                        "group_id": None,
                        "enable_auto_commit": False,
                        "auto_offset_reset": "none",  # ``DelayTopicIntake`` decides, with an alarm
                        "isolation_level": "read_committed",
                        "allow_auto_create_topics": False,
                        "max_poll_records": RECORDS_MAX,
                        "max_partition_fetch_bytes": 8 << 20,
                        "fetch_max_wait_ms": 100,
                        # In a session a broker is silent about a partition without new records:
                        # one that is left and read again would never be known to be at its end.
                        "enable_incremental_fetch_sessions": False,
                    }
                )
        except BaseException:
            self._admin.close()
            raise

    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic | SourceUnreadable]:
        with reaching():
            answers = self._admin.describe_topics(list(topics))
        described: dict[str, DescribedTopic | SourceUnreadable] = {}
        for topic in answers:
            name = topic["name"]
            if topic["error_code"]:
                error = for_code(topic["error_code"])
                described[name] = SourceUnreadable(error.description or error.__name__)
                continue
            leaders = {
                Place(name, entry["partition_index"]): max(NO_LEADER, entry["leader_id"])
                for entry in topic["partitions"]
            }
            self._leaders |= leaders
            described[name] = DescribedTopic(
                id_text(topic["topic_id"]),
                [leaders[place] != NO_LEADER for place in sorted(leaders)],
            )
        return described

    def offsets(self, places: Collection[Place], at: int) -> dict[Place, int]:
        def ask(group: list[Place]) -> dict[Place, int]:
            targets = {TopicPartition(*place): at for place in group}
            try:
                with reaching():
                    answers = self._admin.list_partition_offsets(
                        targets,
                        isolation_level=_READ_COMMITTED,
                        timeout_ms=int(TIMEOUT_S * 1000),
                    )
            except KafkaError as error:
                raise SourceUnreadable(error_text(error)) from None
            return {
                Place(*target): answer.offset
                for target, answer in answers.items()
                if answer.offset >= 0
            }

        return ask_leaders(places, self._leaders, ask)

    def every_topic(self) -> list[str]:
        with reaching():
            names: list[str] = self._admin.list_topics()
            return names

    def stored(self, places: Collection[Place]) -> dict[Place, StoredOffset]:
        if not places:
            return {}
        targets = {self._group: [TopicPartition(*place) for place in places]}
        with self._for_group("its offsets"):
            committed = until_answered(
                lambda: self._admin.list_group_offsets(targets)[self._group], passes
            )
        return {
            Place(*target): StoredOffset(offset.offset, offset.metadata or "")
            for target, offset in committed.items()
            if offset.offset >= 0
        }

    def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:  # noqa: ARG002
        targets = {
            TopicPartition(*place): OffsetAndMetadata(stored.offset, stored.topic_id, -1)
            for place, stored in offsets.items()
        }

        def ask() -> None:
            for error in self._admin.alter_group_offsets(self._group, targets).values():
                if error.errno:
                    raise error

        with self._for_group("a position in it"):
            until_answered(ask, passes)

    @contextmanager
    def _for_group(self, subject: str) -> Iterator[None]:
        try:
            with reaching():
                yield
        except KafkaError as error:
            raise SourceUnreadable(
                f"{subject} of the group {self._group!r}: {error_text(error)}"
            ) from None

    def read(self, offsets: Mapping[Place, int]) -> None:
        targets = {TopicPartition(*place): offset for place, offset in offsets.items()}
        # Left first: a partition that stays assigned keeps its old position and watermark.
        self.leave(offsets.keys())
        self._consumer.assign([*self._consumer.assignment(), *targets])
        for target, offset in targets.items():
            self._consumer.seek(target, offset)

    def leave(self, places: Collection[Place]) -> None:
        left = {TopicPartition(*place) for place in places}
        assigned = self._consumer.assignment()
        if left & assigned:
            self._consumer.assign(list(assigned - left))

    def poll(self, timeout_s: float) -> Polled:
        received: dict[Place, list[Any]] = {}
        errors: dict[Place, SourceUnreadable] = {}
        for _ in range(_POLLS_MAX):
            try:
                polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
            except Exception as error:
                self._attribute(error, errors)
                self.leave(errors.keys())
            else:
                if not polled:
                    break
                for target, records in polled.items():
                    received.setdefault(Place(*target), []).extend(records)
                if sum(map(len, received.values())) >= RECORDS_MAX:
                    break
            # An error that came behind records is raised by the next call.
            timeout_s = 0
        records = {
            place: ConsumerRecords(
                [record.offset for record in batch],
                [record.timestamp for record in batch],
                [record.key for record in batch],
                [record.value for record in batch],
                [record.headers for record in batch],
            )
            for place, batch in received.items()
        }
        return Polled(records, errors)

    def _attribute(self, error: Exception, errors: dict[Place, SourceUnreadable]) -> None:
        """Add an error of ``poll`` to its sources. Errors: ``SourceUnreachable`` if it has none."""
        if isinstance(error, OffsetOutOfRangeError):
            strayed = (Place(*target) for target in error.args[0])
            errors.update((place, SourceOutOfRange(str(error))) for place in strayed)
            return
        assigned = {Place(*target) for target in self._consumer.assignment()}
        concerned: set[Place] = set()
        if isinstance(error, TopicAuthorizationFailedError):
            concerned = {place for place in assigned if place.topic in error.args[0]}
        elif target := partition_of(error):
            concerned = {Place(*target)} & assigned
        if not concerned:
            raise SourceUnreachable(error_text(error)) from error
        reason = error_text(error)
        if isinstance(error, UnsupportedCodecError):
            reason = f"a codec is not installed: {reason}"
        errors.update((place, SourceUnreadable(reason)) for place in concerned)

    def positions(self) -> dict[Place, int]:
        # The high watermark is known when Kafka has answered; then so is the position.
        return {
            Place(*target): position
            for target in self._consumer.assignment()
            if self._consumer.highwater(target) is not None
            and (position := self._consumer.position(target, timeout_ms=0)) is not None
        }

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=int(TIMEOUT_S * 1000))
        self._admin.close()


@contextmanager
def reaching() -> Iterator[None]:
    """Translate errors of a call. Errors: ``SourceUnreachable`` when Kafka does not answer; other
    ``KafkaError``s as they are."""
    try:
        yield
    except KafkaError as error:
        if not error.retriable or isinstance(error, _PASS):
            raise
        raise SourceUnreachable(error_text(error)) from error
    except OSError as error:
        raise SourceUnreachable(error_text(error)) from error


def passes(error: Exception) -> bool:
    return isinstance(error, _PASS)


def error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
