"""The ledger of the running audit: facts on disk until their window of due time is judged.

Theory: an audit that runs for weeks may not keep facts for weeks. A message is settled some time
after it was due, so facts lie in files by due time, as rows do in the wheel, and a file is removed
when its window was judged. The window depends on ``due`` alone, which is in every fact. So a window
may be opened again, for facts that arrive after it was judged.

What is due in more than two hours is *far*, and lies in a file for each hour of due time until its
hour comes near: a year has three million windows of ten seconds, and each would be a file, and a
line of the state that every batch writes anew.

The valid length of a file is an argument of each call. It is kept in the audit's state, which is
replaced as a whole. Bytes behind it do not count, and are cut before something is appended. So a
batch that is repeated after a crash counts once.

Layout: ``<window start, ms>.facts``, ``far/<hour start, ms>.facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...account.limits import bucket_of
from ...wheel.errors import Damaged
from ..facts.fact import FACT, Facts

FAR_NAME = "far"
FAR_SPAN_MS = 3_600_000
_NEAR_MS = 7_200_000


def far_from(now_ms: int) -> int:
    """The due time, ms, from which on a message is far at ``now_ms``: the begin of an hour."""
    return bucket_of(now_ms + _NEAR_MS, FAR_SPAN_MS) + FAR_SPAN_MS


class Appender:
    """Appends the facts of one batch. ``lengths``: valid bytes of each window's file; 0 if it has
    none. For what is far, ``window_ms`` is ``FAR_SPAN_MS``."""

    def __init__(self, folder: Path, window_ms: int, lengths: Mapping[int, int]) -> None:
        self._folder = folder
        self._window_ms = window_ms
        self._before = lengths
        self.lengths: dict[int, int] = {}
        """The new lengths of the windows that got facts."""

    def add(self, facts: Facts) -> None:
        if not len(facts):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
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


class LedgerBatch:
    """Appends the facts of one batch, each to the file of its window, or of its hour if it is due
    at ``far_from_ms`` or later. ``lengths``, ``far_lengths``: valid bytes of both kinds of
    files."""

    def __init__(
        self,
        folder: Path,
        window_ms: int,
        lengths: Mapping[int, int],
        far_lengths: Mapping[int, int],
        far_from_ms: int,
    ) -> None:
        self.near = Appender(folder, window_ms, lengths)
        self.far = Appender(folder / FAR_NAME, FAR_SPAN_MS, far_lengths)
        self._far_from_ms = far_from_ms

    def add(self, facts: Facts) -> None:
        far = facts["due"] >= self._far_from_ms
        self.near.add(facts[~far])
        self.far.add(facts[far])


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
