"""Parameters of a question: how each way in writes what one struct declares.

Theory: a question (which letters, which events, which pending messages) is declared once, as a
struct in the room that answers it: fields with a type, bounds, a default and the text below them.
The options of commands, the queries of URLs, the forms of the console and the description of the
API are derived from it. Otherwise an option would take what the API refuses, and two errors about
one mistake would name two limits.

Example: ``from_ms: Instant | None = None`` is the option ``--from`` and the field ``due_from`` of a
form, where people write ``-10m``, and the parameter ``from_ms`` of a URL, where programs write
``1790000000000``. In each of them 1790000000, which is in seconds, gets the same error.

Rules
- How a value is written stands at its type (``Written``), and nowhere else.
- The first sentence of a field's text is for every way in; what follows is for programs.
- An error names the value, the limit and the remedy. The way in adds where the value stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from ..wheel.texts import is_utf8
from .fieldtexts import texts_of
from .levels import check_times
from .written import WayIn, Written, unusable, whole_number

_TRUTH = {"true": True, "false": False}
_CHOOSE = "Write one of these"


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody asks for. Each way in has it checked before it is answered."""

    def check(self) -> None:
        """Errors: ``InvalidConfiguration``: a text is no UTF-8, which a command line may have; as
        of ``check_times``, of ``from_ms`` and ``to_ms``, where it has these."""
        for text in _texts_among(msgspec.structs.astuple(self)):
            if not is_utf8(text):
                raise unusable(
                    "a text that is no UTF-8", text, "UTF-8", "Leave it out: no message has it"
                )
        check_times(getattr(self, "from_ms", None), getattr(self, "to_ms", None))


def _texts_among(values: tuple[Any, ...]) -> Iterator[str]:
    """The texts among values, and among the values of tuples inside."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from _texts_among(value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of a question. ``field``: its name in the struct, ``name``: for programs; ``kind``:
    the type of one value; ``several``: it may be given several times; ``bounds``: of a number;
    ``choices``: all values that it may have, by their texts; empty: any; ``text``: what stands
    below the field."""

    field: str
    name: str
    kind: Any
    written: Written
    several: bool
    bounds: Meta | None
    choices: Mapping[str, Any]
    default: Any
    text: str

    @property
    def typed_name(self) -> str:
        """The name for people: without the unit, which they write with the value."""
        return self.name.removesuffix(self.written.unit)

    @property
    def value_name(self) -> str:
        if self.kind in (int, float) and not self.written.value_name:
            return "N"
        return self.written.value_name or self.name.rpartition("_")[2].upper()

    @property
    def default_text(self) -> str:
        """What holds where the field is left out, as its text says it; empty: it says nothing."""
        return self.text.partition(". Null: ")[2].removesuffix(".")

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of what a program writes."""
        kind = self._bounded
        if self.choices:
            kind = Literal[tuple(self.choices)]
        elif self.written.read is not None and not self.written.unit:
            kind = str
        schema = msgspec.json.schema(kind)
        if self.several:
            schema = {"type": "array", "items": schema}
        return {**schema, "default": self.default}

    @property
    def _bounded(self) -> Any:
        return self.kind if self.bounds is None else Annotated[self.kind, self.bounds]

    def read(self, text: str, way: WayIn) -> Any:
        """The value that a text stands for. Errors: ``InvalidConfiguration``, or as the type's own
        reader has it: the text is none, or the value is out of its bounds."""
        if self.written.read is not None:
            value = self.written.read(text, way)
        elif self.choices:
            if text not in self.choices:
                raise unusable("not one of the choices", text, ", ".join(self.choices), _CHOOSE)
            return self.choices[text]
        elif self.kind is int:
            value = whole_number(text)
        elif self.kind is float:
            value = _number(text)
        elif self.kind is bool:
            if text not in _TRUTH:
                raise unusable("neither true nor false", text, "true or false", _CHOOSE)
            return _TRUTH[text]
        else:
            return text
        self.check(value, text)
        return value

    def check(self, value: Any, text: str) -> None:
        """Errors: ``InvalidConfiguration``: a number that is out of the bounds. ``text``: as it was
        written."""
        if self.bounds is None:
            return
        try:
            msgspec.convert(value, self._bounded)
        except msgspec.ValidationError:
            limit = self._bounds_text
            raise unusable("a number out of its bounds", text, limit, "Give another") from None

    @property
    def _bounds_text(self) -> str:
        assert self.bounds is not None
        low, above, high, below = (getattr(self.bounds, name) for name in ("ge", "gt", "le", "lt"))
        high, unit = below - 1 if below is not None else high, self.written.unit.lstrip("_")
        first = f"above {above:g}, up to" if above is not None else f"{low} to"
        return f"{first} {high:g}" if self.kind is float else f"{first} {high} {unit}".rstrip()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise unusable("not a number", text, "a number as 10 or 0.5", "Write it so") from None


@cache
def parameters_of(kind: type[msgspec.Struct]) -> dict[str, Parameter]:
    """The fields of a question by their names for programs, in their order. Any of them may be left
    out: a field without a default value, such as a data directory, is where is looked, and no
    parameter."""
    hints = get_type_hints(kind, include_extras=True)
    texts = texts_of(kind)
    parameters = {}
    for declared in msgspec.structs.fields(kind):
        if declared.default is msgspec.NODEFAULT:
            continue
        inner, several, annotations = _value_type(hints[declared.name])
        bounds = next((note for note in annotations if isinstance(note, Meta)), None)
        written = next((note for note in annotations if isinstance(note, Written)), Written())
        choices: dict[str, Any] = {}
        if get_origin(inner) is Literal:
            choices = {value: value for value in get_args(inner)}
        elif isinstance(inner, type) and issubclass(inner, Enum):
            choices = {value.value: value for value in inner}
        assert choices or written.read or inner in (str, int, bool, float), (kind, declared.name)
        parameters[declared.encode_name] = Parameter(
            field=declared.name,
            name=declared.encode_name,
            kind=inner,
            written=written,
            several=several,
            bounds=bounds,
            choices=choices,
            default=declared.default,
            text=texts.get(declared.name, ""),
        )
    return parameters


def query_of(question: Question) -> str:
    """The query of a URL in which a program asks this, as ``Parameter.read`` reads it. Errors:
    ``InvalidConfiguration``: a header whose name has a colon, which would be read as another
    header."""
    pairs: list[tuple[str, str]] = []
    for name, parameter in parameters_of(type(question)).items():
        value = getattr(question, parameter.field)
        if parameter.written.in_queries and value != parameter.default:
            values = value if parameter.several else (value,)
            pairs += [(name, _text_of(each)) for each in values]
    return urlencode(pairs, errors="surrogateescape")


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Enum):
        return str(value.value)
    if type(value) is tuple:  # a name and its value
        name, between = value[0], WayIn().between
        if between in name:
            raise unusable(
                "a header of this name cannot be asked for in a URL",
                name,
                f"a name without {between!r}",
                "Ask for it at the gateway of each wheel",
            )
        return between.join(map(_text_of, value))
    return str(value)


def _value_type(hint: Any) -> tuple[Any, bool, list[Any]]:
    """The type of one value, whether there may be several, and the annotations."""
    several, annotations = False, list[Any]()
    while True:
        origin = get_origin(hint)
        if origin in (Union, UnionType):
            (hint,) = (inner for inner in get_args(hint) if inner is not NoneType)
        elif origin is Annotated:
            hint, *more = get_args(hint)
            annotations += more
        elif origin is tuple and Ellipsis in get_args(hint):
            hint, several = get_args(hint)[0], True
        else:
            return hint, several, annotations
