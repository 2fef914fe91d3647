"""Progress bars of commands.

Most commands run in a script, where nobody sees a bar, so ``rich`` is loaded when one is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def bars(*columns: str, console: Console | None = None, quiet: bool = False) -> Progress:
    """Bars on stderr (or ``console``), removed at the end; none unless it is a terminal.
    ``columns`` stand behind each bar: ``count``, ``elapsed``, ``size``, ``speed``, or a text."""
    from rich import progress as rich
    from rich.console import Console

    kinds = {
        "count": rich.MofNCompleteColumn,
        "elapsed": rich.TimeElapsedColumn,
        "size": rich.DownloadColumn,
        "speed": rich.TransferSpeedColumn,
    }
    further = [
        kinds[column]() if column in kinds else rich.TextColumn(column) for column in columns
    ]
    all_columns = (rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), *further)
    console = console or Console(stderr=True)
    hidden = quiet or not console.is_terminal
    return rich.Progress(*all_columns, console=console, transient=True, disable=hidden)


@contextmanager
def progress_bar(
    description: str, total: int | None, *columns: str, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """One bar, with ``columns`` as of ``bars``. Gives a function to call with each amount done."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with bars(*columns) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)
