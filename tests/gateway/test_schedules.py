"""Schedules over HTTP: from their put to their end, and what is refused, with its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from slotwheel import Client
from slotwheel.policy.schedules.missed import AHEAD_MS
from slotwheel.wheel.errors import InvalidMessage, ScheduleChanged, UnknownSchedule
from support.gatewayprocess import NodeWithGateway, ask
from support.wallclock import WallClock

SELDOM_MS = 1_009 * 3_600_000
"""Runs are due at whole multiples of it: none is while a test looks, as it would be each hour."""
BEAT = {"every_ms": SELDOM_MS, "template": {"topic": "beats", "value": "x"}}
CRON = {"cron": "30 8 * * *", "zone": "Europe/Berlin", "template": {"topic": "reports"}}
ALL = "/v1/schedules"


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    """The node's."""
    return WallClock(tmp_path_factory.mktemp("clock") / "clock")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, clock: WallClock) -> Iterator[NodeWithGateway]:
    data = tmp_path_factory.mktemp("schedules") / "data"
    with NodeWithGateway(data, **clock.variables) as node:
        yield node
        assert "Traceback" not in node.log_text()


def path_of(name: str) -> str:
    return f"{ALL}/{quote(name, safe='')}"


def put(node: NodeWithGateway, name: str, /, **fields: Any) -> dict[str, Any]:
    answer = ask(node, "PUT", path_of(name), {**BEAT, **fields})
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def test_a_schedule_from_its_put_to_its_end(node: NodeWithGateway, clock: WallClock) -> None:
    path = path_of("beat")
    stored = put(node, "beat", every_ms=1000)
    assert stored["schedule"] == {"name": "beat", **BEAT, "every_ms": 1000}
    assert (stored["runs"], stored["missed"], stored["last"]) == (0, 0, None)
    assert [ms % 1000 for ms in stored["next_ms"]] == [0] * 10
    assert put(node, "beat", every_ms=1000)["version"] == stored["version"], "it is there already"
    node.wait_for("beats", 2)
    shown = ask(node, "GET", path).json()
    assert shown["runs"] >= 2
    assert shown["last"]["run"] == shown["runs"]

    paused = ask(node, "POST", f"{path}/pause").json()
    assert paused["schedule"]["paused"] is True
    assert paused["next_ms"] == []
    assert paused["version"] > stored["version"]
    ran = ask(node, "POST", f"{path}/run")
    assert ran.status_code == 201, ran.text
    assert ran.json()["run"] == paused["runs"] + 1, "a pause stops no run that is asked for"
    assert ask(node, "GET", path).json()["last"]["id"] == ran.json()["id"]
    # What is a message already leaves all the same, and so does the run that was asked for.
    clock.sleep(AHEAD_MS)
    rows = node.wait_for("beats", ran.json()["run"])
    assert len(rows) == ran.json()["run"]
    assert {row["value"] for row in rows} == {b"x"}
    resumed = ask(node, "POST", f"{path}/resume").json()
    assert len(resumed["next_ms"]) == 10

    assert ask(node, "DELETE", path).status_code == 204
    for method, place in (("GET", path), ("DELETE", path), ("POST", f"{path}/run")):
        gone = ask(node, method, place)
        assert (gone.status_code, gone.json()["code"]) == (404, "unknown-schedule")
        assert gone.json()["got"] == "'beat'"
        assert gone.json()["remedy"]


def test_a_list_comes_in_pages_in_the_order_of_the_names(node: NodeWithGateway) -> None:
    names = ["list-a", "list-b/c", "list-d", "list-ü"]
    for name in reversed(names):
        put(node, name)
    listed: list[str] = []
    page: str | None = "list-"
    while page is not None:
        answer = ask(node, "GET", f"{ALL}?limit=3&page={quote(page, safe='')}").json()
        assert answer["limited_by_rights"] is False
        assert all(len(each["next_ms"]) == 1 for each in answer["schedules"])
        assert len(answer["schedules"]) <= 3
        listed += [each["schedule"]["name"] for each in answer["schedules"]]
        page = answer["next"]
    assert [name for name in listed if name.startswith("list-")] == names


def test_a_list_is_filtered_by_names_and_topics(node: NodeWithGateway) -> None:
    for name, topic in (("filter-a", "f-1"), ("filter-b", "f-2"), ("filtered", "f-2")):
        put(node, name, template={"topic": topic})

    def listed(**query: str) -> list[str]:
        answer = node.ask("GET", ALL, params=query).json()
        return [each["schedule"]["name"] for each in answer["schedules"]]

    assert listed(prefix="filter-") == ["filter-a", "filter-b"]
    assert listed(prefix="filter", topic="f-2") == ["filter-b", "filtered"]
    assert listed(topic="f-*") == ["filter-a", "filter-b", "filtered"]
    assert listed(prefix="filter-", limit="1", page="filter-a") == ["filter-b"]
    for address in (node.url, node.address):
        with Client(address) as client:
            found = [*client.schedules.list(prefix="filter", topic="f-2")]
            assert [each["schedule"]["name"] for each in found] == ["filter-b", "filtered"]


