"""A node as a process: starting, stopping, being killed, and what it refuses to start on."""

from __future__ import annotations

import json
import signal
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Message
from support.nodeprocess import NodeProcess, command_line, run_process
from support.waiting import eventually

STOP_S = 2.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_within_two_seconds_with_clients_connected(
    tmp_path: Path, number: signal.Signals
) -> None:
    with NodeProcess(tmp_path / "data") as node, Client(node.address, timeout_s=2) as client:
        client.send("orders", b"1", delay=60).result(60)
        seconds = node.signal(number)
        assert node.running.returncode == 0
        assert seconds < STOP_S
        assert node.log_text().endswith("info stopped\n")


def test_it_stops_in_time_under_load(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        over = threading.Event()
        stored: list[int] = []

        def send() -> None:
            with Client(node.address, timeout_s=1) as client:
                while not over.is_set():
                    batch = client.send_many(_messages(500, delay=0.3))
                    stored.extend(batch.offsets().tolist())

        sender = threading.Thread(target=send)
        sender.start()
        eventually(lambda: len(stored) >= 1000)
        seconds = node.signal()
        over.set()
        sender.join(60)
        assert node.running.returncode == 0
        assert seconds < STOP_S
        with node.start():
            acknowledged = {offset for offset in stored if offset >= 0}
            assert acknowledged
            # What got no answer may arrive before them.
            eventually(lambda: acknowledged <= {row["offset"] for row in node.delivered("load")})
            rows = node.delivered("load")
            # It stopped in good order, so its last mark says what was delivered.
            assert len(rows) == len({row["offset"] for row in rows})


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        # Both arrive while it cannot react to the first.
        node.running.send_signal(signal.SIGSTOP)
        node.running.send_signal(signal.SIGINT)
        node.running.send_signal(signal.SIGTERM)
        node.running.send_signal(signal.SIGCONT)
        node.running.wait(60)
        assert node.running.returncode == 130


def test_a_directory_of_another_group_is_refused(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--group", "a") as node:
        node.signal()
    options = ("--listen", "127.0.0.1:0", "--metrics", "off", "--group", "b")
    done = run_process("node", "--data", tmp_path / "data", *options)
    assert done.returncode == 1
    assert "another wheel group" in done.stderr


def test_a_directory_that_cannot_be_made_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_process("node", "--data", tmp_path / "file" / "data", "--metrics", "off")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "file" in done.stderr


def test_logs_as_json_are_one_object_a_line(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--log-format", "json") as node:
        node.signal()
    events = [json.loads(line) for line in node.log_text().splitlines()]
    assert [event["event"] for event in events] == [
        "recovered",
        f"listening on {node.address}",
        "memory",
        "stopping",
        "stopped",
    ]
    assert events[1]["pid"] == node.running.pid


def test_settings_come_from_variables_too(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", SLOTWHEEL_SLOTS="60", SLOTWHEEL_GROUP="night") as node:
        done = run_process("status", "--json", SLOTWHEEL_NODE=node.address)
        status = json.loads(done.stdout)
        assert (status["group"], status["horizon_ms"]) == ("night", 60_000)


def test_the_console_script_is_the_same_thing(tmp_path: Path) -> None:
    script = Path(command_line()[0]).with_name("slotwheel")
    assert script.exists()


def _messages(count: int, delay: float) -> list[Message]:
    return [Message("load", str(number).encode(), delay=delay) for number in range(count)]


def _due(row: dict[str, Any]) -> int:
    due: datetime = row["due"]
    return round(due.timestamp() * 1000)
