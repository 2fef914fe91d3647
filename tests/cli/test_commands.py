"""The commands an application's operator uses, run against a running node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.nodeprocess import NodeProcess, json_lines, run_cli, run_process
from support.waiting import now_ms


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("cli") / "data") as started:
        yield started
        assert started.signal() < 2.0
        assert started.running.returncode == 0


def test_send_prints_an_id_for_each_value(node: NodeProcess) -> None:
    done = run_cli(
        *("send", "words", "one", "two", "--delay", "300ms", "--key", "k", "--header", "a=1"),
        *("--header", "a=2", "--partition", "3", "--node", node.address),
    )
    assert (done.returncode, done.stderr) == (0, "")
    ids = done.stdout.split()
    assert len(ids) == len(set(ids)) == 2
    rows = node.wait_for("words", 2)
    assert [row["value"] for row in rows] == [b"one", b"two"]
    assert {(row["key"], row["partition"]) for row in rows} == {(b"k", 3)}
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
    assert [row["headers"] for row in rows] == [headers, headers]
    assert all(row["delivered"] >= row["due"] for row in rows)
    assert [f"{row['offset']}" for row in rows] == [one.split(".")[2] for one in ids]


def test_send_at_a_time(node: NodeProcess) -> None:
    due = (datetime.now(UTC) + timedelta(minutes=5)).replace(microsecond=0)
    done = run_cli(
        "send", "timed", "x", "--at", due.isoformat().replace("+00:00", "Z"), "--node", node.address
    )
    assert done.stdout.split(".")[1] == f"{int(due.timestamp())}000"


def test_send_from_a_file_and_from_stdin_keeps_lines_as_they_are(
    node: NodeProcess, tmp_path: Path
) -> None:
    content = b"first\n\nthird with spaces \r\n\xff\xfe\nlast without an end"
    (tmp_path / "values").write_bytes(content)
    options = ("--delay", "200ms", "--node", node.address)
    by_file = run_cli("send", "file", "--file", tmp_path / "values", *options)
    by_stdin = run_cli("send", "stdin", *options, given=content)
    by_dash = run_cli("send", "dash", "--file", "-", *options, given=content)
    expected = [b"first", b"", b"third with spaces ", b"\xff\xfe", b"last without an end"]
    for done, topic in ((by_file, "file"), (by_stdin, "stdin"), (by_dash, "dash")):
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.split()) == 5
        assert [row["value"] for row in node.wait_for(topic, 5)] == expected


def test_send_streams_long_input(node: NodeProcess, tmp_path: Path) -> None:
    lines = 30_000
    path = tmp_path / "values"
    path.write_text("".join(f"{number}\n" for number in range(lines)))
    done = run_cli("send", "long", "--file", path, "--delay", "2s", "--node", node.address)
    ids = done.stdout.split()
    assert (done.returncode, len(ids), len(set(ids))) == (0, lines, lines)
    offset = {int(one.split(".")[2]): number for number, one in enumerate(ids)}
    rows = node.wait_for("long", lines)
    assert all(int(row["value"]) == offset[row["offset"]] for row in rows)


def test_a_message_that_cannot_be_sent_does_not_keep_the_others(node: NodeProcess) -> None:
    given = b"good\n" + b"x" * 1_000_001 + b"\nalso good\n"
    options = ("--delay", "1h", "--node", node.address)
    done = run_cli("send", "sizes", *options, given=given)
    assert done.returncode == 1
    assert len(done.stdout.split()) == 2
    assert done.stderr.startswith("error: message 2: ")
    assert "1000001" in done.stderr
    done = run_cli("send", "sizes", "--json", *options, given=given)
    (told,) = json_lines(done.stderr)
    assert (told["message"], told["error"]["code"]) == (2, "invalid-message")


def test_an_illegal_topic_is_refused_before_anything_is_sent() -> None:
    done = run_cli("send", "no/topic", "x", "--delay", "1s", "--node", "127.0.0.1:1")
    assert done.returncode == 1
    assert "no/topic" in done.stderr


def test_cancel_tells_the_truth(node: NodeProcess) -> None:
    at = ("--node", node.address)
    (later,) = run_cli("send", "c", "x", "--delay", "1h", *at).stdout.split()
    (gone,) = run_cli("send", "gone", "x", "--delay", "1ms", *at).stdout.split()
    node.wait_for("gone", 1)
    done = run_cli("cancel", later, gone, *at)
    assert done.returncode == 0
    assert done.stdout == f"{later}\tcancelled\n{gone}\talready delivered\n"
    forged = later[:-8] + ("00000000" if later[-8:] != "00000000" else "11111111")
    done = run_cli("cancel", *at, given=f"{later}\n{forged}\nnonsense\n\n")
    assert done.returncode == 1
    assert done.stdout == f"{later}\tcancelled\n{forged}\tunknown\nnonsense\tunknown\n"
    done = run_cli("cancel", "--json", later, *at)
    assert json_lines(done.stdout) == [{"id": later, "answer": "cancelled"}]


@pytest.mark.parametrize("given", ["", "\n \n"])
def test_a_cancel_of_what_a_search_did_not_find_says_so(given: str) -> None:
    done = run_cli("cancel", "--node", "127.0.0.1:1", given=given)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Give ids as arguments, or on stdin, one a line; or --where with --data." in done.stderr


def test_reschedule_moves_a_message(node: NodeProcess) -> None:
    at = ("--node", node.address)
    (message_id,) = run_cli("send", "moved", "x", "--delay", "1h", *at).stdout.split()
    done = run_cli("reschedule", message_id, "--delay", "100ms", *at)
    assert done.returncode == 0
    old, answer, new = done.stdout.rstrip("\n").split("\t")
    assert (old, answer) == (message_id, "cancelled")
    (row,) = node.wait_for("moved", 1)
    assert str(row["offset"]) == new.split(".")[2]
    done = run_cli("reschedule", message_id, "--delay", "1s", "--json", *at)
    assert done.returncode == 1
    why_not = {"id": message_id, "answer": "already cancelled", "new_id": None}
    assert json.loads(done.stdout) == why_not
    done = run_cli("reschedule", message_id, "--delay", "1s", *at)
    assert (done.returncode, done.stdout) == (1, f"{message_id}\talready cancelled\n")


def test_a_message_expires_when_it_was_to_and_is_not_moved_behind_that(node: NodeProcess) -> None:
    at = ("--node", node.address)
    before = now_ms()
    (later,) = run_cli("send", "short", "x", "--delay", "1h", "--ttl", "5s", *at).stdout.split()
    done = run_cli("reschedule", later, "--delay", "2h", *at)
    assert done.returncode == 1
    assert "expires before it is due" in done.stderr
    done = run_cli("reschedule", later, "--delay", "1ms", *at)
    assert done.stdout.startswith(f"{later}\tcancelled\t")
    (row,) = node.wait_for("short", 1)
    (header,) = row["headers"]
    assert header["key"] == "slotwheel-expires-ms"
    assert before + 3_605_000 <= int(header["value"]) <= now_ms() + 3_605_000
    for bad in ("0s", "soon"):
        done = run_cli("send", "short", "x", "--delay", "1h", "--ttl", bad, *at)
        assert done.returncode == 2
        assert "--ttl" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("cancel", "{later}", "--node", "{address}"), "{later}\tcancelled"),
        (("reschedule", "{later}", "--delay", "2h", "--node", "{address}"), "{later}\tcancelled"),
        (("verify", "{data}"), "0 invalid"),
        (("inspect", "state", "{data}"), "checkpoint"),
        (("inspect", "topic", "{data}"), "processes"),
        (("consume", "processes", "--data", "{data}"), "now"),
    ],
)
def test_as_a_process(node: NodeProcess, arguments: tuple[str, ...], printed: str) -> None:
    """Others run in the tests' own process."""
    at = ("--node", node.address)
    (later,) = run_cli("send", "processes", "later", "--delay", "1h", *at).stdout.split()
    assert run_cli("send", "processes", "now", "--delay", "1ms", *at).returncode == 0
    node.wait_for("processes", 1)
    names = {"later": later, "address": node.address, "data": node.data}
    done = run_process(*(one.format(**names) for one in arguments))
    assert (done.returncode, done.stderr) == (0, "")
    assert printed.format(**names) in done.stdout


def test_status_for_people_and_for_programs(node: NodeProcess) -> None:
    plain = run_cli("status", "--node", node.address)
    assert plain.returncode == 0
    assert "pending" in plain.stdout
    found = json.loads(run_cli("status", "--json", "--node", node.address).stdout)
    assert found["group"] == "default"
    assert found["delivered"] + found["pending"] + found["cancelled"] <= found["accepted"]


@pytest.mark.parametrize(
    "command",
    [("status",), ("cancel", "default.1.2.00000000"), ("send", "t", "x", "--delay", "1s")],
)
def test_a_node_that_cannot_be_reached(command: tuple[str, ...]) -> None:
    options = ("--node", "127.0.0.1:1", "--timeout", "500ms")
    done = run_cli(*command, *options)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "reach" in done.stderr
    done = run_cli(*command, *options, "--json")
    assert done.returncode == 1
    assert json_lines(done.stderr)[-1]["error"]["code"] == "node-unreachable"
