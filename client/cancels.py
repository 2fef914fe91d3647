"""Cancels any number of ids; a text that is no id is answered here, without asking a node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..wheel.errors import UnknownId
from ..wheel.ids import MessageId

AT_ONCE = 1000
CANCELLED = "cancelled"
ALREADY_CANCELLED = "already cancelled"
"""The answer for a message that was to be rescheduled, but is cancelled."""
UNKNOWN = "unknown"
UNREACHABLE = "unreachable"
"""The answer for a message whose wheel of a fleet does not answer: it may be cancelled or not."""


def answers(
    cancel: Callable[..., Sequence[str]], ids: Iterable[str], topics: Sequence[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Each id with its answer, in order. A text that is not an id is unknown. ``cancel``: that of a
    ``Client`` or of a ``Fleet``; ``topics``: as of that."""
    ids = iter(ids)
    while part := list(itertools.islice(ids, AT_ONCE)):
        good = [text for text in part if is_id(text)]
        answers = dict(zip(good, cancel(good, topics=topics) if good else [], strict=True))
        for text in part:
            yield text, answers.get(text, UNKNOWN)


def is_id(text: str) -> bool:
    """Returns True when a text has the form of an id."""
    try:
        MessageId.parse(text)
    except UnknownId:
        return False
    return True
