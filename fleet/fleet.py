"""A client of several wheels, with the methods of ``Client``.

    with Fleet("fleet.toml") as fleet:
        receipt = fleet.send("orders", b"remind", key="order-17", delay="30s")

Theory: a message goes to the wheel of its key (``routing.py``), one without a key to the next wheel
that answers. From then on its id names its wheel. What is asked by name goes to the wheel that the
name would go to, and if that one does not know it to all others: the message may have come when the
fleet was smaller.

Rules
- What is asked of several wheels is asked at the same time; the slowest decides how long it takes.
- A wheel that does not answer is named, never left out silently: *unknown* of all others is no
  answer then, as it may be the one that knows.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, overload
from zlib import crc32

import numpy as np
import pyarrow as pa

from ..client.addresses import Nodes
from ..client.batch import ClientObserver
from ..client.cancels import UNKNOWN, UNREACHABLE
from ..client.client import Client, id_of, needs_policies, place_of
from ..client.closing import ClosedByBlock
from ..client.columns import conform, rows_of
from ..client.groupstatus import group_status
from ..client.message import Delay, DueTime, FlatMessage, Message
from ..client.receipts import Receipt, Receipts
from ..client.schedules import Schedules
from ..wheel.errors import InvalidMessage, NodeUnreachable, SlotwheelError, UnknownSchedule
from ..wheel.ids import MessageId
from ..wheel.names import NAME_HEADER
from ..wheel.protocol import SCHEDULE_LIST, SCHEDULE_PUT, SCHEDULE_SHOW
from ..wheel.rows import Content, header_values, take_rows
from ..wheel.schema import Int64s
from ..wire.pool import Pool
from .file import nodes_of, read_fleet
from .routing import BUCKETS, Routing, bucket_of
from .wheels import Wheels, WheelState

if TYPE_CHECKING:
    from ..policy.policyset import PolicySet
    from ..security.tls import Tls

R = TypeVar("R")
_AT_ONCE = 5_000
NO_KEY = -1
"""The bucket of a message that any wheel may have."""
_THREADS_MAX = 64
"""The most wheels that are asked at the same time."""
_MASK = BUCKETS - 1
_BINARY = (bytes, bytearray, memoryview)


class Fleet(ClosedByBlock):
    """A client of all ``wheels``: a fleet's file, or a mapping of wheels' names to what ``Client``
    takes for the nodes of one. Thread-safe; leaving the ``with`` block flushes and closes.

    Arguments and methods are those of ``Client``. ``tls`` and ``token`` are for all wheels that do
    not say otherwise (``Nodes``); the buffer is one for each wheel. ``receipts``: a file for each
    wheel is written, ``sent.arrows`` gives ``sent.north.arrows``. What concerns a single wheel, as
    ``step_down``, is a method of ``wheel(name)``, its ``Client``.

    Equal keys go to one wheel and keep their order, also while it is away: their messages wait for
    it, as long as ``timeout_s``. A message without a key goes to the next wheel that answers.

    Errors: ``InvalidConfiguration``, which names the place in the file.
    """

    def __init__(
        self,
        wheels: str | os.PathLike[str] | Mapping[str, str | Sequence[str] | Nodes],
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
        named = wheels if isinstance(wheels, Mapping) else read_fleet(wheels).wheels
        nodes = nodes_of(named, tls, token)

        def connect(name: str, reached: Nodes) -> Client:
            return Client(
                reached,
                timeout_s=timeout_s,
                linger_ms=linger_ms,
                acks=acks,
                batch_rows=batch_rows,
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                receipts=None if receipts is None else receipts_of(receipts, name),
                observer=observer,
            )

        self.names = tuple(nodes)
        self._every = self._routing = Routing(self.names)
        self._routing_anew = threading.Lock()
        self._pool = Pool(_THREADS_MAX, "slotwheel-fleet")
        self._turn = itertools.count()
        self._wheels = Wheels(nodes, connect)
        self._clients = {name: wheel.client for name, wheel in self._wheels.by_name.items()}
        self.turns: Sequence[str] = self.names
        """The wheels that get messages without a key, in turn."""
        self._wheels.watch(self._route_anew)

    def wheel(self, name: str) -> Client:
        """The client of one wheel. Errors: ``InvalidMessage``: the fleet has none of that name."""
        try:
            return self._clients[name]
        except KeyError:
            raise InvalidMessage(
                "no such wheel",
                got=repr(name)[:80],
                limit=", ".join(self.names)[:500],
                remedy="Give one that the fleet's file names",
            ) from None

    def wait_until_asked(self) -> None:
        """Wait until each wheel was greeted once, or could have been; what is sent later does not
        wait for that."""
        self._wheels.wait_until_asked()

    def states(self) -> dict[str, tuple[WheelState, SlotwheelError | None]]:
        """What the last greeting of each wheel showed, and its error."""
        return {name: (each.state, each.problem) for name, each in self._wheels.by_name.items()}

    # Choosing a wheel

    def _route_anew(self) -> None:
        """Follow a change of the wheels that take messages."""
        with self._routing_anew:
            wheels = self._wheels.by_name
            taking = self._wheels.open() or list(self.names)
            if taking != list(self._routing.wheels):
                self._routing = Routing(taking)
            there = [name for name in taking if wheels[name].state is WheelState.THERE]
            self.turns = there or taking

    def client_of(self, message: Message) -> Client:
        """The client of the wheel to which a message goes now."""
        return self._clients[self.wheel_at(_bucket(message))]

    def wheel_at(self, bucket: int) -> str:
        """The wheel that gets a message of ``bucket`` now; ``NO_KEY``: the next one in turn."""
        self._wheels.wait_until_asked()
        return self._next() if bucket == NO_KEY else self._routing.at(bucket)

    def _next(self) -> str:
        turns = self.turns
        return turns[next(self._turn) % len(turns)]

    # Sending

    @overload
    def send(self, message: Message, /) -> Receipt: ...
    @overload
    def send(self, topic: str, value: Content = None, **more: Any) -> Receipt: ...
    def send(self, topic: str | Message, value: Content = None, **more: Any) -> Receipt:
        """Send one message. Takes what ``Client.send`` takes, and has its errors."""
        message = _message(topic, value, **more)
        return self.client_of(message).send(message)

    def store(self, topic: str | Message, value: Content = None, **more: Any) -> str:
        """Send one message and wait until it is stored: ``Client.store``. Returns its id."""
        message = _message(topic, value, **more)
        return self.client_of(message).store(message)

    def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Send many messages. A bad one gets its error on its receipt; the others are sent."""
        parts: list[Receipts] = []
        remaining = iter(messages)
        while chunk := list(itertools.islice(remaining, _AT_ONCE)):
            parts.append(self._send_chunk(chunk))
        return Receipts.joined(parts, np.arange(sum(map(len, parts))))

    def _send_chunk(self, messages: list[Message]) -> Receipts:
        # Columns of all cost as much as those of one wheel's messages: they are made once.
        rows = None if any(map(needs_policies, messages)) else rows_of(messages)
        if rows is not None:
            return self._send_rows(rows)
        buckets = np.fromiter(map(_bucket, messages), np.int64, len(messages))
        return self._shared_out(buckets, lambda order: [messages[row] for row in order.tolist()])

    def send_table(self, table: pa.Table | pa.RecordBatch) -> Receipts:
        """Send an Arrow table: ``Client.send_table``."""
        batches = conform(table).combine_chunks().to_batches()
        parts = [self._send_rows(rows) for rows in batches]
        return Receipts.joined(parts, np.arange(sum(map(len, parts))))

    def _send_rows(self, rows: pa.RecordBatch) -> Receipts:
        """Send rows of schema ``INPUT``."""
        return self._shared_out(buckets_of_rows(rows), partial(take_rows, rows))

    def _shared_out(
        self, buckets: Int64s, take: Callable[[Int64s], Sequence[Message] | pa.RecordBatch]
    ) -> Receipts:
        """Send messages of ``buckets``; ``take`` gives those of some numbers, in their order.
        Returns the receipts in the order of the messages."""
        shares = self.shares(buckets)
        if not shares:
            return Receipts([])
        order = np.concatenate([rows for _, rows in shares])
        ordered = take(order)
        parts: list[Receipts] = []
        begin = 0
        for name, rows in shares:
            share = ordered[begin : begin + len(rows)]
            parts.append(self._clients[name].send_share(share, lingers=len(shares) > 1))
            begin += len(rows)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return Receipts.joined(parts, places)

    def shares(self, buckets: Int64s, *, of_all: bool = False) -> list[tuple[str, Int64s]]:
        """The wheels for messages of ``buckets``, each with the numbers of its messages, ascending.
        Messages without a key go to one wheel together. ``of_all``: also wheels that take no new
        messages now, as for what may have been sent before they did not."""
        self._wheels.wait_until_asked()
        routing = self._every if of_all else self._routing
        anywhere = len(routing.wheels)
        owners = routing.owner[buckets & _MASK]
        owners[buckets == NO_KEY] = anywhere
        counts = np.bincount(owners, minlength=1)
        wheels = np.flatnonzero(counts)
        rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts[wheels])[:-1])
        return [
            (self._next() if number == anywhere else routing.wheels[number], share)
            for number, share in zip(wheels.tolist(), rows, strict=False)  # of none: one, empty
        ]

    # Checking what a gateway sends for others

    def prepare(self, message: Message, now_ms: int) -> FlatMessage:
        """Check a message by the limits of a wheel: ``Client.prepare``."""
        return self._one.prepare(message, now_ms)

    def prepare_many(
        self, messages: Sequence[Message] | pa.Table, now_ms: int
    ) -> tuple[pa.RecordBatch, Sequence[int]]:
        """Check messages by the limits, levels and routes of a wheel: ``Client.prepare_many``."""
        return self._one.prepare_many(messages, now_ms)

    @property
    def batch_limits(self) -> tuple[int, int]:
        """Of a wheel: ``Client.batch_limits``."""
        return self._one.batch_limits

    def fetch_policies(self) -> PolicySet:
        """Levels and routes of a wheel; all are given the same."""
        return self._one.fetch_policies()

    @property
    def policies_fresh_s(self) -> float:
        """As of ``Client``."""
        return self._one.policies_fresh_s

    @property
    def _one(self) -> Client:
        """A wheel that answers, if there is one: the same as long as it does."""
        return self._clients[self.turns[0]]

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
        """Cancel messages, each at the wheel that its id names: ``Client.cancel``. The answer for
        ids of a wheel that does not answer is ``"unreachable"``: they may be cancelled or not. The
        others are cancelled all the same.

        Errors: those of ``Client.cancel``; by name also ``NodeUnreachable`` when no wheel that
        answers knows the name, and some do not answer.
        """
        place = place_of(ids, topic, name)
        if place:
            answer: tuple[str, str | None] = self._find(
                place["name"].encode(),
                lambda wheel: wheel.cancel(**place, topics=topics),
                lambda answer: answer[0] != UNKNOWN,
            )
            return answer
        assert ids is not None
        items = [ids] if isinstance(ids, str | Receipt) else ids
        texts = [id_of(item) for item in items]
        rows: dict[str, list[int]] = {}
        for row, text in enumerate(texts):
            rows.setdefault(MessageId.parse(text).group, []).append(row)
        asked = {
            group: partial(_cancel, ids=[texts[row] for row in rows[group]], topics=topics)
            for group in rows
            if group in self._clients
        }
        answers = [UNKNOWN] * len(texts)
        for group, answered in self._ask(asked).items():
            if isinstance(answered, NodeUnreachable):
                answered = [UNREACHABLE] * len(rows[group])  # noqa: PLW2901
            elif isinstance(answered, SlotwheelError):
                raise answered
            for row, answer_of_one in zip(rows[group], answered, strict=True):
                answers[row] = answer_of_one
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
        """Give a message a new due time, within its wheel: ``Client.reschedule``. Errors: those of
        that, and of ``cancel`` by name."""
        place = place_of(message_id, topic, name)
        if place:
            answer: tuple[str, str | None] = self._find(
                place["name"].encode(),
                lambda wheel: wheel.reschedule(**place, due=due, delay=delay, topics=topics),
                lambda answer: answer[0] != UNKNOWN,
            )
            return answer
        assert message_id is not None
        text = id_of(message_id)
        client = self._clients.get(MessageId.parse(text).group)
        if client is None:
            return UNKNOWN, None
        return client.reschedule(text, due=due, delay=delay, topics=topics)

    def get(self, *, topic: str, name: str, topics: Sequence[str] | None = None) -> str | None:
        """The id of the message of a topic for which a name stands: ``Client.get``. Errors: as of
        ``cancel`` by name."""
        place = place_of(None, topic, name)
        message_id: str | None = self._find(
            name.encode(),
            lambda wheel: wheel.get(**place, topics=topics),
            lambda answer: answer is not None,
        )
        return message_id

    def status(self) -> dict[str, Any]:
        """The state of each wheel. ``wheels`` has, by name: ``state`` (a ``WheelState``),
        ``problem`` (a text; empty: there is none) and ``status``, that of ``Client.status``, None
        of a wheel that does not answer, or at whose addresses another one does; with peers it is
        the master's. ``complete``: True when all did."""
        self._wheels.wait_until_asked()
        wheels: dict[str, Any] = {}
        for name, answer in self._ask(dict.fromkeys(self.names, group_status)).items():
            wheel = self._wheels.by_name[name]
            state, problem = wheel.state, wheel.problem
            if isinstance(answer, SlotwheelError):
                state, problem = WheelState.AWAY, answer
            elif state in (WheelState.AWAY, WheelState.NOT_ASKED):  # it answers again
                state, problem = WheelState.THERE, None
            wheels[name] = {
                "state": str(state),
                "problem": "" if problem is None else str(problem),
                "status": None if state in (WheelState.AWAY, WheelState.MISNAMED) else answer,
            }
        complete = all(entry["status"] is not None for entry in wheels.values())
        return {"complete": complete, "wheels": wheels}

    @property
    def schedules(self) -> Schedules:
        """The schedules of all wheels. A new one is stored by the wheel that its name leads to."""
        return Schedules(self._ask_for_schedules)

    def _ask_for_schedules(
        self, action: str, fields: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        if action == SCHEDULE_LIST:
            return self._list_schedules(fields, **more)
        new = action == SCHEDULE_PUT
        name = str(fields["schedule"].get("name") if new else fields["name"])
        place = name.encode(errors="replace")

        def shown(wheel: Client) -> Client | None:
            with contextlib.suppress(UnknownSchedule):
                wheel.ask(SCHEDULE_SHOW, {"name": name}, again=True)
                return wheel
            return None

        # A second one of its name at another wheel would send everything twice.
        wheel = self._find(place, shown, lambda wheel: wheel is not None)
        if wheel is None:
            wheel = self._clients[self._routing.wheel_of(place)]
        answer: dict[str, Any] = wheel.ask(action, fields, **more)
        return answer

    def _list_schedules(self, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A page of the schedules of all wheels, by name."""
        asked = dict.fromkeys(self.names, lambda wheel: wheel.ask(SCHEDULE_LIST, fields, **more))
        return merged_page(self._all(asked), fields["limit"])

    def register(self, group: str, rule: Mapping[str, Any] | None) -> None:
        """Register a consumer group's rule at all wheels: ``Client.register``. Errors: that of a
        wheel; the others may have the rule, and a repeat does no harm."""
        self._all(dict.fromkeys(self.names, lambda wheel: wheel.register(group, rule)))

    def forget(self, group: str) -> None:
        """Take back a consumer group's rule at all wheels: ``Client.forget``. Errors: as of
        ``register``."""
        self._all(dict.fromkeys(self.names, lambda wheel: wheel.forget(group)))

    # Asking several

    def _ask(self, calls: Mapping[str, Callable[[Client], R]]) -> dict[str, R | SlotwheelError]:
        """What each wheel answers to its call, or its error; all at the same time."""
        answers: dict[str, R | SlotwheelError] = {}
        done: SimpleQueue[tuple[str, R | BaseException]] = SimpleQueue()

        def ask(name: str) -> None:
            try:
                done.put((name, calls[name](self._clients[name])))
            except BaseException as error:
                done.put((name, error))

        first, *others = calls or [""]
        for name in others:
            self._pool.submit(ask, name)
        if calls:
            ask(first)
        for _ in calls:
            name, answer = done.get()
            if isinstance(answer, BaseException) and not isinstance(answer, SlotwheelError):
                raise answer
            answers[name] = answer
        return {name: answers[name] for name in calls}

    def _all(self, calls: Mapping[str, Callable[[Client], R]]) -> list[R]:
        """What all wheels answer. Errors: that of the first wheel that has one, with its name."""
        answers: list[R] = []
        for name, answer in self._ask(calls).items():
            if isinstance(answer, SlotwheelError):
                raise _of_wheel(name, answer)
            answers.append(answer)
        return answers

    def _find(
        self, place: bytes, ask: Callable[[Client], Any], known: Callable[[Any], bool]
    ) -> Any:
        """The answer of the wheel that knows, or else any other's. That of ``place`` is asked
        first, then all others. Errors: that of a wheel, if none of the others knows."""
        first, *others = self._every.ranked(place)
        failed: SlotwheelError | None = None
        answer: Any = None
        for names in ([first], others):
            for name, answered in self._ask(dict.fromkeys(names, ask)).items():
                if isinstance(answered, NodeUnreachable):
                    failed = failed or _of_wheel(name, answered)
                elif isinstance(answered, SlotwheelError):
                    raise answered
                elif known(answered):
                    return answered
                else:
                    answer = answered
        if failed is not None:
            raise failed
        return answer

    # Life

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all messages sent so far are stored or given up: ``Client.flush``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for client in self._clients.values():
            client.flush(None if end is None else max(0.0, end - time.monotonic()))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush for at most ``timeout_s``, and end: ``Client.close``."""
        self._wheels.close()
        self._pool.close()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with contextlib.ExitStack() as closing:  # each is closed, also when another one fails
            for client in self._clients.values():
                closing.callback(_close, client, end)


def merged_page(pages: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """A page of at most ``limit`` schedules out of the ``pages`` of several wheels, by name. It
    ends where the first of them ends that has further ones: behind that, this wheel's are
    missing."""
    rows = [row for page in pages for row in page["schedules"]]
    rows.sort(key=lambda row: str(row["schedule"]["name"]))
    ends = [page["after"] for page in pages if page["after"] is not None]
    after = min(ends, default=None)
    if after is not None:
        rows = [row for row in rows if row["schedule"]["name"] <= after]
    if len(rows) > limit:
        rows = rows[:limit]
        after = rows[-1]["schedule"]["name"]
    return {"schedules": rows, "after": after}


def receipts_of(path: str | os.PathLike[str], wheel: str) -> Path:
    """The file of a wheel's receipts: ``sent.north.arrows`` for ``sent.arrows``."""
    given = Path(path)
    return given.with_name(f"{given.stem}.{wheel}{given.suffix}")


def _close(client: Client, end: float | None) -> None:
    client.close(None if end is None else max(0.0, end - time.monotonic()))


def _cancel(wheel: Client, ids: list[str], topics: Sequence[str] | None) -> list[str]:
    return wheel.cancel(ids, topics=topics)


def _of_wheel(name: str, error: SlotwheelError) -> SlotwheelError:
    """The error of a wheel, with its name."""
    named = copy(error)
    named.message = f"the wheel {name}: {error.message}"
    return named


def _message(topic: str | Message, value: Content = None, **more: Any) -> Message:
    return topic if isinstance(topic, Message) else Message(topic, value, **more)


def _bucket(message: Message) -> int:
    """The bucket of a message; ``NO_KEY``: any wheel may have it, also because its key is none,
    which whichever client gets it will say."""
    if message.name is not None:
        return bucket_of(str(message.name).encode(errors="replace"))
    key: object = message.key
    if isinstance(key, str):
        key = key.encode(errors="replace")
    return bucket_of(bytes(key)) if isinstance(key, _BINARY) else NO_KEY


def bucket_of_row(flat: FlatMessage) -> int:
    """The bucket of a checked message."""
    place = flat.place
    if place is not None:
        return bucket_of(place[1] or b"")
    return NO_KEY if flat.key is None else bucket_of(flat.key)


def buckets_of_rows(rows: pa.RecordBatch) -> Int64s:
    """The buckets of rows of schema ``INPUT``, shape (rows,)."""
    keys = rows.column("key")
    if keys.null_count:
        buckets = np.full(len(keys), NO_KEY)
        present = np.flatnonzero(np.asarray(keys.is_valid()))
        buckets[present] = _hashed(keys.drop_null())
    else:
        buckets = _hashed(keys)
    named = header_values(rows.column("headers"), NAME_HEADER)
    if named is not None:
        for row, name in zip(named[0].tolist(), named[1].to_pylist(), strict=True):
            buckets[row] = bucket_of(name or b"")
    return buckets


def _hashed(keys: pa.Array) -> Int64s:
    """The buckets of keys of which none is null."""
    return np.fromiter(map(crc32, keys.to_pylist()), np.int64, len(keys)) & _MASK
