"""Messages of one event loop on their way to a node: joined, written, repeated until answered.

Theory: a task that awaits a message costs no thread. Messages of one turn of the loop become one
request of plain rows (``wheel/plain.py``); messages that come while ``IN_FLIGHT_MAX`` requests are
unanswered wait for them and leave together. So the load decides how large a request is, and nobody
waits for a timer.

    store --> waiting --> request: sequence, the same bytes each time --> answer --> futures
                             ^---- the connection broke: to the master, again ----+

Rules
- A link is one producer, and a request keeps its sequence: it is stored once, however often it is
  sent.
- A request is tried until the first message in it has waited for its time; messages are joined
  only if they came within a part of that time.
- Of requests with messages of one name one is on its way at a time, so that these keep their order.
  A message whose name's message is just leaving is held with all later ones of that name; the
  others of its request are sent again, in another one.
- A message that the node refuses fails; the others of its request are sent again, in another one.
- The loop's thread does everything but calls that block: looking up a host's name, and asking other
  peers if a silent master was replaced.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..security.secretplace import SecretPlace
from ..wheel.backoff import Backoff
from ..wheel.delay import due_times
from ..wheel.errors import (
    Forbidden,
    InvalidBatch,
    InvalidMessage,
    NameTaken,
    NodeUnreachable,
    NotMaster,
    NotRunning,
    Overloaded,
    SlotwheelError,
    UnknownTopic,
)
from ..wheel.ids import check_digits
from ..wheel.plain import encode_records
from ..wheel.protocol import (
    IN_FLIGHT_MAX as REMEMBERED,
)
from ..wheel.protocol import (
    NO_BATCH,
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    decode_answer,
    encode_request,
    split_address,
)
from ..wire.channel import unreachable
from ..wire.frames import (
    OF_NODE,
    WHOLE,
    FrameReader,
    Kind,
    decode_action,
    encode_frame,
    encode_hello,
    error_of,
)
from ..wire.pool import Pool
from .addresses import Addresses
from .asking import ANSWER_S, EpochOfMaster, Suspicion
from .asyncthreads import in_pool
from .batch import Batch, ClientObserver, Shipment
from .hello import OF_APPENDS, Hello, hello_body, hello_of, new_producer
from .message import FlatMessage
from .predecessor import NamedId
from .storing import plain_row
from .tries import Tries

if TYPE_CHECKING:
    from ..security.tls import TlsFiles

IN_FLIGHT_MAX = 2
"""Requests on their way; one more would be smaller, and cost another sync."""
ROWS_MAX = 5_000
BYTES_MAX = 60 << 10
"""The most bytes of a request's records, unless a single message is larger."""
_JOIN_WITHIN = 0.1
"""Messages are joined if they came within this part of the time for which they are tried."""
_PAUSE_S = 0.02
_HELD_MAX_S = 0.5
"""A name whose message is just leaving is asked for again after this time at the latest."""
_LOOK_S = 0.1


_Name = tuple[str, bytes | None]
"""A topic, and a name in it."""


