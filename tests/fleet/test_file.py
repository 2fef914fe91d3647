"""The file of a fleet: what it may say, and what it is told when it says something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwheel.fleet.file import nodes_of, read_fleet
from slotwheel.wheel.errors import InvalidConfiguration


def test_wheels_are_named_with_their_nodes(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[wheels]\nnorth = "a:7200,b:7200"\nsouth = "tls://d:7200"\n'
        '[gateways]\nnorth = "http://a:80, https://b:81"\n'
    )
    read = read_fleet(path)
    assert read.wheels == {"north": "a:7200,b:7200", "south": "tls://d:7200"}
    assert read.gateways == {"north": ("http://a:80", "https://b:81")}
    nodes = nodes_of(read.wheels, token="env:TOKEN")
    assert str(nodes["north"]) == "a:7200,b:7200"
    assert nodes["south"].token == "env:TOKEN"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "names no wheels"),
        (b"wheels = 3", "names no wheels"),
        (b"[wheels", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[wheels]\nnorth = 7200\n", "the addresses of the wheel 'north' are no text"),
        (b'[wheels]\n[wheels.north]\nnodes = "a:1"\n', "the wheel 'north' are no text"),
        (b'name = "x"\n[wheels]\nnorth = "a:1"\n', "says name"),
        (b'[wheels]\nnorth = "a:1"\n[tls]\nca = "x"\n', "says tls"),
        (b'[wheels]\nnorth = "a:1"\n[gateways]\nsouth = "http://a:1"\n', "names 'south'"),
        (b'[wheels]\nnorth = "a:1"\n[gateways]\nnorth = "a:1"\n', "cannot be reached at 'a:1'"),
        (b'[wheels]\nnorth = "a:1"\n[gateways]\nnorth = ["http://a:1"]\n', "are no text"),
        (b'gateways = 1\n[wheels]\nnorth = "a:1"\n', "names no gateways"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(text)
    with pytest.raises(InvalidConfiguration, match=r"fleet\.toml") as refused:
        read_fleet(path)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"none\.toml"):
        read_fleet(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("wheels", "said"),
    [
        ({}, "0 wheels"),
        ({"no dots.": "a:1"}, "no dots."),
        ({"": "a:1"}, "name is not usable"),
        ({"north": "a"}, "host:port"),
        ({"north": ""}, "host:port"),
        ({"north": "a:1", "south": "b:1,a:1"}, "a:1: north and south"),
        ({"north": "http://a:80"}, "reached at its nodes"),
        ({"north": "a:1,https://b:1"}, "reached at its nodes"),
        ({"north": "a:1,tls://b:1"}, "the first is not"),
    ],
)
def test_wheels_that_cannot_be_are_refused(wheels: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        nodes_of(wheels)
    assert said in str(refused.value)
