"""The course of a redrive: count, check, begin, send, sum up. It asks nobody and prints nothing.

What was counted is kept in a spool, so it is what is sent, less what another redrive has sent
meanwhile. Whatever stops it, it is begun again to go on: nothing has to be remembered but what the
notes say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..client import Client
from ..client.resending import Resending
from ..policy.deadletters import notes_topic
from ..reading.kafka.dump import NewTopic, no_such_topic
from ..wheel.checks import check_topic
from ..wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError
from .again import AGAIN, as_messages
from .letters import sendable
from .notes import Redriven
from .redrive import Sending, begin
from .source import LetterSource, Topic, create
from .spool import Spool

NOTES_DELETED = "Kafka has deleted the oldest notes: letters that they name would be sent again"


@dataclass(frozen=True, slots=True)
class RedriveOrder:
    """What is asked for. ``rate``: so many letters are due in a second; None: all at once.
    ``address``: of the node through which they go, which is tried for ``timeout_s``."""

    to_topic: str | None
    rate: float | None
    create_topics: bool
    despite_deleted_notes: bool
    address: str
    timeout_s: float

    def check(self, topic: str) -> None:
        """``topic``: of the dead letters. Errors: ``InvalidMessage``."""
        if self.to_topic is not None:
            check_topic(self.to_topic)
        if self.to_topic in (topic, notes_topic(topic)):
            raise InvalidMessage(
                "letters cannot be redriven to where they lie",
                got=self.to_topic,
                remedy="Name another topic, or none: then they go where they were meant to",
            )


@dataclass(slots=True)
class RedriveCounts:
    """What became of the letters that were asked for. ``topics``: how many go to which."""

    topics: Counter[str] = field(default_factory=Counter)
    before: int = 0
    """Redriven before."""
    not_sendable: int = 0

    @property
    def letters(self) -> int:
        """How many are to be sent."""
        return self.topics.total()


class RedriveCourse:
    """One redrive of letters in ``topic``, which is ``opened``. ``redriven``: by notes that are all
    there (``redriven_before`` with ``whole``). Leaving the ``with`` block drops what was counted.

    Errors: ``InvalidMessage`` if there is no topic of notes, and none is to be created or needed.
    """

    def __init__(
        self,
        order: RedriveOrder,
        source: LetterSource,
        topic: str,
        opened: Topic,
        redriven: Redriven,
        *,
        dry_run: bool,
    ) -> None:
        self.order = order
        self.counts = RedriveCounts()
        self.redriven = redriven
        self.sending: Sending | None = None
        """None: it has not come to that."""
        self._source = source
        self._topic = topic
        self._opened = opened
        self._notes = notes_topic(topic)
        self._no_notes = source.is_kafka and self._notes not in opened.topics
        if self._no_notes and not (dry_run or order.create_topics):
            error = no_such_topic(self._notes, opened.topics)
            error.remedy = (
                "What was redriven is noted there: let it be created, by --create-topics, or over"
                f" HTTP create_topics. {error.remedy}"
            )
            raise error
        self._spool = Spool(AGAIN)

    def __enter__(self) -> RedriveCourse:
        return self

    def __exit__(self, *error: object) -> None:
        self._spool.close()

    def count(self, letters: Iterable[pa.RecordBatch]) -> None:
        """Count letters (schema ``LETTER``), and keep those that are to be sent."""
        counts, to_topic = self.counts, self.order.to_topic
        for batch in letters:
            again = self.redriven.has(batch)
            can = sendable(batch, to_topic)
            counts.before += int(again.sum())
            counts.not_sendable += int((~again & ~can).sum())
            wanted = pa.array(~again & can)
            if wanted.true_count:
                rows = as_messages(batch.filter(wanted), to_topic)
                for one in rows.column("topic").value_counts().to_pylist():
                    counts.topics[one["values"]] += one["counts"]
                self._spool.add(rows)

    def check(self) -> None:
        """Whether what was counted can be sent. Errors: ``InvalidConfiguration`` if notes are
        missing, and nobody said that it may be so; ``InvalidMessage`` for a topic that cannot be
        sent to."""
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
        """Send what was counted. ``report``: called with the place of a letter that was refused,
        and why; ``step``: with how many more are done. ``stopped``: whether to send no more.

        Errors: those of the node, of Kafka and of the disk; ``sending`` says how far it came."""
        order = self.order
        with closing(Client(order.address, timeout_s=order.timeout_s)) as client:
            self._check_node(client)
        if self._no_notes:
            policy = {"retention.ms": "-1", "cleanup.policy": "delete"}
            create(self._opened, NewTopic(self._notes, 1, policy))
        turn = begin(self._source, self._topic, order.address, order.timeout_s, self.redriven)
        self.redriven = turn.redriven

        def refused(number: int, error: SlotwheelError) -> None:
            report(sending.place(number), error)

        resending = Resending(0, refused)
        self.sending = sending = Sending(turn, resending, order.rate)
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
        """How many letters were to be sent and are neither stored nor refused, as far as is
        known."""
        sending = self.sending
        done = 0 if sending is None else sending.resending.done + sending.meanwhile
        return self.counts.letters - done

    def summary(self) -> dict[str, Any]:
        """What was done so far, as JSON-able data."""
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
        """Errors: ``NodeUnreachable``; what the node cannot do."""
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
