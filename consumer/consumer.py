"""The consumer, by which an application receives messages and answers for each.

    with Consumer("orders", "billing", bootstrap="localhost:9092", retry="1s 10s 1m") as consumer:
        for message in consumer:
            try:
                charge(message.value)
            except CardIsDown as error:
                consumer.retry(message, error)
            else:
                consumer.done(message)

Theory: one thread of its own (``pump``) reads, commits and takes part in the group; so neither a
slow handler nor a full queue costs the member its place in the group. The application's threads
take messages and answer for them; both sides meet in ``InFlight``. A position is committed up to
the first message that is not finished. So a crash loses none, and repeats those that were not
finished, or were finished since the last commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from ..broker.header_names import UNREADABLE
from ..client.addresses import Nodes
from ..client.message import Headers, Message, encoded, flatten
from ..policy.deadletters import BAD_RECORD, BURIED, DEAD_LETTER_TOPIC, EXPIRED, REFUSED
from ..wheel.errors import InvalidConfiguration, InvalidMessage, NotRunning
from ..wheel.rows import Content
from .failing import Cause
from .message import OutputRecord, Received, SourcePartition, expiry
from .observing import ConsumerObserver
from .parts import Parts, Wanted
from .pump import Pump
from .running import run
from .transactions import Transactor

MIB = 1 << 20
_FEW = 64


class Consumer:
    """A member of the consumer group ``group``, which reads ``topics`` and the group's retry topic,
    ``<group>-retry``. Thread-safe: its messages may be handled by many threads.

    - ``bootstrap``: brokers of Kafka; or ``data``: the data directory of a node, whose embedded
      topics are read. ``client``: ``"kafka-python"``, or ``"confluent"`` (the extra ``fast``).
    - ``wheel``: the node that brings retries back at their time; by default the one on this
      machine.
    - ``retry``: a retry policy's name at that node, or levels: ``"1s 10s 1m"``.
    - ``where``: a rule over headers; other messages are left out. All members of a group need the
      same one.
    - ``dead_letter_topic``: for messages that are given up, unless the policy names another.
    - ``create_topics``: make the retry topic and the dead-letter topic if they do not exist.
    - ``transactional``: outputs (``send``), retries, dead letters and positions go to Kafka in one
      transaction. Retries then go through ``delay_topic``, from which a node takes them; ``wheel``
      is asked only if it is given. ``transactional_id``: one of its own for each member, the same
      after a restart: the open transaction of a crashed process is then ended at once, else after
      10 s. Of two members with the same one, one ends with ``ConsumerFailed``.
    - ``messages_max``, ``bytes_max``: the most messages, and bytes of them, that are read and not
      finished.
    - ``kafka``: further settings of the client, in librdkafka's names whichever client it is:
      ``{"security.protocol": "SASL_SSL", …}``.
    - ``observer``: gets the events of messages; a ``Tracer``, for example (``slotwheel.trace``).
    - ``wait_s``: the longest time at the start in which the consumer waits for a node or brokers
      that do not answer, which it logs once; None: for as long as it takes.

    Errors: ``InvalidConfiguration``, also for a topic that does not exist, and for brokers that
    refuse the login; ``InvalidMessage`` for an unknown policy; ``NodeUnreachable`` after
    ``wait_s``, also for brokers; ``DirectoryInUse``.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        bootstrap: str | None = None,
        data: str | os.PathLike[str] | None = None,
        client: str = "kafka-python",
        wheel: str | Sequence[str] | Nodes | None = None,
        retry: str = "default",
        where: Mapping[str, Any] | None = None,
        transactional: bool = False,
        transactional_id: str | None = None,
        delay_topic: str | None = None,
        dead_letter_topic: str = DEAD_LETTER_TOPIC,
        create_topics: bool = False,
        messages_max: int = 10_000,
        bytes_max: int = 64 * MIB,
        kafka: Mapping[str, Any] | None = None,
        observer: ConsumerObserver | None = None,
        wait_s: float | None = None,
    ) -> None:
        wanted = Wanted(
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            group=group,
            bootstrap=bootstrap,
            data=data,
            client=client,
            wheel=wheel,
            retry=retry,
            where=where,
            transactional=transactional,
            transactional_id=transactional_id,
            delay_topic=delay_topic,
            dead_letter_topic=dead_letter_topic,
            create_topics=create_topics,
            messages_max=messages_max,
            bytes_max=bytes_max,
            kafka=kafka or {},
            observer=observer,
            wait_s=wait_s,
        )
        self.group = group
        self._parts = Parts(wanted)
        self._inflight, self._outbox = self._parts.inflight, self._parts.outbox
        self._transactor = self._parts.transactor
        self._observer = observer
        self._current = threading.local()
        self._known: dict[str, int] = {}
        self._pid = os.getpid()
        self._pump = Pump(self._parts)

    # Receiving

    def __iter__(self) -> Iterator[Received]:
        """The messages; waits for the next one, and ends when the consumer is closed, or Ctrl-C
        comes while it waits: then it is closed, too. A few are taken at a time: several threads
        share them better by ``take(1)``, or ``run``.

        Errors: ``ConsumerFailed``."""
        observed = self._observer is not None
        while messages := self._next():
            at = 0
            try:
                for message in messages:
                    at += 1
                    if not message.lane.closed and self._is_wanted(message):
                        self._current.message = message
                        if observed:
                            message.received_s = time.monotonic()
                        yield message
            finally:
                if at < len(messages):
                    self._inflight.put_back(messages[at:])

    def _next(self) -> list[Received]:
        try:
            return self._taken(_FEW, None)
        except KeyboardInterrupt:
            self.close()
            return []

    def take(self, count: int, timeout_s: float | None = None) -> list[Received]:
        """The next messages, up to ``count``; waits for the first one. Empty after ``timeout_s``,
        and when the consumer is closed. Errors: ``ConsumerFailed``."""
        self._current.message = None
        while messages := self._taken(count, timeout_s):
            if deliverable := [message for message in messages if self._is_wanted(message)]:
                if self._observer is not None:
                    now_s = time.monotonic()
                    for message in deliverable:
                        message.received_s = now_s
                return deliverable
        return []

    def _taken(self, count: int, timeout_s: float | None) -> list[Received]:
        self._check_process()
        messages = self._inflight.take(count, timeout_s)
        self._pump.check()
        if self._observer is not None and messages:
            self._observer.received(self.group, messages)
        return messages

    def _is_wanted(self, message: Received) -> bool:
        """Returns True when the application gets the message; else it is a dead letter by now."""
        if message.headers is UNREADABLE:
            self._bury(message, BAD_RECORD, Cause("a header's name is not UTF-8: none can be read"))
            return False
        if self._pump.refused:
            place = SourcePartition(message.topic, message.partition), message.offset
            if reasons := self._pump.refused.get(place):
                error = Cause(f"its output is refused: {reasons[0]}")
                self._bury(message, REFUSED, error, short=len(reasons) > 1)
                self._known.clear()  # a topic may have gone
                return False
        if message.headers:
            expires_ms = expiry(message.headers, message.timestamp_ms)
            if expires_ms is not None and expires_ms <= (now_ms := self._parts.clock.now_ms()):
                error = Cause(f"expired {now_ms - expires_ms} ms ago")
                self._bury(message, EXPIRED, error)
                return False
        return True

    # Answers. Of several answers for a message the first one counts.

    def done(self, *messages: Received) -> None:
        """Answer that messages are processed."""
        first = self._inflight.done(messages)
        if self._observer is not None:
            self._observer.processed(self.group, first, None)

    def retry(self, message: Received, error: BaseException | str = "") -> None:
        """Answer that a message could not be processed now: it comes again after the policy's next
        level, or becomes a dead letter past the last one. Its outputs (``send``) do not leave."""
        cause = Cause.of(error)
        reason = self._outbox.retry(message, cause)
        if self._observer is not None and reason is not None:
            self._observer.processed(self.group, [message], cause.error)
            if reason:
                self._observer.buried(self.group, message, reason)
            else:
                self._observer.retried(self.group, message)

    def dead(self, message: Received, reason: BaseException | str = "") -> None:
        """Answer that a message can never be processed: it becomes a dead letter."""
        self._bury(message, BURIED, Cause.of(reason), processed=True)

    def _bury(
        self,
        message: Received,
        reason: str,
        cause: Cause,
        *,
        short: bool = False,
        processed: bool = False,
    ) -> None:
        """``processed``: the application has seen it."""
        first = self._outbox.bury(message, reason, cause, short=short)
        if self._observer is not None and first:
            if processed:
                self._observer.processed(self.group, [message], cause.error)
            self._observer.buried(self.group, message, reason)

    def send(
        self,
        topic: str,
        value: Content = None,
        *,
        key: Content = None,
        headers: Headers = (),
        partition: int | None = None,
        message: Received | None = None,
    ) -> None:
        """Send a record to Kafka together with the position behind ``message`` (by default the one
        that this thread got last), or not at all. It leaves when the message is done.

        Errors: ``InvalidConfiguration`` without ``transactional=True``; ``InvalidMessage``, also
        for a topic or partition that does not exist; ``NotRunning`` for a message that has been
        answered.
        """
        if self._transactor is None:
            raise InvalidConfiguration(
                "this consumer has no transactions",
                got="transactional=False",
                remedy="Make it with transactional=True, or send with a producer of your own",
            )
        source = message if message is not None else getattr(self._current, "message", None)
        if source is None:
            raise InvalidMessage(
                "an output without its message",
                remedy="Say message=…, of whichever message this is an output",
            )
        flat = flatten(Message(topic, value, key, partition=partition, due=0))
        # All names are allowed here: an output may ask a node for a delay.
        pairs, _ = encoded(list(headers.items()) if isinstance(headers, Mapping) else headers)
        self._check_target(self._transactor, topic, flat.partition)
        output = OutputRecord(topic, flat.value, flat.key, pairs, flat.partition)
        if not self._inflight.put_out(source, output):
            raise NotRunning(
                "the message has been answered, or is another member's now",
                got=f"{source.topic}/{source.partition}/{source.offset}",
                remedy="Send before done; a handler that was given up can send nothing more",
            )

    def _check_target(self, transactor: Transactor, topic: str, partition: int | None) -> None:
        least = (partition or 0) + 1
        if self._known.get(topic, 0) >= least:
            return
        count = transactor.partitions(topic)
        if count is not None and count < least:
            raise InvalidMessage(
                "no such partition" if count else "no such topic",
                got=f"{topic}/{partition}" if count else topic,
                limit=f"{count} partitions" if count else None,
                remedy="Create it, or correct the name or the number",
            )
        self._known[topic] = count or 0

    def commit(self, timeout_s: float = 10.0) -> None:
        """Commit finished messages now, and wait for it; it happens by itself about twice a second.
        ``message.committed`` is True for each of them, except for messages of a partition that is
        another member's by now, or begins again.

        Errors: ``TimeoutError``, also when the consumer is closed; ``ConsumerFailed``."""
        self._pump.commit(timeout_s)

    def run(
        self,
        handler: Callable[[Received], object],
        *,
        workers: int = 1,
        limit_s: float = 30.0,
        processes: bool = False,
    ) -> None:
        """Call ``handler`` for each message, until ``close``, Ctrl-C or SIGTERM; then close.

        A message is done when the handler returns. When it raises, or takes longer than
        ``limit_s``, the message is retried; a handler that hangs is left behind, and its answer is
        ignored. ``processes``: each worker is a process, so that a handler may also crash it, and
        one that hangs is killed; then it must be importable, gets no ``Consumer``, and cannot
        ``send``.

        Errors: ``ConsumerFailed``.
        """
        run(self, handler, workers=workers, limit_s=limit_s, processes=processes)

    def handling(self, message: Received) -> None:
        """Make ``message`` the one that this thread's outputs belong to by default."""
        self._current.message = message

    # Life

    def check(self) -> None:
        """Errors: ``ConsumerFailed``, or another error that has ended the consumer."""
        self._pump.check()

    def close(self) -> None:
        """Commit finished messages, leave the group and end, within two seconds. The member that
        reads next gets the others again. May be called again."""
        if os.getpid() == self._pid:
            self._pump.close()

    @property
    def closed(self) -> bool:
        return self._pump.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotRunning(
                "the consumer was made before this process was forked",
                remedy="Make a Consumer in each process",
            )
