"""Dead letters in a real Kafka: half a million, with kills; through peers; refused ones."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from slotwheel import Client, Message
from slotwheel.policy.deadletters import BURIED, RETRIES_USED_UP
from support.broker import Cluster, TopicFactory
from support.deadlab import KafkaLab, letter
from support.kafkaread import RecordReader
from support.nodeprocess import command_line, environment, run_process
from support.peers import Peers
from support.stopwatch import Stopwatch
from support.waiting import eventually

COUNT = 500_000
LIST_S, REDRIVE_S = 5.0, 15.0


def count_by_number(bootstrap: str, topic: str) -> Counter[bytes | None]:
    """How often each value stands in a topic now."""
    with closing(RecordReader(bootstrap, [topic])) as reader:
        return Counter(record.value for record in reader.new_records())


@pytest.mark.soak
@pytest.mark.parametrize("killed", [0, 3], ids=["in one go", "killed three times"])
def test_half_a_million(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, figure: Callable[[str], None], killed: int
) -> None:
    targets = [topic("orders", 3), topic("bills", 3)]
    with KafkaLab(tmp_path, broker, topic, partitions=4) as lab:
        lab.bury(
            letter(targets[n % 2], n, BURIED if n % 5 else RETRIES_USED_UP) for n in range(COUNT)
        )
        watch = Stopwatch()
        listed = lab.dead_process("list")
        list_s, list_wall_s = watch.seconds, watch.wall_s
        assert listed.stdout.rstrip().endswith("500,000 letters, 0 redriven"), listed
        sent = [lab.killed(COUNT // 10, "redrive", "--yes") for _ in range(killed)]
        watch = Stopwatch()
        done = lab.dead_process("redrive", "--yes")
        redrive_s, redrive_wall_s = watch.seconds, watch.wall_s
        assert done.returncode == 0, done
        eventually(lambda: lab.node.metric("slotwheel_pending") == 0)
        arrive_s = watch.wall_s
        found: Counter[bytes | None] = Counter()
        for name in targets:
            found += count_by_number(broker.bootstrap, name)
        assert found == Counter(b"%d" % n for n in range(COUNT))
        assert "0 letters" in lab.dead_process("redrive", "--yes").stderr
    figure(
        f"{COUNT:,} dead letters, killed behind {sent}: list {list_wall_s:.1f} s, last redrive"
        f" {redrive_wall_s:.1f} s, all arrived after {arrive_s:.1f} s; {done.stdout.strip()}"
    )
    assert list_s <= LIST_S
    assert redrive_s <= REDRIVE_S


@pytest.mark.soak
def test_what_a_topic_refused_goes_there_once_it_exists(
    broker: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    options = ("--sink", "confluent", "--unknown-topics", "accept")
    with KafkaLab(tmp_path, broker, topic, *options) as lab, Client(lab.node.address) as client:
        target = f"{lab.topic}-later"
        client.send_many(Message(target, b"%d" % n, delay=0) for n in range(5)).result(60)
        eventually(lambda: lab.node.metric("slotwheel_dead_total") == 5)
        broker.create_topic(target, 1)
        try:
            assert lab.dead("redrive", "--yes").returncode == 0
            assert sorted(str(one.value) for one in lab.arrived(target, 5)) == [
                str(b"%d" % n) for n in range(5)
            ]
        finally:
            broker.delete_topic(target)


@pytest.mark.soak
def test_a_master_that_is_killed_meanwhile(
    broker: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Through peers that deliver exactly once: each letter comes once, in three redrives."""
    count, target = 60_000, topic("orders", 3)
    with KafkaLab(tmp_path, broker, topic, partitions=2) as lab:
        lab.bury(letter(target, n) for n in range(count))
        kafka = ("--sink", "confluent", "--bootstrap", broker.bootstrap)
        options = (*kafka, "--dead-letter-topic", lab.topic, "--delivery", "exactly-once")
        group = ("--group", tmp_path.name)
        (tmp_path / "peers").mkdir()
        with Peers(tmp_path / "peers", *options, *group) as peers:
            peers.wait_until_whole()
            command = lab.command("redrive", "--yes", "--json", "--timeout", "60s")
            command[command.index("--node") + 1] = peers.addresses
            for after in (1, count // 3):
                master = peers.wait_until_whole()
                before = int(peers[master].status()["accepted"])
                process = subprocess.Popen(command_line(*command), env=environment())
                while peers[master].status()["accepted"] < before + after:
                    if process.poll() is not None:
                        break
                peers[master].kill()
                process.wait(120)
                peers[master].start()
            done = run_process(*command)
            assert done.returncode == 0, done
            master = peers.wait_until_whole()
            eventually(lambda: peers[master].status()["pending"] == 0)
        found = count_by_number(broker.bootstrap, target)
        assert found == Counter(b"%d" % n for n in range(count))
