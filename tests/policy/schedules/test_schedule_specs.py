"""A schedule as JSON: what is read is what was written, and what is none gets an error that says
where, what, which limit, and what to do."""

from __future__ import annotations

import dataclasses
import json
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.schedules.cron import cron_expression
from slotwheel.policy.schedules.spec import TEMPLATE_BYTES_MAX, Missed, Schedule, Template
from slotwheel.wheel.errors import InvalidMessage
from support.anyschedule import NOW_MS, schedules

PAGE = (Path(__file__).resolve().parents[3] / "docs/schedules.md").read_text("utf-8")
TEMPLATE = {"topic": "orders"}
CRON = {"name": "daily", "cron": "30 8 * * MON-FRI", "template": TEMPLATE}
EVERY = {"name": "beat", "every_ms": 60_000, "template": TEMPLATE}


@given(schedules(), st.booleans())
def test_a_schedule_reads_as_it_was_written(schedule: Schedule, paused: bool) -> None:
    schedule = schedule.pausing(paused)
    again = Schedule.from_json(json.loads(schedule.encoded()))
    assert again == schedule
    assert again.encoded() == schedule.encoded()


def test_equal_schedules_have_equal_bytes_however_they_were_written() -> None:
    short = Schedule.from_json(CRON)
    long = Schedule.from_json(
        {
            "template": {
                **TEMPLATE,
                **dict.fromkeys(("value", "key", "partition", "ttl_ms", "name")),
                "headers": {},
            },
            "missed": "last",
            "jitter_ms": 0,
            "catch_up_ms": 86_400_000,
            "paused": False,
            "zone": "UTC",
            "cron": "  30  8 * * MON-FRI",
            "name": "daily",
            **dict.fromkeys(("every_ms", "anchor_ms", "start_ms", "end_ms", "count")),
        }
    )
    assert short == long
    assert short.encoded() == long.encoded()
    assert short.encoded() == (
        b'{"name":"daily","template":{"topic":"orders"},"cron":"30 8 * * MON-FRI"}'
    )


def test_every_field_is_written_when_it_is_not_the_default() -> None:
    fields = {
        "name": "beat",
        "template": {
            "topic": "orders",
            "value_base64": "/w==",
            "key": "ü",
            "headers": [["a", "b"], ["a", None], ["c", {"base64": "/w=="}]],
            "partition": 0,
            "ttl_ms": 1,
            "name": "latest",
        },
        "every_ms": 1000,
        "anchor_ms": NOW_MS,
        "start_ms": NOW_MS + 1,
        "end_ms": NOW_MS + 2,
        "count": 1,
        "jitter_ms": 999,
        "missed": "all",
        "catch_up_ms": 0,
        "paused": True,
    }
    schedule = Schedule.from_json(fields)
    assert schedule.to_json() == fields
    assert schedule == Schedule(
        name="beat",
        template=Template(
            topic="orders",
            value=b"\xff",
            key="ü".encode(),
            headers=(("a", b"b"), ("a", None), ("c", b"\xff")),
            partition=0,
            ttl_ms=1,
            name="latest",
        ),
        every_ms=1000,
        anchor_ms=NOW_MS,
        start_ms=NOW_MS + 1,
        end_ms=NOW_MS + 2,
        count=1,
        jitter_ms=999,
        missed=Missed.ALL,
        catch_up_ms=0,
        paused=True,
    )


def test_headers_may_be_an_object_and_a_text_may_be_in_base64() -> None:
    pairs = {**CRON, "template": {**TEMPLATE, "headers": [["a", "b"]], "key": "k"}}
    coded = {"a": {"base64": b64encode(b"b").decode()}}
    other = {**CRON, "template": {**TEMPLATE, "headers": coded, "key_base64": "aw=="}}
    assert Schedule.from_json(pairs).encoded() == Schedule.from_json(other).encoded()


def test_an_alias_stays_as_it_was_written() -> None:
    assert Schedule.from_json({**CRON, "cron": "@daily"}).cron == "@daily"
    assert cron_expression("@daily").text == "@daily"


def in_template(**fields: Any) -> dict[str, Any]:
    return {**CRON, "template": {**TEMPLATE, **fields}}


