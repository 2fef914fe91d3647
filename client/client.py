"""The client, which an application uses to send, cancel and reschedule messages.

    with Client("127.0.0.1:7200") as client:
        receipt = client.send("orders", b"wake up", delay=30)
        print(receipt.id)

Theory: sending is cheap and does not wait for the node, unless the buffer is full; a message's
receipt has the result. One client is meant to be shared by all threads of a process.
"""

from __future__ import annotations

import atexit

# pyarrow imports it, through pandas, when it first converts a list; while the interpreter ends and
# the last messages are sent, that is too late.
import concurrent.futures.thread  # noqa: F401
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from ..policy.policyset import PolicySet
from ..policy.routes import Route
from ..security.secretplace import SecretPlace
from ..wheel.checks import check_topic, due_beyond_horizon, too_large
from ..wheel.delay import delay_of, due_times
from ..wheel.errors import (
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    NotRunning,
    SlotwheelError,
)
from ..wheel.ids import MessageId
from ..wheel.names import check_name
from ..wheel.protocol import (
    ACKNOWLEDGE,
    ACKS,
    CANCEL,
    CLOCK,
    DEFAULT_ADDRESS,
    DRAIN,
    FORGET,
    HELLO,
    NAMED,
    PAGE,
    POLICIES,
    REGISTER,
    RESCHEDULE,
    STATUS,
    STEP_DOWN,
    STEP_DOWN_MAX_S,
)
from ..wheel.request import RequestKey
from ..wheel.rows import Content, from_columns
from ..wheel.schema import times
from .addresses import (
    Addresses,
    Nodes,
    check_addresses,
    check_private_way,
    is_http,
    split,
    without_scheme,
)
from .asking import ANSWER_S, Asker
from .batch import ROW_OVERHEAD, ClientObserver, nbytes_of
from .buffer import Buffer
from .closing import ClosedByBlock
from .columns import SortedColumns, conform, pieces, sort_messages, sort_rows
from .failures import CountedShipment
from .hello import new_producer
from .levels import Resolver
from .link import WireTransport
from .message import (
    Delay,
    DueTime,
    FlatMessage,
    Headers,
    Message,
    clock_ms,
    due_of,
    flatten,
    message_of,
)
from .predecessor import NamedId
from .receiptfile import ReceiptFile
from .receipts import Receipt, Receipts
from .schedules import Schedules
from .sender import Sender
from .storing import Storer
from .transport import ClientTransport

if TYPE_CHECKING:
    from ..security.tls import Tls

_log = logging.getLogger("slotwheel.client")

TIMEOUT_MAX_S = 1e9
_CANCELS_AT_ONCE = 8_000
"""So many of the longest ids, 115 characters, fit into an action's 1 MiB of JSON."""
_ROUND_TRIP_S = 1.0
_STEP_S = 0.02


