"""Stores single messages for a thread that waits for each, without buffer, lock or other threads.

Theory: a program that waits for each message gains nothing by buffers, which make many of them
cheap. Here a message becomes a record (``wheel/plain.py``), is written by one call, and its answer
read by the next. The node joins the requests of all such programs, so many threads that store are
cheap, too.

A storer is a producer of its own. A request without an answer is sent again, the same bytes, to the
master of that time, until the client's timeout is over: it is stored once.
"""

from __future__ import annotations

import time

from ..security.secretplace import SecretPlace
from ..wheel.arrowbytes import PlainRow
from ..wheel.backoff import Backoff
from ..wheel.delay import due_time
from ..wheel.errors import NodeUnreachable, NotMaster, NotRunning, SlotwheelError
from ..wheel.ids import MessageId
from ..wheel.plain import encode_records
from ..wheel.protocol import (
    NO_BATCH,
    AppendCommand,
    PriorRow,
    StoredBatch,
    decode_answer,
    decode_stored_one,
    encode_request,
)
from ..wire.channel import Channel, Secure
from ..wire.frames import Kind
from .addresses import Addresses
from .asking import ANSWER_S, EpochOfMaster, Suspicion
from .hello import OF_APPENDS, hello_body, hello_of, new_producer
from .message import FlatMessage
from .predecessor import NamedId
from .tries import Tries

_PAUSE_S = 0.02
_LOOK_S = 0.5
_REMEDY = "Check that the node runs, and how busy it is"


class Storer:
    """The connection of one thread, which reconnects when it breaks."""

    def __init__(
        self,
        addresses: Addresses,
        epoch_of_master: EpochOfMaster,
        *,
        acks: str,
        timeout_s: float,
        secure: Secure | None = None,
        token: SecretPlace | None = None,
    ) -> None:
        self._addresses = addresses
        self._secure = secure
        self._token = token
        self._suspicion = Suspicion(addresses, epoch_of_master)
        self._epoch = 0
        self._timeout_s = timeout_s
        self._command = AppendCommand(new_producer(), acks)
        self._sequence = 0
        self._channel: Channel | None = None
        self._served = False  # by it
        self._ended = False
        self._group = ""

    def store(self, flat: FlatMessage) -> str:
        """Send a message, wait until it is stored. Returns its id. Errors: ``SlotwheelError``."""
        body = encode_records([plain_row(flat)])
        sequence = self._sequence
        self._sequence += 1
        metadata = encode_request(sequence, None, 1)
        end = time.monotonic() + self._timeout_s
        tries = Tries()
        backoff: Backoff | None = None
        while True:
            try:
                if self._channel is None:
                    self._channel = self._open(end)
                    if self._ended:  # while there was none
                        raise NotRunning("the client was closed")
                tries.sent()
                self._channel.send(Kind.ROWS, metadata, body)
                answer = self._answer(self._channel, flat, sequence, end)
            except SlotwheelError as error:
                self._close()
                failed = error
            except BaseException:  # interrupted: the next call would get the answer to this one
                self._close()
                raise
            else:
                if isinstance(answer, str):
                    if not self._served:
                        self._served = True
                        self._addresses.served()
                    return answer
                failed = answer
                tries.refused(failed)
                if not failed.retryable:
                    raise failed.in_doubt() if tries.in_doubt else failed
                if isinstance(failed, NotMaster | NotRunning):
                    self._close()
            backoff = backoff or Backoff(_PAUSE_S)
            self._served = False
            self._wait_for_another(failed, end, backoff, uncertain=tries.in_doubt)

    def end(self) -> None:
        """Let the call that is under way fail, and the next one; from another thread."""
        self._ended = True
        channel = self._channel
        if channel is not None:
            channel.shut()

    def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self, end: float) -> Channel:
        address = self._addresses.current
        wait_s = min(max(0.05, end - time.monotonic()), self._addresses.attempt_s)
        body = hello_body(self._command, self._token)
        channel = Channel.open(address, body, OF_APPENDS, wait_s, secure=self._secure)
        try:
            hello = hello_of(channel.welcome)
            hello.check_master()
        except BaseException:
            channel.close()
            raise
        self._group, self._epoch = hello.group, hello.epoch
        self._served = False
        return channel

    def _answer(
        self, channel: Channel, flat: FlatMessage, sequence: int, end: float
    ) -> str | SlotwheelError:
        """The message's id, or the error with which it is refused. Errors: ``SlotwheelError``: the
        connection has failed."""
        several = self._addresses.several
        asked_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s >= end or now_s - asked_s >= ANSWER_S:
                raise NodeUnreachable("no answer in time", remedy=_REMEDY)
            left_s = min(end - now_s, asked_s + ANSWER_S - now_s)
            frame = channel.receive(min(_LOOK_S, left_s) if several else left_s)
            if frame is None:
                if several and self._suspicion.proves_true(self._epoch, time.monotonic() - asked_s):
                    raise NodeUnreachable("the master is silent, and was replaced")
                continue
            body = bytes(frame.body)
            stored = decode_stored_one(body)
            if stored is not None:
                number, offset, created_ms, check = stored
                if number == sequence:
                    return self._id(flat, created_ms, offset, check, None)
                continue
            answer = decode_answer(body)
            if isinstance(answer, StoredBatch):
                if answer.sequence == sequence and answer.count == 1:
                    [check] = answer.checks.tolist()
                    offset, created_ms = answer.base_offset, answer.created_ms
                    return self._id(flat, created_ms, offset, check, answer.prior.get(0))
            else:
                if answer.sequence == sequence:
                    return answer.error
                if answer.sequence == NO_BATCH:
                    raise answer.error

    def _id(
        self, flat: FlatMessage, created_ms: int, offset: int, check: int, prior: PriorRow | None
    ) -> str:
        due_ms = due_time(flat.due, created_ms)
        message_id = str(MessageId(self._group, due_ms, offset, check))
        return NamedId.of(message_id, prior, self._group) if flat.is_named else message_id

    def _wait_for_another(
        self, failed: SlotwheelError, end: float, backoff: Backoff, *, uncertain: bool
    ) -> None:
        """Pause before another try. Errors: ``failed``, when there is no time for one, or it would
        not help."""
        if self._ended:
            failed = NotRunning("the client was closed")
            raise failed.in_doubt() if uncertain else failed
        addresses = self._addresses
        at_once = hopeless = False
        if self._channel is None:
            doubt = isinstance(failed, NodeUnreachable)
            at_once = addresses.failed(addresses.current, failed, doubt=doubt)
            hopeless = addresses.hopeless
        reason = addresses.explain(failed)
        pause_s = 0.0 if at_once else min(addresses.pause_max_s, backoff.failed())
        pause_s = max(pause_s, failed.retry_after_ms / 1000)
        if hopeless or time.monotonic() + pause_s > end:
            raise reason.in_doubt() if uncertain else reason
        time.sleep(pause_s)


def plain_row(flat: FlatMessage) -> PlainRow:
    """A message as a plain row."""
    headers = [(name.encode(), value) for name, value in flat.headers]
    return flat.due, flat.topic.encode(), flat.partition, flat.key, flat.value, headers
