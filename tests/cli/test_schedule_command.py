"""``slotwheel schedule`` and ``client.schedules``, against a running node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from slotwheel import AsyncClient, Client
from slotwheel.wheel.errors import InvalidMessage, ScheduleChanged, UnknownSchedule
from support.nodeprocess import NodeProcess, json_lines, run_cli

BEAT = {"name": "beat", "every_ms": 1_009 * 3_600_000, "template": {"topic": "beats", "value": "x"}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("cli") / "data") as started:
        yield started


def test_a_schedule_from_its_put_to_its_end(node: NodeProcess) -> None:
    at = ("--node", node.address)
    both = [BEAT, {**BEAT, "name": "other", "paused": True}]
    done = run_cli("schedule", "put", "-", *at, given=json.dumps(both))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["beat", "other"]
    listed = json_lines(run_cli("schedule", "list", "--json", *at).stdout)
    assert [each["schedule"]["name"] for each in listed] == ["beat", "other"]
    assert len(listed[0]["next_ms"]) == 1
    assert listed[1]["next_ms"] == []
    for given in (("--prefix", "be"), ("--topic", "beats", "--prefix", "b"), ("--topic", "be*")):
        listed = json_lines(run_cli("schedule", "list", "--json", *given, *at).stdout)
        assert [each["schedule"]["name"] for each in listed][:1] == ["beat"]
        assert len(listed) == 1 + (given == ("--topic", "be*"))
    assert json_lines(run_cli("schedule", "list", "--json", "--topic", "b", *at).stdout) == []
    (shown,) = json_lines(run_cli("schedule", "show", "beat", "--json", *at).stdout)
    assert shown["schedule"] == BEAT
    assert len(shown["next_ms"]) == 10
    assert all(ms % 3_600_000 == 0 for ms in shown["next_ms"])
    done = run_cli("schedule", "run", "beat", *at)
    name, number, message_id = done.stdout.strip().split("\t")
    assert (name, number) == ("beat", "1")
    (row,) = node.wait_for("beats", 1)
    assert row["value"] == b"x"
    text = run_cli("schedule", "show", "beat", *at).stdout
    assert message_id in text
    assert "paused" in run_cli("schedule", "list", *at).stdout
    assert run_cli("schedule", "pause", "beat", *at).returncode == 0
    assert "no further run" in run_cli("schedule", "pause", "beat", *at).stdout
    assert "no further run" not in run_cli("schedule", "resume", "beat", *at).stdout
    for name in ("beat", "other"):
        assert run_cli("schedule", "delete", name, *at).stdout == f"{name}\tdeleted\n"
    done = run_cli("schedule", "show", "beat", "--json", *at)
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["code"] == "unknown-schedule"


def test_what_is_no_schedule_is_refused_with_its_place(node: NodeProcess) -> None:
    at = ("--node", node.address)
    done = run_cli("schedule", "put", "-", *at, given=json.dumps({**BEAT, "every_ms": 5}))
    assert done.returncode == 1
    assert "schedule 'beat', every_ms; got 5; expected 1000 to" in done.stderr
    for given in ("{", "5", "[5]"):
        assert run_cli("schedule", "put", "-", *at, given=given).returncode == 2
    never = {"name": "n", "cron": "0 0 1 1 *", "end_ms": 1_000_000_000_000, "template": {}}
    never["template"] = {"topic": "t"}
    done = run_cli("schedule", "put", "-", *at, given=json.dumps(never))
    assert "it ends before its first run" in done.stderr


def test_who_has_not_seen_the_last_change_changes_nothing(node: NodeProcess) -> None:
    with Client(node.address) as client:
        for given, said in (
            ([BEAT], "one schedule at a time"),
            (json.dumps(BEAT), "a text by json.loads"),
            ({**BEAT, "template": {"topic": "t", "value": b"raw"}}, "bytes in value_base64"),
        ):
            with pytest.raises(InvalidMessage, match=said):
                client.schedules.put(given)  # type: ignore[arg-type]
        first = client.schedules.put(BEAT, version=0)["version"]
        assert client.schedules.put(BEAT)["version"] == first, "it is there already"
        changed = {**BEAT, "every_ms": 7_200_000}
        second = client.schedules.put(changed, version=first)["version"]
        assert second > first
        with pytest.raises(ScheduleChanged, match=f"got version {second}; expected version"):
            client.schedules.put({**BEAT, "every_ms": 60_000}, version=first)
        with pytest.raises(ScheduleChanged, match="expected no such schedule"):
            client.schedules.put({**BEAT, "every_ms": 60_000}, version=0)
        with pytest.raises(ScheduleChanged):
            client.schedules.delete("beat", version=first)
        assert client.schedules.get("beat")["schedule"] == changed
        client.schedules.delete("beat", version=second)
        with pytest.raises(UnknownSchedule):
            client.schedules.pause("beat")
        with pytest.raises(UnknownSchedule):
            client.schedules.delete("beat")


def test_schedules_with_asyncio(node: NodeProcess) -> None:
    async def use() -> list[str]:
        async with AsyncClient(node.address) as client:
            schedules = client.schedules
            await schedules.put(BEAT)
            number, _ = await schedules.run("beat")
            assert number == 1
            assert (await schedules.pause("beat"))["next_ms"] == []
            assert (await schedules.resume("beat"))["runs"] == 1
            assert (await schedules.get("beat"))["last"]["run"] == 1
            names = [shown["schedule"]["name"] for shown in await schedules.list()]
            await schedules.delete("beat")
            return names

    assert asyncio.run(use()) == ["beat"]


def test_metrics_count_schedules(node: NodeProcess) -> None:
    with Client(node.address) as client:
        client.schedules.put(BEAT)
        fired = node.metric("slotwheel_schedule_runs_total")
        client.schedules.run("beat")
        assert node.metric("slotwheel_schedules") == 1
        assert node.metric("slotwheel_schedule_runs_total") == fired + 1
        assert node.metric("slotwheel_schedule_missed_total") == 0
        client.schedules.delete("beat")
