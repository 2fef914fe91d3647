"""The sums of judging, as rows that add up: messages by class, by topic and time bucket; lateness.

Theory: every result of judging is a few rows of one schema, and rows with the same ``KEYS`` are
summed. So ranges of offsets, tasks, and all of them together are added in the same way. Lateness is
a histogram, small whatever the number of messages; percentiles are taken from the sum. Three are
kept: of all messages, by topic, and by time bucket.

    count      ``name``: of a class of messages, or of two peers; ``count``
    problems   ``name``: a kind of problem; ``count``: how many there are, listed or not
    tally      ``count`` of the class ``name``, by ``topic`` and ``bucket_ms``
    late       one bar, ``late_ms``, ``count``, ``max_ms``: by ``topic``, ``bucket_ms``, or neither
    problem    ``name``: its kind; ``text``: a ``Problem`` as JSON. Not summed
    named      ``data``: ``count`` packed messages that have names (``names.py``), all of which
               have their keys in the share ``bucket_ms`` of all keys. Not summed

``topic`` is the CRC of its name.

Rules
- Milliseconds are exact up to 4096; beyond that three digits are kept: 12,345 counts as 12,300, so
  that up to a day there are 8,200 bars at most. The maximum is exact.
- A time bucket begins at ``t - t % interval`` of due times; the begin belongs to it, the end not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...reading.problems import Problem
from ...wheel.schema import Int64s

EXACT_MS = 4096
KEYS = ("what", "name", "topic", "bucket_ms", "late_ms")
JUDGED_ARROW = pa.schema(
    [
        *((name, pa.utf8()) for name in KEYS[:2]),
        *((name, pa.int64()) for name in (*KEYS[2:], "count", "max_ms")),
        ("text", pa.utf8()),
        ("data", pa.binary()),
    ]
)
TALLIED = (
    *("accepted", "delivered", "pending", "cancelled", "dead", "expired", "lost", "undecided"),
    *("overdue", "repeated", "late"),
)
"""The classes of a tally: accepted messages, what became of them, and some kinds of problems."""


def rows(what: str, number: int, **columns: Any) -> pa.Table:
    """Rows of ``JUDGED_ARROW``. A text stands for all rows; a missing column is null."""
    columns["what"] = what
    arrays = []
    for field in JUDGED_ARROW:
        values = columns.get(field.name)
        if values is None or isinstance(values, str):
            arrays.append(pa.repeat(pa.scalar(values, field.type), number))
        else:
            arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=JUDGED_ARROW)


def problem_rows(problems: Sequence[Problem]) -> pa.Table:
    """Problems as rows, at least one."""
    names = pa.array([problem.kind for problem in problems])
    text = pa.array([problem.to_json() for problem in problems])
    return rows("problem", len(problems), name=names, text=text)


def counts(what: str, numbers: Mapping[str, int]) -> pa.Table:
    names = pa.array(list(numbers), pa.utf8())
    return rows(what, len(numbers), name=names, count=pa.array(numbers.values(), pa.int64()))


def tally(
    topic: npt.NDArray[np.uint32], bucket_ms: Int64s, counted: Mapping[str, npt.NDArray[Any]]
) -> Iterator[pa.Table]:
    """Count messages; arrays have shape (messages,). ``counted``: by a name in ``TALLIED``, how
    often each message counts."""
    classes = {name: often.astype(np.int64) for name, often in counted.items()}
    sums = _grouped(pa.table({"topic": topic, "bucket_ms": bucket_ms, **classes}), KEYS[2:4])
    for name in classes:
        part = sums.filter(pc.field(name) > 0)
        topics, buckets = part["topic"].cast(pa.int64()), part["bucket_ms"]
        yield rows("tally", len(part), name=name, topic=topics, bucket_ms=buckets, count=part[name])


def lateness(
    topic: npt.NDArray[np.uint32], bucket_ms: Int64s, late_ms: Int64s
) -> Iterator[pa.Table]:
    """The histograms of messages; arrays have shape (messages,)."""
    # Most messages share a bar with others: what follows works on the bars alone.
    whole = pa.table(
        {
            "topic": topic.astype(np.int64),
            "bucket_ms": bucket_ms,
            "late_ms": rounded(late_ms),
            "count": np.ones(len(topic), np.int64),
            "max_ms": late_ms,
        }
    )
    histogram = _grouped(whole, KEYS[2:])
    bars = {name: histogram[name] for name in ("late_ms", "count", "max_ms")}
    yield rows("late", len(histogram), **bars)
    yield rows("late", len(histogram), topic=histogram["topic"], **bars)
    yield rows("late", len(histogram), bucket_ms=histogram["bucket_ms"], **bars)


def rounded(lateness: Int64s) -> Int64s:
    result = lateness.copy()
    large = np.flatnonzero(lateness > EXACT_MS)
    if len(large):
        values = lateness[large]
        unit = 10 ** np.maximum(np.floor(np.log10(values)).astype(np.int64) - 2, 0)
        result[large] = values // unit * unit
    return result


def total(tables: Iterable[pa.Table]) -> pa.Table:
    """Sum the rows with equal ``KEYS`` of at least one table. Neither problems nor messages with
    names may be among them."""
    sums = _grouped(pa.concat_tables(tables).drop_columns(["text", "data"]), KEYS)
    for name in ("text", "data"):
        sums = sums.append_column(name, pa.nulls(len(sums), JUDGED_ARROW.field(name).type))
    return sums


def _grouped(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """All other columns summed by ``keys``, but of ``max_ms`` the largest."""
    others = [name for name in table.column_names if name not in keys]
    how = [(name, "max" if name == "max_ms" else "sum") for name in others]
    sums = table.group_by(list(keys), use_threads=False).aggregate(how)
    return sums.rename_columns([*keys, *others])
