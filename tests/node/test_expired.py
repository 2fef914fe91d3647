"""Messages that expire while nobody delivers them: a real node, killed and started again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slotwheel import Client, Message
from support.nodeprocess import NodeProcess
from support.waiting import eventually, now_ms

LASTING = 20


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_what_expires_in_an_outage_is_accounted_for_and_not_delivered(
    tmp_path: Path, count: int
) -> None:
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.address, timeout_s=60) as client:
            begin = now_ms() + 6_000 + count // 100
            due = [begin + number % 500 for number in range(count)]
            client.send_many(
                Message("orders", b"%d" % n, due=at, ttl=0.25 + n % 4 / 4)
                for n, at in enumerate(due)
            ).result(60)
            client.send_many(
                Message("orders", b"lasting", due=begin, ttl=600.0) for _ in range(LASTING)
            ).result(60)
        node.kill()
        assert now_ms() < begin, "the machine is too slow for this test"
        time.sleep((begin + 1_600 - now_ms()) / 1000)
        node.start()
        eventually(lambda: node.metric("slotwheel_pending") == 0)
        # A message is counted behind the mark.
        eventually(lambda: node.metric("slotwheel_expired_total") == count)
        eventually(lambda: node.metric("slotwheel_delivered_total") == LASTING)
        assert node.metric("slotwheel_dead_total") == 0
        assert [row["value"] for row in node.delivered("orders")] == [b"lasting"] * LASTING
        letters = node.delivered("slotwheel-dead-letters")
    assert len(letters) == count
    said = {one["key"]: one["value"] for one in letters[0]["headers"]}
    assert said["slotwheel-dead-reason"] == b"expired"
    assert said["slotwheel-dead-topic"] == b"orders"
    assert int(said["slotwheel-expires-ms"]) > begin
