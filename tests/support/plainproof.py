"""The proof without Spark."""

from __future__ import annotations

from slotwheel.reading.files import Layout
from slotwheel.replay.conclusion import Conclusion
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.judging.context import Options, make_context
from slotwheel.replay.judging.judge import judge_range
from slotwheel.replay.report.verdict import Verdict
from support.told import scan


def prove_here(layout: Layout, options: Options) -> Verdict:
    """The proof of a small layout by the same steps, in one process and one task; without lateness
    by topic and time. All offsets lie in one range."""
    terms = GroupTerms(layout.group, layout.key, layout.dead_letter_topic)
    told = scan(layout.files, terms)
    context = make_context(layout, told.files, terms, options, told.chunks)
    found, _ = judge_range(told.facts, context)
    said = Conclusion(layout, context, told.files, found.counts, found.problem_counts)
    problems = [*said.own(), *told.problems, *found.problems]
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
