"""Headers of a delay topic's records: what becomes a row, and what a dead letter, and why."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from slotwheel.node.intake.records import ConsumerRecords, rows_of
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.policy.policyset import PolicySet
from slotwheel.security.principals import Authenticator
from slotwheel.security.rights import EVERYTHING, Right, Rights
from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NameTaken
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.rows import Header
from slotwheel.wheel.schema import times
from support.references import no_collection

NOW = 1_700_000_000_000
CONFIG = WheelConfig(message_bytes_max=4_000)
DUE = ("slotwheel-due-ms", b"%d" % (NOW + 5))
TOPIC = ("slotwheel-topic", b"orders")


def records(
    *headers: list[Header], value: bytes | None = b"v", key: bytes | None = b"k"
) -> ConsumerRecords:
    n = len(headers)
    return ConsumerRecords(
        list(range(100, 100 + n)), [NOW - 1000] * n, [key] * n, [value] * n, list(headers)
    )


def rows(found: ConsumerRecords) -> list[dict[str, Any]]:
    """The rows, after the wheel's own check, with ``due`` in ms and headers as pairs."""
    taken = rows_of(found, "delays/3", CONFIG, NOW)
    batch = check_input(taken.rows, CONFIG, NOW, reserved=True)
    result = []
    for row, due in zip(batch.to_pylist(), times(batch, "due").tolist(), strict=True):
        headers = [(pair["key"], pair["value"]) for pair in row["headers"]]
        result.append(row | {"due": due, "headers": headers})
    assert taken.dead == sum(row["topic"] == DEAD_LETTER_TOPIC for row in result)
    return result


@pytest.mark.parametrize(
    ("headers", "due", "partition"),
    [
        ([TOPIC, DUE], NOW + 5, None),
        ([DUE, TOPIC, ("slotwheel-partition", b"7")], NOW + 5, 7),
        ([TOPIC, ("slotwheel-delay-ms", b"1500")], NOW + 500, None),
        ([TOPIC, ("slotwheel-delay-ms", b"0")], NOW - 1000, None),
        ([TOPIC, ("slotwheel-delay-ms", b"-1")], NOW - 1001, None),
        ([TOPIC, ("slotwheel-due-ms", b"0")], 0, None),
        ([TOPIC, ("slotwheel-due-ms", b"%d" % (NOW + 7_200_000))], NOW + 7_200_000, None),
    ],
)
def test_taken(headers: list[Header], due: int, partition: int | None) -> None:
    row = rows(records(headers))[0]
    assert (row["topic"], row["due"], row["partition"]) == ("orders", due, partition)
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [])


def test_a_time_to_live_counts_from_the_due_time() -> None:
    (row,) = rows(records([TOPIC, DUE, ("a", b"1"), ("slotwheel-ttl-ms", b"7")]))
    assert row["headers"] == [("a", b"1"), (EXPIRES_HEADER, b"%d" % (NOW + 5 + 7))]
    (row,) = rows(records([TOPIC, DUE, (EXPIRES_HEADER, b"%d" % (NOW + 6))]))
    assert row["headers"] == [(EXPIRES_HEADER, b"%d" % (NOW + 6))]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([("slotwheel-ttl-ms", b"0")], b"slotwheel-ttl-ms"),
        ([("slotwheel-ttl-ms", b"-5")], b"slotwheel-ttl-ms"),
        ([("slotwheel-ttl-ms", b"soon")], b"unreadable header slotwheel-ttl-ms"),
        ([("slotwheel-ttl-ms", None)], b"unreadable header slotwheel-ttl-ms"),
        ([(EXPIRES_HEADER, b"soon")], b"unreadable time"),
        ([(EXPIRES_HEADER, b"%d" % (NOW + 5))], b"expires before it is due"),
        ([(EXPIRES_HEADER, b"%d" % (NOW + 9))] * 2, b"twice"),
        ([("slotwheel-ttl-ms", b"7"), (EXPIRES_HEADER, b"%d" % (NOW + 9))], b"both"),
    ],
)
def test_a_record_that_says_nonsense_of_its_time_to_live(
    headers: list[Header], reason: bytes
) -> None:
    """The dead letter itself does not expire, whatever stands in it."""
    good, letter = rows(records([TOPIC, DUE], [TOPIC, DUE, *headers]))
    assert good["topic"] == "orders"
    assert letter["topic"] == DEAD_LETTER_TOPIC
    said = dict(letter["headers"])
    assert reason in said["slotwheel-dead-error"]
    assert EXPIRES_HEADER not in said
    if headers[0][0] == EXPIRES_HEADER:
        assert said["slotwheel-dead-expires-ms"] == headers[-1][1]


