"""The edge of the command line: exit codes, types of options, variables, help for everything."""

from __future__ import annotations

import fcntl
import io
import json
import signal
import subprocess
import termios
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import click
import pytest

from slotwheel.cli import main, send, shared
from slotwheel.cli.node import wheel_config
from slotwheel.cli.printing import print_table
from slotwheel.cli.settings import values_of
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidConfiguration, Overloaded
from support.nodeprocess import command_line, environment
from support.waiting import eventually


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment(SLOTWHEEL_X="").keys() & {"SLOTWHEEL_X"}:
        monkeypatch.delenv(name, raising=False)


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main.cli)
    for name in main.COMMANDS:
        command = main.cli.get_command(context, name)
        assert command is not None, f"{name} is in the table and cannot be imported"
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in command.commands.items())


def test_every_command_and_option_has_a_help_text_and_a_variable() -> None:
    for name, command in commands():
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"
                longest = max(parameter.opts, key=len)
                variable = "SLOTWHEEL_" + longest.lstrip("-").replace("-", "_").upper()
                if (name, longest) == ("replay", "--kafka"):
                    variable = "SLOTWHEEL_REPLAY_KAFKA"  # another thing than a node's --kafka
                assert parameter.envvar == variable, f"{name} {longest}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["send", "topic", "x"],
        ["send", "topic", "x", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"],
        ["send", "topic", "x", "--delay", "soon"],
        ["send", "topic", "x", "--at", "2030-01-01T00:00:00"],
        ["send", "topic", "x", "--delay", "1s", "--header", "nothing"],
        ["send", "topic", "x", "--delay", "1s", "--file", __file__],
        ["send", "topic", "--delay", "1s", "--file", "/no/such/file"],
        ["reschedule", "id"],
        ["node"],
        ["node", "--data", "d", "--sink", "rabbits"],
    ],
)
def test_a_wrong_command_line_is_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    assert capsys.readouterr().err
    if arguments[0] in ("send", "reschedule"):
        assert main.run([arguments[0], "--json", *arguments[1:]]) == 2
        assert json.loads(capsys.readouterr().err)["error"]["code"] == "usage"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Overloaded("too much", remedy="Wait"), 1, "error: too much. Wait"),
        (PermissionError(13, "Permission denied", "data"), 1, "Permission denied"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("ours"), 3, "a defect of slotwheel: ZeroDivisionError: ours"),
    ],
)
def test_what_a_command_raises_becomes_an_exit_code(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("slotwheel.cli.status.Client", fail)
    assert main.run(["status"]) == code
    told = capsys.readouterr().err
    assert text in told
    assert ("Traceback" in told or 'File "' in told) == (code == 3)
    assert main.run(["status", "--json"]) == code
    if code != 130:
        assert json.loads(capsys.readouterr().err)["error"]["message"]


def test_json_is_for_errors_of_every_command_that_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_json = [
        name for name, command in commands() if any("--json" in one.opts for one in command.params)
    ]
    assert len(with_json) >= 6
    for name in with_json:
        assert main.run([*name.split(), "--json", "--no-such-option"]) == 2
        assert json.loads(capsys.readouterr().err)["error"]["code"] == "usage", name


def test_help_and_version_are_0(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["--version"], ["send", "--help"]):
        assert main.run(arguments) == 0
        assert capsys.readouterr().out
    assert "SLOTWHEEL_DELAY" in _help("send", capsys)


def _unread(pipe: IO[bytes]) -> int:
    """Bytes in a pipe that nobody has read yet."""
    found = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_an_interrupted_command_is_130() -> None:
    with subprocess.Popen(
        command_line("send", "topic", "--delay", "1s", "--node", "127.0.0.1:1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        pipe = process.stdin
        assert pipe is not None
        # Once it has read a second line the first one is with its client. Before that it may be in
        # the middle of an import, in which Python or a library may lose an interrupt.
        for line in (b"x\n", b"y\n"):
            pipe.write(line)
            pipe.flush()
            eventually(lambda: not _unread(pipe))
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for more lines, and for a node
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_time_spans() -> None:
    assert shared.span("500ms") == timedelta(milliseconds=500)
    assert shared.span("1.5h") == timedelta(minutes=90)
    assert shared.span("5m") == timedelta(minutes=5)
    assert shared.span("5") == timedelta(seconds=5)
    for wrong in ("", "5w", "-1s", "1s1s", "m"):
        with pytest.raises(click.BadParameter, match="time span"):
            shared.span(wrong)
    with pytest.raises(click.BadParameter, match="too long; the limit is 999999999d"):
        shared.span("1000000000d")


def test_moments() -> None:
    assert shared.moment("2026-11-20T18:00:00Z") == datetime(2026, 11, 20, 18, tzinfo=UTC)
    assert shared.moment("2026-11-20T19:00:00+01:00") == datetime(2026, 11, 20, 18, tzinfo=UTC)
    for wrong in ("2026-11-20T18:00:00", "tomorrow", ""):
        with pytest.raises(click.BadParameter):
            shared.moment(wrong)


def test_sizes() -> None:
    assert [shared.size(text) for text in ("17", "1K", "1.5M", "2GiB")] == [
        17,
        1024,
        3 << 19,
        2 << 30,
    ]
    for wrong in ("", "1P", "-1", "0", "K"):
        with pytest.raises(click.BadParameter):
            shared.size(wrong)
    for wrong in ("9" * 400 + "K", "4294967297G"):
        with pytest.raises(click.BadParameter, match="too large; the limit is 4294967296G"):
            shared.size(wrong)


def test_retention() -> None:
    day = 86_400_000
    for text, found in {
        "24h": {"retain_ms": day},
        "7d": {"retain_ms": 7 * day},
        "10GiB": {"retain_bytes": 10 << 30},
        "24h,10G": {"retain_ms": day, "retain_bytes": 10 << 30},
        "1.5G, 30m": {"retain_ms": 1_800_000, "retain_bytes": 3 << 29},
    }.items():
        assert shared.retention(text) == found
    for wrong in ("", "24", "x", "24h,1h", "1G,2G", "0s", "24h,", "0"):
        with pytest.raises(click.BadParameter):
            shared.retention(wrong)
    for wrong, why in {"1000000000d": "too long", "4294967297G": "too large"}.items():
        with pytest.raises(click.BadParameter, match=why):
            shared.retention(wrong)


def test_limits_that_contradict_each_other() -> None:
    context = click.Context(main.cli)
    command = main.cli.get_command(context, "node")
    assert command is not None
    with command.make_context("node", ["--data", "d", "--tail-bytes", "1G"]) as made:
        limits = values_of(WheelConfig, made.params)
    with pytest.raises(InvalidConfiguration, match="tail-bytes-refuse"):
        wheel_config(limits)
    with pytest.raises(InvalidConfiguration, match="--batch-bytes"):
        wheel_config({**limits, "tail_bytes_refuse": 2 << 30, "batch_bytes_max": 1})
    found = wheel_config({**limits, "slots": 60, "tail_bytes_refuse": 2 << 30})
    assert (found.slots, found.tail_age_ms, found.tail_bytes_max) == (60, 600_000, 1 << 30)


class Pieces(io.RawIOBase):
    """Gives what it has in the given pieces, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.pieces.pop(0) if self.pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def test_lines_are_the_same_wherever_a_pipe_cuts_them() -> None:
    content = b"one\ntwo\r\n\nlast"
    for cut in range(1, len(content)):
        pipe = io.BufferedReader(Pieces(content[:cut], content[cut:]))
        found = [line for part in send.read_parts(pipe) for line in part]
        assert found == [b"one", b"two", b"", b"last"]


def test_a_pipe_is_sent_line_by_line_as_it_is_written() -> None:
    pipe = io.BufferedReader(Pieces(b"one\n", b"two\nthree\n"))
    assert list(send.read_parts(pipe)) == [[b"one"], [b"two", b"three"]]


def _help(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.run([command, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("headings", [None, ("peer", "what is wrong")])
def test_a_table_in_a_pipe_is_neither_cut_nor_wrapped(
    headings: tuple[str, str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "no answer [since then] " * 20
    print_table([("a", text)], "rl", headings)
    assert text.strip() in capsys.readouterr().out
