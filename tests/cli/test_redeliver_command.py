"""``slotwheel replay --redeliver``: asks first, sends through a node, and says how to go on."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from slotwheel import Client, Message
from slotwheel.cli.main import run
from slotwheel.wheel.checks import REDELIVERED_ID_HEADER
from slotwheel.wheel.errors import NotRunning
from support import replayrun
from support.fakewheel import FakeWheel
from support.nodeprocess import NodeProcess, command_line, environment, run_cli
from support.replayrun import NOW_MS, START_MS, TOPIC
from support.served import ServedIntake
from support.waiting import PATIENCE_S, eventually

ROWS = 300


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def now() -> str:
    return datetime.now(UTC).isoformat()


HOUR_AGO = (datetime.now(UTC) - timedelta(hours=1)).isoformat()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("redeliver") / "data") as started:
        with Client(started.address) as client:
            client.send_many(
                Message("spoilt", b"%d" % n, b"k", [("own", None)], delay=0.3) for n in range(ROWS)
            ).result(60)
            gone = client.send("spoilt", b"cancelled", delay=1.5).result(60)
            assert client.cancel(gone) == ["cancelled"]
            client.send("large", b"x" * 1_000_000, delay=0.1).result(60)
            client.send("large", b"small", delay=0.1).result(60)
        started.wait_for("spoilt", ROWS)
        started.wait_for("large", 2)
        time.sleep(1.6)
        yield started


def arguments(node: NodeProcess, to_topic: str, *more: str) -> list[str]:
    where = ["--from", HOUR_AGO, "--to", now(), "--to-topic", to_topic, "--node", node.address]
    topic = [] if "--topic" in more else ["--topic", "spoilt"]
    return ["replay", str(node.data), "--redeliver", *topic, *where, *more]


def test_it_sends_all_once_more(node: NodeProcess) -> None:
    done = run_cli(*arguments(node, "again", "--yes"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"sent {ROWS} messages to again\n"
    assert f"{ROWS} messages for spoilt, " in done.stderr
    assert "left out: 1 cancelled" in done.stderr
    assert f"to again through {node.address}" in done.stderr
    before, after = node.delivered("spoilt"), node.wait_for("again", ROWS)
    assert len(after) == ROWS
    for old, new in zip(before, after, strict=True):
        assert (new["key"], new["value"]) == (old["key"], old["value"])
        due = int(old["due"].timestamp() * 1000)
        id_ = f"default.{due}.{old['offset']}.{old['check']:016x}"
        assert new["headers"] == [
            *old["headers"],
            {"key": REDELIVERED_ID_HEADER, "value": id_.encode()},
        ]


def test_json_and_skip(node: NodeProcess) -> None:
    done = run_cli(*arguments(node, "rest", "--yes", "--json", "--skip", "290"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["first_due_ms"] <= told["last_due_ms"]
    assert {name: told[name] for name in ("messages", "skipped", "sent", "cancelled")} == {
        "messages": ROWS,
        "skipped": 290,
        "sent": 10,
        "cancelled": 1,
    }
    assert (told["complete"], told["next_skip"], told["damaged"]) == (True, None, 0)
    rows = node.wait_for("rest", 10)
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(290, ROWS)]
    done = run_cli(*arguments(node, "rest", "--yes", "--skip", str(ROWS)))
    assert done.returncode == 0
    assert "no more" in done.stderr


def test_nobody_to_ask(node: NodeProcess) -> None:
    done = run_cli(*arguments(node, "unasked"))
    assert done.returncode == 2
    assert f"{ROWS} messages for spoilt" in done.stderr
    assert "Nothing was sent" in done.stderr
    assert "--yes" in done.stderr
    assert done.stdout == ""
    assert not (node.data / "topics" / "unasked").exists()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x03", 130)])
def test_somebody_is_asked(node: NodeProcess, answer: str, code: int) -> None:
    topic = f"asked-{code}-{len(answer)}"
    main, side = pty.openpty()
    process = subprocess.Popen(
        command_line(*arguments(node, topic)),
        stdin=side,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    os.close(side)
    try:
        assert process.stderr is not None
        seen = ""
        while "Send them?" not in seen:
            seen += process.stderr.read(1)
        if answer == "\x03":
            # One that comes in the instant before the read begins is noticed only after it, and a
            # second one would end a process that is about to end by the first.
            waiting = psutil.Process(process.pid)
            eventually(lambda: waiting.status() == psutil.STATUS_SLEEPING)
            process.send_signal(signal.SIGINT)
        else:
            os.write(main, answer.encode())
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code
    finally:
        process.kill()
        os.close(main)
    if code == 0:
        assert out == f"sent {ROWS} messages to {topic}\n"
        assert len(node.wait_for(topic, ROWS)) == ROWS
    else:
        assert out == ""
        assert not (node.data / "topics" / topic).exists()


def test_there_is_nothing(node: NodeProcess) -> None:
    done = run_cli(*arguments(node, "again", "--topic", "splot", "--yes"))
    assert done.returncode == 1
    assert "nothing to send again" in done.stderr
    assert "Topics with messages due then: " in done.stderr.splitlines()[-1]
    assert done.stderr.rstrip().endswith("spoilt")


def test_a_message_that_became_too_large(node: NodeProcess) -> None:
    """With the header it is above the node's limit; the others go."""
    done = run_cli(*arguments(node, "large-again", "--topic", "large", "--yes"))
    assert done.returncode == 1
    assert done.stdout == "sent 1 message to large-again, 1 refused\n"
    assert "error: message 1: " in done.stderr
    assert [row["value"] for row in node.wait_for("large-again", 1)] == [b"small"]
    done = run_cli(*arguments(node, "large-again", "--topic", "large", "--yes", "--json"))
    refused = json.loads(done.stderr.splitlines()[-1])
    assert (refused["message"], refused["error"]["code"]) == (1, "invalid-message")


