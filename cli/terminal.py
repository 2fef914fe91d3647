"""Text on its way to a terminal."""

from __future__ import annotations

import click

from ..wheel.texts import shown_text


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines, each as ``shown_text``: a node, a broker or a file may have chosen any part of
    them, and a terminal would obey the codes in it. Commands print text by no other way."""
    click.echo(shown_text(str(text)), err=err, nl=nl)
