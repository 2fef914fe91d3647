"""Validator *conservation*: each accepted message was delivered, or is still held, or was
cancelled, or died with a reason. Nothing else arrived.

Theory: a proof that relied on the wheel's own word would prove nothing. So a mark is only used
against the wheel: the wheel never sends again what the newest mark covers, so such a message that
did not arrive is lost. A message that no mark covers is pending if a slot file or the part of a
journal behind the checkpoint holds it.

Rules
- Each committed message falls into exactly one class, and the classes add up.
- A missing message that damage may have taken is undecided: the damage is a problem already.
- A message that only a slot file shows, and that is missing, is undecided if it was due before the
  time from which on the files are complete (``Context.complete_ms``): the slot file with its cancel
  may be gone. For example, the message lies in a day's file, which is there until the day is over,
  and its cancel lay in the file of its second, which was deleted a second after it was due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from crc32c import crc32c

from ...reading.problems import CONSERVATION
from ...wheel.schema import Int64s, Mask
from ..facts.fact import ELSEWHERE, EXPIRED, FORGED, NO_DIGEST, TOO_SOON, Seen
from .board import Board
from .context import within
from .judged import Judged

CONTENT = "key, value or headers"
"""The fields that a digest covers together."""
UNREAD_KNOWN = "unread:known"
"""A count beside the classes: offsets that no journal holds and a receipt names."""
PARTITION_UNJUDGED = "unjudged:partition"
"""Another count: messages that asked for no partition, in a topic whose partitions are not
known."""
OTHER_PARTITION = "other partition"
"""A problem that fails no proof: the topic may have had fewer partitions when it was sent."""


def judge_conservation(board: Board, result: Judged) -> None:
    messages = board.known & ~board.is_cancel & wanted(board)
    newer = messages & _newer_promises(board)
    result.count("newer", newer.sum())
    messages &= ~newer
    accepted = messages & board.committed
    arrived, dead = board.arrivals(Seen.DELIVERED), board.arrivals(Seen.DEAD)
    n_arrived, n_dead = board.count(arrived), board.count(dead)
    cancelled = board.cancelled
    held = _held(board) & ~board.claimed
    reach = board.context.reach
    no_topic, no_peers = reach.lacks_topic(board.topic), reach.lacks_peers(board.topic)

    has_arrived = n_arrived > 0
    open_ = accepted & ~has_arrived
    buried = open_ & (n_dead > 0)
    open_ &= ~buried
    n_expired = board.count(dead[board.facts["flags"][dead] & EXPIRED != 0])
    expired = buried & (n_expired > 0)
    taken_back = open_ & cancelled
    open_ &= ~taken_back
    pending = open_ & held
    open_ &= ~pending
    damaged = open_ & _undecided(board)
    unseen = open_ & ~damaged & (no_topic | no_peers | (not reach.dead_letters))
    lost = open_ & ~damaged & ~unseen

    result.count_each("accepted", accepted)
    result.count_each("delivered", accepted & has_arrived)
    result.count_each("dead", buried & ~expired)
    result.count_each("expired", expired)
    result.count_each("cancelled", taken_back)
    result.count_each("pending", pending)
    result.count_each("undecided", damaged | unseen)
    result.count("not given:peers", (unseen & no_peers).sum())
    result.count("not given:dead letters", (unseen & ~no_topic & ~no_peers).sum())
    topics, numbers = np.unique(board.topic[unseen & no_topic], return_counts=True)
    for topic, number in zip(topics.tolist(), numbers.tolist(), strict=True):
        result.count(f"not given:topic:{topic:08x}", number)
    result.count_each("lost", lost)
    result.count("in doubt", (messages & ~board.committed).sum())
    result.count_each("overdue", pending & (board.due < board.context.made_ms))
    result.count(UNREAD_KNOWN, (within(board.context.unread, board.offset) & board.known).sum())

    numbers = np.flatnonzero(lost)
    claimed = board.claimed[numbers]
    result.report(
        board,
        CONSERVATION,
        "lost",
        numbers,
        lambda at: (
            f"accepted for {board.context.topic_name(int(board.topic[numbers[at]]))}, and did not"
            + (
                " arrive, though a mark covers it"
                if claimed[at]
                else " arrive, and is not held any more"
            )
        ),
    )
    # Delivered, and after a crash again, when it had expired: repeated, like others.
    again = np.where(has_arrived, n_expired, 0)
    _arrivals(board, result, accepted, n_arrived + again, n_dead - again, cancelled)
    for seen, facts in ((Seen.DELIVERED, arrived), (Seen.DEAD, dead)):
        _contents(board, result, seen, facts)
    if board.context.options.exactly_once:
        _strangers_again(board, result, np.concatenate([arrived, dead]), accepted)
    _receipts(board, result)


def wanted(board: Board) -> Mask:
    """True for messages that are due in the time that is judged; shape (n,)."""
    return board.context.options.judges(board.due)


def _newer_promises(board: Board) -> Mask:
    """True for messages that by their receipts were accepted after the journals were read."""
    received = board.facts["at"][np.maximum(board.receipt, 0)]
    mask: Mask = board.behind_the_log & ~board.in_journals & (board.receipt >= 0)
    return mask & (received >= board.context.made_ms)


def _held(board: Board) -> Mask:
    """True for messages that some peer's slot files, or its journal behind its checkpoint, hold."""
    held = np.zeros(board.n, np.bool_)
    for peer, view in enumerate(board.context.peers):
        held |= board.in_slots(peer) > 0
        held |= (board.in_journal(peer) >= 0) & (board.offset >= view.spilled)
    return held


