"""The node's end of the wire: it takes batches, plain rows and actions of clients, and answers.

Batches go by the rules of ``exchange.py``: small ones of all clients that came in one turn of the
server are appended together and committed by its thread (``commit``: one write and one sync). A
large one is left to the node's syncer, so that its write delays no small one; its answer follows
when the syncer wakes this thread, as do answers that wait for peers. Actions may wait, so a few
threads carry them out. A peer gets a thread of its own.

With peers only the master takes batches. A standby refuses them with the master's address.

A client may stay for days; so ``close`` answers every batch that was read, and then ends all
connections.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...policy.places import who_leaves
from ...wheel.arrowclaims import CLAIM_ERRORS, is_plain_batch
from ...wheel.errors import (
    AddressInUse,
    InvalidBatch,
    InvalidConfiguration,
    NotMaster,
    NotRunning,
    Overloaded,
    SlotwheelError,
    Unauthenticated,
)
from ...wheel.files import Bytes
from ...wheel.protocol import (
    DEFAULT_ADDRESS,
    IN_FLIGHT_MAX,
    PEER_COMMAND,
    REQUESTS_IN_FLIGHT_MAX,
    AppendCommand,
    decode_json,
    encode_json,
    split_address,
)
from ...wheel.schema import INPUT
from ...wire.frames import (
    ACTIONS,
    Frame,
    FrameLimits,
    Kind,
    decode_action,
    encode_answer,
    encode_error,
    encode_result,
)
from ...wire.pool import Pool
from ...wire.server import Connection, Leave, Server
from .actions import Actions
from .callers import Callers, ConnectedCaller
from .door import Door
from .exchange import AppendExchange, AppendOutcome, append_waiting, failed_on, received_bytes_max
from .plain import PlainIntake, Request
from .ports import (
    Clock,
    ClockPort,
    GroupPort,
    IntakeEvents,
    Page,
    PeerPort,
    PoliciesPort,
    StepDown,
    WheelPort,
)
from .refusals import Refusals
from .scheduling import ScheduleActions

if TYPE_CHECKING:
    from ...security.tls import TlsFiles

CONNECTIONS_MAX = 10_000
"""A node with a low limit of open files accepts fewer (``node/descriptors.py``)."""
QUIET_S = 5.0
"""A connection that has been quiet for so long, s, may be replaced by another one."""
ROOM_TIMEOUT_S = 2.0
SMALL_BYTES = 16 << 10
"""A batch up to this size is committed by the server's thread."""
ACTION_THREADS = 32
ACTIONS_MAX = 256
"""The most actions that are carried out or wait for a thread; a connection: ``_ACTIONS_EACH``."""
_ACTIONS_EACH = 8
_HEAD_BYTES = 16 << 10
"""The most bytes of a record batch message besides its buffers."""
_SEQUENCE_BYTES_MAX = 24
_WAIT_S = 0.25
_ROOM_RETRY_S = 0.02
_LAST_ANSWERS_S = 0.5
"""The longest time, s, in which ``close`` waits until uncommitted batches are answered."""


