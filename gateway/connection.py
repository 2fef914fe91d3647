"""Connections with limits: how many, how large their headers, how slow they may be.

Theory: the parser finds heads and bodies in what comes; how much of them may come, and how slowly,
is decided here, as is when an answer may be written. One look at all connections each second costs
less than a timer for each request.

A connection that is closed while something still comes is reset by the kernel, and the reset takes
an answer along that the other side has not read yet: it would see a broken connection instead of
413. So a connection is closed in order: the last answer, then the end of what is sent from here,
and then all that comes is read and thrown away until the other side ends, too.

Rules
- A connection beyond the limit, and one that is too slow, gets an answer if it can take one, and is
  closed; it never waits for another one.
- No address has more than three quarters of all connections, or one machine would keep out
  everybody else. When nine of ten places are taken, who is quiet between two requests, or sends a
  head byte by byte, has a sixth of the time for it that a request has to arrive.
- Of requests that come behind each other, the next one is read when the one before it is answered
  and its answer is taken. Else who asks five hundred times for a long page, and reads none, would
  have megabytes of answers made, by each of hundreds of connections. The kernel, too, takes little
  ahead (``UNSENT_MAX`` in ``server.py``).
- What all connections together do not take of their answers is bounded: beyond ``UNREAD_MAX`` the
  one ends that has not read for longest, of the address of which most is unread. A time alone
  would not do: within its thirty seconds a few thousand connections could ask for gigabytes.
- What is no request is answered behind all requests that came before it: an answer is never that to
  another request.
- The offer of another protocol (``Upgrade``) is ignored, and the request is read as if it had not
  been made. The parser stops at such a request without its body, and would take that body for the
  next request: whoever gets a body through a proxy would send requests past it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from ..security.principals import LOCAL
from ..security.quotas import CountedConnection
from ..security.tls import PeerCertificate, TlsStream
from .app import GatewayApp
from .authentication import COUNTED, STRANGER
from .direct import METHOD, PATH, DirectAnswer, DirectMessages
from .errors import HttpError
from .exchange import BODY_HELD_MAX, HttpExchange, failure
from .framing import unreadable, unusable_head
from .requests import error_reply
from .settings import GatewaySettings
from .turns import Turns

log = logging.getLogger("slotwheel.gateway")

ALL = "all"
UNREAD_MAX = 64 << 20
"""Bytes of answers that wait until they are read, of all connections together."""
_END_OF_HEAD = b"\r\n\r\n"
_PIECE_BYTES = 64
"""The parser gets so much at a time at least: a body of nothing but ends of heads would else be
sixteen thousand calls for each 64 KiB."""
_PLAIN_S = 1.0
"""The caller of heads that are all alike is looked up again after so long, s."""
_DISCARDED_MAX = 64 << 20
"""Bytes that are read and thrown away before a connection is closed that has had its answer."""
_TURNED_AWAY_MAX = 100
"""Connections beyond the limit that may wait for their refusal to be read."""
_METHOD, _PATH = METHOD.encode(), PATH.encode()
_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_UNSAFE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""In a header of an answer it would end the header, or is no text."""
_CLOSE = b"connection", b"close"
_CACHE = b"cache-control"
TLS_STREAM = "tls-stream"
"""The name under which a transport with TLS has its ``TlsStream``."""


class ConnectionServer(Protocol):
    """What the connections of a server share. ``hosts``: the number of connections by address and
    of all (``ALL``), without those that were refused; ``tasks``: requests that are being answered;
    ``date``: the header's value; ``guards``: headers of every answer, by which a browser keeps it
    to itself. ``turns``: whose request begins next. ``unread``: the bytes of answers that are not
    taken, by connection, those first that have not taken theirs for longest."""

    app: GatewayApp
    direct: DirectMessages
    settings: GatewaySettings
    connections: set[HttpConnection]
    tasks: set[Any]
    hosts: Counter[str]
    date: bytes
    guards: Sequence[tuple[bytes, bytes]]
    turns: Turns
    unread: dict[HttpConnection, int]

    def stands(self, certificate: PeerCertificate | None) -> bool:
        """Returns False for a certificate that is not accepted any more."""


