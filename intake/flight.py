"""The Arrow Flight server: append, cancel, reschedule, status, step-down.

Theory: Flight gives every call a thread of its own; ``AppendStream`` serves an exchange, the
actions below are one small JSON body each way. The messages are defined in ``wheel/protocol.py``;
this module has only the sockets.

Rules: errors cross the wire as JSON in the status's extra info (actions, ends of streams) or in an
answer (one batch). Streams and connections are bounded in number; one beyond the limit ends the
connection that has been quiet longest, and its client connects again when it has something to send.
Flight has no limit for a message: size is checked after receipt (and after decompression, which
Flight cannot refuse), so the port belongs on a trusted network, and is loopback by default.

With peers only the master appends, cancels and reschedules. A standby refuses a request before it
has read it, with the master's address, so that the client can safely ask there; a request that was
in progress when the master was deposed is answered as of unknown outcome.

Ending: Flight's shutdown waits for every call, and a client may keep a stream open for days. So
``close`` answers every batch that was read, then shuts the connections' sockets, which ends every
read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyarrow import flight

from ..policy.failure import retry_topic
from ..policy.rule import parse_rule
from ..wheel.checks import check_topic
from ..wheel.delay import DELAY_LIMIT_MS
from ..wheel.errors import (
    AddressInUse,
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    NotMaster,
    NotRunning,
    SlotwheelError,
)
from ..wheel.ids import MessageId
from ..wheel.protocol import (
    ACKNOWLEDGE,
    ACTIONS,
    CANCEL,
    CLOCK,
    CLOCK_ACCEPT,
    CLOCK_SET_BACK,
    CLOCK_SHOW,
    DEFAULT_ADDRESS,
    FORGET,
    HELLO,
    IN_FLIGHT_MAX,
    PAGE,
    PEER_ACTION,
    PEER_COMMAND,
    POLICIES,
    REGISTER,
    REQUESTS_IN_FLIGHT_MAX,
    RESCHEDULE,
    STATUS,
    STEP_DOWN,
    STEP_DOWN_MAX_S,
    AppendCommand,
    decode_json,
    encode_json,
    split_address,
)
from .append_stream import AppendStream
from .calls import OpenCalls
from .connections import CONNECTIONS_MAX, Address, Connections, address_of, cut_connections
from .door import Door
from .edge import AppendEdge
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

STREAMS_MAX = 64
QUIET_S = 5.0
"""A connection that has been quiet for so long, s, may be replaced by another one."""
ROOM_TIMEOUT_S = 2.0
CANCELS_MAX = 10_000
CANCEL_TIMEOUT_S = 10.0
_LAST_ANSWERS_S = 0.5
"""How long, s, it is waited for who answers what will not be committed any more."""
_LAST_WORDS_S = 0.02
"""Time, s, for the last answers to leave the transport before its sockets are shut."""


class FlightIntake(flight.FlightServerBase):  # type: ignore[misc]
    """The server; listens from construction until ``close``. ``port``: the real port, if 0 was
    asked for.

    ``group`` and ``step_down``: on a node with peers, which calls ``depose`` when it is not the
    master any more. ``peers``: serves the calls of other peers.
    ``facts``: what the node adds to its ``status``. ``policies``: the group's; None: it has none.
    ``operated_clock``: what the action ``clock`` works on; None: it has none.
    ``acknowledge``: forgets what is named as not read of the delay topics.
    ``pages``: metrics and health, by path. ``edge``: the address of the append edge, which this
    server names in its hello; None: there is none. The caller runs the turns of ``self.edge``.
    ``door``: as of ``AppendExchange``. ``commit``: as of ``AppendEdge``.

    Errors: ``AddressInUse``, ``OSError`` for an address that cannot be bound for another reason.
    """

    def __init__(
        self,
        wheel: WheelPort,
        address: str = DEFAULT_ADDRESS,
        clock: Clock = lambda: time.time_ns() // 1_000_000,
        *,
        events: IntakeEvents | None = None,
        streams_max: int = STREAMS_MAX,
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
        edge: str | None = None,
        door: Door | None = None,
        commit: Callable[[], bool] | None = None,
    ) -> None:
        self._wheel = wheel
        self._pages = pages
        self._policies = policies
        self._operated_clock = operated_clock
        self._acknowledge = acknowledge
        self._facts = facts
        self._clock = clock
        self._events = events or IntakeEvents()
        self._room_timeout_s = room_timeout_s
        self._door = door
        self._group = group
        self._hand_over = step_down
        self._peers = peers
        self._closing = threading.Event()
        self._ending = threading.Event()
        self._calls = OpenCalls(streams_max, quiet_s, self._closing, self._cut)
        self._connections = Connections(connections_max, quiet_s, self._calls.quiet_s)
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            HELLO: self._hello,
            CANCEL: self._cancel,
            RESCHEDULE: self._reschedule,
            STATUS: self._status,
            STEP_DOWN: self._step_down,
            PAGE: self._page,
            POLICIES: self._show_policies,
            CLOCK: self._operate_clock,
            ACKNOWLEDGE: self._acknowledge_unread,
        }
        self._changes: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
            REGISTER: self._register,
            FORGET: self._forget,
        }
        check_free(address)
        self.edge: AppendEdge | None = None
        if edge is not None:
            check_free(edge, "--append")
            try:
                self.edge = AppendEdge(
                    wheel,
                    *split_address(edge, to_listen=True),
                    clock,
                    self._events,
                    check_serving=self._check_master,
                    closing=self._closing,
                    ending=self._ending,
                    room_timeout_s=room_timeout_s,
                    connections_max=min(streams_max, connections_max),
                    quiet_s=quiet_s,
                    has_peers=group is not None,
                    door=door,
                    commit=commit,
                )
            except OSError:
                check_free(edge, "--append")  # it may have been taken just now
                raise
        with contextlib.ExitStack() as undo:
            if self.edge is not None:
                undo.callback(self.edge.close, 0.0)
            try:
                super().__init__(f"grpc://{address}")
            except pa.ArrowException as error:
                check_free(address)
                raise OSError(f"cannot listen on {address}: {error}") from None
            undo.pop_all()
        self._connections.start(self.port)

    # Flight's methods: each runs in a thread of its own

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _as_flight_errors():
            sent = descriptor.command or b""
            if sent.startswith(PEER_COMMAND):
                self._replication().exchange(sent, reader, writer, self._cutter(context))
                return
            self._connections.check(context.peer())
            command = AppendCommand.decode(sent)
            self._check_master()
            stream = AppendStream(
                self._wheel,
                self._clock,
                self._events,
                command,
                reader,
                writer,
                closing=self._closing,
                ending=self._ending,
                room_timeout_s=self._room_timeout_s,
                peer=context.peer(),
                gone=context.is_cancelled,
                has_peers=self._group is not None,
                door=self._door,
            )
            with self._calls.admitted(stream):
                try:
                    stream.run()
                except InvalidBatch as error:
                    self._events.refused(error.code, 0)
                    raise

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _as_flight_errors():
            if not ticket.ticket.startswith(PEER_COMMAND):
                raise InvalidBatch(
                    "unknown ticket",
                    got=repr(ticket.ticket[:80]),
                    limit="only peers get anything here",
                    remedy="Messages are delivered to their topics; read them there",
                )
            return self._replication().stream(ticket.ticket, self._cutter(context))

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        with _as_flight_errors():
            if action.type == PEER_ACTION:
                sent = b"" if action.body is None else action.body.to_pybytes()
                accepted = self._replication().greet(sent)
                self._connections.admit(context.peer())
                return iter([accepted])
            self._connections.check(context.peer())
            caller = address_of(context.peer())
            answer = self._actions.get(action.type)
            if (changes := self._changes.get(action.type)) is not None:
                answer = partial(changes, caller[0])
            if answer is None:
                raise InvalidBatch(
                    "unknown action", got=repr(action.type[:80]), limit=", ".join(ACTIONS)
                )
            body = b"" if action.body is None else action.body.to_pybytes()
            with self._calls.waits_for_answer(caller):
                return iter([encode_json(answer(decode_json(body)))])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return list(ACTIONS.items())

    def _replication(self) -> PeerPort:
        if self._peers is None:
            raise InvalidConfiguration(
                "this node has no peers",
                remedy="Name all peers on every one of them, or correct the peers' addresses",
            )
        if self._closing.is_set():
            raise NotRunning("the node is shutting down", remedy="Try again in a moment")
        return self._peers

    def _cutter(self, context: Any) -> Callable[[], object]:
        caller = address_of(context.peer())
        return lambda: self._cut(caller)

    def _cut(self, caller: Address) -> int:
        return cut_connections(self.port, {caller})

    # The actions

    def _hello(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        config = self._wheel.config
        edge = self.edge
        return {
            **({} if edge is None else {"append_port": edge.port, "append_token": edge.token}),
            "group": config.group,
            "now_ms": self._clock(),
            "limits": {
                "horizon_ms": config.horizon_ms,
                "message_bytes": config.message_bytes_max,
                "batch_rows": config.batch_rows_max,
                "batch_bytes": config.batch_bytes_max,
                "in_flight": IN_FLIGHT_MAX,
                "requests": REQUESTS_IN_FLIGHT_MAX,
            },
            **self._place(),
        }

    def _place(self) -> dict[str, Any]:
        """With peers: this one's role, and the master, if it is known."""
        if self._group is None:
            return {}
        seen = self._group()
        place = {name: seen.get(name) for name in ("role", "epoch", "master", "master_address")}
        return {**place, "serving": self._wheel.serving}

    def _cancel(self, fields: dict[str, Any]) -> dict[str, Any]:
        texts = fields.get("ids")
        if not isinstance(texts, list) or not 1 <= len(texts) <= CANCELS_MAX:
            raise InvalidMessage(
                "'ids' is not a list of ids", limit=f"1 to {CANCELS_MAX}", got=type(texts).__name__
            )
        self._check_master()
        ids = [str(text) for text in texts]
        answers = self._wheel.cancel(ids, self._clock(), CANCEL_TIMEOUT_S)
        return {"answers": [str(answer.value) for answer in answers]}

    def _reschedule(self, fields: dict[str, Any]) -> dict[str, Any]:
        message_id = MessageId.parse(str(fields.get("id")))
        now_ms = self._clock()
        due_ms = _new_due_ms(fields, now_ms)
        self._check_master()
        try:
            answer, moved = self._wheel.reschedule(message_id, due_ms, now_ms, CANCEL_TIMEOUT_S)
        except NotMaster as error:  # a second request to another node could move it twice
            raise NotRunning(
                "the master was deposed; whether the message was moved is not known",
                remedy="Cancel the old id at the new master: it says what became of it",
                uncertain=True,
            ) from error
        return {"answer": str(answer.value), "id": None if moved is None else str(moved)}

    def _status(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        status = dataclasses.asdict(self._wheel.status())
        answer: dict[str, Any] = {"status": {**status, **self._facts()}}
        if self._group is not None:
            answer["replication"] = self._group()
        return answer

    def _step_down(self, fields: dict[str, Any]) -> dict[str, Any]:
        timeout_s = fields.get("timeout_s")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= STEP_DOWN_MAX_S:
            raise InvalidMessage(
                "no usable 'timeout_s'",
                got=repr(timeout_s)[:80],
                limit=f"seconds, at most {STEP_DOWN_MAX_S}",
            )
        if self._hand_over is None:
            raise InvalidMessage("the node has no peers", remedy="There is nobody to step down for")
        self._check_master()
        return {"done": self._hand_over(float(timeout_s)), **self._place()}

    def _page(self, fields: dict[str, Any]) -> dict[str, Any]:
        page = self._pages.get(str(fields.get("path")))
        if page is None:
            raise InvalidMessage(
                "no such page", got=repr(fields.get("path"))[:80], limit=", ".join(self._pages)
            )
        status, kind, body = page()
        return {"status": status, "type": kind, "body": body.decode()}

    def _show_policies(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self._check_master()
        return {"policies": self._port().current.to_dict()}

    def _register(self, host: str, fields: dict[str, Any]) -> dict[str, Any]:
        rule = None if fields.get("rule") is None else parse_rule(fields["rule"])
        self._check_master()
        settings = self._port().register(_group_of(fields), rule, host)
        return {"policies": settings.to_dict()}

    def _forget(self, host: str, fields: dict[str, Any]) -> dict[str, Any]:
        self._check_master()
        return {"policies": self._port().forget(_group_of(fields), host).to_dict()}

    def _operate_clock(self, fields: dict[str, Any]) -> dict[str, Any]:
        port, do = self._operated_clock, fields.get("do", CLOCK_SHOW)
        if port is None:
            raise NotRunning("this server has no clock of its own", remedy="Ask a slotwheel node")
        if do == CLOCK_ACCEPT:
            port.accept()
        elif do == CLOCK_SET_BACK:
            self._check_master()
            port.set_back()
        elif do != CLOCK_SHOW:
            every = ", ".join((CLOCK_SHOW, CLOCK_ACCEPT, CLOCK_SET_BACK))
            raise InvalidMessage("no usable 'do'", got=repr(do)[:80], limit=every)
        return {"clock": port.show()}

    def _acknowledge_unread(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self._check_master()
        self._acknowledge()
        return {}

    def _port(self) -> PoliciesPort:
        if self._policies is None:
            raise NotRunning("this server has no policies", remedy="Ask a slotwheel node")
        return self._policies

    def _check_master(self) -> None:
        """Errors: ``NotMaster``, with the master's address if it is known."""
        if self._group is not None and not self._wheel.serving:
            raise self._not_master()

    def _not_master(self) -> NotMaster:
        master = "" if self._group is None else self._group().get("master_address")
        return NotMaster(master=str(master or ""))

    # Life

    def depose(self) -> None:
        """This node is not the master any more: answer so on every open stream."""
        self._calls.depose(self._not_master())
        if self.edge is not None:
            self.edge.depose(self._not_master())

    @property
    def _idle(self) -> bool:
        return self._calls.idle and (self.edge is None or self.edge.idle)

    def close(self, grace_s: float = 1.0) -> None:
        """Accept nothing more, answer what was read (for ``grace_s`` at most), and end."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._connections.close()
        self._wait_until_idle(grace_s)
        self._ending.set()
        self._calls.wake()
        if self.edge is not None:
            self.edge.close(grace_s)
        self._wait_until_idle(_LAST_ANSWERS_S)
        time.sleep(_LAST_WORDS_S)
        shutdown = threading.Thread(target=self.shutdown, name="flight-shutdown", daemon=True)
        shutdown.start()
        deadline = time.monotonic() + grace_s
        while shutdown.is_alive() and time.monotonic() < deadline:
            cut_connections(self.port)
            shutdown.join(0.02)

    def _wait_until_idle(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._idle:
            time.sleep(0.005)


def _new_due_ms(fields: dict[str, Any], now_ms: int) -> int:
    """Where a message is to be moved: ``due_ms``, or ``delay_ms`` from now."""
    name = "due_ms" if fields.get("delay_ms") is None else "delay_ms"
    ms = fields.get(name)
    if type(ms) is not int or not -DELAY_LIMIT_MS <= ms < 1 << 62:
        raise InvalidMessage(f"no usable '{name}'", got=repr(ms)[:80], limit="ms")
    return ms if name == "due_ms" else now_ms + ms


def _group_of(fields: dict[str, Any]) -> str:
    """The consumer group in a request; its name has to make a topic's. Errors:
    ``InvalidMessage``."""
    group = str(fields.get("group") or "")
    check_topic(retry_topic(group) if group else "")
    return group


@contextlib.contextmanager
def _as_flight_errors() -> Iterator[None]:
    """Send our errors with all their fields: text for people, JSON for clients."""
    try:
        yield
    except SlotwheelError as error:
        info = encode_json(error.to_wire())
        raise flight.FlightServerError(str(error), extra_info=info) from None


def check_free(address: str, option: str = "--listen") -> None:
    """``option``: that gave the address. Errors: ``AddressInUse`` when another socket listens
    there, ``OSError`` for other reasons."""
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