BAD_HEADERS: list[Any] = [
    *("a", 1, [1], [["a"]], [["a", "b", "c"]], [[None, "b"]], {"a": 1}, {"a": "\ud800"}),
    *({"\ud800": "a"}, {"a": {"base64": "?"}}, {"a": {"base64": 1}}, {"a": {}}),
    *({"slotwheel-schedule": "x"}, {"slotwheel-expires-ms": "1"}),
    [["a", None]] * 101,
]
BAD: list[tuple[Any, str]] = [
    (None, "schedule: not an object"),
    ([], "schedule: not an object"),
    ({}, "schedule, name"),
    ({**CRON, "name": ""}, "schedule, name"),
    ({**CRON, "name": 7}, "schedule, name"),
    ({**CRON, "name": "a" * 201}, "schedule, name"),
    ({**CRON, "name": "ü" * 101}, "schedule, name"),
    ({**CRON, "name": "a\nb"}, "schedule, name"),
    ({**CRON, "name": "a\x85b"}, "schedule, name"),
    ({**CRON, "name": "\ud800"}, "schedule, name"),
    ({**CRON, "colour": "red"}, "schedule 'daily': no such field"),
    ({"name": "daily", "template": TEMPLATE}, "schedule 'daily', cron and every_ms"),
    ({**CRON, "every_ms": 1000}, "schedule 'daily', cron and every_ms"),
    *(
        ({**CRON, "cron": cron}, "schedule 'daily', cron")
        for cron in ("", "* * * * * *", "61 * * * *", "0 0 30 2 *", "@reboot", 5, "a\ud800")
    ),
    *(
        ({**CRON, "zone": zone}, "schedule 'daily', zone")
        for zone in ("", "Europe/Bern in", "CEST+2", "localtime", 1, "../UTC")
    ),
    ({**EVERY, "zone": "Europe/Berlin"}, "schedule 'beat', zone"),
    *(
        ({**EVERY, "every_ms": ms}, "schedule 'beat', every_ms")
        for ms in (0, 999, -1000, 1000.0, True, "1000", 1 << 60)
    ),
    *(
        ({**EVERY, name: ms}, f"schedule 'beat', {name}")
        for name in ("anchor_ms", "start_ms", "end_ms")
        for ms in (-1, 0, 1_790_000_000, 1 << 63, "2026", 1.5e12, True)
    ),
    ({**CRON, "anchor_ms": NOW_MS}, "schedule 'daily', anchor_ms"),
    ({**CRON, "start_ms": NOW_MS, "end_ms": NOW_MS}, "schedule 'daily', end_ms"),
    ({**CRON, "start_ms": NOW_MS, "end_ms": NOW_MS - 1}, "schedule 'daily', end_ms"),
    *(({**CRON, "count": count}, "schedule 'daily', count") for count in (0, -1, 1.0, "1")),
    *(
        ({**EVERY, "jitter_ms": ms}, "schedule 'beat', jitter_ms")
        for ms in (-1, 60_000, "1", 1.0, False)
    ),
    ({**CRON, "jitter_ms": 86_400_001}, "schedule 'daily', jitter_ms"),
    *(({**CRON, "missed": missed}, "schedule 'daily', missed") for missed in ("", "ALL", 1)),
    *(({**CRON, "catch_up_ms": ms}, "schedule 'daily', catch_up_ms") for ms in (-1, 1 << 60)),
    *(({**CRON, "paused": paused}, "schedule 'daily', paused") for paused in (1, "true")),
    ({**CRON, "template": None}, "schedule 'daily', template: not an object"),
    ({**CRON, "template": "orders"}, "schedule 'daily', template: not an object"),
    ({**CRON, "template": {}}, "schedule 'daily', template, topic"),
    *(
        (in_template(topic=topic), "schedule 'daily', template, topic")
        for topic in ("", "a b", "a" * 250, ".", 1)
    ),
    (in_template(due_ms=1), "schedule 'daily', template: no such field"),
    (in_template(value=b"raw"), "schedule 'daily', template, value"),
    (in_template(value="\ud800"), "schedule 'daily', template, value"),
    (in_template(value="a", value_base64="YQ=="), "schedule 'daily', template, value"),
    (in_template(key_base64="a"), "schedule 'daily', template, key_base64"),
    (in_template(key_base64="ü==="), "schedule 'daily', template, key_base64"),
    *(
        (in_template(headers=headers), "schedule 'daily', template, headers")
        for headers in BAD_HEADERS
    ),
    *(
        (in_template(partition=partition), "schedule 'daily', template, partition")
        for partition in (-1, 1 << 31, "0", True)
    ),
    *((in_template(ttl_ms=ms), "schedule 'daily', template, ttl_ms") for ms in (0, -1, 1 << 60)),
    (in_template(name="a\tb"), "schedule 'daily', template, name"),
    (in_template(name=""), "schedule 'daily', template, name"),
    (in_template(value="a" * (TEMPLATE_BYTES_MAX + 1)), "schedule 'daily', template: too large"),
    (
        in_template(key="a" * 40_000, headers={"a": "b" * 30_000}),
        "schedule 'daily', template: too large",
    ),
]


