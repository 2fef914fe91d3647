"""A file of settings for ``slotwheel node``: TOML with the names of its options.

    data = "/var/lib/slotwheel"
    tail-bytes = "64M"             # '-' and '_' mean the same

    [peers]                        # --peer ID=HOST:PORT
    a = "10.0.0.1:7200"

    [kafka]                        # --kafka NAME=VALUE
    security.protocol = "SSL"

Rules: a name that is no option is refused, with the nearest one that is; so a typing error never
means a default. The command line overrides a variable, and a variable the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from ..policy.policyset import PolicySet
from ..wheel.errors import InvalidConfiguration
from .invocation import long_name

CONFIG = "config"
TABLES = {"peers": "peer", "kafka": "kafka"}
"""The option that each table stands for: one that may be repeated reads better as a table."""


def read_settings(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Callback of an eager ``--config``: the file's values become the other options' defaults.

    Errors: ``InvalidConfiguration``, ``OSError``.
    """
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **load(path, ctx.command)}
    return path


def load(path: Path, command: click.Command) -> dict[str, Any]:
    """Values by the names of ``command``'s parameters. Errors: ``InvalidConfiguration``,
    ``OSError``."""
    try:
        fields = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(
            f"{path} is not TOML: {error}", remedy="Write name = value, texts in quotes"
        ) from None
    options = _options(command)
    values: dict[str, Any] = {}
    for written, value in fields.items():
        name = written.replace("_", "-")
        option = options.get(TABLES.get(name, name))
        if option is None or option.name is None:
            raise _unknown(path, written, options)
        if option.name in values:
            raise InvalidConfiguration(
                f"{path} has the same setting twice", got=written, remedy="Write it once"
            )
        values[option.name] = _value(path, written, value, option)
    return values


def _options(command: click.Command) -> dict[str, click.Option]:
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {long_name(option): option for option in options if option.name != CONFIG}


def _unknown(path: Path, name: str, options: Mapping[str, object]) -> InvalidConfiguration:
    names = sorted({*options, *TABLES})
    near = get_close_matches(name.replace("_", "-"), names, 1, 0.5)
    return InvalidConfiguration(
        f"no such setting in {path}",
        got=repr(name),
        limit="the options of 'slotwheel node'",
        remedy=f"Do you mean {near[0]!r}?" if near else "See 'slotwheel node --help'",
    )


def _value(path: Path, name: str, value: Any, option: click.Option) -> Any:
    if option.multiple:
        if isinstance(value, dict):
            return [f"{key}={text}" for key, text in _pairs(path, name, value)]
        if isinstance(value, list):
            return [_text(path, name, item) for item in value]
    return _text(path, name, value)


def _pairs(path: Path, name: str, table: Mapping[str, Any], prefix: str = "") -> Iterator[Any]:
    """Names and values of a table; to TOML, ``security.protocol`` is a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _pairs(path, name, value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(path, name, value)


def _text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidConfiguration(
        f"the setting {name!r} in {path} has a value that is no text and no number",
        got=type(value).__name__,
        remedy="Write it as on the command line, in quotes",
    )


def read_policies(path: Path) -> PolicySet:
    """A node's file of policies. Errors: ``InvalidConfiguration``, ``OSError``."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f"{path} is not UTF-8: {error}", remedy="Save it anew") from None
    return PolicySet.from_toml(text, str(path))
