"""The append edge: batches over plain TCP connections, all of them served by one thread.

Theory: a small batch costs more in threads that wake each other than in work, and more in calls
than for its bytes. Here one thread reads what has come on all connections, appends the small
batches of all of them at once, commits them by itself (``commit``: one write and one sync), and
answers. What comes during a sync is read after it, so a group grows with the load, and a batch of
it costs less. A large batch is left to the node's syncer, and its answer follows when that wakes
this thread; so do answers that wait for peers.

    ready? -> read -> append -> commit -> answer -> ready? -> ...

Rules:
- The exchange's rules are those of ``exchange.py``, the bytes those of ``wheel/packets.py``.
- Nothing waits for a single client: what cannot be written at once is kept. Until it is gone no
  further answer of that connection is made, so its window fills and nothing more of it is read.
- Connections are bounded in number, as each may hold a large batch of which a part has come. One
  beyond the limit replaces the one that has stored nothing for longest, if that is ``quiet_s`` or
  more, or one of the address that has most of them (``policy/places.py``), or it is refused.
- A turn reads and answers so much of each connection at most: one that sends without end leaves
  the others their share.
- A batch is not compressed: what is received is what it takes in memory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from ..policy.places import who_leaves
from ..wheel.arrowclaims import CLAIM_ERRORS, is_plain_batch
from ..wheel.errors import InvalidBatch, NotMaster, NotRunning, Overloaded, SlotwheelError
from ..wheel.packets import ACCEPTED, COMMAND_BYTES_MAX, Packet, PacketReader, encode_packet
from ..wheel.protocol import NO_BATCH, AppendCommand, encode_refused
from ..wheel.schema import INPUT
from .door import Door
from .exchange import AppendExchange, AppendOutcome, append_waiting, received_bytes_max
from .ports import Clock, IntakeEvents, WheelPort

SMALL_BYTES = 16 << 10
"""A batch up to this size is committed by this thread."""
_HEAD_BYTES = 16 << 10
"""Of a record batch message besides its buffers, at most."""
_SCRATCH_BYTES = 256 << 10
_READS_A_TURN = 4
_WAIT_S = 0.25
_ROOM_RETRY_S = 0.02
_PAUSE_S = 0.01
_READ = select.EPOLLIN | select.EPOLLRDHUP
_WRITE = select.EPOLLOUT
_GONE = select.EPOLLERR | select.EPOLLHUP


class _Connection:
    """One client. ``exchange``: once its hello was accepted. ``ended``: nothing more is read."""

    def __init__(self, sock: socket.socket, host: str, body_max: int) -> None:
        self.sock = sock
        self.host = host
        self.packets = PacketReader(COMMAND_BYTES_MAX, body_max)
        self.exchange: AppendExchange | None = None
        self.out = memoryview(b"")
        self.last_word = b""  # sent after all answers, before it is closed
        self.ended = False
        self.events = _READ
        self.began_s = time.monotonic()

    @property
    def reads(self) -> bool:
        """Whether more of it is to be read."""
        return not self.ended and (self.exchange is None or self.exchange.has_room)

    @property
    def done(self) -> bool:
        """Whether it can be closed: nothing is to come, and nothing to be sent."""
        idle = self.exchange is None or self.exchange.idle
        return self.ended and idle and not self.out and not self.last_word

    @property
    def quiet_s(self) -> float:
        """As of ``AppendExchange``."""
        if self.exchange is None:
            return time.monotonic() - self.began_s
        return self.exchange.quiet_s


class AppendEdge:
    """Listens from construction until ``close``. One thread calls ``turn`` again and again, also
    after an exception, and once more after ``close``. ``port``: the real one. ``token``: tells this
    edge from all others; a hello has to name it.

    ``check_serving`` raises ``NotMaster`` on a standby. ``commit``: writes, syncs and commits a
    group of what is queued in the wheel, and says whether there may be more; the wheel's
    ``append_all`` takes ``wake=False`` then. Without it somebody else does.

    Errors: ``OSError`` when it cannot listen there.
    """

    def __init__(
        self,
        wheel: WheelPort,
        host: str,
        port: int,
        clock: Clock,
        events: IntakeEvents,
        *,
        check_serving: Callable[[], None],
        closing: threading.Event,
        ending: threading.Event,
        room_timeout_s: float,
        connections_max: int,
        quiet_s: float,
        has_peers: bool = False,
        door: Door | None = None,
        commit: Callable[[], bool] | None = None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._events = events
        self._check_serving = check_serving
        self._closing = closing
        self._ending = ending
        self._room_timeout_s = room_timeout_s
        self._connections_max = connections_max
        self._quiet_s = quiet_s
        self._has_peers = has_peers
        self._door = door
        self._commit = commit
        self._to_commit = False
        self._connections: dict[int, _Connection] = {}
        self._small: dict[_Connection, AppendExchange] = {}  # a small batch is to be appended
        self._blocked: set[_Connection] = set()  # a batch of theirs waits for room in the wheel
        self._ready: deque[_Connection] = deque()  # an answer may be ready
        self._deposed: deque[NotMaster] = deque()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._retried_s = 0.0  # when a batch was last tried that waits for room
        self._closed = False
        self._ended = threading.Event()
        self._thread_id = 0  # of the thread that turns
        self.token = secrets.token_hex(8)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not sooner: whoever resolves an answer may be about to write to it.
        weakref.finalize(self, os.close, self._wakes).atexit = False
        self._awake = False  # ``_wakes`` was written, and not read since
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(self._wakes, select.EPOLLIN)

    # From any thread

    @property
    def idle(self) -> bool:
        """Whether every batch that was read is answered, and every answer sent."""
        found = list(self._connections.values())
        return all(not one.out and (one.exchange is None or one.exchange.idle) for one in found)

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def depose(self, error: NotMaster) -> None:
        """Answer on every connection that this is not the master any more."""
        self._deposed.append(error)
        self._wake()

    def close(self, timeout_s: float) -> None:
        """End all connections. ``closing`` and ``ending`` are set before."""
        self._closed = True
        if self._thread_id:
            self._wake()
            self._ended.wait(timeout_s)
        else:  # it has never turned
            self._end_all()

    def _wake(self) -> None:
        if threading.get_ident() != self._thread_id and not self._awake:
            self._awake = True
            os.eventfd_write(self._wakes, 1)

    # The thread

    def turn(self) -> float:
        """Wait a moment for something to do, and do it. Returns how long to wait before the next
        turn, in seconds: 0 until ``close``."""
        self._thread_id = threading.get_ident()
        if self._closed:
            self._end_all()
            return _WAIT_S
        more = self._small or self._to_commit or self._ready
        comes = False
        for number, mask in self._poll.poll(
            0.0 if more else _ROOM_RETRY_S if self._blocked else _WAIT_S
        ):
            if number == self._wakes:
                os.eventfd_read(self._wakes)
                self._awake = False  # before ``_ready`` is looked at, and not before it was read
            elif number == self._listener.fileno():
                comes = True
            elif (connection := self._connections.get(number)) is not None:
                self._serve(connection, mask)
        if comes:  # last, as it may get the number of one that was dropped
            self._accept()
        self._retry_blocked()
        while self._deposed:
            error = self._deposed.popleft()
            for connection in self._connections.values():
                if connection.exchange is not None:
                    connection.exchange.depose(error)
        self._append_small()
        self._commit_small()
        self._answer_all()
        return 0.0

    def _append_small(self) -> None:
        """All small batches that were read, together: one of each connection at a time."""
        while self._small:
            small, self._small = self._small, {}
            try:
                outcomes = append_waiting([*small.values()], wake=self._commit is None)
            except BaseException:  # they would wait for ever
                for connection in small:
                    self._drop(connection)
                raise
            self._to_commit = True
            for connection, outcome in zip(small, outcomes, strict=True):
                if connection.exchange is not None:
                    self._handle(connection, partial(self._appended, outcome=outcome))

    def _commit_small(self) -> None:
        """One group, so that a queue which others fill does not keep answers waiting."""
        if self._to_commit:
            self._to_commit = self._commit is not None and self._commit()

    def _answer_all(self) -> None:
        ready, self._ready = self._ready, deque()
        for connection in dict.fromkeys(ready):
            if connection.sock.fileno() >= 0:
                self._handle(connection, self._answer)

    def _end_all(self) -> None:
        """The last answers, as far as they can be sent at once."""
        if self._ended.is_set():
            return
        self._append_small()
        for connection in list(self._connections.values()):
            connection.ended = True
            self._handle(connection, self._answer)
            self._drop(connection)
        self._listener.close()
        self._poll.close()
        self._ended.set()

    def _handle(self, connection: _Connection, do: Callable[[_Connection], None]) -> None:
        """Do something for a connection; its error ends this connection alone."""
        try:
            do(connection)
        except SlotwheelError as error:
            self._end(connection, error)
        except OSError:  # the client left; what was appended is stored all the same
            self._drop(connection)
        except Exception as error:  # a bug, or memory
            self._events.alarm("append-failed", error=repr(error))
            self._drop(connection)

    def _serve(self, connection: _Connection, mask: int) -> None:
        if mask & _GONE:  # reported again and again, whether it is read or not
            self._drop(connection)
            return
        if mask & _WRITE:
            self._handle(connection, self._answer)
        if mask & ~_WRITE and connection.sock.fileno() >= 0:
            self._handle(connection, self._receive)
        if connection.sock.fileno() >= 0:
            self._handle(connection, self._watch)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # it is gone again, or no descriptor is free
            self._closing.wait(_PAUSE_S)
            return
        try:
            self._admit(sock, address[0])
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise

    def _admit(self, sock: socket.socket, host: str) -> None:
        """Errors: ``OSError`` when it is gone."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._has_place(host):
            error = Overloaded(
                "too many connections",
                got=f"more than {self._connections_max} that are in use",
                limit=self._connections_max,
                remedy="Try again in some seconds. Share one client between threads, close those"
                " that are not used, or raise the node's limit of open files",
            )
            with contextlib.suppress(OSError), sock:
                sock.send(encode_packet(encode_refused(NO_BATCH, error)))
            return
        body_max = received_bytes_max(self._wheel.config.batch_bytes_max) + _HEAD_BYTES
        connection = _Connection(sock, host, body_max)
        self._poll.register(sock, connection.events)
        self._connections[sock.fileno()] = connection

    def _has_place(self, host: str) -> bool:
        """Whether there may be one connection more from ``host``; another one may leave for it."""
        if len(self._connections) < self._connections_max:
            return True
        places = [(one, one.host, one.quiet_s) for one in self._connections.values()]
        leaving = who_leaves(host, places, self._quiet_s)
        if leaving is None:
            return False
        self._drop(leaving)
        return True

    def _receive(self, connection: _Connection) -> None:
        packets = connection.packets
        for _ in range(_READS_A_TURN):
            if not connection.reads:
                return
            room = packets.room
            target = self._scratch if room is None else room
            try:
                count = connection.sock.recv_into(target)
            except BlockingIOError:
                return
            if not count:
                self._left(connection)
                return
            if room is None:
                packets.feed(target[:count])
            else:
                packets.received(count)
            self._read(connection)
            if count < len(target):
                return

    def _left(self, connection: _Connection) -> None:
        """The client sends nothing more."""
        connection.ended = True
        if connection.done:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        """Append what is there in whole packets, as far as there is room; a small batch waits for
        those of others."""
        while connection.reads and (packet := connection.packets.next()) is not None:
            if connection.exchange is None:
                self._greet(connection, packet)
            else:
                self._append(connection, connection.exchange, packet)

    def _greet(self, connection: _Connection, packet: Packet) -> None:
        if packet.body.size:
            raise InvalidBatch("a hello with a body", got=f"{packet.body.size} bytes", limit=0)
        command = AppendCommand.decode(packet.metadata)
        if command.token != self.token:
            raise InvalidBatch(
                "a hello for another append edge",
                got=repr(command.token[:80]),
                limit="the append_token of this node's hello",
                remedy="Ask this node for its port and token. Behind a mapping of ports, its own"
                " port has to lead to it, too",
            )
        self._check_serving()
        if self._closing.is_set():
            raise NotRunning("the node is shutting down", remedy="Try again in a moment")
        connection.exchange = AppendExchange(
            self._wheel,
            self._clock,
            self._events,
            command,
            closing=self._closing,
            ending=self._ending,
            room_timeout_s=self._room_timeout_s,
            resolved=lambda: self._resolved(connection),
            has_peers=self._has_peers,
            door=self._door,
        )
        connection.out = memoryview(encode_packet(ACCEPTED))  # nothing can stand before it
        self._ready.append(connection)

    def _resolved(self, connection: _Connection) -> None:
        self._ready.append(connection)
        self._wake()

    def _append(self, connection: _Connection, exchange: AppendExchange, packet: Packet) -> None:
        exchange.read(_batch_of(packet.body), packet.metadata)
        if packet.body.size <= SMALL_BYTES:
            self._small[connection] = exchange  # nothing more is read of it until it is appended
            return
        exchange.append()
        if exchange.waits:
            self._blocked.add(connection)

    def _appended(self, connection: _Connection, outcome: AppendOutcome) -> None:
        exchange = connection.exchange
        assert exchange is not None
        exchange.appended(outcome)
        if exchange.waits:
            self._blocked.add(connection)
        else:
            self._read(connection)
        self._watch(connection)

    def _retry_blocked(self) -> None:
        now_s = time.monotonic()
        if not self._blocked or now_s - self._retried_s < _ROOM_RETRY_S:
            return
        self._retried_s = now_s
        # Each try encodes the batch once more.
        there_is_room = self._wheel.wait_for_room(0.0) or self._closing.is_set()
        for connection in list(self._blocked):
            if there_is_room or (connection.exchange and connection.exchange.room_left_s <= 0):
                self._handle(connection, self._retry)

    def _retry(self, connection: _Connection) -> None:
        """The wheel had no room for its last batch."""
        exchange = connection.exchange
        assert exchange is not None
        exchange.append()
        if not exchange.waits:
            self._blocked.discard(connection)
            self._read(connection)
            self._watch(connection)

    def _answer(self, connection: _Connection) -> None:
        """Send what can be answered, and read on."""
        exchange = connection.exchange
        while True:
            if connection.out:
                self._send(connection)
            if connection.out:
                break
            answers = [] if exchange is None else _answers(exchange)
            if not answers and connection.last_word and (exchange is None or exchange.idle):
                answers, connection.last_word = [connection.last_word], b""
            if not answers:
                break
            connection.out = memoryview(b"".join(map(encode_packet, answers)))
        if connection.done:
            self._drop(connection)
            return
        self._read(connection)
        self._watch(connection)

    def _send(self, connection: _Connection) -> None:
        with contextlib.suppress(BlockingIOError):
            connection.out = connection.out[connection.sock.send(connection.out) :]

    def _end(self, connection: _Connection, error: SlotwheelError) -> None:
        """Nothing more is read; the client gets the reason after all answers."""
        if isinstance(error, InvalidBatch):
            self._events.refused(error.code, 0)
        connection.ended = True
        connection.last_word = encode_refused(NO_BATCH, error)
        self._blocked.discard(connection)
        self._ready.append(connection)

    def _drop(self, connection: _Connection) -> None:
        number = connection.sock.fileno()
        if number >= 0:
            del self._connections[number]
            self._poll.unregister(number)
            connection.sock.close()
        connection.ended = True
        self._small.pop(connection, None)
        connection.exchange = None  # it refers to the connection, too, and would keep what was read
        self._blocked.discard(connection)

    def _watch(self, connection: _Connection) -> None:
        """Wait for what can be done next: a full window is not read, so TCP stops the client."""
        if connection in self._small:  # it will be watched again in a moment
            return
        events = (_READ if connection.reads else 0) | (_WRITE if connection.out else 0)
        if events != connection.events and connection.sock.fileno() >= 0:
            connection.events = events
            self._poll.modify(connection.sock, events)


def _answers(exchange: AppendExchange) -> list[bytes]:
    found = []
    while (answer := exchange.next_answer()) is not None:
        if answer[0] is not None:
            found.append(answer[0])
    return found


def _batch_of(body: pa.Buffer) -> pa.RecordBatch | None:
    """The rows in a record batch message. Errors: ``InvalidBatch``."""
    if not body.size:
        return None
    try:
        message = pa.ipc.read_message(body)
        if not is_plain_batch(message.metadata):
            raise InvalidBatch(
                "not a plain record batch",
                got=message.type,
                limit="an Arrow record batch message without compression",
                remedy="Serialize batches without options",
            )
        return pa.ipc.read_record_batch(message, INPUT)
    except (*CLAIM_ERRORS, EOFError) as error:
        raise InvalidBatch(
            f"not valid Arrow data: {str(error)[:300]}",
            remedy="Build it with an Arrow library and the documented schema",
        ) from None