def test_usage(node: NodeProcess, tmp_path: Path) -> None:
    data = str(node.data)
    future = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for given, text in (
        ([data, "--redeliver"], "needs one --topic"),
        ([data, "--to-topic", "x"], "--to-topic belongs to --redeliver"),
        ([data, "--skip", "3"], "--skip belongs to --redeliver"),
        (arguments(node, "x", "--topic", "a", "--topic", "b")[1:], "needs one --topic"),
        (arguments(node, "x", "--report", str(tmp_path))[1:], "--report does not go with"),
        (arguments(node, "x", "--to", future)[1:], "--to is in the future"),
        (arguments(node, "x", "--from", future)[1:], "--from is not before --to"),
    ):
        done = run_cli("replay", *given)
        assert done.returncode == 2, (given, done.stderr)
        assert text in done.stderr
    done = run_cli(*arguments(node, "no/topic"))
    assert done.returncode == 1
    assert "illegal topic name" in done.stderr


# Interruptions, against a wheel that ends its service at some time.


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    return replayrun.made().write(tmp_path)


def to_fake(address: str, directories: list[str], *more: str) -> list[str]:
    when = ["--from", iso(START_MS), "--to", iso(NOW_MS), "--to-topic", "again", "--json"]
    where = ["--node", address, "--topic", TOPIC, "--timeout", "1s", "--yes"]
    return ["replay", *directories, "--redeliver", *when, *where, *more]


def values(wheel: FakeWheel) -> list[tuple[bytes, bytes]]:
    return [(row["value"], row["headers"][-1]["value"]) for row in wheel.rows]


def test_it_ends_with_how_to_go_on(
    directories: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("reading.events", "reading.journal"):
        monkeypatch.setattr(f"slotwheel.{module}.ROWS_MAX", 500)
    wheel = FakeWheel()
    batches: list[int] = []

    def stop_after_three(rows: pa.RecordBatch) -> None:
        batches.append(rows.num_rows)
        if len(batches) > 3:
            raise NotRunning("the node stops")

    wheel.before_append = stop_after_three
    server = ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05)
    address = f"127.0.0.1:{server.port}"
    try:
        # Within this time a busy machine, too, has answers to what it stored.
        assert run(to_fake(address, directories, "--timeout", "4s")) == 1
        first = capsys.readouterr()
        told = json.loads(first.out)
        assert json.loads(first.err.splitlines()[-1])["error"]["code"]
        assert not told["complete"]
        assert told["next_skip"] == told["sent"] == len(values(wheel)) > 0
        assert told["perhaps_sent"] > 0
        wheel.before_append = None
        assert run(to_fake(address, directories, "--skip", str(told["next_skip"]))) == 0
        rest = json.loads(capsys.readouterr().out)
        assert rest["complete"]
        assert told["sent"] + rest["sent"] == rest["messages"] == told["messages"]
        interrupted = values(wheel)
        assert len(set(interrupted)) == len(interrupted) == rest["messages"]
        wheel.log.batches.clear()
        assert run(to_fake(address, directories[::-1])) == 0
        assert values(wheel) == interrupted
    finally:
        server.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_sending(directories: list[str], number: signal.Signals) -> None:
    """The node takes nothing at the moment, and whoever waits for it has had enough."""
    wheel = FakeWheel()
    wheel.has_room.clear()
    server = ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05)
    command = to_fake(f"127.0.0.1:{server.port}", directories, "--timeout", "60s")
    process = subprocess.Popen(
        command_line(*command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    try:
        assert process.stderr is not None
        while "due at once" not in process.stderr.readline():
            assert process.poll() is None
        eventually(lambda: wheel.early)
        process.send_signal(number)
        out, error = process.communicate(timeout=20)
    finally:
        process.kill()
        server.close()
    assert process.returncode == 130, error
    told = json.loads(out)
    assert (told["sent"], told["next_skip"], told["complete"]) == (0, 0, False)
    assert told["messages"] > 3_000
    # The node has seen a batch; the rest was being handed to the client.
    assert 0 < told["perhaps_sent"] <= told["messages"]
    assert "Traceback" not in error


def test_no_node(directories: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(to_fake("127.0.0.1:1", directories)) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["sent"], told["next_skip"], told["complete"]) == (0, 0, False)
