"""The server: all connections that come in, served by one thread.

Theory: a small frame costs more in threads that wake each other than in work. Here one thread reads
what has come on all connections, gives each whole frame to the *session* of its connection, lets
the owner work on what came in this turn (``Work``: the small batches of all sessions become one
write and one sync), and sends the sessions' answers. What comes during a sync is read after it, so
a group grows with the load.

    ready? -> read -> work -> answer -> ready? -> ...

A newcomer has no session, a few kB of memory and some seconds, until its hello is whole. Whoever
needs a thread of its own (a peer) leaves with it: its connection is handed over as a ``Channel``.

With TLS the handshake is a newcomer's first part. What a read gives may then be less than was
received: the rest has left the socket, so epoll does not report it, and the server keeps a list of
its own of connections with more to read.

Rules
- Nothing waits for a single connection: what cannot be written at once is kept. Until it is gone no
  further answer of that session is made, so its window fills and nothing more of it is read.
- Connections are bounded in number. A client beyond the limit replaces the one that has stored
  nothing for longest, if that is ``quiet_s`` or more, or one of the address that has most of them,
  or it is refused. Peers are not counted: a node without peers is of no use to its clients.
- What is held of all connections together is bounded in bytes: frames of which a part has come,
  those that wait for room in the wheel, answers that nobody reads. Or ten thousand clients that
  send half a batch each would fill the memory. A large frame that does not fit waits unread for its
  turn, so TCP stops its sender; of each connection some kB are read all the same, so that small
  messages get through. Whoever lets others wait, because it does not go on with a frame or does not
  read its answers, is ended after some seconds.
- What a client sent before it closed its connection is done, whether it reads the answers or not.
- A turn takes what has come of each party for a millisecond or so, and of one connection a
  little: whoever sends without end, by one connection or by a thousand, leaves the others their
  share. A party is a principal, or an address where nobody has to prove who he is. All newcomers
  are one, as a stranger has as many addresses as he likes: a handshake takes a millisecond, so who
  begins many delays other newcomers, and hardly anybody who has said hello. What a turn leaves
  comes first in the next one, in its order: otherwise the last of four hundred callers of one
  party, who ask again as soon as they are answered, would never come to theirs.
- An error of a connection ends that connection, after its last answers and with the reason.
- With TLS, a newcomer's handshake and hello have each a limit of some kB, and both one of some
  seconds.
- A connection whose certificate does not stand any more (``TlsFiles.stands``) is ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from ..wheel.errors import (
    InvalidBatch,
    InvalidConfiguration,
    NodeUnreachable,
    NotRunning,
    Overloaded,
    SlotwheelError,
)
from .channel import Channel, TlsChannel
from .frames import (
    HELLO_BYTES_MAX,
    OF_NEWCOMER,
    TLS_HANDSHAKE,
    WHOLE,
    Frame,
    FrameLimits,
    FrameReader,
    Kind,
    encode_error,
    encode_frame,
    last_word,
)

if TYPE_CHECKING:  # OpenSSL takes 5 MB, which a node without TLS does not need
    from ..security.tls import PeerCertificate, TlsFiles, TlsStream

NEWCOMERS_MAX = 256
"""Connections without a hello. One more ends the oldest of the address that has most of them."""
CHANNELS_MAX = 256
"""Connections that were handed over: each has a thread."""
HELLO_S = 10.0
"""A connection may take so long, s, for its hello."""
TLS_HELLO_S = 5.0
"""A connection with TLS may take so long, s, for its handshake and its hello."""
HANDSHAKE_BYTES_MAX = 16 << 10
"""So many bytes may come before a handshake is over, certificates among them."""
TRUST_EVERY_S = 3.0
"""So often, s, certificates of open connections are compared with what is accepted now: with the
ten seconds until files are looked at, who is not trusted any more is out within fifteen."""
TURN_OF_EACH_S = 0.001
"""A turn takes what has come of the connections of one party for so long, s of the processor, and
accepts new ones for so long, but one of each at least. A number would not do: a hundred plain rows
take as long as ten actions that are refused, or as one handshake."""
THROWN_AWAY_MAX = 256 << 20
"""Bytes of a too large body that are read, so that its sender gets an answer, and goes on."""
SMALL_BYTES = 16 << 10
"""Bytes of a connection that may be held though there is no room for more."""
STUCK_S = 10.0
"""A frame may take so long, s, to come, or answers to be read, while others wait for the room."""
_COUNTED_BYTES = 2 << 10
"""Received bytes are counted at once from so many on, or all connections together could take more
within a turn than there is room for."""
_SCRATCH_BYTES = 256 << 10
_SECURED_AT_LEAST = 17 << 10
"""Ciphertext is received in pieces of at least so many bytes, a record and its frame."""
_READS_A_TURN = 4
_THROWN_AWAY = 16
_WAIT_S = 0.25
_PAUSE_S = 0.01
_LOOK_EVERY_S = 1.0
_READ = select.EPOLLIN | select.EPOLLRDHUP
_WRITE = select.EPOLLOUT
_GONE = select.EPOLLERR | select.EPOLLHUP
_NOTHING = memoryview(b"")


class Session(Protocol):
    """The use of a connection after its hello. Only the server's thread calls it."""

    limits: FrameLimits
    """The limits of the frames that it takes."""

    @property
    def party(self) -> str:
        """Whose it is: connections of one party share its part of a turn."""

    @property
    def welcome(self) -> bytes:
        """The body of the answer to its hello."""

    @property
    def reads(self) -> bool:
        """True if it has room for a frame more."""

    @property
    def idle(self) -> bool:
        """True if every frame that it took is answered."""

    @property
    def nbytes(self) -> int:
        """Bytes of the frames and answers that it holds."""

    @property
    def quiet_s(self) -> float:
        """Seconds for which it has been of no use to anybody; -1 while it is in use."""

    def take(self, frame: Frame) -> None:
        """Take a frame. Errors: ``SlotwheelError``: nothing more is read; the reason is sent."""

    def answers(self) -> list[bytes]:
        """Whole frames that can be sent now."""

    def gone(self) -> None:
        """Note that the connection is closed."""


