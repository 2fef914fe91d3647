"""Commands with ``--fleet``: two wheels of real nodes, one of which ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotwheel.cli.fleet import should_take_more
from slotwheel.wheel.ids import MessageId
from support.nodeprocess import NodeProcess, json_lines, run_cli


@dataclass(frozen=True)
class TwoWheels:
    file: Path
    north: NodeProcess
    south: NodeProcess

    @property
    def fleet(self) -> tuple[str, ...]:
        return ("--fleet", str(self.file))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoWheels]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        NodeProcess(folder / "n", "--group", "north") as north,
        NodeProcess(folder / "s", "--group", "south") as south,
    ):
        file = folder / "fleet.toml"
        file.write_text(f'[wheels]\nnorth = "{north.address}"\nsouth = "{south.address}"\n')
        yield TwoWheels(file, north, south)


def ids_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_messages_of_a_fleet_from_send_to_cancel(wheels: TwoWheels) -> None:
    ids = []
    for number in range(8):
        done = run_cli("send", "t", "x", "--key", f"k{number}", "--delay", "1h", *wheels.fleet)
        assert (done.returncode, done.stderr) == (0, "")
        ids += ids_of(done.stdout)
    assert {MessageId.parse(text).group for text in ids} == {"north", "south"}
    named = run_cli("send", "t", "x", "--name", "n", "--delay", "1h", *wheels.fleet)
    moved = run_cli("reschedule", "--topic", "t", "--name", "n", "--delay", "2h", *wheels.fleet)
    _, answer, new_id = moved.stdout.strip().split("\t")
    assert answer == "cancelled"
    assert MessageId.parse(new_id).group == MessageId.parse(named.stdout.strip()).group
    done = run_cli("cancel", *ids, "--json", *wheels.fleet)
    assert [line["answer"] for line in json_lines(done.stdout)] == ["cancelled"] * 8
    done = run_cli("cancel", "--topic", "t", "--name", "n", *wheels.fleet)
    assert done.stdout == f"n\tcancelled\t{new_id}\n"


def test_schedules_of_a_fleet_are_one_list(wheels: TwoWheels) -> None:
    names = [f"beat-{number}" for number in range(6)]
    beats = [
        {"name": name, "every_ms": 1_009 * 3_600_000, "template": {"topic": "t"}} for name in names
    ]
    done = run_cli("schedule", "put", "-", *wheels.fleet, given=json.dumps(beats))
    assert (done.returncode, done.stderr) == (0, "")
    listed = json_lines(run_cli("schedule", "list", "--json", *wheels.fleet).stdout)
    assert [each["schedule"]["name"] for each in listed] == names
    shares = [
        run_cli("schedule", "list", "--json", *wheels.fleet, "--wheel", wheel).stdout.count("\n")
        for wheel in ("north", "south")
    ]
    assert sum(shares) == 6
    assert min(shares) > 0
    for name in names:
        assert run_cli("schedule", "show", name, *wheels.fleet).returncode == 0
        assert run_cli("schedule", "delete", name, *wheels.fleet).returncode == 0
    assert run_cli("schedule", "show", "beat-1", *wheels.fleet).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", "--fleet", "FILE"), "name it by --wheel: north, south"),
        (("status", "--fleet", "FILE", "--wheel", "west"), "has no wheel 'west'"),
        (("status", "--wheel", "north"), "--wheel is for --fleet"),
        (("send", "t", "x", "--delay", "1h", "--fleet", "FILE", "--node", "a:1"), "not both"),
        (("fleet", "status"), "Give --fleet"),
        (("fleet", "status", "--fleet", "FILE", "--wheel", "north"), "Give --fleet"),
    ],
)
def test_a_wheel_that_cannot_be_meant_is_a_wrong_use(
    wheels: TwoWheels, arguments: tuple[str, ...], said: str
) -> None:
    given = [str(wheels.file) if word == "FILE" else word for word in arguments]
    done = run_cli(*given)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_bad_file_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[wheels]\n"a.b" = "a:1"\n')
    done = run_cli("cancel", "x", "--fleet", str(file))
    assert done.returncode == 1
    assert "'a.b'" in done.stderr


def test_the_wheels_are_shown_side_by_side_and_one_that_is_away_is_named(
    wheels: TwoWheels,
) -> None:
    assert run_cli("status", *wheels.fleet, "--wheel", "south").stdout.startswith("group ")
    done = run_cli("fleet", "status", "--over", "100ms", *wheels.fleet)
    assert (done.returncode, done.stderr) == (0, "")
    heads, *rows = [line.split() for line in done.stdout.splitlines() if "─" not in line]
    assert heads[0] == "wheel"
    assert [row[:2] for row in rows] == [["north", "there"], ["south", "there"]]
    wheels.south.kill()
    done = run_cli("fleet", "status", "--json", "--over", "100ms", "--timeout", "1s", *wheels.fleet)
    assert done.returncode == 1
    (shown,) = json_lines(done.stdout)
    assert shown["complete"] is False
    north, south = shown["wheels"]
    assert (north["state"], north["problem"]) == ("there", "")
    assert north["pending"] is not None
    assert (south["state"], south["pending"]) == ("away", None)
    assert south["problem"]
    assert (north["late_ms"], south["late_ms"]) == (0, None)
    assert shown["should_take_more"] is None
    assert shown["advice"] == "who should take more is unknown: south does not answer"
    id_of_south = "south.1795834972712.0.e9fbfb0c9f204920"
    done = run_cli("cancel", id_of_south, "--timeout", "1s", *wheels.fleet)
    assert (done.returncode, done.stdout) == (1, f"{id_of_south}\tunreachable\n")


def row(wheel: str, share: float, late_ms: int = 0, **more: Any) -> dict[str, Any]:
    known = {"state": "there", "pending": 1, "partitions": None, "lag": None}
    return {"wheel": wheel, "share": share, "late_ms": late_ms, **known, **more}


@pytest.mark.parametrize(
    ("rows", "who", "said"),
    [
        ([row("a", 0.5), row("b", 0.5)], [], "no wheel has too much to do"),
        (
            [row("a", 0.8, 4_200), row("b", 0.2)],
            ["b"],
            "a is late by 4.2 s. b could take more: a gets more than an equal share of what comes"
            " in: a few keys have many messages. Spread them over more keys, or send without a key",
        ),
        (
            [row("a", 0.5, lag=20_000, partitions=9), row("b", 0.5, lag=0, partitions=3)],
            ["b"],
            "a has 20,000 records to read. b could take more: partitions are shared unequally: give"
            " the delay topics more of them",
        ),
        (
            [row("a", 0.5, 5_000), row("b", 0.5)],
            ["b"],
            "a is late by 5.0 s. b could take more: the shares are equal: look for what slows the"
            " others down, a disk or a topic",
        ),
        (
            [row("a", 0.5, 2_000), row("b", 0.5, 3_000)],
            [],
            "a is late by 2.0 s; b is late by 3.0 s. Every wheel that takes messages has too much"
            " to do: add another one",
        ),
        (
            [row("a", 1.0, 2_000), row("b", 0.0, state="draining")],
            [],
            "a is late by 2.0 s. Every wheel that takes messages has too much to do: add another"
            " one",
        ),
        ([row("a", 0.5, 9_000), row("b", 0.5, pending=None)], None, "b does not answer"),
    ],
)
def test_who_should_take_more_is_told(
    rows: list[dict[str, Any]], who: list[str] | None, said: str
) -> None:
    more, advice = should_take_more(rows)
    assert more == who
    assert said in advice
