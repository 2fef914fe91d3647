"""The options of commands that ask a question stay as they are: they are derived from its
struct, where another type or another name would change them unseen."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from slotwheel.cli import main

PAGE = Path(__file__).with_name("help_of_questions.txt")
AGAIN = "from test_help_of_questions import help_lines as h; print(*h(), sep='\\n')"
COMMANDS = ("search", "cancel", "trace", "dead", "audit")


def help_lines() -> Iterator[str]:
    """A line for each option: command, flag, form of the value, default and text."""
    root = click.Context(main.cli)
    for name in COMMANDS:
        command = main.cli.get_command(root, name)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        for word, one in inner.items():
            context = click.Context(one, info_name=f"{name} {word}".strip(), show_default=True)
            for option in one.params:
                record = option.get_help_record(context)
                if record is not None:
                    flag, text = (inspect.cleandoc(part).replace("\n", " ") for part in record)
                    yield f"{context.info_name}  {flag}  {text}"


def test_options_of_questions_are_those_that_were_checked_in() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    assert lines == list(help_lines()), f"in tests/cli, write it again: {AGAIN} > {PAGE.name}"
