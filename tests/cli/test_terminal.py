"""What others chose reaches a terminal as text, and never as a command to it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slotwheel.cli
from slotwheel.cli import main
from slotwheel.client.client import Client
from slotwheel.wheel.errors import InvalidMessage, SlotwheelError

ROOM = Path(slotwheel.cli.__file__).parent
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b1mname\x00\u202e"


def answering(found: object) -> Callable[..., Any]:
    def status(_client: Client) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return status


@pytest.mark.parametrize(
    "found",
    [
        InvalidMessage(HOSTILE, got=HOSTILE, limit=HOSTILE, remedy=HOSTILE),
        SlotwheelError(HOSTILE),
        OSError(HOSTILE),
        {"group": HOSTILE, HOSTILE: [HOSTILE], "sources": [], "not_read": [], "not_stored": ""},
        {
            "replication": {
                "me": HOSTILE,
                "master": HOSTILE,
                "peers": [{"id": HOSTILE, "connected": False, "error": HOSTILE}],
            },
            "sources": [],
            "not_read": [],
            "not_stored": "",
            "not_read_dropped": 0,
        },
    ],
)
def test_what_a_server_says_is_no_command_to_the_terminal(
    found: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Client, "status", answering(found))
    main.run(["status", "--node", "127.0.0.1:1"])
    out, err = capsys.readouterr()
    assert "name" in out + err
    for one in out + err:
        assert one.isprintable() or one in "\n\t", repr(one)


def test_no_command_prints_but_by_the_function_that_does_so() -> None:
    for path in ROOM.rglob("*.py"):
        if path == ROOM / "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"echo", "secho", "echo_via_pager"}, f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"
