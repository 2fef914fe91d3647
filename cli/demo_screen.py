"""What the demo shows while it runs."""

from __future__ import annotations

import time
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_LINE_EVERY_S = 2.5


class Screen:
    """Two bars on a terminal; in a file or a pipe the same as a line every few seconds."""

    def __init__(self, total: int, wanted: int, *, quiet: bool) -> None:
        self._console = Console(stderr=quiet, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._bars: Progress | None = None
        self._wanted = wanted
        self._next_line = 0.0
        self._tasks: dict[str, TaskID] = {}
        self._stack = ExitStack()
        if self._console.is_terminal and not quiet:
            columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn())
            self._bars = Progress(
                *columns, TextColumn("{task.fields[note]}"), console=self._console
            )
            self._tasks["sent"] = self._bars.add_task("scheduled", total=total, note="")
            self._tasks["arrived"] = self._bars.add_task("arrived", total=wanted, note="")

    def __enter__(self) -> Screen:
        if self._bars is not None:
            self._stack.enter_context(self._bars)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def event(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, markup=False)

    def counts(self, sent: int, arrived: int, cancelled: int) -> None:
        if self._bars is None:
            if time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + _LINE_EVERY_S
                self.event(f"scheduled {sent:,}, arrived {arrived:,}")
        else:
            note = f"{cancelled:,} cancelled" if cancelled else ""
            self._bars.update(self._tasks["sent"], completed=sent)
            self._bars.update(
                self._tasks["arrived"],
                completed=arrived,
                total=self._wanted - cancelled,
                note=note,
            )
