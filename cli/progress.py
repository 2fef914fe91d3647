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
    ``columns`` stand behind a bar: ``count``, ``elapsed``, ``size``, ``speed``, or a text."""
    from rich import progress as rich
    from rich.console import Console

    kinds = {
        "count": rich.MofNCompleteColumn,
        "elapsed": rich.TimeElapsedColumn,
        "size": rich.DownloadColumn,
        "speed": rich.TransferSpeedColumn,
    }
    behind = [kinds[one]() if one in kinds else rich.TextColumn(one) for one in columns]
    every = (rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), *behind)
    console = console or Console(stderr=True)
    hidden = quiet or not console.is_terminal
    return rich.Progress(*every, console=console, transient=True, disable=hidden)


@contextmanager
def progress_bar(
    what: str, total: int | None, *columns: str, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """One bar, with ``columns`` as of ``bars``. Gives a function to call with how much was done."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with bars(*columns) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.advance(task, done)
