"""The demo's output while it runs."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console

from ..progress import bars

_LINE_EVERY_S = 2.5


class Screen:
    """Two bars on a terminal; in a file or a pipe a line every few seconds."""

    def __init__(self, total: int, expected: int, *, quiet: bool) -> None:
        self._console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        self._bars = bars("count", "{task.fields[note]}", console=self._console, quiet=quiet)
        self._sent = self._bars.add_task("scheduled", total=total, note="")
        self._arrived = self._bars.add_task("arrived", total=expected, note="")
        self._expected = expected
        self._next_line = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def event(self, text: str) -> None:
        self._console.print(text, markup=False)

    def counts(self, sent: int, arrived: int, cancelled: int) -> None:
        note = f"{cancelled:,} cancelled" if cancelled else ""
        expected = self._expected - cancelled
        self._bars.update(self._sent, completed=sent)
        self._bars.update(self._arrived, completed=arrived, total=expected, note=note)
        if self._bars.disable and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self.event(f"scheduled {sent:,}, arrived {arrived:,}")
