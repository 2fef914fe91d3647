"""``policies``, ``routes`` and ``send --level``, ``--route``, against a running node and a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel import Client
from support.nodeprocess import NodeProcess, json_lines, run_cli
from support.waiting import eventually, now_ms

TOML = """
levels = ["100ms", "5s", "1m"]

[policies.orders]
levels = ["1s", "2s", "4s"]
jitter = 0.25
dead-letters = "orders-dead"

[[routes.invoices]]
where = { header = "region", in = ["eu", "ch"] }
to = ["invoices-eu", "audit"]

[[routes.invoices]]
where = { any = [{ header = "test", exists = true }, { header = "kind", prefix = "big" }] }
to = ["audit", "special"]

[[routes.all]]
to = ["one", "two", "three"]
"""
AWAY = ("--node", "127.0.0.1:1", "--timeout", "500ms")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "policies.toml"
    path.write_text(TOML)
    return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Iterator[NodeProcess]:
    data = tmp_path_factory.mktemp("cli") / "data"
    with NodeProcess(data, "--policies", str(path)) as started, Client(started.address) as client:
        eventually(lambda: client.policies()["version"] == 1)
        yield started


def test_policies_of_a_node(node: NodeProcess) -> None:
    done = run_cli("policies", "--node", node.address)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][0] == "version"
    assert int(lines[0][1]) >= 1
    assert lines[1] == ["levels", "100ms", "5s", "1m"]
    assert ["orders", "1s", "2s", "4s", "0.25", "orders-dead"] in lines
    assert ["default", "100ms", "5s", "1m", "0"] in lines


def test_policies_of_a_file_need_no_node(node: NodeProcess, path: Path) -> None:
    done = run_cli("policies", "--file", path, *AWAY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["file", str(path)]
    by_file = json.loads(run_cli("policies", "--file", path, "--json", *AWAY).stdout)
    by_node = json.loads(run_cli("policies", "--json", "--node", node.address).stdout)
    for name in ("levels", "policies", "routes"):
        assert by_file[name] == by_node[name]
    assert by_file["version"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("levels = [", "is not TOML"),
        ("levels = ['soon']", "not a time span"),
        ("routes.r = [{ to = ['t'], where = { header = 'h', regex = '.*' } }]", "no such test"),
    ],
)
@pytest.mark.parametrize("command", [["policies"], ["routes", "list"], ["routes", "explain", "r"]])
def test_a_file_that_cannot_hold_is_told(
    tmp_path: Path, text: str, said: str, command: list[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    done = run_cli(*command, "--file", bad)
    assert done.returncode == 1
    assert done.stdout == ""
    assert said in done.stderr
    done = run_cli(*command, "--file", bad, "--json")
    assert done.returncode == 1
    assert said in done.stderr


def test_a_file_that_is_no_text_or_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"levels = ['\xff']")
    done = run_cli("policies", "--file", tmp_path / "binary")
    assert done.returncode == 1
    assert "not UTF-8" in done.stderr
    done = run_cli("policies", "--file", tmp_path / "nothing")
    assert done.returncode == 2


@pytest.mark.parametrize(
    "command",
    [["policies"], ["routes", "list"], ["routes", "explain", "all"], ["routes", "forget", "g"]],
)
def test_a_node_that_is_away(command: list[str]) -> None:
    done = run_cli(*command, *AWAY)
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1:1" in done.stderr


def test_routes_and_rules_of_groups(node: NodeProcess) -> None:
    done = run_cli("routes", "list", "--node", node.address)
    assert done.returncode == 0, done.stderr
    assert '{"header": "region", "in": ["ch", "eu"]}' in done.stdout
    assert "(each message)" in done.stdout
    assert "one two three" in done.stdout
    with Client(node.address) as client:
        client.register("billing", {"header": "kind", "equals": "invoice"})
        client.register("copy", None)
    done = run_cli("routes", "list", "--node", node.address)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["copy", "(each", "message)"] in lines
    assert ["billing", '{"equals":', '"invoice",', '"header":', '"kind"}'] in lines
    found = json.loads(run_cli("routes", "list", "--json", "--node", node.address).stdout)
    assert set(found) == {"version", "routes", "groups"}
    assert found["groups"] == {"billing": {"header": "kind", "equals": "invoice"}, "copy": None}


def test_forget_lets_a_group_have_another_rule(node: NodeProcess) -> None:
    with Client(node.address) as client:
        client.register("gone", None)
    done = run_cli("routes", "forget", "gone", "--node", node.address)
    assert (done.returncode, done.stdout) == (0, "gone: forgotten\n")
    done = run_cli("routes", "forget", "gone", "--node", node.address)
    assert (done.returncode, done.stdout) == (0, "gone: had no rule\n")
    done = run_cli("routes", "forget", "gone", "--json", "--node", node.address)
    assert json.loads(done.stdout) == {"group": "gone", "forgotten": False}
    done = run_cli("routes", "forget", "a b", "--node", node.address)
    assert done.returncode == 1
    assert "a b" in done.stderr


def test_explain_says_which_branches_match(node: NodeProcess, path: Path) -> None:
    for source in (["--node", node.address], ["--file", str(path)]):
        explain = ["routes", "explain", "invoices", *source]
        done = run_cli(*explain, "--header", "region=eu", "--header", "kind=bigger")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [line.split()[0] for line in lines[1:3]] == ["yes", "yes"]
        assert lines[-1] == "goes to  invoices-eu audit special"
        done = run_cli(*explain, "--header", "region=ch", "--json")
        found = json.loads(done.stdout)
        assert [one["matches"] for one in found["branches"]] == [True, False]
        assert found["topics"] == ["invoices-eu", "audit"]
        done = run_cli(*explain, "--header", "region=us")
        assert done.returncode == 1
        assert "it is refused" in done.stdout
        assert "no rule matches" in done.stderr
        done = run_cli("routes", "explain", "nothing", *source)
        assert (done.returncode, done.stdout) == (1, "")
        assert "one of all, invoices" in done.stderr


def test_send_with_a_level(node: NodeProcess) -> None:
    before = now_ms()
    done = run_cli("send", "levels", "a", "b", "--level", "1m", "--json", "--node", node.address)
    assert (done.returncode, done.stderr) == (0, "")
    for line in json_lines(done.stdout):
        assert before + 60_000 <= line["due_ms"] <= now_ms() + 60_000
    done = run_cli("send", "soon", "c", "--level", "1", "--node", node.address)
    assert done.returncode == 0
    (row,) = node.wait_for("soon", 1)
    assert row["value"] == b"c"


def test_send_to_a_route_prints_an_id_for_each_topic(node: NodeProcess) -> None:
    options = ("--route", "all", "--level", "100ms", "--node", node.address)
    done = run_cli("send", "first", "second", "--key", "k", *options)
    assert (done.returncode, done.stderr) == (0, "")
    ids = done.stdout.split()
    assert len(set(ids)) == 6
    for number, topic in enumerate(("one", "two", "three")):
        rows = node.wait_for(topic, 2)
        assert [row["value"] for row in rows] == [b"first", b"second"]
        assert [str(row["offset"]) for row in rows] == [one.split(".")[2] for one in ids[number::3]]


def test_send_to_a_route_by_headers_from_a_pipe(node: NodeProcess, tmp_path: Path) -> None:
    options = ("--route", "invoices", "--delay", "100ms", "--node", node.address)
    given = "".join(f"{number}\n" for number in range(6_000))
    done = run_cli("send", *options, "--header", "region=eu", given=given)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(set(done.stdout.split())) == 12_000
    for topic in ("invoices-eu", "audit"):
        rows = node.wait_for(topic, 6_000)
        assert sorted(int(row["value"]) for row in rows) == list(range(6_000))
    (tmp_path / "values").write_text("x\ny\n")
    done = run_cli("send", *options, "--file", tmp_path / "values", "--header", "region=ch")
    assert len(done.stdout.split()) == 4
    done = run_cli("send", *options, "--header", "region=us", given="x\ny\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: message 1: route invoices: no rule matches")
    done = run_cli("send", *options, "--header", "region=us", "--json", given="x\n")
    (told,) = json_lines(done.stderr)
    assert (told["message"], told["error"]["code"]) == (1, "invalid-message")


def test_levels_and_routes_that_are_not_there(node: NodeProcess) -> None:
    done = run_cli("send", "t", "x", "--level", "9s", "--node", node.address)
    assert (done.returncode, done.stdout) == (1, "")
    assert "one of 100ms 5s 1m" in done.stderr
    done = run_cli("send", "x", "--route", "some", "--delay", "1s", "--node", node.address)
    assert (done.returncode, done.stdout) == (1, "")
    assert "one of all, invoices" in done.stderr
    given = b"\n".join([b"x"] * 500)
    done = run_cli("send", "t", "--level", "9s", "--node", node.address, given=given)
    assert done.returncode == 1
    assert "too many messages that cannot be sent" in done.stderr
    done = run_cli("send", "t", "x", "--level", "5s", *AWAY)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["t", "x", "--level", "5s", "--delay", "1s"],
        ["t", "x", "--level", "5s", "--at", "2030-01-01T00:00:00Z"],
        ["t", "x"],
        ["--level", "5s"],
        ["x", "--route", "all"],
        ["x", "--route", "all", "--delay", "1s", "--partition", "0"],
        ["x", "--route", "all", "--delay", "1s", "--file", "-"],
    ],
)
def test_what_contradicts_itself_is_a_usage_error(options: list[str]) -> None:
    done = run_cli("send", *options, *AWAY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error" in done.stderr or "Usage" in done.stderr