class Client(ClosedByBlock):
    """A connection to the node at ``address`` (``host:port``), opened on first use and reopened
    when it breaks. Thread-safe. Leaving the ``with`` block flushes and closes; so does the end of
    the program.

    For a group of peers, ``address`` names all of them (``"a:7200,b:7200,c:7200"``, or a sequence):
    the client finds the master and follows it. Messages that were in flight when a master failed
    are sent again to the next one, and stored once.

    With ``"tls://a:7200,b:7200"`` connections are over TLS, to all of them: the name in the address
    is compared with the node's certificate. ``tls``: files of the authorities that it has to be
    proven by, and of a certificate of the client's own (``slotwheel.Tls``); without it those
    authorities count that the system trusts. ``token``: ``"file:PATH"``, a private file with the
    token that proves to a node who this client is, read for each connection; or ``"env:NAME"``.

    An address of a gateway, ``"http://host:port"`` or ``"https://host:port"``, is for programs that
    send single messages from many processes; several are gateways of one group, and ``tls`` and
    ``token`` are for them then. ``acks`` is ``"all"`` then, and methods that
    concern single nodes (``register``, ``forget``, ``step_down``) raise.

    - ``timeout_s``: a message is tried for so long before its receipt gets ``Overloaded`` or
      ``NodeUnreachable``; ``send`` also waits so long for room in a full buffer.
    - ``linger_ms``: a single message waits so long for others to share its batch. Waiting for its
      receipt ends that as soon as nothing else is in flight. Of a ``Fleet`` it is also what waits
      of a call whose messages go to several wheels.
    - ``acks``: ``"all"``, ``"1"``, or ``"0"`` (fire and forget: no ids, and errors are dropped).
    - ``batch_rows``, ``batch_bytes``: limits of a batch; ``buffer_bytes``: of all unanswered
      messages.
    - ``receipts``: a new file, an Arrow stream with a row for each stored message, from which
      ``slotwheel replay`` proves delivery independently of the node. Not with ``acks="0"``.
    - ``observer``: gets messages that are stored or have failed; a ``Tracer``, for example
      (``slotwheel.trace``).

    Errors: ``InvalidMessage``; ``InvalidConfiguration``, also for an address without a port;
    ``OSError`` for ``receipts``.
    """

    def __init__(
        self,
        address: str | Sequence[str] | Nodes = DEFAULT_ADDRESS,
        *,
        timeout_s: float = 30.0,
        linger_ms: float = 5.0,
        acks: str = "all",
        batch_rows: int = 5_000,
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 64 << 20,
        receipts: str | os.PathLike[str] | None = None,
        observer: ClientObserver | None = None,
        tls: Tls | None = None,
        token: str | None = None,
    ) -> None:
        if acks not in ACKS:
            raise InvalidMessage("unknown acks", got=repr(acks), limit=", ".join(ACKS))
        if receipts is not None and acks == "0":
            raise InvalidConfiguration(
                "without answers there are no receipts to write",
                got='acks="0"',
                limit='acks="all" or "1"',
                remedy="Leave receipts or acks out",
            )
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise InvalidConfiguration(
                "no usable timeout_s",
                got=f"{timeout_s} s",
                limit=f"more than 0 s, at most {TIMEOUT_MAX_S} s",
                remedy="Give the seconds for which a message is tried; 30 is usual",
            )
        nodes = Nodes.of(address, tls, token)
        self.tls, self.token = nodes.tls, nodes.token
        self.is_secure, self.addresses = without_scheme(split(nodes.given))
        secret = None if nodes.token is None else SecretPlace.parse(nodes.token)
        transport = self._transport(acks, nodes.tls, secret)
        self.address = ",".join(self.addresses)
        self._asker = Asker(Addresses(self.addresses), transport, timeout_s)
        self._resolver = Resolver(self.policies)
        self._pid = os.getpid()
        self._closed = False
        self._acks, self._timeout_s = acks, timeout_s
        self._epoch_of_master = transport.epoch_of_master
        self.wire = transport if isinstance(transport, WireTransport) else None
        """The connections to nodes; None over HTTP."""
        plain = self.wire is not None and acks != "0"
        self._stores = plain and receipts is None and observer is None
        self._storers = threading.local()
        self._storers_lock = threading.Lock()
        self._all_storers: weakref.WeakSet[Storer] = weakref.WeakSet()
        self._receipts = None if receipts is None else ReceiptFile(receipts)
        producer, first_sequence = self._identity()
        self._buffer = Buffer(
            timeout_s=timeout_s,
            linger_s=linger_ms / 1000,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            bytes_max=buffer_bytes,
            first_sequence=first_sequence,
        )
        self._sender = Sender(
            Addresses(self.addresses),
            transport.open_link,
            transport.epoch_of_master,
            self._buffer,
            producer=producer,
            acks=acks,
            timeout_s=timeout_s,
            answer_timeout_s=min(timeout_s, ANSWER_S),
            receipts=self._receipts,
            observer=observer,
        )
        # A script that ends without ``close`` still gets its messages sent, if that is possible
        # soon.
        self._at_exit = _close_at_exit(weakref.ref(self))
        atexit.register(self._at_exit)

    def _transport(self, acks: str, tls: Tls | None, token: SecretPlace | None) -> ClientTransport:
        """The transport for the addresses. Errors: ``InvalidConfiguration``."""
        if self.is_secure:
            check_addresses(self.addresses)
            from ..security.tls import Tls, TlsFiles  # OpenSSL: 5 MB that a plain client lacks

            return WireTransport(TlsFiles.of_client(tls or Tls()), token)
        if tls is not None and not self.addresses[0].startswith("https://"):
            raise InvalidConfiguration(
                "files for TLS are given, and addresses without it",
                got=",".join(self.addresses),
                limit="tls://host:port, or https://host:port of a gateway",
                remedy="Begin the address with tls://, or leave tls out",
            )
        if not is_http(self.addresses):
            check_addresses(self.addresses)
            if token is not None:
                check_private_way(self.addresses)
            return WireTransport(token=token)
        if acks != "all":
            raise InvalidConfiguration(
                "a gateway answers when a message is stored",
                got=f'acks="{acks}"',
                limit='acks="all"',
                remedy="Leave acks out, or give the address of a node",
            )
        # And with them TLS: 5 MB that a client of nodes does not need.
        from .http import HttpTransport
        from .httpconnection import GatewayAccess

        return HttpTransport(GatewayAccess(tls, token))

    def _identity(self) -> tuple[int, int]:
        """The producer as which this client sends, and its first sequence."""
        return new_producer(), 0

    # Sending

    @overload
    def send(self, message: Message, /) -> Receipt: ...
    @overload
    def send(
        self,
        topic: str,
        value: Content = None,
        *,
        key: Content = None,
        headers: Headers = (),
        partition: int | None = None,
        due: DueTime = None,
        delay: Delay = None,
        expires: DueTime = None,
        ttl: Delay = None,
        level: str | None = None,
        name: str | None = None,
        if_exists: str | None = None,
    ) -> Receipt: ...
    def send(
        self,
        topic: str | Message,
        value: Content = None,
        *,
        key: Content = None,
        headers: Headers = (),
        partition: int | None = None,
        due: DueTime = None,
        delay: Delay = None,
        expires: DueTime = None,
        ttl: Delay = None,
        level: str | None = None,
        name: str | None = None,
        if_exists: str | None = None,
    ) -> Receipt:
        """Send one message, due at ``due`` or after ``delay`` or ``level`` (exactly one of them).

        From ``expires`` on, or ``ttl`` after it is due, it is not delivered (at most one of these).
        ``name``, ``if_exists``: as of ``Message``; the receipt's ``before`` is the message before.

        Errors at once: ``InvalidMessage``; ``Overloaded`` or ``NodeUnreachable`` when the buffer
        stays full; ``NotRunning`` when closed. All other errors are the receipt's.
        """
        self._check_usable()
        message = message_of(
            topic, value, key, headers, partition, due, delay, expires, ttl, level, name, if_exists
        )
        if message.level is not None or message.route is not None:
            message, route = self._resolver.resolve(message)
            if route is not None:
                shipment = self._copies(message, route)
                self._sender.submit(shipment)
                return Receipt(shipment, 0)
        shipment, row = self._sender.linger(self.prepare(message, clock_ms()))
        return Receipt(shipment, row)

    def store(
        self,
        topic: str | Message,
        value: Content = None,
        *,
        key: Content = None,
        headers: Headers = (),
        partition: int | None = None,
        due: DueTime = None,
        delay: Delay = None,
        expires: DueTime = None,
        ttl: Delay = None,
        level: str | None = None,
        name: str | None = None,
        if_exists: str | None = None,
    ) -> str:
        """Send one message and wait until it is stored. Takes what ``send`` takes, returns the id;
        that of a message with a ``name`` is a ``NamedId``, whose ``before`` is the message before.
        Each thread has a connection of its own for it: the quickest way for a program that waits
        for each message. Errors: ``SlotwheelError``."""
        self._check_usable()
        message = message_of(
            topic, value, key, headers, partition, due, delay, expires, ttl, level, name, if_exists
        )
        if not self._stores or needs_policies(message):
            return self._send_and_wait(message)
        storer: Storer | None = getattr(self._storers, "own", None)
        if storer is None:
            storer = self._storers.own = Storer(
                Addresses(self.addresses),
                self._epoch_of_master,
                acks=self._acks,
                timeout_s=self._timeout_s,
                secure=None if self.wire is None else self.wire.secure,
                token=None if self.wire is None else self.wire.token,
            )
            with self._storers_lock:
                self._all_storers.add(storer)
            self._check_usable()  # a ``close`` in between may not have seen it
        try:
            return storer.store(self.prepare(message, clock_ms()))
        except OverflowError:  # more or longer headers than a plain row can have
            return self._send_and_wait(message)

    def _send_and_wait(self, message: Message) -> str:
        receipt = self.send(message)
        message_id = receipt.result()
        return message_id if message.name is None else NamedId(message_id, receipt.before)

    def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Send many messages. A bad one gets its error on its receipt; the others are sent."""
        return self._send_many(messages, lingers=False)

    def send_share(
        self, share: Sequence[Message] | pa.RecordBatch, *, lingers: bool = True
    ) -> Receipts:
        """Send those messages of a larger call that are for this client's wheel, as ``send_many``
        does, or rows of schema ``INPUT``. If it ``lingers`` they wait up to ``linger_ms`` for
        others, unless somebody waits for their receipts: otherwise each 1,000 messages for three
        wheels would leave in three batches of 333, and a batch costs its sender as much as some
        hundred messages."""
        if isinstance(share, pa.RecordBatch):
            return self._send_rows(share, lingers=lingers)
        return self._send_many(share, lingers=lingers)

    def _send_many(self, messages: Iterable[Message], *, lingers: bool) -> Receipts:
        self._check_usable()
        shipments: list[CountedShipment] = []
        remaining = iter(messages)
        while chunk := list(itertools.islice(remaining, self._buffer.batch_rows_max)):
            if any(needs_policies(message) for message in chunk):
                self._ship_resolved(chunk, shipments)
            else:
                self._ship_messages(chunk, shipments, lingers=lingers)
        return Receipts(shipments)

    def send_table(self, table: pa.Table | pa.RecordBatch) -> Receipts:
        """Send an Arrow table with the columns ``due`` (timestamp with time zone, or int64 ms),
        ``topic``, ``value``, and optionally ``partition``, ``key``, ``headers``.

        Errors at once: ``InvalidBatch`` for a wrong schema. Bad rows: as in ``send_many``.
        """
        return self._send_rows(conform(table), lingers=False)

    def _send_rows(self, table: pa.Table | pa.RecordBatch, *, lingers: bool) -> Receipts:
        self._check_usable()
        shipments: list[CountedShipment] = []
        buffer = self._buffer
        for rows in pieces(table, buffer.batch_rows_max, buffer.batch_bytes_max):
            self._ship(sort_rows(rows, clock_ms(), buffer.limits), shipments, lingers=lingers)
        return Receipts(shipments)

    def prepare(self, message: Message, now_ms: int) -> FlatMessage:
        """Check a message without level and route for ``ship``. ``now_ms``: this machine's clock.
        Errors: ``InvalidMessage``."""
        flat = flatten(message)
        self._check_limits(flat, now_ms)
        return flat

    def prepare_many(
        self, messages: Sequence[Message] | pa.Table, now_ms: int
    ) -> tuple[pa.RecordBatch, Sequence[int]]:
        """Check messages for ``ship``, or a table of ``send_table``. Returns rows, one for each
        topic of a message's route, and for each row the number of its message. Waits for a node
        only if a message has a level or a route.

        Errors: ``InvalidMessage`` with the number of the first bad one; ``InvalidBatch``;
        ``NodeUnreachable``.
        """
        limits = self._buffer.limits
        if isinstance(messages, pa.Table):
            table = conform(messages).combine_chunks()
            checked = sort_rows(table.to_batches()[0], now_ms, limits)
        elif any(needs_policies(message) for message in messages):
            flats = [
                (number, *flat)
                for number, message in enumerate(messages)
                for flat in self._resolved(number, message, now_ms)
            ]
            numbers, *columns = (list(column) for column in zip(*flats, strict=True))
            return from_columns(*columns), numbers
        else:
            checked = sort_messages(messages, now_ms, limits)
        if checked.errors:
            row = min(checked.errors)
            error = checked.errors[row]
            error.row = row
            raise error
        assert checked.rows is not None
        return checked.rows, range(checked.rows.num_rows)

    def _resolved(self, number: int, message: Message, now_ms: int) -> list[tuple[Any, ...]]:
        try:
            message, route = self._resolver.resolve(message)
            flat = self.prepare(message, now_ms)
            topics = [flat.topic] if route is None else route.topics(flat.headers)
        except InvalidMessage as error:
            error.row = number
            raise
        return [flat._replace(topic=topic)[:6] for topic in topics]

    def ship(
        self,
        flats: Sequence[FlatMessage] | pa.RecordBatch,
        *,
        whole: bool,
        done: Callable[[Receipts], None],
        request: RequestKey | None = None,
        timeout_s: float | None = None,
    ) -> Receipts:
        """Send messages of one or many callers in one batch, without waiting; for an event loop,
        say, that sends for many.

        ``flats``: from ``prepare`` or ``prepare_many``, at most as many as ``batch_limits`` allow.
        ``whole``: all of them are stored, or none is; without it a bad one gets its error on its
        receipt, and the others are sent. ``request``: their request, which is always whole; if it
        was stored before, it is not stored again, and its receipts are those of the first time.
        They are tried for ``timeout_s``; None: the client's. After an error that is ``uncertain``
        the messages may be stored.

        ``done`` is called once with the receipts, when each of them has its id or its error; by one
        of the client's threads, or by the caller's before this returns. It must return at once and
        not call the client.

        Errors at once, after which nothing is sent: ``Overloaded`` or ``NodeUnreachable`` when the
        buffer is full; ``InvalidBatch`` beyond ``batch_limits``; ``NotRunning``.
        """
        self._check_usable()
        count = len(flats)
        as_rows = isinstance(flats, pa.RecordBatch)
        nbytes = nbytes_of(flats) + ROW_OVERHEAD * count
        rows_max, bytes_max = self.batch_limits
        if not 0 < count <= rows_max or nbytes > bytes_max:
            raise InvalidBatch(
                "not one batch",
                got=f"{count} messages, about {nbytes} bytes",
                limit=f"1 to {rows_max} messages, {bytes_max} bytes",
                remedy="Send fewer at a time, but at least one",
            )
        columns = None
        if not as_rows:
            columns = tuple(map(list, zip(*[flat[:6] for flat in flats], strict=True)))
        shipment = self._sender.new_shipment(
            due=times(flats, "due") if columns is None else columns[0],
            rows=flats if as_rows else None,
            columns=columns,
            nbytes=nbytes,
            whole=whole or request is not None,
            request=request,
            on_done=lambda: _report(done, receipts),
            counted_in=None,
        )
        receipts: Receipts = Receipts([shipment])
        self._sender.submit(shipment, wait=False, timeout_s=timeout_s)
        return receipts

    @property
    def batch_limits(self) -> tuple[int, int]:
        """The most messages of a batch, and bytes of these: the node's limits, once it answered."""
        limits = self._buffer.limits
        return limits.batch_rows, limits.batch_bytes

    def _ship_resolved(self, messages: Sequence[Message], shipments: list[CountedShipment]) -> None:
        """Ship messages, of which some have a level or a route, in their order."""
        plain: list[Message] = []

        def ship_plain() -> None:
            if plain:
                self._ship_messages(plain, shipments)
                plain.clear()

        # If no node answers with policies, only the first message waits for the whole timeout.
        missing: SlotwheelError | None = None
        for message in messages:
            if not needs_policies(message):
                plain.append(message)
                continue
            try:
                if missing is not None:
                    raise missing
                resolved, route = self._resolver.resolve(message)
                copies = None if route is None else self._copies(resolved, route)
            except SlotwheelError as error:
                missing = None if isinstance(error, InvalidMessage) else error
                ship_plain()
                nothing = SortedColumns(None, None, np.zeros(1, np.int64), {0: error})
                self._ship(nothing, shipments)
                continue
            if copies is None:
                plain.append(resolved)
            else:
                ship_plain()
                shipments.append(copies)
                self._sender.submit(copies)
        ship_plain()

    def _copies(self, message: Message, route: Route) -> CountedShipment:
        """A shipment of a message for the topics of a route: one batch, so that its rows are stored
        in one entry. Errors: ``InvalidMessage``."""
        now_ms = clock_ms()
        flat = flatten(message)
        topics = route.topics(flat.headers)
        self._check_limits(flat, now_ms)
        count = len(topics)
        limits, nbytes = self._buffer.limits, flat.nbytes * count
        if count > limits.batch_rows or nbytes > limits.batch_bytes:
            raise InvalidMessage(
                "message too large for all topics of its route",
                got=f"{nbytes} bytes for {count} topics",
                limit=f"{limits.batch_bytes} bytes, {limits.batch_rows} topics",
                remedy="Shorten it, or the route: it is stored for all topics at once",
            )
        # Lists of many messages are joined much faster than batches.
        _, _, *content = flat[:6]
        return self._sender.new_shipment(
            due=[flat.due],
            columns=([flat.due] * count, topics, *([value] * count for value in content)),
            nbytes=nbytes + ROW_OVERHEAD * count,
            copies=True,
        )

    def _check_limits(self, flat: FlatMessage, now_ms: int) -> None:
        limits = self._buffer.limits
        if flat.nbytes > limits.message_bytes:
            raise too_large(flat.nbytes, limits.message_bytes)
        latest = limits.latest_due_ms(now_ms)
        if latest is not None:
            [due_ms] = due_times([flat.due], now_ms)
            if due_ms > latest:
                raise due_beyond_horizon(due_ms, latest)

    def _ship_messages(
        self,
        messages: Sequence[Message],
        shipments: list[CountedShipment],
        *,
        lingers: bool = False,
    ) -> None:
        checked = sort_messages(messages, clock_ms(), self._buffer.limits)
        too_big = checked.rows is not None and checked.rows.nbytes > self._buffer.batch_bytes_max
        if too_big and len(messages) > 1:
            half = len(messages) // 2
            self._ship_messages(messages[:half], shipments, lingers=lingers)
            self._ship_messages(messages[half:], shipments, lingers=lingers)
        else:
            self._ship(checked, shipments, lingers=lingers)

    def _ship(
        self, checked: SortedColumns, shipments: list[CountedShipment], *, lingers: bool = False
    ) -> None:
        shipment = self._sender.new_shipment(
            due=checked.due, rows=checked.rows, kept=checked.kept, errors=checked.errors
        )
        shipments.append(shipment)
        self._sender.submit(shipment, lingers=lingers)

    # Requests

    @overload
    def cancel(
        self, ids: str | Receipt | Sequence[str | Receipt], *, topics: Sequence[str] | None = None
    ) -> list[str]: ...
    @overload
    def cancel(
        self, *, topic: str, name: str, topics: Sequence[str] | None = None
    ) -> tuple[str, str | None]: ...
    def cancel(
        self,
        ids: str | Receipt | Sequence[str | Receipt] | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
        topics: Sequence[str] | None = None,
    ) -> list[str] | tuple[str, str | None]:
        """Cancel messages. Returns ``"cancelled"``, ``"already delivered"`` or ``"unknown"`` for
        each. ``topics``: messages of other topics are left as they are, and *unknown*; names, or
        the begin of names and a ``*``. Over HTTP it is not to be had.

        Or cancel the message of a ``topic`` for which a ``name`` stands. Returns its answer, and
        its id; ``"unknown"`` and None: no message of that name is known. Such a request is not
        repeated where its answer was lost, as another message may have the name by then:
        ``NodeUnreachable`` means that it may have been cancelled.

        Errors: ``UnknownId`` for a text that is no id (another group's is *unknown*),
        ``InvalidMessage`` for the receipt of a message to several topics (give its ``ids``), and
        for a name that no message can have; ``NodeUnreachable``.
        """
        place = place_of(ids, topic, name)
        if place:
            answered = self.ask(CANCEL, {**place, **_only(topics)})
            return answered["answers"][0], answered["ids"][0]
        assert ids is not None
        items = [ids] if isinstance(ids, str | Receipt) else ids
        texts = [id_of(item) for item in items]
        due = [MessageId.parse(text).due for text in texts]
        # By due time: else each of many requests could be about messages of all days of a year, and
        # the node would have to look into all of its files for each.
        order = sorted(range(len(texts)), key=due.__getitem__)
        answers = [""] * len(texts)
        for start in range(0, len(texts), _CANCELS_AT_ONCE):
            share = order[start : start + _CANCELS_AT_ONCE]
            body = {"ids": [texts[at] for at in share], **_only(topics)}
            # A second cancel does no harm, so this request may be repeated.
            answered = self.ask(CANCEL, body, again=True)["answers"]
            for at, answer in zip(share, answered, strict=True):
                answers[at] = answer
        return answers

    def reschedule(
        self,
        message_id: str | Receipt | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
        due: DueTime = None,
        delay: Delay = None,
        topics: Sequence[str] | None = None,
    ) -> tuple[str, str | None]:
        """Give a message a new due time, by its id, or by its ``topic`` and ``name``. Returns the
        answer of ``cancel``, and the new id if it moved; a name stands for the moved message then.
        ``topics``: as of ``cancel``.

        Errors: ``InvalidMessage``, ``UnknownId``, ``NodeUnreachable`` (it may have happened then).
        """
        place = place_of(message_id, topic, name)
        if message_id is not None:
            text = id_of(message_id)
            MessageId.parse(text)
            place = {"id": text}
        new_due = due_of(due, delay)
        delay_ms = delay_of(new_due)
        fields = {"due_ms": new_due} if delay_ms is None else {"delay_ms": delay_ms}
        answer = self.ask(RESCHEDULE, {**place, **fields, **_only(topics)})
        return answer["answer"], answer["id"]

    def get(self, *, topic: str, name: str, topics: Sequence[str] | None = None) -> str | None:
        """The id of the message of a topic for which a name stands; None: none is known.
        ``topics``: no message of other topics is known.

        Errors: ``InvalidMessage``, ``NodeUnreachable``.
        """
        fields = {**place_of(None, topic, name), **_only(topics)}
        message_id: str | None = self.ask(NAMED, fields, again=True)["id"]
        return message_id

    def status(self) -> dict[str, Any]:
        """The status of the node's wheel, in plain numbers; of several addresses, the first that
        answers. With peers, ``replication`` is the group as that node sees it.

        Errors: ``NodeUnreachable``.
        """
        several = len(self.addresses) > 1
        answer = self.ask(STATUS, {}, again=several, of_master=False)
        status: dict[str, Any] = dict(answer["status"])
        if "replication" in answer:
            status["replication"] = answer["replication"]
        return status

    def acknowledge_unread(self) -> None:
        """Remove the notes on records of delay topics that were deleted before they were read from
        the status. Errors: ``NodeUnreachable``, ``NotMaster``.
        """
        self.ask(ACKNOWLEDGE, {}, again=True)

    def hello(self, timeout_s: float) -> dict[str, Any]:
        """The master's hello: among others ``group``, its name, and ``now_ms``, the clock by which
        messages are delivered, ms since the epoch. Errors: ``NodeUnreachable``;
        ``InvalidConfiguration`` over HTTP."""
        return self.ask(HELLO, {}, again=True, wait_s=timeout_s)

    def page(self, path: str) -> dict[str, Any]:
        """A page of a node, ``/metrics``, ``/healthz`` or ``/readyz``, as ``status``, ``type`` and
        ``body``. Errors: ``NodeUnreachable``; ``InvalidMessage``: no such page."""
        return self.ask(PAGE, {"path": path}, again=True, of_master=False)

    def policies(self) -> dict[str, Any]:
        """Levels, retry policies, routes, and the rules of consumer groups, with their version. The
        master answers: another peer may not have the last change yet, so that versions would go
        back.

        Errors: ``NodeUnreachable``, ``NotMaster``.
        """
        policies: dict[str, Any] = self.ask(POLICIES, {}, again=True)["policies"]
        return policies

    def fetch_policies(self) -> PolicySet:
        """Ask for the policies now. Messages with a level or a route use them for
        ``policies_fresh_s``. Errors: ``NodeUnreachable``."""
        return self._resolver.refresh()

    @property
    def policies_fresh_s(self) -> float:
        """The seconds for which ``prepare_many`` still asks no node for policies."""
        return self._resolver.fresh_s

    def register(self, group: str, rule: Mapping[str, Any] | None) -> dict[str, Any]:
        """Register the rule by which a consumer group filters; None: it takes every message.
        Returns the policies.

        Errors: ``InvalidMessage`` when another rule is registered; ``InvalidConfiguration`` for one
        that cannot be read; ``NodeUnreachable``.
        """
        body = {"group": group, "rule": None if rule is None else dict(rule)}
        policies: dict[str, Any] = self.ask(REGISTER, body, again=True)["policies"]
        return policies

    def forget(self, group: str) -> dict[str, Any]:
        """Take back the rule of a consumer group, so that another can be registered. Returns the
        policies. Errors: ``NodeUnreachable``."""
        policies: dict[str, Any] = self.ask(FORGET, {"group": group}, again=True)["policies"]
        return policies

    def drain(self, *, on: bool = True) -> None:
        """Have the group take no new messages, and deliver those that it has; or with ``on`` False
        take messages again. It says so for 5 s before it refuses any (``Draining``), so that
        clients of a fleet go to its other wheels. What ``status`` counts as pending is left.

        Errors: ``NodeUnreachable``, ``NotMaster``, ``NotRunning``.
        """
        self.ask(DRAIN, {"on": on}, again=True)

    def clock(self, do: str = "show") -> dict[str, Any]:
        """A node's clock, in ``clock``. ``do``: ``"accept"`` makes the node believe its wall clock;
        ``"set-back"`` makes the master set its marks back to the clock.

        Errors: ``NodeUnreachable``, ``NotMaster``, ``Overloaded``.
        """
        return self.ask(CLOCK, {"do": do}, of_master=do == "set-back")

    @property
    def schedules(self) -> Schedules:
        """The group's schedules: messages that come again and again."""
        return Schedules(self.ask)

    def step_down(self, timeout_s: float = 10.0) -> str:
        """Make the master hand over to one of its peers. Returns the address of the new master.

        Errors: ``InvalidMessage`` for a node without peers, ``NotRunning`` when there is no new
        master within ``timeout_s``, ``NodeUnreachable``.
        """
        timeout_s = min(timeout_s, STEP_DOWN_MAX_S)
        end = time.monotonic() + timeout_s
        before = self.ask(HELLO, {}, wait_s=timeout_s)
        answer = self.ask(STEP_DOWN, {"timeout_s": timeout_s}, wait_s=timeout_s + _ROUND_TRIP_S)
        while answer["done"] and time.monotonic() < end:
            now = self.ask(HELLO, {}, again=True, wait_s=max(0.1, end - time.monotonic()))
            # A peer's answer may be a moment old.
            if now["epoch"] > before["epoch"] and now["master_address"]:
                return str(now["master_address"])
            time.sleep(_STEP_S)
        raise NotRunning(
            "no peer has taken over" + ("" if answer["done"] else ": the master goes on"),
            limit=f"{timeout_s} s",
            remedy="'slotwheel status' shows which peers follow, and how far behind they are",
        )

    def ask(self, action: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Send an action of ``wheel/protocol.py``, and return the fields of its answer. ``more``:
        as of ``Asker.ask``. Errors: the node's; ``NodeUnreachable``."""
        self._check_usable()
        return self._asker.ask(action, fields, **more)

    # Life

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all messages sent so far are stored or given up, and their receipts are in
        their file. Errors: ``TimeoutError``; ``OSError``: the file of receipts is not complete."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self._sender.flush(timeout_s)
        if self._receipts is not None:
            self._receipts.flush(None if end is None else max(0.0, end - time.monotonic()))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush for at most ``timeout_s`` (None: until each message is stored or given up), and
        end. Messages not answered by then fail with ``NotRunning``. If messages failed whose
        receipts nobody has read, one warning is logged (``slotwheel.client``). May be called again.

        Errors: ``OSError``: the file of receipts is not complete.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._sender.flush(timeout_s)
        except TimeoutError:
            pass  # an error of the receipts
        finally:
            self._sender.close()
            with self._storers_lock:
                storers = list(self._all_storers)
            for storer in storers:
                storer.end()
            self._asker.close()
            self._log_unread()
            if self._receipts is not None:
                self._close_receipts(self._receipts, end)

    def _log_unread(self) -> None:
        unread = self._sender.unread
        with unread.lock:
            count, first = unread.count, unread.first
        if count:
            _log.warning(
                "slotwheel client: closed; messages that failed, and whose receipts nobody read:"
                " %d; the first failure: %s",
                count,
                first,
            )

    def _close_receipts(self, receipts: ReceiptFile, end: float | None) -> None:
        try:
            receipts.close(None if end is None else max(0.1, end - time.monotonic()))
        except TimeoutError:
            _log.warning("slotwheel client: closed with receipts that were not written yet")

    def _check_usable(self) -> None:
        if self._closed:
            raise NotRunning("the client is closed", remedy="Make a new Client")
        if os.getpid() != self._pid:
            raise NotRunning(
                "the client was made before this process was forked",
                remedy="Make a Client in each process",
            )


def _report(done: Callable[[Receipts], None], receipts: Receipts) -> None:
    try:
        done(receipts)
    except Exception:  # a caller's error must not fail the client
        _log.exception("slotwheel client: a report of receipts failed")


def needs_policies(message: object) -> bool:
    return isinstance(message, Message) and (message.level is not None or message.route is not None)


def _close_at_exit(reference: weakref.ref[Client]) -> Any:
    def close() -> None:
        client = reference()
        if client is not None:
            with contextlib.suppress(OSError):  # of receipts; it is logged
                client.close()

    return close


def id_of(item: str | Receipt) -> str:
    """The id of a message, given itself or by its receipt. Errors: ``InvalidMessage`` for the
    receipt of a message to several topics."""
    if not isinstance(item, Receipt):
        return item
    ids = item.ids
    if len(ids) > 1:
        raise InvalidMessage(
            "the receipt of a message with a route: it has an id for each topic",
            got=f"{len(ids)} ids",
            limit="one id",
            remedy="Give receipt.ids, or those of them that are meant",
        )
    return ids[0]


def place_of(ids: object, topic: str | None, name: str | None) -> dict[str, str]:
    """The fields of a request about the message of a name; empty: its ids are given. Errors:
    ``InvalidMessage``."""
    named = topic is not None or name is not None
    if named == (ids is not None) or (topic is None) != (name is None):
        raise InvalidMessage(
            "which message is meant cannot be told",
            got=f"id {ids!r}, topic {topic!r}, name {name!r}"[:200],
            limit="an id, or topic and name",
            remedy="Give the id alone, or topic= and name=: a name is unique within its topic",
        )
    if topic is None or name is None:
        return {}
    check_topic(topic)
    check_name(name)
    return {"topic": topic, "name": name}


def _only(topics: Sequence[str] | None) -> dict[str, list[str]]:
    return {} if topics is None else {"topics": list(topics)}
