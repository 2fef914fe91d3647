"""The ways of messages that could not be processed: to their next attempt, or to the dead letters.

``WheelOutbox`` hands them to a node, which brings them back at their time; a message is finished
once the node has given its receipt. ``KafkaOutbox`` makes them part of the transaction that also
commits the position: retries go to the delay topic, where a node takes the level; dead letters go
to their topic.

Rules
- A record that the node refuses for good (a retry beyond the horizon, a message that is too large
  with its new headers) becomes a dead letter; one that it does not take now is sent again. So is a
  record for a topic that Kafka does not have: otherwise a retry topic that was deleted by mistake
  would bury every message that fails meanwhile, and a dead letter to a missing topic would be lost.
- Nothing waits here: the consumer's own thread calls ``settle`` again and again. The client gets
  only as much at a time as its buffer takes; while the node is away, the others stay here.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import NamedTuple

from ..client import Client, Message, Receipts
from ..policy.deadletters import EXPIRED, UNUSABLE_RETRY
from ..policy.failure import Failure
from ..wheel.checks import is_reserved
from ..wheel.errors import InvalidMessage, SlotwheelError, UnknownTopic
from ..wheel.expiry import BEFORE_DUE
from .failing import LETTER_BYTES_MAX, Cause, Failing
from .inflight import InFlight
from .message import OutputRecord, Received

_log = logging.getLogger("slotwheel.consumer")

SENT_BYTES_MAX = 32 << 20
"""The most bytes that are sent and have no receipt: half of the client's buffer."""
_MISSING_S = 1.0
"""Nothing is sent for so long, s, after a topic was missing."""
_ROW_BYTES, _HEADER_BYTES = 500, 20
"""The most bytes that a record and a header take in that buffer besides their content."""


class _Row(NamedTuple):
    """The record that is sent for a message, and an estimate of its bytes."""

    message: Received
    record: Message
    nbytes: int


class ConsumerOutbox(ABC):
    """Answers for failed messages once their record is safe. Thread-safe, except ``settle``."""

    @abstractmethod
    def retry(self, message: Received, cause: Cause) -> str | None:
        """Answer a message with another attempt. Returns the reason of the dead letter that it
        becomes instead, or an empty text; None: it had an answer, or is another member's."""

    @abstractmethod
    def bury(self, message: Received, reason: str, cause: Cause, *, short: bool = False) -> bool:
        """Answer a message with a dead letter; ``short``: without its content, which the topic does
        not take. Returns False if it had an answer, or is another member's."""

    @abstractmethod
    def settle(self) -> int:
        """Send records that wait, and finish messages whose record has its receipt. Returns the
        number of messages without."""

    @abstractmethod
    def close(self, timeout_s: float) -> None: ...


