"""The course of a redrive: count, check, begin, send, sum up. It asks no user and prints nothing.

Counted letters are kept in a spool, so exactly these are sent, except those that another redrive
has sent meanwhile. A redrive that was stopped, at any time, goes on when it is begun again: the
notes have all that must be remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from ...client import Client
from ...client.addresses import Nodes
from ...client.resending import Resending
from ...policy.deadletters import notes_topic
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError
from ..kafka.dump import NewTopic, no_such_topic
from .again import AGAIN, as_messages
from .letters import LetterQuery, sendable
from .notes import Redriven
from .redrive import Sending, begin
from .source import LetterSource, Topic, create
from .spool import Spool

NOTES_DELETED = "Kafka has deleted the oldest notes: letters that they name would be sent again"


class RedriveOrder(LetterQuery, frozen=True):
    """Which letters are sent again, and how. Without a condition: all of them."""

    to_topic: str | None = None
    """Send them to this topic. Null: where they were meant to go."""
    rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Let N letters be due in each second. Null: all at once."""
    create_topics: bool = False
    """Create the topic of the notes in Kafka if it is missing."""
    despite_deleted_notes: bool = False
    """Send although notes are deleted: letters that they name are sent again."""

    def check(self) -> None:
        """Errors: as of ``LetterPlace.check``, of both topics."""
        if self.to_topic is not None:
            check_topic(self.to_topic)
        super().check()

    def check_target(self, topic: str) -> None:
        """``topic``: of the dead letters. Errors: ``InvalidMessage``."""
        if self.to_topic in (topic, notes_topic(topic)):
            raise InvalidMessage(
                "letters cannot be redriven to where they lie",
                got=self.to_topic,
                remedy="Name another topic, or none: then they go where they were meant to",
            )


@dataclass(slots=True)
class RedriveCounts:
    """The counts of a redrive. ``topics``: the number of letters that go to each."""

    topics: Counter[str] = field(default_factory=Counter)
    before: int = 0
    """Redriven before."""
    not_sendable: int = 0

    @property
    def letters(self) -> int:
        """The number of letters to be sent."""
        return self.topics.total()