def test_who_has_not_seen_the_last_change_changes_nothing(node: NodeWithGateway) -> None:
    path = path_of("changed")
    assert ask(node, "PUT", f"{path}?version=7", BEAT).status_code == 409
    first = ask(node, "PUT", f"{path}?version=0", BEAT).json()["version"]
    other = {**BEAT, "every_ms": 2 * SELDOM_MS}
    second = ask(node, "PUT", f"{path}?version={first}", other).json()["version"]
    third = {**BEAT, "every_ms": 3 * SELDOM_MS}
    requests = [("PUT", path, third), ("DELETE", path, None)]
    requests += [("POST", f"{path}/{do}", None) for do in ("pause", "resume", "run")]
    for method, place, body in requests:
        for version, expected in (
            (first, f"version {first}"),
            (second + 1, f"version {second + 1}"),
            (0, "no such schedule"),
        ):
            refused = ask(node, method, f"{place}?version={version}", body)
            assert refused.status_code == 409, (method, place, version, refused.text)
            error = refused.json()
            assert error["code"] == "schedule-changed"
            assert (error["got"], error["limit"]) == (f"version {second}", expected)
            assert error["remedy"]
    again = ask(node, "PUT", f"{path}?version={first}", other)
    assert (again.status_code, again.json()["version"]) == (200, second), "a repeat is harmless"
    assert ask(node, "GET", path).json()["runs"] == 0
    assert ask(node, "DELETE", f"{path}?version={second}").status_code == 204