class HttpConnection(asyncio.Protocol):
    """One connection. ``client``: host and port of the other side, if they are known. ``writable``:
    the other side takes what is written. ``is_secure``: True with TLS. ``certificate``: the
    client's, verified; None: it has none."""

    transport: asyncio.Transport

    def __init__(self, server: ConnectionServer) -> None:
        self.loop = asyncio.get_running_loop()
        self.tasks = server.tasks
        self.client: tuple[str, int] | None = None
        self.is_secure = False
        self.certificate: PeerCertificate | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._server = server
        self._settings = server.settings
        self._address: tuple[str, int] | None = None
        """Host and port of this side."""
        self._parser = _new_parser(self)
        self._reading_paused = False
        self._held = bytearray()
        """What came behind a request that is not answered; nobody has read it yet."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects = False
        """Whether the request that comes waits with its body until it is asked for it."""
        self._newest: HttpExchange | DirectAnswer | None = None
        """The request that comes, or came last."""
        self._running: HttpExchange | DirectAnswer | None = None
        """The request that is being answered, or was answered last."""
        self._waiting: deque[HttpExchange] = deque()
        """Requests that wait until those before them are answered."""
        self._counted: tuple[str, ...] = ()
        """Where it counts in ``hosts``."""
        self._quota = CountedConnection()
        self._receiving_since = self.loop.time()
        """When the request began that is not complete; 0: there is none."""
        self._writing_since = 0.0
        """When the other side stopped taking an answer; 0: it takes it."""
        self._head_bytes = 0
        """Of the data that came while a head was not complete."""
        self._trailer_bytes = 0
        self._in_head = True
        self._active_at = self.loop.time()
        """When something came or an answer ended."""
        self._closing_since = 0.0
        self._ended_at = 0.0
        """When the last answer was given; what comes from then on is thrown away. 0: not yet."""
        self._discarded = 0
        self._refusal: HttpError | None = None
        self._last_words: HttpError | None = None
        """The answer to what came behind requests that are still being answered."""
        self._arriving: DirectAnswer | None = None
        """The request that comes, if it may be answered past ASGI."""
        self._plain_headers: list[tuple[bytes, bytes]] | None = None
        """Of a request that was: a head that is equal to it need not be looked through again, until
        ``_plain_until``, as its caller may lose its rights."""
        self._plain_until = 0.0
        self._plain_identity = STRANGER
        self._first_line = b""
        """Of a request with an offer of another protocol."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.client = _host_and_port(transport.get_extra_info("peername"))
        self._address = _host_and_port(transport.get_extra_info("sockname"))
        stream: TlsStream | None = transport.get_extra_info(TLS_STREAM)
        if stream is not None:
            self.is_secure, self.certificate = True, stream.certificate
        connections, hosts = self._server.connections, self._server.hosts
        connections.add(self)
        every = self._settings.connections_max
        host = self.host
        for where, whose, limit in (("", ALL, every), (" from one address", host, _share(every))):
            if hosts[whose] >= limit:
                self.refuse(_too_many(where, hosts[whose] + 1, limit))
                if len(connections) - hosts[ALL] > _TURNED_AWAY_MAX:
                    transport.close()
                return
        self._counted = (ALL, host)
        hosts.update(self._counted)

    def connection_lost(self, _error: Exception | None) -> None:
        hosts = self._server.hosts
        self._server.connections.discard(self)
        self._server.unread.pop(self, None)
        for whose in self._counted:
            hosts[whose] -= 1
            if not hosts[whose]:
                del hosts[whose]
        self._counted = ()
        self._quota.end()
        for exchange in (self._newest, self._running):
            if exchange is not None:
                exchange.lose()
        self.writable.set()
        # They hold this object, too: nobody waits for the garbage collector.
        self._newest = self._running = self._arriving = None
        self._forget_waiting()
        del self._parser

    def data_received(self, data: bytes) -> None:
        if self._ended_at or self._last_words is not None:
            self._discarded += len(data)
            if self._discarded > _DISCARDED_MAX:
                self.transport.abort()
            return
        if self.transport.is_closing():
            return
        self._active_at = self.loop.time()
        if self._held:
            self._held += data
        else:
            self._read(data)

    def _read(self, data: bytes | bytearray) -> None:
        """Read data head by head, so that behind a request that is not answered hardly anything is
        read but the rest of it. The parser takes data in any pieces."""
        view, at = memoryview(data), 0
        try:
            while at < len(data) and not self._ended_at:
                if self._must_wait:
                    self._pause_reading()
                    self._held = bytearray(view[at:])
                    return
                end = data.find(b"\r", at + _PIECE_BYTES)
                if end >= 0:  # a body has mostly none, and one byte is found fifty times as fast
                    end = data.find(_END_OF_HEAD, end)
                piece = view[at:] if end < 0 else view[at : end + len(_END_OF_HEAD)]
                if self._in_head:
                    self._head_bytes += len(piece)
                self._parse(piece)
                at += len(piece)
        except HttpParserError as error:
            self.refuse(self._refusal or unreadable(self._parser.get_method(), error))
        if self._in_head and self._head_bytes > self._settings.header_bytes_max:
            self.refuse(self._headers_too_large())

    def _parse(self, data: bytes | memoryview) -> None:
        """Errors: ``HttpParserError``."""
        while True:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as offer:
                # The head once more, without the offer, and then what came behind it.
                self._parser = _new_parser(self)
                data = self._head_without_offer() + data[offer.args[0] :]
            else:
                return

    def _head_without_offer(self) -> bytes:
        lines = [b"%s: %s\r\n" % one for one in self._headers if one[0] != b"upgrade"]
        return b"%s%s\r\n" % (self._first_line, b"".join(lines))

    # What the parser finds

    def on_message_begin(self) -> None:
        self._receiving_since = self.loop.time()
        self._in_head = True
        self._head_bytes, self._trailer_bytes = 1, 0
        self._url = b""
        self._headers = []
        self._expects = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects = True
            self._headers.append((name, value))
            return
        # A trailer, behind a body in chunks: nobody here looks at it.
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self._settings.header_bytes_max:
            self._refusal = self._headers_too_large()
            raise ValueError("trailers too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        single = self._url == _PATH and method == _METHOD and version == "1.1"
        if single and self._headers == self._plain_headers and self._is_free:
            same_caller = self._quota.meter is self._plain_identity.meter
            if same_caller and self.loop.time() < self._plain_until:
                self._begin_direct()
                return
            self._plain_headers = None
        self._head_bytes = len(self._url) + sum([len(n) + len(v) + 4 for n, v in self._headers])
        if self._head_bytes > self._settings.header_bytes_max:
            self._refusal = self._headers_too_large()
            raise ValueError("headers too large")
        self._refusal = unusable_head(method, version, self._headers)
        if self._refusal is not None:
            raise ValueError(self._refusal.message)
        if parser.should_upgrade():
            self._first_line = b"%s %s HTTP/%s\r\n" % (method, self._url, version.encode())
            return  # this head comes again
        identity = None
        if single and self._is_free:
            identity = self._server.direct.takes(self._headers, self.certificate_names, self._quota)
        if identity is None:
            self._begin_exchange()
        else:
            self._plain_headers, self._plain_identity = self._headers, identity
            self._plain_until = self.loop.time() + _PLAIN_S
            self._begin_direct()

    @property
    def host(self) -> str:
        """The address of the other side; empty if it is not known."""
        return self.client[0] if self.client else ""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names of the client's certificate; empty without one."""
        return () if self.certificate is None else self.certificate.names

    @property
    def _is_answering(self) -> bool:
        """True while a request is being answered."""
        return self._running is not None and not self._running.response_complete

    @property
    def _must_wait(self) -> bool:
        """True while nothing of a further request may be read."""
        newest = self._newest
        is_awaited = newest is not None and not (newest.more_body or newest.response_complete)
        return is_awaited or bool(self._waiting) or not self.writable.is_set()

    @property
    def _is_free(self) -> bool:
        """Whether all that came before on this connection is answered."""
        newest = self._newest
        return (newest is None or newest.response_complete) and self.writable.is_set()

    def _begin_direct(self) -> None:
        self._arriving = DirectAnswer(self._server.direct, self, self._plain_identity)

    def _begin_exchange(self) -> None:
        """Answer the request through ASGI, behind those that came before it."""
        before, parser = self._newest, self._parser
        version = parser.get_http_version()
        self._newest = exchange = HttpExchange(
            self,
            self._scope(version),
            expects=self._expects and version != "1.0",  # whose clients know no answer before it
            keep_alive=version != "1.0" and parser.should_keep_alive(),
        )
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            self._pause_reading()
            self._waiting.append(exchange)

    def _scope(self, version: str) -> dict[str, Any]:
        """The request as ASGI has it."""
        url = parse_url(self._url)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "https" if self.is_secure else "http",
            "certificate_names": self.certificate_names,
            COUNTED: self._quota,
            "server": self._address,
            "client": self.client,
            "root_path": "",
            "path": unquote(url.path.decode("ascii")),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }

    def _start(self, exchange: HttpExchange) -> None:
        self._running = exchange
        self._server.turns.take(self._party, partial(self._begin, exchange))

    @property
    def _party(self) -> str:
        """Who calls, as far as it is known: a principal, or an address."""
        meter = self._quota.meter
        return self.host if meter is None or meter.principal == LOCAL else meter.principal

    def _begin(self, exchange: HttpExchange) -> None:
        if not exchange.lost:
            task = self.loop.create_task(exchange.run(self._server.app))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _leave_direct(self, arriving: DirectAnswer) -> None:
        """Answer a request through ASGI after all."""
        self._arriving = None
        self._begin_exchange()
        self.on_body(arriving.body)

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._arriving.body += body
            return
        exchange = self._newest
        if isinstance(exchange, HttpExchange) and not exchange.response_complete:
            exchange.feed(body)
            if len(exchange.body) > BODY_HELD_MAX:
                self._pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._receiving_since = 0.0
        arriving = self._arriving
        if arriving is not None:
            if arriving.begin():
                self._arriving = None
                arriving.keep_alive = self._parser.should_keep_alive()
                self._newest = self._running = arriving
                return
            self._leave_direct(arriving)
        exchange = self._newest
        assert isinstance(exchange, HttpExchange)
        if not self._parser.should_keep_alive():  # by a trailer: the parser reads nothing any more
            exchange.keep_alive = False
        if not exchange.response_complete:
            exchange.end_body()

    def _headers_too_large(self) -> HttpError:
        return HttpError(
            431,
            "the request's first line and headers are too large",
            limit=f"{self._settings.header_bytes_max} bytes",
            remedy="Send fewer or shorter headers",
        )

    # What is answered

    def answer(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        *,
        keep_alive: bool,
    ) -> None:
        """Write the whole answer to the request that is running, and go on with the next one."""
        if not self.transport.is_closing():  # else whoever asked is gone
            try:
                self._write(status, headers if keep_alive else [*headers, _CLOSE], body)
            except ValueError as error:
                # Without an answer here, the client would take the next one for it.
                log.error("an answer cannot be sent", exc_info=error)
                keep_alive = False
                failed = failure()
                self._write(failed.status, [*failed.all_headers, _CLOSE], failed.body)
        if not keep_alive:
            self._close_in_order()
        self._active_at = self.loop.time()
        if self._ended_at or self.transport.is_closing():
            return
        self._go_on()
        done = not (self._waiting or self._is_answering)
        if self._last_words is not None and done:
            self._end(self._last_words)

    def _go_on(self) -> None:
        """Begin the request that waits, or read on, once all answers are taken."""
        if self._ended_at or self.transport.is_closing() or not self.writable.is_set():
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        else:
            self.resume_reading()

    def _write(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Errors: ``ValueError`` for a header that would end its line; nothing is written then."""
        for name, value in headers:
            if _UNSAFE.search(name) or _UNSAFE.search(value):
                raise ValueError(f"not to be sent as a header: {name!r}: {value!r}")
        guards = self._server.guards
        if guards and any(name == _CACHE for name, _ in headers):  # a file that may be kept
            guards = [guard for guard in guards if guard[0] != _CACHE]
        every = ((b"date", self._server.date), *guards, *headers)
        lines = [b"%s: %s\r\n" % header for header in every]
        first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        self.transport.write(b"".join([first, *lines, b"\r\n", body]))

    def _close_in_order(self) -> None:
        """Close when the other side has, or has had its time for it."""
        if self._ended_at or self.transport.is_closing():
            return
        self._ended_at = self.loop.time()
        self._forget_waiting()
        self.resume_reading()
        self.transport.write_eof()

    def shutdown(self) -> None:
        """Close behind the answers that are awaited, as the server ends."""
        if self._arriving is not None and not self._ended_at:
            self._leave_direct(self._arriving)
        newest = self._newest
        if self._ended_at or newest is None or newest.response_complete:
            self.transport.close()
        else:
            newest.keep_alive = False

    def drop_waiting(self) -> None:
        """Begin no request any more, and close behind the one that is being answered."""
        self._forget_waiting()
        if self._running is not None:
            self._running.keep_alive = False

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._held = bytearray()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if that was paused, but behind no request that waits."""
        if self._reading_paused and not self._waiting:
            self._reading_paused = False
            self.transport.resume_reading()
            held, self._held = self._held, bytearray()
            if held:
                self._read(held)

    # Time

    def pause_writing(self) -> None:
        self._writing_since = self.loop.time()
        self.writable.clear()
        if not self._ended_at:
            self._pause_reading()
        self._server.unread[self] = self.transport.get_write_buffer_size()
        end_who_read_least(self._server.unread)

    def resume_writing(self) -> None:
        self._writing_since = 0.0
        self._server.unread.pop(self, None)
        self.writable.set()
        if not self._is_answering:
            self._go_on()

    def look(self, now: float) -> None:
        """End this connection if it is too slow. ``now``: of the loop's clock."""
        receive_s, idle_s = self._settings.receive_s, self._settings.idle_s
        head_s = receive_s
        if self._server.hosts[ALL] > 0.9 * self._settings.connections_max:
            head_s, idle_s = receive_s / 6, min(receive_s / 6, idle_s)
        in_body = self._head_bytes and not self._in_head
        allowed = receive_s if in_body else head_s if self._head_bytes else idle_s
        if self._ended_at:
            if now - self._ended_at > receive_s:
                self.transport.abort()
        elif self.transport.is_closing():
            # What it still has to send is not taken.
            self._closing_since = self._closing_since or now
            if now - self._closing_since > receive_s:
                self.transport.abort()
        elif self._writing_since and now - self._writing_since > receive_s:
            self.transport.abort()
        elif self._reading_paused:
            self._receiving_since = now if self._receiving_since else 0.0  # it may not send on
        elif self._receiving_since and now - self._receiving_since > allowed:
            if self._head_bytes == 0:
                self.transport.abort()
            else:
                limit = f"{allowed:g} s"
                self.refuse(HttpError(408, "the request takes too long to arrive", limit=limit))
        elif (
            not self._receiving_since and not self._is_answering and now - self._active_at > idle_s
        ):
            self.transport.close()
        elif not self._server.stands(self.certificate):
            self.shutdown()

    def refuse(self, error: HttpError) -> None:
        """Answer this and close; behind the requests that came whole before, in their order."""
        if self._last_words is not None or self._ended_at:
            return
        self._receiving_since = 0.0
        if self._waiting and self._waiting[-1].more_body:
            self._waiting.pop()  # it is the one that is refused
        running = self._running
        if running is None or running.response_complete:
            self._end(error)
        elif running.more_body:
            running.lose()
            self._end(error)
        else:
            self._last_words = error

    def _end(self, error: HttpError) -> None:
        reply = error_reply(error)
        self._write(reply.status, [*reply.all_headers, _CLOSE], reply.body)
        self._close_in_order()


def end_who_read_least(unread: dict[HttpConnection, int]) -> None:
    """End connections until the others have no more than ``UNREAD_MAX`` bytes to read. One alone
    stays, however large its answer is."""
    while len(unread) > 1 and sum(unread.values()) > UNREAD_MAX:
        by_host: Counter[str] = Counter()
        for connection, nbytes in unread.items():
            by_host[connection.host] += nbytes
        [(most, _)] = by_host.most_common(1)
        leaving = next(connection for connection in unread if connection.host == most)
        del unread[leaving]
        leaving.transport.abort()


def _share(every: int) -> int:
    """How many connections one address may have."""
    return every - every // 4


def _too_many(where: str, count: int, limit: int) -> HttpError:
    return HttpError(
        503,
        f"too many connections{where}",
        got=count,
        limit=limit,
        remedy="Send further requests over open connections, or to another gateway",
        headers={"Retry-After": "1"},
    )


def _new_parser(connection: HttpConnection) -> HttpRequestParser:
    parser = HttpRequestParser(connection)
    # Else it would read no request that comes with the one before it, if that one is the last.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _host_and_port(address: Any) -> tuple[str, int] | None:
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
