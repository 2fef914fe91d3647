"""What a row says of the run of a schedule that it is, and whether its entry notes the same.

Theory: receivers read headers, and the wheel goes on by the note; where the two differ, one of them
is wrong.

*Example.* A row says that it is run 7 of ``beat``, and its entry notes run 8: the receiver waits
for run 8, and the wheel makes run 9.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from ..policy.schedules.runheaders import (
    NOMINAL_HEADER,
    PASSED_OVER_HEADER,
    RUN_HEADER,
    SCHEDULE_HEADER,
)
from ..wheel.rows import header_values
from ..wheel.schedules import FiredRun

_DIGITS_MAX = 18


class RunHeaders(NamedTuple):
    """The headers of a run: name of its schedule, number, nominal time in ms, missed runs before
    it. -1: the header is missing, or no number."""

    name: bytes
    number: int
    nominal_ms: int
    missed: int


def run_headers_of(rows: pa.RecordBatch) -> dict[int, RunHeaders]:
    """The headers of those rows (PAYLOAD or ROW schema) that are runs of schedules, by their
    numbers in the batch; mostly there are none."""
    names = _texts(rows, SCHEDULE_HEADER)
    if not names:
        return {}
    others = [_texts(rows, header) for header in (RUN_HEADER, NOMINAL_HEADER, PASSED_OVER_HEADER)]
    return {
        row: RunHeaders(name, *(_number(texts.get(row)) for texts in others))
        for row, name in names.items()
    }


def is_noted(row: RunHeaders | None, note: FiredRun) -> bool:
    """True if a note says the same as the headers of its row. None: the row has none."""
    return row == (note.name.encode(), note.number, note.nominal_ms, note.missed)


def _texts(rows: pa.RecordBatch, header: str) -> dict[int, bytes]:
    """The values of a header by the numbers of the rows that have it."""
    given = header_values(rows.column("headers"), header)
    if given is None:
        return {}
    at, values = given
    return {row: value or b"" for row, value in zip(at.tolist(), values.to_pylist(), strict=True)}


def _number(text: bytes | None) -> int:
    return int(text) if text and text.isdigit() and len(text) <= _DIGITS_MAX else -1
