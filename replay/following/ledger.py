"""The ledger of the running audit: facts on disk until their window of due time is judged.

Theory: an audit that runs for weeks may not remember for weeks. A message is settled some time
after it was due, so facts lie in files by due time, as rows do in the wheel, and a file is removed
when its window was judged. The window is taken from ``due`` alone, because that is what all who see
a message know of it. So a window may come again, for what came after it was judged.

Nobody here decides how long a file is: that is told with each call, and stands where the audit
writes down everything else it knows, at one stroke. What lies behind was never written; it is cut
before something is appended. So a batch that is repeated after a crash counts once.

Layout: ``<window start, ms>.facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...wheel.errors import Damaged
from ..facts.fact import FACT, Facts, pack, unpack


class Appender:
    """Takes the facts of one batch. ``lengths``: bytes of each window that count; others: none."""

    def __init__(self, folder: Path, window_ms: int, lengths: Mapping[int, int]) -> None:
        self._folder = folder
        self._window_ms = window_ms
        self._before = lengths
        self.lengths: dict[int, int] = {}
        """Of the windows that got something."""
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, facts: Facts) -> None:
        starts = facts["due"] - facts["due"] % self._window_ms
        order = np.argsort(starts, kind="stable")
        starts, facts = starts[order], facts[order]
        edges = np.flatnonzero(np.diff(starts)) + 1
        for part, start in zip(np.split(facts, edges), starts[[0, *edges]].tolist(), strict=True):
            self._append(start, pack(part))

    def _append(self, start: int, data: bytes) -> None:
        path = path_of(self._folder, start)
        length = self.lengths.get(start)
        first = length is None
        if length is None:
            length = self._before.get(start, 0)
        path.touch()
        with path.open("r+b") as out:
            if first:
                out.truncate(length)
            out.seek(length)
            out.write(data)
        self.lengths[start] = length + len(data)


def read(folder: Path, start: int, length: int) -> Facts:
    """The facts of a window. Errors: ``Damaged``."""
    path = path_of(folder, start)
    with path.open("rb") as source:
        data = source.read(length)
    if len(data) < length:
        raise Damaged(str(path), len(data), expected=f"{length} bytes", found=len(data))
    assert length % FACT.itemsize == 0
    return unpack(data)


def remove(folder: Path, start: int) -> None:
    path_of(folder, start).unlink(missing_ok=True)


def path_of(folder: Path, start: int) -> Path:
    return folder / f"{start}.facts"
