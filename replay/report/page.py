"""The report as one HTML page: verdict first, then what it rests on.

Rules
- Self-contained: no script, no font, no picture from elsewhere.
- Ids, topics and file names come from outside: everything is escaped.
- Readable on a phone: one column, tables scroll in themselves, nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from .plot import bars, lines
from .verdict import Lateness, Outcome, Verdict

_STYLE = """
:root{color-scheme:light dark;--ink:#1a1d21;--soft:#5b636d;--ground:#fff;--card:#f5f6f8;
--rule:#d9dde2;--good:#11733f;--half:#8a5a00;--bad:#b3261e;--a:#2f6fde;--b:#d9822b;--c:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e7eaee;--soft:#9aa4af;--ground:#14171b;
--card:#1d2126;--rule:#343a42;--good:#4cc38a;--half:#f0b429;
--bad:#ff7b72;--a:#6ea8ff;--b:#f0a95b;--c:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:2rem;line-height:1.1;margin:.2rem 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.good{color:var(--good)}.half{color:var(--half)}.bad{color:var(--bad)}.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.6rem}
.card{background:var(--card);border-radius:.5rem;padding:.6rem .8rem}
.card b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{overflow-wrap:normal;text-align:left;padding:.3rem .6rem .3rem 0;
border-bottom:1px solid var(--rule);
vertical-align:top}td.t{overflow-wrap:anywhere;min-width:12rem}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}.grid{stroke:var(--rule)}
.tick{fill:var(--soft);font-size:12px}
@media(max-width:40rem){.tick{font-size:20px}}.bar{fill:var(--a)}
.line polyline{fill:none;stroke-width:2}.line0{stroke:var(--a);fill:var(--a)}
.line1{stroke:var(--b);fill:var(--b)}.line2{stroke:var(--c);fill:var(--c)}
.key span{margin-right:1rem}.key i{display:inline-block;width:.8rem;height:.8rem;
border-radius:.2rem;margin-right:.3rem}code{font-size:.85em}
"""
_COLOURS = {Outcome.PROVEN: "good", Outcome.IN_PART: "half", Outcome.NOT_PROVEN: "bad"}
_NAMES = {
    "accepted": "accepted",
    "delivered": "delivered",
    "pending": "pending",
    "cancelled": "cancelled",
    "dead": "dead letters",
    "lost": "lost",
    "undecided": "undecided",
    "repeated": "repeated",
    "overdue": "overdue",
    "unaccounted": "not judged",
    "in doubt": "in doubt",
}
_ALWAYS = {"accepted", "delivered", "pending", "lost"}
_BAD = {"lost", "undecided"}


def page(verdict: Verdict, made_ms: int) -> str:
    """The whole page. ``made_ms``: when the proof was made."""
    word, colour = verdict.outcome.capitalize(), _COLOURS[verdict.outcome]
    body = [
        f'<h1 class="{colour}">{word}</h1>',
        f'<p class="soft">slotwheel replay, {_moment(made_ms)}, {verdict.seconds:.1f} s</p>',
        _reasons(verdict),
        _open_points(verdict),
        _cards(verdict),
        _lateness(verdict),
        _agreement(verdict),
        _problems(verdict),
        _inputs(verdict),
        _notes(verdict),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{word} - slotwheel replay</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _reasons(verdict: Verdict) -> str:
    if verdict.reasons:
        return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in verdict.reasons) + "</ul>"
    count = verdict.counts["accepted"]
    text = (
        f"Each of {count:,} accepted messages was delivered, is still held, was cancelled,"
        " or died with a reason; none was early"
    )
    ending = "." if verdict.open_points else ", and nothing else arrived."
    return f"<p>{text}{ending}</p>"


def _open_points(verdict: Verdict) -> str:
    if not verdict.open_points:
        return ""
    rows = [[one.subject, one.reason, one.remedy] for one in verdict.open_points]
    return "<h2>Not decided</h2>" + _table(("what", "why", "what to do"), rows, numbers=False)


def _cards(verdict: Verdict) -> str:
    cards = []
    for name, shown in _NAMES.items():
        value = verdict.counts.get(name, 0)
        if value or name in _ALWAYS:
            colour = ' class="bad"' if name in _BAD and value else ""
            cards.append(f'<div class="card"><b{colour}>{value:,}</b>{escape(shown)}</div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _lateness(verdict: Verdict) -> str:
    if not verdict.lateness:
        return ""
    by_topic = [one for one in verdict.lateness if one.topic]
    times = [one for one in verdict.lateness if not one.topic and one.bucket_ms >= 0]
    at = [one.bucket_ms for one in times]
    series = [
        ("p50", [one.p50 for one in times]),
        ("p99", [one.p99 for one in times]),
        ("max", [one.max for one in times]),
    ]
    key = "".join(
        f'<span><i style="background:var(--{letter})"></i>{name}</span>'
        for letter, (name, _) in zip("abc", series, strict=True)
    )
    rows = [_late_row("all", verdict.lateness[0]), *(_late_row(one.topic, one) for one in by_topic)]
    names = ("", "messages", "p50 ms", "p99 ms", "p99.9 ms", "max ms")
    wide = f"in buckets of {verdict.interval_ms / 1000:g} s of due time, UTC"
    return (
        "<h2>Lateness</h2>"
        + _table(names, rows)
        + f'<p class="key">{key}<span class="soft">milliseconds, {wide}</span></p>'
        + lines(at, series, "")
        + f'<h2>Delivered</h2><p class="soft">messages {wide}</p>'
        + bars(at, [one.count for one in times], "messages delivered")
    )


def _late_row(name: str, one: Lateness) -> list[str]:
    figures = (one.p50, one.p99, one.p999, one.max)
    return [name, f"{one.count:,}", *(f"{figure:,.0f}" for figure in figures)]


def _agreement(verdict: Verdict) -> str:
    if not verdict.agreement:
        return ""
    rows = [
        [f"{pair.left} and {pair.right}", f"{pair.equal:,}", f"{pair.different:,}"]
        for pair in verdict.agreement
    ]
    return "<h2>Peers</h2>" + _table(("", "rows equal", "different or missing"), rows)


def _problems(verdict: Verdict) -> str:
    total = sum(verdict.problem_counts.values())
    if not total:
        return "<h2>Problems</h2><p>None.</p>"
    kinds = [[kind, f"{number:,}"] for kind, number in sorted(verdict.problem_counts.items())]
    cut = (
        f'<p class="soft">{len(verdict.problems):,} of {total:,} are listed; --problems lists'
        " more.</p>"
        if verdict.truncated
        else ""
    )
    rows = [[one.kind, one.id or one.file, one.text] for one in verdict.problems]
    return (
        "<h2>Problems</h2>"
        + ('<p class="soft">None of these fails the proof.</p>' if not verdict.reasons else "")
        + _table(("", "how many"), kinds)
        + cut
        + _table(("kind", "message or file", "what"), rows, numbers=False)
    )


def _inputs(verdict: Verdict) -> str:
    rows = [
        [one.kind, f"{one.files:,}", f"{one.nbytes / 1e6:,.1f}", f"{one.rows:,}"]
        for one in verdict.inputs
    ]
    return "<h2>What was read</h2>" + _table(("", "files", "MB", "rows"), rows)


def _notes(verdict: Verdict) -> str:
    asked = [f"{name} = {value}" for name, value in verdict.options.items() if value is not None]
    used = [f"{name} {version}" for name, version in verdict.versions.items()]
    items = [*verdict.notes, "asked: " + ", ".join(asked), "with " + ", ".join(used)]
    return (
        "<h2>How it was judged</h2><p>Accepted is what journals and receipts say; delivered is"
        " what topics hold. What the wheel claims to have delivered is not believed: it is only"
        " held against it.</p><ul>" + "".join(f"<li>{escape(item)}</li>" for item in items)
    ) + "</ul>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """The first column is of words, which stay whole; the others are of ``numbers``, or of ids and
    sentences, which are broken where they must."""
    kind = "n" if numbers else "t"

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{f' class={kind}' if at else ''}>{escape(value)}</{tag}>"
            for at, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells("th", names)}</tr>{body}</table></div>'


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
