"""Options of a command from the class of its settings: each field declares its own (``setting`` in
``wheel/config.py``), and so stands in the help page, in a file and in a variable alike.

Example: ``tail_age_ms: int = setting("tail-age", "Spill …", default=10_000)`` becomes the option
``--tail-age SPAN`` with the default ``10000ms``; ``--tail-age 5s`` makes the field 5000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import click

from ..node.logs import FORMATS, LEVELS
from ..wheel.config import Setting, settings_of
from .shared import (
    F,
    data_mode_option,
    host_name,
    kafka_option,
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
_ALIKE: dict[str, Callable[[Any], Any]] = {"kafka": kafka_option, "data-mode": data_mode_option}


def options_of(*kinds: type) -> Callable[[F], F]:
    """A decorator: the options of the fields of these classes, in their order. A parameter has the
    name of its field; classes whose fields have the same names cannot share a command."""

    def decorate(function: F) -> F:
        for kind in reversed(kinds):
            types, by_name = get_type_hints(kind), settings_of(kind)
            for made in reversed(fields(kind)):
                if made.name in by_name:
                    function = _option(made, types[made.name], by_name[made.name])(function)
        return function

    return decorate


def values_of(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of a class that a command was given, times in ms. A field that was not given
    is left out, and so has its default."""
    return {
        name: span_ms(given[name]) if isinstance(given[name], timedelta) else given[name]
        for name in settings_of(kind)
        if given[name] is not None
    }


def _option(made: Field[Any], hint: Any, declared: Setting) -> Callable[[F], F]:
    if declared.option in _ALIKE:
        return _alike(made.name, _ALIKE[declared.option])
    more: dict[str, Any] = {}
    many = hint in (tuple[str, ...], dict[str, str]) and declared.kind != "nodes"
    if hint is bool:
        more["is_flag"] = True
    elif made.default is MISSING and made.default_factory is MISSING:
        more["required"] = True
    elif made.default is not MISSING and made.default:
        in_ms = f"{made.default}ms" if made.name.endswith("_ms") else made.default
        more["default"] = declared.shown or in_ms
    return click.option(
        f"--{declared.option}",
        made.name,
        type=_type(made.name, hint, declared),
        multiple=many,
        metavar=declared.metavar,
        help=declared.help,
        **more,
    )


def _alike(name: str, option: Callable[[Any], Any]) -> Callable[[F], F]:
    """An option that many commands have, under the field's name."""

    def decorate(function: Any) -> Any:
        decorated = option(function)
        decorated.__click_params__[-1].name = name
        return decorated

    return decorate


def _type(name: str, hint: Any, declared: Setting) -> Any:
    if declared.choices:
        return click.Choice(declared.choices)
    if declared.kind:
        return KINDS[declared.kind]
    if name.endswith("_ms"):
        return span
    if "bytes" in name:
        return size
    if hint is int:
        return click.IntRange(min=declared.least)
    if hint in (Path, Path | None):
        return click.Path(file_okay=False, path_type=Path)
    return None