@pytest.mark.parametrize(("fields", "place"), BAD)
def test_what_is_no_schedule_gets_an_error_that_says_all(fields: Any, place: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Schedule.from_json(fields)
    error = caught.value
    assert error.message.startswith(place)
    assert error.got is not None
    assert error.limit
    assert error.remedy
    assert len(str(error)) < 1000
    str(error).encode()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"every": 5000}, "Write every_ms in place of every"),
        ({"timezone": "UTC"}, "Write zone in place of timezone"),
        (
            {"cronn": "* * * * *", "Zone": "UTC"},
            "Write zone in place of Zone, cron in place of cronn",
        ),
        ({"topic": "orders", "value": "a"}, "such as topic and value, stands in template"),
        ({f"zone{number}": 1 for number in range(4)}, "Correct the name"),
        ({"zone" * 11: 1}, "Correct the name"),
        ({"every_ms": "5s"}, "Write it in digits alone, without quotes, point or unit"),
        ({"every_ms": 5}, "expected 1000 to 316224000000 ms: once a second at most"),
        (in_template(headers={"slotwheel-name": "n"}), """name as "name" in template"""),
        ({"template": None}, "got nothing; expected an object of JSON"),
        ({"cron": "0 30 8 * * *"}, "expected five fields, none of them for seconds or years"),
        ({"cron": "60 8 * * *"}, "a minute of 0 to 59, *, a range that goes up, a list or a step"),
        ({"cron": "30 8-6 * * *"}, "an hour of 0 to 23, *, a range that goes up"),
        ({"cron": "0 0 31 2 *"}, "a day of 1 to 31 that a month of the expression has"),
        ({"cron": "0 0 1 13 *"}, "a month of 1 to 12 or JAN to DEC"),
        ({"cron": "0 0 * * MO-FR"}, "a step in place of 'MO-FR'. Write minute, hour"),
    ],
)
def test_a_common_mistake_is_answered_with_what_was_meant(fields: Any, said: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Schedule.from_json({**CRON, **fields})
    assert said in str(caught.value)


def test_the_largest_that_is_taken() -> None:
    schedule = Schedule.from_json(in_template(value="a" * TEMPLATE_BYTES_MAX))
    assert schedule.template.nbytes == TEMPLATE_BYTES_MAX
    assert Schedule.from_json({**CRON, "name": "ü" * 100}).name == "ü" * 100


def test_the_examples_of_the_page() -> None:
    examples = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    names = [Schedule.from_json(json.loads(example)).name for example in examples]
    assert names == ["daily-report", "heartbeat"]


def test_the_page_has_each_field() -> None:
    rows = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.M))))
    fields = {field.name for kind in (Schedule, Template) for field in dataclasses.fields(kind)}
    assert fields <= rows
    assert f"{TEMPLATE_BYTES_MAX // 1024} KiB" in PAGE


def test_the_error_that_the_page_shows() -> None:
    with pytest.raises(InvalidMessage) as caught:
        Schedule.from_json({**CRON, "zone": "Mars/Olympus"})
    assert str(caught.value)[:100] in PAGE


def test_a_schedule_that_is_paused_is_another_one() -> None:
    schedule = Schedule.from_json(CRON)
    assert schedule.pausing(True) == replace(schedule, paused=True)
    assert schedule.pausing(True).encoded() != schedule.encoded()
    assert schedule.pausing(True).pausing(False).encoded() == schedule.encoded()
