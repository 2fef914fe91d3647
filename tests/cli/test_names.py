"""Commands that name a message: what is sent, found, moved and cancelled by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nodeprocess import NodeProcess, json_lines, run_cli

LATER = ("--delay", "1h")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("names") / "data") as started:
        yield started


def sent(node: NodeProcess, topic: str, *more: str) -> dict[str, object]:
    done = run_cli("send", topic, "x", *LATER, *more, "--json", "--node", node.address)
    assert done.returncode == 0, done.stderr
    [line] = json_lines(done.stdout)
    return line


def test_send_says_what_became_of_the_message_before(node: NodeProcess) -> None:
    named = ("--name", "n 1", "--node", node.address)
    first = run_cli("send", "said", "1", *LATER, *named)
    assert (first.returncode, first.stderr) == (0, "")
    second = run_cli("send", "said", "2", *LATER, *named)
    assert second.stderr == f"replaced: {first.stdout}"
    kept = run_cli("send", "said", "3", *LATER, *named, "--if-exists", "keep")
    assert (kept.stdout, kept.stderr) == (second.stdout, f"kept: {second.stdout}")
    refused = run_cli("send", "said", "4", *LATER, *named, "--if-exists", "refuse")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"a pending message has this name; got {second.stdout.strip()}" in refused.stderr
    line = sent(node, "said", "--name", "n 1")
    assert line["before"] == {"what": "replaced", "id": second.stdout.strip()}
    assert "before" not in sent(node, "said", "--name", "n 2")


def test_search_and_trace_say_what_became_of_others_of_the_name(node: NodeProcess) -> None:
    first, second = (str(sent(node, "told", "--name", "n")["id"]) for _ in range(2))
    [fate] = json_lines(run_cli("search", str(node.data), "--id", first, "--json").stdout)
    assert (fate["replaced_by"], fate["before"]) == (second, None)
    assert f"it replaced {first}" in run_cli("search", str(node.data), "--id", second).stdout
    trace = ("trace", "--data", str(node.data))
    assert f"replaced by {second}, a later message of its name" in run_cli(*trace, first).stdout
    assert f"replaced: {first}" in run_cli(*trace, second).stdout


def test_a_message_is_moved_and_cancelled_by_its_name(node: NodeProcess, tmp_path: Path) -> None:
    by_name = ("--topic", "moved", "--name", "ü/1", "--node", node.address)
    message_id = sent(node, "moved", "--name", "ü/1")["id"]
    found = run_cli("search", str(node.data), "--name", "ü/1", "--name", "other", "--json")
    assert [line["id"] for line in json_lines(found.stdout) if "id" in line] == [message_id]
    moved = run_cli("reschedule", *by_name, "--delay", "30m")
    name, answer, new_id = moved.stdout.strip().split("\t")
    assert (name, answer, moved.returncode) == ("ü/1", "cancelled", 0)
    done = run_cli("cancel", *by_name)
    assert (done.stdout, done.returncode) == (f"ü/1\tcancelled\t{new_id}\n", 0)
    nobodys = ("cancel", "--topic", "moved", "--name", "nobody's", "--node", node.address)
    unknown = run_cli(*nobodys)
    assert (unknown.stdout, unknown.returncode) == ("nobody's\tunknown\n", 1)
    assert json.loads(run_cli(*nobodys, "--json").stdout) == {
        "topic": "moved",
        "name": "nobody's",
        "id": None,
        "answer": "unknown",
    }
    as_json = run_cli(
        *("reschedule", "--topic", "moved", "--name", "nobody's", "--delay", "1m", "--json"),
        *("--node", node.address),
    )
    assert json.loads(as_json.stdout) == {
        "topic": "moved",
        "name": "nobody's",
        "answer": "unknown",
        "new_id": None,
    }


def test_a_value_that_was_forgotten_is_noted(node: NodeProcess) -> None:
    done = run_cli("send", "forgotten", *LATER, "--name", "n", "--node", node.address, given="")
    assert (done.stdout, done.returncode) == ("", 0)
    assert "no messages were given. Give values as arguments" in done.stderr


@pytest.mark.parametrize("words", [("cancel",), ("reschedule", *LATER)], ids=["cancel", "move"])
def test_a_name_in_the_place_of_an_id_is_told_from_one(
    node: NodeProcess, words: tuple[str, ...]
) -> None:
    done = run_cli(*words, "order-17", "--node", node.address)
    assert (done.stdout, done.returncode) == ("order-17\tunknown\n", 1)
    assert "Give a name by --name, with --topic" in done.stderr
    unknown = run_cli(*words, "default.1795840096312.0.e5b9e37e90ba8e90", "--node", node.address)
    assert (unknown.stdout.split("\t")[1:], unknown.stderr) == (["unknown\n"], "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("send", "t", "x", *LATER, "--if-exists", "keep"), "--if-exists needs --name"),
        (("send", "t", "x", *LATER, "--name", "n", "--if-exists", "perhaps"), "'perhaps'"),
        (("send", "t", "x", *LATER, "--name", "x" * 201), "201 bytes"),
        (("send", "t", "x", *LATER, "--name", "a\x07b"), "got a\\u{7}b"),
        (("cancel", "--name", "n"), "--topic together with --name"),
        (("cancel", "--topic", "t"), "--topic together with --name"),
        (("cancel", "an.1.2.3", "--topic", "t", "--name", "n"), "neither ids nor --where"),
        (("cancel", "--where", "key=k", "--topic", "t", "--name", "n"), "neither ids nor --where"),
        (("cancel", "--topic", "no/topic", "--name", "n"), "illegal topic name"),
        (("cancel", "--topic", "t", "--name", ""), "got nothing"),
        (("reschedule", *LATER), "Give an ID, or --topic"),
        (("reschedule", "an.1.2.3", "--topic", "t", "--name", "n", *LATER), "Give an ID, or"),
    ],
)
def test_words_that_name_no_message_are_refused(words: tuple[str, ...], said: str) -> None:
    done = run_cli(*words, "--node", "127.0.0.1:1")
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert said in done.stderr


def test_metrics_and_status_count_names(node: NodeProcess) -> None:
    counters = ("slotwheel_names_replaced_total", "slotwheel_names_kept_total")
    before = [node.metric(name) for name in counters]
    named = ("--name", "counted", "--node", node.address)
    for mode in ("replace", "replace", "keep", "refuse"):
        run_cli("send", "counted", "x", *LATER, *named, "--if-exists", mode)
    assert [node.metric(name) for name in counters] == [number + 1 for number in before]
    assert node.metric('slotwheel_refused_rows_total{code="name-taken"}') >= 1
    assert node.metric("slotwheel_names") >= 1
    status = json.loads(run_cli("status", "--node", node.address, "--json").stdout)
    assert status["names"] == node.metric("slotwheel_names")
