"""What a caller may see of rows that have topics: those of some topics, by its rights.

Rule: rows are taken out before they are counted, or cut into pages. Otherwise a number, or the mark
of a next page, would say that there are others.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

MayTopic = Callable[[str], bool]
"""Tells of a topic whether its messages may be seen by whoever asks."""


def visible_topics(topics: pa.Array | pa.ChunkedArray, may: MayTopic) -> pa.Array | pa.ChunkedArray:
    """The mask of the rows whose topic may be seen. A row without a topic may not: nobody knows
    whose it is."""
    seen = [topic for topic in topics.unique().to_pylist() if topic and may(topic)]
    return pc.is_in(topics, pa.array(seen, pa.utf8()))
