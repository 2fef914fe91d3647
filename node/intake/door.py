"""The door: a message to a topic that Kafka does not have is refused before it gets an id.

Theory: a topic is created by people, so a name that is misspelt stays missing, and a message that
was accepted for it could only become a dead letter, hours later, when its sender has gone.

Rules
- Only an answer to a request that began *after* the batch came counts: the topic may have been
  created a moment before the batch, and an older answer would refuse it. But records of a delay
  topic do not wait for a topic that has been missing for long: they would hold up all others behind
  them.
- Nothing asks Kafka here. A batch with an unknown topic waits, as one does while there is no room,
  and another thread asks for all such topics in one request (``TopicBook``). If Kafka does not
  answer, the batch is accepted: the wheel is there to take messages while Kafka is away.
- A batch that was stored before is not refused when it is sent again: its sender would take stored
  messages for refused ones.
- Embedded topics are made, not refused: a batch waits while many new ones are made (``NewTopics``).
  Where a node accepts messages to any topic, a batch with many unknown ones waits until Kafka has
  answered for them (``AnyTopic``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from ...wheel import compute as pc
from ...wheel.checks import InputBatch, is_topic
from ...wheel.errors import NOTHING_STORED, Draining, Overloaded, UnknownTopic
from ...wheel.plain import PlainBatch
from ...wheel.schema import distinct
from .ports import Clock

ANNOUNCED_MS = 5_000
"""A group that is to be emptied says so for this long, ms, before it refuses messages: clients of a
fleet look each second, and send to another wheel before one of their messages is refused."""
_NAMED_MAX = 100
"""So many topics does one error name at most."""


class TopicsPort(Protocol):
    """The known topics of a sink (``TopicBook``, ``AnyTopic``, ``NewTopics``)."""

    rows_let_in: ClassVar[int]
    """A batch of so few rows passes unread: its topics would cost more than all other checks."""

    def knows(self, topics: Collection[str]) -> bool: ...
    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None: ...


class StoredPort(Protocol):
    """The part of the wheel that the door uses."""

    @property
    def draining(self) -> Mapping[str, Any]: ...
    def stored_before(self, producer: int, sequence: int) -> bool: ...


class Door:
    """The door of a node. It is closed to new messages while the group is emptied. ``clock``: the
    node's. Topics of ``own`` always pass, such as the dead-letter topic: if Kafka
    does not have it, the node keeps the letters itself."""

    def __init__(
        self,
        topics: TopicsPort,
        own: Collection[str] = (),
        clock: Clock = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._own = frozenset(own)

    def check(self, one: InputBatch, wheel: StoredPort, waited_s: float) -> None:
        """Check the topics of a batch that came ``waited_s`` ago. Errors: ``UnknownTopic``;
        ``Overloaded``: the answer is on its way, try again soon; ``Draining``."""
        self._check_open(one.producer, one.sequence, wheel)
        absent = self.absent(one.rows, waited_s)
        if absent == [] or wheel.stored_before(one.producer, one.sequence):
            return
        named = _sure(absent)
        raise UnknownTopic.of(named, pc.index(one.rows.column("topic"), named[0]).as_py())

    def check_plain(self, one: PlainBatch, wheel: StoredPort, waited_s: float) -> None:
        """Check the topics of plain rows. Errors: as of ``check``."""
        self._check_open(one.producer, one.sequence, wheel)
        if len(one.rows) <= self._topics.rows_let_in:
            return
        topics = [row[1].decode(errors="replace") for row in one.rows]
        absent = self._absent(list(dict.fromkeys(topics)), waited_s)
        if absent == [] or wheel.stored_before(one.producer, one.sequence):
            return
        named = _sure(absent)
        raise UnknownTopic.of(named, topics.index(named[0]))

    def _check_open(self, producer: int, sequence: int, wheel: StoredPort) -> None:
        """Errors: ``Draining``, unless it is a repeat of a batch that is stored."""
        draining = wheel.draining
        if not draining or self._clock() < draining["since_ms"] + ANNOUNCED_MS:
            return
        if not wheel.stored_before(producer, sequence):
            raise Draining(
                "this wheel takes no new messages: it is being emptied",
                remedy=f"{NOTHING_STORED} Send to another wheel of the fleet; 'slotwheel undrain'"
                " has this one take messages again",
            )

    def check_topic(self, topic: str, waited_s: float) -> None:
        """Check the topic of a single message, or of those of a schedule; who wants it came
        ``waited_s`` ago. Errors: as of ``check``."""
        if self._topics.rows_let_in < 1 and (absent := self._absent([topic], waited_s)) != []:
            raise UnknownTopic.of(_sure(absent))

    def absent(
        self, rows: pa.RecordBatch, waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """The topics of the rows that Kafka does not have; None: the answer is on its way. The rows
        came ``waited_s`` ago. ``settled``: they came on a delay topic, so the last answer counts
        for a topic that has been missing for long: else each batch would wait for a new one."""
        if rows.num_rows <= self._topics.rows_let_in:
            return []
        column = _topics_of(rows)
        if column is None:  # the wheel refuses it with a better error
            return []
        return self._absent(distinct(column), waited_s, settled=settled)

    def _absent(
        self, topics: list[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        if self._topics.knows(topics):
            return []
        # The wheel refuses a name that no topic can have; Kafka's client would raise.
        asked = [topic for topic in topics if topic not in self._own and is_topic(topic)]
        return self._topics.absent(asked, waited_s, settled=settled)


def _sure(absent: list[str] | None) -> list[str]:
    """The absent topics that an error names. Errors: ``Overloaded``: there is no answer yet."""
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
        column.validate(full=True)  # a forged offset would be followed out of the batch
    except pa.ArrowInvalid:
        return None
    return column