NAMES = ["a/b", "/", "a b", "100%", "a%2Fb", "ünï©", "?x=1#y", "<b>", "run", "x" * 200]
NAMES += ["/run", "a/run", "a/pause", "a/resume", "a/run/run", "run/", "//"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_segment_of_the_path(node: NodeWithGateway, name: str) -> None:
    path = path_of(name)
    assert put(node, name, name=name)["schedule"]["name"] == name
    with Client(node.url) as client:
        assert client.schedules.get(name)["schedule"]["name"] == name
    assert ask(node, "GET", path).json()["schedule"]["name"] == name
    assert ask(node, "POST", f"{path}/pause").json()["schedule"]["paused"] is True
    assert "paused" not in ask(node, "POST", f"{path}/resume").json()["schedule"]
    assert ask(node, "POST", f"{path}/run").json()["run"] == 1
    assert ask(node, "DELETE", path).status_code == 204
    assert ask(node, "GET", path).status_code == 404


def test_an_encoded_slash_belongs_to_the_name(node: NodeWithGateway) -> None:
    put(node, "of")
    refused = ask(node, "POST", f"{ALL}/of%2Frun")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, GET, PUT, HEAD")
    assert ask(node, "GET", path_of("of")).json()["runs"] == 0
    assert ask(node, "POST", f"{ALL}/of/run").status_code == 201
    assert ask(node, "GET", path_of("of")).json()["runs"] == 1
    for method in ("GET", "PUT", "DELETE"):
        refused = ask(node, method, f"{ALL}/of/run", BEAT if method == "PUT" else None)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        cut = ask(node, method, f"{ALL}/of/one", BEAT if method == "PUT" else None)
        assert cut.status_code == 404
        assert "a slash within a name is written %2F" in cut.json()["remedy"]
    assert ask(node, "GET", "/v1/%73chedules/of").json()["runs"] == 1


def test_bytes_and_headers_come_back_as_they_were_put(node: NodeWithGateway) -> None:
    template = {
        "topic": "bytes",
        "value_base64": "/w==",
        "key": "k",
        "headers": {"text": "ü", "none": None, "raw": {"base64": "/w=="}},
    }
    stored = put(node, "bytes", template=template)["schedule"]
    pairs = [["text", "ü"], ["none", None], ["raw", {"base64": "/w=="}]]
    assert stored["template"] == {**template, "headers": pairs}
    assert put(node, "bytes", **stored)["schedule"] == stored, "what was shown may be put"


BAD: list[tuple[str, str, Any, str, str]] = [
    ("GET", path_of("x" * 201), None, "path name", "201 bytes"),
    ("PUT", f"{ALL}/%FF", BEAT, "path", "\\xff"),
    ("DELETE", f"{ALL}/a%0Ab", None, "path name", "a\\nb"),
    ("POST", f"{ALL}//run", None, "path name", "nothing"),
    ("GET", f"{ALL}?limit=0", None, "query limit", "0"),
    ("GET", f"{ALL}?limit=1001", None, "query limit", "1001"),
    ("PUT", f"{ALL}/n?version=-1", BEAT, "query version", "-1"),
    ("PUT", f"{ALL}/n?version=x", BEAT, "query version", "x"),
    ("PUT", f"{ALL}/n", {**BEAT, "name": "m"}, "$.name", "m"),
    ("PUT", f"{ALL}/n", {**BEAT, "every_ms": 999}, "$.every_ms", "999"),
    ("PUT", f"{ALL}/n", {**BEAT, "every_ms": "1s"}, "$.every_ms", "1s"),
    ("PUT", f"{ALL}/n", {**BEAT, "every": 1}, "$", "every"),
    ("PUT", f"{ALL}/n", {**BEAT, "cron": "* * * * *"}, "$", "both"),
    ("PUT", f"{ALL}/n", {"template": BEAT["template"]}, "$", "neither"),
    ("PUT", f"{ALL}/n", {"every_ms": 1000}, "$", "template"),
    ("PUT", f"{ALL}/n", {**CRON, "cron": "61 * * * *"}, "$.cron", "61"),
    ("PUT", f"{ALL}/n", {**CRON, "zone": "Mars/Olympus"}, "$.zone", "Mars/Olympus"),
    ("PUT", f"{ALL}/n", {**BEAT, "zone": "Europe/Berlin"}, "$.zone", "Europe/Berlin"),
    ("PUT", f"{ALL}/n", {**BEAT, "jitter_ms": SELDOM_MS}, "$.jitter_ms", f"{SELDOM_MS}"),
    ("PUT", f"{ALL}/n", {**BEAT, "missed": "some"}, "$.missed", "some"),
    ("PUT", f"{ALL}/n", {**BEAT, "start_ms": 5}, "$.start_ms", "5"),
    ("PUT", f"{ALL}/n", {**BEAT, "count": 0}, "$.count", "0"),
    ("PUT", f"{ALL}/n", {**BEAT, "end_ms": 1_000_000_000_000}, "$", "2001-09-09"),
    ("PUT", f"{ALL}/n", {**BEAT, "template": {"topic": "no topic"}}, "$.template.topic", "no t"),
    (
        "PUT",
        f"{ALL}/n",
        {**BEAT, "template": {"topic": "t", "partition": -1}},
        "$.template.partition",
        "-1",
    ),
    (
        "PUT",
        f"{ALL}/n",
        {**BEAT, "template": {"topic": "t", "headers": {"slotwheel-id": "x"}}},
        "$.template.headers",
        "slotwheel-id",
    ),
    (
        "PUT",
        f"{ALL}/n",
        {**BEAT, "template": {"topic": "t", "value": "x" * 70_000}},
        "$.template",
        "70000 bytes",
    ),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "place", "got"),
    BAD,
    ids=[f"{method} {path[:30]} {place} {got}" for method, path, _, place, got in BAD],
)
def test_what_is_no_schedule_is_refused_with_its_place(
    node: NodeWithGateway, method: str, path: str, body: Any, place: str, got: str
) -> None:
    answer = ask(node, method, path, body)
    assert answer.status_code == 422, answer.text
    assert answer.json().get("place", "") == place, answer.text
    assert got in answer.text, answer.text
    assert ask(node, "GET", path_of("n")).status_code == 404, "nothing was stored"


def test_the_client_over_http_does_what_the_client_of_nodes_does(node: NodeWithGateway) -> None:
    schedule = {"name": "by/client", **BEAT}
    with Client(node.url) as client, Client(node.address) as other:
        for name in (".", "..", "../x"):  # many programs take these out of a path
            assert client.schedules.put({**schedule, "name": name})["schedule"]["name"] == name
            client.schedules.delete(name)
        version = client.schedules.put(schedule, version=0)["version"]
        assert client.schedules.get("by/client") == other.schedules.get("by/client")
        assert [*client.schedules.list()] == [*other.schedules.list()]
        with pytest.raises(ScheduleChanged, match=f"got version {version}; expected no such"):
            client.schedules.put({**schedule, "every_ms": 60_000}, version=0)
        with pytest.raises(InvalidMessage, match="every_ms"):
            client.schedules.put({**schedule, "every_ms": 5})
        with pytest.raises(InvalidMessage):
            client.schedules.put(BEAT)
        paused = client.schedules.pause("by/client", version=version)
        assert paused["schedule"]["paused"] is True
        with pytest.raises(ScheduleChanged):
            other.schedules.run("by/client", version=version)
        number, message_id = client.schedules.run("by/client", version=paused["version"])
        assert (number, message_id) == (1, other.schedules.get("by/client")["last"]["id"])
        assert "paused" not in client.schedules.resume("by/client")["schedule"]
        client.schedules.delete("by/client")
        with pytest.raises(UnknownSchedule):
            client.schedules.get("by/client")
