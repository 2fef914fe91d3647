"""Facts of the names that messages were accepted with.

Theory: that no two messages of one name are pending at once is no matter of a single message, and
the two may be millions of offsets apart. So each row that has a name gives a fact with the name's
key beside its other facts; when these have told what became of the message, it is compared with the
others of that key (``judging/names.py``).

Rules
- The clock of a message is that of the newest mark before its entry, if that is later than its
  ``created``. Otherwise a clock that was set back would make two messages of a name look pending at
  once: one left at 12:10, the clock went back to 12:00, and the next one was accepted then.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...reading.files import File
from ...wheel.digest import topic_crcs
from ...wheel.names import KEY_BYTES, NAME_HEADER, keys_of
from ...wheel.rows import header_values
from ...wheel.schema import Int64s, times
from .fact import NO_DIGEST, UNKNOWN_END, Facts, Seen
from .making import empty

_HALVES = np.dtype([("digest", "<u8"), ("at", "<i8")])
assert _HALVES.itemsize == KEY_BYTES


def named_facts(
    file: File, rows: pa.RecordBatch, index: int | Int64s | None = None, clock_ms: int = 0
) -> Facts:
    """Facts of the rows (schema ``ROW``) of a journal or a slot file that have names. ``index``:
    the entry of all rows, or of each, ascending; None: rows of a slot file. ``clock_ms``: of the
    newest mark before them."""
    given = header_values(rows.column("headers"), NAME_HEADER)
    if given is None:
        return empty(0, file, Seen.NAMED)
    at, names = given
    facts = empty(len(at), file, Seen.NAMED)
    topic = rows.column("topic").take(pa.array(at))
    topics = [name.encode() for name in topic.to_pylist()]
    keys = keys_of(topics, [name or b"" for name in names.to_pylist()])
    halves = np.frombuffer(b"".join(keys), _HALVES)
    facts["digest"], facts["at"] = halves["digest"], halves["at"]
    offset = times(rows, "offset")
    facts["offset"] = offset[at]
    facts["due"] = times(rows, "due")[at]
    facts["created"] = np.maximum(times(rows, "created")[at], clock_ms)
    facts["where"] = UNKNOWN_END
    if index is not None:
        entry = np.broadcast_to(index, rows.num_rows)
        last = np.searchsorted(entry, entry[at], side="right") - 1
        facts["where"] = offset[last] + 1
    facts["partition"], facts["flags"] = -1, NO_DIGEST
    facts["topic"] = topic_crcs(topic)
    return facts
