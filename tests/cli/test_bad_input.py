"""What bad input gets: an error that names the value, the limit and what to do, and a typed one.

Messages that cannot be stored are in ``tests/test_bad_messages.py``, by all ways in. Here is what
only the command line or the client meets; and the node is as well afterwards as before.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pyarrow as pa
import pytest

from slotwheel import (
    Client,
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    Message,
    Overloaded,
    SlotwheelError,
    UnknownId,
)
from slotwheel.cli import main
from slotwheel.wheel.schema import HEADERS
from slotwheel.wheel.state import STATE_VERSION
from support.damage import flip
from support.nodeprocess import NodeProcess, json_lines, run_cli, run_process

MIB = 1 << 20
LIMITS = ("--slots", "60", "--message-bytes", "10K", "--batch-bytes", "1M", "--batch-rows", "6000")
FOREIGN_ID = f"another.{2_000_000_000_000}.1.00000000"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("bad") / "data", *LIMITS) as started:
        yield started
        # After all of it, it serves an honest client, and nothing was an alarm.
        with Client(started.address) as client:
            client.send("honest", b"1", delay=0).result(60)
        started.wait_for("honest", 1)
        assert "alarm" not in started.log_text()
        assert "Traceback" not in started.log_text()


class Case(NamedTuple):
    """A command line and what its error has to hold; each text is looked for in its field."""

    arguments: tuple[str, ...]
    code: str
    message: str
    got: str = ""
    limit: str = ""
    remedy: str = ""
    given: str = ""


SOON = ("--delay", "10s")
AT_THE_NODE = {
    "due beyond the horizon": Case(
        ("send", "t", "x", "--delay", "2h"),
        *("invalid-message", "due beyond the horizon", "too far ahead by ", "Z", "--horizon"),
    ),
    "reschedule: beyond the horizon": Case(
        ("reschedule", "ID", "--delay", "2h"),
        "invalid-message",
        "horizon",
        "too far ahead by ",
        "Z",
        "--horizon",
    ),
}


@pytest.mark.parametrize("name", AT_THE_NODE)
def test_at_the_node(node: NodeProcess, name: str) -> None:
    case = AT_THE_NODE[name]
    arguments = case.arguments
    if "ID" in arguments:
        with Client(node.address) as client:
            id_ = client.send("t", b"x", delay=30).result(60)
        arguments = tuple(id_ if part == "ID" else part for part in arguments)
    check(case, *arguments, "--node", node.address)


def check(case: Case, *arguments: str) -> None:
    done = run_cli(*arguments, "--json", given=case.given)
    assert done.returncode == 1, done
    error = json_lines(done.stderr)[-1]["error"]
    assert error["code"] == case.code
    for field in ("message", "got", "limit", "remedy"):
        assert getattr(case, field) in (error[field] or ""), (field, error)


def test_for_people_it_is_one_line(node: NodeProcess) -> None:
    done = run_cli("send", "no/topic", "x", *SOON, "--node", node.address)
    assert done.returncode == 1
    assert done.stderr.startswith("error: illegal topic name; got 'no/topic'; expected 1 to 249 of")
    assert done.stderr.count("\n") == 1


def test_what_only_the_node_knows_is_told_of_the_message_and_not_of_a_row(
    node: NodeProcess,
) -> None:
    done = run_cli("send", "t", "x", "--delay", "2h", "--node", node.address)
    assert done.returncode == 1
    assert done.stderr.startswith("error: message 1: due beyond the horizon; got "), done.stderr
    assert "row" not in done.stderr


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "nowhere:", ":7200", "a:7200,b", "h:0", "h:65536", "ftp://h:1", ""]
)
def test_an_address_that_no_node_can_have(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["send", "t", "x", *SOON, "--node", address]) == 2
    told = capsys.readouterr().err
    assert "not the address of a node; got '" in told
    assert "host:port" in told
    with pytest.raises(InvalidConfiguration, match="not the address of a node"):
        Client(address)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8082", "a:7200,https://b:8082"])
def test_a_gateways_address_for_a_command_that_talks_to_nodes(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["send", "t", "x", *SOON], ["status"], ["gateway"]):
        assert main.run([*command, "--node", address]) == 2
        text = " ".join(capsys.readouterr().err.split())
        assert f"'{address}' is the address of a gateway" in text
        assert "give host:port as the node has it by --listen, 127.0.0.1:7200 by default" in text


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_client_that_would_try_for_no_time(timeout_s: float) -> None:
    with pytest.raises(InvalidConfiguration, match="no usable timeout_s"):
        Client("127.0.0.1:9", timeout_s=timeout_s)


@pytest.mark.parametrize("command", ["send t x --delay 1s", "status", "cancel x", "step-down"])
def test_a_timeout_of_nothing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*command.split(), "--timeout", "0s"]) == 2
    assert "'0s' is no time at all" in capsys.readouterr().err


@pytest.mark.parametrize("id_", ["nonsense", "", FOREIGN_ID, "default.1.1.00000000"])
def test_what_is_no_id_is_unknown(node: NodeProcess, id_: str) -> None:
    done = run_cli("cancel", "--node", node.address, id_ or "-", FOREIGN_ID)
    assert done.returncode == 1, done
    assert done.stdout.splitlines()[-1] == f"{FOREIGN_ID}\tunknown"
    assert all(line.endswith("\tunknown") for line in done.stdout.splitlines())

    done = run_cli("reschedule", "--node", node.address, *SOON, id_ or "-")
    assert (done.returncode, done.stdout) == (1, f"{id_ or '-'}\tunknown\n"), done


def test_due_in_the_past_leaves_at_once(node: NodeProcess) -> None:
    done = run_cli("send", "past", "x", "--at", "2020-01-01T00:00:00Z", "--node", node.address)
    assert done.returncode == 0, done
    (row,) = node.wait_for("past", 1)
    assert row["due"] == datetime(2020, 1, 1, tzinfo=UTC)


def test_no_node() -> None:
    case = Case(("send", "t", "x"), "node-unreachable", "127.0.0.1:9", "", "", "address")
    check(case, "send", "t", "x", *SOON, "--node", "127.0.0.1:9", "--timeout", "500ms")


def test_an_overloaded_node(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--disk-reserve", "1000000G") as node:
        options = ("--node", node.address, "--timeout", "4s", "--json")
        done = run_cli("send", "t", "x", *SOON, *options)
        assert done.returncode == 1, done
        (told,) = json_lines(done.stderr)
        assert told["error"]["code"] == "overloaded", told
        assert "disk" in told["error"]["message"]
        assert f"{10**6 * 1024**3} bytes" in told["error"]["limit"]
        assert told["error"]["remedy"]
        with Client(node.address, timeout_s=4) as client:
            error = client.send("t", b"x", delay=1).error(10)
        assert isinstance(error, Overloaded)
        assert error.retryable


# Starting a node


def start_fails(case: Case, *arguments: str | Path) -> None:
    off = ("--listen", "127.0.0.1:0", "--metrics", "off")
    done = run_process("node", *off, *arguments)
    assert done.returncode == 1, done
    said = done.stderr.splitlines()[-1]
    assert said.startswith("error: ")
    for part in (case.message, case.got, case.limit, case.remedy):
        assert part in said
    assert "Traceback" not in done.stderr


def used(data: Path) -> Path:
    """A data directory with some hundred messages in its journal."""
    with NodeProcess(data) as node:
        with Client(node.address) as client:
            for _ in range(3):
                client.send_many(Message("t", b"x", delay=60) for _ in range(100)).result(60)
        node.kill()
    return data


def test_a_directory_in_use(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        case = Case((), "", "in use by another node", str(node.running.pid), "", "--data")
        start_fails(case, "--data", node.data)


def test_a_directory_of_a_newer_version(tmp_path: Path) -> None:
    data = used(tmp_path / "data")
    (state,) = [path.parent for path in data.rglob("data.mdb")]
    with lmdb.open(str(state), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True, db=meta) as txn:
            assert txn.put(b"version", b"99")
    start_fails(
        Case((), "", "does not know", "99", f"expected {STATE_VERSION}", "newer"), "--data", data
    )


def test_a_damaged_directory(tmp_path: Path) -> None:
    data = used(tmp_path / "data")
    journal = sorted((data / "journal").iterdir())[0]
    flip(journal, 400)
    case = Case((), "", "is damaged at byte", journal.name, "expected", "slotwheel verify")
    start_fails(case, "--data", data)


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_a_port_that_is_taken(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        case = Case((), "", "taken", address, "", option)
        start_fails(case, "--data", tmp_path / "data", option, address)


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        (("--sink", "confluent"), "needs a Kafka", "--bootstrap"),
        (("--delay-topic", "t"), "needs a Kafka", "--bootstrap"),
        (("--delay-topic", "no/topic", "--bootstrap", "a:1"), "illegal topic name", "Name"),
        (("--dead-letter-topic", "no/topic"), "illegal topic name", "Name"),
        (("--group", "no group"), "not usable", "--group"),
        (("--listen", "nowhere"), "not an address", "--listen"),
    ],
)
def test_settings(tmp_path: Path, options: tuple[str, ...], message: str, remedy: str) -> None:
    start_fails(Case((), "", message, "", "", remedy), "--data", tmp_path / "data", *options)


# The client's side


def table(**columns: Any) -> pa.Table:
    due = pa.array([0], pa.timestamp("ms", "UTC"))
    return pa.table({"due": due, "topic": ["t"], "value": [b"v"]} | columns)


CLIENT: dict[str, tuple[Callable[[Client], Any], type[SlotwheelError], str]] = {
    "column missing": (lambda c: c.send_table(table().drop(["value"])), InvalidBatch, "schema"),
    "a header of our own in a table": (
        lambda c: c.send_table(
            table(headers=pa.array([[("slotwheel-created-ms", b"1")]], HEADERS))
        ).result(),
        *(InvalidMessage, "got slotwheel-created-ms"),
    ),
    "not an id": (lambda c: c.cancel("nonsense"), UnknownId, "nonsense"),
}


@pytest.mark.parametrize("name", CLIENT)
def test_the_client_raises_a_typed_error(node: NodeProcess, name: str) -> None:
    call, kind, text = CLIENT[name]
    with Client(node.address, timeout_s=10) as client:
        with pytest.raises(kind, match=text) as raised:
            call(client)
        assert raised.value.remedy, "an error says what to do"


def test_a_due_time_beyond_the_horizon_is_told_as_a_time(node: NodeProcess) -> None:
    """By the node, which answers first, and then by the client, which knows the horizon by then."""
    with Client(node.address, timeout_s=10) as client:
        for _ in range(2):
            due = int((time.time() + 3600) * 1000)
            with pytest.raises(InvalidMessage) as raised:
                client.send("t", b"", due=due).result()
            utc = datetime.fromtimestamp(due / 1000, UTC).isoformat(timespec="milliseconds")
            assert f"got {utc.replace('+00:00', 'Z')} ({due} ms" in str(raised.value)
        assert f"; limit {datetime.now(UTC):%Y}-" in str(raised.value)
