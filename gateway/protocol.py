"""Connections with limits: how many, how large their headers, how slow they may be.

Theory: the server that we use bounds the body it holds (it stops reading); it bounds neither
headers, nor the time a request takes to arrive, nor that of who does not take an answer. One look
at all connections each second costs less than a timer for each request, as the server has it for
the time between two.

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
- What is no request is answered behind all requests that came before it: an answer is never that to
  another request.
- The offer of another protocol (``Upgrade``) is ignored, and the request is read as if it had not
  been made. The parser stops at such a request without its body, and would take that body for the
  next request: whoever gets a body through a proxy would send requests past it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from .answering import AnswerTransport
from .direct import METHOD, PATH, DirectAnswer, DirectMessages
from .errors import HttpError
from .framing import unreadable, unusable_head
from .requests import Reply
from .settings import GatewaySettings

_LOOK_EVERY_S = 1.0
_PIPELINED_MAX = 100
_DISCARDED_MAX = 64 << 20
"""Bytes that are read and thrown away before a connection is closed that has had its answer."""
_TURNED_AWAY_MAX = 100
"""Connections beyond the limit that may wait for their refusal to be read."""
_ALL = "all"
_METHOD, _PATH = METHOD.encode(), PATH.encode()


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Each server has a subclass with its own ``settings``, ``direct``, what
    answers single messages past ASGI, and ``hosts``: the number of connections by address and of
    all (``_ALL``), without those that were refused."""

    settings = GatewaySettings()
    direct: ClassVar[DirectMessages | None] = None
    hosts: ClassVar[Counter[str]] = Counter()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._counted: tuple[str, ...] = ()
        """Where it counts in ``hosts``."""
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
        self._running: RequestResponseCycle | None = None
        """The request that is being answered, or was answered last."""
        self._last_words: HttpError | None = None
        """The answer to what came behind requests that are still being answered."""
        self._arriving: DirectAnswer | None = None
        """The request that comes, if it may be answered past ASGI."""
        self._plain_headers: list[tuple[bytes, bytes]] | None = None
        """Of a request that was: a head that is equal to it need not be looked through again."""
        self._first_line = b""
        """Of a request with an offer of another protocol."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        every = self.settings.connections_max
        for where, whose, limit in (("", _ALL, every), (" from one address", host, _share(every))):
            if self.hosts[whose] >= limit:
                self._refuse(_too_many(where, self.hosts[whose] + 1, limit))
                if len(self.connections) - self.hosts[_ALL] > _TURNED_AWAY_MAX:
                    transport.close()
                return
        self._counted = (_ALL, host)
        self.hosts.update(self._counted)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for whose in self._counted:
            self.hosts[whose] -= 1
            if not self.hosts[whose]:
                del self.hosts[whose]
        self._counted = ()

    def data_received(self, data: bytes) -> None:
        if self._ended_at or self._last_words is not None:
            self._discarded += len(data)
            if self._discarded > _DISCARDED_MAX:
                self.transport.abort()
            return
        if self.transport.is_closing():
            return
        self._active_at = self.loop.time()
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parse(data)
        except HttpParserError as error:
            self._refuse(self._refusal or unreadable(self.parser.get_method(), error))
        if self._in_head and self._head_bytes > self.settings.header_bytes_max:
            self._refuse(self._headers_too_large())

    def _parse(self, data: bytes) -> None:
        """Errors: ``HttpParserError``."""
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                # The head once more, without the offer, and then what came behind it.
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = self._head_without_offer() + data[offer.args[0] :]
            else:
                return

    def _head_without_offer(self) -> bytes:
        lines = [b"%s: %s\r\n" % one for one in self.headers if one[0] != b"upgrade"]
        return b"%s%s\r\n" % (self._first_line, b"".join(lines))

    # What the parser finds

    def on_message_begin(self) -> None:
        self._receiving_since = self.loop.time()
        self._in_head = True
        self._head_bytes, self._trailer_bytes = 1, 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))
            return
        # A trailer, behind a body in chunks: nobody here looks at it.
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self.settings.header_bytes_max:
            self._refusal = self._headers_too_large()
            raise ValueError("trailers too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        single = self.url == _PATH and method == _METHOD and version == "1.1"
        if single and self.headers == self._plain_headers and self._is_free:
            self._begin_direct()
            return
        self._head_bytes = len(self.url) + sum([len(n) + len(v) + 4 for n, v in self.headers])
        if self._head_bytes > self.settings.header_bytes_max:
            self._refusal = self._headers_too_large()
            raise ValueError("headers too large")
        self._refusal = unusable_head(method, version, self.headers)
        if self._refusal is not None:
            raise ValueError(self._refusal.message)
        if parser.should_upgrade():
            self._first_line = b"%s %s HTTP/%s\r\n" % (method, self.url, version.encode())
            return  # this head comes again
        if len(self.pipeline) >= _PIPELINED_MAX:
            self._refusal = HttpError(
                400,
                "too many requests at once on a connection",
                limit=_PIPELINED_MAX,
                remedy="Await answers before further requests; those before this one are answered",
            )
            raise ValueError("too many requests")
        if single and self._is_free and self.direct is not None and self.direct.takes(self.headers):
            self._plain_headers = self.headers
            self._begin_direct()
        else:
            self._begin_cycle()

    @property
    def _is_free(self) -> bool:
        """Whether all that came before on this connection is answered."""
        newest: RequestResponseCycle | None = self.cycle
        return (newest is None or newest.response_complete) and not self.flow.write_paused

    def _begin_direct(self) -> None:
        assert self.direct is not None
        self._arriving = DirectAnswer(self.direct, self)

    def _begin_cycle(self) -> None:
        """What the server does when a head is complete. It makes the scope before there is one."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _leave_direct(self, arriving: DirectAnswer) -> None:
        """Answer a request through ASGI after all."""
        self._arriving = None
        self._begin_cycle()
        super().on_body(arriving.body)

    def on_body(self, body: bytes) -> None:
        if self._arriving is None:
            super().on_body(body)
        else:
            self._arriving.body += body

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._receiving_since = 0.0
        arriving = self._arriving
        if arriving is not None:
            if arriving.begin():
                self._arriving = None
                arriving.keep_alive = self.parser.should_keep_alive()
                self.cycle = self._running = cast("RequestResponseCycle", arriving)
                return
            self._leave_direct(arriving)
        if not self.parser.should_keep_alive():  # by a trailer: the parser reads nothing any more
            self.cycle.keep_alive = False
        super().on_message_complete()

    def _headers_too_large(self) -> HttpError:
        return HttpError(
            431,
            "the request's first line and headers are too large",
            limit=f"{self.settings.header_bytes_max} bytes",
            remedy="Send fewer or shorter headers",
        )

    # What is answered

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":  # whose clients know no answer before the answer
            cycle.waiting_for_100_continue = False
        transport = AnswerTransport(self.transport, cycle, self._close_in_order)
        cycle.transport = cast("asyncio.Transport", transport)
        super()._start_asgi_task(cycle, app)

    def answer(self, reply: Reply, *, keep_alive: bool) -> None:
        """Write the answer to the request that was answered past ASGI, as the server would."""
        if not self.transport.is_closing():
            headers = [*self.server_state.default_headers, *reply.all_headers]
            if not keep_alive:
                headers.append((b"connection", b"close"))
            lines = [b"%s: %s\r\n" % one for one in headers]
            self.transport.write(b"".join([STATUS_LINE[reply.status], *lines, b"\r\n", reply.body]))
        if not keep_alive:
            self._close_in_order()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """As the server's, without its timer: ``look`` ends who is quiet."""
        self._active_at = self.loop.time()
        self.server_state.total_requests += 1
        if self._ended_at or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        done = self._running is None or self._running.response_complete
        if self._last_words is not None and done:
            self._end(self._last_words)

    def _close_in_order(self) -> None:
        """Close when the other side has, or has had its time for it."""
        if self._ended_at or self.transport.is_closing():
            return
        self._ended_at = self.loop.time()
        self.pipeline.clear()
        self.flow.resume_reading()
        self.transport.write_eof()

    def shutdown(self) -> None:
        if self._ended_at:
            self.transport.close()
            return
        if self._arriving is not None:
            self._leave_direct(self._arriving)
        super().shutdown()

    # Time

    def pause_writing(self) -> None:
        self._writing_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._writing_since = 0.0
        super().resume_writing()

    def look(self, now: float) -> None:
        """End this connection if it is too slow. ``now``: of the loop's clock."""
        receive_s, idle_s = self.settings.receive_s, self.settings.idle_s
        head_s = receive_s
        if self.hosts[_ALL] > 0.9 * self.settings.connections_max:
            head_s, idle_s = receive_s / 6, min(receive_s / 6, idle_s)
        in_body = self._head_bytes and not self._in_head
        allowed = receive_s if in_body else head_s if self._head_bytes else idle_s
        running = self._running is not None and not self._running.response_complete
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
        elif self.flow.read_paused:
            self._receiving_since = now if self._receiving_since else 0.0  # it may not send on
        elif self._receiving_since and now - self._receiving_since > allowed:
            if self._answering or self._head_bytes == 0:
                self.transport.abort()
            else:
                limit = f"{allowed:g} s"
                self._refuse(HttpError(408, "the request takes too long to arrive", limit=limit))
        elif not self._receiving_since and not running and now - self._active_at > idle_s:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _refuse(self, error: HttpError) -> None:
        """Answer this and close; behind the requests that came whole before, in their order."""
        if self._last_words is not None or self._ended_at:
            return
        self._receiving_since = 0.0
        newest: RequestResponseCycle | None = self.cycle
        if self.pipeline and newest is not None and newest.more_body:
            self.pipeline.popleft()  # it is the one that is refused
        running = self._running
        if running is None or running.response_complete:
            self._end(error)
        elif running.more_body:
            running.disconnected = True
            running.message_event.set()
            if running.response_started:
                self.transport.abort()
            else:
                self._end(error)
        else:
            self._last_words = error

    def _end(self, error: HttpError) -> None:
        body = error.body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body)
        self._close_in_order()


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


async def look_at_connections(connections: set[Any]) -> None:
    """End what is too slow, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = loop.time()
        for connection in list(connections):
            connection.look(now)