class WheelOutbox(ConsumerOutbox):
    """Sends by a client of a node, which connects when the first message fails."""

    def __init__(self, client: Client, failing: Failing, inflight: InFlight) -> None:
        self._client, self._failing, self._inflight = client, failing, inflight
        self._lock = threading.Lock()
        self._waiting: list[_Row] = []
        self._sent: list[tuple[list[_Row], Receipts]] = []
        self._sent_bytes = 0
        self._wait_until_s = 0.0

    def retry(self, message: Received, cause: Cause) -> str | None:
        failure = self._failing.again(message, cause)
        answered = self._answer(message, _whole(message, failure), failure.delay_ms)
        return failure.reason if answered else None

    def bury(self, message: Received, reason: str, cause: Cause, *, short: bool = False) -> bool:
        letter = _letter(self._failing, message, reason, cause, short)
        return self._answer(message, letter)

    def _answer(self, message: Received, output: OutputRecord, delay_ms: int = 0) -> bool:
        row = _row(message, output, delay_ms)
        first = self._inflight.answer(message)
        if first:
            self._add(row)
        return first

    def _add(self, row: _Row) -> None:
        with self._lock:
            self._waiting.append(row)

    def settle(self) -> int:
        self._sent = [
            (batch, receipts)
            for batch, receipts in self._sent
            if not self._settled(batch, receipts)
        ]
        if time.monotonic() >= self._wait_until_s and (batch := self._next()):
            self._sent.append((batch, self._client.send_many(row.record for row in batch)))
        return len(self._waiting) + sum(len(batch) for batch, _ in self._sent)

    def _next(self) -> list[_Row]:
        """Take the records that wait, as many as the client takes at once."""
        count = 0
        with self._lock:
            # Another member reads the messages of a closed lane again.
            self._waiting = [row for row in self._waiting if not row.message.lane.closed]
            for row in self._waiting:
                if self._sent_bytes and self._sent_bytes + row.nbytes > SENT_BYTES_MAX:
                    break
                self._sent_bytes += row.nbytes
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _settled(self, batch: list[_Row], receipts: Receipts) -> bool:
        """Returns False while receipts of a batch are missing. Otherwise the stored messages are
        finished, and the others wait again."""
        if not receipts.done():
            return False
        stored: list[Received] = []
        away: SlotwheelError | None = None
        for row, receipt in zip(batch, receipts, strict=True):
            self._sent_bytes -= row.nbytes
            error = receipt.error(0)
            if error is None:
                stored.append(row.message)
            elif isinstance(error, InvalidMessage) and not isinstance(error, UnknownTopic):
                self._add(self._instead(row, error))
            else:
                away = error
                self._add(row)
        if isinstance(away, UnknownTopic):
            self._wait_until_s = time.monotonic() + _MISSING_S
        if away is not None:
            _log.warning("slotwheel consumer: %s; the node is asked again", away)
        self._inflight.finish(stored)
        return True

    def _instead(self, row: _Row, error: InvalidMessage) -> _Row:
        message, failing = row.message, self._failing
        if row.record.topic == failing.retries and error.message == BEFORE_DUE:
            text = "it expires before its next attempt"
            return _row(message, _letter(failing, message, EXPIRED, Cause(text), short=False))
        _log.warning("slotwheel consumer: the node refuses a message for %s", row.record.topic)
        if row.record.topic == failing.retries:
            letter = _letter(failing, message, UNUSABLE_RETRY, Cause(str(error)), short=False)
        else:
            letter = failing.short_letter(message, str(error))
        return _row(message, letter)

    def close(self, timeout_s: float) -> None:
        self._client.close(timeout_s)


class KafkaOutbox(ConsumerOutbox):
    """Makes records outputs of the transaction that commits the message's position."""

    def __init__(self, failing: Failing, policy: str, delay_topic: str, inflight: InFlight) -> None:
        """``policy``: the name of a retry policy, or levels."""
        self._failing, self._inflight = failing, inflight
        self._policy, self._delay_topic = policy, delay_topic

    def retry(self, message: Received, cause: Cause) -> str | None:
        output = self._failing.for_delay_topic(message, cause, self._policy, self._delay_topic)
        return "" if self._answer(message, output) else None  # the node may bury it later

    def bury(self, message: Received, reason: str, cause: Cause, *, short: bool = False) -> bool:
        letter = _letter(self._failing, message, reason, cause, short)
        if letter.nbytes > LETTER_BYTES_MAX:
            letter = self._failing.short_letter(message, cause.error)
        return self._answer(message, letter)

    def _answer(self, message: Received, output: OutputRecord) -> bool:
        first = self._inflight.answer(message)
        if first:
            self._inflight.give_back(message, output)
        return first

    def settle(self) -> int:
        return 0

    def close(self, timeout_s: float) -> None:
        """Do nothing: the transactor is closed by its owner."""


def _letter(
    failing: Failing, message: Received, reason: str, cause: Cause, short: bool
) -> OutputRecord:
    if short:
        return failing.short_letter(message, cause.error)
    return _whole(message, failing.letter(message, reason, cause))


def _whole(message: Received, failure: Failure) -> OutputRecord:
    return OutputRecord(failure.topic, message.value, message.key, failure.headers)


def _row(message: Received, output: OutputRecord, delay_ms: int = 0) -> _Row:
    headers = [pair for pair in output.headers if not is_reserved(pair[0])]
    delay = timedelta(milliseconds=delay_ms)
    record = Message(output.topic, output.value, output.key, headers, delay=delay)
    return _Row(message, record, output.nbytes + _ROW_BYTES + _HEADER_BYTES * len(headers))