class RedriveCourse:
    """One redrive of letters in ``topic``, which is ``opened``. ``redriven``: the letters in its
    notes (``redriven_before`` with ``whole``). ``address``: of the node through which they go; it
    is tried for ``timeout_s``. Leaving the ``with`` block drops counted letters.

    Errors: ``InvalidMessage`` if there is no topic of notes, and it may not be created.
    """

    def __init__(
        self,
        order: RedriveOrder,
        source: LetterSource,
        topic: str,
        opened: Topic,
        redriven: Redriven,
        *,
        address: str | Nodes,
        timeout_s: float,
        dry_run: bool,
    ) -> None:
        self.order = order
        self.address = address
        self.counts = RedriveCounts()
        self.redriven = redriven
        self.sending: Sending | None = None
        """None: sending has not begun."""
        self._source = source
        self._topic = topic
        self._timeout_s = timeout_s
        self._opened = opened
        self._notes = notes_topic(topic)
        self._no_notes = source.is_kafka and self._notes not in opened.topics
        if self._no_notes and not (dry_run or order.create_topics):
            error = no_such_topic(self._notes, opened.topics)
            error.remedy = (
                "What was redriven is noted there: let it be created, by --create-topics, or over"
                " HTTP create_topics"
            )
            raise error
        self._spool = Spool(AGAIN)

    def __enter__(self) -> RedriveCourse:
        return self

    def __exit__(self, *error: object) -> None:
        self._spool.close()

    def count(self, letters: Iterable[pa.RecordBatch]) -> None:
        """Count letters (schema ``LETTER``), and keep those to be sent. Errors: ``NotRunning``."""
        counts, to_topic = self.counts, self.order.to_topic
        for batch in letters:
            again = self.redriven.has(batch)
            can = sendable(batch, to_topic)
            counts.before += int(again.sum())
            counts.not_sendable += int((~again & ~can).sum())
            sent = pa.array(~again & can)
            if sent.true_count:
                rows = as_messages(batch.filter(sent), to_topic)
                for pair in rows.column("topic").value_counts().to_pylist():
                    counts.topics[pair["values"]] += pair["counts"]
                self._spool.add(rows)

    def check(self) -> None:
        """Check that the counted letters can be sent. Errors: ``InvalidConfiguration`` if notes
        were deleted, and the order does not allow that; ``InvalidMessage`` for a topic that does
        not exist."""
        self._check_notes()
        for name in sorted(self.counts.topics):
            if self._source.is_kafka and name not in self._opened.topics:
                error = no_such_topic(name, self._opened.topics)
                error.remedy = (
                    "Create it, or redrive the letters for it by themselves, to another topic"
                )
                raise error

    def send(
        self,
        report: Callable[[tuple[int, int], SlotwheelError], None],
        step: Callable[[int], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Send the counted letters. ``report`` is called with the place and the error of each
        refused letter, ``step`` with the number of letters that are done since its last call.
        ``stopped`` returns True to send no more.

        Errors: those of the node, of Kafka and of the disk, and ``InvalidConfiguration`` when the
        notes were deleted. ``sending`` has the counts then; it is None if nothing was begun."""
        with closing(Client(self.address, timeout_s=self._timeout_s)) as client:
            self._check_node(client)
        if self._no_notes:
            policy = {"retention.ms": "-1", "cleanup.policy": "delete"}
            create(self._opened, NewTopic(self._notes, 1, policy))
        turn = begin(self._source, self._topic, self.address, self._timeout_s, self.redriven)
        self.redriven = turn.redriven

        def refused(number: int, error: SlotwheelError) -> None:
            report(sending.place(number), error)

        resending = Resending(0, refused)
        self.sending = sending = Sending(turn, resending, self.order.rate)
        try:
            with turn.client:
                self._check_notes()
                for batch in self._spool.batches():
                    if stopped():
                        break
                    step(sending.send(batch))
                for done in sending.finish():
                    step(done)
        finally:
            resending.settle_rest()

    @property
    def left(self) -> int:
        """The number of letters that are neither stored nor refused, as far as is known."""
        sending = self.sending
        done = 0 if sending is None else sending.resending.done + sending.meanwhile
        return self.counts.letters - done

    def summary(self) -> dict[str, Any]:
        """The counts so far, as JSON-able data."""
        counts, sending = self.counts, self.sending
        state = None if sending is None else sending.resending
        return {
            "letters": counts.letters,
            "topics": dict(counts.topics.most_common()),
            "redriven_before": counts.before,
            "not_sendable": counts.not_sendable,
            "sent": 0 if state is None else state.sent,
            "refused": 0 if state is None else state.refused,
            "perhaps_sent": 0 if state is None else state.under_way,
            "redriven_meanwhile": 0 if sending is None else sending.meanwhile,
            "notes_deleted": self.redriven.some_deleted,
            "complete": not (self.left or (state and state.refused)),
        }

    def _check_notes(self) -> None:
        if self.redriven.some_deleted and not self.order.despite_deleted_notes:
            raise InvalidConfiguration(
                NOTES_DELETED,
                remedy="Set retention.ms=-1 for their topic. To send nevertheless, filtered for"
                " letters that were never sent: --despite-deleted-notes, or over HTTP"
                " despite_deleted_notes",
            )

    def _check_node(self, client: Client) -> None:
        """Errors: ``NodeUnreachable``; ``InvalidConfiguration``, ``InvalidMessage``: the node
        cannot do it."""
        status = client.status()
        if "replication" in status and not self._source.is_kafka:
            raise InvalidConfiguration(
                "each peer has embedded topics of its own, so none has all notes",
                got="an embedded topic, and a node with peers",
                remedy="Export the letters, and send them as new messages",
            )
        horizon_ms = int(status["horizon_ms"])
        rate, letters = self.order.rate, self.counts.letters
        if rate is not None and letters / rate * 1000 > horizon_ms:
            raise InvalidMessage(
                "the last letter would be due beyond the horizon",
                got=f"{letters:,} letters, {rate:g} in a second",
                limit=f"{horizon_ms / 1000:,.0f} s",
                remedy="Give a higher rate, or redrive a part of them",
            )
