"""Exactly once into Kafka: rows and mark in one transaction.

Theory: the mark is committed inside the Kafka transaction that carries the rows, so whoever reads
committed records sees both or neither. Kafka's mark is therefore the truth about what has left; the
journal's follows it. One transaction is open at a time, and carries one chunk of one line.

At the beginning of an epoch, and after every outcome that is not certain, in this order:

    1  both transactional ids are taken over: who used them before can commit nothing more
    2  Kafka's mark is read, with its committed transactions only
    3  a transaction commits that mark as this epoch's own
    4  the journal says that Kafka holds the mark; only then the first chunk is handed out

Rules
- A mark of a later epoch in Kafka: another master has begun. This one delivers nothing.
- No mark in Kafka although the journal says that there is one: it was deleted, with the topic of
  the dead letters, for example. Where each commit of this epoch was seen to end, or the journal
  proves that no message beyond its mark was handed out, delivery goes on. Else nobody knows what
  has left, and nothing is delivered until a person accepts repeats.
- A row that the broker refuses ends its transaction. The same rows are sent again, that one as a
  dead letter in the same transaction.
- A topic that takes nothing now ends it, too. The topic is held back with all its rows: that is in
  the journal before Kafka's mark speaks of it.

See docs/durability.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...wheel.due.chunk import Chunk
from ...wheel.errors import SlotwheelError
from ...wheel.mark import BY_KAFKA, Marks
from ...wheel.schema import Mask, times
from ..deadletters import DeadLetters
from ..handover import BatchOutcome, hand_over
from ..ports import DeliveryEvents, DuePort
from ..semantics import AtLeastOnce, NotReady
from ..sink import Answer, Answers, Sink, deliver_rest
from .plan import SendFailure, SendPlan
from .sink import KafkaSink
from .sinkmark import ForeignMark, NamesMissing, decode, encode, epoch_of, group_print
from .topicbook import NotYet, Unreachable
from .transactions import Aborted, Fenced, StoredMark, Transactions, Unclear

IDLE_COMMIT_S = 24 * 3600.0
"""When nothing is due, the mark is committed again after this time, s: Kafka forgets the offset of
a group without members, after 7 days by default."""
_TRIES = 4
_SINGLY_ROWS = 256
"""The most rows of a transaction whose records are sent one by one."""


class _LaterEpoch(NotReady):
    """Kafka's mark was made later than this node's epoch."""


class KafkaExactlyOnce(AtLeastOnce):
    """Delivers chunks in transactions. ``local`` is the last resort of dead letters, outside the
    transaction. ``alone``: no other node can be the master. ``accept_repeats``: it begins once also
    where nobody knows which rows have left."""

    in_turn = True

    def __init__(
        self,
        sink: KafkaSink,
        dead_letter_topic: str,
        events: DeliveryEvents,
        *,
        local: Sink | None = None,
        alone: bool = True,
        accept_repeats: bool = False,
    ) -> None:
        assert sink.transactions is not None, "the sink has no transactions"
        self._transactions = sink.transactions
        self._inside = _InTransaction(sink, sink.transactions)
        super().__init__(sink, DeadLetters(self._inside, local, dead_letter_topic))
        self._sink = sink
        self._events = events
        self._group = b""
        self._alone = alone
        self._accept_repeats = accept_repeats
        self._committed_s = time.monotonic()
        self._last: Marks | None = None
        """The marks that were committed last."""

    # -- the beginning of an epoch ---------------------------------------------------------------

    def begin(self, wheel: DuePort, now_ms: int) -> None:
        if not wheel.settle(now_ms):
            raise NotReady("the journal's mark is not committed yet")
        try:
            self._check_dead_letter_topic()
            self._group = group_print(self.sink.mint)  # its key is known by now
            stored = self._transactions.start()
            marks, certain = self._decide(stored, wheel)
            self._transactions.begin()
            self._commit(replace(marks, epoch=wheel.marks.epoch))
            wheel.resume(now_ms, marks, exact=BY_KAFKA, certain=certain)
        except (Fenced, Unclear, Aborted) as error:
            raise NotReady(_text(error)) from error
        except (Unreachable, SlotwheelError) as error:
            raise NotReady(str(error)) from error
        self._accept_repeats = False  # the permission is for one beginning

    def _check_dead_letter_topic(self) -> None:
        topic = self.dead_letters.topic
        try:
            info = self._sink.book.lookup(topic, fresh=True)
        except NotYet as error:
            raise NotReady(str(error)) from error
        if info is None:
            raise NotReady(
                f"the dead-letter topic {topic} does not exist, and exactly-once needs it: refused"
                " messages go there in the same transaction. Create it"
            )

    def _decide(self, stored: StoredMark | None, wheel: DuePort) -> tuple[Marks, bool]:
        """Returns the newer of Kafka's marks and the journal's; and False if a person's permission
        to repeat stood in for an answer: cancels of earlier rows then stay *unknown*.

        Errors: ``NotReady``, ``ForeignMark``."""
        if stored is not None and stored.members:
            self._events.alarm(
                "group-has-members",
                reason=f"{stored.members} consumers are members of the group that keeps the mark;"
                " end them: they may overwrite it",
            )
        known = wheel.marks
        try:
            if stored is None and known.exact:
                return self._without_mark(known, wheel), True
            return self._newer(stored, known, wheel.end_offset), True
        except (ForeignMark, NotReady) as error:
            if not self._accept_repeats or (isinstance(error, _LaterEpoch) and not self._alone):
                raise
            self._events.alarm("repeats-accepted", reason=str(error))
            return known, False

    def _without_mark(self, known: Marks, wheel: DuePort) -> Marks:
        """Returns the marks to go on from although Kafka's mark is gone, as it is when the
        dead-letter topic is deleted. Errors: ``NotReady``: other rows may have left."""
        last = self._last
        if last is not None and last.epoch == known.epoch and not self._transactions.in_doubt:
            return last if last.follows(known) else known  # each commit of this epoch has been seen
        if not wheel.may_have_left():
            return known
        raise NotReady(
            "Kafka holds no mark of this group any more, so nobody knows which of the last"
            " messages have left. Find out why it is gone (another cluster, deleted offsets, the"
            " dead-letter topic deleted: 'slotwheel dead purge' empties it and leaves the mark);"
            " then start the node once with --accept-repeats"
        )

    def _newer(self, stored: StoredMark | None, known: Marks, end_offset: int) -> Marks:
        if stored is None:
            return known
        epoch = epoch_of(stored.metadata, self._group)
        if epoch > known.epoch:
            raise _LaterEpoch(
                f"Kafka's mark is of epoch {epoch}, this node is in {known.epoch}: another"
                " master has begun, or the data directory is an old copy"
            )
        try:
            marks = decode(stored.metadata, self._group, known.copies)
        except NamesMissing:
            return known  # the topic was released since
        if marks.resets > known.resets:
            raise NotReady(
                f"Kafka's mark was set back {marks.resets} times, this node's {known.resets}: the"
                " data directory is an old copy"
            )
        if max(mark.L for mark in marks.every) >= end_offset:
            raise NotReady(
                f"Kafka's mark covers messages up to number {marks.main.L}, this node has only"
                f" {end_offset}: the data directory is an old copy"
            )
        if marks.follows(known):
            return marks.with_former(known)  # former marks have no room in Kafka's text
        if known.follows(marks):
            return known
        raise NotReady("Kafka's mark and the journal's contradict each other")

    # -- delivery --------------------------------------------------------------------------------

    def deliver(
        self, wheel: DuePort, chunk: Chunk, clock: Callable[[], int], *, trial: bool = False
    ) -> BatchOutcome:
        del trial
        count = upto = chunk.rows.num_rows
        inside = self._inside
        inside.forget()
        outcome = _nothing(count)
        tries = 0
        topics = chunk.rows.column("topic").unique().to_pylist()
        try:
            while tries < _TRIES and not self.stopping():
                if self._sink.sends_singly(topics):
                    upto = min(upto, _SINGLY_ROWS)
                inside.begin()
                attempt = hand_over(inside, self.dead_letters, chunk.rows.slice(0, upto), clock())
                if attempt.complete and not inside.broken:
                    outcome = _nothing(count)
                    outcome.add(attempt, np.arange(upto))
                    try:
                        self._commit(
                            wheel.after(
                                chunk,
                                outcome.answered,
                                attempt.dead.total(),
                                expired=attempt.expired,
                                sink_down=outcome.stop,
                            )
                        )
                    except Aborted as error:
                        outcome = _nothing(count, str(error))
                        tries += 1
                        continue
                    return outcome
                self._transactions.abort()
                outcome.errors, outcome.why_not = attempt.errors, attempt.why_not
                outcome.reasons = attempt.reasons
                if inside.learned:  # the same rows again, the refused ones as dead letters
                    if self._sink.sends_singly(topics):  # a try finds only the first bad row
                        upto = inside.behind_refused(chunk.rows) or upto
                    continue
                if attempt.down:
                    break
                upto = self._make_way(wheel, chunk, ~attempt.answered, outcome)
                if not upto:
                    return outcome
                tries += 1
        except (Fenced, Unclear) as error:
            outcome = _nothing(count, _text(error))
            outcome.unknown[:] = True
            outcome.begin_again = True
        except SlotwheelError as error:  # the broker refuses the transaction; nothing counts
            outcome = _nothing(count, str(error))
            outcome.begin_again = True
        outcome.why_not = outcome.why_not or "no transaction could be committed"
        outcome.down = True
        return outcome

    @staticmethod
    def _make_way(wheel: DuePort, chunk: Chunk, left: Mask, outcome: BatchOutcome) -> int:
        """The topics of ``left`` rows take nothing now. Let them be held back, as far as there is
        room, and return 0; without room, return how many rows stand before the first of them and
        can be tried without it."""
        room = wheel.room if chunk.topic is None else 0
        if room:
            topics = chunk.rows.column("topic").take(pa.array(np.flatnonzero(left)))
            outcome.hold = topics.unique().to_pylist()[:room]
            return 0
        return int(np.flatnonzero(left)[0])

    def idle(self, wheel: DuePort, now_ms: int) -> None:
        if time.monotonic() - self._committed_s < IDLE_COMMIT_S or not wheel.settle(now_ms):
            return
        try:
            self._transactions.begin()
            self._commit(wheel.marks)
        except (Fenced, Unclear, Aborted, SlotwheelError) as error:
            raise NotReady(_text(error)) from error

    def _commit(self, marks: Marks) -> None:
        self._transactions.commit(marks.answered, encode(marks, self._group))
        self._committed_s = time.monotonic()
        self._last = marks


def _text(error: Exception) -> str:
    return f"{type(error).__name__.lower()}: {error}"


def _nothing(count: int, why: str = "") -> BatchOutcome:
    """An outcome without answers: the chunk's ``count`` rows come again."""
    return BatchOutcome.nothing(count, why, stop=True)