def test_other_headers_are_kept_as_they_came() -> None:
    others: list[Header] = [
        ("a", b"1"),
        ("a", None),
        ("slotwheel-redelivered-id", b"x"),
        ("", b""),
        ("ü", b"\xff"),
    ]
    row = rows(records([others[0], TOPIC, *others[1:4], DUE, others[4]]))[0]
    assert row["headers"] == others


def test_a_name_stays_with_the_message_and_a_letter_has_it_at_rest() -> None:
    name: list[Header] = [("slotwheel-name", "ü".encode()), ("slotwheel-if-exists", b"keep")]
    good, letter = rows(records([TOPIC, DUE, *name], [TOPIC, *name]))
    assert good["headers"] == name
    assert letter["topic"] == DEAD_LETTER_TOPIC
    assert letter["headers"][1:3] == [
        ("slotwheel-dead-name", "ü".encode()),
        ("slotwheel-dead-if-exists", b"keep"),
    ]
    assert not {"slotwheel-name", "slotwheel-if-exists"} & dict(letter["headers"]).keys()


def test_a_record_that_the_wheel_refuses_is_a_letter_with_its_error() -> None:
    refused = NameTaken("the name is taken", got="'n'", remedy="Send it with another one")
    taken = rows_of(records([TOPIC, DUE]), "delays/3", CONFIG, NOW, refused=refused)
    assert taken.dead == 1
    [row] = taken.rows.to_pylist()
    said = {pair["key"]: pair["value"] for pair in row["headers"]}
    assert (row["topic"], said["slotwheel-dead-reason"]) == (DEAD_LETTER_TOPIC, b"refused")
    assert b"the name is taken" in said["slotwheel-dead-error"]
    assert said["slotwheel-dead-topic"] == b"orders"


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"", b""), (b"\x00\xff", None)])
def test_null_is_not_empty(key: bytes | None, value: bytes | None) -> None:
    row = rows(records([TOPIC, DUE], key=key, value=value))[0]
    assert (row["key"], row["value"]) == (key, value)


