"""Forms of questions, derived from the questions' structs.

Theory: a form has a field for each parameter of its question. Its name, its label, its placeholder
and the error about what was typed come from one ``FormField``; otherwise a page would label a field
*Meant for topic* and refuse its text as *For topic*. A text stays as it was typed, so that a page
shows it again beside what is wrong with it; an empty field sets no condition.

Example: dead letters are buried at a time, so their ``from_ms`` is the field ``buried_from``,
labelled *Buried from*, and their ``to_ms`` is ``buried_to``, labelled *Buried before*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from ...client.message import clock_ms
from ...policy.parameters import Parameter, Question, parameters_of
from ...policy.written import INSTANT, WayIn
from ...wheel.errors import SlotwheelError
from ..errors import from_slotwheel
from .parts import PartsQuery
from .shown import when

T = TypeVar("T", bound=Question)
_EXAMPLES = {"due": "+10m or 2026-05-31T18:30Z", "buried": "-1h or 2026-05-31T18:30Z"}
"""Times as they are typed, by what happens to messages at them."""


@dataclass(frozen=True, slots=True)
class FormField:
    """How people see a parameter of a question. ``placeholder``: how a value is written, or what an
    empty field stands for."""

    name: str
    label: str
    placeholder: str
    parameter: Parameter

    @property
    def is_time(self) -> bool:
        return self.parameter.written == INSTANT

    def read(self, text: str, now_ms: int) -> Any:
        """The value that was typed; None: the field is empty. Errors: ``HttpError`` 422 that
        names the label."""
        if self.is_time:
            return when(text, now_ms, self.label)
        if self.parameter.kind not in (str, bytes):
            text = text.strip()
        if not text:
            return None
        try:
            return self.parameter.read(text, WayIn(now_ms))
        except SlotwheelError as error:
            raise from_slotwheel(error, self.label) from None


class QuestionForm(PartsQuery, forbid_unknown_fields=True):
    """The texts that were typed into the form of a question. ``fields``: by their names."""

    fields: ClassVar[Mapping[str, FormField]]

    @classmethod
    def times(cls) -> tuple[str, ...]:
        return tuple(name for name, field in cls.fields.items() if field.is_time)

    def typed(self, name: str) -> str:
        """The text in a field."""
        return str(getattr(self, name))

    def given(self, question: type[Question]) -> dict[str, Any]:
        """The texts in the fields of ``question``, the form's own or one that this extends, for the
        address of another page."""
        shared = parameters_of(question)
        return {
            name: getattr(self, name)
            for name, field in self.fields.items()
            if field.parameter.name in shared
        }

    def question(self, kind: type[T], **more: Any) -> T:
        """The question that was typed. ``kind``: the form's struct, or one that extends it by
        ``more``. Errors: ``HttpError`` 422, as of ``FormField.read`` and ``Question.check``."""
        now_ms, values = clock_ms(), dict[str, Any]()
        for name, field in self.fields.items():
            value = getattr(self, name)
            if isinstance(value, str):
                value = field.read(value, now_ms)
            if value is not None:
                values[field.parameter.field] = (value,) if field.parameter.several else value
        question = kind(**values, **more)
        try:
            question.check()
        except SlotwheelError as error:
            raise from_slotwheel(error) from None
        return question


def form_of(
    name: str, asked: type[Question], happens: str, labels: Mapping[str, str], *more: str
) -> type[QuestionForm]:
    """The form of a question. ``happens``: one of ``_EXAMPLES``; ``labels``: of those parameters
    whose names are none; ``more``: further texts in the address of its page."""
    fields = [_field(parameter, happens, labels) for parameter in parameters_of(asked).values()]
    typed: list[tuple[str, type, Any]] = [
        (field.name, bool, False) if field.parameter.kind is bool else (field.name, str, "")
        for field in fields
    ]
    form = msgspec.defstruct(
        name,
        [*typed, *((extra, str, "") for extra in more)],
        bases=(QuestionForm,),
        namespace={"fields": {field.name: field for field in fields}},
        module=__name__,
        forbid_unknown_fields=True,
    )
    return cast("type[QuestionForm]", form)


def _field(parameter: Parameter, happens: str, labels: Mapping[str, str]) -> FormField:
    name, placeholder = parameter.name, parameter.default_text
    label = labels.get(name, name.replace("_", " ").capitalize())
    if parameter.written == INSTANT:
        name, placeholder = f"{happens}_{parameter.typed_name}", _EXAMPLES[happens]
        label = f"{happens.capitalize()} {'before' if name.endswith('_to') else 'from'}"
    elif "=" in parameter.value_name:  # a command line has an equals sign between the two
        placeholder = parameter.value_name.lower().replace("=", WayIn().between)
    return FormField(name, label, placeholder, parameter)