class MessageAnswer(Protocol):
    """Takes the id or the error of a message: a future, or an object like one."""

    def done(self) -> bool: ...
    def set_result(self, message_id: str, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


@dataclass(slots=True)
class _Message:
    flat: FlatMessage
    record: bytes
    deadline: float
    answer: MessageAnswer
    name: _Name | None
    """None: it has none."""
    held: int = 0
    """How often it was refused as the message before was just leaving."""

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(copy(error))


@dataclass(slots=True)
class _Request:
    sequence: int
    body: bytes
    messages: list[_Message]
    began_s: float = field(default_factory=time.monotonic)
    sent_s: float = 0.0
    tries: Tries = field(default_factory=Tries)
    names: set[_Name] = field(default_factory=set, init=False)

    @property
    def deadline(self) -> float:
        return self.messages[0].deadline

    def __post_init__(self) -> None:
        self.names = {message.name for message in self.messages if message.name is not None}


class AsyncLink:
    """A link that belongs to the loop that runs when it is made. A message is tried for
    ``timeout_s``. ``pool`` runs calls that block. ``observer``: as of ``Client``; a request is a
    shipment. ``tls``: TLS is on, by these files; the event loop encrypts. ``token``: as of
    ``WireTransport``. ``batches``, ``messages``: the numbers of requests and messages sent, repeats
    among them."""

    def __init__(
        self,
        addresses: Addresses,
        acks: str,
        timeout_s: float,
        epoch_of_master: EpochOfMaster,
        pool: Pool | Executor,
        observer: ClientObserver | None = None,
        *,
        tls: TlsFiles | None = None,
        token: SecretPlace | None = None,
    ) -> None:
        self._tls = tls
        self._token = token
        self._addresses = addresses
        self._pool = pool
        self._observer = observer
        self._command = AppendCommand(new_producer(), acks)
        self._timeout_s = timeout_s
        self._suspicion = Suspicion(addresses, epoch_of_master)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Message] = deque()
        self._again: deque[_Request] = deque()  # by rising sequence
        self._held: dict[_Name, deque[_Message]] = {}
        """By topic and name, messages that wait until the one before has left."""
        self._sent: dict[int, _Request] = {}
        self._sequence = 0
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pausing = False
        self._backoff = Backoff(_PAUSE_S)
        self._scheduled = False
        self._closed = False
        self._last_error: SlotwheelError | None = None
        self.batches = self.messages = 0

    def store(
        self, flat: FlatMessage, answer: MessageAnswer, timeout_s: float | None = None
    ) -> None:
        """Store a message; ``answer`` gets its id, or the error. Does not wait."""
        if self._closed:
            raise NotRunning("the client is closed", remedy="Make a new one")
        deadline = self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        record = encode_records([plain_row(flat)])
        self._waiting.append(_Message(flat, record, deadline, answer, flat.place))
        if not self._scheduled:
            self._go_on()

    async def close(self) -> None:
        """End at once; messages not answered yet fail with ``NotRunning``."""
        await asyncio.gather(*self.end(), return_exceptions=True)

    def end(self) -> Sequence[asyncio.Task[None]]:
        """End at once. Returns the tasks that it cancels, for which ``close`` waits."""
        self._closed = True
        tasks = [task for task in (self._connecting, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        if self._connection is not None:
            self._connection.end()
        self._connection = None
        self._fail_all(NotRunning("the client was closed"))
        return tasks

    # Sending

    def _go_on(self) -> None:
        """Send waiting messages after the other callbacks of this turn, which may add some."""
        if not self._scheduled and (self._waiting or self._again):
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        if self._closed or self._pausing or not (self._waiting or self._again):
            return
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())
        connection = self._connection
        if connection is None:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
            return
        self._set_held_aside()
        while len(self._sent) < IN_FLIGHT_MAX and (self._again or self._has_next):
            following = self._again[0].names if self._again else {self._waiting[0].name}
            if not following.isdisjoint(self._names_under_way):
                return
            request = self._again.popleft() if self._again else self._joined()
            request.sent_s = self._loop.time()
            request.tries.sent()
            self._sent[request.sequence] = request
            connection.write(request)
            self.batches += 1
            self.messages += len(request.messages)
            self._set_held_aside()

    @property
    def _has_next(self) -> bool:
        """True when a new request may be sent. A node remembers the last ``REMEMBERED`` sequences
        of a producer: a request that is tried again for long must not fall out of them, or it would
        be refused though it is stored."""
        again = (request.sequence for request in self._again)
        oldest = min([*self._sent, *again], default=self._sequence)
        return bool(self._waiting) and self._sequence - oldest < REMEMBERED

    @property
    def _names_under_way(self) -> set[_Name]:
        """The names of messages that are on their way. Others with these names wait: if those are
        refused for now and sent again, an earlier message would replace a later one."""
        names: set[_Name] = set()
        for request in self._sent.values():
            names |= request.names
        return names

    def _joined(self) -> _Request:
        waiting, names = self._waiting, self._names_under_way
        first = waiting.popleft()
        messages, nbytes = [first], len(first.record)
        latest = first.deadline + _JOIN_WITHIN * self._timeout_s
        while waiting and len(messages) < ROWS_MAX:
            message = waiting[0]
            nbytes += len(message.record)
            if nbytes > BYTES_MAX or message.deadline > latest:
                break
            if message.name is not None and (message.name in names or message.name in self._held):
                break
            messages.append(waiting.popleft())
        return self._request(messages)

    def _request(self, messages: list[_Message]) -> _Request:
        sequence = self._sequence
        self._sequence += 1
        return _Request(sequence, b"".join([message.record for message in messages]), messages)

    # Answers

    def answered(self, answer: StoredBatch | RefusedBatch) -> None:
        request = self._sent.pop(answer.sequence, None)
        if request is None:  # given up earlier
            return
        if isinstance(answer, StoredBatch):
            self._stored(request, answer)
        else:
            self._refused(request, answer.error)
        self._go_on()

    def _stored(self, request: _Request, stored: StoredBatch) -> None:
        self._backoff.worked()
        self._addresses.served()
        connection = self._connection
        group = "" if connection is None or connection.hello is None else connection.hello.group
        if len(stored.checks) != len(request.messages):
            self._fail([request], SlotwheelError("a receipt for another request"))
            return
        self._observe(request, stored=stored, group=group)
        due = due_times([message.flat.due for message in request.messages], stored.created_ms)
        rows = zip(request.messages, due, stored.checks.tolist(), strict=True)
        for row, (message, due_ms, check) in enumerate(rows):
            answer = message.answer
            if answer.done():  # its task may have been cancelled
                continue
            message_id = f"{group}.{due_ms}.{stored.base_offset + row}.{check_digits(check)}"
            if message.name is not None:
                message_id = NamedId.of(message_id, stored.prior.get(row), group)
            answer.set_result(message_id)

    def _refused(self, request: _Request, error: SlotwheelError) -> None:
        request.tries.refused(error)
        if isinstance(error, Overloaded) and error.row is not None and not request.tries.in_doubt:
            row = error.row
            name = request.messages[row].name if 0 <= row < len(request.messages) else None
            if name is not None:
                self._hold(request.messages, name, error)
                return
        if error.retryable:
            self._last_error = error
            self._send_again([request])
            if isinstance(error, NotMaster | NotRunning):
                self.lost(error)
            else:
                self._pause(self._backoff.failed(), error.retry_after_ms / 1000)
            return
        messages = request.messages
        in_doubt = request.tries.in_doubt
        bad = {} if in_doubt else _bad_messages(messages, error)
        if isinstance(error, InvalidBatch) and len(messages) > 1 and not in_doubt:
            middle = len(messages) // 2  # sending ever smaller parts shows the bad message
            halves = messages[:middle], messages[middle:]
            self._again.extend(self._request(half) for half in halves)
            return
        if not bad:
            self._fail([request], error)
            return
        for row, reason in bad.items():
            messages[row].fail(reason)
        left = [message for row, message in enumerate(messages) if row not in bad]
        self._waiting.extendleft(reversed(left))

    def _hold(self, messages: list[_Message], name: _Name, error: SlotwheelError) -> None:
        """Send the messages of a refused request anew, but for those of ``name``, whose message
        before is just leaving: they wait for a moment, and so do later ones of that name. Nothing
        is kept from others, as that moment is long while a sink does not answer."""
        self._last_error = error.without_row()
        held = self._held.setdefault(name, deque())
        held.extendleft(reversed([message for message in messages if message.name == name]))
        left = [message for message in messages if message.name != name]
        self._waiting.extendleft(reversed(left))
        held[0].held += 1
        pause_s = min(_HELD_MAX_S, _PAUSE_S * 2.0 ** min(held[0].held, 10))
        self._loop.call_later(pause_s, self._release, name)

    def _release(self, name: _Name) -> None:
        self._waiting.extendleft(reversed(self._held.pop(name, deque())))
        self._go_on()

    def _set_held_aside(self) -> None:
        """Move messages at the front whose name is held to those that are."""
        waiting = self._waiting
        while waiting and (name := waiting[0].name) is not None and name in self._held:
            self._held[name].append(waiting.popleft())

    def _send_again(self, requests: Iterable[_Request]) -> None:
        self._again = deque(sorted([*self._again, *requests], key=lambda request: request.sequence))

    def _pause(self, seconds: float, at_least_s: float = 0.0) -> None:
        self._pausing = True

        def end() -> None:
            self._pausing = False
            self._go_on()

        pause_s = max(at_least_s, min(self._addresses.pause_max_s, seconds))
        self._loop.call_later(pause_s, end)

    # The connection

    def lost(self, error: SlotwheelError) -> None:
        """Leave a connection that failed: unanswered requests go over the next one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.end()
        self._last_error = error
        if not self._addresses.failed(connection.address, error, doubt=False):
            self._pause(self._backoff.failed())
        self._send_again(self._sent.values())
        self._sent.clear()
        self._go_on()

    async def _connect(self) -> None:
        """Connect to the master, trying again while messages wait."""
        try:
            while not self._closed and (self._waiting or self._again):
                address = self._addresses.current
                try:
                    body = hello_body(self._command, self._token)
                    wait_s = self._addresses.attempt_s
                    self._connection = await _Connection.open(
                        self, address, body, wait_s, self._pool, self._tls
                    )
                except SlotwheelError as error:
                    at_once = self._addresses.failed(address, error)
                    self._last_error = self._addresses.explain(error)
                    if self._addresses.hopeless:
                        self._fail_all(self._last_error)
                    elif not at_once:
                        pause_s = min(self._addresses.pause_max_s, self._backoff.failed())
                        await asyncio.sleep(pause_s)
                else:
                    return
        finally:
            self._connecting = None
            self._go_on()

    async def _watch(self) -> None:
        """Give up messages past their time, and a connection that does not answer."""
        try:
            while self._waiting or self._again or self._sent or self._held:
                await asyncio.sleep(_LOOK_S)
                now = self._loop.time()
                self._give_up(now)
                connection = self._connection
                if connection is None or not self._sent:
                    continue
                quiet_s = now - max(
                    connection.heard_s, min(self._sent.values(), key=_sent_s).sent_s
                )
                epoch = 0 if connection.hello is None else connection.hello.epoch
                if quiet_s > min(self._timeout_s, ANSWER_S):  # a network may have forgotten it
                    self.lost(NodeUnreachable("no answer in time"))
                    continue
                if quiet_s < 1.0 or not self._addresses.several:
                    continue
                replaced = await in_pool(self._pool, self._suspicion.proves_true, epoch, quiet_s)
                if replaced and connection is self._connection:
                    self.lost(NodeUnreachable("the master is silent, and was replaced"))
        finally:
            self._watching = None

    def _give_up(self, now: float) -> None:
        reason = self._last_error or NodeUnreachable(
            f"no answer within {self._timeout_s:g} s",
            remedy="Check that the node runs, and how busy it is",
        )
        for waiting in (self._waiting, *self._held.values()):
            while waiting and waiting[0].deadline <= now:
                waiting.popleft().fail(reason)
        for request in [late for late in self._again if late.deadline <= now]:
            self._again.remove(request)
            self._fail([request], reason)
        for request in [late for late in self._sent.values() if late.deadline <= now]:
            del self._sent[request.sequence]
            self._fail([request], reason)

    def _fail_all(self, error: SlotwheelError) -> None:
        requests = [*self._again, *self._sent.values()]
        messages = list(chain(self._waiting, *self._held.values()))
        self._held.clear()
        self._again.clear()
        self._sent.clear()
        self._waiting.clear()
        self._fail(requests, error)
        for message in messages:
            message.fail(error)

    def _fail(self, requests: Iterable[_Request], error: SlotwheelError) -> None:
        for request in requests:
            reason = error.in_doubt() if request.tries.in_doubt else error
            self._observe(request, failure=reason)
            for message in request.messages:
                message.fail(reason)

    def _observe(
        self,
        request: _Request,
        *,
        stored: StoredBatch | None = None,
        group: str = "",
        failure: SlotwheelError | None = None,
    ) -> None:
        if self._observer is None:
            return
        rows = (message.flat[:6] for message in request.messages)
        columns = tuple(map(list, zip(*rows, strict=True)))
        shipment = Shipment(due=columns[0], columns=columns, began_s=request.began_s)
        Batch(request.sequence, [shipment], tries=request.tries)
        shipment.observe(self._observer)
        if failure is None:
            shipment.finish(stored, group)
        else:
            shipment.fail(failure)


def _sent_s(request: _Request) -> float:
    return request.sent_s


def _bad_messages(messages: Sequence[_Message], error: SlotwheelError) -> dict[int, SlotwheelError]:
    """The errors of messages that are at fault, by number; empty if the error names none."""
    if not isinstance(error, InvalidMessage | Forbidden) or error.row is None:
        return {}
    if isinstance(error, NameTaken):
        return {**error.by_row(len(messages))}
    row, error.row = error.row, None  # its number in a request that the caller does not know
    if not 0 <= row < len(messages):
        return {}
    topics = [message.flat.topic for message in messages]
    if isinstance(error, Forbidden):  # so is each other message for that topic
        return {at: copy(error) for at, topic in enumerate(topics) if topic == topics[row]}
    if not isinstance(error, UnknownTopic):
        return {row: error}
    absent = {topic: UnknownTopic.of([topic]) for topic in error.topics}
    return {at: absent[topic] for at, topic in enumerate(topics) if topic in absent}


def _failed(error: OSError, address: str = "") -> SlotwheelError:
    """The error of this package for a failed connection, TLS or not."""
    if type(error).__module__ == "ssl":  # which who speaks no TLS has not loaded
        from ..security.tls import refusal_of

        return refusal_of(error)
    return unreachable(error, address)


class _Connection(asyncio.Protocol):
    """One connection of a link. ``hello``: the node's, once it came. ``heard_s``: the last time at
    which bytes came, by the loop's clock."""

    def __init__(self, link: AsyncLink, address: str, hello: bytes) -> None:
        self.address = address
        self.hello: Hello | None = None
        self._link = link
        self._said = hello
        self._frames = FrameReader(OF_NODE, greeted=True)
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[Hello] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self.heard_s = self._loop.time()

    @classmethod
    async def open(
        cls,
        link: AsyncLink,
        address: str,
        hello: bytes,
        timeout_s: float,
        pool: Pool | Executor,
        tls: TlsFiles | None,
    ) -> _Connection:
        """Connect to a master. Errors: ``SlotwheelError``."""
        connection = cls(link, address, hello)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._connect(pool, tls, *split_address(address))
                (await connection._welcome).check_master()
        except OSError as error:  # ``TimeoutError``, too
            connection.end()
            raise _failed(error, address) from None
        except ValueError as error:  # ``UnicodeError``, too
            connection.end()
            raise NodeUnreachable("not an address", got=repr(address), remedy=str(error)) from None
        except BaseException:
            connection.end()
            raise
        return connection

    async def _connect(
        self, pool: Pool | Executor, tls: TlsFiles | None, host: str, port: int
    ) -> None:
        """Connect to the host's first address that answers. Errors: ``OSError``, ``ValueError``."""
        secured: dict[str, Any] = (
            {} if tls is None else {"ssl": tls.dialling, "server_hostname": host}
        )
        # ``create_connection`` would look a name up in the loop's executor, which may be full.
        infos = await in_pool(pool, socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        failed: OSError | None = None
        for address in dict.fromkeys(str(info[4][0]) for info in infos):
            try:
                await self._loop.create_connection(lambda: self, address, port, **secured)
            except OSError as error:
                failed = error
            else:
                return
        raise failed or OSError("the host has no address")

    def write(self, request: _Request) -> None:
        assert self._transport is not None
        metadata = encode_request(request.sequence, None, len(request.messages))
        self._transport.write(encode_frame(Kind.ROWS, metadata, len(request.body)) + request.body)

    def end(self) -> None:
        if not self._welcome.done():
            self._welcome.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A loop of another library has transports that do not inherit asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(encode_hello(self._said))

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        frames = self._frames
        frames.feed(data)
        try:
            while (frame := frames.next()) is not None:
                if frame.kind == Kind.WELCOME:
                    self.hello = hello_of(bytes(frame.body))
                    frames.limits = {**OF_APPENDS, Kind.ERROR: OF_NODE[Kind.ERROR]}
                    self._welcome.set_result(self.hello)
                elif frame.kind == Kind.ERROR:
                    if decode_action(frame.metadata)[0] == WHOLE:
                        raise error_of(frame)
                else:
                    answer = decode_answer(bytes(frame.body))
                    if answer.sequence == NO_BATCH and isinstance(answer, RefusedBatch):
                        raise answer.error
                    self._link.answered(answer)
        except SlotwheelError as error:
            self._lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, OSError):
            self._lost(_failed(error))
        else:
            self._lost(NodeUnreachable("the connection was closed by the other side"))

    def _lost(self, error: SlotwheelError) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
        elif self._link._connection is self:
            self._link.lost(error)
