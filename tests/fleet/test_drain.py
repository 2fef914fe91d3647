"""A wheel that is emptied refuses nothing that another one could take, and goes on delivering."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from slotwheel import Client, Message
from slotwheel.fleet.fleet import Fleet
from slotwheel.fleet.routing import Routing
from slotwheel.node.intake.door import ANNOUNCED_MS
from slotwheel.wheel.errors import Draining
from slotwheel.wheel.ids import MessageId
from support.fakefleet import NAMES
from support.fakewheel import FakeWheel
from support.nodeprocess import NodeProcess, json_lines, run_cli
from support.waiting import eventually, now_ms


def test_messages_go_past_a_wheel_that_drains_and_keys_to_the_next_of_their_rank(
    fleet: Fleet, wheels: dict[str, FakeWheel]
) -> None:
    wheels["south"].draining = {"since_ms": now_ms()}
    eventually(lambda: fleet.status()["wheels"]["south"]["state"] == "draining")
    eventually(lambda: "south" not in fleet.turns)
    every, rest = Routing(NAMES), Routing(["north", "west"])
    for number in range(60):
        key = f"k{number}".encode()
        group = MessageId.parse(fleet.store("t", b"x", key=key, delay=60)).group
        assert group == rest.wheel_of(key)
        if every.wheel_of(key) != "south":
            assert group == every.wheel_of(key)
        assert MessageId.parse(fleet.store("t", b"x", delay=60)).group != "south"
    wheels["south"].draining = {}
    eventually(lambda: "south" in fleet.turns)
    ids = fleet.send_many([Message("t", b"x", key=f"k{n}", delay=60) for n in range(60)])
    assert {MessageId.parse(text).group for text in ids.result(20)} == set(NAMES)


def test_if_all_drain_their_error_is_told(fleet: Fleet, wheels: dict[str, FakeWheel]) -> None:
    for wheel in wheels.values():
        wheel.draining = {"since_ms": now_ms() - ANNOUNCED_MS}
    states = {"draining"}
    eventually(lambda: {w["state"] for w in fleet.status()["wheels"].values()} == states)
    assert fleet.store("t", b"x", delay=60)  # these made up ones have no door


def test_a_node_announces_refuses_and_goes_on_delivering(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.address, timeout_s=20) as client:
            drain_and_be_refused(node, client)
        node.kill()
        node.start()
        with Client(node.address, timeout_s=20) as client:
            take_again(node, client)


def drain_and_be_refused(node: NodeProcess, client: Client) -> None:
    early = client.store("t", b"early", delay="7s")
    far = client.store("t", b"far", delay="1h")
    client.drain()
    client.drain()  # which changes nothing
    assert client.hello(5)["draining"] is True
    assert client.status()["draining"] is True
    assert client.store("t", b"announced", delay="1h")
    time.sleep(ANNOUNCED_MS / 1000)
    for send in (
        lambda: client.store("t", b"x", delay="1h"),
        lambda: client.send("t", b"x", delay="1h").result(),
        lambda: client.send_many([Message("t", b"x", delay=60)] * 300).result(),
    ):
        with pytest.raises(Draining, match="takes no new messages") as refused:
            send()
        assert not refused.value.uncertain
    answer, moved = client.reschedule(far, delay="30m")
    assert answer == "cancelled"
    assert moved is not None
    node.wait_for("t", 1)
    assert client.cancel([early, moved]) == ["already delivered", "cancelled"]


def take_again(node: NodeProcess, client: Client) -> None:
    assert client.status()["draining"] is True
    with pytest.raises(Draining):
        client.store("t", b"x", delay="1h")
    done = run_cli("drain", "--json", "--node", node.address)
    assert (done.returncode, json_lines(done.stdout)) == (
        1,
        [{"pending": 1, "schedules": 0, "empty": False}],
    )
    assert run_cli("undrain", "--node", node.address).stdout == "it takes messages\n"
    assert client.store("t", b"again", delay="1h")
    assert node.metric("slotwheel_draining") == 0


def test_no_message_is_refused_while_one_of_two_wheels_is_drained_under_load(
    tmp_path: Path,
) -> None:
    with (
        NodeProcess(tmp_path / "n", "--group", "north") as north,
        NodeProcess(tmp_path / "s", "--group", "south") as south,
        Fleet({"north": north.address, "south": south.address}, timeout_s=20) as fleet,
    ):
        stop = threading.Event()
        sent: list[str] = []

        def send() -> None:
            number = 0
            while not stop.is_set():
                batch = [
                    Message("t", b"%d" % at, key=f"k{at}" if at % 2 else None, delay="2s")
                    for at in range(number, number + 50)
                ]
                sent.extend(fleet.send_many(batch).result(20))
                sent.append(fleet.store("t", b"one", key="one", delay="2s"))
                number += 50
                stop.wait(0.02)

        sender = threading.Thread(target=send)
        sender.start()
        file = tmp_path / "fleet.toml"
        file.write_text(f'[wheels]\nnorth = "{north.address}"\nsouth = "{south.address}"\n')
        drained = run_cli("drain", "--wait", "--fleet", str(file), "--wheel", "north")
        time.sleep(ANNOUNCED_MS / 1000 + 0.5)
        stop.set()
        sender.join(60)
        assert not sender.is_alive()
        assert drained.returncode == 0
        assert drained.stdout.startswith("empty")
        by_wheel = Counter(MessageId.parse(text).group for text in sent)
        assert min(by_wheel["north"], by_wheel["south"]) > 100
        assert MessageId.parse(sent[-1]).group == "south"
        eventually(lambda: not south_pending(fleet))
        rows = north.delivered("t") + south.delivered("t")
        assert len(rows) == len(sent)


def south_pending(fleet: Fleet) -> int:
    return int(fleet.wheel("south").status()["pending"])