Leave = Callable[[Channel], None]
"""Serves a channel until it ends, in a thread of its own. Errors: ``SlotwheelError``: is sent."""
Greet = Callable[["Connection", Frame], "Session | Leave"]
"""Makes, from a hello, the server of its connection. Errors: ``SlotwheelError``: it is refused."""
LeavingOne = Callable[
    [str, Collection[tuple["Connection", str, float]], float], "Connection | None"
]
"""Chooses who leaves for a newcomer (``policy/places.py``): its host, the places, seconds."""


class Work(Protocol):
    """The work between reading and answering, on what all sessions have taken."""

    @property
    def wait_s(self) -> float:
        """The next turn may wait so long, s, for something to come."""

    def work(self) -> None: ...


OnRefused = Callable[[str, SlotwheelError], None]
"""Gets the host of a newcomer that was refused for good, and the reason."""


class Connection:
    """One connection. ``host``: of the other side. ``stream``: of TLS, if that is on."""

    def __init__(
        self, server: Server, sock: socket.socket, host: str, stream: TlsStream | None = None
    ) -> None:
        self.host = host
        self._server = server
        self.sock = sock
        self.stream = stream
        # The path of each connection is chosen once: a plain one asks nowhere whether it is one.
        self.receive_into: Callable[[memoryview], int] = sock.recv_into
        self.seal: Callable[[bytes], bytes] = _as_it_is
        if stream is not None:
            self.receive_into, self.seal = self._receive_secured, self._seal
        self.begin = b""  # of who speaks no TLS where it is on
        self.shaken_bytes = 0  # received before the handshake was over
        self.has_unread = False  # more was received over TLS than was read
        self.frames = FrameReader(OF_NEWCOMER)
        self.session: Session | None = None
        self.party: str | None = None  # of its session; all newcomers are one
        self.out = _NOTHING
        self.last_word = b""  # sent after all answers, before it is closed
        self.ended = False  # nothing more of it is taken
        self.left = False  # nothing more comes
        self.lost = False  # nothing can be sent
        self.counted = 0  # its bytes, as they stand in the server's sum
        self.stuck_s = 0.0  # since when a frame, or what is sent, is on its way; 0: nothing is
        self.held = False
        self.registered = True  # neither closed nor handed over
        self.events = _READ
        self.began_s = time.monotonic()

    def free(self) -> None:
        """Let go of what it has of OpenSSL, 30 kB, once it is closed. Its own methods refer to it,
        so they would stay until the collector of garbage comes: strangers who connect again and
        again would fill 100 MB meanwhile."""
        self.receive_into, self.seal = self.sock.recv_into, _as_it_is
        self.stream = None

    def resolved(self) -> None:
        """Note, from any thread, that an answer may be ready."""
        self._server.ready(self)

    def hold(self) -> None:
        """Read nothing more of it: the session's work of this turn will go on with it."""
        self.held = True

    def let_go(self) -> None:
        self.held = False

    @property
    def is_secure(self) -> bool:
        """True if TLS is on."""
        return self.stream is not None

    @property
    def certificate(self) -> PeerCertificate | None:
        """The certificate that the other side has proven."""
        return None if self.stream is None else self.stream.certificate

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names that the other side has proven; empty without TLS or a certificate."""
        return () if self.stream is None else self.stream.names

    @property
    def shakes_hands(self) -> bool:
        """True while a handshake of TLS is not over."""
        return self.stream is not None and not self.stream.is_ready

    def _receive_secured(self, room: memoryview) -> int:
        """Receive and decrypt as ``socket.recv_into`` receives. Less than ``room`` holds, or
        ``BlockingIOError``, says that all was read, unless ``has_unread``."""
        stream = self.stream
        assert stream is not None
        if not stream.is_ready and not self._shake_hands(stream):
            return 0
        if len(room) > _SCRATCH_BYTES:  # one that sends without end would keep the others waiting
            room = room[:_SCRATCH_BYTES]
        ciphertext, size = self._server.ciphertext, len(room)
        count, is_empty = 0, False
        self.has_unread = False
        try:
            while True:
                left = room[count:] if count else room
                if stream.has_unread:
                    got = stream.read_into(left)
                else:
                    wanted = max(size - count, _SECURED_AT_LEAST)
                    target = ciphertext[:wanted] if wanted < len(ciphertext) else ciphertext
                    received = self.sock.recv_into(target)
                    if not received:
                        break
                    is_empty = received < wanted
                    got = stream.read_into(left, target[:received])
                if not got:
                    break
                if got > 0:
                    count += got
                if count == size:
                    break
                if is_empty and not stream.has_unread:  # epoll reports what comes from now on
                    if not count:
                        raise BlockingIOError
                    break
        except SlotwheelError:  # it was altered: nothing can be said to the other side any more
            raise ConnectionResetError from None
        except OSError:
            if not count:
                raise
        self.has_unread = stream.has_unread
        return count

    def _shake_hands(self, stream: TlsStream) -> bool:
        """Go on with the handshake. Returns True once it is over; False: the other side has left.
        Errors: ``OSError``; ``SlotwheelError``: it is refused."""
        while not stream.is_ready:
            left = HANDSHAKE_BYTES_MAX - self.shaken_bytes
            if left <= 0:
                raise InvalidBatch(
                    "a handshake of TLS is too long",
                    got=f"{self.shaken_bytes} bytes, and more",
                    limit=f"{HANDSHAKE_BYTES_MAX} bytes",
                    remedy="Use a certificate with fewer others that prove it",
                )
            received = self.sock.recv(left)
            if not received:
                return False
            if not self.shaken_bytes and received[:1] != TLS_HANDSHAKE[:1]:
                self.begin, self.seal = received, _as_it_is
                raise InvalidConfiguration(
                    "this node speaks TLS, and who connected does not",
                    got=repr(received[:8]),
                    remedy="Give the address as tls://HOST:PORT, and the authority of the node's"
                    " certificate by tls=Tls(ca=…) or --tls-ca",
                )
            self.shaken_bytes += len(received)
            stream.feed(received)
            try:
                stream.shake_hands()
            finally:
                self._send_handshake(stream.outgoing())
        return True

    def _send_handshake(self, sealed: bytes) -> None:
        """Send a part of the handshake: a new connection has room for it. Errors: ``OSError``."""
        if self.sock.send(sealed) < len(sealed):
            raise ConnectionResetError

    def _seal(self, plain: bytes) -> bytes:
        """Errors: ``OSError``: the connection broke."""
        assert self.stream is not None
        if self.lost or not self.stream.is_ready:
            return b""
        try:
            return self.stream.seal(plain)
        except SlotwheelError:
            raise ConnectionResetError from None

    def last_word_of(self, error: SlotwheelError) -> bytes:
        """The reason for which it ends, as its other side can read it."""
        if self.begin:
            return last_word(self.begin, error)
        if self.shakes_hands:
            return b""  # an alert of TLS was sent
        if self.session is None and isinstance(error, InvalidBatch):
            return last_word(self.frames.begin, error)
        return encode_error(WHOLE, error)

    def channel(self) -> Channel:
        """The connection for a thread of its own, which goes on where this one has stopped."""
        if self.stream is None:
            return Channel(self.sock, self.frames)
        return TlsChannel(self.sock, self.frames, self.stream)

    @property
    def takes(self) -> bool:
        """True if a frame more of it may be taken."""
        if self.ended or self.out:  # who reads no answers may ask nothing more
            return False
        return self.session is None or self.session.reads

    @property
    def nbytes(self) -> int:
        """Bytes that are held of it."""
        held = self.frames.nbytes + len(self.out)
        return held if self.session is None else held + self.session.nbytes

    @property
    def idle(self) -> bool:
        return not self.out and (self.session is None or self.session.idle)

    @property
    def done(self) -> bool:
        """True if it can be closed: nothing is to come, and nothing to be sent."""
        return self.ended and self.idle and not self.last_word


class Server:
    """Listens from construction until ``close``. One thread calls ``turn`` again and again, also
    after an exception, and once more after ``close``. ``port``: the real one.

    ``bytes_max``: held of all connections together, besides ``SMALL_BYTES`` of each; more than a
    single frame. ``broken``: called with an exception that is no error of a connection, but a bug.
    ``tls``: TLS is on, by these files. ``refused``: called when a newcomer is.
    Errors: ``OSError`` when it cannot listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        greet: Greet,
        work: Work,
        who_leaves: LeavingOne,
        broken: Callable[[Exception], None],
        *,
        connections_max: int,
        bytes_max: int,
        quiet_s: float,
        tls: TlsFiles | None = None,
        refused: OnRefused | None = None,
    ) -> None:
        self._tls = tls
        self._refused = refused
        self._greet = greet
        self._work = work
        self._who_leaves = who_leaves
        self._broken = broken
        self._connections_max = connections_max
        self._bytes_max = bytes_max
        self._quiet_s = quiet_s
        self._connections: dict[int, Connection] = {}
        self._newcomers: dict[Connection, None] = {}  # in the order in which they came
        self._nbytes = 0  # held of all connections
        self._queue: dict[Connection, int] = {}  # waits for room, for so many bytes; in order
        self._channels: set[Channel] = set()
        self._ready: deque[Connection] = deque()  # an answer may be ready
        self._changed: dict[Connection, None] = {}  # to be watched anew when the turn ends
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.ciphertext = memoryview(bytearray(0 if tls is None else _SCRATCH_BYTES))
        self._next: dict[Connection, None] = {}  # with more to take than epoll knows of; in order
        self._spent_s: dict[str | None, float] = {}  # in this turn, by party
        self._looked_s = 0.0
        self._trusted_s = 0.0
        self._closed = False
        self._ended = threading.Event()
        self._thread_id = 0  # of the thread that turns
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
        """True if every frame that was read is answered, and every answer sent."""
        return all(connection.idle for connection in list(self._connections.values()))

    @property
    def open(self) -> int:
        """The number of connections, without those that were handed over."""
        return len(self._connections)

    @property
    def full(self) -> bool:
        """True if no more bytes can be held."""
        return self._nbytes >= self._bytes_max

    def sessions(self) -> list[Session]:
        sessions = [connection.session for connection in list(self._connections.values())]
        return [session for session in sessions if session is not None]

    def ready(self, connection: Connection) -> None:
        """Note that an answer of the connection may be ready."""
        self._ready.append(connection)
        self.wake()

    def wake(self) -> None:
        if threading.get_ident() != self._thread_id and not self._awake:
            self._awake = True
            os.eventfd_write(self._wakes, 1)

    def close(self, timeout_s: float) -> None:
        """Ask the thread to end all connections; wait ``timeout_s`` at most."""
        self._closed = True
        if self._thread_id:
            self.wake()
            self._ended.wait(timeout_s)
        else:  # it has never turned
            self._end_all()

    # The thread

    def turn(self) -> float:
        """Wait a moment for something to do, and do it. Returns how long to wait before the next
        turn, in seconds: 0 until ``close``."""
        self._thread_id = threading.get_ident()
        if self._closed:
            self._end_all()
            return _WAIT_S
        comes = False
        self._spent_s.clear()
        came, self._next = dict.fromkeys(self._next, select.EPOLLIN), {}
        for number, mask in self._poll.poll(0.0 if self._ready or came else self._work.wait_s):
            if number == self._wakes:
                os.eventfd_read(self._wakes)
                self._awake = False  # before ``_ready`` is looked at, and not before it was read
            elif number == self._listener.fileno():
                comes = True
            elif (connection := self._connections.get(number)) is not None:
                came[connection] = came.get(connection, 0) | mask
        for connection, mask in came.items():
            self._serve(connection, mask)
        if comes:  # last, as it may get the number of one that was dropped
            end_s = time.monotonic() + TURN_OF_EACH_S
            while self._accept() and time.monotonic() < end_s:
                pass
        self._work.work()
        self._answer_all()
        self._watch_changed()
        self._give_room()
        self._end_the_silent()
        return 0.0

    def go_on(self, connection: Connection) -> None:
        """Read on from a connection, after the work that has held it."""
        connection.let_go()
        self._in_turn(connection, self._read_on)

    def _in_turn(self, connection: Connection, take: Callable[[Connection], None]) -> None:
        """Take something of a connection; in the next turn, if its party has had its time of this
        one."""
        party = connection.party
        spent_s = self._spent_s.get(party, -1.0)
        if spent_s >= TURN_OF_EACH_S:
            self._next[connection] = None
            return
        began_s = time.thread_time()  # another thread's work is not theirs
        self.handle(connection, take, connection)
        self._spent_s[party] = max(0.0, spent_s) + time.thread_time() - began_s

    def handle(self, connection: Connection, do: Callable[..., None], *given: Any) -> None:
        """Do something for a connection; its error ends this connection alone."""
        try:
            do(*given)
        except SlotwheelError as error:
            self._end(connection, error)
        except OSError:
            self._lose(connection)
        except Exception as error:  # a bug, or memory
            self._broken(error)
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection at once."""
        if self._forget(connection):
            connection.sock.close()
            connection.free()

    def _forget(self, connection: Connection) -> bool:
        """Take a connection out. Returns whether it was there."""
        was_registered, connection.registered = connection.registered, False
        if was_registered:
            del self._connections[connection.sock.fileno()]
            self._newcomers.pop(connection, None)
            self._queue.pop(connection, None)
            if not connection.lost:
                self._poll.unregister(connection.sock)
        self._nbytes -= connection.counted
        connection.counted = 0
        connection.ended = True
        session, connection.session = connection.session, None
        if session is not None:
            session.gone()
        return was_registered

    def _answer_all(self) -> None:
        ready, self._ready = self._ready, deque()
        for connection in dict.fromkeys(ready):
            if connection.registered:
                self.handle(connection, self._answer, connection)

    def _watch_changed(self) -> None:
        """Set what is waited for, once a turn, however often a connection was read and answered."""
        changed, self._changed = self._changed, {}
        for connection in changed:
            self.handle(connection, self._watch, connection)

    def _end_all(self) -> None:
        if self._ended.is_set():
            return
        self._work.work()
        for connection in list(self._connections.values()):
            connection.ended = True
            self.handle(connection, self._answer, connection)
            self.drop(connection)
        self._listener.close()
        self._poll.close()
        for channel in list(self._channels):
            channel.shut()
        self._ended.set()

    def _serve(self, connection: Connection, mask: int) -> None:
        if mask & _GONE:  # reported again and again, whether it is read or not
            self._lose(connection)
            return
        if mask & _WRITE:
            self.handle(connection, self._answer, connection)
        if mask & ~_WRITE and connection.registered:
            self._in_turn(connection, self._take)

    # Newcomers

    def _accept(self) -> bool:
        """Accept a connection, if one waits; False if none did."""
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError:  # no descriptor is free
            time.sleep(_PAUSE_S)
            return False
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._newcomers) >= NEWCOMERS_MAX:
                [(greedy, _)] = Counter(c.host for c in self._newcomers).most_common(1)
                self.drop(next(c for c in self._newcomers if c.host == greedy))
            stream = None if self._tls is None else self._tls.accept()
            connection = Connection(self, sock, address[0], stream)
            self._poll.register(sock, connection.events)
            self._connections[sock.fileno()] = connection
            self._newcomers[connection] = None
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
        return True

    def _end_the_silent(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        hello_s = HELLO_S if self._tls is None else TLS_HELLO_S
        for connection in [c for c in self._newcomers if now_s - c.began_s > hello_s]:
            self.drop(connection)
        if self._tls is not None and now_s - self._trusted_s >= TRUST_EVERY_S:
            self._trusted_s = now_s
            self._end_the_distrusted(self._tls)
        if not (self._queue or self.full):
            return
        for connection in list(self._connections.values()):
            stuck = 0 < connection.stuck_s < now_s - STUCK_S and connection.counted > SMALL_BYTES
            if stuck and connection.out:
                self.drop(connection)
            elif stuck:
                self._end(connection, _too_slow())

    def _end_the_distrusted(self, tls: TlsFiles) -> None:
        """End connections whose certificate does not stand any more. One that does not read its
        last answers is closed at the next look."""
        for connection in list(self._connections.values()):
            if not tls.stands(connection.certificate):
                if connection.ended:
                    self.drop(connection)
                else:
                    self._end(connection, _distrusted())
        for channel in list(self._channels):
            if not tls.stands(channel.certificate):
                channel.shut()

    def _hello(self, connection: Connection, frame: Frame) -> None:
        serves = self._greet(connection, frame)
        if callable(serves):
            self._hand_over(connection, serves)
            return
        if len(self._connections) - len(self._newcomers) >= self._connections_max:
            self._make_room(connection)
        self._newcomers.pop(connection, None)
        connection.session, connection.party = serves, serves.party
        connection.frames.limits = serves.limits
        connection.frames.thrown_away_max = THROWN_AWAY_MAX
        body = serves.welcome
        # Nothing can stand before it.
        welcome = connection.seal(encode_frame(Kind.WELCOME, b"", len(body)) + body)
        connection.out = memoryview(welcome)
        self._ready.append(connection)

    def _make_room(self, newcomer: Connection) -> None:
        """Drop a connection for a newcomer that has said hello. Errors: ``Overloaded``."""
        having = [(connection, connection.session) for connection in self._connections.values()]
        places = [(c, c.host, session.quiet_s) for c, session in having if session is not None]
        leaving = self._who_leaves(newcomer.host, places, self._quiet_s)
        if leaving is None:
            raise Overloaded(
                "too many connections",
                got=f"more than {self._connections_max} that are in use",
                limit=self._connections_max,
                remedy="Try again in some seconds. Share one client between threads, close those"
                " that are not used, or raise the node's limit of open files",
            )
        self.drop(leaving)

    def _hand_over(self, connection: Connection, serve: Leave) -> None:
        if len(self._channels) >= CHANNELS_MAX:
            raise Overloaded(
                "too many connections of peers",
                got=len(self._channels),
                limit=CHANNELS_MAX,
                remedy="Try again in some seconds",
            )
        self._forget(connection)
        channel = connection.channel()
        self._channels.add(channel)

        def run() -> None:
            try:
                serve(channel)
            except NodeUnreachable:
                pass  # the other side left
            except SlotwheelError as error:
                with contextlib.suppress(SlotwheelError):
                    channel.fail(error)
            except Exception as error:
                self._broken(error)
            finally:
                self._channels.discard(channel)
                channel.close()

        try:
            threading.Thread(target=run, name="wire-channel", daemon=True).start()
        except BaseException:  # no thread can be started
            self._channels.discard(channel)
            channel.close()
            raise

    # Reading

    def _take(self, connection: Connection) -> None:
        """Take what is held of it, and what has come."""
        self._changed[connection] = None
        if connection.lost or connection.left or not connection.frames.empty:
            self._read_on(connection)
        self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        frames = connection.frames
        for _ in range(_READS_A_TURN):
            if not self._reads(connection):
                return
            room = frames.room
            target = self._scratch if room is None else room
            if connection.session is None:
                target = target[:HELLO_BYTES_MAX]
            elif room is None and self.full:
                target = target[: max(0, SMALL_BYTES - connection.nbytes)]
                if not target:
                    return
            try:
                count = connection.receive_into(target)
            except BlockingIOError:
                return
            except OSError:
                self._lose(connection)
                count = 0  # what had come before was read before
            if not count:
                connection.left = True
            elif room is None:
                frames.feed(target[:count])
            else:
                frames.received(count)
            self._read(connection)
            if count >= _COUNTED_BYTES or frames.body_bytes or frames.waits_for:
                self._count(connection)  # for less, the end of the turn is soon enough
            if count < len(target):
                return

    def _reads(self, connection: Connection) -> bool:
        waits = connection.left or (self._queue and connection in self._queue)
        return not waits and connection.registered and connection.takes

    def _read(self, connection: Connection) -> None:
        """Give the session what is there in whole frames, as far as it has room."""
        while connection.takes:
            free = self._bytes_max - self._nbytes
            if self._queue and next(iter(self._queue)) is not connection:
                free = 0  # a large frame waits for its turn
            frame = connection.frames.next(free)
            if frame is None:
                connection.ended = connection.left  # what comes behind the last frame is none
                return
            connection.stuck_s = 0.0
            if connection.session is None:
                self._hello(connection, frame)
            else:
                connection.session.take(frame)
            if connection.frames.empty and not connection.left:
                return

    def _read_on(self, connection: Connection) -> None:
        self._changed[connection] = None
        self._read(connection)
        if connection.lost and self._reads(connection):  # nothing else will say that there is more
            self._receive(connection)
            self._ready.append(connection)

    def _lose(self, connection: Connection) -> None:
        """Note that the other side is gone. What it has sent is done, and nobody answered."""
        if connection.registered and not connection.lost:
            connection.lost = True
            self._poll.unregister(connection.sock)
            self._ready.append(connection)

    # Room

    def _count(self, connection: Connection) -> None:
        """Bring its bytes in the server's sum up to date, after a read, a frame or an answer."""
        nbytes = connection.nbytes
        self._nbytes += nbytes - connection.counted
        connection.counted = nbytes
        if not (connection.out or connection.frames.body_bytes):
            connection.stuck_s = 0.0
        elif not connection.stuck_s:
            connection.stuck_s = time.monotonic()
        wanted = connection.frames.waits_for or int(nbytes >= SMALL_BYTES and self.full)
        if wanted and connection.takes:
            self._queue.setdefault(connection, wanted)
        elif connection in self._queue:  # it has room, or waits for something else
            del self._queue[connection]

    def _give_room(self) -> None:
        """Let those read on that have waited for room longest."""
        while self._queue:
            first, wanted = next(iter(self._queue.items()))
            if wanted > self._bytes_max - self._nbytes:
                return
            self.handle(first, self._read_on, first)
            self.handle(first, self._watch, first)
            if self._queue.get(first) == wanted:  # whatever it waits for, others are served
                self._queue[first] = self._queue.pop(first)
                return

    # Answering

    def _answer(self, connection: Connection) -> None:
        while True:
            if connection.out:
                self._send(connection)
            if connection.out:
                break
            session = connection.session
            answers = [] if session is None else session.answers()
            if not answers and connection.last_word and (session is None or session.idle):
                answers, connection.last_word = [connection.last_word], b""
            if not answers:
                break
            connection.out = memoryview(connection.seal(b"".join(answers)))
            if not connection.last_word:  # the session has given all that it had
                self._send(connection)
                break
        if connection.frames.empty and not (connection.left or connection.lost):
            self._changed[connection] = None
        else:
            self._in_turn(connection, self._read_on)

    def _leave_in_order(self, connection: Connection) -> None:
        """Throw away what has come meanwhile: while something is unread, the kernel ends a
        connection by a reset, which may overtake the last word."""
        with contextlib.suppress(OSError):
            if connection.stream is not None and not connection.begin:
                connection.sock.send(connection.stream.end())
            connection.sock.shutdown(socket.SHUT_WR)
            for _ in range(_THROWN_AWAY):
                if not connection.sock.recv_into(self._scratch):
                    break

    def _send(self, connection: Connection) -> None:
        try:
            sent = len(connection.out) if connection.lost else connection.sock.send(connection.out)
        except BlockingIOError:
            return
        except OSError:
            self._lose(connection)
            sent = len(connection.out)
        connection.out = connection.out[sent:] or _NOTHING
        if not connection.out:
            connection.stuck_s = 0.0

    def _end(self, connection: Connection, error: SlotwheelError) -> None:
        """Read nothing more of it, and send the reason after all answers."""
        connection.last_word = connection.last_word_of(error)
        if connection.session is None and self._refused is not None and not error.retryable:
            self._refused(connection.host, error)
        connection.frames = FrameReader(OF_NEWCOMER)  # frees what has come
        connection.ended = True
        self._ready.append(connection)

    def _watch(self, connection: Connection) -> None:
        """Wait for what can be done next: a full window is not read, so TCP stops the sender."""
        if not connection.registered:
            return
        if connection.ended and connection.done:
            self._leave_in_order(connection)
            self.drop(connection)
            return
        self._count(connection)
        if connection.held or connection.lost:  # it is watched again in a moment, or never
            return
        reads = _READ if self._reads(connection) else 0
        if reads and connection.has_unread:
            self._next[connection] = None
        events = reads | (_WRITE if connection.out else 0)
        if events != connection.events:
            connection.events = events
            self._poll.modify(connection.sock, events)


def _as_it_is(plain: bytes) -> bytes:
    return plain


def _distrusted() -> NotRunning:
    return NotRunning(
        "the certificate by which this connection began is not accepted any more",
        remedy="Connect again, with one that is",
    )


def _too_slow() -> Overloaded:
    return Overloaded(
        "too much is held of connections that do not go on",
        got=f"a frame that has not come within {STUCK_S:g} s",
        limit=f"{STUCK_S:g} s, while others wait for its room",
        remedy="Send it again. Send smaller batches, by fewer connections at a time",
    )
