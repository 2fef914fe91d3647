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
from support.nodeprocess import NodeProcess, json_lines, run_cli
from support.peers import Peers
from support.plainproof import prove_here
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
            name, delay = f"n-{number % 7}-{ahead}", ahead + number % 3
            mode = ("replace", "keep", "refuse")[number % 3]
            message = Message(
                "named", b"%d" % number, name=name, if_exists=mode, ttl=60, delay=delay
            )
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


def test_the_other_readers_show_names(data: Path) -> None:
    assert run_cli("verify", data).returncode == 0
    shown = run_cli("inspect", "journal", data, "--limit", "0", "--rows", "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    noted = [one for line in json_lines(shown.stdout) for one in line.get("named", ())]
    assert {"replaced", "kept"} <= {one["before"] for one in noted}
    assert run_cli("inspect", "names", data).returncode == 0
    for number in range(7):
        for ahead in AHEAD_S[1:]:
            ids = ids_of(data, f"n-{number}-{ahead}")
            assert len(ids) <= 1, ids
    assert len(ids_of(data, "twice")) == 1


def ids_of(data: Path, name: str) -> list[str]:
    """Of the pending messages of a name."""
    done = run_cli("search", data, "--topic", "named", "--name", name, "--json")
    assert done.returncode == 0, done.stderr
    return [line["id"] for line in json_lines(done.stdout) if "id" in line]


def test_peers_with_names_agree_and_are_proven_after_the_master_was_killed(tmp_path: Path) -> None:
    with Peers(tmp_path, *OPTIONS) as peers:
        for round_ in range(2):
            master = peers.wait_until_whole()
            with Client(peers.addresses, timeout_s=60) as client:
                play(client, round_ * NAMES)
                peers[master].kill()
                play(client, round_ * NAMES)
            peers[master].start()
        peers.wait_until_whole()
        peers.stop()
        assert peers.disagreements() == []
        found = find([str(peers[name].data) for name in peers.names])
    verdict = prove_here(found, Options())
    assert verdict.proven, (verdict.reasons, verdict.open_points, verdict.problems)
    assert [pair.different for pair in verdict.agreement] == [0, 0, 0]
    assert verdict.counts["cancelled"] > NAMES
