"""Schedules of every 1 to 7 s while the node, or the master of three, is killed again and again:
each run is exactly one message, and its time is the one behind the run before.

1000 schedules and 50 kills: ``python -m pytest -m soak tests/test_schedule_kills.py``
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slotwheel.client import Client
from support.nodeprocess import topic_rows
from support.peers import PEERS, Peers
from support.waiting import eventually, now_ms

TOPIC = "beats"


def rows_of(peers: Peers) -> list[dict[str, bytes]]:
    """The headers of all that was delivered, on whatever peer."""
    found: list[dict[str, bytes]] = []
    for name in peers.names:
        if (peers[name].data / "topics").exists():
            found += [_headers(row) for row in topic_rows(peers[name].data, TOPIC)]
    return found


def _headers(row: dict[str, Any]) -> dict[str, bytes]:
    pairs = [
        (each["key"], each["value"]) if isinstance(each, dict) else each for each in row["headers"]
    ]
    return {**dict(pairs), "id": b"%d.%d" % (row["due"].timestamp() * 1000, row["offset"])}


def wrong(rows: Sequence[dict[str, bytes]], every_ms: dict[str, int], upto_ms: int) -> list[str]:
    """What is wrong with the messages of schedules, of which all that are due up to ``upto_ms``
    have to be there."""
    ids: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    nominal: dict[tuple[str, int], int] = {}
    for headers in rows:
        run = headers["slotwheel-schedule"].decode(), int(headers["slotwheel-schedule-run"])
        ids[run].add(headers["id"])
        nominal[run] = int(headers["slotwheel-schedule-due-ms"])
    found = [f"{run}: {sorted(those)}" for run, those in ids.items() if len(those) > 1]
    for name, ms in every_ms.items():
        number = 1
        while (at := nominal.pop((name, number), None)) is not None:
            before = nominal.get((name, 0), at - ms)
            if at != before + ms:
                found.append(f"{name} run {number} at {at}, before it was {before}")
            nominal[name, 0] = at
            number += 1
        last = nominal.pop((name, 0), 0)
        if last + ms <= upto_ms:
            found.append(f"{name}: nothing behind {last}")
    return found + [f"{run} without the one before" for run in nominal]


@pytest.mark.parametrize(
    ("names", "schedules", "kills"),
    [
        pytest.param(("a",), 60, 3, id="3 kills of a node alone"),
        pytest.param(PEERS, 60, 1, id="a failover"),
        pytest.param(("a",), 1000, 50, marks=pytest.mark.soak, id="50 kills of a node alone"),
        pytest.param(PEERS, 1000, 50, marks=pytest.mark.soak, id="50 failovers"),
    ],
)
def test_each_run_is_one_message(
    tmp_path: Path,
    figure: Callable[[str], None],
    names: Sequence[str],
    schedules: int,
    kills: int,
) -> None:
    chance = random.Random(kills)
    every_ms = {f"s{number}": 1000 + 1000 * (number % 7) for number in range(schedules)}
    with Peers(tmp_path, names=names) as peers:
        peers.start()
        with Client(peers.addresses) as client:
            for name, ms in every_ms.items():
                template = {"topic": TOPIC, "value": name}
                client.schedules.put({"name": name, "every_ms": ms, "template": template})
            for _ in range(kills):
                time.sleep(chance.uniform(0.1, 1.5))
                peers[peers.master()].kill()
                peers.start()
            peers.master()
            ended_ms = now_ms()
            shown = {each["schedule"]["name"]: each for each in client.schedules.list()}
            fired = sum(each["runs"] for each in shown.values())
            eventually(lambda: not wrong(rows_of(peers), every_ms, ended_ms), every_s=0.3)
            assert sum(each["missed"] for each in shown.values()) == 0
        rows = rows_of(peers)
        assert wrong(rows, every_ms, ended_ms) == []
        figure(f"{kills} kills of {len(names)}: {fired} runs fired, {len(rows)} rows delivered")
