"""Cancels any number of ids; a text that is no id is answered here, without asking a node."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from ..wheel.errors import UnknownId
from ..wheel.ids import MessageId
from .client import Client

AT_ONCE = 1000
CANCELLED = "cancelled"
ALREADY_CANCELLED = "already cancelled"
"""The answer for a message that was to be rescheduled, but is cancelled."""
UNKNOWN = "unknown"


def answers(
    client: Client, ids: Iterable[str], topics: Sequence[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Each id with its answer, in order. A text that is not an id is unknown. ``topics``: as of
    ``Client.cancel``."""
    ids = iter(ids)
    while part := list(itertools.islice(ids, AT_ONCE)):
        good = [text for text in part if is_id(text)]
        answers = dict(zip(good, client.cancel(good, topics=topics) if good else [], strict=True))
        for text in part:
            yield text, answers.get(text, UNKNOWN)


def is_id(text: str) -> bool:
    """Returns True when a text has the form of an id."""
    try:
        MessageId.parse(text)
    except UnknownId:
        return False
    return True
