"""A message that cannot be stored gets the same answer by whatever way it comes: what is wrong, the
value, the limit and what to do; and nothing of it is stored.

``WAYS`` are the ways in: a message that is sent and one that is stored, a table of a client, the
command, a message, one by its name and a record by HTTP, a record of a delay topic. ``BAD`` are the
messages.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest

from slotwheel import Client, Message, SlotwheelError
from slotwheel.cli import main
from slotwheel.node.intake.records import ConsumerRecords, rows_of
from slotwheel.policy.deadletters import ERROR
from slotwheel.policy.policyset import PolicySet
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER
from slotwheel.wheel.schema import HEADERS
from support.gatewayprocess import NodeWithGateway

BYTES_MAX = 10_240
GOOD: dict[str, Any] = {"topic": "t", "value": "x", "headers": {}, "delay": 3_600_000}
Fields = dict[str, Any]


class Bad(NamedTuple):
    """The fields in which a message differs from ``GOOD``, by ``Message``'s names with times in ms;
    None: left out. And texts that its error has to hold: what is wrong, the value, the limit. What
    a type forbids is told in the type's words: then there are several texts, of which one does."""

    fields: Fields
    wrong: str | tuple[str, ...]
    got: str
    limit: str = ""


NAME = "1 to 249 of a-z A-Z 0-9 . _ -"
NAMED = "1 to 200 bytes of UTF-8 without control characters"
NOT_AN_INT = ("Expected `int`", "is not in the range", "wrong type")
BAD = {
    "no topic": Bad({"topic": ""}, "no topic", ""),
    "illegal topic": Bad({"topic": "no/topic"}, "illegal topic name", "'no/topic'", NAME),
    "dots as a topic": Bad({"topic": ".."}, "illegal topic name", "'..'", NAME),
    "topic too long": Bad({"topic": "t" * 250}, "illegal topic name", "'ttt", NAME),
    "topic in other letters": Bad({"topic": "gro e"}, "illegal topic name", "'gro e'", NAME),
    "too large": Bad({"value": "x" * 10_241}, "message too large", "10241 bytes", "10240 bytes"),
    "large headers": Bad(
        {"headers": {"h": "x" * 10_240}}, "message too large", " bytes of key", "10240 bytes"
    ),
    "reserved header": Bad(
        {"headers": {"a": "b", "slotwheel-id": "x"}},
        *("reserved header name", "slotwheel-id", "begin with 'slotwheel-'"),
    ),
    "reserved headers": Bad(
        {"headers": {"slotwheel-id": "x", "slotwheel-dead-stage": "1"}},
        *("reserved header names", "slotwheel-id, slotwheel-dead-stage", "with 'slotwheel-'"),
    ),
    "delay beyond the horizon": Bad(
        {"delay": 10_800_000}, "due beyond the horizon", "too far ahead by ", "Z"
    ),
    "due beyond the horizon": Bad(
        {"due": 4_000_000_000_000, "delay": None}, "due beyond the horizon", "4000000000000 ms", "Z"
    ),
    "due before 1970": Bad(
        {"due": -5000, "delay": None}, ("due before 1970", *NOT_AN_INT), "-5000", "0"
    ),
    "due after all time": Bad(
        {"due": 1 << 62, "delay": None},
        ("due time", "due beyond the horizon", "slotwheel-due-ms", *NOT_AN_INT),
        *("4611686018427387904", ""),
    ),
    "delay after all time": Bad(
        {"delay": 1 << 61},
        ("delay", "due beyond the horizon", "not a time span", *NOT_AN_INT),
        "2305843009213693952",
    ),
    "negative partition": Bad({"partition": -1}, ("negative partition", *NOT_AN_INT), "-1", "0"),
    "partition beyond all": Bad(
        {"partition": 1 << 31}, ("no such partition", *NOT_AN_INT), "2147483648", "2147483647"
    ),
    "both due and delay": Bad({"due": 2_000_000_000_000, "delay": 5}, ("both", "exactly one"), ""),
    "neither due nor delay": Bad({"delay": None}, ("no due", "neither due", "exactly one"), ""),
    "no time to live": Bad({"ttl": 0}, ("no time to live", "no time at all", "-ttl-ms"), "0"),
    "negative time to live": Bad(
        {"ttl": -1}, ("no time to live", "not a time span", "-ttl-ms", *NOT_AN_INT), "-1"
    ),
    "endless time to live": Bad(
        {"ttl": 1 << 61},
        ("time to expire", "not a time span", "-ttl-ms", *NOT_AN_INT),
        "2305843009213693952",
    ),
    "expires before it is due": Bad(
        {"due": 1_000_000, "delay": None, "expires": 900_000},
        *("expires before it is due", "900000 ms", "1000000 ms"),
    ),
    "no name at all": Bad({"name": ""}, "no name", "nothing", NAMED),
    "name too long": Bad({"name": "é" * 101}, "name is too long", "202 bytes", NAMED),
    "name of several lines": Bad({"name": "a\nb"}, "control characters in the name", "b", NAMED),
    "name that is a bell": Bad({"name": "\x07"}, "control characters", "{7}", NAMED),
    "name of 51 signs of 4 bytes": Bad(
        {"name": "\U0001f600" * 51}, "name is too long", "204 bytes", NAMED
    ),
    "name with a later control": Bad({"name": "a\x85"}, "control characters", "{85}", NAMED),
    "half a character as a name": Bad(
        {"name": "\ud800"}, ("name is not text", "half of a surrogate pair"), "ud800"
    ),
    "name that is no UTF-8": Bad(
        {"headers": [(NAME_HEADER, b"\xff")]}, "the name is not text", "\\xff", NAMED
    ),
    "name without a value": Bad({"headers": [(NAME_HEADER, None)]}, "no name", "null", NAMED),
    "two names": Bad(
        {"headers": [(NAME_HEADER, b"a"), (NAME_HEADER, b"b")]}, "name: header twice", "two", "one"
    ),
    "a name and a header": Bad(
        {"name": "n", "headers": [(NAME_HEADER, b"m")]}, "name: header twice", "two", "one"
    ),
    "two rules": Bad(
        {"name": "n", "headers": [(IF_EXISTS_HEADER, b"keep"), (IF_EXISTS_HEADER, b"keep")]},
        *("header twice", "two", "one"),
    ),
    "rule in capitals": Bad(
        {"name": "n", "headers": [(IF_EXISTS_HEADER, b"KEEP")]},
        *("if-exists: unknown", "KEEP", "replace, keep, refuse"),
    ),
    "rule without a name": Bad(
        {"headers": [(IF_EXISTS_HEADER, b"keep")]}, "if-exists without a name", "no name"
    ),
    "unknown if_exists": Bad(
        {"name": "n", "if_exists": "maybe"}, ("if_exists", "if-exists", "Invalid enum"), "maybe"
    ),
    "if_exists without a name": Bad(
        {"if_exists": "keep"}, ("if_exists without a name", "if-exists"), "name"
    ),
    "unknown level": Bad({"level": "soon", "delay": None}, "no such level", "'soon'", "5s 10s"),
    "unknown route": Bad({"route": "nowhere", "topic": None}, "no such route", "nowhere"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    folder = tmp_path_factory.mktemp("bad-messages")
    with NodeWithGateway(folder / "data", "--message-bytes", str(BYTES_MAX)) as started:
        yield started
        assert started.ask("GET", "/v1/status").json()["accepted"] == 0
        assert "Traceback" not in started.log_text()


def by_message(fields: Fields, node: NodeWithGateway, **_: object) -> str:
    spans = {name: fields[name] / 1000 for name in ("delay", "ttl") if name in fields}
    with Client(node.address) as client, pytest.raises(SlotwheelError) as raised:
        client.send(Message(**fields | spans)).result(60)
    assert raised.value.remedy
    return str(raised.value)


def by_store(fields: Fields, node: NodeWithGateway, **_: object) -> str:
    spans = {name: fields[name] / 1000 for name in ("delay", "ttl") if name in fields}
    with Client(node.address) as client, pytest.raises(SlotwheelError) as raised:
        client.store(Message(**fields | spans))
    assert raised.value.remedy
    return str(raised.value)


def by_table(fields: Fields, node: NodeWithGateway, **_: object) -> str:
    due_ms = fields.get("due", int(time.time() * 1000) + fields.get("delay", 0))
    headers = pairs_of(fields) + names_of(fields)
    table = pa.table(
        {
            "due": pa.array([due_ms], pa.timestamp("ms", "UTC")),
            "topic": [fields["topic"]],
            "value": pa.array([fields["value"].encode()], pa.binary()),
            "headers": pa.array([headers], HEADERS),
            "partition": pa.array([fields.get("partition")], pa.int64()),
        }
    )
    with Client(node.address) as client, pytest.raises(SlotwheelError) as raised:
        client.send_table(table).result(60)
    assert raised.value.remedy
    return str(raised.value)


def by_command(fields: Fields, node: NodeWithGateway, capsys: pytest.CaptureFixture[str]) -> str:
    given = [f"--header={name}={(value or b'').decode()}" for name, value in pairs_of(fields)]
    given += [f"--{name}={fields[name]}ms" for name in ("delay", "ttl") if name in fields]
    given += [
        f"--{name}={fields[name]}" for name in ("level", "route", "partition") if name in fields
    ]
    given += [
        f"--{name.replace('_', '-')}={fields[name]}"
        for name in ("name", "if_exists")
        if name in fields
    ]
    if "due" in fields:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(fields["due"] / 1000))
        given.append(f"--at={at}")
    words = [fields[name] for name in ("topic", "value") if name in fields]
    assert main.run(["send", "--json", "--node", node.address, *given, "--", *words]) in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def by_http(fields: Fields, node: NodeWithGateway, **_: object) -> str:
    return refused(ask_json(node, "POST", "/v1/messages", with_headers(in_ms(fields))))


def by_name(fields: Fields, node: NodeWithGateway, **_: object) -> str:
    body = with_headers(in_ms(fields))
    topic, name = body.pop("topic"), body.pop("name")
    return refused(ask_json(node, "PUT", f"/v1/names/{topic}/{quote(name, safe='')}", body))


def by_record(fields: Fields, node: NodeWithGateway, **_: object) -> str:
    headers = [
        {"name": name, "value": None if value is None else base64.b64encode(value).decode()}
        for name, value in pairs_of(fields)
    ]
    record = in_ms(fields) | {"value": base64_of(fields["value"]), "headers": headers}
    kind = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    return refused(ask_json(node, "POST", "/topics", {"records": [record]}, kind))


def pairs_of(fields: Fields) -> list[tuple[str, bytes | None]]:
    """The message's headers; values as bytes."""
    headers = fields["headers"]
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, text.encode() if isinstance(text, str) else text) for name, text in pairs]


