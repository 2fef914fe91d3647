"""The epochs of a journal's entries: a search table from an entry's index to its epoch.

Theory: an epoch makes entries one after another, and epochs never fall along the log. So the
epochs of millions of entries are a handful of runs, each named by the index of its first entry; one
search among them answers what replication asks of any entry. The *base* is the entry just before
the first one known, whose epoch the checkpoint or the segment's header has kept: the first entry to
be shipped needs the epoch of the one before it.

*Example.* Epoch 1 made entries 1 to 400, epoch 3 those from 401 on. The runs are (0: 0), which is
the base, (1: 1) and (401: 3); entry 400 is in the run that begins at 1, so its epoch is 1.

Rules
- Indexes are consecutive, epochs never fall.
- An index outside ``[base_index, last_index]`` has no known epoch: ``None``, never 0. Otherwise an
  entry that was dropped would look like the beginning of the log.
- Not thread-safe: its owner locks, or hands out a ``copy``.
"""

from __future__ import annotations

from bisect import bisect_right


class Epochs:
    """The epochs of the entries ``base_index`` to ``last_index``."""

    def __init__(self, base_index: int = 0, base_epoch: int = 0) -> None:
        """``base_index``, ``base_epoch``: of the entry before the first; 0 and 0 for a new log."""
        # Two lists of the same length, both ascending: run i is the entries from _firsts[i] on,
        # made in _epochs[i]. The first run begins at the base.
        self._firsts = [base_index]
        self._epochs = [base_epoch]
        self._last = base_index

    @property
    def base_index(self) -> int:
        return self._firsts[0]

    @property
    def base_epoch(self) -> int:
        return self._epochs[0]

    @property
    def last_index(self) -> int:
        return self._last

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1]

    def append(self, index: int, epoch: int) -> None:
        """The entry ``index``, which must follow the last one, was made in ``epoch``."""
        self.extend(index, index, epoch)

    def extend(self, first: int, last: int, epoch: int) -> None:
        """The entries ``first`` to ``last``, behind the last one, were all made in ``epoch``."""
        assert first == self._last + 1, f"entry {first} where {self._last + 1} must follow"
        assert last >= first, f"entries {first} to {last}"
        assert epoch >= self._epochs[-1], f"epoch {epoch} after {self._epochs[-1]}"
        if epoch > self._epochs[-1]:
            self._firsts.append(first)
            self._epochs.append(epoch)
        self._last = last

    def epoch_at(self, index: int) -> int | None:
        """The epoch of entry ``index``; ``None`` outside ``[base_index, last_index]``."""
        if not self._firsts[0] <= index <= self._last:
            return None
        return self._epochs[bisect_right(self._firsts, index) - 1]

    def truncate_after(self, index: int) -> None:
        """Forget the entries behind ``index``; the base stays."""
        assert index >= self._firsts[0], f"cut after {index}, before the base {self._firsts[0]}"
        if index >= self._last:
            return
        runs = bisect_right(self._firsts, index)
        del self._firsts[runs:], self._epochs[runs:]
        self._last = index

    def drop_below(self, index: int) -> None:
        """Forget the entries below ``index``: the base becomes ``index - 1``, if it was below."""
        base = index - 1
        if base <= self._firsts[0]:
            return
        assert base <= self._last, f"base {base} behind the last entry {self._last}"
        run = bisect_right(self._firsts, base) - 1
        del self._firsts[:run], self._epochs[:run]
        self._firsts[0] = base

    def last_of_at_most(self, epoch: int) -> int:
        """Index of the last entry made in ``epoch`` or before; the base if there is none."""
        run = bisect_right(self._epochs, epoch)
        if run == len(self._epochs):
            return self._last
        return max(self._firsts[run] - 1, self._firsts[0])

    def runs(self) -> list[tuple[int, int]]:
        """First index and epoch of every run, the base first."""
        return list(zip(self._firsts, self._epochs, strict=True))

    def copy(self) -> Epochs:
        other = Epochs()
        other._firsts = self._firsts.copy()
        other._epochs = self._epochs.copy()
        other._last = self._last
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Epochs):
            return NotImplemented
        return (self._firsts, self._epochs, self._last) == (
            other._firsts,
            other._epochs,
            other._last,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        runs = ", ".join(f"{first}:{epoch}" for first, epoch in self.runs())
        return f"Epochs({runs} to {self._last})"