def _undecided(board: Board) -> Mask:
    """True for messages that damage may have taken, or the records of their arrival."""
    undecided = np.zeros(board.n, np.bool_)
    for view in board.context.peers:
        undecided |= view.may_be_damaged(board.due) & (board.offset < view.spilled)
        undecided |= view.may_miss(board.offset) & (board.offset >= view.spilled)
    # A cancel row may be among the entries that are missing in all journals.
    undecided |= board.offset < board.context.cancels_missing
    undecided |= ~board.in_journals & board.has_row & ~board.context.holds_all(board.due)
    damaged = board.context.damaged_topics
    if damaged is None:
        return np.ones(board.n, np.bool_)
    if damaged:
        undecided |= np.isin(board.topic, np.array(sorted(damaged), np.uint32))
    return undecided


def _arrivals(
    board: Board,
    result: Judged,
    accepted: Mask,
    n_arrived: Int64s,
    n_dead: Int64s,
    cancelled: Mask,
) -> None:
    most = np.maximum(n_arrived, n_dead)
    again = np.flatnonzero(accepted & (most > 1))
    times = most[again]
    result.count_each("repeated", np.where(accepted, np.maximum(most - 1, 0), 0))
    result.report(board, CONSERVATION, "repeated", again, lambda at: f"arrived {times[at]} times")
    wrong = np.flatnonzero(accepted & cancelled & (n_arrived > 0))
    result.report(
        board,
        CONSERVATION,
        "cancelled but delivered",
        wrong,
        "a cancel row names it, and it arrived",
    )
    both = np.flatnonzero(accepted & (n_arrived > 0) & (n_dead > 0))
    result.report(
        board,
        CONSERVATION,
        "dead and delivered",
        both,
        "it arrived, and is in the dead-letter topic too",
    )
    result.strange = np.concatenate([wrong, both])
    _expiries(board, result, accepted)


def _expiries(board: Board, result: Judged, accepted: Mask) -> None:
    for seen, flag, kind, text in (
        (Seen.DELIVERED, EXPIRED, "expired but delivered", "it arrived long after it had expired"),
        (Seen.DEAD, TOO_SOON, "dead too soon", "a dead letter as if expired, before it had"),
    ):
        facts = board.of(seen)
        facts = facts[board.facts["flags"][facts] & flag != 0]
        wrong = np.flatnonzero(accepted & (board.count(facts) > 0))
        result.report(board, CONSERVATION, kind, wrong, text)


def _contents(board: Board, result: Judged, seen: Seen, facts: Int64s) -> None:
    fields, messages = board.facts, board.place[facts]
    forged = fields["flags"][facts] & FORGED != 0
    _each(board, result, "forged", facts[forged], "its id was not given out by this group")
    facts, messages = facts[~forged], messages[~forged]
    strange = ~board.known[messages] | board.is_cancel[messages]
    _strangers(board, result, facts[strange])
    facts, messages = facts[~strange], messages[~strange]
    reference = board.reference[messages]
    asked = fields["partition"][reference]
    differs = _differences(board, facts, reference)
    created = fields["created"]
    differs["created"] = board.has_row[messages] & (created[facts] != created[reference])
    differs["partition"] = (asked >= 0) & (fields["partition"][facts] != asked)
    same = ~np.logical_or.reduce([*differs.values()])
    _partitions(board, result, facts[(asked < 0) & (fields["partition"][facts] >= 0)])
    record = "what arrived" if seen is Seen.DELIVERED else "the dead letter"
    altered = np.flatnonzero(~same)
    _each(
        board,
        result,
        "altered",
        facts[altered],
        lambda at: f"{record} differs from what was accepted in {_named(differs, altered[at])}",
    )
    result.strange = np.union1d(result.strange, messages[~same])


