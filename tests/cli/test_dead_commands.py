"""``slotwheel dead list | show | export``: letters of every origin and format, and of nobody's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.deadletters import (
    BAD_RECORD,
    BURIED,
    CONSUMER,
    DELIVERY,
    INTAKE,
    REFUSED,
    RETRIES_USED_UP,
    letter_headers,
)
from slotwheel.reading.letters.again import headers_again
from slotwheel.reading.letters.letters import LETTER, LetterQuery, letters_of, place_of, sendable
from slotwheel.wheel.rows import Header, header_column
from support.broker import Cluster, TopicFactory
from support.deadlab import EmbeddedLab, KafkaLab, Letter, dump_of, letter
from support.nodeprocess import NodeProcess, run_cli
from support.sourcecontract import send_not_text

BY_SINK = letter_headers(DELIVERY, REFUSED, "no such topic", b"orders", partition=3)
BY_INTAKE = letter_headers(INTAKE, BAD_RECORD, "no due time", None, source=("delays", 3, 9))
ILLEGAL = ("slotwheel-dead-topic", b"a/b")
LEFT_OUT = ("slotwheel-dead-value-bytes", b"9")
FORMER_SINK: list[Header] = [
    ("slotwheel-dead-reason", b"no such topic"),
    ("slotwheel-dead-topic", b"orders"),
]
FORMER_EXPIRED: list[Header] = [("slotwheel-dead-reason", b"expired"), FORMER_SINK[1]]
FORMER_INTAKE: list[Header] = [
    ("slotwheel-dead-reason", b"no due time"),
    ("slotwheel-dead-source", b"delays/3/9"),
    ("slotwheel-dead-topic", b"bills"),
]


def records(headers: list[list[Header]]) -> pa.RecordBatch:
    return dump_of(headers, [None] * len(headers))


@pytest.mark.parametrize(
    ("headers", "reason", "error", "topic", "can_be_sent"),
    [
        (BY_SINK, "refused", "no such topic", "orders", True),
        (BY_INTAKE, "bad-record", "no due time", None, False),
        (FORMER_SINK, "refused", "no such topic", "orders", True),
        (FORMER_EXPIRED, "expired", None, "orders", True),
        (FORMER_INTAKE, "bad-record", "no due time", "bills", True),
        ([], "unknown", None, None, False),
        ([("slotwheel-dead-reason", None)], "unknown", None, None, False),
        ([("slotwheel-dead-topic", b"\xff")], "unknown", None, "\ufffd", False),
        (
            [FORMER_SINK[0], ("slotwheel-dead-topic", b"a/b")],
            "refused",
            "no such topic",
            "a/b",
            False,
        ),
        ([*FORMER_SINK, *BY_SINK], "refused", "no such topic", "orders", True),
        (
            [*BY_SINK, ("slotwheel-dead-value-bytes", b"9")],
            "refused",
            "no such topic",
            "orders",
            False,
        ),
    ],
)
def test_a_letter_of_any_origin_and_format(
    headers: list[Header], reason: str, error: str | None, topic: str | None, can_be_sent: bool
) -> None:
    found = letters_of(records([headers, BY_SINK, []]).slice(0, 2))
    row = found.slice(0, 1).to_pylist()[0]
    assert (row["reason"], row["error"], row["for_topic"]) == (reason, error, topic)
    assert sendable(found, None).tolist() == [can_be_sent, True]
    whole = "slotwheel-dead-value-bytes" not in dict(headers)
    assert sendable(found, "elsewhere").tolist() == [whole, True]
    assert found.column("for_partition").to_pylist()[1] == 3


def test_what_the_message_brought_is_not_the_letters() -> None:
    """Names of letters may be sent; a letter's own stand behind the message's."""
    brought: list[Header] = [
        *(("slotwheel-dead-partition", b"7"), ("slotwheel-dead-group", b"theirs")),
        *(("slotwheel-dead-source", b"a/1/1"), ("slotwheel-dead-reason", b"expired")),
        *(("slotwheel-dead-value-bytes", b"9"), ("slotwheel-dead-key-bytes", b"9")),
        *(("__connect.errors.topic", b"theirs"), ("own", b"1")),
    ]
    plain = letter_headers(CONSUMER, BURIED, "why", b"orders")
    by_sink = letter_headers(DELIVERY, REFUSED, "why", b"a")
    found = letters_of(dump_of([brought + by_sink, brought + plain], [b"", b"1"]))
    assert found.column("reason").to_pylist() == [REFUSED, BURIED]
    for name in ("for_partition", "group"):
        assert found.column(name).null_count == 2
    assert sendable(found, None).all()
    again = headers_again(found.column("headers"))
    assert again.equals(header_column([brought[-2:]] * 2))
    former = letters_of(records([[*brought, *FORMER_SINK]]))
    assert former.column("reason").to_pylist() == [REFUSED]


def test_a_short_letter_of_a_consumer_is_not_whole() -> None:
    """It says first how large it was."""
    sizes: list[Header] = [("slotwheel-dead-value-bytes", b"9"), ("slotwheel-origin-topic", b"a")]
    row = [*sizes, *letter_headers(CONSUMER, REFUSED, "too large", b"a")]
    assert sendable(letters_of(records([row])), "a").tolist() == [False]


def test_bytes_that_are_no_text_change_nothing_of_their_neighbours() -> None:
    rows: list[list[Header]] = [BY_SINK, [], [*BY_SINK, ("slotwheel-id", b"\xff")]]
    rows += [[("slotwheel-dead-reason", b"expired")], [("slotwheel-dead-reason", b"\xff")]]
    found = letters_of(records(rows))
    assert found.column("id").to_pylist() == [None, None, "\ufffd", None, None]
    assert found.column("reason").to_pylist() == [
        *("refused", "unknown", "refused", "expired", "refused")
    ]
    assert found.column("error").to_pylist()[3:] == [None, "\ufffd"]


def start_of(row: list[Header]) -> int:
    """Where what the burial added begins."""
    names = [name for name, _ in row]
    if "slotwheel-dead-reason" not in names:
        return 0
    at = len(names) - 1 - names[::-1].index("slotwheel-dead-reason")
    return at - (at > 0 and names[at - 1] == "slotwheel-dead-stage")


TEXT = st.one_of(
    st.none(), st.binary(max_size=6), st.sampled_from([b"refused", b"-1", b"7", b"\xff"])
)
NAMES = st.sampled_from([name for name, _ in (*BY_SINK, *BY_INTAKE)] + ["slotwheel-id", "own", ""])


@given(st.lists(st.lists(st.tuples(NAMES, TEXT), max_size=8), max_size=6))
def test_whatever_stands_in_a_record_it_is_a_letter(headers: list[list[Header]]) -> None:
    found = letters_of(records(headers))
    found.validate(full=True)
    assert found.schema.equals(LETTER)
    assert found.num_rows == len(headers)
    LetterQuery(reason=("refused",), key=("k1",), from_ms=0, to_ms=9).of(found)
    assert len(sendable(found, None)) == len(headers)
    again = headers_again(found.column("headers"))
    again.validate(full=True)
    kept = [
        [
            (name, value)
            for at, (name, value) in enumerate(row)
            if name in ("own", "") or (name.startswith("__connect") and at < start_of(row))
        ]
        for row in headers
    ]
    assert again.equals(header_column(kept))


def test_filters_and_what_they_select() -> None:
    rows = [BY_SINK, FORMER_EXPIRED, BY_INTAKE, [*BY_SINK, ("slotwheel-id", b"x.1.2.3")]]
    found = letters_of(records(rows))

    def positions(**wanted: Any) -> list[int]:
        return LetterQuery(**wanted).of(found).column("position").to_pylist()  # type: ignore[no-any-return]

    assert positions() == [0, 1, 2, 3]
    assert positions(reason=("refused",)) == [0, 3]
    assert positions(reason=("refused", "expired"), key=("k0", "k1")) == [0, 1, 3]
    assert positions(for_topic=("orders",), from_ms=1000, to_ms=3000) == [1]
    assert positions(id=("x.1.2.3",)) == [3]
    assert positions(group=("g",)) == []


def test_places() -> None:
    assert place_of("3/17") == (3, 17)
    assert [place_of(one) for one in ("17", "3/", "a/1", "-1/2", "1/2/3", "")] == [None] * 6


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedLab]:
    if request.param == "embedded":
        with EmbeddedLab(tmp_path) as made:
            yield made
    else:
        broker, topic = (request.getfixturevalue(name) for name in ("broker", "topic"))
        with KafkaLab(tmp_path, broker, topic, partitions=1) as made:
            yield made


def test_list_show_and_export(lab: EmbeddedLab, tmp_path: Path) -> None:
    foreign = Letter(b"\xff", None, [("h", b"\xff")])
    before = (datetime.now(UTC) - timedelta(seconds=2)).isoformat()
    lab.bury([letter("a", 0), letter("b", 1, RETRIES_USED_UP, "g"), letter("a", 2), foreign])
    after = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    assert lab.dead("list").stdout.splitlines() == [
        "reason           topic  letters  redriven",
        "buried           a            2         0",
        "retries-used-up  b            1         0",
        "unknown                       1         0",
        "4 letters, 0 redriven",
    ]
    assert lab.dead("list", "--from", before, "--to", after).stdout.endswith(
        "4 letters, 0 redriven\n"
    )
    assert lab.dead("list", "--to", before).stdout.endswith("0 letters, 0 redriven\n")
    if isinstance(lab, KafkaLab):
        by_the_other = lab.dead("list", "--json", "--kafka", "max_poll_records=500")
        assert by_the_other.stdout == lab.dead("list", "--json").stdout
        whole = [
            lab.dead("export", *more).stdout for more in ([], ["--kafka", "max_poll_records=500"])
        ]
        assert whole[0] == whole[1]
    shown = lab.dead("show", "0/1").stdout.splitlines()
    assert {"reason: retries-used-up", "error: why 1", "group: g", "value: 1", "header own: 1"} <= {
        *shown
    }
    told = json.loads(lab.dead("show", "0/3", "--json").stdout)
    assert (told["key_base64"], told["value"], told["reason"]) == ("/w==", None, "unknown")
    missing = lab.dead("show", "0/4")
    assert missing.returncode == 1
    assert "no such dead letter" in missing.stderr
    lines = [json.loads(one) for one in lab.dead("export").stdout.splitlines()]
    assert [one["position"] for one in lines] == [0, 1, 2, 3]
    file = tmp_path / "letters.arrows"
    assert lab.dead("export", str(file), "--for-topic", "a").returncode == 0
    with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
        table = stream.read_all()
    assert table.schema.equals(LETTER, check_metadata=True)
    assert table.column("value").to_pylist() == [b"0", b"2"]
    dry = json.loads(lab.dead("redrive", "--dry-run", "--json").stdout)
    assert (dry["letters"], dry["not_sendable"], dry["sent"]) == (3, 1, 0)
    assert dry["topics"] == {"a": 2, "b": 1}


def test_usage(tmp_path: Path) -> None:
    with EmbeddedLab(tmp_path) as lab:
        lab.bury([letter("a", 0)])
        for arguments, code, text in (
            (["list", "--kafka", "a=b"], 2, "--kafka needs --bootstrap"),
            (["redrive"], 2, "there is nobody to ask"),
            (["redrive", "--to-topic", lab.topic, "--yes"], 1, "where they lie"),
        ):
            done = lab.dead(*arguments)
            assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        command = lab.command("list")
        command[-1] = "nowhere"
        assert "no such embedded topic" in run_cli(*command).stderr


def test_a_node_that_has_buried_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data):
        for command in (["list"], ["export"], ["redrive", "--dry-run"]):
            done = run_cli("dead", *command, "--data", data)
            assert done.returncode == 0, done.stderr


def test_a_topic_that_kafka_does_not_have(broker: Cluster, topic: TopicFactory) -> None:
    there = topic("there")
    for client in ([], ["--kafka", "max_poll_records=500"]):  # the name decides the client
        where = ["--bootstrap", broker.bootstrap, *client]
        done = run_cli("dead", "list", *where, "--topic", f"{there}-no")
        assert done.returncode == 1
        assert "no such topic in Kafka" in done.stderr
        assert run_cli("dead", "list", *where, "--topic", there).stdout.endswith("0 redriven\n")
    wrong = run_cli("dead", "list", "--bootstrap", broker.bootstrap, "--kafka", "no.such=1")
    assert wrong.returncode == 1
    assert "no such setting; got no.such" in wrong.stderr


def test_a_record_with_a_header_name_that_is_no_text_ends_no_command(
    broker: Cluster, topic: TopicFactory
) -> None:
    name = topic("odd")
    for value in (b"0", b"1"):
        send_not_text(broker.bootstrap, name, value, [("h", b"2")])
    for client in ([], ["--kafka", "max_poll_records=500"]):
        done = run_cli("dead", "list", "--bootstrap", broker.bootstrap, *client, "--topic", name)
        assert done.returncode == 0, done.stderr
        assert "2 letters" in done.stdout
