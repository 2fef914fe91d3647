"""What a report says and how: JSON for programs, one page for people."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slotwheel.cli.verdict import print_verdict
from slotwheel.reading.problems import CONSERVATION, OpenPoint, Problem
from slotwheel.replay.report.page import page, write_report
from slotwheel.replay.report.plot import bars
from slotwheel.replay.report.verdict import (
    GroupCounts,
    Input,
    Lateness,
    Outcome,
    PairAgreement,
    Verdict,
)

MADE_MS = 1_795_000_000_000
BAD = '<script>alert("x")</script>&'


def verdict(buckets: int = 30) -> Verdict:
    times = [MADE_MS + at * 10_000 for at in range(buckets)]
    return Verdict(
        [],
        [],
        {"accepted": 1_234_567, "delivered": 1_200_000, "pending": 34_567, "lost": 0},
        {},
        [],
        False,
        [
            Lateness("", -1, 1_200_000, 2, 11, 30, 41),
            Lateness("orders", -1, 1_200_000, 2, 11, 30, 41),
            *(Lateness("", at, 40_000, 2, 10 + n % 7, 20, 30 + n) for n, at in enumerate(times)),
        ],
        [PairAgreement("a", "b", 1_234_567, 0)],
        [Input("journal", 3, 10**9, 1_234_567)],
        10_000,
        seconds=12.5,
        options={"late_ms": None, "exactly_once": False},
        versions={"pyspark": "4.3.0"},
    )


def failed() -> Verdict:
    problems = [
        Problem(CONSERVATION, "lost", f"accepted for {BAD}", id=f"lab.1.{n}.0", offset=n)
        for n in range(50)
    ]
    return replace(
        verdict(),
        reasons=["lost: 50,000"],
        problems=problems,
        problem_counts={"lost": 50_000},
        truncated=True,
        agreement=[PairAgreement(BAD, "b", 1, 1)],
        notes=[f"{BAD}: torn"],
    )


def grouped() -> Verdict:
    """One topic has lost everything, repeats are many, and 30 time buckets have figures."""
    one = failed()
    repeats = [
        Problem(CONSERVATION, "repeated", "arrived 2 times", id=f"lab.2.{n}.0", offset=n)
        for n in range(300)
    ]
    zero = dict.fromkeys(("accepted", "delivered", "lost", "repeated", "pending"), 0)
    gone = GroupCounts("gone", -1, zero | {"accepted": 777, "lost": 777})
    orders = GroupCounts("orders", -1, zero | {"accepted": 1_234_567, "delivered": 1_200_000})
    buckets = [
        GroupCounts("", late.bucket_ms, zero | {"accepted": 40_000, "lost": int(n == 7)})
        for n, late in enumerate(late for late in one.lateness if late.bucket_ms >= 0)
    ]
    return replace(
        one,
        problems=[*one.problems, *repeats],
        problem_counts={"lost": 50_000, "repeated": 9_000},
        by_topic=[gone, orders],
        by_bucket=buckets,
    )


def in_part() -> Verdict:
    point = OpenPoint(f"offsets {BAD}", "their journal segments are gone", "Give the archive")
    return replace(verdict(), open_points=[point])


class Tags(HTMLParser):
    """Every tag with its attributes; and that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def tags(text: str) -> Tags:
    found = Tags()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


def test_both_files_are_written(tmp_path: Path) -> None:
    paths = write_report(verdict(), tmp_path / "out", MADE_MS)
    assert [path.name for path in paths] == ["report.json", "report.html"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html",
        "report.json",
    ]
    told = json.loads(paths[0].read_text("utf-8"))
    assert told["proven"] is True
    assert told["made_ms"] == MADE_MS
    assert told["counts"]["accepted"] == 1_234_567
    assert told["lateness"][0]["p999"] == 30


def test_the_verdict_comes_first() -> None:
    outcomes = (
        (verdict(), "Proven"),
        (in_part(), "Proven in part"),
        (failed(), "Not proven"),
    )
    for one, word in outcomes:
        text = page(one, MADE_MS)
        assert text.index(f">{word}</h1>") < text.index('<div class="cards">')
        assert "1,234,567" in text
    assert "lost: 50,000" in page(failed(), MADE_MS)
    assert "50 of 50,000 are listed" in page(failed(), MADE_MS)


def test_what_could_not_be_decided_is_told_with_why_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = in_part()
    assert (one.outcome, one.proven) == (Outcome.IN_PART, False)
    told = json.loads(json.dumps(one.to_dict()))
    assert (told["outcome"], told["proven"]) == ("proven in part", False)
    assert told["open_points"][0]["remedy"] == "Give the archive"
    text = page(one, MADE_MS)
    assert "their journal segments are gone" in text
    assert "nothing else arrived" not in text
    print_verdict(one)
    printed = capsys.readouterr().out
    assert printed.startswith("PROVEN IN PART\n  not decided: offsets ")
    assert "their journal segments are gone. Give the archive\n" in printed
    assert replace(one, reasons=["lost: 1"]).outcome is Outcome.NOT_PROVEN


