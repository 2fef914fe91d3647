"""Options of a command that asks a question, derived from the question's struct."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ..client.message import clock_ms
from ..policy.levels import written_span
from ..policy.parameters import Parameter, Question, parameters_of
from ..policy.written import INSTANT, SPAN, WayIn
from ..wheel.errors import SlotwheelError
from .shared import F

Q = TypeVar("Q", bound=Question)


class _Typed(click.types.StringParamType):
    """Reads a value as all ways in do, so that its error is the same in each of them."""

    parameter: Parameter

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parameter.read(value, WayIn(clock_ms(), between="="))
        except SlotwheelError as error:
            raise click.BadParameter(str(error), ctx, param) from None


class _TypedChoice(_Typed, click.Choice):  # type: ignore[type-arg]
    """Shows all values."""


class _TypedInteger(_Typed, click.IntRange):
    """Shows the bounds."""


class _TypedNumber(_Typed, click.FloatRange):
    """Shows the bounds."""


def question_options(kind: type[Question], *fields: str, **defaults: Any) -> Callable[[F], F]:
    """An option for each of ``fields``; without them for all that ``kind`` itself declares. The
    command gets the values by the fields' names, for ``question_of``. ``defaults``: of options
    whose default is another one than that of the field."""
    parameters = {parameter.field: parameter for parameter in parameters_of(kind).values()}
    options = [_option(parameters[name], defaults) for name in fields or kind.__annotations__]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def question_of(kind: type[Q], options: Mapping[str, Any], **more: Any) -> Q:
    """The question that was asked by options; what was not given has the default of its field. A
    flag can only be set. ``options``: also others, which are not looked at; ``more``: further
    fields. Errors: as of ``Question.check``."""
    fields = [parameter.field for parameter in parameters_of(kind).values()]
    given = {name: options[name] for name in fields if not _is_absent(options.get(name))}
    question = kind(**given, **more)
    question.check()
    return question


def _is_absent(value: Any) -> bool:
    return value is None or value is False or value == ()


def _option(parameter: Parameter, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    text, _, rest = parameter.text.partition(". ")
    text = text.removesuffix(".") + ("; also +10m or -10m." * (parameter.written == INSTANT) or ".")
    default = defaults.get(parameter.field, parameter.default)
    if default is None and rest.startswith("Null: "):
        text += f" [default: {rest.removeprefix('Null: ').removesuffix('.')}]"
    if parameter.written == SPAN:
        default = written_span(default)
    more: dict[str, Any] = {} if default in (None, (), "") else {"default": default}
    if parameter.kind is bool:
        more = {"is_flag": True}
    else:
        more |= {"type": _type_of(parameter), "multiple": parameter.several}
        more["metavar"] = None if parameter.choices else parameter.value_name
    flag = "--" + parameter.typed_name.replace("_", "-")
    return click.option(flag, parameter.field, help=text, **more)


def _type_of(parameter: Parameter) -> _Typed:
    bounds, kind = parameter.bounds, _Typed()
    if parameter.choices:
        kind = _TypedChoice([*parameter.choices])
    elif bounds is not None and not parameter.written.unit:
        ranges: Any = _TypedInteger if parameter.kind is int else _TypedNumber
        least = bounds.ge if bounds.gt is None else bounds.gt
        kind = ranges(least, bounds.le, min_open=bounds.gt is not None)
    kind.parameter = parameter
    return kind
