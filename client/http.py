"""A group reached over HTTP: ``Client("http://host:port")`` for a gateway instead of a node.

It is for programs that send single messages from many processes: a node takes few connections, a
gateway thousands. Batches, receipts, errors and retries are those of every client, and only the
last step differs:

    batch, sequence --> POST /v1/messages, an Arrow stream, Idempotency-Key "producer-sequence"
        --> ids, or an error

Rules
- Each batch is a request with a key of its own. So it may be sent again after any trouble, through
  any gateway of the group, and is stored once.
- A link is one connection, used by one thread: a request, its answer, the next request. Batches
  that come meanwhile wait in the buffer and are joined there.
- An answer that no gateway gives (a balancer's 502, another server's page) is never taken for one
  about the batch: it is tried again, or the address is reported as wrong.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa

from ..wheel.answers import Before
from ..wheel.delay import delay_of
from ..wheel.errors import InvalidConfiguration, NodeUnreachable, SlotwheelError, UnknownId
from ..wheel.ids import MessageId
from ..wheel.protocol import (
    CANCEL,
    NAMED,
    POLICIES,
    RESCHEDULE,
    SCHEDULE_DELETE,
    SCHEDULE_LIST,
    SCHEDULE_PAUSE,
    SCHEDULE_PUT,
    SCHEDULE_RESUME,
    SCHEDULE_RUN,
    SCHEDULE_SHOW,
    STATUS,
    AppendCommand,
    PriorRow,
    RefusedBatch,
    StoredBatch,
)
from ..wheel.request import RequestKey
from ..wheel.schema import times
from .columns import Limits
from .httpconnection import (
    ONE_WHEEL,
    TEXT_MAX,
    GatewayAccess,
    GatewayAnswer,
    GatewayConnection,
)
from .transport import LinkPort, OnAnswer, OnLost, OpenLink, ReadInThread

_CLOSE_S = 1.0


class HttpLink(LinkPort):
    """A link over HTTP; see ``transport.LinkPort``."""

    epoch = 0
    takes_records = False

    def __init__(
        self,
        address: str,
        command: AppendCommand,
        timeout_s: float,
        on_answer: OnAnswer,
        on_lost: OnLost,
        read_in_thread: ReadInThread,
        *,
        access: GatewayAccess | None = None,
    ) -> None:
        self.error: SlotwheelError | None = None
        # The node checks due times. Requests with a caller's key are not sent through a gateway.
        self.limits = Limits(requests=0)
        self._key = f"{command.producer:016x}"
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._batches: queue.SimpleQueue[tuple[pa.RecordBatch, int] | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.group = ""
        self._exchange = GatewayConnection(address, timeout_s, access)
        read_in_thread(self._run)

    def write(
        self,
        rows: pa.RecordBatch,
        sequence: int,
        request: RequestKey | None = None,
        *,
        read: bool = True,  # noqa: ARG002
    ) -> None:
        assert request is None
        if self.error is not None:
            raise self.error
        self._batches.put((rows, sequence))

    def write_records(self, *_: Any, **__: Any) -> None:
        raise AssertionError("plain rows, which this link says that it does not take")

    def cut(self) -> None:
        self._batches.put(None)
        self._exchange.cut()

    def close(self) -> None:
        self._closed = True
        self.cut()
        if threading.current_thread() is not self._thread:
            self._ended.wait(_CLOSE_S)
        self._exchange.close()

    def _run(self) -> None:
        self._thread = threading.current_thread()
        error: SlotwheelError = NodeUnreachable("the connection was ended")
        try:
            while (batch := self._batches.get()) is not None:
                self._on_answer(self._send(*batch))
        except SlotwheelError as lost:
            error = lost
        self.error = error
        self._ended.set()
        if not self._closed:
            self._on_lost(self, error)

    def _send(self, rows: pa.RecordBatch, sequence: int) -> StoredBatch | RefusedBatch:
        # It may take long: the sender's watch cuts the link.
        key = f"{self._key}-{sequence}"
        rows_sent, one_wheel = stream_of(rows), {ONE_WHEEL: "true"}
        answer = self._exchange.ask("POST", "/v1/messages", rows_sent, key=key, headers=one_wheel)
        if answer.status != HTTPStatus.OK:
            return RefusedBatch(sequence, answer.error())
        try:
            content = answer.json()
            ids = [MessageId.parse(text) for text in content["ids"]]
            prior: dict[int, PriorRow] = {}
            for before in content.get("befores", ()):
                row, what = before.get("row", 0), Before(before["what"])
                if what is Before.KEPT:  # the row's own id is that of the message that was dropped
                    ids[row] = MessageId.parse(before["dropped_id"])
                prior_id = MessageId.parse(before["id"])
                prior[row] = PriorRow(what, prior_id.due, prior_id.offset, prior_id.check)
            base, self.group = ids[0].offset, ids[0].group
            if [id_.offset for id_ in ids] != list(range(base, base + rows.num_rows)):
                raise ValueError
        except (LookupError, TypeError, ValueError, UnknownId):
            error = SlotwheelError("not an answer of a gateway", got=repr(answer.body[:TEXT_MAX]))
            error.uncertain = True
            return RefusedBatch(sequence, error)
        checks = np.array([id_.check for id_ in ids], np.uint64)
        # A due time less its delay is the time at which the node took the message.
        delays = map(delay_of, times(rows, "due").tolist())
        began = (id_.due - ms for id_, ms in zip(ids, delays, strict=True) if ms is not None)
        return StoredBatch(sequence, base, len(ids), next(began, 0), checks, prior=prior)


def stream_of(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow stream; a repeat must have the same bytes, so each call returns the same."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


class HttpTransport:
    """Links and calls over HTTP. ``connect`` only returns the address: calls are few, so each has a
    connection of its own. ``access``: the proofs of who calls, and who answers."""

    def __init__(self, access: GatewayAccess | None = None) -> None:
        self._access = access or GatewayAccess()

    @property
    def open_link(self) -> OpenLink:
        return partial(HttpLink, access=self._access)

    def _open(self, address: str, timeout_s: float) -> contextlib.closing[GatewayConnection]:
        return contextlib.closing(GatewayConnection(address, timeout_s, self._access))

    def connect(self, address: str) -> str:
        return address

    def end(self, connection: str) -> None:
        pass

    def epoch_of_master(self, address: str, timeout_s: float) -> int:  # noqa: ARG002
        """Returns 0, as a gateway follows the master by itself."""
        return 0

    def greet(self, connection: str, timeout_s: float, *, of_master: bool) -> None:  # noqa: ARG002
        with self._open(connection, timeout_s) as exchange:
            exchange.ask("GET", "/v1/status", timeout_s=timeout_s)  # any answer is one

    def call(
        self, connection: str, action: str, fields: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        carry_out = _CALLS.get(action)
        if carry_out is None:
            raise InvalidConfiguration(
                f"'{action}' is not to be had over HTTP",
                got=connection,
                remedy="Give the addresses of the nodes",
            )
        with self._open(connection, timeout_s) as exchange:
            return carry_out(partial(exchange.ask, timeout_s=timeout_s), fields)


_Ask = Callable[..., GatewayAnswer]


def _status(ask: _Ask, _fields: dict[str, Any]) -> dict[str, Any]:
    return {"status": _done(ask("GET", "/v1/status"))}


def _policies(ask: _Ask, _fields: dict[str, Any]) -> dict[str, Any]:
    return {"policies": _done(ask("GET", "/v1/policies"))}


def _cancel(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    if "name" in fields:
        answer = ask("DELETE", _path_of_name(fields))
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            content = answer.json() or {}
            return {"answers": [_not_done(answer)], "ids": [content.get("got")]}
        content = _done(answer)
        return {"answers": [content["answer"]], "ids": [content["id"]]}
    content = _done(ask("POST", "/v1/cancel", fields))
    return {"answers": [entry["answer"] for entry in content["answers"]]}


def _reschedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    if "name" in fields:
        method, path, moved = "PATCH", _path_of_name(fields), "id"
    else:
        method, path = "POST", f"/v1/messages/{quote(fields['id'], safe='')}/reschedule"
        moved = "new_id"
    times = {name: fields[name] for name in ("due_ms", "delay_ms") if name in fields}
    answer = ask(method, path, times)
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        return {"answer": _not_done(answer), "id": None}
    return {"answer": "cancelled", "id": _done(answer)[moved]}


def _named(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    answer = ask("GET", _path_of_name(fields))
    return {"id": None if answer.status == HTTPStatus.NOT_FOUND else _done(answer)["id"]}


def _put_schedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    schedule = fields["schedule"]
    path = _path_of_schedule({**fields, "name": schedule.get("name") or ""})
    return {"schedule": _done(ask("PUT", path, schedule))}


def _list_schedules(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    names = {"after": "page", "limit": "limit", "prefix": "prefix", "topic": "topic"}
    query = urlencode({name: fields[field] for field, name in names.items()})
    content = _done(ask("GET", f"/v1/schedules?{query}"))
    return {"schedules": content["schedules"], "after": content["next"]}


def _show_schedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    return {"schedule": _done(ask("GET", _path_of_schedule(fields)))}


def _pause_schedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    return {"schedule": _done(ask("POST", _path_of_schedule(fields, "/pause")))}


def _resume_schedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    return {"schedule": _done(ask("POST", _path_of_schedule(fields, "/resume")))}


def _run_schedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = _done(ask("POST", _path_of_schedule(fields, "/run")))
    return run


def _delete_schedule(ask: _Ask, fields: dict[str, Any]) -> dict[str, Any]:
    _done(ask("DELETE", _path_of_schedule(fields)))
    return {}


def _path_of_schedule(fields: dict[str, Any], last_part: str = "") -> str:
    version = fields.get("version")
    query = "" if version is None else f"?version={version}"
    return f"/v1/schedules/{quote(str(fields['name']), safe='')}{last_part}{query}"


def _path_of_name(fields: dict[str, Any]) -> str:
    return f"/v1/names/{fields['topic']}/{quote(fields['name'], safe='')}"


def _not_done(answer: GatewayAnswer) -> str:
    """The answer of a cancel that is the error of a request. Errors: ``SlotwheelError``: it is
    another error, such as that of a path that an older gateway does not have."""
    code = str((answer.json() or {}).get("code"))
    if code not in _NOT_DONE:
        raise answer.error()
    return _NOT_DONE[code]


def _done(answer: GatewayAnswer) -> Any:
    if answer.status not in _DONE:
        raise answer.error()
    return answer.json()


_DONE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_NOT_DONE = {
    "unknown": "unknown",
    "already-cancelled": "cancelled",
    "already-delivered": "already delivered",
}
_CALLS = {
    STATUS: _status,
    POLICIES: _policies,
    CANCEL: _cancel,
    RESCHEDULE: _reschedule,
    NAMED: _named,
    SCHEDULE_PUT: _put_schedule,
    SCHEDULE_LIST: _list_schedules,
    SCHEDULE_SHOW: _show_schedule,
    SCHEDULE_PAUSE: _pause_schedule,
    SCHEDULE_RESUME: _resume_schedule,
    SCHEDULE_RUN: _run_schedule,
    SCHEDULE_DELETE: _delete_schedule,
}