BAD: list[tuple[list[Header], str]] = [
    ([], "no header slotwheel-topic"),
    ([DUE], "no header slotwheel-topic"),
    ([("slotwheel-topic", None), DUE], "no header slotwheel-topic"),
    ([("slotwheel-topic", b""), DUE], "no topic"),
    ([("slotwheel-topic", b"a/b"), DUE], "illegal topic name"),
    ([("slotwheel-topic", b"x" * 250), DUE], "illegal topic name"),
    ([("slotwheel-topic", b".."), DUE], "illegal topic name"),
    ([("slotwheel-topic", b"\xff"), DUE], "unreadable header slotwheel-topic"),
    ([TOPIC, TOPIC, DUE], "header slotwheel-topic given twice"),
    ([TOPIC, DUE, DUE], "header slotwheel-due-ms given twice"),
    ([TOPIC], "no due time"),
    ([TOPIC, DUE, ("slotwheel-delay-ms", b"1")], "both slotwheel-due-ms and slotwheel-delay-ms"),
    ([TOPIC, ("slotwheel-due-ms", None)], "unreadable header slotwheel-due-ms; got null"),
    ([TOPIC, ("slotwheel-due-ms", b"")], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", b"soon")], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", b"1.5")], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", b" 15")], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", b"1_5")], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", "\u0661".encode())], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", b"9" * 40)], "unreadable header slotwheel-due-ms"),
    ([TOPIC, ("slotwheel-due-ms", b"-5")], "due before 1970"),
    ([TOPIC, ("slotwheel-due-ms", b"%d" % (NOW + 7_200_001))], "due beyond the horizon"),
    ([TOPIC, ("slotwheel-delay-ms", b"9" * 18)], "due beyond the horizon"),
    ([TOPIC, ("slotwheel-delay-ms", b"x")], "unreadable header slotwheel-delay-ms"),
    ([TOPIC, DUE, ("slotwheel-partition", b"-1")], "negative partition"),
    ([TOPIC, DUE, ("slotwheel-partition", b"2147483648")], "no such partition"),
    ([TOPIC, DUE, ("slotwheel-partition", b"one")], "unreadable header slotwheel-partition"),
    ([TOPIC, DUE, ("\ud800", b"")], "a header key that is not UTF-8"),
    ([TOPIC, DUE, ("slotwheel-id", b"x")], "reserved header name; got slotwheel-id; expected"),
    (
        [("slotwheel-id", b"x"), TOPIC, DUE, ("slotwheel-dead-stage", None)],
        "reserved header names; got slotwheel-id, slotwheel-dead-stage; expected",
    ),
    ([TOPIC, DUE, ("slotwheel-due", b"5")], "reserved header name; got slotwheel-due; expected"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_dead_letter(number: int) -> None:
    headers, reason = BAD[number]
    before, dead, after = rows(records([TOPIC, DUE], headers, [TOPIC, DUE]))
    assert (before["topic"], after["topic"]) == ("orders", "orders")
    assert (dead["topic"], dead["due"], dead["partition"]) == (DEAD_LETTER_TOPIC, NOW, None)
    assert (dead["key"], dead["value"]) == (b"k", b"v")
    said = dict(dead["headers"][len(headers) :])
    assert said["slotwheel-dead-stage"] == b"intake"
    assert said["slotwheel-dead-reason"] == b"bad-record"
    assert reason in said["slotwheel-dead-error"].decode()
    assert said["slotwheel-dead-source"] == b"delays/3/101"
    assert said["__connect.errors.topic"] == b"delays"
    assert said["__connect.errors.exception.message"] == said["slotwheel-dead-error"]
    wanted = [value for name, value in headers if name == "slotwheel-topic" and value is not None]
    assert said.get("slotwheel-dead-topic") == (wanted[0] if wanted else None)
    kept = [(name.replace("\ud800", "?"), value) for name, value in headers]
    assert dead["headers"][: len(headers)] == kept


def test_delay_without_a_timestamp() -> None:
    found = records([TOPIC, ("slotwheel-delay-ms", b"5")])._replace(timestamps=[-1])
    assert b"without a timestamp" in dict(rows(found)[0]["headers"])["slotwheel-dead-error"]


@pytest.mark.parametrize(
    ("key", "value", "extra", "left_out"),
    [
        (b"k", b"v" * 5000, b"", {"value": 5000}),
        (b"k" * 5000, b"v", b"", {"value": 1, "headers": 50, "key": 5000}),
        (b"k", b"v", b"h" * 5000, {"value": 1, "headers": 5055}),
        (b"k" * 2000, b"v" * 2001, b"", {"value": 2001}),
    ],
)
def test_too_large(key: bytes, value: bytes, extra: bytes, left_out: dict[str, int]) -> None:
    headers: list[Header] = [TOPIC, DUE]
    if extra:
        headers.append(("extra", extra))
    row = rows(records(headers, key=key, value=value))[0]
    said = dict(row["headers"])
    assert row["topic"] == DEAD_LETTER_TOPIC
    assert b"message too large" in said["slotwheel-dead-error"]
    found = {part: said.get(f"slotwheel-dead-{part}-bytes") for part in ("value", "key", "headers")}
    assert {part: int(size) for part, size in found.items() if size is not None} == left_out
    assert row["value"] is None
    assert row["key"] == (None if "key" in left_out else key)


def test_a_great_many_headers_block_nobody() -> None:
    """They take little room in Kafka and much in a batch: alone, too large for any."""
    config = WheelConfig(batch_bytes_max=100_000, message_bytes_max=50_000)
    empty: list[Header] = [("", None)] * 20_000
    for headers in ([TOPIC, DUE, *empty], empty):
        found = rows_of(records(headers), "delays/3", config, NOW)
        batch = check_input(found.rows, config, NOW, reserved=True)
        assert (batch.num_rows, found.dead) == (1, 1)
        said = {one["key"] for one in batch.column("headers")[0].as_py()}
        assert {"slotwheel-dead-reason", "slotwheel-dead-headers-bytes"} <= said


def test_one_bad_in_ten_thousand() -> None:
    many: list[list[Header]] = [[TOPIC, DUE] for _ in range(10_000)]
    many[5000] = [DUE]
    found = rows(records(*many))
    assert [number for number, row in enumerate(found) if row["topic"] != "orders"] == [5000]


class Values(list[bytes | None]):
    """A list that can be watched."""


def test_records_of_which_one_is_bad_are_freed() -> None:
    with no_collection():
        values = Values([b"v", b"v"])
        kept = weakref.ref(values)
        found = records([TOPIC, DUE], [])._replace(values=values)
        assert rows_of(found, "delays/3", CONFIG, NOW).dead == 1
        del found, values
        assert kept() is None


ORDERS = Rights({Right.SCHEDULE: ["orders*"]})
WITHOUT_A_FILE = Authenticator().rights_of_delay_topic("delays")


def targets(rights: Rights, *headers: list[Header]) -> list[str]:
    """The topics of the rows of records, a dead letter for each that may not go where it says."""
    settings = PolicySet.from_toml(
        """
        [policies.own]
        levels = ["1s"]
        dead-letters = "own-letters"
        [routes]
        two = [{to = ["orders", "payments"]}]
        """,
        "policies",
    )
    taken = rows_of(records(*headers), "delays/3", CONFIG, NOW, settings=settings, rights=rights)
    return [str(topic) for topic in taken.rows.column("topic").to_pylist()]


@pytest.mark.parametrize(
    ("topic", "limited", "without"),
    [
        ("orders-eu", True, True),
        ("payments", False, True),
        ("slotwheel-dead-letters", False, False),
        ("slotwheel-trace", False, False),
        ("__consumer_offsets", False, False),
    ],
)
def test_a_record_goes_only_where_its_delay_topic_may(
    topic: str, limited: bool, without: bool
) -> None:
    headers: list[Header] = [("slotwheel-topic", topic.encode()), DUE]
    for rights, allowed in ((ORDERS, limited), (WITHOUT_A_FILE, without), (EVERYTHING, True)):
        assert targets(rights, headers) == [topic if allowed else DEAD_LETTER_TOPIC]


def test_the_letter_of_a_record_that_may_not_says_why() -> None:
    headers: list[Header] = [("slotwheel-topic", b"payments"), DUE, ("own", b"1")]
    taken = rows_of(records(headers, [TOPIC, DUE]), "delays/3", CONFIG, NOW, rights=ORDERS)
    letter, good = taken.rows.to_pylist()
    assert (letter["topic"], good["topic"], taken.dead) == (DEAD_LETTER_TOPIC, "orders", 1)
    added = {pair["key"]: pair["value"] for pair in letter["headers"]}
    assert b"not allowed: append for topic 'payments'" in added["slotwheel-dead-error"]
    assert added["slotwheel-topic"] == b"payments"  # for a person: no redrive reads it
    assert added["own"] == b"1"


def test_a_route_to_one_foreign_topic_is_refused_whole() -> None:
    assert targets(ORDERS, [("slotwheel-route", b"two"), DUE]) == [DEAD_LETTER_TOPIC]
    assert targets(WITHOUT_A_FILE, [("slotwheel-route", b"two"), DUE]) == ["orders", "payments"]


def test_a_retry_needs_the_right_for_its_topic_and_none_for_its_letters() -> None:
    failed: list[Header] = [
        ("slotwheel-origin-topic", b"orders"),
        ("slotwheel-origin-partition", b"0"),
        ("slotwheel-origin-offset", b"1"),
        ("slotwheel-error", b"e"),
        ("slotwheel-retry", b"own"),
    ]

    def of(group: bytes) -> list[Header]:
        return [("slotwheel-retry-group", group), *failed]

    assert targets(ORDERS, of(b"orders")) == ["orders-retry"]
    assert targets(ORDERS, of(b"billing")) == [DEAD_LETTER_TOPIC]
    assert targets(WITHOUT_A_FILE, of(b"billing")) == ["billing-retry"]
    assert targets(WITHOUT_A_FILE, of(b"slotwheel-x")) == [DEAD_LETTER_TOPIC]
    last: list[Header] = [("slotwheel-retry-attempt", b"9"), *of(b"orders")]
    assert targets(ORDERS, last) == ["own-letters"]


def meant_for(headers: list[Header], rights: Rights) -> bytes | None:
    """The topic that the letter of a record names, to which a redrive would send it."""
    taken = rows_of(records(headers), "delays/3", CONFIG, NOW, rights=rights)
    (row,) = taken.rows.to_pylist()
    assert row["topic"] == DEAD_LETTER_TOPIC
    found = [one["value"] for one in row["headers"] if one["key"] == "slotwheel-dead-topic"]
    return found[-1] if found else None


@pytest.mark.parametrize(
    ("topic", "limited", "without"),
    [(b"orders", True, True), (b"payments", False, True), (b"slotwheel-trace", False, False)],
)
def test_a_letter_names_no_topic_that_its_record_may_not_schedule_to(
    topic: bytes, limited: bool, without: bool
) -> None:
    """Otherwise the next redrive of all letters would do what was forbidden."""
    group = topic + b"-x"
    bury: list[Header] = [("slotwheel-bury", b"forged"), ("slotwheel-retry-group", group)]
    bury += [("slotwheel-origin-topic", b"orders"), ("slotwheel-origin-partition", b"0")]
    bury.append(("slotwheel-origin-offset", b"7"))
    undated: list[Header] = [("slotwheel-topic", topic)]
    late: list[Header] = [*undated, ("slotwheel-due-ms", b"%d" % (NOW + (1 << 40)))]
    for rights, may in ((ORDERS, limited), (WITHOUT_A_FILE, without), (EVERYTHING, True)):
        assert meant_for(bury, rights) == (group + b"-retry" if may else None)
        for headers in (undated, late):
            assert meant_for(headers, rights) == (topic if may else None)
    if not limited:
        assert meant_for([("slotwheel-topic", topic), DUE], ORDERS) is None
