"""The result of judging a range of offsets: counts, and problems up to a limit, so that a wheel
that has lost millions does not fill a task's memory with sentences about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.problems import Problem
from ...wheel.schema import Int64s
from .board import Board

NAMED = np.dtype(
    [
        ("key", "<u8"),  # first half of the name's key
        ("rest", "<i8"),  # its second half
        ("offset", "<i8"),  # the message's offset
        ("due", "<i8"),  # ms
        ("clock", "<i8"),  # when it was accepted, ms, as of ``Seen.NAMED``
        ("entry", "<i8"),  # index of its entry; -1: not known
        ("end", "<i8"),  # one behind the last offset of its entry; UNKNOWN_END: not known
        ("cancel", "<i8"),  # offset of the first row that cancels it; UNKNOWN_END: none does
        ("pending", "u1"),  # 1: it is still held
        ("arrived", "u1"),  # 1: it arrived, or became a dead letter
    ]
)
"""A message that had a name, and what became of it."""


@dataclass(slots=True)
class Judged:
    """The result of judging. ``strange``: messages (numbers on the board) that arrived and should
    not have. ``counted``: by a name in ``TALLIED``, how often each message counts; shape (n,)."""

    counts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    problem_counts: dict[str, int] = field(default_factory=dict)
    strange: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    counted: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    named: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, NAMED))
    """Messages that had names, of dtype ``NAMED``."""

    def count(self, name: str, number: int) -> None:
        if number:
            self.counts[name] = self.counts.get(name, 0) + int(number)

    def count_each(self, name: str, often: npt.NDArray[Any]) -> None:
        """Count messages of the whole board so that they are summed by topic and time bucket,
        too."""
        self.count(name, int(often.sum()))
        self.counted[name] = often

    def report(
        self,
        board: Board,
        validator: str,
        kind: str,
        messages: Int64s,
        text: str | Callable[[int], str],
        *,
        due: Int64s | None = None,
        position: Int64s | None = None,
        file: Callable[[int], str] = lambda _: "",
    ) -> None:
        """Report one problem for each of ``messages`` (numbers on the board). ``text`` and ``file``
        are called with the place in ``messages``, or ``text`` is the same for all. ``due``, ms,
        replaces the accepted due times; ``position`` is the one in the topic. Every problem is
        counted, and the first ``problems_max`` of a call are described."""
        if not len(messages):
            return
        self.problem_counts[kind] = self.problem_counts.get(kind, 0) + len(messages)
        dues = board.due[messages] if due is None else due
        for at, message in enumerate(messages[: board.context.options.problems_max].tolist()):
            offset, when = int(board.offset[message]), int(dues[at])
            self.problems.append(
                Problem(
                    validator,
                    kind,
                    text if isinstance(text, str) else text(at),
                    board.context.terms.id_of(when, offset),
                    offset,
                    when,
                    file(at),
                    position=-1 if position is None else int(position[at]),
                )
            )
