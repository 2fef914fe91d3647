"""Options of a command, derived from the class of its settings: a field declares its own
(``setting`` in ``wheel/config.py``), so the help page, a file and a variable cannot differ.

Example: ``tail_age_ms: int = setting("tail-age", "Spill …", default=10_000)`` becomes the option
``--tail-age SPAN`` with the default ``10000ms``; ``--tail-age 5s`` makes the field 5000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import click

from ..node.logs import FORMATS, LEVELS
from ..wheel.config import Setting, settings_of
from .shared import (
    DATA_MODE,
    KAFKA,
    F,
    combined,
    host_name,
    node_addresses,
    partitions,
    positive_span,
    retention,
    size,
    span,
    span_ms,
)

KINDS: dict[str, Any] = {
    "file": click.Path(exists=True, dir_okay=False, path_type=Path),
    "host name": host_name,
    "log format": click.Choice(FORMATS),
    "log level": click.Choice(LEVELS),
    "nodes": node_addresses,
    "partitions": partitions,
    "positive span": positive_span,
    "retention": retention,
    "size": size,
}
"""Option types of those settings whose field's type and unit do not say how a text is read."""
_COMMON = {"kafka": KAFKA, "data-mode": DATA_MODE}
"""Options whose settings leave type and help to ``shared``."""


def options_of(*kinds: type) -> Callable[[F], F]:
    """A decorator that adds the options of the fields of these classes, in their order. A parameter
    has the name of its field; classes whose fields have the same names cannot share a command."""
    return combined(*(option for kind in kinds for option in _options(kind)))


def values_of(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class that a command's options give, by name; times are in ms. A field whose
    option is None is left out, and so has its default."""
    return {
        name: span_ms(options[name]) if isinstance(options[name], timedelta) else options[name]
        for name in settings_of(kind)
        if options[name] is not None
    }


def _options(kind: type) -> Iterator[Callable[[F], F]]:
    hints, settings = get_type_hints(kind), settings_of(kind)
    for declared in fields(kind):
        if declared.name in settings:
            yield _option(declared, hints[declared.name], settings[declared.name])


def _option(declared: Field[Any], hint: Any, setting: Setting) -> Callable[[F], F]:
    name, default = declared.name, declared.default
    if setting.option in _COMMON:
        return click.option(f"--{setting.option}", name, **_COMMON[setting.option])
    attributes: dict[str, Any] = {}
    if hint is bool:
        attributes["is_flag"] = True
    elif default is MISSING and declared.default_factory is MISSING:
        attributes["required"] = True
    elif default is not MISSING and default:
        in_ms = f"{default}ms" if name.endswith("_ms") else default
        attributes["default"] = setting.shown or in_ms
    return click.option(
        f"--{setting.option}",
        name,
        type=_type(name, hint, setting),
        multiple=hint in (tuple[str, ...], dict[str, str]) and setting.kind != "nodes",
        metavar=setting.metavar,
        help=setting.help,
        **attributes,
    )


def _type(name: str, hint: Any, setting: Setting) -> Any:
    if setting.choices:
        return click.Choice(setting.choices)
    if setting.kind:
        return KINDS[setting.kind]
    if name.endswith("_ms"):
        return span
    if "bytes" in name:
        return size
    if hint is int:
        return click.IntRange(min=setting.least)
    if hint in (Path, Path | None):
        return click.Path(file_okay=False, path_type=Path)
    return None