def _differences(board: Board, facts: Int64s, reference: Int64s) -> dict[str, Mask]:
    """Masks of the facts that differ from their reference, by field; shape (facts,). Of the fields
    that a digest covers only the topic can be named, as the fact has it, too."""
    fields, differs = board.facts, {}
    for name in ("due", "topic"):
        differs[name] = fields[name][facts] != fields[name][reference]
    silent = (fields["flags"][facts] | fields["flags"][reference]) & NO_DIGEST != 0
    other = ~silent & (fields["digest"][facts] != fields["digest"][reference])
    differs[CONTENT] = other & ~differs["topic"]
    return differs


def _named(differs: Mapping[str, Mask], at: int) -> str:
    return ", ".join(name for name, mask in differs.items() if mask[at])


def _partitions(board: Board, result: Judged, facts: Int64s) -> None:
    """Report records that asked for no partition and are not in that of their key."""
    fields, known = board.facts, board.context.terms.partitions
    crcs = np.array([crc32c(name.encode()) for name in known], np.uint32)
    judged = np.isin(fields["topic"][facts], crcs)
    result.count(PARTITION_UNJUDGED, (board.count(facts[~judged]) > 0).sum())
    wrong = facts[fields["flags"][facts] & ELSEWHERE != 0]
    text = "asked for no partition, and did not arrive in that of its key"
    _each(board, result, OTHER_PARTITION, wrong, text)


def _strangers(board: Board, result: Judged, facts: Int64s) -> None:
    """Report records of messages that no journal and no receipt has."""
    context, fields, messages = board.context, board.facts, board.place[facts]
    # A running node may have accepted it since the journals were read.
    newer = (fields["created"][facts] >= context.made_ms) | (fields["at"][facts] >= context.made_ms)
    newer &= board.behind_the_log[messages]
    seen = board.readable[messages]
    unknown = (seen | board.behind_the_log[messages]) & ~board.may_be_missing[messages] & ~newer
    inside, behind = facts[unknown & seen], facts[unknown & ~seen]
    _each(board, result, "unknown", inside, "arrived, and was never accepted")
    text = f"arrived, and its offset is behind {context.log_end}, where the last journal ends"
    _each(board, result, "unknown", behind, text)
    result.strange = np.union1d(result.strange, messages[unknown])
    judged = context.options.judges(fields["due"][facts])
    result.count("unaccounted", int((judged & ~unknown & ~newer).sum()))
    result.count("newer", int((judged & newer).sum()))


def _strangers_again(board: Board, result: Judged, facts: Int64s, accepted: Mask) -> None:
    """Report messages that arrived several times and are not among the accepted ones: their journal
    segment is gone, or was read before they were in it. No class counts them, and two records are
    one too many all the same."""
    fields = board.facts
    facts = facts[fields["flags"][facts] & FORGED == 0]
    facts = facts[board.context.options.judges(fields["due"][facts])]
    times = board.count(facts)
    again = ~accepted & (times > 1)
    again[result.strange] = False
    result.count("repeated", (times[again] - 1).sum())
    facts = facts[again[board.place[facts]]]
    _each(
        board,
        result,
        "repeated",
        facts,
        lambda at: (
            f"arrived {times[board.place[facts[at]]]} times; no journal shows its acceptance"
        ),
    )


def _each(
    board: Board, result: Judged, kind: str, facts: Int64s, text: str | Callable[[int], str]
) -> None:
    """Report a problem for each message of these facts, once. ``text``: of all, or of each
    place."""
    messages, first = np.unique(board.place[facts], return_index=True)
    fields = board.facts.rows(facts[first])
    result.report(
        board,
        CONSERVATION,
        kind,
        messages,
        text if isinstance(text, str) else lambda at: text(int(first[at])),
        due=fields["due"],
        position=fields["where"],
    )


def _receipts(board: Board, result: Judged) -> None:
    facts = board.of(Seen.RECEIPT)
    if not len(facts):
        return
    fields = board.facts
    forged = fields["flags"][facts] & FORGED != 0
    _each(
        board, result, "forged", facts[forged], "the receipt's id was not given out by this group"
    )
    facts = facts[~forged]
    messages = board.place[facts]
    known = board.has_row[messages]
    facts, reference = facts[known], board.reference[messages[known]]
    differs = _differences(board, facts, reference)
    # A receipt has only the one digest of these fields.
    differs["digest of key, value and headers"] = differs.pop(CONTENT)
    altered = np.flatnonzero(np.logical_or.reduce([*differs.values()]))
    _each(
        board,
        result,
        "altered",
        facts[altered],
        lambda at: f"the receipt differs from what was accepted in {_named(differs, altered[at])}",
    )
