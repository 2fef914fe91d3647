"""``slotwheel search`` and ``slotwheel cancel --where`` against a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest

from slotwheel import Client, Message
from slotwheel.wheel.texts import time_text
from support.damage import flip
from support.nodeprocess import NodeProcess, json_lines, run_cli, run_process
from support.waiting import eventually, now_ms

COUNT = 400


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, list[str]]]:
    """A node with messages of two topics, due in an hour; their ids in the order of due times."""
    data = tmp_path_factory.mktemp("shop") / "data"
    options = ("--tail-age", "200ms", "--tail-keep", "1ms")
    with NodeProcess(data, *options) as node, Client(node.address) as client:
        begin = now_ms() + 3_600_000
        ids = client.send_many(
            Message(
                "orders" if n % 4 else "mails",
                b"value-%d" % n,
                key=b"key-%d" % n,
                due=begin + 10 * n,
                headers={"source": b"web" if n % 2 else b"shop"},
            )
            for n in range(COUNT)
        ).result(60)
        eventually(lambda: client.status()["tail_rows"] == 0)
        yield node, ids


def test_pages_and_what_they_say(shop: tuple[NodeProcess, list[str]]) -> None:
    node, ids = shop
    found: list[str] = []
    after: list[str] = []
    while True:
        done = run_cli("search", node.data, "--topic", "mails", "--limit", "30", "--json", *after)
        assert done.returncode == 0, done.stderr
        *messages, last = json_lines(done.stdout)
        found += [one["id"] for one in messages]
        page = last["page"]
        assert page["complete"]
        assert page["messages"] == len(messages)
        assert page["read_point"]["next_offset"] >= COUNT
        if page["next"] is None:
            break
        after = ["--page", page["next"]]
    assert found == ids[::4]
    assert messages[0]["topic"] == "mails"
    assert messages[0]["headers"] == [{"key": "source", "value": "shop"}]


def test_keys_headers_and_times(shop: tuple[NodeProcess, list[str]]) -> None:
    node, ids = shop
    done = run_cli("search", node.data, "--key", "key-7", "--header", "source=web")
    assert done.stdout.startswith(f"id {ids[7]}  due ")
    assert "value 'value-7'" in done.stdout
    assert "1 message\n" in done.stderr
    assert "looked through 400 rows" in done.stderr
    due = datetime.fromtimestamp(int(ids[9].split(".")[1]) / 1000, UTC).isoformat()
    done = run_cli("search", node.data, "--to", due, "--header", "source=shop", "--json")
    assert [one["id"] for one in json_lines(done.stdout)[:-1]] == ids[0:9:2]


def test_counts(shop: tuple[NodeProcess, list[str]]) -> None:
    node, _ = shop
    done = run_cli("search", node.data, "--count")
    assert "400 messages pending" in done.stdout
    [found] = json_lines(run_cli("search", node.data, "--count", "--by", "slot", "--json").stdout)
    assert found["pending"] == sum(found["slots"].values()) == COUNT
    [found] = json_lines(run_cli("search", node.data, "--count", "--by", "topic", "--json").stdout)
    assert found["topics"] == {"mails": 100, "orders": 300}
    text = run_cli("search", node.data, "--count", "--by", "topic").stdout
    assert text.splitlines()[1].split() == ["mails", "100"]


def test_ids(shop: tuple[NodeProcess, list[str]]) -> None:
    node, ids = shop
    done = run_cli("search", node.data, "--id", ids[3], "--id", "nonsense", "--json")
    first, second = json_lines(done.stdout)
    assert (first["state"], first["topic"], first["value"]) == ("pending", "orders", "value-3")
    assert second["state"] == "unknown"
    assert (second["created_ms"], second["left_ms"], second["topic"]) == (None, None, None)
    assert done.returncode == 1
    accepted = time_text(first["created_ms"])
    assert run_process("search", node.data, "--id", ids[3]).stdout == (
        f"{ids[3]}\tpending\tnot due yet\t{accepted}\t-\n"
    )


def test_wrong_uses_are_refused(shop: tuple[NodeProcess, list[str]], tmp_path: Path) -> None:
    node, ids = shop
    for arguments in (
        ("search", node.data, "--by", "slot"),
        ("search", node.data, "--follow-up", "cancel", "--count"),
        ("search", node.data, "--follow-up", "cancel", "--yes"),
        ("cancel", "--where", "topic=orders"),
        ("cancel", ids[0], "--where", "topic=orders", "--data", node.data),
        ("cancel", ids[0], "--yes"),
        # There is nobody to ask.
        ("cancel", "--where", "topic=orders", "--data", node.data, "--node", node.address),
    ):
        assert run_cli(*arguments).returncode == 2, arguments
    for done in (
        run_cli("search", tmp_path, "--count"),
        run_cli("cancel", "--where", "colour=red", "--data", node.data),
    ):
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")


def test_a_bulk_cancel_asks_and_reports(shop: tuple[NodeProcess, list[str]]) -> None:
    node, ids = shop
    where = ("cancel", "--data", node.data, "--node", node.address, "--where", "header:source=web")
    with (
        patch("slotwheel.cli.resending.sys"),  # its stdin is a terminal
        patch("slotwheel.cli.resending.click.confirm", return_value=False),
    ):
        done = run_cli(*where, "--where", "topic=mails")
        assert (done.returncode, done.stdout) == (0, "nothing was cancelled\n")  # there is none
        done = run_cli(*where, "--where", "key=key-1")
        assert done.returncode == 1
        assert "1 message to cancel\nNothing was cancelled." in done.stderr
    done = run_cli(*where, "--where", "key=key-1", "--where", "key=key-3", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    [said] = json_lines(done.stdout)
    assert said == {
        "counted": 2,
        "asked": 2,
        "answers": {"cancelled": 2},
        "unanswered": 0,
        "complete": True,
        "problems": [],
    }
    found = run_cli("search", node.data, "--id", ids[1], "--json")
    assert json.loads(found.stdout)["state"] == "cancelled"
    follow_up = ("--follow-up", "cancel", "--yes", "--node", node.address)
    done = run_cli("search", node.data, "--key", "key-5", *follow_up)
    assert (done.returncode, done.stdout) == (0, "1\tcancelled\n")


def test_what_cannot_be_read_is_said(root: Path) -> None:
    flip(next((root / "slots").iterdir()))
    done = run_cli("search", root)
    assert done.returncode == 1
    assert "problem: slots/" in done.stderr
    assert "not complete: rows may be missing" in done.stderr
    [found] = json_lines(run_cli("search", root, "--count", "--by", "topic", "--json").stdout)
    assert not found["complete"]
    assert "CRC-32C" in found["problems"][0]
