"""Prints fields (``fields.py``) as text for people or as JSON for programs, and tables as text.

Times are ISO 8601 in text. A closed pipe (``| head``) ends the command quietly.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ..reading.messagefields import Fields
from ..wheel.texts import time_text, visible_text
from .terminal import echo

_TEXT_MAX = 60
_WIDE = 1000


def text_line(fields: Fields) -> str:
    """The fields in one line: ``offset 3  due 2026-11-20T18:00:00.000Z  value 'hello'``."""
    parts = []
    for name, value in fields.items():
        if name.endswith("_ms") and isinstance(value, int) and name != "lateness_ms":
            parts.append(f"{name.removesuffix('_ms')} {time_text(value) if value >= 0 else value}")
        elif name == "headers":
            pairs = [f"{header['key']}={header_text(header)}" for header in value]
            parts += [f"headers {_short(' '.join(pairs))}"] if pairs else []
        elif name.startswith(("key", "value")) and isinstance(value, str):
            parts.append(f"{name} {_short(value)}")
        elif value is not None:
            parts.append(f"{name} {visible_text(str(value))}")
    return "  ".join(parts)


def header_text(header: Fields) -> str:
    """A header's value, as text or in base64."""
    return str(next(text for name, text in header.items() if name != "key"))


def _short(text: str) -> str:
    cut = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
    return f"'{visible_text(cut)}'"


class _Full(Exception):
    """A record comes that is beyond the limit."""


class Listing:
    """Prints records up to a limit. ``limit`` 0: no limit."""

    def __init__(self, as_json: bool, limit: int = 0) -> None:
        self._as_json = as_json
        self._limit = limit
        self._count = 0

    def record(self, fields: Fields, indent: str = "") -> None:
        """Print one record. At the first one beyond the limit, ``listing`` ends its block."""
        if self._limit and self._count == self._limit:
            raise _Full
        self._count += 1
        self.line(fields, indent)

    def line(self, fields: Fields, indent: str = "") -> None:
        """Print a line that the limit does not count."""
        text = json.dumps(fields) if self._as_json else indent + text_line(fields)
        sys.stdout.write(text + "\n")


@contextmanager
def listing(as_json: bool, limit: int, noun: str) -> Iterator[Listing]:
    """Give a ``Listing``. The first record beyond ``limit`` ends the block, and a line says so, in
    which ``noun`` names the records. What stands behind the loop is not printed then."""
    with quiet_pipe():
        try:
            yield Listing(as_json, limit)
        except _Full:
            echo(f"stopped after {limit} {noun}; --limit 0 prints all", err=True)


def print_table(
    rows: Iterable[Sequence[str]], columns: str, headings: Sequence[str] | None = None
) -> None:
    """Print cells, in each ``visible_text``. ``columns``: "l" or "r" for each, left or right. Only
    on a terminal may a row be too long: there a cell is cut in a table with headings, and wrapped
    in one without."""
    from rich.console import Console  # a slow import, which most commands do not need
    from rich.table import Table

    table = Table(box=None, show_header=headings is not None, pad_edge=False)
    for side, heading in zip(columns, headings or columns, strict=True):
        table.add_column(
            heading, justify="right" if side == "r" else "left", no_wrap=bool(headings)
        )
    for row in rows:
        table.add_row(*map(visible_text, row))
    width = None if sys.stdout.isatty() else _WIDE
    Console(width=width, highlight=False, markup=False).print(table)


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the block without an error when no process reads the output any more."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
