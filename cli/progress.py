"""How far a command has come, for who watches it.

Apart from ``printing``, which more commands need: ``rich.progress`` takes time to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


@contextmanager
def progress_bar(
    what: str, total: int, *columns: ProgressColumn, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if somebody watches. Gives what to call with how much was done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _done: None
        return
    every = (TextColumn("{task.description}"), BarColumn(), *columns)
    with Progress(*every, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