def with_headers(fields: Fields) -> Fields:
    """The fields with the headers as JSON has them."""
    pairs = [
        (name, None if value is None else {"base64": base64.b64encode(value).decode()})
        for name, value in pairs_of(fields)
    ]
    return fields | {"headers": pairs}


def ask_json(
    node: NodeWithGateway, method: str, path: str, body: Fields, kind: Fields | None = None
) -> httpx.Response:
    """As ``ask``, in ASCII: what is no character at all is escaped, too."""
    headers = kind or {"Content-Type": "application/json"}
    return node.ask(method, path, content=json.dumps(body), headers=headers)


def names_of(fields: Fields) -> list[tuple[str, bytes | None]]:
    """The headers that say a message's name."""
    of_field = {"name": NAME_HEADER, "if_exists": IF_EXISTS_HEADER}
    return [(of_field[name], fields[name].encode()) for name in of_field if name in fields]


def in_ms(fields: Fields) -> Fields:
    times = ("due", "delay", "ttl", "expires")
    return {f"{name}_ms" if name in times else name: given for name, given in fields.items()}


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == (400 if "half of a surrogate" in answer.text else 422), answer.text
    return answer.text.replace("\\\\", "\\")


def by_delay_topic(fields: Fields, **_: object) -> str:
    """Returns the reason in the dead letter that the record becomes."""
    headers = pairs_of(fields) + names_of(fields)
    for name, given in fields.items():
        if name not in ("value", "headers", "name", "if_exists"):
            control = {"level": "delay-level", "topic": "topic", "route": "route"}
            header = f"slotwheel-{control.get(name, name if name == 'partition' else f'{name}-ms')}"
            headers.append((header, str(given).encode()))
    now_ms = int(time.time() * 1000)
    records = ConsumerRecords([1], [now_ms], [None], [fields["value"].encode()], [headers])
    config = WheelConfig(message_bytes_max=BYTES_MAX)
    rows = rows_of(records, "delays/0", config, now_ms, settings=PolicySet())
    assert rows.dead == 1
    kept = {pair["key"]: pair["value"] for pair in rows.rows.to_pylist()[0]["headers"]}
    return str(kept[ERROR].decode())


