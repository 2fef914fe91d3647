"""What others chose reaches a terminal as text, and never as a command to it."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotwheel.cli
from slotwheel.cli import main
from slotwheel.cli.printing import print_table, text_line
from slotwheel.cli.progress import progress_bar
from slotwheel.cli.terminal import echo
from slotwheel.client.client import Client
from slotwheel.client.httpconnection import GatewayAnswer
from slotwheel.node.logs import JsonLines, TextLines
from slotwheel.wheel.errors import InvalidMessage, SlotwheelError, from_wire
from slotwheel.wheel.protocol import decode_error
from slotwheel.wheel.texts import shown_text, visible_text

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


UNSEEN = "\u202e\u3164\u2800\u200b\x00\x9b\ud800"
"""Some are printable for Python, and nobody sees them."""


def table(text: str) -> None:
    print_table([(text, "1")], "lr", ("name", "count"))


def log_line(form: str) -> Callable[[str], object]:
    def log(text: str) -> None:
        record = logging.LogRecord("x", logging.INFO, "", 0, text, (), None)
        record.slotwheel_fields = {"topic": text}
        print((TextLines() if form == "text" else JsonLines()).format(record))

    return log


def error_of_a_node(text: str) -> None:
    wire = InvalidMessage(text, got=text, limit=text, remedy=text).to_wire()
    print(from_wire(json.loads(json.dumps(wire))))


WAYS: dict[str, Callable[[str], object]] = {
    "echo": echo,
    "a line of fields": lambda text: print(text_line({"topic": text, "value": text, "key": text})),
    "headers": lambda text: print(text_line({"headers": [{"key": text, "value": text}]})),
    "a table": table,
    "a line of the log": log_line("text"),
    "a line of JSON in the log": log_line("json"),
    "an error that a node sent": error_of_a_node,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_nobody_sees_is_shown(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    for one in UNSEEN + HOSTILE:
        WAYS[way](f"a{one}b")
        out = capsys.readouterr().out
        if visible_text(one) != one:
            assert one not in out, (way, one)
            assert "a\\" in out, (way, one)


@given(st.text())
def test_text_that_is_visible_stays_as_it_is(text: str) -> None:
    assert shown_text(visible_text(text)) == visible_text(text)
    shown = shown_text(text)
    assert shown_text(shown) == shown
    assert all(one.isprintable() or one in "\n\t" for one in shown)
    assert "\n" not in shown_text(text, lines=False)


def test_no_command_prints_but_by_the_function_that_does_so() -> None:
    for path in ROOM.rglob("*.py"):
        if path == ROOM / "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"echo", "secho", "echo_via_pager"}, f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "error",
    [
        decode_error(HOSTILE.encode()),
        decode_error(json.dumps({"message": HOSTILE}).encode()),
        GatewayAnswer(502, HOSTILE.encode()).error(),
        GatewayAnswer(400, json.dumps({"message": HOSTILE, "got": HOSTILE}).encode()).error(),
        GatewayAnswer(429, json.dumps({"code": "overloaded", "remedy": HOSTILE}).encode()).error(),
    ],
)
def test_an_error_of_whoever_answers_can_be_printed(error: SlotwheelError) -> None:
    assert str(error).isprintable()
    assert "name" in str(error)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "shown"), [(_Terminal(), True), (io.StringIO(), False)], ids=["terminal", "pipe"]
)
def test_a_bar_is_shown_on_a_terminal_alone(
    stderr: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("reading", 3, "count", "files") as step:
        step(2)
    assert all(one in stderr.getvalue() for one in ("reading", "2/3", "files")) is shown
    assert bool(stderr.getvalue()) is shown
