"""docs/operations.md holds every command and every option with its default, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from slotwheel.cli import main

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")
ROW = re.compile(r"^\| `(--[a-z-]+)([^`]*)` \| ([^|]*) \| (.*) \|$", re.MULTILINE)


def all_commands() -> dict[str, click.Command]:
    """By the words after ``slotwheel``."""
    context = click.Context(main.cli)
    found: dict[str, click.Command] = {}
    for name in main.cli.list_commands(context):
        command = main.cli.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
    return found


COMMANDS = all_commands()


def sections() -> dict[str, str]:
    """The text under each command's heading."""
    parts = re.split(r"^### slotwheel (.*)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def default_of(option: click.Option) -> str:
    """What the table's middle column has to say."""
    if option.required:
        return "required"
    if option.is_flag:
        return "off"
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    # What is not set is None, an empty tuple or a marker of click's own, by its version.
    return f"`{option.default}`" if isinstance(option.default, str | int | float) else ""


def options_of(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


def test_every_command_has_a_section_and_no_other_has() -> None:
    assert set(sections()) == set(COMMANDS)
    assert len(sections()) == len(re.findall(r"^### slotwheel ", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_table_with_its_default(name: str) -> None:
    rows = {match[1]: match for match in ROW.finditer(sections()[name])}
    options = {max(one.opts, key=len): one for one in options_of(COMMANDS[name])}
    assert list(rows) == list(options), "the same options, in the same order"
    for flag, option in options.items():
        _, metavar, default, text = rows[flag].groups()
        assert default.strip() == default_of(option), flag
        assert bool(metavar.strip()) != bool(option.is_flag), flag
        assert len(text) >= 10, flag


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_in_the_usage(name: str) -> None:
    command = COMMANDS[name]
    usage = [
        one.make_metavar(click.Context(command))
        for one in command.params
        if isinstance(one, click.Argument)
    ]
    assert f"`{' '.join(['slotwheel', name, *usage])}`" in sections()[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_explains_itself(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for option in options_of(command):
        assert option.help, option.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_page_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*name.split(), "--help"]) == 0
    assert f"Usage: slotwheel {name}" in capsys.readouterr().out


def test_a_missing_row_would_be_noticed() -> None:
    """The test above is worth something only if its pattern finds all rows there are."""
    assert len(ROW.findall(PAGE)) == len(re.findall(r"^\| `--", PAGE, re.MULTILINE))
