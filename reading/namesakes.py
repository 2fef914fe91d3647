"""What a journal says of messages that had one name after each other.

Theory: which message replaced which is in the notes of the later one's entry, and nowhere else: a
cancel row names its target, and not its reason. So the answer is in the entry that stored a
message, for the message before it, and in the entry that cancelled it, for the one behind it. An
entry is found by the offset of a row: segments by the offsets of their first entries, and within a
segment by the headers of its entries, which are read without their rows.

*Example.* ``order-17`` is sent with offset 5, and again with offset 90. The entry of offset 90 has
a note that its row 0 replaced the message of offset 5, and a row, offset 91, that cancels offset 5.
Asked for the first message, with its cancel at offset 91, the entry of 90 is read; asked for the
second one, too.

Rules
- A journal is dropped when its rows are in slot files, or have left. What is not read is not known:
  the answer says which of the two entries were read, so that nobody takes a dropped entry for one
  without a note.
- A record of cancels has no offset of the cancel. Then it is looked for in ``_LOOKED_MAX`` entries
  behind the message's own: otherwise a question about an old message would read an archive of
  months.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..wheel.answers import Before, NamedAnswer
from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.journal.entry import NOTES_VERSION, Entry, EntryKind
from ..wheel.journal.payloads import decode_rows
from ..wheel.journal.queued import named_in
from ..wheel.journal.scan import ENTRY_BYTES_MAX, SegmentReader
from ..wheel.journal.segment import SEGMENT_BYTES
from ..wheel.mark import RowKey
from ..wheel.schema import times
from .listing import journal_segments, opened, segment_file

NOT_CANCELLED = -1
"""In place of a cancel's offset: no row cancels the message."""
_LOOKED_MAX = 100_000
_NOWHERE = 1 << 63
"""The first offset of a segment without entries, the last one: behind all offsets."""


@dataclass(slots=True)
class Namesakes:
    """Other messages of a message's name. ``before``: the one that had the name when the message
    was stored; None: nobody had, or ``stored_read`` is false. ``replaced_by``: due time and offset
    of the one that replaced it; None: none did, or ``cancel_read`` is false."""

    before: NamedAnswer | None = None
    replaced_by: RowKey | None = None
    stored_read: bool = False
    """True when the entry that stored the message was read."""
    cancel_read: bool = False
    """True when the entry that cancelled the message was read."""


def namesakes(root: Path, asked: Mapping[RowKey, int | None]) -> dict[RowKey, Namesakes]:
    """Look up messages by due time (ms) and offset. The values of ``asked``: the offset of the row
    that cancels each; ``NOT_CANCELLED``; None: it is cancelled, and the offset is not known.

    Errors: ``OSError``. An entry that is damaged counts as one that was dropped.
    """
    answers = {key: Namesakes() for key in asked}
    by_offset = {offset: (due, offset) for due, offset in asked}
    cancels = {cancel: key for key, cancel in asked.items() if cancel not in (None, NOT_CANCELLED)}
    unknown = [offset for (_, offset), cancel in asked.items() if cancel is None]
    wanted = sorted({*by_offset, *cancels})
    for entry in _Journal(root).entries(wanted, min(unknown, default=None)):
        base, end = entry.base_offset, entry.base_offset + entry.count
        try:
            named = named_in(entry.notes)
            due = times(decode_rows(entry, str(root)), "due") if named else None
        except (Damaged, ValueError):
            continue
        for offset in wanted[bisect_left(wanted, base) : bisect_left(wanted, end)]:
            if offset in by_offset:
                answers[by_offset[offset]].stored_read = True
            if offset in cancels:
                answers[cancels[offset]].cancel_read = True
        for answer in named:
            own = by_offset.get(base + answer.row)
            if own is not None:
                answers[own].before = answer
            replaced = answers.get((answer.due, answer.offset))
            if replaced is not None and answer.before is Before.REPLACED and due is not None:
                replaced.replaced_by = int(due[answer.row]), base + answer.row
                replaced.cancel_read = True
    return answers


class _Journal:
    """The segments of a journal, live and archived, which a running node may drop meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._firsts = list(journal_segments(root))
        self._bases: dict[int, int] = {}
        self._left = _LOOKED_MAX

    def entries(self, offsets: list[int], noted_from: int | None) -> Iterator[Entry]:
        """The entries that have rows with these ``offsets`` (ascending), and, from the offset
        ``noted_from`` on, those with notes, as far as that is looked; None: none of those."""
        places = range(len(self._firsts))
        needed = {bisect_right(places, offset, key=self._base_of) - 1 for offset in offsets}
        if noted_from is not None:
            start = max(0, bisect_right(places, noted_from, key=self._base_of) - 1)
            needed |= {*places[start:]}
        for place in sorted(needed - {-1}):
            yield from self._entries_of(self._firsts[place], offsets, noted_from)

    def _base_of(self, place: int) -> int:
        """The offset of a segment's first row; -1 where the segment was dropped meanwhile, as those
        with the lowest offsets are."""
        if place not in self._bases:
            first = self._firsts[place]
            self._bases[place] = -1
            with self._reader(first) as reader:
                if reader is not None:
                    try:
                        self._bases[place] = reader.head(SEGMENT_BYTES)[0].base_offset
                    except Damaged:
                        self._bases[place] = _NOWHERE
        return self._bases[place]

    @contextmanager
    def _reader(self, first: int) -> Iterator[SegmentReader | None]:
        """Open a segment; None where it cannot be read, or is gone."""
        with ExitStack() as closing:
            reader = None
            path = segment_file(self._root, first, archive=True)
            with suppress(FileNotFoundError, Damaged, UnsupportedVersion):
                if path is not None:
                    handle = closing.enter_context(opened(path))
                    reader = SegmentReader(handle, str(path), ENTRY_BYTES_MAX)
            yield reader

    def _entries_of(
        self, first: int, offsets: list[int], noted_from: int | None
    ) -> Iterator[Entry]:
        with self._reader(first) as reader:
            position = SEGMENT_BYTES
            while reader is not None and position < reader.size:
                try:
                    head, end = reader.head(position)
                    base, behind = head.base_offset, head.base_offset + head.rows
                    is_wanted = bisect_left(offsets, base) < bisect_left(offsets, behind)
                    is_looked_at = self._left > 0 and noted_from is not None and base >= noted_from
                    self._left -= is_looked_at
                    has_notes = is_looked_at and head.version == NOTES_VERSION
                    entry = None
                    if head.kind == EntryKind.ROWS and (is_wanted or has_notes):
                        entry = reader.entry(position).entry
                except (Damaged, UnsupportedVersion):  # the end, or what no answer may rest on
                    return
                if entry is not None:
                    yield entry
                elif not is_looked_at and base > offsets[-1]:
                    return
                position = end
