"""The page's tables of figures: what became of the messages for each topic, and of those due in
each time bucket."""

from __future__ import annotations

from collections.abc import Sequence

from .html import folded, moment, table
from .verdict import GroupCounts, Lateness, Verdict

BAD = {"lost", "undecided"}
"""Columns in which any number other than 0 stands out."""
_COLUMNS = (
    *("accepted", "delivered", "lost", "repeated", "late"),
    *("pending", "cancelled", "dead", "expired", "undecided", "overdue"),
)
_ALWAYS = _COLUMNS[:4]
"""Columns that are always shown; the others are shown if they have a number other than 0."""
_SHOWN = 10
"""Rows that are not folded away."""


def by_topic(verdict: Verdict) -> str:
    if not verdict.by_topic:
        return ""
    late = {row.topic: row for row in verdict.lateness if row.bucket_ms < 0}
    groups = [GroupCounts("", -1, verdict.counts), *verdict.by_topic]
    names = [group.topic or "all topics" for group in groups]
    made = _figures(verdict, "topic", names, groups, [late.get(group.topic) for group in groups])
    return "<h2>By topic</h2>" + made


def by_due_time(verdict: Verdict) -> str:
    if not verdict.by_bucket:
        return ""
    late = {row.bucket_ms: row for row in verdict.lateness if row.bucket_ms >= 0}

    def made(groups: Sequence[GroupCounts]) -> str:
        names = [moment(group.bucket_ms) for group in groups]
        lateness = [late.get(group.bucket_ms) for group in groups]
        return _figures(verdict, "due from", names, groups, lateness)

    count, seconds = len(verdict.by_bucket), verdict.interval_ms / 1000
    text = f'<h2>By due time</h2><p class="soft">{count:,} buckets of {seconds:g} s, UTC.</p>'
    if count <= _SHOWN:
        return text + made(verdict.by_bucket)
    lossy = [group for group in verdict.by_bucket if any(group.counts.get(name) for name in BAD)]
    if lossy:
        shown = f"; the first {_SHOWN}:" if len(lossy) > _SHOWN else ":"
        text += f"<h3>Messages are lost or undecided in {len(lossy):,} of them{shown}</h3>"
        text += made(lossy[:_SHOWN])
    return text + folded(f"all {count:,} buckets", made(verdict.by_bucket))


def _figures(
    verdict: Verdict,
    heading: str,
    names: Sequence[str],
    groups: Sequence[GroupCounts],
    late: Sequence[Lateness | None],
) -> str:
    """A table of groups' counts and lateness. ``heading``: of ``names``, one a group."""
    asked = {"late"} if any("late" in group.counts for group in groups) else set()
    always = asked.union(_ALWAYS)
    columns = [name for name in _COLUMNS if name in always or verdict.counts.get(name)]
    rows = [
        [name, *(f"{group.counts.get(column, 0):,}" for column in columns), *_lateness(row)]
        for name, group, row in zip(names, groups, late, strict=True)
    ]
    return table((heading, *columns, "p50 ms", "p99 ms", "max ms"), rows, bad=BAD)


def _lateness(row: Lateness | None) -> list[str]:
    return ["-"] * 3 if row is None else [f"{ms:,.0f}" for ms in (row.p50, row.p99, row.max)]
