"""What every command does that sends messages once more: it asks first, and ends in good order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

_DONE = {"send": "sent", "cancel": "cancelled", "delete": "deleted"}


def confirmed(what: str = "send") -> bool:
    """Ask the user whether to do it: ``what`` is done to messages. Errors: ``click.UsageError``
    when stdin is no terminal."""
    if not sys.stdin.isatty():
        done = _DONE[what]
        raise click.UsageError(
            f"Nothing was {done}: there is nobody to ask. Give --yes to {what} them."
        )
    return click.confirm(f"{what.capitalize()} them?", err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is like Ctrl-C in here: the command has to report how far it came."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
