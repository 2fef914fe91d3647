"""What is a message once more: a letter that was redriven twice, and an attempt that was left out,
are problems of the proof; what was sent again by hand is none."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC, notes_topic
from slotwheel.policy.failure import retry_topic
from slotwheel.policy.headers import ATTEMPT, GROUP, ORIGIN_ID
from slotwheel.reading.files import JOURNAL, File
from slotwheel.replay.facts.again import again_facts
from slotwheel.replay.facts.making import journal_facts
from slotwheel.replay.judging.again import judge_again
from slotwheel.replay.judging.board import Board
from slotwheel.replay.judging.context import Context, Options, PeerView
from slotwheel.replay.judging.journals import as_ranges
from slotwheel.replay.judging.judged import Judged
from slotwheel.wheel.checks import REDELIVERED_ID_HEADER
from support.factrows import EPOCH_MS, MINT, TERMS, rows

NOTES = notes_topic(DEAD_LETTER_TOPIC)
GROUP_NAME = "billing"


def id_of(offset: int) -> bytes:
    return str(MINT.one(EPOCH_MS + offset, offset)).encode()


def redriven(offset: int, letter: int) -> dict[str, Any]:
    return {"offset": offset, "headers": [(REDELIVERED_ID_HEADER, id_of(letter))]}


def note(offset: int) -> dict[str, Any]:
    return {"offset": offset, "topic": NOTES}


def retry(offset: int, origin: int, attempt: int, topic: str = "") -> dict[str, Any]:
    headers = [
        (ORIGIN_ID, id_of(origin)),
        (GROUP, GROUP_NAME.encode()),
        (ATTEMPT, b"%d" % attempt),
    ]
    return {"offset": offset, "topic": topic or retry_topic(GROUP_NAME), "headers": headers}


def judged(
    *entries: list[dict[str, Any]], peers: int = 1, missing: bool = False
) -> tuple[dict[str, int], list[str]]:
    """Problems by kind, and the ids of their messages, of a journal with these entries."""
    flat = rows(*(row for entry in entries for row in entry))
    index = np.repeat(np.arange(1, len(entries) + 1), [len(entry) for entry in entries])
    facts = []
    for peer in range(peers):
        file = File(peer, JOURNAL, "", "journal", 0, peer)
        facts += [journal_facts(file, flat, index, 1).facts, again_facts(file, flat, index, TERMS)]
    gone = as_ranges([[0, 1]] if missing else [])
    views = [PeerView(str(peer), 0, None, as_ranges([[0, 99]]), gone, 99) for peer in range(peers)]
    context = Context(TERMS, Options(), views, None, EPOCH_MS, {})
    found = Judged()
    judge_again(Board(np.concatenate(facts), context), found)
    return found.problem_counts, [one.id for one in found.problems]


def test_a_letter_that_was_redriven_twice_is_named() -> None:
    once = [{"offset": 1}, {"offset": 2}], [redriven(10, 1), redriven(11, 2), note(12)]
    assert judged(*once, peers=3) == ({}, [])
    twice = judged(*once, [redriven(20, 2), note(21)], peers=3)
    assert twice == ({"redriven twice": 1}, [id_of(2).decode()])


def test_what_was_sent_again_by_hand_is_no_redrive() -> None:
    assert judged([redriven(10, 1), note(11)], [redriven(12, 1)], [redriven(13, 1)]) == ({}, [])


def test_an_attempt_that_was_left_out_is_named() -> None:
    tried = [retry(10, 1, 2)], [retry(11, 1, 3)], [retry(12, 1, 3)], [retry(13, 1, 4)]
    assert judged(*tried, peers=2) == ({}, [])
    assert judged(tried[0], tried[3]) == ({"attempt skipped": 1}, [id_of(1).decode()])
    assert judged(tried[1]) == ({"attempt skipped": 1}, [id_of(1).decode()])


def test_an_attempt_whose_journal_is_gone_is_not_missed() -> None:
    assert judged([retry(13, 1, 4)], missing=True) == ({}, [])


def test_headers_that_an_application_has_copied_count_nothing() -> None:
    assert judged([retry(13, 1, 9, topic="orders")]) == ({}, [])
    strange = [
        {"offset": 5, "headers": [(ATTEMPT, b"x"), (REDELIVERED_ID_HEADER, b"none")]},
        note(6),
    ]
    assert judged(strange) == ({}, [])
