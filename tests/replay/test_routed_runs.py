"""A route to three topics, and a node that is killed at random moments: all three or none.

Two clients send numbered messages all the time. The patient one has a receipt for each in the end;
the hasty one gives up after a moment, so that of many of its messages nobody knows whether they are
stored: for all three topics, or for none. Topics are counted, and `slotwheel replay` proves it.

25 kills: ``python -m pytest -m soak tests/replay/test_routed_runs.py``
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from slotwheel import Client, Message, Receipts
from slotwheel.wheel.errors import SlotwheelError
from support.nodeprocess import NodeProcess, topic_rows
from support.ports import free_address
from support.spark import Replay
from support.waiting import eventually

TOPICS = ("one", "two", "three")
ROUTE = "[[routes.three]]\nto = ['one', 'two', 'three']"
DUE_S = 1.0
SMALL = ("--segment-bytes", "256K", "--tail-age", "500ms", "--tail-keep", "200ms")


class Sender:
    """Sends numbered messages to the route, and each fifth to one topic only, until it is left."""

    def __init__(self, address: str, first: int, timeout_s: float, receipts: Path) -> None:
        self._first = first
        self._client = Client(address, timeout_s=timeout_s, receipts=receipts)
        self._sent: list[tuple[int, Receipts]] = []
        self._stop = threading.Event()
        self._rng = Random(first)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = self._first
        while not self._stop.wait(0.02):
            messages = [self._message(one) for one in range(number, number + 20)]
            try:
                self._sent.append((number, self._client.send_many(messages)))
            except SlotwheelError:  # no room in the buffer: nothing of it was sent
                continue
            number += 20

    def _message(self, number: int) -> Message:
        value, delay = b"%d" % number, self._rng.uniform(0, DUE_S)
        if number % 5 == 0:
            return Message("one", value, delay=delay)
        return Message(value=value, route="three", delay=delay)

    def stop(self) -> tuple[set[int], set[int]]:
        """The numbers with a receipt, and those of which nobody knows."""
        self._stop.set()
        self._thread.join(60)
        self._client.close()
        stored, unknown = set[int](), set[int]()
        for first, receipts in self._sent:
            errors = receipts.errors(60)
            for number, receipt in enumerate(receipts):
                if number in errors:
                    unknown.add(first + number)
                    continue
                stored.add(first + number)
                wanted = 1 if (first + number) % 5 == 0 else 3
                assert len(set(receipt.ids)) == wanted
        return stored, unknown


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.soak)])
def test_a_routed_message_is_stored_for_all_topics_or_for_none(
    replay: Replay, tmp_path: Path, figure: Callable[[str], None], kills: int
) -> None:
    data, rng, address = tmp_path / "data", Random(kills), free_address()
    (tmp_path / "policies.toml").write_text(ROUTE)
    options = ("--listen", address, "--policies", str(tmp_path / "policies.toml"))
    files = [tmp_path / "patient.receipts", tmp_path / "hasty.receipts"]
    with NodeProcess(data, *options, "--retain", "1h", *SMALL) as node:
        with Client(address) as client:
            eventually(lambda: client.policies()["version"] == 1)
        patient = Sender(address, 0, 60.0, files[0])
        hasty = Sender(address, 10_000_000, 0.05, files[1])
        for _ in range(kills):
            time.sleep(rng.uniform(0.1, 0.9))
            node.kill()
            time.sleep(rng.uniform(0.0, 0.3))
            node.start()
        time.sleep(0.3)
        unknown = hasty.stop()[1]
        stored, failed = patient.stop()
        assert failed == set()

        def pending() -> float:
            return node.metric("slotwheel_pending")

        eventually(lambda: pending() == 0)
        node.signal()
    found = {
        topic: Counter(int(row["value"]) for row in topic_rows(data, topic)) for topic in TOPICS
    }
    routed = {
        topic: {number for number in numbers if number % 5} for topic, numbers in found.items()
    }
    assert routed["one"] == routed["two"] == routed["three"], "a message came to some topics only"
    assert stored <= set(found["one"])
    assert {number for number in stored if number % 5} <= routed["three"]
    there = len(routed["one"] & unknown)
    asked = sum(1 for number in unknown if number % 5)
    rows = [part for path in files for part in ("--receipts", path)]
    code, out, errors = replay(data, *rows, "--json")
    verdict = json.loads(out)
    assert code == 0, (verdict, errors)
    counts = verdict["counts"]
    assert counts["delivered"] == sum(map(len, found.values()))
    assert counts.get("repeated", 0) == sum(map(sum, map(Counter.values, found.values()))) - sum(
        map(len, found.values())
    )
    figure(
        f"route to three topics, {kills} kills: {len(stored)} messages with a receipt, all in all"
        f" their topics; of {asked} without one {there} are stored, each for all three; proven"
    )
    assert len(stored) > 100 * kills
    assert unknown
