"""Forms of questions, derived from the questions' structs.

A form has a field for each field of its question. What was typed stays a text, so that a page can
show it again beside what is wrong with it; an empty field sets no condition. A time is called by
what happens then: ``from_ms`` of letters is ``buried_from`` in a form, and *Buried from* in an
error.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class QuestionForm(PartsQuery, forbid_unknown_fields=True):
    """What was typed into the form of a question. ``asked``: the question's struct; ``happens``:
    what its times are the times of, such as ``due``."""

    asked: ClassVar[type[Question]]
    happens: ClassVar[str] = ""

    @classmethod
    def times(cls) -> tuple[str, ...]:
        """The names of the fields that are times."""
        fields = _fields(cls.asked, cls.happens)
        return tuple(name for name, parameter in fields if parameter.written == INSTANT)

    def typed(self, name: str) -> str:
        """The text in a field."""
        return str(getattr(self, name))

    def given(self, question: type[Question]) -> dict[str, Any]:
        """What stands in the fields of ``question``, which the form's own extends: parameters of
        the address of another page."""
        return {name: getattr(self, name) for name, _ in _fields(question, self.happens)}

    def question(self, kind: type[T], **more: Any) -> T:
        """The question that was typed. ``kind``: the form's struct, or one that extends it by
        ``more``. Errors: ``HttpError`` 422 with the field, as of ``Parameter.read``;
        as of ``Question.check``."""
        now_ms, values = clock_ms(), dict[str, Any]()
        for name, parameter in _fields(self.asked, self.happens):
            value = getattr(self, name)
            if isinstance(value, str):
                value = _read(name, parameter, value, now_ms)
            if value is not None:
                values[parameter.field] = (value,) if parameter.several else value
        question = kind(**values, **more)
        try:
            question.check()
        except SlotwheelError as error:
            raise from_slotwheel(error) from None
        return question


def form_of(name: str, asked: type[Question], happens: str = "", *more: str) -> type[QuestionForm]:
    """The form of a question. ``more``: further fields of it, which are texts."""
    fields: list[tuple[str, type, Any]] = [
        (field, bool, False) if parameter.kind is bool else (field, str, "")
        for field, parameter in _fields(asked, happens)
    ]
    made = msgspec.defstruct(
        name,
        [*fields, *((field, str, "") for field in more)],
        bases=(QuestionForm,),
        namespace={"asked": asked, "happens": happens},
        module=__name__,
        forbid_unknown_fields=True,
    )
    return cast("type[QuestionForm]", made)


def _fields(asked: type[Question], happens: str) -> Iterator[tuple[str, Parameter]]:
    """The names of a form's fields, and what they are in the question."""
    for parameter in parameters_of(asked).values():
        is_time = happens and parameter.written == INSTANT
        yield f"{happens}_{parameter.typed_name}" if is_time else parameter.name, parameter


def _read(name: str, parameter: Parameter, text: str, now_ms: int) -> Any:
    """The value of a field; None: nothing was typed."""
    words = name.replace("_", " ").capitalize()
    if parameter.written == INSTANT:
        return when(text, now_ms, words.removesuffix(" to") + " before" * words.endswith(" to"))
    if parameter.kind is not str and parameter.kind is not bytes:
        text = text.strip()
    if not text:
        return None
    try:
        return parameter.read(text, WayIn(now_ms))
    except SlotwheelError as error:
        raise from_slotwheel(error, words) from None
