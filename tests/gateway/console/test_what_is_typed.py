"""What a page shows can be typed back, and means the same: texts of others, and times."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import escape
from playwright.sync_api import expect

from slotwheel.gateway.console import shown
from slotwheel.gateway.console.dead import RedriveForm
from slotwheel.gateway.console.pending import PendingForm
from slotwheel.policy.parameters import parameters_of
from slotwheel.reading.letters.course import RedriveOrder
from slotwheel.wheel.texts import typed_text, visible_text
from support.gatewayprocess import NodeWithGateway

Tab = Callable[..., Any]

UNSEEN = {
    "a\0b": "a\\u{0}b",
    "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe": "\\u{202e}gpj.exe",
    "a\N{LEFT-TO-RIGHT ISOLATE}b\N{POP DIRECTIONAL ISOLATE}": "a\\u{2066}b\\u{2069}",
    "a\N{ZERO WIDTH SPACE}b": "a\\u{200b}b",
    "a\N{ZERO WIDTH JOINER}b\N{SOFT HYPHEN}": "a\\u{200d}b\\u{ad}",
    "\N{ZERO WIDTH NO-BREAK SPACE}a": "\\u{feff}a",
    " a": "\\u{20}a",
    "a ": "a\\u{20}",
    " ": "\\u{20}",
    "a  b": "a \\u{20}b",
    "a\tb\r\n": "a\\u{9}b\\u{d}\\u{a}",
    "a\N{NO-BREAK SPACE}b\N{IDEOGRAPHIC SPACE}": "a\\u{a0}b\\u{3000}",
    "a\N{LINE SEPARATOR}b\x85\x1b[31m\x7f": "a\\u{2028}b\\u{85}\\u{1b}[31m\\u{7f}",
    "\N{HANGUL FILLER}\N{BRAILLE PATTERN BLANK}": "\\u{3164}\\u{2800}",
    "a\N{VARIATION SELECTOR-16}\N{COMBINING GRAPHEME JOINER}": "a\\u{fe0f}\\u{34f}",
    "\N{COMBINING ACUTE ACCENT}a": "\\u{301}a",
    "a\ue000\ufdd0\U000e0041\U0010ffff": "a\\u{e000}\\u{fdd0}\\u{e0041}\\u{10ffff}",
    "\\u{0}": "\\u{5c}u{0}",
    "C:\\users\\u": "C:\\users\\u",
    "e\N{COMBINING ACUTE ACCENT} \N{HEBREW LETTER ALEF}\N{SNOWMAN}": "é א☃".replace("é", "e\u0301"),
    "plain text": "plain text",
}


@pytest.mark.parametrize("text", UNSEEN)
def test_what_nobody_sees_is_written(text: str) -> None:
    assert visible_text(text) == UNSEEN[text]
    assert typed_text(UNSEEN[text]) == text


def test_a_lone_surrogate_is_shown_and_cannot_be_typed() -> None:
    assert visible_text("a\ud800") == "a\\u{d800}"
    for text in ("\\u{d800}", "\\u{110000}", "\\u{ffffff}"):
        with pytest.raises(ValueError, match="no character"):
            typed_text(text)


ANY = st.text(
    st.sampled_from(" \\u{}0a5c\0\u202e\u200b\u0301\xa0") | st.characters(exclude_categories=["Cs"])
)


@given(ANY)
@example("\\u{5c}u{0}")
@example("\\\\u{0}")
def test_every_text_can_be_typed_back(text: str) -> None:
    written = visible_text(text)
    assert typed_text(written) == text
    assert written.isprintable()
    assert "  " not in written
    assert written.strip(" ") == written
    lines = visible_text(text, lines=True)
    assert typed_text(lines) == text
    assert all(one.isprintable() and one.rstrip(" ") == one for one in lines.split("\n"))


def test_keys_are_shown_found_and_cancelled_as_what_they_are(node: NodeWithGateway) -> None:
    """By the field's text, and by the links that a page has."""
    due_ms = time.time_ns() // 1_000_000 + 3_000_000
    keys = [*UNSEEN, "ab", "a", "twin"]
    body = [
        {"topic": "typed", "value": key, "key": key, "headers": [[key, key]], "due_ms": due_ms}
        for key in keys
    ]
    ids = dict(zip(keys, node.ask("POST", "/v1/messages", json=body).json()["ids"], strict=True))
    page = shown_page(node, "/console/pending", topic="typed")
    for text, written in UNSEEN.items():
        assert page.count(f'<span class="clip">{escape(written)}</span>') >= 2, text
    page = shown_page(node, "/console/message", id=ids["a\0b"])
    assert page.count('<td class="mono">a\\u{0}b</td>') == 2
    for text in ("a\0b", "\\u{0}"):
        written = UNSEEN[text]
        for typed in (written, text) if "\\u{" not in text else (written,):
            page = shown_page(node, "/console/pending", key=typed)
            assert [one for one in keys if ids[one] in page] == [text]
            assert f'name="key" value="{escape(written)}"' in page
        (link,) = re.findall(r'href="(/console/pending/cancel[^"]*)"', page)
        page = shown_page(node, link.replace("&amp;", "&"))
        assert '<strong class="num">1</strong> message' in page
        assert f'<dd class="mono">{escape(written)}</dd>' in page
    answers = node.ask("POST", "/v1/cancel", json={"ids": list(ids.values())}).text
    assert answers.count('"cancelled"') == len(keys)


