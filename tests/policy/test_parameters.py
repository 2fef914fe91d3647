"""How the fields of questions are written by people and by programs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from slotwheel.audit.watch.watching import AuditSettings
from slotwheel.policy.levels import span_of, written_span
from slotwheel.policy.parameters import Question, parameters_of
from slotwheel.policy.written import SPAN, Instant, TextBytes, TimeSpan, WayIn
from slotwheel.reading.letters.course import RedriveOrder
from slotwheel.reading.letters.letters import LetterQuery
from slotwheel.reading.search.query import CountQuery, PageQuery
from slotwheel.trace.chains.lookup import EventsQuery, LatencyQuery
from slotwheel.wheel.errors import InvalidConfiguration

NOW = 1_800_000_000_000
PEOPLE, PROGRAMS = WayIn(NOW, between="="), WayIn()


class Asked(Question, frozen=True):
    """A question with a field of each kind."""

    names: tuple[str, ...] = msgspec.field(name="name", default=())
    """Only these. `name` may be repeated."""
    key: TextBytes | None = None
    from_ms: Instant | None = None
    wait_ms: TimeSpan = 5_000
    width_ms: Annotated[int, Meta(ge=1, lt=1_000), SPAN] = 10
    share: Annotated[float, Meta(gt=0, le=2)] | None = None
    by: Literal["slot", "topic"] | None = None
    failed: bool | None = None


PARAMETERS = parameters_of(Asked)


@pytest.mark.parametrize(
    ("name", "by_people", "by_programs", "value"),
    [
        ("name", "a=b", "a=b", "a=b"),
        ("key", "\udcff", "\udcff", b"\xff"),
        ("from_ms", "-10m", str(NOW - 600_000), NOW - 600_000),
        ("from_ms", "2027-01-15T08:00:00", str(NOW), NOW),
        ("wait_ms", "1.5s", "1500", 1_500),
        ("wait_ms", "3", "3000", 3_000),
        ("wait_ms", "0s", "0", 0),
        ("width_ms", "999ms", "999", 999),
        ("share", "0.5", "0.5", 0.5),
        ("by", "slot", "slot", "slot"),
        ("failed", "false", "false", False),
    ],
)
def test_what_is_written_is_read(name: str, by_people: str, by_programs: str, value: Any) -> None:
    assert PARAMETERS[name].read(by_people, PEOPLE) == value
    assert PARAMETERS[name].read(by_programs, PROGRAMS) == value


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("wait_ms", "long", "a time span as 500ms"),
        ("wait_ms", "-1s", "a time span as 500ms"),
        ("width_ms", "1s", "1 to 999 ms"),
        ("width_ms", "0s", "1 to 999 ms"),
        *(("share", text, "above 0, up to 2") for text in ("0", "nan", "inf", "-1", "2.1")),
        ("by", "Slot", "slot, topic"),
        ("failed", "yes", "true or false"),
    ],
)
def test_what_is_not_is_refused_with_the_value_and_the_limit(
    name: str, text: str, limit: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        PARAMETERS[name].read(text, PEOPLE)
    assert refused.value.got == repr(text)
    assert limit in str(refused.value.limit)
    assert refused.value.remedy


def test_people_leave_the_unit_of_a_name_to_the_value() -> None:
    assert [one.typed_name for one in PARAMETERS.values()] == [
        *("name", "key", "from", "wait", "width", "share", "by", "failed")
    ]
    assert PARAMETERS["name"].text == "Only these. `name` may be repeated."


@pytest.mark.parametrize(
    "question", [Asked(names=("a", "\udcff")), LetterQuery(reason=("\udcff",))], ids=["ours", "any"]
)
def test_a_text_that_is_no_text_is_refused(question: Question) -> None:
    """A command line may have any bytes; without this rule Arrow would end the command."""
    with pytest.raises(InvalidConfiguration, match="UTF-8"):
        question.check()


@given(st.integers(0, 10**10 - 1))
def test_a_span_that_a_help_page_shows_can_be_typed(ms: int) -> None:
    assert span_of(written_span(ms)) == ms


@pytest.mark.parametrize(
    "kind",
    [AuditSettings, CountQuery, EventsQuery, LatencyQuery, LetterQuery, PageQuery, RedriveOrder],
)
def test_each_field_says_what_it_chooses(kind: type[Question]) -> None:
    own = [one for one in parameters_of(kind).values() if one.field in kind.__annotations__]
    assert own
    assert all(one.text.endswith(".") for one in own)
