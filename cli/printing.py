"""How rows and records are printed: the same fields as text for people and as JSON for programs.

Rules
- Bytes that are UTF-8 are printed as text; others as base64, under a name that says so
  (``value_base64``). Null stays null, so that it differs from empty.
- Times are milliseconds since the epoch in JSON (``due_ms``), ISO 8601 in text.
- Whoever stops reading (``| head``) ends the command quietly.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from ..wheel.schema import times
from ..wheel.texts import time_text

Fields = dict[str, Any]

_TEXT_MAX = 60
_WIDE = 1000


def content(name: str, value: bytes | None) -> Fields:
    """A binary value as fields: ``{name: text}`` or ``{name_base64: text}``."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def message_fields(batch: pa.RecordBatch) -> Iterator[Fields]:
    """Partition, key, value and headers of each row of a slot file, a journal or a topic."""
    names = ("partition", "key", "value", "headers")
    columns = [batch.column(name).to_pylist() for name in names]
    for partition, key, value, headers in zip(*columns, strict=True):
        yield {
            **({} if partition is None else {"partition": partition}),
            **content("key", key),
            **content("value", value),
            "headers": [{"key": one["key"], **content("value", one["value"])} for one in headers],
        }


def row_fields(batch: pa.RecordBatch, base_offset: int | None = None) -> Iterator[Fields]:
    """Each row of a slot file; of a journal entry (no offset column) with its ``base_offset``."""
    if base_offset is None:
        offsets: Sequence[int] = times(batch, "offset").tolist()
    else:
        offsets = range(base_offset, base_offset + batch.num_rows)
    columns = (
        times(batch, "due").tolist(),
        times(batch, "created").tolist(),
        batch.column("cancels").to_pylist(),
        batch.column("topic").to_pylist(),
    )
    rows = zip(offsets, *columns, message_fields(batch), strict=True)
    for offset, due, created, cancels, topic, message in rows:
        fields = {"offset": offset, "due_ms": due, "created_ms": created}
        if cancels is not None:
            yield {**fields, "cancels": cancels}
        else:
            yield {**fields, "topic": topic, **message}


def text_line(fields: Fields) -> str:
    """The fields in one line: ``offset 3  due 2026-11-20T18:00:00.000Z  value 'hello'``."""
    parts = []
    for name, value in fields.items():
        if name.endswith("_ms") and isinstance(value, int) and name != "lateness_ms":
            parts.append(f"{name.removesuffix('_ms')} {time_text(value) if value >= 0 else value}")
        elif name == "headers":
            pairs = [
                f"{one['key']}={next(v for k, v in one.items() if k != 'key')}" for one in value
            ]
            parts += [f"headers {_short(' '.join(pairs))}"] if pairs else []
        elif name.startswith(("key", "value")) and isinstance(value, str):
            parts.append(f"{name} {_short(value)}")
        elif value is not None:
            parts.append(f"{name} {value}")
    return "  ".join(parts)


def _short(text: str) -> str:
    cut = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
    return repr(cut)


class Printer:
    """Prints records up to a limit. ``limit`` 0: no limit."""

    def __init__(self, as_json: bool, limit: int = 0) -> None:
        self._as_json = as_json
        self._limit = limit
        self.count = 0

    @property
    def full(self) -> bool:
        return bool(self._limit) and self.count >= self._limit

    def record(self, fields: Fields, indent: str = "") -> bool:
        """Print one; False when the limit is reached and it was left out."""
        if self.full:
            return False
        self.count += 1
        self.line(fields, indent)
        return True

    def line(self, fields: Fields, indent: str = "") -> None:
        """Print something that does not count."""
        sys.stdout.write(
            (json.dumps(fields) if self._as_json else indent + text_line(fields)) + "\n"
        )

    def left_out(self, what: str) -> None:
        click.echo(f"stopped after {self._limit} {what}; --limit 0 prints all", err=True)


def print_table(
    rows: Iterable[Sequence[str]], columns: str, headings: Sequence[str] | None = None
) -> None:
    """``columns``: "l" or "r" for each, left or right. Only a terminal is too narrow for a row;
    there a cell is cut in a table with headings, and goes on in the next line in one without."""
    table = Table(box=None, show_header=headings is not None, pad_edge=False)
    for side, heading in zip(columns, headings or columns, strict=True):
        table.add_column(
            heading, justify="right" if side == "r" else "left", no_wrap=bool(headings)
        )
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else _WIDE
    Console(width=width, highlight=False, markup=False).print(table)


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the block without an error when nobody reads our output any more."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end; that must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
