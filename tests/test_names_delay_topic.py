"""Names on a delay topic of a real Kafka, while the node is killed between reading and storing.

A record that is read again after a kill must not meet itself: it would replace its own message, be
kept out by it, or be refused for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from slotwheel import Client
from slotwheel.wheel.names import IfExists
from support import kafkaload
from support.broker import Cluster, TopicFactory
from support.deliveries import Sent
from support.kafkaread import Reader
from support.nodeprocess import NodeProcess
from support.waiting import eventually, now_ms

RECORDS, NAMES, SHOT, KILLS = 1_500, 40, 100, 6
FAR_MS = 3_600_000


def test_records_with_names_are_decided_once_each(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, figure: Callable[[str], None]
) -> None:
    target, dead = topic("target"), topic("dead")
    delays = topic("delays", message_timestamp_type="CreateTime")
    rng = Random(5)
    holders: dict[str, int] = {}
    refused: set[int] = set()
    unnamed: set[int] = set()
    counts: Counter[str] = Counter()
    options = ["--sink", "confluent", "--bootstrap", broker.bootstrap, "--delivery", "exactly-once"]
    options += ["--delay-topic", delays, "--dead-letter-topic", dead]
    with NodeProcess(tmp_path / "data", *options) as node:
        kills = set(rng.sample(range(1, RECORDS // SHOT), KILLS))
        for shot in range(RECORDS // SHOT):
            sent = []
            for number in range(shot * SHOT, (shot + 1) * SHOT):
                value = b"%d" % number
                if rng.random() < 0.2:
                    unnamed.add(number)
                    sent.append(Sent(target, value, due=now_ms() + 100))
                    continue
                name, mode = f"order-{rng.randrange(NAMES)}", rng.choice(list(IfExists))
                headers = (
                    ("slotwheel-name", name.encode()),
                    ("slotwheel-if-exists", mode.encode()),
                )
                sent.append(Sent(target, value, None, headers, due=now_ms() + FAR_MS))
                if name not in holders or mode is IfExists.REPLACE:
                    holders[name] = number
                    counts["stored"] += 1
                elif mode is IfExists.REFUSE:
                    refused.add(number)
                else:
                    counts["kept out"] += 1
            kafkaload.send_by_librdkafka(broker.bootstrap, delays, sent)
            if shot in kills:
                time.sleep(rng.uniform(0.0, 0.1))
                node.kill()
                node.start()
        last = Sent(target, b"%d" % RECORDS, due=now_ms())
        kafkaload.send_by_librdkafka(broker.bootstrap, delays, [last])
        unnamed.add(RECORDS)
        delivered, letters = Reader(broker.bootstrap, [target]), Reader(broker.bootstrap, [dead])
        delivered.read(len(unnamed))
        with Client(node.address) as client:
            for name in holders:
                answer, _ = client.reschedule(topic=target, name=name, due=now_ms())
                assert answer == "cancelled", name
        arrived = delivered.read(len(unnamed) + len(holders))
        buried = letters.read(len(refused))
        time.sleep(0.5)  # for what must not come
        arrived += delivered.new()
        buried += letters.new()
        delivered.close()
        letters.close()
        eventually(lambda: node.metric("slotwheel_pending") == 0)
    figure(
        f"names on a delay topic: {RECORDS} records, {KILLS} kills, {dict(counts)},"
        f" {len(refused)} refused; {len(arrived)} arrived, {len(buried)} dead letters"
    )
    assert sorted(int(one.value or b"") for one in arrived) == sorted([*unnamed, *holders.values()])
    assert sorted(int(one.value or b"") for one in buried) == sorted(refused)
    for letter in buried:
        said = dict(letter.headers)
        assert said["slotwheel-dead-reason"] == b"refused"
        assert b"pending message has this name" in (said["slotwheel-dead-error"] or b"")
        assert "slotwheel-name" not in said
