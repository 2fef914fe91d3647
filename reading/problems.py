"""A ``Problem`` is a fault that a validator found, one row of one schema. An ``OpenPoint`` is what
nobody could decide: no fault, and not passed over in silence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

INTEGRITY, PLACEMENT, AGREEMENT = "integrity", "placement", "agreement"
CONSERVATION, PUNCTUALITY, ORDER = "conservation", "punctuality", "order"
VALIDATORS = (INTEGRITY, PLACEMENT, AGREEMENT, CONSERVATION, PUNCTUALITY, ORDER)

STRAY = "stray"
"""The kind of a problem that fails no proof: a file or folder that belongs to nothing, and that is
passed over."""

PROBLEM_ARROW = pa.schema(
    [
        *((name, pa.utf8()) for name in ("validator", "kind", "id")),
        *((name, pa.int64()) for name in ("offset", "due_ms")),
        ("file", pa.utf8()),
        ("position", pa.int64()),
        ("text", pa.utf8()),
    ]
)
"""The fields of ``Problem`` in its order."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``id``: of the message, empty for a fault of a file; ``file``: as in the layout,
    or empty; ``position``: byte in the file or position in the topic, -1: none."""

    validator: str
    """One of ``VALIDATORS``."""
    kind: str
    """A word or two by which problems are counted: "lost", "early", "damaged", ..."""
    text: str
    """A sentence: what was expected, and what was found."""
    id: str = ""
    offset: int = -1
    due_ms: int = -1
    file: str = ""
    position: int = -1

    def __str__(self) -> str:
        return f"{self.file}: {self.text}" if self.file else self.text

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Problem:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class OpenPoint:
    """Something that could not be decided, although no fault is known."""

    subject: str
    """The subject: an input, a file, a range of offsets."""
    reason: str
    """Why it could not be decided, and how much is affected."""
    remedy: str
    """The user's way to have it decided."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}. {self.remedy}"


def problem_batch(problems: Sequence[Problem]) -> pa.RecordBatch:
    """Problems as rows, for a function that Spark calls with Arrow batches."""
    return pa.RecordBatch.from_pylist([asdict(one) for one in problems], schema=PROBLEM_ARROW)
