"""The sources of a consumer: the contract, by both clients of a real Kafka, and embedded topics."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import CoordinatorNotAvailableError

from slotwheel.consumer import embedded_source
from slotwheel.consumer.confluent_source import ConfluentSource
from slotwheel.consumer.embedded_source import EmbeddedSource
from slotwheel.consumer.kafka_python_source import KafkaPythonSource
from slotwheel.consumer.message import SourcePartition
from slotwheel.consumer.source import SourceAway
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer
from slotwheel.wheel.errors import Damaged, DirectoryInUse, InvalidConfiguration
from slotwheel.wheel.files import OsFiles
from support.deliveries import MINT, Sent, rows_of
from support.sourcecontract import (
    Book,
    KafkaRig,
    KafkaSourceContract,
    SourceContract,
    SourceRig,
    numbers,
    read,
    values,
)
from support.waiting import eventually, now_ms


class TestKafkaPythonSource(KafkaSourceContract):
    kind = KafkaPythonSource
    quick = {"heartbeat_interval_ms": 300}

    def test_a_generation_that_nobody_else_was_in_changes_nothing(self, rig: KafkaRig) -> None:
        """Alone in its group, a member that joins again before it has learned of the last time
        finds itself two generations further."""
        name = rig._topic("alone", 3)
        rig.fill([Sent(name, b"%d" % number, partition=number % 3) for number in range(30)])
        source, book = rig.open(name)
        assert isinstance(source, KafkaPythonSource)
        begun = read(source, 12)
        committed = SourcePartition(name, begun[0].partition)
        source.commit({committed: begun[0].offset + 1})
        listener, coordinator = source._listener, source._consumer._coordinator
        last = listener._member
        listener._member = last._replace(generation_id=last.generation_id - 1)
        coordinator.request_rejoin()
        rest = read(source, 18)
        assert coordinator.group_metadata().generation_id > last.generation_id
        assert sorted(values(begun + rest)) == list(range(30))
        assert not book.gone

    def test_who_was_out_of_the_group_begins_anew(self, rig: KafkaRig) -> None:
        """Its client does not know that it was out: it stood still, and learns that the group
        changes before it learns that it is no member any more."""
        name = rig.topic("out")
        rig.fill(numbers(name, 0, 10))
        first, book = rig.open(name)
        assert isinstance(first, KafkaPythonSource)
        read(first, 10)
        coordinator = first._consumer._coordinator
        coordinator._disable_heartbeat()
        member = MemberToRemove(coordinator.group_metadata().member_id)
        with closing(KafkaAdminClient(bootstrap_servers=rig.broker.bootstrap)) as admin:
            admin.remove_group_members(coordinator.group_id, [member])
        second, _ = rig.open(name)
        assert values(read(second, 10)) == list(range(10))
        second.commit({SourcePartition(name, 0): 7})
        rig.close(second)
        coordinator.request_rejoin()
        before = book.member
        assert values(read(first, 3)) == [7, 8, 9]
        assert book.gone == [SourcePartition(name, 0)]
        assert book.member.member_id != before.member_id


class TestConfluentSource(KafkaSourceContract):
    kind = ConfluentSource
    quick = {"heartbeat.interval.ms": 300}

    def test_a_failure_behind_the_first_record_does_not_lose_it(self, rig: KafkaRig) -> None:
        name = rig.topic("behind")
        rig.fill(numbers(name, 0, 5))
        source, _ = rig.open(name)
        assert isinstance(source, ConfluentSource)
        away = confluent_kafka.KafkaException(confluent_kafka.KafkaError(-195))  # _TRANSPORT
        source._consumer = FailsBehindFirst(source._consumer, away)
        assert values(read(source, 5)) == list(range(5))

    def test_what_is_assigned_while_it_closes_is_nobodys(self, rig: KafkaRig) -> None:
        """An assignment waits for the next poll, which does not come: the client hands it over
        while it closes, and may have left the group that it is asked about."""
        name = rig.topic("closing")
        source, book = rig.open(name)
        group = f"{name}-group"
        with closing(KafkaAdminClient(bootstrap_servers=rig.broker.bootstrap)) as admin:
            eventually(lambda: is_stable(admin, group))
        rig.close(source)
        assert (book.own, book.member) == (set(), None)


def is_stable(admin: KafkaAdminClient, group: str) -> bool:
    """Each member of the group has its partitions."""
    try:
        (found,) = admin.describe_groups([group]).values()
    except CoordinatorNotAvailableError:  # the broker's first group: it makes the topic for it
        return False
    return bool(found["group_state"] == "Stable")


class FailsBehindFirst:
    """A consumer of confluent-kafka of which each ``consume`` fails."""

    def __init__(self, consumer: Any, error: Exception) -> None:
        self._consumer, self._error = consumer, error

    def consume(self, *_: object) -> None:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class EmbeddedRig(SourceRig):
    def __init__(self, data: Path) -> None:
        super().__init__()
        self.data = data
        self._sink = EmbeddedSink(OsFiles(data), MINT, now_ms)
        self._numbers = itertools.count()

    def topic(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"

    def fill(self, sent: Sequence[Sent], first: int = 0) -> None:
        assert (self._sink.deliver(rows_of(sent, first)).codes == Answer.ACCEPTED).all()

    def make(self, group: str, topics: Sequence[str], book: Book) -> EmbeddedSource:
        return EmbeddedSource(self.data, group, topics, book)

    def close_all(self) -> None:
        super().close_all()
        self._sink.close()


class TestEmbeddedSource(SourceContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[EmbeddedRig]:
        rig = EmbeddedRig(tmp_path)
        yield rig
        rig.close_all()

    def test_a_group_has_one_member(self, rig: EmbeddedRig) -> None:
        rig.open("t", "group")
        with pytest.raises(DirectoryInUse, match="another process consumes as this group"):
            rig.open("t", "group")
        rig.open("t", "another")

    def test_a_topic_that_is_not_there_yet_is_waited_for(self, rig: EmbeddedRig) -> None:
        source, book = rig.open("later")
        assert book.own == {SourcePartition("later", 0)}
        assert source.poll(0.05, 10) == []
        rig.fill(numbers("later", 0, 2))
        assert values(read(source, 2)) == [0, 1]

    def test_a_backlog_keeps_no_other_topic_waiting(self, rig: EmbeddedRig) -> None:
        """Each poll takes just what is left of a block, so none of the next one is begun."""
        for at in range(0, 40, 10):
            rig.fill(numbers("backlog", at, at + 10), at)
        rig.fill(numbers("retry", 0, 1), 100)
        source, _ = rig.open(["backlog", "retry"])
        polled = [source.poll(0.1, 10) for _ in range(3)]
        assert "retry" in {one.topic for records in polled for one in records}

    @pytest.mark.parametrize("content", [b"", b"{", b'{"version": 9, "positions": {}}', b"\xff"])
    def test_an_unreadable_file_of_positions_is_refused(
        self, rig: EmbeddedRig, content: bytes
    ) -> None:
        folder = rig.data / "consumers" / "group"
        folder.mkdir(parents=True)
        (folder / "positions.json").write_bytes(content)
        with pytest.raises(Damaged, match="positions"):
            rig.open("t", "group")
        (folder / "positions.json").unlink()
        rig.open("t", "group")

    def test_a_data_directory_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfiguration, match="no-such-directory"):
            EmbeddedSource(tmp_path / "no-such-directory", "g", ["t"], Book())


def test_positions_that_cannot_be_written_now_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = EmbeddedSource(tmp_path, "group", ["work"], Book())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: os.write(-1, b""))
        with pytest.raises(SourceAway, match="positions cannot be written"):
            source.commit({SourcePartition("work", 0): 1})
    source.commit({SourcePartition("work", 0): 2})
    source.close()
    again = tmp_path / "consumers/group/positions.json"
    assert embedded_source.read_positions(again) == {"work": 2}


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        (KafkaPythonSource, {"partition_assignment_strategy": [CooperativeStickyAssignor]}),
        (ConfluentSource, {"partition.assignment.strategy": "cooperative-sticky"}),
    ],
)
def test_an_assignor_by_which_partitions_are_kept_is_refused(
    kind: type[KafkaPythonSource | ConfluentSource], extra: dict[str, Any]
) -> None:
    with pytest.raises(InvalidConfiguration, match=r"got cooperative-sticky.*expected range"):
        kind("127.0.0.1:1", "group", ["topic"], Book(), extra=extra)
