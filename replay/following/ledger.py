"""The ledger of the running audit: facts on disk until their window of due time is judged.

Theory: an audit that runs for weeks may not keep facts for weeks. A message is settled some time
after it was due, so facts lie in files by due time, as rows do in the wheel, and a file is removed
when its window was judged. The window depends on ``due`` alone, which is in every fact. So a window
may be opened again, for facts that arrive after it was judged.

The valid length of a file is an argument of each call. It is kept in the audit's state, which is
replaced as a whole. Bytes behind it do not count, and are cut before something is appended. So a
batch that is repeated after a crash counts once.

Layout: ``<window start, ms>.facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...account.limits import bucket_of
from ...wheel.errors import Damaged
from ..facts.fact import FACT, Facts


class Appender:
    """Appends the facts of one batch. ``lengths``: valid bytes of each window's file; 0 if it has
    none."""

    def __init__(self, folder: Path, window_ms: int, lengths: Mapping[int, int]) -> None:
        self._folder = folder
        self._window_ms = window_ms
        self._before = lengths
        self.lengths: dict[int, int] = {}
        """The new lengths of the windows that got facts."""
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, facts: Facts) -> None:
        starts = bucket_of(facts["due"], self._window_ms)
        order = np.argsort(starts, kind="stable")
        starts, facts = starts[order], facts[order]
        edges = np.flatnonzero(np.diff(starts)) + 1
        for part, start in zip(np.split(facts, edges), starts[[0, *edges]].tolist(), strict=True):
            self._append(start, part.tobytes())

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
    return np.frombuffer(data, FACT)


def path_of(folder: Path, start: int) -> Path:
    return folder / f"{start}.facts"
