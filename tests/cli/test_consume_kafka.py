"""``slotwheel consume --bootstrap``: a topic of a real Kafka, to where it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from slotwheel.cli.main import run
from slotwheel.reading.files import DUMP as KIND
from slotwheel.reading.files import File
from slotwheel.reading.kafka.dump import DUMP
from slotwheel.reading.read import Ended, RowsSeen, read
from slotwheel.wheel.rows import Header
from support.broker import Cluster, TopicFactory
from support.nodeprocess import command_line, environment
from support.waiting import PATIENCE_S, now_ms


class Sender:
    """Writes records as they are given."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True}  # keeps their order
        )

    def send(self, topic: str, value: bytes | None, partition: int = 0, **more: Any) -> None:
        self._producer.produce(topic, value, partition=partition, **more)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


@pytest.fixture
def producer(broker: Cluster) -> Sender:
    return Sender(broker.bootstrap)


def ours(number: int, due_ms: int = 1_000, created_ms: int = 500) -> list[Header]:
    id_ = f"default.{due_ms}.{number}.00c0ffee"
    return [
        ("slotwheel-id", id_.encode()),
        ("slotwheel-due-ms", b"%d" % due_ms),
        ("slotwheel-created-ms", b"%d" % created_ms),
    ]


def fill(producer: Sender, topic: str, count: int, partitions: int = 1) -> None:
    for number in range(count):
        producer.send(topic, b"%d" % number, headers=ours(number), partition=number % partitions)
    producer.flush()


