"""Dead letters as answers have them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ...reading.letters.course import RedriveOrder
from ...reading.letters.letters import LetterQuery
from ...reading.letters.looking import LetterCounts
from .types import HeaderValue

LETTERS_MAX = 1_000


class DeadLetter(msgspec.Struct, omit_defaults=True):
    """A dead letter: where it lies, what it says, and the message with all of its headers."""

    partition: int
    """The partition of the dead-letter topic in which it lies; 0 in an embedded topic."""
    position: int
    buried_ms: int | None
    id: str | None
    reason: str
    error: str | None
    for_topic: str | None
    """Where the message was meant to go."""
    for_partition: int | None
    group: str | None
    """The consumer group that buried it."""
    redriven: bool
    wheel: str = ""
    """Of a fleet, the wheel in whose directory it lies; empty: it lies in Kafka."""
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[tuple[str, HeaderValue]] = []


class LetterCount(msgspec.Struct):
    """How many letters have one reason and one topic, and how many of them were redriven."""

    reason: str
    topic: str | None
    """The topic that they were meant for."""
    letters: int
    redriven: int


class LetterList(msgspec.Struct):
    """Counts of all letters that were asked for, and the first of them whole."""

    counts: list[LetterCount]
    letters: list[DeadLetter]
    damage: list[str]
    """Parts of the topic that could not be read, or not in time."""
    kept_by_node: int
    """Further letters that fulfil the conditions: the topic in Kafka did not take them, so they lie
    in the data directory of the node."""
    limited_by_rights: bool
    """Whether only letters were counted that were meant for topics that the caller may read."""
    in_kafka: bool
    """True: the letters lie in Kafka's topic, which all wheels share that deliver into it."""


class LettersQuery(LetterQuery, frozen=True):
    """Which letters are counted, and how many of them are shown."""

    limit: Annotated[int, Meta(ge=0, le=LETTERS_MAX)] = 100
    """Letters that are shown whole, at most."""
    embedded: bool = False
    """Only letters in the data directory, also where the topic lies in Kafka; none if there is no
    such topic."""


class RedriveBody(RedriveOrder, frozen=True):
    """Which letters are sent again, and how. Without a condition: all of them."""


class RedriveSummary(msgspec.Struct):
    """The letters of a redrive, and what became of them."""

    letters: int
    """Letters that are to be sent."""
    topics: dict[str, int]
    """The same, by the topic that they go to."""
    redriven_before: int
    not_sendable: int
    """Letters that do not say where they were meant to go, or of which a part is missing."""
    sent: int
    refused: int
    perhaps_sent: int
    redriven_meanwhile: int
    notes_deleted: bool
    complete: bool
    problems: list[str] = []
    """Wheels of a fleet that are missing in it."""


def counts_shown(counts: LetterCounts) -> list[LetterCount]:
    """The counts in the order of reason and topic."""
    rows = []
    kinds = sorted({kind[:2] for kind in counts}, key=lambda kind: (kind[0], kind[1] or ""))
    for reason, topic in kinds:
        sent = counts[reason, topic, True]
        rows.append(LetterCount(reason, topic, sent + counts[reason, topic, False], sent))
    return rows