class WireIntake:
    """The server; it listens from construction until ``close``. One thread calls ``turn`` again and
    again. ``port`` is the real port, if 0 was asked for.

    A node with peers gives ``group`` and ``step_down``, and calls ``depose`` when it is no longer
    the master. ``peers`` serves other peers. ``door``: as of ``AppendExchange``. ``commit`` writes,
    syncs and commits a group of the wheel's queued entries, and returns True if there may be more;
    without it another thread commits. ``tls``: TLS is on, by these files. ``callers`` knows who
    connects; None: everybody may do everything. The other arguments: as of ``Actions``.

    Errors: ``AddressInUse``, ``OSError`` for an address that cannot be bound for another reason.
    """

    def __init__(
        self,
        wheel: WheelPort,
        address: str = DEFAULT_ADDRESS,
        clock: Clock = lambda: time.time_ns() // 1_000_000,
        *,
        events: IntakeEvents | None = None,
        connections_max: int = CONNECTIONS_MAX,
        quiet_s: float = QUIET_S,
        room_timeout_s: float = ROOM_TIMEOUT_S,
        group: GroupPort | None = None,
        step_down: StepDown | None = None,
        peers: PeerPort | None = None,
        facts: Callable[[], dict[str, Any]] = dict,
        policies: PoliciesPort | None = None,
        operated_clock: ClockPort | None = None,
        acknowledge: Callable[[], None] = lambda: None,
        pages: Mapping[str, Page] = MappingProxyType({}),
        schedules: ScheduleActions | None = None,
        door: Door | None = None,
        commit: Callable[[], bool] | None = None,
        tls: TlsFiles | None = None,
        callers: Callers | None = None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._events = events or IntakeEvents()
        self._room_timeout_s = room_timeout_s
        self._has_peers = group is not None
        self._door = door
        self._peers = peers
        self._commit = commit
        self._callers = callers or Callers()
        self._closing = threading.Event()
        self._ending = threading.Event()
        self.actions = Actions(
            wheel,
            clock,
            group=group,
            step_down=step_down,
            facts=facts,
            policies=policies,
            operated_clock=operated_clock,
            acknowledge=acknowledge,
            pages=pages,
            schedules=schedules,
        )
        self._threads = Pool(ACTION_THREADS, "action")
        self._places = threading.BoundedSemaphore(ACTIONS_MAX)  # for actions of all connections
        self._to_commit = False
        self._small: dict[ClientSession, AppendExchange] = {}  # a small batch is to be appended
        self._blocked: set[ClientSession] = set()  # their batches wait for room in the wheel
        self._retried_s = 0.0  # the last time at which such batches were tried
        self._deposed: list[NotMaster] = []
        self._lost: list[tuple[ClientSession, Unauthenticated]] = []  # to be ended
        self._plain = PlainIntake(
            wheel,
            clock,
            self._events,
            closing=self._closing,
            room_timeout_s=room_timeout_s,
            wake=self._wake,
            has_peers=self._has_peers,
            door=door,
        )
        check_free(address)
        host, port = split_address(address, to_listen=True)
        try:
            self.server = Server(
                host,
                port,
                self._greet,
                self,
                who_leaves,
                self._broken,
                connections_max=connections_max,
                bytes_max=wheel.config.tail_bytes_max + self._body_max,
                quiet_s=quiet_s,
                tls=tls,
                refused=Refusals("connection-refused", self._events),
            )
        except OSError:
            check_free(address)  # it may have been taken just now
            raise
        self.port = self.server.port
        self.turn = self.server.turn

    def _wake(self) -> None:
        self.server.wake()

    def _broken(self, error: Exception) -> None:
        self._events.alarm("append-failed", error=repr(error))

    def _greet(self, connection: Connection, hello: Frame) -> ClientSession | Leave:
        if self._closing.is_set():
            raise NotRunning("the node is shutting down", remedy="Try again in a moment")
        body = bytes(hello.body)
        if not body.startswith(PEER_COMMAND):
            command = AppendCommand.decode(body)
            caller = self._callers.admit(connection, command)
            return ClientSession(self, connection, command.without_token(), caller)
        self._callers.check_peer(connection)
        if self._peers is None:
            raise InvalidConfiguration(
                "peers are not served at this address"
                if self._has_peers
                else "this node has no peers",
                remedy="Name all peers on every one of them, or correct the peers' addresses",
            )
        return self._peers.admit(body)

    # What the server's thread does in each turn, between reading and answering

    @property
    def wait_s(self) -> float:
        if self._small or self._to_commit or self._plain.pending:
            return 0.0
        return _ROOM_RETRY_S if self._blocked or self._plain.waits else _WAIT_S

    def work(self) -> None:
        self._retry_blocked()
        while self._deposed:
            error = self._deposed.pop()
            for session in self.server.sessions():
                if isinstance(session, ClientSession):
                    self.server.handle(session.connection, session.depose, error)
        while self._lost:
            lost, reason = self._lost.pop()
            self.server.handle(lost.connection, lost.end, reason)
        self._append_plain()
        while self._small:
            self._append_small()
            self._append_plain()
        if self._to_commit:  # one group, so that a queue which others fill keeps no answer waiting
            self._to_commit = self._commit is not None and self._commit()
        self._plain.answer()

    def _append_plain(self) -> None:
        """Append the plain rows that were read. They come before the batches that were read after
        them: otherwise a program that sends one message, and then many with the same due time,
        would get them in another order."""
        self._to_commit |= self._plain.append(wake=self._commit is None)

    def _append_small(self) -> None:
        """Append the small batches that were read, one of each connection, and read on."""
        small, self._small = self._small, {}
        try:
            outcomes = append_waiting([*small.values()], wake=self._commit is None)
        except BaseException:  # their clients would wait for ever
            for session in small:
                self.server.drop(session.connection)
            raise
        self._to_commit = True
        for session, outcome in zip(small, outcomes, strict=True):
            self.server.handle(session.connection, self._appended, session, outcome)

    def _appended(self, session: ClientSession, outcome: AppendOutcome) -> None:
        session.connection.let_go()
        if session.exchange is None:  # it was dropped
            return
        session.exchange.appended(outcome)
        if session.exchange.waits:
            self._blocked.add(session)
        self.server.go_on(session.connection)

    def _retry_blocked(self) -> None:
        now_s = time.monotonic()
        waits = self._blocked or self._plain.waits
        if not waits or now_s - self._retried_s < _ROOM_RETRY_S:
            return
        self._retried_s = now_s
        self._plain.retry()
        # Each try encodes the batch once more.
        there_is_room = self._wheel.wait_for_room(0.0) or self._closing.is_set()
        for session in list(self._blocked):
            if there_is_room or (session.exchange and session.exchange.room_left_s <= 0):
                self.server.handle(session.connection, self._retry, session)

    def _retry(self, session: ClientSession) -> None:
        """Try a session's last batch again, for which the wheel had no room."""
        exchange = session.exchange
        assert exchange is not None
        try:
            exchange.append()
        finally:  # the node may be deposed
            if not exchange.waits:
                self._blocked.discard(session)
        if not exchange.waits:
            self.server.go_on(session.connection)

    # What sessions ask for

    def open_exchange(self, session: ClientSession) -> AppendExchange:
        """Errors: ``NotMaster``, ``NotRunning``."""
        self.actions.check_master()
        if self._closing.is_set():
            raise NotRunning("the node is shutting down", remedy="Try again in a moment")
        return AppendExchange(
            self._wheel,
            self._clock,
            self._events,
            session.command,
            closing=self._closing,
            ending=self._ending,
            room_timeout_s=self._room_timeout_s,
            resolved=session.connection.resolved,
            caller=session.caller,
            has_peers=self._has_peers,
            door=self._door,
        )

    @property
    def _body_max(self) -> int:
        return received_bytes_max(self._wheel.config.batch_bytes_max) + _HEAD_BYTES

    def limits(self) -> dict[int, tuple[int, int]]:
        rows = (_SEQUENCE_BYTES_MAX + 4, self._plain.bytes_max)
        return {Kind.BATCH: (_SEQUENCE_BYTES_MAX, self._body_max), Kind.ROWS: rows, **ACTIONS}

    @property
    def batch_bytes_max(self) -> int:
        return self._wheel.config.batch_bytes_max

    def take_plain(self, session: ClientSession, frame: Frame) -> Request:
        return self._plain.take(frame, session.command, session.caller, session.answered_plain)

    def append(self, session: ClientSession, exchange: AppendExchange, frame: Frame) -> None:
        exchange.read(_batch_of(frame.body), frame.metadata, frame.thrown_away)
        if len(frame.body) <= SMALL_BYTES:
            self._small[session] = exchange  # the connection is not read until it is appended
            session.connection.hold()
            return
        if session.has_plain_rows:
            self._append_plain()
        exchange.append()
        if exchange.waits:
            self._blocked.add(session)

    def act(self, session: ClientSession, number: int, name: str, body: bytes) -> None:
        """Carry an action out in another thread. Errors: ``SlotwheelError``."""
        fields = decode_json(body)
        self.actions.permitted(name, fields, session.caller)
        if self.server.full:
            raise Overloaded(
                "the node holds too much that others have sent, or do not read",
                got=f"an action, {name[:80]!r}",
                remedy="Try again in some seconds",
            )
        if not self._places.acquire(blocking=False):
            raise Overloaded(
                "too many requests are being answered",
                got=f"more than {ACTIONS_MAX}",
                limit=ACTIONS_MAX,
                remedy="Try again in a moment",
            )
        try:
            self._threads.submit(self._carry_out, session, number, name, fields)
        except BaseException:  # no thread can be started
            self._places.release()
            raise

    def _carry_out(
        self, session: ClientSession, number: int, name: str, fields: dict[str, Any]
    ) -> None:
        try:
            answer = self.actions.carry_out(name, fields, session.caller)
            result = encode_result(number, encode_json(answer))
        except SlotwheelError as error:
            result = encode_error(number, error)
        except Exception as error:
            self._events.alarm("action-failed", action=name[:80], error=repr(error))
            result = encode_error(number, failed_on("request; whether it was done", error))
        finally:
            self._places.release()
        session.answered(result)

    def left(self, session: ClientSession) -> None:
        self._small.pop(session, None)
        self._blocked.discard(session)

    # Life; from any thread

    def depose(self) -> None:
        """Answer every client that has appended here that this node is no longer the master."""
        self._deposed.append(self.actions.not_master())
        self.server.wake()

    def renew_callers(self) -> None:
        """Give every client the rights of now, and end the connections of those who are known no
        more."""
        for session in self.server.sessions():
            if isinstance(session, ClientSession) and (error := session.caller.renew()):
                self._lost.append((session, error))
        self.server.wake()

    def close(self, grace_s: float = 1.0) -> None:
        """Accept no more, answer the batches that were read (for ``grace_s`` at most), and end."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wait_until_idle(grace_s)
        self._ending.set()
        for session in self.server.sessions():
            if isinstance(session, ClientSession):
                session.connection.resolved()
        self._wait_until_idle(_LAST_ANSWERS_S)
        self.server.close(grace_s)
        self._threads.close()

    def _wait_until_idle(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self.server.idle:
            time.sleep(0.005)


class ClientSession:
    """A client's connection; see ``wire.server.Session``."""

    def __init__(
        self,
        intake: WireIntake,
        connection: Connection,
        command: AppendCommand,
        caller: ConnectedCaller,
    ) -> None:
        self.connection = connection
        self.command = command
        self.caller = caller
        self.party = caller.party
        self.exchange: AppendExchange | None = None
        """The exchange of a client that has sent a batch."""
        self.limits: FrameLimits = intake.limits()
        self._intake = intake
        self._counting = threading.Lock()
        self._acting = 0  # actions that are not answered
        self._plain = self._keyed = self._plain_bytes = 0  # plain requests that are not answered
        self._receipts: list[bytes] = []  # answers to plain requests
        self._receipts_bytes = 0
        self._results: deque[bytes] = deque()  # of actions, from their threads
        self._results_bytes = 0
        self._batch_bytes_max = intake.batch_bytes_max
        self._used_s = time.monotonic()

    @property
    def welcome(self) -> bytes:
        self.caller.connect()  # not before: only a session that has its place ends by ``gone``
        return encode_json(self._intake.actions.hello())

    @property
    def reads(self) -> bool:
        # What is refused at once waits for nothing but the end of the turn. Without the answers in
        # these sums, a megabyte of requests of twenty bytes would be one turn, a second long.
        exchange = self.exchange
        return (
            self._plain + len(self._receipts) < IN_FLIGHT_MAX
            and self._keyed < REQUESTS_IN_FLIGHT_MAX
            and self._plain_bytes < self._batch_bytes_max
            and self._acting + len(self._results) < _ACTIONS_EACH
            and (exchange is None or exchange.has_room)
        )

    @property
    def has_plain_rows(self) -> bool:
        """True while plain rows of it are not answered."""
        return bool(self._plain or self._keyed)

    @property
    def _waits(self) -> bool:
        return bool(self._acting or self.has_plain_rows or self._receipts or self._results)

    @property
    def idle(self) -> bool:
        return not self._waits and (self.exchange is None or self.exchange.idle)

    @property
    def nbytes(self) -> int:
        held = self._plain_bytes + self._receipts_bytes + self._results_bytes
        return held if self.exchange is None else held + self.exchange.waiting_bytes

    @property
    def quiet_s(self) -> float:
        if self._acting or self.has_plain_rows:
            return -1.0
        acting_s = time.monotonic() - self._used_s
        return acting_s if self.exchange is None else min(acting_s, self.exchange.quiet_s)

    def take(self, frame: Frame) -> None:
        if frame.kind == Kind.ROWS:
            self._count(self._intake.take_plain(self, frame), 1)
            return
        if frame.kind == Kind.BATCH:
            if self.exchange is None:
                self.exchange = self._intake.open_exchange(self)
            self._intake.append(self, self.exchange, frame)
            return
        number, name = decode_action(frame.metadata)
        with self._counting:
            self._acting += 1
        try:
            if frame.thrown_away:
                raise InvalidBatch(
                    "a request is too large",
                    got=f"{frame.thrown_away} bytes",
                    limit=f"{self.limits[Kind.ACTION][1]} bytes",
                    remedy="Ask for less at a time",
                )
            self._intake.act(self, number, name, bytes(frame.body))
        except SlotwheelError as error:
            self.answered(encode_error(number, error))

    def answers(self) -> list[bytes]:
        frames, self._receipts = self._receipts, []
        if frames:
            self._used_s = time.monotonic()
            self._receipts_bytes = 0
        if self._results:
            self._used_s = time.monotonic()
            with self._counting:
                frames += self._results
                self._results.clear()
                self._results_bytes = 0
        while self.exchange is not None and (answer := self.exchange.next_answer()) is not None:
            if answer[0] is not None:
                frames.append(encode_answer(answer[0]))
        return frames

    def answered(self, result: bytes) -> None:
        """Take the result of an action, from any thread."""
        with self._counting:
            self._acting -= 1
            self._results.append(result)
            self._results_bytes += len(result)
        self.connection.resolved()

    def answered_plain(self, request: Request, answer: bytes | None) -> None:
        self._count(request, -1)
        if answer is not None:
            self._receipts.append(answer)
            self._receipts_bytes += len(answer)
        self.connection.resolved()

    def _count(self, request: Request, change: int) -> None:
        """Count a request that is under way (``change`` 1), or not any more (-1)."""
        if request.key is None:
            self._plain += change
        else:
            self._keyed += change
        self._plain_bytes += change * request.nbytes

    def depose(self, error: NotMaster) -> None:
        """Answer. Errors: ``NotMaster``, which ends a connection that waits for no answer."""
        if self.exchange is not None:
            self.exchange.depose(error)
        elif not self._waits:
            raise copy(error)

    def end(self, error: SlotwheelError) -> None:
        """End its connection after its answers. Errors: ``error``."""
        raise error

    def gone(self) -> None:
        self._intake.left(self)
        self.caller.leave()
        self.exchange = None  # it refers to the connection: the two would keep each other alive


def _batch_of(body: Bytes) -> pa.RecordBatch | None:
    """The rows of a record batch message; None for an empty body. Errors: ``InvalidBatch``."""
    if not len(body):
        return None
    try:
        message = pa.ipc.read_message(pa.py_buffer(body))
        if not is_plain_batch(message):
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


def check_free(address: str, option: str = "--listen") -> None:
    """Check that an address can be bound; ``option`` is the one that gave it. Errors:
    ``AddressInUse`` when another socket listens there, ``OSError`` for other reasons."""
    host, port = split_address(address, to_listen=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(
                    error.errno, f"cannot listen on {address}: {error.strerror}"
                ) from None
            raise AddressInUse(
                "the address to listen on is taken",
                got=address,
                remedy=f"End what listens there, or choose another {option} address",
            ) from None
