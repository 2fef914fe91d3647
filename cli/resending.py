"""Asking before messages are sent, cancelled or deleted, and ending in good order meanwhile."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from .terminal import echo

_PARTICIPLES = {"send": "sent", "cancel": "cancelled", "delete": "deleted"}


def confirmed(verb: str, *, yes: bool) -> bool:
    """Ask the user, unless ``yes``, and print that nothing was done if the answer is no. ``verb``:
    of ``_PARTICIPLES``. Errors: ``click.UsageError`` when stdin is no terminal."""
    done = _PARTICIPLES[verb]
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(
            f"Nothing was {done}: there is nobody to ask. Give --yes to {verb} them."
        )
    if yes or click.confirm(f"{verb.capitalize()} them?", err=True):
        return True
    echo(f"Nothing was {done}.", err=True)
    return False


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is like Ctrl-C in this block: the command still reports how far it came."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
