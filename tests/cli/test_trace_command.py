"""``slotwheel trace``: what is asked for, and what is shown of what others wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slotwheel.cli.main import run
from slotwheel.cli.printing import print_table, text_line
from slotwheel.trace.chains.lookup import STORE_DIRECTORY
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName
from support.traced import event, id_parts, stored
from support.waiting import now_ms


@pytest.mark.parametrize(
    ("arguments", "option", "question"),
    [
        (["g.1.2.00000003", "--client", "c"], "--client", "an id"),
        (["--show", "latency", "--key", "k"], "--key", "--show latency"),
        (["--show", "latency", "--limit", "3"], "--limit", "--show latency"),
        (["--show", "anomalies", "--group", "g"], "--group", "--show anomalies"),
        (["--interval", "2m"], "--interval", "neither an id nor --show"),
    ],
)
def test_an_option_that_chooses_nothing_is_refused(
    arguments: list[str],
    option: str,
    question: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["trace", "--store", str(tmp_path), *arguments]) == 2
    assert f"{option} chooses nothing with {question}" in capsys.readouterr().err


def test_events_are_a_table_and_each_message_of_them_has_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    billing: dict[str, Any] = {"topic": "orders", "partition": 2, "group": "billing"}
    billing["kind"] = "processed"
    rows = [
        event(0, 1_000, id=id_parts(3), topic="orders", took_us=1_500, client="shop"),
        event(1, 1_005, id=id_parts(4), offset=8, error="no money", **billing),
        event(2, 1_006, id=id_parts(3), offset=7, **billing),
        event(3, 1_007, kind="dropped", count=12),
    ]
    write_segment(tmp_path, SegmentName(0, 0), SegmentAbout(hour=1, topic="t"), stored(rows))
    assert run(["trace", "--store", str(tmp_path)]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "at message what took where why",
        "1970-01-01T00:00:01.000Z 1 produced 1.5 ms orders shop",
        "1970-01-01T00:00:01.005Z 2 processed (failed) orders/2/8 billing no money",
        "1970-01-01T00:00:01.006Z 1 processed orders/2/7 billing",
        "1970-01-01T00:00:01.007Z dropped 12 events before it missing",
        "message 1: g.5.3.f1a9c07d2b86e457",
        "message 2: g.5.4.f1a9c07d2b86e457",
    ]


def test_times_may_be_so_long_ago(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = now_ms()
    rows = [event(at, now - ago, error=f"e{at}") for at, ago in enumerate((7_200_000, 60_000, 0))]
    write_segment(tmp_path, SegmentName(0, 0), SegmentAbout(hour=1, topic="t"), stored(rows))
    assert run(["trace", "--store", str(tmp_path), "--from", "-10m", "--to", "-30s"]) == 0
    assert re.findall(r"\be\d\b", capsys.readouterr().out) == ["e1"]
    assert run(["trace", "--store", str(tmp_path), "--from", "soon"]) == 2
    assert "not a time; got 'soon'" in capsys.readouterr().err


def test_a_terminal_gets_no_control_characters_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / STORE_DIRECTORY
    root.mkdir()
    rows = [event(0, 1_000, error="\x1b[31mred\nline", client="\x1b]0;title\x07")]
    write_segment(root, SegmentName(0, 0), SegmentAbout(hour=1, topic="t"), stored(rows))
    assert run(["trace", "--store", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "\\u{1b}[31mred\\u{a}line" in shown
    print_table([("a\x1b[2Jb\nc", "\u00e9")], "ll")
    shown += capsys.readouterr().out + text_line({"error": "\x9b"})
    assert "a\\u{1b}[2Jb\\u{a}c" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
