"""Validator *agreement*: all peers hold the same rows, as far as they are committed.

Theory: a peer holds its journal, as far as it was kept, and below its checkpoint its slot files.
Peers spill and clean at moments of their own, so neither need be equal to another's: one peer may
lack a row of another only if its newest mark covers the row, or its journal begins later.

Rules
- Rows of an entry that was never committed may differ: one of the two peers will cut it.
- A row that damage may have taken is not reported a second time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...reading.problems import AGREEMENT
from ...wheel.schema import Int64s, Mask
from ..facts.fact import Seen
from .board import Board
from .judged import Judged


def judge_agreement(board: Board, result: Judged) -> None:
    peers = range(len(board.context.peers))
    for peer in peers:
        _twice(board, result, peer)
        _slots(board, result, peer)
    for peer in peers:
        _journal(board, result, peer)
        _held(board, result, peer)
    for left in peers:
        for right in range(left + 1, len(board.context.peers)):
            _pair(board, result, left, right)


def _pair(board: Board, result: Judged, left: int, right: int) -> None:
    left_facts, right_facts = board.in_journal(left), board.in_journal(right)
    both = np.flatnonzero((left_facts >= 0) & (right_facts >= 0))
    equal = int(board.same(left_facts[both], right_facts[both]).sum())
    result.count(f"equal:{left}:{right}", equal)


def _twice(board: Board, result: Judged, peer: int) -> None:
    facts = board.of(Seen.ACCEPTED, Seen.CANCEL, peer=peer)
    again = np.flatnonzero(board.count(facts) > 1)
    name = board.context.peers[peer].name
    result.report(
        board,
        AGREEMENT,
        "offset twice",
        again,
        lambda at: f"the journal of {name} has offset {board.offset[again[at]]} in two rows",
    )


def _journal(board: Board, result: Judged, peer: int) -> None:
    view, places = board.context.peers[peer], board.in_journal(peer)
    has_row = places >= 0
    held = np.flatnonzero(has_row & board.in_journals)
    same = board.same(places[held], board.reference[held])
    other = held[~same]
    facts, reference = board.facts, board.reference
    # Either the same entry by Raft's rules, or one that this peer knows to be committed.
    same_entry = (facts["at"][places[other]] == facts["at"][reference[other]]) & (
        facts["where"][places[other]] == facts["where"][reference[other]]
    )
    differ = other[same_entry | (board.offset[other] < view.proven)]
    result.report(
        board,
        AGREEMENT,
        "differs",
        differ,
        f"the journal of {view.name} has another row than {_others(board, peer)}",
    )
    missing = np.flatnonzero(
        board.committed
        & board.in_journals
        & ~has_row
        & view.has_journal(board.offset)
        & ~view.may_miss(board.offset)
    )
    _count_pairs(board, result, peer, len(differ) + len(missing))
    result.report(
        board,
        AGREEMENT,
        "missing row",
        missing,
        f"the journal of {view.name} does not have it, that of another peer has",
    )


def _slots(board: Board, result: Judged, peer: int) -> None:
    view = board.context.peers[peer]
    facts = board.of(Seen.SLOT, Seen.ARCHIVED, peer=peer)
    messages = board.place[facts]
    known = board.has_row[messages]
    same = board.same(facts[known], board.reference[messages[known]])
    differ = np.unique(messages[known][~same])
    result.report(
        board,
        AGREEMENT,
        "differs",
        differ,
        lambda at: (
            f"a slot file of {view.name} has another row than"
            f" {'the journal' if board.in_journals[differ[at]] else 'those of most peers'}"
        ),
        file=_file_of(board, facts, differ),
    )
    strange = ~board.known & (board.readable | board.behind_the_log)
    strange = (strange & ~board.may_be_missing)[messages]
    extra, first = np.unique(messages[strange], return_index=True)
    due = board.facts["due"][facts[strange][first]]
    result.report(
        board,
        AGREEMENT,
        "extra row",
        extra,
        f"a slot file of {view.name} has a row that no journal has",
        due=due,
        file=_file_of(board, facts, extra),
    )
    _count_pairs(board, result, peer, len(differ) + len(extra))
    live = board.of(Seen.SLOT, peer=peer)
    several = np.flatnonzero(board.count(live) > 1)
    # A row twice in one file is reported by the scan.
    places = board.facts["where"][live]
    low, high = np.full(board.n, np.iinfo(np.int64).max), np.full(board.n, np.iinfo(np.int64).min)
    np.minimum.at(low, board.place[live], places)
    np.maximum.at(high, board.place[live], places)
    apart = several[low[several] != high[several]]
    result.report(
        board,
        AGREEMENT,
        "offset twice",
        apart,
        f"two slot files of {view.name} have it",
    )


def _file_of(board: Board, facts: Int64s, messages: Int64s) -> Callable[[int], str]:
    """The name of the slot file in which one of these messages stands, by its place among them."""

    def name(at: int) -> str:
        file = board.facts["file"][facts[board.place[facts] == messages[at]][0]]
        span = board.context.slot_files.get(int(file))
        return "" if span is None else span.name

    return name


def _held(board: Board, result: Judged, peer: int) -> None:
    """Report rows below the checkpoint that neither a mark of the peer covers nor a slot file
    has."""
    view = board.context.peers[peer]
    wanted = board.committed & board.in_journals & (board.offset < view.spilled)
    wanted &= ~board.claimed_by(peer) & (board.in_slots(peer) == 0)
    wanted &= ~view.may_be_damaged(board.due)
    lacking = np.flatnonzero(wanted & _elsewhere(board, peer))
    _count_pairs(board, result, peer, len(lacking))
    result.report(
        board,
        AGREEMENT,
        "missing row",
        lacking,
        f"no slot file of {view.name} has it, and no mark of it covers it",
    )


def _elsewhere(board: Board, peer: int) -> Mask:
    held = np.zeros(board.n, np.bool_)
    for other, view in enumerate(board.context.peers):
        if other != peer:
            held |= board.in_slots(other) > 0
            held |= (board.in_journal(other) >= 0) & (board.offset >= view.spilled)
    return held


def _others(board: Board, peer: int) -> str:
    names = [view.name for at, view in enumerate(board.context.peers) if at != peer]
    return names[0] if len(names) == 1 else "most others"


def _count_pairs(board: Board, result: Judged, peer: int, number: int) -> None:
    for other in range(len(board.context.peers)):
        if other != peer:
            result.count(f"different:{min(peer, other)}:{max(peer, other)}", number)
