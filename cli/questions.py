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
from .shared import F, combined

Q = TypeVar("Q", bound=Question)


class _Typed(click.types.StringParamType):
    """Reads a value as URLs and forms do, so that a mistake gets the same error in each of them."""

    parameter: Parameter

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parameter.read(value, WayIn(clock_ms(), between="="))
        except SlotwheelError as error:
            raise click.BadParameter(str(error), ctx, param) from None


class _TypedChoice(_Typed, click.Choice):  # type: ignore[type-arg]
    pass


class _TypedInteger(_Typed, click.IntRange):
    pass


class _TypedNumber(_Typed, click.FloatRange):
    pass


def question_options(kind: type[Question], *fields: str, **defaults: Any) -> Callable[[F], F]:
    """A decorator that adds an option for each of ``fields``, or for all that ``kind`` itself
    declares. The command gets the values by the fields' names, for ``question_of``. ``defaults``:
    defaults by field, where they differ from those of ``kind``."""
    parameters = {parameter.field: parameter for parameter in parameters_of(kind).values()}
    return combined(
        *(_option(parameters[name], defaults) for name in fields or kind.__annotations__)
    )


def question_of(kind: type[Q], options: Mapping[str, Any], **further: Any) -> Q:
    """The question that a command's options ask; an option that was not given has the default of
    its field. ``options`` may hold others; ``further``: fields without an option. Errors: as of
    ``Question.check``."""
    fields = [parameter.field for parameter in parameters_of(kind).values()]
    given = {name: options[name] for name in fields if not _is_absent(options.get(name))}
    question = kind(**given, **further)
    question.check()
    return question


def _is_absent(value: Any) -> bool:
    return value is None or value is False or value == ()


def _option(parameter: Parameter, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    text = parameter.text.partition(". ")[0]
    text = text.removesuffix(".") + ("; also +10m or -10m." * (parameter.written == INSTANT) or ".")
    default = defaults.get(parameter.field, parameter.default)
    if default is None and parameter.default_text:
        text += f" [default: {parameter.default_text}]"
    if parameter.written == SPAN:
        default = written_span(default)
    attributes: dict[str, Any] = {} if default in (None, (), "") else {"default": default}
    if parameter.kind is bool:
        attributes = {"is_flag": True}
    else:
        attributes |= {"type": _type_of(parameter), "multiple": parameter.several}
        attributes["metavar"] = None if parameter.choices else parameter.value_name
    flag = "--" + parameter.typed_name.replace("_", "-")
    return click.option(flag, parameter.field, help=text, **attributes)


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
