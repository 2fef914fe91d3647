"""The pieces of the page: its style, tables, folded parts.

Rules
- Every text is escaped here.
- Nothing is cut off on a phone: a row of a table becomes a block there, each value with the name of
  its column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from html import escape

STYLE = """
:root{color-scheme:light dark;--ink:#1a1d21;--soft:#5b636d;--ground:#fff;--card:#f5f6f8;
--rule:#d9dde2;--good:#11733f;--half:#8a5a00;--bad:#b3261e;--a:#2f6fde;--b:#d9822b;--c:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e7eaee;--soft:#9aa4af;--ground:#14171b;
--card:#1d2126;--rule:#343a42;--good:#4cc38a;--half:#f0b429;
--bad:#ff7b72;--a:#6ea8ff;--b:#f0a95b;--c:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:2rem;line-height:1.1;margin:.2rem 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:1.2rem 0 .2rem}
.good{color:var(--good)}.half{color:var(--half)}.bad{color:var(--bad)}.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.6rem}
.card{background:var(--card);border-radius:.5rem;padding:.6rem .8rem}
.card b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
summary{cursor:pointer;padding:.3rem 0}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--rule);
vertical-align:top}th{overflow-wrap:normal;vertical-align:bottom}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:normal}
td.n{white-space:nowrap}td:first-child{min-width:7rem}
svg{width:100%;height:auto;display:block}.grid{stroke:var(--rule)}
.tick{fill:var(--soft);font-size:12px}
@media(max-width:40rem){.tick{font-size:20px}tr.h{display:none}
tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(6.2rem,1fr));gap:0 .8rem;
padding:.4rem 0;border-bottom:1px solid var(--rule)}
td,td.n{border:0;padding:.1rem 0;text-align:left}td:first-child{grid-column:1/-1;font-weight:600}
td.t{grid-column:1/-1}td[data-n]::before{content:attr(data-n);display:block;color:var(--soft);
font-size:.8rem;font-weight:400}}
.bar{fill:var(--a)}
.line polyline{fill:none;stroke-width:2}.line0{stroke:var(--a);fill:var(--a)}
.line1{stroke:var(--b);fill:var(--b)}.line2{stroke:var(--c);fill:var(--c)}
.key span{margin-right:1rem}.key i{display:inline-block;width:.8rem;height:.8rem;
border-radius:.2rem;margin-right:.3rem}
"""


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = True,
    bad: Collection[str] = (),
) -> str:
    """A table whose first column is text; the others are ``numbers``, which do not wrap, or else
    ids and sentences. ``bad``: columns in which any number other than 0 stands out."""
    kind = "n" if numbers else "t"

    def cell(at: int, value: str) -> str:
        text = escape(value)
        if at == 0:
            return f"<td>{text}</td>"
        if names[at] in bad and value != "0":
            text = f'<b class="bad">{text}</b>'
        label = f' data-n="{escape(names[at])}"' if len(names) > 2 else ""
        return f"<td class={kind}{label}>{text}</td>"

    head = "".join(
        f"<th{f' class={kind}' if at else ''}>{escape(name)}</th>" for at, name in enumerate(names)
    )
    body = "".join(
        f"<tr>{''.join(cell(at, value) for at, value in enumerate(row))}</tr>" for row in rows
    )
    return f"<table><tr class=h>{head}</tr>{body}</table>"


def folded(summary: str, inner: str) -> str:
    """A part that is shown when its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
