"""``slotwheel consume``: an embedded topic as text, JSON or Arrow stream; to its end, or on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.cli.main import run
from slotwheel.wheel.rows import from_columns
from support.datadirs import START_MS, SinkNode, assert_sound, messages
from support.waiting import PATIENCE_S

ODD = [b"plain", None, b"", b"\xff\x00", "späte".encode()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SinkNode]:
    node = SinkNode(tmp_path)
    yield node
    node.close()
    assert_sound(tmp_path)


def consume(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert run(["consume", *map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def odd_rows(due: int) -> pa.RecordBatch:
    rows = len(ODD)
    headers = [[("h", value), ("h", None)] for value in ODD]
    return from_columns([due] * rows, ["odd"] * rows, [3] * rows, ODD, ODD[::-1], headers)


def test_every_field_of_a_message(node: SinkNode, capsys: pytest.CaptureFixture[str]) -> None:
    ids = node.append(odd_rows(START_MS + 100))
    node.deliver(START_MS + 107)
    found = consume(capsys, "odd", "--data", node.path)
    assert [one["id"] for one in found] == ids
    assert [one["position"] for one in found] == list(range(5))
    assert found[0] == {
        "position": 0,
        "id": ids[0],
        "due_ms": START_MS + 100,
        "created_ms": START_MS,
        "delivered_ms": START_MS + 107,
        "lateness_ms": 7,
        "partition": 3,
        "key": "plain",
        "value": "späte",
        "headers": [{"key": "h", "value": "plain"}, {"key": "h", "value": None}],
    }
    keys = [one.get("key", one.get("key_base64")) for one in found]
    assert keys == ["plain", None, "", "/wA=", "späte"]
    assert "key" not in found[3]
    assert found[3]["headers"][0] == {"key": "h", "value_base64": "/wA="}


def test_a_late_message_counts_from_its_creation(
    node: SinkNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.now = START_MS + 500
    node.append(messages([START_MS - 10_000]))
    node.deliver(START_MS + 503)
    (found,) = consume(capsys, "orders", "--data", node.path)
    assert found["lateness_ms"] == 3


def test_from_and_limit(node: SinkNode, capsys: pytest.CaptureFixture[str]) -> None:
    for round_ in range(4):
        node.append(messages([node.now + 1] * 5))
        node.deliver(node.now + 2 + round_)
    data = ("--data", node.path)
    found = consume(capsys, "orders", *data, "--from", 3, "--limit", 9)
    assert [one["position"] for one in found] == list(range(3, 12))
    assert consume(capsys, "orders", *data, "--from", 100) == []
    assert run(["consume", "orders", "--data", str(node.path), "--limit", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("position 0  id default.")
    assert line.endswith("value 'value-0'")


def test_an_arrow_stream_has_every_column(node: SinkNode, tmp_path: Path) -> None:
    node.append(odd_rows(START_MS + 1))
    node.deliver(START_MS + 2)
    target = tmp_path / "out.arrows"
    arguments = ["consume", "odd", "--data", str(node.path), "--arrow", str(target), "--limit", "4"]
    assert run(arguments) == 0
    with pa.OSFile(str(target)) as file, pa.ipc.open_stream(file) as stream:
        table = stream.read_all()
    assert table.column("key").to_pylist() == ODD[:4]
    assert table.schema.metadata[b"slotwheel.topic"] == b"odd"


def test_an_arrow_stream_into_a_pipe_goes_there_and_leaves_it(
    node: SinkNode, tmp_path: Path
) -> None:
    node.append(odd_rows(START_MS))
    node.deliver(START_MS + 5)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        assert run(["consume", "odd", "--data", str(node.path), "--arrow", str(pipe)]) == 0
        assert pa.ipc.open_stream(read.result(60)).read_all().num_rows == 5
    assert pipe.is_fifo()
    assert not pipe.with_name("pipe.part").exists()


def test_what_is_not_there_is_refused(node: SinkNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.append(messages([START_MS + 1]))
    node.deliver(START_MS + 2)
    for topic, data, text in (
        ("nope", node.path, "Topics there are: orders"),
        ("../orders", node.path, "illegal topic name"),
        ("orders", node.path / "nowhere", "no such directory"),
    ):
        assert run(["consume", topic, "--data", str(data)]) == 1
        assert text in capsys.readouterr().err
    assert not (node.path / "nowhere").exists()


def follower(node: SinkNode, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slotwheel.cli.main", "consume", "orders"]
    command += ["--data", str(node.path), "--follow", "--json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_follow_shows_what_comes_and_ends_with_ctrl_c(node: SinkNode) -> None:
    process = follower(node)
    try:
        assert process.stdout is not None
        for round_ in range(3):  # the topic itself comes while it waits
            node.append(messages([node.now + 1] * 2))
            node.deliver(node.now + 2)
            lines = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert [line["position"] for line in lines] == [2 * round_, 2 * round_ + 1]
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, rest, error.strip()) == (130, "", "")
    finally:
        process.kill()


def test_follow_with_a_limit_ends_by_itself(node: SinkNode) -> None:
    process = follower(node, "--limit", "3")
    node.append(messages([node.now + 1] * 5))
    node.deliver(node.now + 2)
    output, error = process.communicate(timeout=20)
    assert (process.returncode, error, len(output.splitlines())) == (0, "", 3)


@pytest.mark.parametrize("more", [True, False])
def test_a_reader_that_leaves_ends_it_quietly(node: SinkNode, more: bool) -> None:
    """As in ``consume --follow | head -1``, also when nothing more comes."""
    process = follower(node)
    try:
        assert process.stdout is not None
        node.append(messages([node.now + 1]))
        node.deliver(node.now + 2)
        assert process.stdout.readline()
        process.stdout.close()
        if more:
            node.append(messages([node.now + 1] * 500))
            node.deliver(node.now + 2)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
    finally:
        process.kill()