class _InTransaction(Sink):
    """A Kafka sink whose records go into the open transaction. It remembers which rows the broker
    refused. After a failure it sends nothing more: the transaction has to be aborted."""

    def __init__(self, sink: KafkaSink, transactions: Transactions) -> None:
        super().__init__(sink.mint)
        self._sink = sink
        self._transactions = transactions
        sink.failed = self._learn
        self.forget()

    def forget(self) -> None:
        """Forget the refused rows: another chunk comes."""
        self._refused: dict[tuple[str, int], str] = {}
        """The reasons for which the broker refused records, by topic and offset."""
        self.learned = False
        """True when the broker refused a record of the last transaction."""
        self.broken = False

    def begin(self) -> None:
        """Errors: ``Fenced``, ``Unclear``."""
        self._transactions.begin()
        self.broken = self.learned = False

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        if self.broken:
            return Answers.same(rows.num_rows, Answer.NOT_NOW, "the transaction was aborted")
        reasons = self._reasons(rows) if self._refused else {}
        refused = np.zeros(rows.num_rows, np.bool_)
        refused[list(reasons)] = True
        try:
            answers = deliver_rest(
                rows, refused, lambda part: self._sink.deliver(part, trial=trial)
            )
        except BaseException:
            self.broken = True  # some of them may have been sent
            raise
        answers.reasons |= reasons
        return answers

    def _reasons(self, rows: pa.RecordBatch) -> dict[int, str]:
        """The reasons for which the broker refuses rows, by row number; as far as known."""
        keys = zip(rows.column("topic").to_pylist(), times(rows, "offset").tolist(), strict=True)
        return {at: self._refused[key] for at, key in enumerate(keys) if key in self._refused}

    def behind_refused(self, rows: pa.RecordBatch) -> int:
        """The number of rows up to the last one that is known to be refused, and with it."""
        offsets = {offset for _, offset in self._refused}
        refused = np.flatnonzero(np.isin(times(rows, "offset"), list(offsets)))
        return int(refused[-1]) + 1 if len(refused) else 0

    def _learn(self, plan: SendPlan, failures: dict[int, SendFailure]) -> None:
        self.broken = True
        offsets = times(plan.batch, "offset")
        for row, failure in failures.items():
            if failure.answer is Answer.REFUSED:
                self.learned = True  # its topic is sent one by one from now on
                if not failure.bystander:
                    self._refused[plan.records.topics[row], int(offsets[row])] = failure.reason

    def probe(self, topic: str) -> bool:
        return self._sink.probe(topic)

    def healthy(self) -> bool:
        return self._sink.healthy()

    def close(self) -> None:
        self._sink.close()
