"""A bad question gets one error by every way in: what was wrong, the value, the limit, the remedy.

Of each row the command line, the API and the console are asked; where a way has no such question,
its place is empty. People and programs write times, spans and headers in two ways, so what both
write is looked for there.
"""

from __future__ import annotations

from html import unescape
from typing import NamedTuple

import pytest

from slotwheel.cli import main
from support.gatewayprocess import GatewayProcess


class BadQuestion(NamedTuple):
    """``told``: what the error has to hold by each way in."""

    command: str
    api: str
    page: str
    told: tuple[str, ...]


_SECONDS = (
    "a time before 2000, or not in milliseconds",
    "1790000000 (perhaps seconds: 2026-09-21",
    "milliseconds since 1970, in the years 2000 to 9999",
    "Write 1790000000000, if that is meant",
)
_REVERSED = (
    "no time lies between the two",
    "from 1790000000002 ms to 1790000000001 ms",
    "Give an end behind the begin",
)
_NO_TIME = ("not a time", "'soon'", "a time as 2026-05-31T18:30:00Z", "Write it in one of these")
_TOPIC = ("illegal topic name", "'../x'", "1 to 249 of", "Name the target topic")
_BOUNDS = "a number out of its bounds"
TABLE = {
    "letters, a time in seconds": BadQuestion(
        "dead list --from 1790000000",
        "/v1/dead?from_ms=1790000000",
        "/dead?buried_from=1790000000",
        _SECONDS,
    ),
    "letters, times that are reversed": BadQuestion(
        "dead export --from 1790000000002 --to 1790000000001",
        "/v1/dead?from_ms=1790000000002&to_ms=1790000000001",
        "/dead?buried_from=1790000000002&buried_to=1790000000001",
        _REVERSED,
    ),
    "letters, no time": BadQuestion("dead list --to soon", "", "/dead?buried_to=soon", _NO_TIME),
    "letters, no topic's name": BadQuestion(
        "dead list --topic ../x", "/v1/dead?topic=../x", "/dead?topic=../x", _TOPIC
    ),
    "letters, no name of another topic": BadQuestion(
        "dead redrive --yes --to-topic ../x", "", "/dead/redrive?to_topic=../x", _TOPIC
    ),
    "letters, a rate that is none": BadQuestion(
        "dead redrive --rate 0",
        "",
        "/dead/redrive?rate=0",
        (_BOUNDS, "'0'", "above 0, up to 1e+09"),
    ),
    "letters, a rate that is no number": BadQuestion(
        "dead redrive --rate fast",
        "",
        "/dead/redrive?rate=fast",
        ("not a number", "'fast'", "a number as 10 or 0.5"),
    ),
    "pending, a time in seconds": BadQuestion(
        "search DATA --from 1790000000",
        "/v1/messages?from_ms=1790000000",
        "/pending?due_from=1790000000",
        _SECONDS,
    ),
    "pending, times that are reversed": BadQuestion(
        "search DATA --from 1790000000002 --to 1790000000001",
        "/v1/messages/count?from_ms=1790000000002&to_ms=1790000000001",
        "/pending/cancel?due_from=1790000000002&due_to=1790000000001",
        _REVERSED,
    ),
    "pending, no time": BadQuestion("search DATA --to soon", "", "/pending?due_to=soon", _NO_TIME),
    "conditions, a time in seconds": BadQuestion(
        "cancel --data DATA --where from=1790000000", "", "", _SECONDS
    ),
    "conditions, times that are reversed": BadQuestion(
        "cancel --data DATA --where from=1790000000002 --where to=1790000000001",
        "",
        "",
        _REVERSED,
    ),
    "conditions, no time": BadQuestion("cancel --data DATA --where to=soon", "", "", _NO_TIME),
    "pending, no header": BadQuestion(
        "search DATA --header own",
        "/v1/messages?header=own",
        "/pending?header=own",
        ("not a header", "'own'", "NAME", "VALUE", "Write its name and its value"),
    ),
    "pending, no page": BadQuestion(
        "search DATA --page 1,b",
        "/v1/messages?page=1,b",
        "/pending?page=1,b",
        ("not a page", "'1,b'", "DUE,OFFSET", "Give what the page before it named"),
    ),
    "pending, no messages of a page": BadQuestion(
        "search DATA --limit 0", "/v1/messages?limit=0", "", (_BOUNDS, "'0'", "1 to 10000")
    ),
    "pending, too many of a page": BadQuestion(
        "search DATA --limit 10001",
        "/v1/messages?limit=10001",
        "",
        (_BOUNDS, "'10001'", "1 to 10000"),
    ),
    "pending, no whole number": BadQuestion(
        "search DATA --limit 1.5",
        "/v1/messages?limit=1.5",
        "",
        ("not a whole number", "'1.5'", "19 digits at most"),
    ),
    "pending, counted by something else": BadQuestion(
        "search DATA --count --by day",
        "/v1/messages/count?by=day",
        "",
        ("not one of the choices", "'day'", "slot, topic", "Write one of these"),
    ),
    "events, a time in seconds": BadQuestion(
        "trace --data DATA --from 1790000000", "/v1/trace?from_ms=1790000000", "", _SECONDS
    ),
    "events, times that are reversed": BadQuestion(
        "trace --data DATA --from 1790000000002 --to 1790000000001",
        "/v1/trace?from_ms=1790000000002&to_ms=1790000000001",
        "",
        _REVERSED,
    ),
    "events, no such kind": BadQuestion(
        "trace --data DATA --kind lost",
        "/v1/trace?kind=lost",
        "",
        ("not one of the choices", "'lost'", "produced, received, processed", "Write one"),
    ),
    "events, no place": BadQuestion(
        "trace --data DATA --page 1",
        "/v1/trace?page=1",
        "",
        ("not the place of an event", "'1'", "AT,NUMBER,SENDER", "as the page before did"),
    ),
    "latency, of no time": BadQuestion(
        "trace --data DATA --show latency --interval 0s",
        "/v1/trace/latency?interval_ms=0",
        "",
        (_BOUNDS, "'0", "1 to 4398046511103 ms"),
    ),
    "latency, times that are reversed": BadQuestion(
        "trace --data DATA --show latency --from 1790000000002 --to 1790000000001",
        "/v1/trace/latency?from_ms=1790000000002&to_ms=1790000000001",
        "",
        _REVERSED,
    ),
    "anomalies, times that are reversed": BadQuestion(
        "trace --data DATA --show anomalies --from 1790000000002 --to 1790000000001",
        "/v1/trace/anomalies?from_ms=1790000000002&to_ms=1790000000001",
        "",
        _REVERSED,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_way_in_tells_the_same(
    name: str, gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = TABLE[name]
    data = str(gateway.node.data)
    command = [data if word == "DATA" else word for word in asked.command.split()]
    if command[0] == "dead":
        command += ["--data", data]
    assert main.run([*command, "--json"] if command[1] != "export" else command) in (1, 2)
    said = [capsys.readouterr().err]
    if asked.api:
        answer = gateway.request("GET", asked.api)
        assert answer.status_code == 422, answer.text
        said.append(" ".join(map(str, answer.json().values())))
    if asked.page:
        sign = "&" if "?" in asked.page else "?"
        answer = gateway.request("GET", f"/console{asked.page}{sign}whole=true")
        said.append(unescape(answer.text))
    for text in said:
        for part in asked.told:
            assert part in text, (part, text)


def test_a_number_of_a_body_is_out_of_the_bounds_that_an_option_has(
    gateway: GatewayProcess,
) -> None:
    for rate in (0, -0.5, 1e10):
        answer = gateway.request("POST", "/v1/dead/redrive?dry_run=true", json={"rate": rate})
        error = answer.json()
        assert (answer.status_code, error["place"]) == (422, "$.rate"), error
        told = error["message"], error["got"], error["limit"]
        assert told == (_BOUNDS, f"'{rate}'", "above 0, up to 1e+09")
    for body in ({"rate": True}, {"from_ms": 1.5}, {"limit": 0}):
        answer = gateway.request("POST", "/v1/dead/redrive", json=body)
        assert (answer.status_code, _BOUNDS in answer.text) == (422, False), answer.text


@pytest.mark.parametrize("path", ["/v1/dead/redrive", "/v1/cancellations"])
@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({"from_ms": 1_790_000_000}, _SECONDS),
        ({"from_ms": 1_790_000_000_002, "to_ms": 1_790_000_000_001}, _REVERSED),
    ],
)
def test_a_body_is_checked_as_a_query_is(
    path: str, times: dict[str, int], told: tuple[str, ...], gateway: GatewayProcess
) -> None:
    body = {"where": times} if path == "/v1/cancellations" else times
    answer = gateway.request("POST", f"{path}?dry_run=true", json=body)
    assert answer.status_code == 422, answer.text
    for part in told:
        assert part in answer.text


def test_a_name_that_no_topic_has_is_told_alike(
    gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where records of Kafka's REST proxy go: its errors are a code and a text."""
    name = "no topic"
    node = ["--node", gateway.node.address]
    assert main.run(["send", name, "x", "--delay", "1s", "--json", *node]) == 1
    told = "illegal topic name", f"'{name}'", "1 to 249 of"
    said = [capsys.readouterr().err]
    message = {"topic": name, "value": "x", "delay_ms": 1}
    said.append(gateway.request("POST", "/v1/messages", json=message).text)
    said.append(gateway.request("GET", "/v1/dead", params={"topic": name}).text)
    media = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    records = {"records": [{"value": "x"}]}
    said.append(gateway.request("POST", f"/topics/{name}", json=records, headers=media).text)
    for text in said:
        for part in told:
            assert part in text, (part, text)
