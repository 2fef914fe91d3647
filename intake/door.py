"""The door: a message to a topic that Kafka does not have is refused before it gets an id.

Theory: a topic is created by people, so a name that is misspelt stays missing, and a message that
was accepted for it could only become a dead letter, hours later. Whoever sent it is there now.

Rules
- Only an answer to a question that was asked *after* the batch came counts. The topic may have been
  created a moment before, and an older answer would refuse it. But records of a delay topic do not
  wait for a topic that has been missing for long: they would hold up all that are behind them.
- Nothing asks Kafka here. A batch with an unknown topic waits, as one does while there is no room,
  and another thread asks for all such topics in one request (``TopicBook``). If Kafka does not
  answer, the batch is accepted: the wheel is there to take messages while Kafka is away.
- A batch that was stored before is not refused when it is sent again.
- Embedded topics are made, not refused: here a batch waits while many new ones are (``NewTopics``).
  So it does where a node accepts messages to any topic: until it is known which of many topics
  Kafka has (``AnyTopic``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Protocol

import pyarrow as pa

from ..wheel import compute as pc
from ..wheel.checks import InputBatch, is_topic
from ..wheel.errors import Overloaded, UnknownTopic
from ..wheel.plain import PlainBatch
from ..wheel.schema import distinct

_NAMED_MAX = 100
"""Topics that one error names; the next error names the others."""


class TopicsPort(Protocol):
    """What is known of the topics of the sink (``TopicBook``, ``AnyTopic``, ``NewTopics``)."""

    rows_let_in: ClassVar[int]
    """A batch of at most so many rows need not be looked at: reading its topics would cost it more
    than all other checks."""

    def knows(self, topics: Collection[str]) -> bool: ...
    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None: ...


class StoredPort(Protocol):
    """The part of the wheel that the door uses."""

    def stored_before(self, producer: int, sequence: int) -> bool: ...


class Door:
    """``own``: topics that are taken in any case, such as the dead-letter topic: if Kafka does not
    have it, the node keeps the letters itself."""

    def __init__(self, topics: TopicsPort, own: Collection[str] = ()) -> None:
        self._topics = topics
        self._own = frozenset(own)

    def check(self, one: InputBatch, wheel: StoredPort, waited_s: float) -> None:
        """``waited_s``: since the batch came. Errors: ``UnknownTopic``; ``Overloaded``: the answer
        is on its way, try again soon."""
        absent = self.absent(one.rows, waited_s)
        if absent == [] or wheel.stored_before(one.producer, one.sequence):
            return
        named = _sure(absent)
        raise UnknownTopic.of(named, pc.index(one.rows.column("topic"), named[0]).as_py())

    def check_plain(self, one: PlainBatch, wheel: StoredPort, waited_s: float) -> None:
        """The same of plain rows."""
        if len(one.rows) <= self._topics.rows_let_in:
            return
        topics = [row[1].decode(errors="replace") for row in one.rows]
        absent = self._absent(list(dict.fromkeys(topics)), waited_s)
        if absent == [] or wheel.stored_before(one.producer, one.sequence):
            return
        named = _sure(absent)
        raise UnknownTopic.of(named, topics.index(named[0]))

    def absent(
        self, rows: pa.RecordBatch, waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """The topics of the rows that Kafka does not have; None: the answer is on its way.
        ``waited_s``: since they came. ``settled``: they came on a delay topic, so of a topic that
        has been missing for long the last answer counts: each batch would wait for a new one."""
        if rows.num_rows <= self._topics.rows_let_in:
            return []
        column = _topics_of(rows)
        if column is None:  # the wheel says what is wrong with it
            return []
        return self._absent(distinct(column), waited_s, settled=settled)

    def _absent(
        self, topics: list[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        if self._topics.knows(topics):
            return []
        # Of a name that no topic has the wheel says what is wrong; Kafka's client would raise.
        asked = [one for one in topics if one not in self._own and is_topic(one)]
        return self._topics.absent(asked, waited_s, settled=settled)


def _sure(absent: list[str] | None) -> list[str]:
    """The absent topics that an error names. Errors: ``Overloaded``: they are not known yet."""
    if absent is None:
        raise Overloaded("these topics are looked up, or made", remedy="Try again")
    return absent[:_NAMED_MAX]


def _topics_of(rows: pa.RecordBatch) -> pa.Array | None:
    at = rows.schema.get_field_index("topic")
    if at < 0 or not rows.num_rows:
        return None
    column = rows.column(at)
    if column.type != pa.utf8() or column.null_count:
        return None
    try:
        column.validate(full=True)  # or a forged offset would be followed out of the batch
    except pa.ArrowInvalid:
        return None
    return column
