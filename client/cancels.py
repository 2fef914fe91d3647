"""Cancels of any number of ids: texts that are no ids are answered here, and no node is asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ..wheel.errors import UnknownId
from ..wheel.ids import MessageId
from .client import Client

AT_ONCE = 1000
CANCELLED = "cancelled"
ALREADY_CANCELLED = "already cancelled"
"""A message that was to be rescheduled, and is not there to be moved."""
UNKNOWN = "unknown"


def answers(client: Client, ids: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each id with its answer, in order. A text that is not an id is unknown."""
    ids = iter(ids)
    while part := list(itertools.islice(ids, AT_ONCE)):
        good = [one for one in part if is_id(one)]
        answers = dict(zip(good, client.cancel(good) if good else [], strict=True))
        for one in part:
            yield one, answers.get(one, UNKNOWN)


def is_id(text: str) -> bool:
    """Whether a text is an id; a node is not asked about any other text."""
    try:
        MessageId.parse(text)
    except UnknownId:
        return False
    return True
