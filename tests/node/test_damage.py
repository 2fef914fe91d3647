"""A bit of a resting file flips under a node: found ahead of time, told everywhere, mended."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwheel import Client, Message
from slotwheel.node.damage import Damage
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, SECOND_S, slot_with
from support.damage import flip
from support.nodeprocess import NodeProcess, run_cli
from support.waiting import eventually

SPILL_SOON = ("--tail-age", "300ms", "--tail-keep", "100ms")


def slot_file(node: NodeProcess) -> Path:
    eventually(lambda: node.metric("slotwheel_slot_rows") == 40 and not node.metric(TAIL))
    [path] = (node.data / "slots").iterdir()
    return path


TAIL = "slotwheel_tail_rows"


def send(node: NodeProcess, topic: str, count: int, delay_s: float) -> list[str]:
    with Client(node.address) as client:
        due = int((time.time() + delay_s) * 1000)
        return client.send_many([Message(topic, b"%d" % n, due=due) for n in range(count)]).result(
            60
        )


def status(node: NodeProcess) -> dict[str, Any]:
    with Client(node.address) as client:
        return client.status()


@pytest.mark.parametrize("running", [True, False])
def test_a_flipped_bit_is_told_long_before_its_slot_is_due(tmp_path: Path, running: bool) -> None:
    with NodeProcess(tmp_path / "data", *SPILL_SOON) as node:
        send(node, "later", 40, 3000)
        path = slot_file(node)
        assert node.get("/readyz")[0] == 200
        if not running:
            node.signal()
        flip(path)
        if not running:
            node.start()
        _, body = eventually(lambda: (page := node.get("/readyz"))[0] == 503 and page)
        [reason] = json.loads(body)["reasons"]
        assert f"slots/{path.name} is damaged at byte" in reason
        assert "When it is due, delivery stops there. Stop the node, " in reason
        assert f"slotwheel repair {node.data}" in reason
        assert node.get("/healthz")[0] == 200, "a restart would not help"
        assert status(node)["damaged_files"] == [reason]
        assert node.metric("slotwheel_damaged_files") == 1
        alarms = 'slotwheel_alarms_total{kind="slot-file-damaged"}'
        # An alarm is counted first, and then logged.
        eventually(lambda: reason in node.log_text().replace('\\"', '"'))
        assert node.metric(alarms) == 1
        # What is due before it leaves as ever, and so do new messages.
        send(node, "soon", 3, 0.1)
        assert len(node.wait_for("soon", 3)) == 3
        assert node.metric("slotwheel_scrubbed_bytes_total") > 0
        if not running:
            flip(path)  # back: as if a backup had been put in its place
            eventually(lambda: node.get("/readyz")[0] == 200)
            assert node.metric(alarms) == 1


def test_a_slot_that_is_due_waits_for_its_repair_and_then_all_of_it_leaves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, *SPILL_SOON) as node:
        send(node, "damaged", 40, 4)
        path = slot_file(node)
        flip(path)
        send(node, "behind", 5, 5)
        eventually(lambda: "delivery-error" in node.log_text())
        time.sleep(1.5)  # what is behind it is due by now
        [alarm] = [line for line in node.log_text().splitlines() if "delivery-error" in line]
        assert "delivery stands still: slots/" in alarm
        assert "see what 'slotwheel repair' says" in alarm
        eventually(lambda: "slot-file-damaged" in node.log_text())
        assert node.log_text().count("alarm ") == 2
        assert "Traceback" not in node.log_text()
        [reason] = status(node)["damaged_files"]
        assert "It is due, and delivery stands still until it is mended. Stop the node" in reason
        assert json.loads(node.get("/readyz")[1])["reasons"] == [reason]
        assert node.delivered("damaged") == node.delivered("behind") == []
        assert run_cli("repair", data, "--yes").returncode == 1, "a node is running on it"
        node.signal()
        done = run_cli("repair", data, "--yes")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "40 in the journal, 0 more in sound blocks, 0 lost" in done.stdout
        node.start()
        values = [row["value"] for row in node.wait_for("damaged", 40)]
        assert sorted(values) == sorted(b"%d" % number for number in range(40))
        node.wait_for("behind", 5)
        assert node.get("/readyz")[0] == 200
        node.signal()
    assert "0 invalid" in run_cli("verify", data).stdout


@pytest.mark.parametrize(
    ("width", "now", "held", "effect"),
    [
        (SECOND_S, "23:59", False, "When it is due, delivery stops there. "),
        (DAY_S, "23:59", False, "At 2030-03-18T00:00:00.000Z, delivery stops there, as it may "),
        (DAY_S, "23:59", False, "messages due at any time until 2030-03-19T00:00:00.000Z. "),
        (DAY_S, "12:00", False, "It is due, and delivery stands still until it is mended, as "),
        (DAY_S, "12:00", True, "It is due, and delivery stands still until it is mended, as "),
        (DAY_S, "after", True, "Messages in it of topics that are held back wait until it is "),
        (HOUR_S, "12:00", True, "Messages in it of topics that are held back wait until it is "),
    ],
)
def test_it_is_told_when_a_damaged_file_stops_delivery(
    width: int, now: str, held: bool, effect: str
) -> None:
    begin = 1_900_022_400
    after_s = {"23:59": -60, "12:00": 43_200, "after": 86_400}[now]
    now_ms = (begin + after_s) * 1000
    wheel = SimpleNamespace(
        dispatcher=object(),
        damaged=lambda: {slot_with(begin, width): "slots/x is damaged"},
        status=lambda: SimpleNamespace(held_topics=["t"] if held else [], mark_c=now_ms),
    )
    unused: Any = None
    damage = Damage(cast(Any, wheel), unused, "Mend it", lambda: now_ms, unused, unused)
    [text] = damage.slot_files()
    assert text.startswith("slots/x is damaged. ")
    assert effect in text
    assert text.endswith(". Mend it")


def _with_new_ones(data: Path, topic: str) -> tuple[Any, list[str]] | None:
    """What ``consume`` found, once what was sent last is there, and the values in it."""
    done = consume(data, topic)
    values = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    return (done, values) if values[-4:] == ["0", "1", "2", "3"] else None


def test_damaged_topics_keep_no_node_from_starting(tmp_path: Path) -> None:
    data = tmp_path / "data"
    damaged = {
        f"{suffix}-{place}": data / "topics" / f"{suffix}-{place}" / f"{0:020d}.{suffix}"
        for suffix in ("arrows", "index")
        for place in ("header", "middle", "end")
    }
    with NodeProcess(data) as node:
        for _ in range(3):
            for topic in damaged:
                send(node, topic, 5, 0.05)
        for topic in damaged:
            node.wait_for(topic, 15)
        node.signal()
        for topic, path in damaged.items():
            size = path.stat().st_size
            flip(path, {"header": 9, "middle": size // 2, "end": size - 6}[topic.split("-")[1]])
        before = {
            each: each.read_bytes() for path in damaged.values() for each in path.parent.iterdir()
        }
        node.start()
        for topic in damaged:
            send(node, topic, 4, 0.05)
            done, values = eventually(partial(_with_new_ones, data, topic))
            assert f"{topic}: positions" in done.stderr or len(values) == 19
        assert {path: path.read_bytes() for path in before} == before
        told = sorted(status(node)["damaged_files"])
        for one, (topic, path) in zip(told, sorted(damaged.items()), strict=True):
            assert f"topics/{topic}/{path.name} is damaged at byte" in one
        assert node.metric("slotwheel_damaged_files") == len(damaged)
        assert node.metric('slotwheel_alarms_total{kind="topic-damaged"}') == len(damaged)
        assert node.get("/readyz")[0] == 200, "it does its whole job"
    report = json.loads(run_cli("verify", data, "--json").stdout)
    paths = {f"topics/{topic}/{0:020d}.arrows" for topic in damaged}
    assert {one["path"] for one in report["faults"]} == paths
    assert {one["path"] for one in report["notes"] if "set aside" in one["found"]} == paths


def consume(data: Path, topic: str) -> Any:
    return run_cli("consume", topic, "--data", data, "--json")
