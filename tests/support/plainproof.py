"""The proof without Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from slotwheel.reading.files import Layout
from slotwheel.reading.problems import Problem
from slotwheel.replay.conclusion import Conclusion
from slotwheel.replay.datasource.segments import UnreadEvents, listed_segments
from slotwheel.replay.facts.fact import Facts
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.facts.scheduled import SCHEDULES, stored_text
from slotwheel.replay.judging.boundaries import CLASSES, WHEEL, boundaries_of
from slotwheel.replay.judging.context import Context, Options, make_context
from slotwheel.replay.judging.names import judge_names
from slotwheel.replay.judging.ranges import judge_range
from slotwheel.replay.judging.schedules import evidence, judge_schedule
from slotwheel.replay.report.verdict import Verdict
from slotwheel.replay.sparkaccount import facts_of_segments, read_traces
from slotwheel.replay.storeaccount import BoundaryAccount, lost_kind, store_account
from support.told import Told, scan


def prove_here(layout: Layout, options: Options, traces: str = "") -> Verdict:
    """The proof of a small layout by the same steps, in one process and one task; without lateness
    by topic and time. All offsets lie in one range. ``traces``: a trace store; empty: none."""
    terms = GroupTerms(layout.group, layout.key, layout.dead_letter_topic)
    told = scan(layout.files, terms)
    context = make_context(layout, told.files, terms, options, told.chunks)
    found, _ = judge_range(told.facts, context)
    judge_names(found.named, context, found)
    stored = [
        {"what": SCHEDULES, "text": stored_text(name, version, spec)}
        for (name, version), spec in layout.schedules.items()
    ]
    for seen in evidence([*told.scheduled, *stored]):
        judge_schedule(seen, context, found)
    boundaries, lost = _boundaries(told.facts, context, traces) if traces else (None, [])
    counts = found.counts, found.problem_counts
    said = Conclusion(layout, context, told.files, *counts, boundaries)
    problems = [*said.own(), *told.problems, *found.problems, *lost]
    by_kind = said.problem_counts()
    return Verdict(
        said.reasons(),
        said.open_points(),
        said.counts(),
        by_kind,
        problems,
        sum(by_kind.values()) > len(problems),
        [],
        said.agreement(),
        said.inputs(),
        options.interval_ms,
        said.notes(),
    )


def _boundaries(
    facts: Facts, context: Context, store: str
) -> tuple[BoundaryAccount, list[Problem]]:
    """The account of ``replay/sparkaccount.py`` without Spark, and the losses that only it sees."""
    unread: list[UnreadEvents] = []
    segments = listed_segments(store, unread)
    told = Told(facts_of_segments(segments, context.terms, unread))
    traces, _ = read_traces(told.traces)
    both = np.concatenate([facts, told.facts])
    rows = boundaries_of(both, context, traces).to_pylist()
    sums: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        if row["kind"] is None:
            key = row["boundary"], row["group"]
            sums.setdefault(key, Counter()).update({name: row[name] for name in CLASSES})
    groups = (
        {"boundary": boundary, "group": group, **dict.fromkeys(CLASSES, 0), **one}
        for (boundary, group), one in sums.items()
    )
    found = store_account(store, traces, list(groups))
    lost = [
        Problem("conservation", lost_kind(row["boundary"], row["group"]), "", row["id"])
        for row in rows
        if row["kind"] == "lost" and row["boundary"] != WHEEL
    ]
    return replace(found, problems=[*told.problems, *found.problems]), lost