def consume(
    capsys: pytest.CaptureFixture[str], broker: Cluster, topic: str, *more: object
) -> list[dict[str, Any]]:
    arguments = ["consume", topic, "--bootstrap", broker.bootstrap, "--json", *map(str, more)]
    assert run(arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def dump(broker: Cluster, topic: str, path: Path, *more: object) -> pa.Table:
    arguments = ["consume", topic, "--bootstrap", broker.bootstrap, "--arrow", str(path)]
    assert run([*arguments, *map(str, more)]) == 0
    assert not path.with_name(path.name + ".part").exists()
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all()


def test_every_field_of_a_record(
    broker: Cluster, topic: TopicFactory, producer: Sender, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic("fields", 2)
    before = now_ms()
    own = [("h", b"\xff\x00"), ("h", None)]
    producer.send(name, b"v", key=b"k", headers=own + ours(7), partition=1)
    producer.send(name, None, key=b"", headers=own, partition=1)
    producer.send(name, b"\xff", headers=[("slotwheel-id", b"x")], partition=1)
    producer.flush()
    found = consume(capsys, broker, name)
    first = found[0]
    assert before <= first["delivered_ms"] <= now_ms()
    assert first == {
        "position": 0,
        "id": "default.1000.7.00c0ffee",
        "due_ms": 1_000,
        "created_ms": 500,
        "delivered_ms": first["delivered_ms"],
        "lateness_ms": None,  # no message was due in 1970
        "partition": 1,
        "key": "k",
        "value": "v",
        "headers": [{"key": "h", "value_base64": "/wA="}, {"key": "h", "value": None}],
    }
    # What slotwheel did not send is told, too.
    assert [one["id"] for one in found[1:]] == [None, None]
    assert (found[1]["key"], found[1]["value"], found[1]["lateness_ms"]) == ("", None, None)
    assert (found[2]["key"], found[2]["value_base64"]) == (None, "/w==")
    assert found[2]["headers"] == [{"key": "slotwheel-id", "value": "x"}]
    assert run(["consume", name, "--bootstrap", broker.bootstrap]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("position 0  id default.1000.7.00c0ffee  due 1970-01-01T00:00:01")
    assert "id" not in lines[1]


def test_a_dump_holds_all_partitions_as_they_stand(
    broker: Cluster, topic: TopicFactory, producer: Sender, tmp_path: Path
) -> None:
    name = topic("dump", 3)
    fill(producer, name, 12_000, 2)  # the third one stays empty
    path = tmp_path / "dump.arrows"
    table = dump(broker, name, path)
    assert table.schema.equals(DUMP, check_metadata=True)
    assert set(table.column("topic").to_pylist()) == {name}
    for partition in (0, 1):
        part = table.filter(pa.compute.equal(table.column("record_partition"), partition))
        assert part.column("position").to_pylist() == list(range(6_000))
        values = [b"%d" % number for number in range(partition, 12_000, 2)]
        assert part.column("value").to_pylist() == values
    row = table.slice(0, 1).to_pylist()[0]
    headers = ours(int(row["value"]))
    assert row["headers"] == [{"key": key, "value": value} for key, value in headers]
    events = list(read(File(0, KIND, str(path), path.name, path.stat().st_size)))
    assert sum(one.rows.num_rows for one in events if isinstance(one, RowsSeen)) == 12_000
    assert isinstance(events[-1], Ended)
    assert not events[-1].damaged


def test_an_empty_topic_is_an_empty_dump(
    broker: Cluster, topic: TopicFactory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = topic("empty", 4)
    table = dump(broker, name, tmp_path / "dump")
    assert table.num_rows == 0
    assert table.schema.equals(DUMP, check_metadata=True)
    assert consume(capsys, broker, name) == []


def transactional(broker: Cluster, name: str) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    made.init_transactions(30)
    return made


def send_all(producer: Producer, topic: str, values: Sequence[bytes]) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(60)


def test_transactions(
    broker: Cluster,
    topic: TopicFactory,
    producer: Sender,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A marker is the last thing in the partition, and no record: reading ends nevertheless. What
    was aborted, and what is not committed yet, is not there."""
    name = topic("transactions")
    one, two = transactional(broker, f"{name}-1"), transactional(broker, f"{name}-2")
    for producer_, values, ends in (
        (one, [b"a", b"b"], "commit"),
        (two, [b"x", b"y"], "abort"),
        (one, [b"c"], "commit"),
    ):
        producer_.begin_transaction()
        send_all(producer_, name, values)
        if ends == "commit":
            producer_.commit_transaction(30)
        else:
            producer_.abort_transaction(30)
    started = time.monotonic()
    assert [row["value"] for row in consume(capsys, broker, name)] == ["a", "b", "c"]
    two.begin_transaction()
    send_all(two, name, [b"open"])
    producer.send(name, b"behind")
    producer.flush()
    assert [row["value"] for row in consume(capsys, broker, name)] == ["a", "b", "c"]
    assert time.monotonic() - started < 20
    two.commit_transaction(30)
    found = [row["value"] for row in consume(capsys, broker, name)]
    assert found == ["a", "b", "c", "open", "behind"]


def test_only_aborted_records(
    broker: Cluster, topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic("aborted")
    one = transactional(broker, name)
    one.begin_transaction()
    send_all(one, name, [b"x"] * 10)
    one.abort_transaction(30)
    assert consume(capsys, broker, name) == []


def test_records_that_were_deleted_before(
    broker: Cluster, topic: TopicFactory, producer: Sender, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic("deleted")
    fill(producer, name, 100)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 60})
    assert [row["position"] for row in consume(capsys, broker, name)] == list(range(60, 100))


def test_from_and_limit(
    broker: Cluster,
    topic: TopicFactory,
    producer: Sender,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    name = topic("parts", 2)
    fill(producer, name, 20, 2)
    found = consume(capsys, broker, name, "--from", 7)
    assert sorted(row["position"] for row in found) == [7, 7, 8, 8, 9, 9]
    assert len(consume(capsys, broker, name, "--limit", 3)) == 3
    assert consume(capsys, broker, name, "--from", 1000) == []
    assert dump(broker, name, tmp_path / "dump", "--limit", 5).num_rows == 5


def test_a_topic_that_is_not_there_is_not_made(
    broker: Cluster, topic: TopicFactory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    there = topic("aaa-there")
    path = tmp_path / "dump"
    arguments = ["consume", "not-there", "--bootstrap", broker.bootstrap, "--arrow", str(path)]
    assert run(arguments) == 1
    error = capsys.readouterr().err
    assert "no such topic in Kafka" in error
    assert there in error
    assert list(tmp_path.iterdir()) == []
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        assert "not-there" not in admin.list_topics()


def follower(broker: Cluster, topic: str, *more: str) -> subprocess.Popen[str]:
    command = command_line("consume", topic, "--bootstrap", broker.bootstrap, "--follow", *more)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment(), text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def test_follow_shows_what_comes_and_ends_with_ctrl_c(
    broker: Cluster, topic: TopicFactory, producer: Sender
) -> None:
    name = topic("follow", 2)
    process = follower(broker, name, "--json")
    try:
        assert process.stdout is not None
        for number in range(3):
            producer.send(name, b"%d" % number, partition=number % 2)
            producer.flush()
            assert json.loads(process.stdout.readline())["value"] == str(number)
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, rest, error.strip()) == (130, "", "")
    finally:
        process.kill()


def test_a_followed_dump_is_whole_after_ctrl_c(
    broker: Cluster, topic: TopicFactory, producer: Sender, tmp_path: Path
) -> None:
    name, path = topic("follow"), tmp_path / "dump"
    process = follower(broker, name, "--arrow", str(path))
    part = path.with_name("dump.part")
    try:
        fill(producer, name, 100)
        deadline = time.monotonic() + PATIENCE_S
        while not part.exists() or part.stat().st_size < 8_000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert not part.exists()
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        assert stream.read_all().num_rows > 0


def test_half_a_dump_is_no_dump(
    broker: Cluster,
    topic: TopicFactory,
    producer: Sender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic("half")
    fill(producer, name, 12_000)
    path = tmp_path / "dump"
    path.write_bytes(b"an older one")
    seen: list[int] = []

    def interrupted(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[Any]:
        for batch in batches:
            seen.append(batch.num_rows)
            yield batch
            if sum(seen) >= 5_000:
                raise KeyboardInterrupt

    monkeypatch.setattr("slotwheel.cli.consume.cut", interrupted)
    arguments = ["consume", name, "--bootstrap", broker.bootstrap, "--arrow", str(path)]
    assert run(arguments) == 130
    assert seen
    assert path.read_bytes() == b"an older one"
    assert list(tmp_path.iterdir()) == [path]


def test_no_broker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwheel.reading.kafka.kafkatopic._CALL_MS", 1000)
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["consume", "orders", "--bootstrap", address]) == 1
    error = capsys.readouterr().err
    assert f"Kafka at {address}" in error
    assert "--bootstrap" in error
    assert len(error.splitlines()) == 1


def test_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, kafka = ("--data", str(tmp_path)), ("--bootstrap", "127.0.0.1:1")
    for arguments, text in (
        ((), "either --data or --bootstrap"),
        ((*data, *kafka), "either --data or --bootstrap"),
        ((*data, "--kafka", "a=b"), "--kafka needs --bootstrap"),
    ):
        assert run(["consume", "orders", *arguments]) == 2
        assert text in capsys.readouterr().err
    # A node's settings in the environment are not in the way of what was typed.
    monkeypatch.setenv("SLOTWHEEL_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("SLOTWHEEL_KAFKA", "a=b")
    assert run(["consume", "orders", *data]) == 1
    assert "not a data directory" in capsys.readouterr().err
    monkeypatch.setenv("SLOTWHEEL_DATA", str(tmp_path))
    assert run(["consume", "orders"]) == 2
    assert run(["consume", "orders", "--bootstrap", "127.0.0.1:1", "--kafka", "nonsense=1"]) == 1
    assert "nonsense" in capsys.readouterr().err
    for name in ("BOOTSTRAP", "KAFKA", "DATA"):
        monkeypatch.delenv(f"SLOTWHEEL_{name}", raising=False)  # one with passwords is not kept
    assert run(["consume", "orders", *kafka, "--kafka", "nonsense=1"]) == 1
    assert "nonsense" in capsys.readouterr().err
    assert run(["consume", "no/topic", *kafka]) == 1
    assert "illegal topic name" in capsys.readouterr().err
