"""Progress bars of commands.

Apart from ``printing``, which more commands use: ``rich.progress`` takes time to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


def bars(*columns: ProgressColumn, console: Console | None = None, quiet: bool = False) -> Progress:
    """Bars on stderr (or ``console``), removed at the end; none unless it is a terminal."""
    console = console or Console(stderr=True)
    every = (TextColumn("{task.description}", markup=False), BarColumn(), *columns)
    hidden = quiet or not console.is_terminal
    return Progress(*every, console=console, transient=True, disable=hidden)


@contextmanager
def progress_bar(
    what: str, total: int | None, *columns: ProgressColumn, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """One bar. Gives a function to call with how much was done."""
    with bars(*columns, quiet=quiet) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.advance(task, done)
