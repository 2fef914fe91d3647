"""What a proof says in the end of what it did not see, or never judges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slotwheel.reading.files import JOURNAL, SLOT, File, Layout, PeerFiles
from slotwheel.replay.conclusion import Conclusion
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.replay.judging.complete import complete_from
from slotwheel.replay.judging.context import Context, Options
from slotwheel.replay.judging.journals import as_ranges

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
ACCEPTED_MS = NOW_MS - 5 * HOUR_MS
"""When the first row was accepted that a journal still holds."""


def concluded(
    unread: list[list[int]], sums: dict[str, int] | None = None, **options: Any
) -> Conclusion:
    """Of one node with a horizon of two hours, whose journal begins with offset 1,000."""
    files = [File(0, JOURNAL, "", "journal", 0, 0), File(1, SLOT, "", "kept", 0, 0, archived=True)]
    layout = Layout(
        "lab",
        "",
        [PeerFiles("one", "")],
        files,
        made_ms=NOW_MS,
        group_size=1,
        horizon_ms=2 * HOUR_MS,
    )
    summaries = [
        FileSummary(0, 7, first_index=9, first_offset=1_000, first_created_ms=ACCEPTED_MS),
        FileSummary(1, 3),
    ]
    context = Context(GroupTerms("lab"), Options(**options), [], None, NOW_MS, {})
    complete_ms = complete_from(layout, summaries, unread, [None]) if unread else None
    context = replace(context, unread=as_ranges(unread), complete_ms=complete_ms)
    counts = {"accepted": 7, "delivered": 7} | (sums or {})
    return Conclusion(layout, context, summaries, counts, {})


def test_what_no_journal_holds_is_open_by_so_much() -> None:
    assert concluded([]).open_points() == []
    (point,) = concluded([[0, 400], [600, 1_000]], {"unaccounted": 5}).open_points()
    assert point.subject == "800 messages or cancels of offsets 0 to 399, 600 to 999"
    assert "5 records with such offsets arrived" in point.reason
    missing = f"from segment {1:020d}.journal on; and from offset 600 on"
    assert f"The journal is missing {missing}" in point.remedy
    assert "put it back into archive/" in point.remedy
    many = [[at, at + 1] for at in range(0, 20, 2)]
    (point,) = concluded(many).open_points()
    assert point.subject.endswith("8 to 8 and 5 more ranges")


def test_a_missing_segment_is_named_by_those_beside_it() -> None:
    found = concluded([[400, 1_000]])
    beside = [
        FileSummary(2, 4, first_index=1, last_index=7, first_offset=0, next_offset=400),
        FileSummary(0, 7, first_index=12, last_index=20, first_offset=1_000, next_offset=1_007),
    ]
    (point,) = replace(found, summaries=beside).open_points()
    missing = f"from segment {8:020d}.journal on up to {12:020d}.journal, which is there"
    assert f"The journal is missing {missing}: " in point.remedy
    assert "Start nodes with --retain" not in point.remedy


def test_where_nothing_is_kept_retain_is_the_advice() -> None:
    found = concluded([[0, 1_000]])
    live = [file for file in found.layout.files if not file.archived]
    (point,) = replace(found, layout=replace(found.layout, files=live)).open_points()
    assert point.remedy.startswith("Start nodes with --retain, and give producers' receipts")


def test_what_receipts_tell_of_it_is_not_open() -> None:
    (point,) = concluded([[0, 1_000]], {"unread:known": 999}).open_points()
    assert point.subject.startswith("1 message ")
    assert concluded([[0, 1_000]], {"unread:known": 1_000}).open_points() == []


def test_nothing_is_open_of_what_can_only_have_been_accepted_since() -> None:
    """What is due a horizon after the journal's begin was not accepted before it. Clocks of masters
    may differ by a minute."""
    (point,) = concluded([[0, 1_000]]).open_points()
    done_ms = ACCEPTED_MS + 2 * HOUR_MS + 60_000
    assert "--from 2026-09-21T11:14:20+00:00" in point.remedy
    assert NOW_MS - done_ms == 3 * HOUR_MS - 60_000
    assert concluded([[0, 1_000]], start_ms=done_ms).open_points() == []
    assert concluded([[0, 1_000]], start_ms=done_ms - 1).open_points() != []


def test_undecided_messages_are_open() -> None:
    (point,) = concluded([], {"undecided": 3}).open_points()
    assert point.subject == "3 accepted messages"


def test_messages_in_another_partition_are_open() -> None:
    said = replace(concluded([]), judged={"other partition": 2})
    assert said.reasons() == []
    (point,) = said.open_points()
    assert point.subject == "2 messages in another partition than their key's"


def test_what_is_never_judged_is_told_with_its_number() -> None:
    (kept,) = concluded([]).notes()
    assert "3 rows of kept slot files" in kept
    notes = concluded([], {"unjudged:order": 1_234, "unjudged:partition": 5, "newer": 2}).notes()
    assert any("the order of 1,234 messages that arrived was not judged" in one for one in notes)
    assert any("less than 5 s before they were due" in one for one in notes)
    assert any("5 messages asked for no partition" in one for one in notes)
    assert any("not judged: 2 records, receipts among them, of messages" in one for one in notes)