def test_a_proof_of_exactly_once_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    one = verdict()
    one = replace(one, counts={**one.counts, "repeated": 0}, options={"exactly_once": True})
    print_verdict(one)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["repeated", "0", "(exactly", "once)"] in lines
    told = json.loads(json.dumps(one.to_dict()))
    assert (told["options"]["exactly_once"], told["counts"]["repeated"]) == (True, 0)
    assert "<b>0</b>repeated (exactly once)" in page(one, MADE_MS)
    assert "each was delivered exactly once, is still held" in page(one, MADE_MS)
    assert "exactly once" not in page(verdict(), MADE_MS)
    failing = replace(one, counts={**one.counts, "repeated": 2}, reasons=["repeated: 2"])
    assert '<b class="bad">2</b>repeated (exactly once)' in page(failing, MADE_MS)


def test_it_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    for one in (verdict(), in_part(), failed(), grouped(), verdict(buckets=2_000)):
        text = page(one, MADE_MS)
        found = tags(text)
        names = {name for name, _ in found.seen}
        assert not names & {"script", "link", "img", "iframe", "object"}
        for _, attributes in found.seen:
            assert not any(name.startswith("on") or name in ("src", "href") for name in attributes)
        assert not re.search(r"url\(|https?:|@import", text)


def test_foreign_text_is_escaped() -> None:
    text = page(failed(), MADE_MS)
    assert BAD not in text
    assert text.count("&lt;script&gt;") == 50 + 1 + 1


def test_many_buckets_and_none() -> None:
    assert page(verdict(buckets=2_000), MADE_MS).count("<rect") <= 160
    empty = replace(verdict(), lateness=[], agreement=[], inputs=[], counts={"accepted": 0})
    assert "<svg" not in page(empty, MADE_MS)
    assert "<svg" in page(verdict(buckets=1), MADE_MS)


def test_what_stands_beside_a_plot_is_short() -> None:
    values = [0.0, 7.0, 12_345 / 2, 999_999.0, 1_234_567.0, 98_765_432.1]
    for top in values:
        text = bars([MADE_MS, MADE_MS + 10_000], [top, top / 3], "messages")
        labels = re.findall(r'text-anchor="end">([^<]*)<', text)
        assert len(labels) >= 3
        assert all(len(label) <= 8 for label in labels), labels
        assert all(len(label) <= 5 for label in labels if ":" not in label), labels


def test_what_is_wrong_stands_before_what_was_read_and_charts_come_last() -> None:
    text = page(grouped(), MADE_MS)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Problems",
        "What was read",
        "How it was judged",
        "By topic",
        "By due time",
        "Peers",
        "Lateness over time",
        "Delivered over time",
    ]
    assert text.index("<svg") > text.index("<h2>Lateness over time")
    open_ = replace(grouped(), open_points=in_part().open_points)
    assert re.findall(r"<h2>(.*?)</h2>", page(open_, MADE_MS))[:2] == ["Problems", "Not decided"]
    part = page(in_part(), MADE_MS)
    assert re.findall(r"<h2>(.*?)</h2>", part)[:2] == ["Not decided", "Problems"]


def test_what_fails_nothing_is_folded_and_of_the_rest_a_few_are_in_sight() -> None:
    text = page(grouped(), MADE_MS)
    in_sight = re.sub(r"<details>.*?</details>", "", text)
    assert in_sight.count("arrived 2 times") == 0
    assert text.count("arrived 2 times") == 300
    assert in_sight.count("accepted for ") == 10
    assert "<summary>repeated: 9,000, which fails nothing</summary>" in text
    assert "<summary>40 more of lost</summary>" in text


def test_a_topic_that_lost_everything_is_in_its_table() -> None:
    text = page(grouped(), MADE_MS)
    table = text[text.index("<h2>By topic") : text.index("<h2>By due time")]
    gone = table[table.index("<td>gone</td>") : table.index("<td>orders</td>")]
    assert '<b class="bad">777</b>' in gone
    assert gone.count(">-</td>") == 3, "no lateness"
    buckets = text[text.index("<h2>By due time") : text.index("<h2>Peers")]
    assert "Messages are lost or undecided in 1 of them" in buckets
    assert buckets.count("<tr>") == 1 + 30


def test_each_figure_has_the_name_of_its_column() -> None:
    """Where there is no room for columns, it stands before the figure."""
    text = page(grouped(), MADE_MS)
    columns = {dict(attributes).get("data-n") for tag, attributes in tags(text).seen if tag == "td"}
    assert columns >= {"accepted", "delivered", "lost", "repeated", "p99 ms", "files"}
    assert "tr.h{display:none}" in text
    assert "overflow-x" not in text
