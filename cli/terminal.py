"""Text on its way to a terminal."""

from __future__ import annotations

import click


def printable(text: str) -> str:
    """With control characters written as in Python: others chose the text, and a terminal would
    obey it."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines, each ``printable``: a node, a broker, or a file may have chosen any part of
    them. The only way by which a command prints text."""
    lines = ("\t".join(map(printable, one.split("\t"))) for one in str(text).split("\n"))
    click.echo("\n".join(lines), err=err, nl=nl)
