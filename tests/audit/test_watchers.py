"""Who says what the audit has found: the command, and the gateway beside a node."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from slotwheel import Client
from slotwheel.audit import AUDIT_TOPIC, Auditor
from slotwheel.audit.ledger import AuditLedger
from slotwheel.audit.watch.watching import AuditSettings, AuditWatch
from slotwheel.reading.growing.tails import EmbeddedTails
from slotwheel.reading.problems import INTEGRITY, Problem
from slotwheel.trace import TRACE_TOPIC, WheelTarget
from slotwheel.wheel.texts import time_text
from support.gatewayprocess import GatewayProcess
from support.lossynode import LOST, LossyNode
from support.nodeprocess import NodeProcess, command_line, environment, run_cli
from support.waiting import eventually, now_ms


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LossyNode]:
    with LossyNode(tmp_path_factory.mktemp("audit") / "data") as node:
        yield node


@pytest.fixture(scope="module")
def losing(node: LossyNode) -> Iterator[None]:
    """Of each second's orders one is lost, from whenever somebody looks."""
    over = threading.Event()

    def lose() -> None:
        with Client(node.address) as client:
            while not over.wait(1.0):
                due_ms = (now_ms() // 1000 + 9) * 1000
                for value in (b"v", LOST):
                    client.send("orders", value, due=due_ms).result(60)

    thread = threading.Thread(target=lose)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture(scope="module")
def gateway(node: LossyNode) -> Iterator[GatewayProcess]:
    """It audits, from the first test of this file on: only what is due a while later is judged."""
    with GatewayProcess(node, "--audit", "--audit-interval", "1s") as one:
        yield one


_OPTIONS = ("--interval", "1s", "--grace", "1s")


@pytest.mark.usefixtures("losing", "gateway")
def test_the_command_prints_a_line_for_each_verdict_and_fails_when_something_is_lost(
    node: LossyNode,
) -> None:
    command = command_line("audit", node.data, *_OPTIONS, "--json", "--for", "60s")
    with ExitStack() as started:
        ends = {
            number: started.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
            )
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        for number, process in ends.items():
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            process.send_signal(number)
            last = json.loads(process.stdout.read().splitlines()[-1])
            assert process.wait(60) == 1
            # The second one has gone on meanwhile.
            assert last["end"]["compared"] > 0
            assert last["end"]["differing"] == 1
            assert (found["verdict"], found["boundary"], found["topic"]) == (
                *("lost", "wheel to topic", "orders"),
            )
            assert found["before"] - found["after"] == found["count"] > 0
            assert (found["stale"], found["at_ms"] > found["bucket_ms"]) == (False, True)


def test_with_once_it_ends_by_itself_and_without_a_fault_with_0(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path / "data") as node,
        closing(Auditor(WheelTarget(node.address, AUDIT_TOPIC), interval_s=10)),
    ):
        done = run_cli("audit", node.data, *_OPTIONS, "--once", "--json")
    end = json.loads(done.stdout)["end"]
    assert (done.returncode, end["compared"], end["open"]) == (0, 0, 0)
    # Neither that buckets do not fit, nor that there are none, must pass for agreement.
    refused, nothing = done.stderr.splitlines()
    assert refused == "audit: sums are refused: another interval"
    assert "nothing was compared" in nothing
    assert time_text(end["from_ms"]) in nothing


def test_what_is_not_read_does_not_make_a_report_newer(
    node: LossyNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: EmbeddedTails) -> NoReturn:
        raise OSError("nothing to be read")

    with AuditWatch(AuditSettings(node.data)) as watch:
        first = watch.step()
        assert first.problem == ""
        monkeypatch.setattr(EmbeddedTails, "read", away)
        time.sleep(0.01)
        later = watch.step()
        assert (later.at_ms, later.problem) == (first.at_ms, "nothing to be read")
        monkeypatch.undo()
        eventually(lambda: watch.step().at_ms > first.at_ms)


def test_what_is_said_of_messages_is_not_audited(node: LossyNode) -> None:
    settings = AuditSettings(node.data, interval_ms=1_000)
    with AuditWatch(settings) as watch, Client(node.address) as client:
        due_ms = now_ms() + 9_000
        for topic in (TRACE_TOPIC, "kept"):
            client.send(topic, b"v", due=due_ms).result(60)

        def audited() -> set[str]:
            found = {cell.topic for cell in watch.step().cells}
            return found if "kept" in found else set()

        assert TRACE_TOPIC not in eventually(audited, every_s=0.3)


def test_what_the_audit_topic_has_no_more_is_missing_in_the_sums(
    node: LossyNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: EmbeddedTails) -> Iterator[Problem]:
        yield Problem(INTEGRITY, "gap", "some were deleted", file=AUDIT_TOPIC)

    missed = []
    monkeypatch.setattr(EmbeddedTails, "read", gone)
    monkeypatch.setattr(AuditLedger, "miss_sums", lambda _, text, at_ms: missed.append(text))
    with AuditWatch(AuditSettings(node.data)) as watch:
        assert watch.step().problem == ""
    assert missed == ["the audit topic: some were deleted"]


@pytest.mark.parametrize("option", ["--topic", "--dead-letter-topic", "--others"])
def test_what_is_no_topic_is_refused(tmp_path: Path, option: str) -> None:
    done = run_cli("audit", tmp_path, option, "bad topic!")
    assert done.returncode == 1
    assert "illegal topic name" in done.stderr


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    done = run_cli("audit", tmp_path)
    assert done.returncode == 1
    assert "data directory" in done.stderr


@pytest.mark.usefixtures("losing")
def test_the_gateway_says_what_is_lost_counts_it_and_logs_it_once(gateway: GatewayProcess) -> None:
    def lost() -> dict[str, Any]:
        answer = gateway.request("GET", "/v1/audit?verdict=lost")
        found: list[dict[str, Any]] = answer.json().get("comparisons", [])
        return found[-1] if found else {}

    found = eventually(lost, every_s=0.3)
    assert (found["boundary"], found["topic"]) == ("wheel to topic", "orders")
    assert found["before"] - found["after"] == found["count"] > 0
    metrics = gateway.request("GET", "/metrics").text
    differs = re.search(r"^slotwheel_audit_differs (\d+)", metrics, re.MULTILINE)
    assert differs is not None
    assert int(differs[1]) > 0
    assert re.search(r'slotwheel_audit_comparisons{verdict="lost"} [1-9]', metrics)
    every = gateway.get("/v1/audit")
    assert (every["problem"], every["stale"], every["restarts"]) == ("", False, 0)
    assert "orders" in {one["topic"] for one in every["differing"]}
    assert every["verdicts"]["lost"] > 0
    assert gateway.request("GET", "/v1/audit?verdict=nice").status_code == 422
    line = f"topic orders, due from {time_text(found['bucket_ms'])}"
    assert eventually(lambda: gateway.log_text().count(line)) == 1


def test_a_gateway_that_does_not_audit_says_so(node: LossyNode) -> None:
    with GatewayProcess(node) as gateway:
        assert gateway.request("GET", "/v1/audit").status_code == 404
