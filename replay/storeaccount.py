"""Sentences about the sums of all boundaries, and how far the store of events can be believed.
Without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..account.vocabulary import AuditVerdict
from ..reading.problems import INTEGRITY, OpenPoint, Problem
from ..wheel.texts import counted
from .facts.traced import TraceSummary
from .judging.boundaries import CLASSES, CONSUMER, WHEEL

BEFORE = "a client was told that it is stored, and no journal has it"
BEHIND = "the group has committed a position behind it, and has not answered for it"
"""The text of a loss before the wheel, and of one behind the topics."""


@dataclass(frozen=True, slots=True)
class BoundaryAccount:
    """``sentences``: a line for each boundary; ``problems``: of the store; ``open_points``: what it
    does not show; ``lost``: how many messages were lost where the proof does not see it, by kind of
    problem."""

    sentences: Sequence[str]
    problems: Sequence[Problem]
    open_points: Sequence[OpenPoint]
    lost: Mapping[str, int]


def store_account(
    store: str, traces: TraceSummary, rows: Sequence[Mapping[str, Any]]
) -> BoundaryAccount:
    """Sum up the boundaries, and check that the events are of this wheel, and whole. ``store``: the
    directory of the events; ``rows``: the sums of each boundary and group, by ``CLASSES``."""
    name = Path(store).name
    problems, open_points = [], []
    if traces.is_foreign:
        text = (
            f"expected events of this group's messages, found {traces.foreign:,} of others alone:"
            " it is another wheel's store. Give that of this one"
        )
        problems.append(Problem(INTEGRITY, "foreign", text, file=name))
    elif not traces.own:
        reason = "it has no event of a message, so nothing before and behind the wheel was seen"
        remedy = "Give the directory that this wheel's gateway keeps events in"
        open_points.append(OpenPoint(f"the trace store {name}", reason, remedy))
    undecided = sum(row["undecided"] for row in rows if row["boundary"] == CONSUMER)
    sentences = [_sentence(row) for row in rows]
    if traces.missing_ms() >= 0:
        senders = f" of {counted(traces.incomplete, 'sender')}" if traces.incomplete else ""
        missing = f"events{senders} are missing in the trace store {name}"
        sentences.append(missing)
        if undecided:
            reason = f"{missing}, and may have said that they were answered for"
            remedy = "Give a whole copy of the store"
            subject = f"{counted(undecided, 'message')}, {CONSUMER}"
            open_points.append(OpenPoint(subject, reason, remedy))
    lost = {
        lost_kind(row["boundary"], row["group"]): row[AuditVerdict.LOST]
        for row in rows
        if row[AuditVerdict.LOST] and row["boundary"] != WHEEL
    }
    return BoundaryAccount(sentences, problems, open_points, lost)


def lost_kind(boundary: str, group: str) -> str:
    """The kind of problem of a message that was lost before the wheel or behind the topics."""
    return f"{AuditVerdict.LOST}, {boundary}" + (f", {group}" if group else "")


def _sentence(row: Mapping[str, Any]) -> str:
    of = f", {row['group']}" if row["group"] else ""
    always = [f"{row[name]:,} {name}" for name in ("sent", "arrived")]
    return f"{row['boundary']}{of}: " + ", ".join(
        always + [f"{row[name]:,} {name}" for name in CLASSES[2:] if row[name]]
    )
