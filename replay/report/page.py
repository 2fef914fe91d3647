"""The report, as JSON for programs, and as one HTML page for people: the verdict, problems, inputs;
then figures by topic and time, and charts last.

Rules
- Self-contained: no script, no font, no picture from elsewhere.
- Ids, topics and file names come from outside: everything is escaped.
- Problems that do not fail the proof, such as repeats, are folded away; of those that do, a few are
  shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ...reading.problems import Problem
from ...wheel.texts import counted
from .figures import BAD, by_due_time, by_topic
from .html import STYLE, folded, moment, table
from .plot import bars, lines
from .verdict import CLASSES, Outcome, Verdict

_COLOURS = {Outcome.PROVEN: "good", Outcome.IN_PART: "half", Outcome.NOT_PROVEN: "bad"}
_CARDS = (
    *("accepted", *CLASSES),
    *("repeated", "late", "overdue", "unaccounted", "in doubt"),
)
_NAMES = {"dead": "dead letters", "unaccounted": "not judged"}
"""Labels of cards that differ from the names of their counts."""
_ALWAYS = {"accepted", "delivered", "pending", "lost"}
_SHOWN = 10
"""Problems of a kind that are not folded away."""


def page(verdict: Verdict, made_ms: int) -> str:
    """The whole page. ``made_ms``: when the proof was made."""
    word, colour = verdict.outcome.capitalize(), _COLOURS[verdict.outcome]
    body = [
        f'<h1 class="{colour}">{word}</h1>',
        f'<p class="soft">slotwheel replay, {moment(made_ms)}, {verdict.seconds:.1f} s</p>',
        _reasons(verdict),
        _cards(verdict),
        *([_problems(verdict), _open_points(verdict)][:: 1 if verdict.reasons else -1]),
        _inputs(verdict),
        _notes(verdict),
        by_topic(verdict),
        by_due_time(verdict),
        _agreement(verdict),
        _charts(verdict),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{word} - slotwheel replay</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _reasons(verdict: Verdict) -> str:
    if verdict.reasons:
        return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in verdict.reasons) + "</ul>"
    count = verdict.counts["accepted"]
    once = " exactly once" if verdict.exactly_once else ""
    text = (
        f"{counted(count, 'accepted message')}: each was delivered{once}, is still held, was"
        " cancelled, or died with a reason; none was early"
    )
    ending = "." if verdict.open_points else ", and nothing else arrived."
    return f"<p>{text}{ending}</p>"


def _open_points(verdict: Verdict) -> str:
    if not verdict.open_points:
        return ""
    rows = [[point.subject, point.reason, point.remedy] for point in verdict.open_points]
    return "<h2>Not decided</h2>" + table(("what", "why", "what to do"), rows, numbers=False)


def _cards(verdict: Verdict) -> str:
    cards = []
    for name in _CARDS:
        value = verdict.counts.get(name, 0)
        asked = name == "repeated" and verdict.exactly_once
        if value or asked or name in _ALWAYS:
            colour = ' class="bad"' if (name in BAD or asked) and value else ""
            label = _NAMES.get(name, name) + (" (exactly once)" if asked else "")
            cards.append(f'<div class="card"><b{colour}>{value:,}</b>{label}</div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _problems(verdict: Verdict) -> str:
    total = sum(verdict.problem_counts.values())
    if not total:
        return "<h2>Problems</h2><p>None.</p>"
    fails = {reason.partition(": ")[0] for reason in verdict.reasons}
    kinds = sorted(verdict.problem_counts, key=lambda kind: (kind not in fails, kind))
    text = [] if fails & set(kinds) else ["None of these fails the proof."]
    if verdict.truncated:
        text.append(f"{len(verdict.problems):,} of {total:,} are listed; --problems lists more.")
    return (
        "<h2>Problems</h2>"
        + (f'<p class="soft">{" ".join(text)}</p>' if text else "")
        + "".join(_of_kind(verdict, kind, fails=kind in fails) for kind in kinds)
    )


def _of_kind(verdict: Verdict, kind: str, *, fails: bool) -> str:
    listed = [problem for problem in verdict.problems if problem.kind == kind]
    number = verdict.problem_counts[kind]
    if not fails:
        return folded(f"{kind}: {number:,}, which fails nothing", _rows(listed))
    title = f'<h3><span class="bad">{escape(kind)}</span>: {number:,}</h3>'
    rest = listed[_SHOWN:]
    more = folded(f"{len(rest):,} more of {kind}", _rows(rest)) if rest else ""
    return title + _rows(listed[:_SHOWN]) + more


def _rows(problems: Sequence[Problem]) -> str:
    rows = [[problem.id or problem.file, problem.text] for problem in problems]
    return table(("message or file", "what"), rows, numbers=False)


def _inputs(verdict: Verdict) -> str:
    rows = [
        [given.kind, f"{given.files:,}", f"{given.nbytes / 1e6:,.1f}", f"{given.rows:,}"]
        for given in verdict.inputs
    ]
    return "<h2>What was read</h2>" + table(("", "files", "MB", "rows"), rows)


def _notes(verdict: Verdict) -> str:
    asked = [f"{name} = {value}" for name, value in verdict.options.items() if value is not None]
    used = [f"{name} {version}" for name, version in verdict.versions.items()]
    items = [*verdict.notes, "asked: " + ", ".join(asked), "with " + ", ".join(used)]
    return (
        "<h2>How it was judged</h2><p>Accepted is what journals and receipts say; delivered is"
        " what topics hold. What the wheel claims to have delivered is not believed: it is only"
        " held against it.</p><ul>" + "".join(f"<li>{escape(item)}</li>" for item in items)
    ) + "</ul>"


def _agreement(verdict: Verdict) -> str:
    if not verdict.agreement:
        return ""
    rows = [
        [f"{pair.left} and {pair.right}", f"{pair.equal:,}", f"{pair.different:,}"]
        for pair in verdict.agreement
    ]
    return "<h2>Peers</h2>" + table(("", "rows equal", "different or missing"), rows)


def _charts(verdict: Verdict) -> str:
    times = [row for row in verdict.lateness if not row.topic and row.bucket_ms >= 0]
    if not times:
        return ""
    at = [row.bucket_ms for row in times]
    series = [
        ("p50", [row.p50 for row in times]),
        ("p99", [row.p99 for row in times]),
        ("max", [row.max for row in times]),
    ]
    key = "".join(
        f'<span><i style="background:var(--{letter})"></i>{name}</span>'
        for letter, (name, _) in zip("abc", series, strict=True)
    )
    wide = f"in buckets of {verdict.interval_ms / 1000:g} s of due time, UTC"
    return (
        "<h2>Lateness over time</h2>"
        f'<p class="key">{key}<span class="soft">milliseconds, {wide}</span></p>'
        + lines(at, series)
        + f'<h2>Delivered over time</h2><p class="soft">messages {wide}</p>'
        + bars(at, [row.count for row in times], "messages delivered")
    )


def write_report(verdict: Verdict, directory: Path, made_ms: int) -> list[Path]:
    """Write both files, each whole or not at all; returns their paths. Errors: ``OSError``."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.json": json.dumps({"made_ms": made_ms, **verdict.to_dict()}, indent=1) + "\n",
        "report.html": page(verdict, made_ms),
    }
    written = []
    for name, text in texts.items():
        path, part = directory / name, directory / f".{name}.part"
        part.write_text(text, "utf-8")
        os.replace(part, path)  # noqa: PTH105 - an atomic change of name
        written.append(path)
    return written
