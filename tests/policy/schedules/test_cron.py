"""Cron expressions in time zones, against a walk that asks each minute for its local time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.schedules.cron import cron_expression
from slotwheel.policy.schedules.zones import is_zone, stretches_from
from slotwheel.wheel.errors import InvalidMessage
from support.cronwalk import fires, local_minutes, minute_of, windows

DAY = 1440
FIRST, LAST = datetime(2010, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
ZONES = (
    "Europe/Berlin",
    "America/St_Johns",  # its clock changed at 00:01 until 2011
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Casablanca",  # four times a year, by the moon
    "America/Santiago",  # at midnight: some days begin at 01:00
)
EXPRESSIONS = (
    "30 2 * * *",
    "0 0 * * *",
    "0,30 0-3 * * *",
    "59 23 * * *",
    "15 1 * * SUN",
    "45 1 * * 7",
    "0 2 1 * MON",
    "0 3 */2 * MON",
    "5 4 29 2 *",
    "30 1 1-7,25-31 3,4,10,11 *",
    "0-59 1 * * *",
    "0 * * * *",
    "30 * * * *",
    "45 */2 * * *",
    "0 */6 * * *",
    "*/20 0-3 * * SUN",
    "*/15 * * * *",
    "7 * 1 * *",
    "*/30 2 * 3,4,9,10,11 *",
)


def random_expressions(count: int, seed: int) -> list[str]:
    """Expressions that fire some hundred thousand times in twenty years at most."""
    random = Random(seed)

    def numbers(low: int, high: int, steps: range) -> str:
        few = sorted(random.sample(range(low, high + 1), random.randint(1, 3)))
        return random.choice([f"*/{random.choice(steps)}", ",".join(map(str, few))])

    def expression() -> str:
        minute, hour = numbers(0, 59, range(20, 50)), numbers(0, 4, range(1, 9))
        day, month = numbers(1, 28, range(1, 9)), numbers(1, 12, range(1, 4))
        return f"{minute} {hour} {day} {month} {numbers(0, 6, range(1, 4))}"

    return [expression() for _ in range(count)]


def fired(expression: str, zone: str, minutes: range) -> list[int]:
    """The minutes of a range at which the expression fires, by what is tested."""
    cron = cron_expression(expression)
    firing: list[int] = []
    minute = cron.next_minute(zone, minutes.start - 1)
    while minute is not None and minute < minutes.stop:
        firing.append(minute)
        minute = cron.next_minute(zone, minute)
    return firing


@pytest.mark.parametrize("zone", ZONES)
def test_twenty_years_around_each_change_of_the_clock(zone: str) -> None:
    compared = 0
    for minutes in windows(zone, FIRST, LAST, around=DAY // 2, each=389 * DAY):
        local = local_minutes(zone, minutes)
        for expression in EXPRESSIONS:
            expected = fires(expression, minutes, local)
            assert fired(expression, zone, minutes) == expected, (expression, minutes)
            compared += len(expected)
    assert compared > 10_000


def test_the_day_that_apia_skipped() -> None:
    begin = minute_of(datetime(2011, 12, 28, tzinfo=UTC))
    minutes = range(begin, begin + 5 * DAY)
    local = local_minutes("Pacific/Apia", minutes)
    for expression in (*EXPRESSIONS, "30 12 * * *", "0 9 30 12 *"):
        assert fired(expression, "Pacific/Apia", minutes) == fires(expression, minutes, local)
    assert len(fired("0 9 30 12 *", "Pacific/Apia", minutes)) == 1


@pytest.mark.soak
@pytest.mark.parametrize("zone", ZONES)
def test_twenty_years_minute_by_minute(zone: str) -> None:
    minutes = range(minute_of(FIRST), minute_of(LAST))
    local = local_minutes(zone, minutes)
    compared = 0
    for expression in (*EXPRESSIONS, *random_expressions(50, seed=35)):
        expected = fires(expression, minutes, local)
        assert fired(expression, zone, minutes) == expected, expression
        compared += len(expected)
    print(f"{zone}: {compared:,} runs")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_where_clocks_change_by_an_hour_cronsim_says_the_same(zone: str) -> None:
    for begin in (datetime(2026, 3, 1), datetime(2026, 10, 20)):
        moment = begin.replace(tzinfo=UTC)
        for expression in EXPRESSIONS:
            # cronsim goes on from its own last answer, so it never starts inside a repeated hour.
            runs = CronSim(expression, moment.astimezone(ZoneInfo(zone)))
            minute = minute_of(moment)
            for _ in range(60):
                expected = minute_of(next(runs).astimezone(UTC))
                following = cron_expression(expression).next_minute(zone, minute)
                assert following == expected, expression
                minute = expected


PAGE = (Path(__file__).resolve().parents[3] / "docs/schedules.md").read_text("utf-8")
TABLE = re.findall(r"^\| `([^`]+)` \| ([\w/]+) \| (\d+-\d+-\d+) \| .*\| (.+) \|$", PAGE, re.M)


@pytest.mark.parametrize(("expression", "zone", "day", "expected"), TABLE)
def test_the_table_of_clock_changes(expression: str, zone: str, day: str, expected: str) -> None:
    info = ZoneInfo(zone)
    first = datetime.fromisoformat(day)
    begin = first.replace(tzinfo=info)
    end = (first + timedelta(days=1)).replace(tzinfo=info)
    minutes = range(minute_of(begin.astimezone(UTC)), minute_of(end.astimezone(UTC)))
    moments = [
        datetime.fromtimestamp(60 * minute, info) for minute in fired(expression, zone, minutes)
    ]
    times = [f"{moment:%H:%M}{moment.isoformat()[-6:]}" for moment in moments]
    assert (", ".join(times) or "not on that day") == expected


def test_the_table_has_all_its_rows() -> None:
    assert len(TABLE) == 17


@given(
    expression=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from([*ZONES, "UTC", "Pacific/Kiritimati"]),
    begin=st.integers(minute_of(FIRST), minute_of(LAST)),
    away=st.integers(1, 500),
)
def test_who_asks_from_in_between_gets_the_same_run(
    expression: str, zone: str, begin: int, away: int
) -> None:
    cron = cron_expression(expression)
    first = cron.next_minute(zone, begin)
    assert first is not None
    assert first > begin
    assert cron.next_minute(zone, min(begin + away, first - 1)) == first
    assert cron.next_minute(zone, max(first - away, begin)) == first


@pytest.mark.parametrize("zone", ZONES)
def test_who_asks_from_a_minute_near_a_change_gets_the_next_run(zone: str) -> None:
    first, last = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    for minutes in windows(zone, first, last, around=4 * 60, each=200 * DAY):
        local = local_minutes(zone, minutes)
        for expression in ("*/20 * * * *", "0,15,30,45 0-23 * * *"):
            runs = fires(expression, minutes, local)
            cron = cron_expression(expression)
            for minute in range(minutes.start, runs[-1]):
                assert cron.next_minute(zone, minute) == runs[bisect_right(runs, minute)]


@pytest.mark.parametrize(
    ("alias", "expression"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        (" @Hourly ", "0 * * * *"),
        ("0 0 * * mon-fri", "0 0 * * 1-5"),
        ("0  0 * *\t0", "0 0 * * 7"),
    ],
)
def test_two_ways_to_write_the_same(alias: str, expression: str) -> None:
    minutes = range(minute_of(FIRST), minute_of(FIRST) + 400 * DAY)
    assert fired(alias, "UTC", minutes) == fired(expression, "UTC", minutes)


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "* * * *", "* * * * * *", "0 0 * * * 2026", "60 * * * *", "* 24 * * *"),
        *("* * 0 * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "-1 * * * *"),
        *("@reboot", "@every 5m", "daily", "5-1 * * * *", "1,,2 * * * *", "² * * * *"),
        *("0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 * MON#5", "* * * * *" + " " * 300),
    ],
)
def test_what_never_fires_or_is_no_expression(text: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        cron_expression(text)
    assert caught.value.got
    assert caught.value.limit
    assert caught.value.remedy


@given(st.text(max_size=30) | st.text("0123456789*/,-#LWMONJAN ", max_size=30))
def test_any_text_fires_or_is_refused(text: str) -> None:
    try:
        cron = cron_expression(text)
    except InvalidMessage:
        return
    assert cron.next_minute("Europe/Berlin", minute_of(FIRST)) is not None


def test_what_fires_late_or_never_again_ends() -> None:
    leap_sunday = cron_expression("0 0 29 2 */7")
    first = leap_sunday.next_minute("UTC", minute_of(datetime(2004, 3, 1, tzinfo=UTC)))
    assert first == minute_of(datetime(2032, 2, 29, tzinfo=UTC))
    at_the_end = minute_of(datetime(9998, 11, 30, 23, 30, tzinfo=UTC))
    assert cron_expression("0 0 * * *").next_minute("Europe/Berlin", at_the_end) is None
    assert cron_expression("*/5 * * * *").next_minute("Europe/Berlin", at_the_end + DAY) is None


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "EST"])
def test_a_zone_of_the_table(name: str) -> None:
    assert is_zone(name)
    stretch = next(stretches_from(name, minute_of(FIRST)))
    assert stretch.start <= minute_of(FIRST) < stretch.end


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "Europe",
            "Europe/",
            "Europe/Bern in",
            "Mars/Olympus",
            "../etc/passwd",
            "/etc/passwd",
        ),
        *("localtime", "posixrules", "Factory", "right/UTC", "posix/UTC", "europe/berlin\0", "ü"),
        *("a" * 300, "Europe/Berlin\n", "+02:00"),
    ],
)
def test_no_zone(name: str) -> None:
    assert not is_zone(name)


def test_a_machine_without_a_table_of_zones_has_that_of_the_package() -> None:
    code = (
        "from zoneinfo import TZPATH\n"
        "from slotwheel.policy.schedules.cron import cron_expression\n"
        "assert TZPATH == ()\n"
        "print(cron_expression('30 2 * * *').next_minute('Europe/Berlin', int(input())))"
    )
    night = minute_of(datetime(2026, 3, 28, 12, tzinfo=UTC))
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONTZPATH": ""},
        input=str(night),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) == minute_of(datetime(2026, 3, 29, 1, tzinfo=UTC))
