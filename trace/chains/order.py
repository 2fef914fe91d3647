"""The steps of a chain in the order in which they must have happened, whatever the clocks say.

Theory: a sender, a node and a consumer have a clock each; by one that is three seconds behind, a
message was processed before it was delivered. But nothing is accepted before it is produced, or
received before it is delivered, and a retry follows an attempt that failed. So a step stands at its
own time, or at that of the last step that must have come before it, if that is later; where the two
times contradict each other, the chain says by how much.

    produced -> accepted -> delivered -> received -> processed -> retried -> produced (again)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...account.limits import ready_ms
from .anomalies import CLOCKS_MS
from .chain import ChainMessage, ChainStep, StepKind, Witness

_RANKS = {
    kind: rank
    for rank, kinds in enumerate(
        (
            (StepKind.PRODUCED,),
            (StepKind.ACCEPTED,),
            (StepKind.DELIVERED, StepKind.CANCELLED, StepKind.EXPIRED),
            (StepKind.RECEIVED,),
            (StepKind.PROCESSED,),
            (StepKind.RETRIED, StepKind.DEAD),
        )
    )
    for kind in kinds
}
_WHEEL_END = 2


class Contradiction(NamedTuple):
    """``step`` is dated ``ms`` before ``cause``, which must have come first; without a cause,
    before its message was due, or accepted."""

    step: ChainStep
    cause: ChainStep | None
    ms: int


class _Placed(NamedTuple):
    step: ChainStep
    at_ms: int


def in_order(
    steps: Iterable[ChainStep], messages: Sequence[ChainMessage], depths: Mapping[str, int]
) -> tuple[list[ChainStep], list[Contradiction]]:
    """The steps, and the contradictions of their times. ``depths``: the number of each message's
    ancestors."""
    by_id: dict[str, list[ChainStep]] = defaultdict(list)
    places: list[tuple[tuple[bool, int, int, int, int], ChainStep]] = []
    contradictions: list[Contradiction] = []
    parents = {message.id: message.comes_from for message in messages}
    ready = {
        message.id: ready_ms(message.due_ms or 0, message.created_ms)
        for message in messages
        if message.created_ms is not None
    }
    ends: dict[str, _Placed] = {}
    """The step of each message after which others can come from it."""

    def place(step: ChainStep, cause: _Placed | None) -> _Placed | None:
        depth, rank = depths.get(step.id, 0), _rank(step)
        if step.at_ms is None:
            places.append(((True, 0, depth, rank, 0), step))
            return cause
        at_ms = step.at_ms
        if cause is not None:
            before_ms, of = cause.step.at_ms, cause.step
            # The node is answered after the record is on its topic, where it may have been read.
            from_wheel = rank > _WHEEL_END and _rank(of) <= _WHEEL_END
            if from_wheel:
                before_ms = ready.get(step.id, before_ms)
            if before_ms is not None and before_ms - at_ms >= CLOCKS_MS:
                contradictions.append(
                    Contradiction(step, None if from_wheel else of, before_ms - at_ms)
                )
            at_ms = max(at_ms, cause.at_ms)
        places.append(((False, at_ms, depth, rank, step.at_ms), step))
        return _Placed(step, at_ms)

    for step in steps:
        if step.id and step.kind in _RANKS and not _is_unstored(step):
            by_id[step.id].append(step)
        else:  # nothing happens at a due time by itself
            place(step, None)
    for message_id in sorted(by_id, key=lambda of_id: (depths.get(of_id, 0), of_id)):
        of_message = sorted(by_id[message_id], key=lambda step: (_rank(step), step.at_ms or 0))
        cause = ends.get(parents.get(message_id) or "")
        for step in of_message:
            if _rank(step) <= _WHEEL_END:
                cause = place(step, cause)
        last: dict[tuple[str | None, int | None], _Placed | None] = {}
        made: list[_Placed] = [] if cause is None else [cause]
        for step in of_message:
            if _rank(step) > _WHEEL_END:
                attempt = step.group, step.attempt
                last[attempt] = place(step, last.get(attempt, cause))
        again = [
            placed for placed in last.values() if placed is not None and placed.step.kind in _AGAIN
        ]
        if again or made:
            ends[message_id] = min(again or made, key=lambda placed: placed.at_ms)
    return [step for _, step in sorted(places, key=lambda entry: entry[0])], contradictions


_AGAIN = (StepKind.RETRIED, StepKind.DEAD)


def _rank(step: ChainStep) -> int:
    if step.kind is StepKind.DEAD and step.tier is Witness.WHEEL:
        return _WHEEL_END
    return _RANKS.get(step.kind, _WHEEL_END - 1 if step.kind is StepKind.DUE else len(_RANKS))


def _is_unstored(step: ChainStep) -> bool:
    return step.kind is StepKind.PRODUCED and step.failed
