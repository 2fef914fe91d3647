"""The message that had a name before, as answers have it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..client.predecessor import Predecessor
from ..reading.search.fate import FateBefore


class NameBefore(msgspec.Struct, omit_defaults=True):
    """The message that had the name of a stored one before it."""

    what: Literal["replaced", "kept", "already delivered", "unknown"]
    """What became of it: it was cancelled; or it was kept, and the new one was dropped; or it had
    left already; or it is not pending any more, and may have left or not."""
    id: str
    """The id of the message before."""
    row: int = 0
    """The number of the new message, from 0 on."""
    dropped_id: str | None = None
    """The id of the new message that was dropped, where the one before was kept."""


def before_of(row: int, before: Predecessor) -> NameBefore:
    """The message before of the name of the message with the number ``row``, as JSON."""
    what: Any = before.what
    return NameBefore(what, before.id, row, before.dropped_id)


def fate_before(before: FateBefore | None) -> NameBefore | None:
    """The message before of the name of a message that was looked up, as JSON."""
    return None if before is None else NameBefore(before.what.value, before.id)
