"""Reading a journal while it grows, loses its oldest segments, or is cut at its end.

Theory: a reader gets the list of segments of one moment, and then reads files that others go on
changing. Entries are only ever appended, and segments deleted whole, so all that can happen is that
a file is gone. There are two exceptions, a cut and a file that is used again: other entries may
soon stand where the reader reads. So cuts are counted, and it is recorded up to where files are
used again, *before* anything is changed; if neither has moved after a read, what was read is right.

Rules
- Nothing here waits: a reader that is thrown away anywhere, at any moment, must not need a lock.
- Where a reader stopped is remembered: a peer that catches up takes some entries at a time, and
  would otherwise skip through half a segment for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import SlotwheelError
from ..files import Files
from .entry import Entry
from .scan import LocatedEntry, Segment, read_entries

_PLACES_MAX = 64


class JournalReaders:
    """All readers of one journal, past and present."""

    def __init__(self, files: Files, entry_bytes_max: int) -> None:
        self._files = files
        self._entry_bytes_max = entry_bytes_max
        self._places: dict[int, tuple[str, int]] = {}
        self._reused_below = 0
        self.cuts = 0
        """Counts the cuts of the journal."""

    def cut(self) -> None:
        """Note that the journal will be cut: readers of what goes get a ``LookupError``."""
        self.cuts += 1
        self._places = {}  # a new one: a reader that ends late writes into the old one

    def reuse(self, end_index: int) -> None:
        """The file of a dropped segment, which ended before ``end_index``, will be used again."""
        self._reused_below = max(self._reused_below, end_index)

    def read(
        self, segments: Sequence[Segment], from_index: int, last_index: int, cuts: int
    ) -> Iterator[Entry]:
        """The entries ``from_index`` to ``last_index``. ``cuts``: its value when ``segments`` were
        listed.

        Errors: ``LookupError`` when one is no longer there; ``Damaged``; ``OSError``.
        """
        places = self._places
        known = places.get(from_index) if self.cuts == cuts else None
        last: tuple[str, LocatedEntry] | None = None
        index = from_index
        try:
            for path, located in read_entries(
                self._files, segments, from_index, last_index, self._entry_bytes_max, known=known
            ):
                if self._is_gone(index, cuts):
                    break
                last = path, located
                index += 1
                yield located.entry
            else:
                return
        except SlotwheelError:
            if not self._is_gone(index, cuts):
                raise
        finally:
            if last is not None:
                # Others that catch up keep theirs: the oldest goes.
                for oldest in list(places)[: 1 - _PLACES_MAX]:
                    places.pop(oldest, None)
                path, located = last
                places[located.entry.index + 1] = path, located.end
        raise LookupError(f"entry {index}: the journal was cut or dropped there meanwhile")

    def _is_gone(self, index: int, cuts: int) -> bool:
        return self.cuts != cuts or index < self._reused_below