WAYS: dict[str, Callable[..., str]] = {
    "message": by_message,
    "stored message": by_store,
    "table": by_table,
    "command": by_command,
    "HTTP": by_http,
    "HTTP by name": by_name,
    "record by HTTP": by_record,
    "delay topic": by_delay_topic,
}
NO_WORD_FOR_IT = {
    "table": {
        *("delay after all time", "both due and delay", "neither due nor delay"),
        *("no time to live", "negative time to live", "endless time to live"),
        *("expires before it is due", "unknown level", "unknown route"),
        "half a character as a name",
    },
    "command": {
        *("due after all time", "expires before it is due"),
        *("name that is no UTF-8", "name without a value"),
    },
    "HTTP by name": {name for name, bad in BAD.items() if not bad.fields.get("name")}
    | {"half a character as a name"},
    "record by HTTP": {"neither due nor delay", "unknown route"},
    "delay topic": {"half a character as a name"},
}
"""What a message that comes by this way cannot say: a table has due times only, a command takes
years of four digits and headers that are text, a record without a time is due at once; bytes and
percent-encoded paths have no half characters."""
SAID = [(way, name) for way in WAYS for name in BAD if name not in NO_WORD_FOR_IT.get(way, set())]


@pytest.mark.parametrize(("way", "name"), SAID, ids=[f"{way}: {name}" for way, name in SAID])
def test_every_way_says_what_is_wrong(
    node: NodeWithGateway, capsys: pytest.CaptureFixture[str], way: str, name: str
) -> None:
    bad = BAD[name]
    fields = {name: value for name, value in (GOOD | bad.fields).items() if value is not None}
    told = WAYS[way](fields, node=node, capsys=capsys)
    wrong = (bad.wrong,) if isinstance(bad.wrong, str) else bad.wrong
    assert any(text in told for text in wrong), told
    assert bad.got in told
    assert bad.limit in told
