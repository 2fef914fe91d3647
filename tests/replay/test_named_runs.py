"""A node with names, killed and started again, and what the proof and the other readers of its
directory say of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Message
from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.wheel.errors import NameTaken
from slotwheel.wheel.slots.slot import SECOND_S, WIDTHS_S, slot_of_name, width_s
from support.nodeprocess import NodeProcess
from support.waiting import eventually

OPTIONS = (
    *("--horizon", "10d", "--retain", "1h", "--segment-bytes", "64K"),
    *("--tail-age", "200ms", "--tail-keep", "1ms"),
)
AHEAD_S = (2.5, 5_000, 30_000, 200_000)
"""What leaves in the test, and what lies in slots of a second, an hour and a day."""
ROUNDS, NAMES = 3, 14


def play(client: Client, start: int) -> Counter[str]:
    """Send messages of every distance with names that others have; what became of these."""
    told: Counter[str] = Counter()
    for number in range(start, start + NAMES):
        for ahead in AHEAD_S:
            name, due = f"n-{number % 7}-{ahead}", {"delay": ahead + number % 3}
            mode = ("replace", "keep", "refuse")[number % 3]
            message = Message("named", b"%d" % number, name=name, if_exists=mode, ttl=60, **due)
            try:
                before = client.send(message).before
                told[before.what if before is not None else "first"] += 1
            except NameTaken:
                told["refused"] += 1
        batch = [Message("named", b"b", name="twice", delay=400_000) for _ in range(3)]
        client.send_many(batch).result(30)
        if number % 5 == 0:
            told[client.cancel(topic="named", name=f"n-{number % 7}-5000")[0]] += 1
            client.reschedule(topic="named", name=f"n-{(number + 1) % 7}-30000", delay=20_000)
    return told


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with NodeProcess(tmp_path_factory.mktemp("named") / "data", *OPTIONS) as node:
        told: Counter[str] = Counter()
        for number in range(ROUNDS):
            with Client(node.address) as client:
                told += play(client, number * NAMES)
                eventually(lambda: node.metric("slotwheel_tail_rows") == 0)
                node.kill()
                node.start()
        with Client(node.address) as client:
            client.send(Message("named", b"dead", name="dead", delay=0.5, ttl=0.001))
            client.send(Message("named", b"last", name="last", delay=1))
        eventually(lambda: any(row["value"] == b"last" for row in node.delivered("named")))
        eventually(lambda: node.metric("slotwheel_tail_rows") == 0)
        assert {"first", "replaced", "kept", "refused", "cancelled"} <= set(told), told
        data = node.data
    widths = {width_s(slot_of_name(path.name) or 0) for path in (data / "slots").glob("*.arrows")}
    assert widths == set(WIDTHS_S) > {SECOND_S}
    return data


def test_spark_proves_a_run_with_names(spark: Any, data: Path) -> None:
    verdict = prove(spark, find([str(data)]), Options(exactly_once=False))
    assert verdict.proven, (verdict.reasons, verdict.open_points, verdict.problems)
    assert verdict.counts["cancelled"] > ROUNDS * NAMES
    assert verdict.counts["delivered"] > 0
    assert verdict.counts["lost"] == verdict.counts["undecided"] == 0
