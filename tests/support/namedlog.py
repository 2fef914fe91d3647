"""Names as the log has them: which row had a name, from which entry to which.

It reads the journal from its first entry on, and knows of names only that a row with the header
takes one, and that a cancel row ends another row. It asks neither the wheel nor what callers were
told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.payloads import decode_rows
from slotwheel.wheel.names import NAME_HEADER
from slotwheel.wheel.rows import header_values
from support.archives import journal_entries


@dataclass
class NamedLog:
    """``successions``: offsets of two rows of one name, of which the second was taken when no row
    had cancelled the first. ``taken``: all rows that had a name, ``cancelled``: all that ever were,
    but for those that their own entry has dropped."""

    successions: list[tuple[int, int]] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    _holders: dict[tuple[str, bytes], int] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Path) -> NamedLog:
        """Read a data directory that has kept its whole journal (``--retain``)."""
        log = cls()
        with closing(OsFiles(data)) as files:
            for entry in journal_entries(files):
                if entry.kind is EntryKind.ROWS:
                    log.add(entry)
        return log

    def add(self, entry: Entry) -> None:
        rows = decode_rows(entry, f"entry {entry.index}", full=False)
        cancels = rows.column("cancels")
        gone = set(cancels.drop_null().to_pylist())
        given = header_values(rows.column("headers"), NAME_HEADER)
        if given is not None:
            topics = rows.column("topic")
            for at, name in zip(given[0].tolist(), given[1].to_pylist(), strict=True):
                offset = entry.base_offset + at
                if offset in gone:  # dropped, or replaced by a later row
                    continue
                key = topics[at].as_py(), name
                before = self._holders.get(key)
                if before is not None and before not in gone and before not in self.cancelled:
                    self.successions.append((before, offset))
                self._holders[key] = offset
                self.taken.add(offset)
        self.cancelled |= gone

    def violations(
        self, arrived: Mapping[int, int], decided_ms: Callable[[int], float]
    ) -> Iterator[str]:
        """Moments at which two rows of a name were pending, and rows that did not become what the
        log says. ``arrived``: by offset, when a row arrived first, ms; ``decided_ms``: the time
        before which a row was taken."""
        for before, after in self.successions:
            if not arrived.get(before, 1 << 62) <= decided_ms(after):
                yield f"{before} was pending when {after} took its name"
        yield from (f"{at} is cancelled and arrived" for at in self.cancelled & arrived.keys())
        lost = self.taken - self.cancelled - arrived.keys()
        yield from (f"{at} is not cancelled and did not arrive" for at in lost)