def shown_page(node: NodeWithGateway, path: str, **query: str) -> str:
    more = {**query, "whole": "true"}
    answer = node.ask("GET", path + ("&" if "?" in path else "?") + urlencode(more))
    assert answer.status_code == 200, answer.text
    return answer.text


def test_what_stands_for_no_character_is_named(node: NodeWithGateway) -> None:
    answer = node.ask("GET", "/console/pending", params={"key": "\\u{d800}"})
    assert answer.status_code == 422
    assert "is no character" in answer.text


def test_a_field_is_called_in_its_error_as_on_its_page(node: NodeWithGateway) -> None:
    label = RedriveForm.fields["rate"].label
    assert f">{label}</label>" in shown_page(node, "/console/dead")
    answer = node.ask("GET", "/console/dead/redrive", params={"rate": "x"})
    assert (answer.status_code, f"<dd>{label}</dd>" in answer.text) == (422, True)


def test_all_messages_are_cancelled_only_by_a_condition_that_says_so(node: NodeWithGateway) -> None:
    answer = node.ask("GET", "/console/pending/cancel")
    assert (answer.status_code, "all messages are due from 2000-01-01" in answer.text) == (
        422,
        True,
    )
    assert "Every pending message" in shown_page(
        node, "/console/pending/cancel", due_from="2000-01-01"
    )


def test_a_form_has_the_fields_of_its_question() -> None:
    fields = {**PendingForm.fields, **RedriveForm.fields}
    shown_texts = {name: (field.label, field.placeholder) for name, field in fields.items()}
    assert shown_texts["due_to"] == ("Due before", "+10m or 2026-05-31T18:30Z")
    assert shown_texts["buried_from"] == ("Buried from", "-1h or 2026-05-31T18:30Z")
    assert shown_texts["header"] == ("Header", "name:value")
    assert shown_texts["to_topic"] == ("To topic", "where they were meant to go")
    assert shown_texts["key"] == ("Key", "")
    parameters = {field.parameter.name for field in RedriveForm.fields.values()}
    assert parameters == set(parameters_of(RedriveOrder))


ALL_TIMES = """[...document.querySelectorAll("time")].map((one) =>
  [one.textContent, one.getAttribute("datetime"), one.title])"""


@pytest.mark.parametrize(
    ("zone", "scripts"),
    [("Europe/Berlin", True), ("America/St_Johns", True), ("Europe/Berlin", False)],
)
def test_every_time_on_a_page_can_be_typed_back(
    tab: Tab, node: NodeWithGateway, zone: str, scripts: bool
) -> None:
    """Also around the hour that a zone has twice, or not at all."""
    due_ms = time.time_ns() // 1_000_000 + 3_000_123
    body = {"topic": "typed-time", "value": "x", "due_ms": due_ms}
    own = node.ask("POST", "/v1/messages", json=body).json()["id"]
    one = tab(scripts=scripts, zone=zone)
    seen = set()
    for path in ("?", "/pending?", f"/message?id={quote(own)}&", "/dead?", "/node?"):
        one.page.goto(f"{one.base}/console{path}whole=true")
        for text, machine, title in one.page.evaluate(ALL_TIMES):
            for typed in (text, machine, title):
                assert shown.when(typed, 0, "x") == shown.when(machine, 0, "x"), (typed, machine)
            assert re.search(r" [+-]\d\d:\d\d$" if scripts else " UTC$", text), text
            seen.add(text)
    assert len(seen) > 15
    # In 2027 clocks are put forward and back in Berlin (first) and in St. John's (behind).
    for instant in (
        *("2027-03-28T00:59:59.999Z", "2027-03-28T01:00:00Z", "2027-10-31T00:30:00Z"),
        *("2027-10-31T01:30:00Z", "2027-11-07T04:29:00Z", "2027-11-07T05:29:00Z"),
    ):
        path = f"/console/message/reschedule?id={quote(own)}&whole=true&due="
        one.page.goto(one.base + path + instant)
        due = one.page.locator(".lead time")
        expect(due).to_have_attribute("datetime", instant)
        typed = node.ask("GET", path + quote(due.text_content())).text
        assert f'datetime="{instant}"' in typed
    node.ask("DELETE", f"/v1/messages/{own}")
