"""The actions of a node besides appending: cancel, reschedule, look a name up, status, policies,
and those of an operator.

Each action is one small JSON object each way (``wheel/protocol.py``), and is carried out in a
thread that may wait: a cancel for its commit, a hand-over for another peer. With peers only the
master cancels and reschedules; a standby refuses with the master's address, so that the client can
safely ask there. A reschedule that was in progress when the master was deposed is answered as of
unknown outcome: the client must not repeat it elsewhere, or the message would be moved twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...policy.failure import retry_topic
from ...policy.rule import parse_rule
from ...security.rights import Operation, Right
from ...wheel.answers import CancelAnswer
from ...wheel.checks import check_topic
from ...wheel.delay import DELAY_LIMIT_MS
from ...wheel.errors import InvalidBatch, InvalidMessage, NotMaster, NotRunning
from ...wheel.ids import MessageId
from ...wheel.names import check_name
from ...wheel.protocol import (
    ACKNOWLEDGE,
    ACTIONS,
    CANCEL,
    CLOCK,
    CLOCK_ACCEPT,
    CLOCK_COMMANDS,
    CLOCK_SET_BACK,
    CLOCK_SHOW,
    DRAIN,
    FORGET,
    HELLO,
    IN_FLIGHT_MAX,
    NAMED,
    PAGE,
    POLICIES,
    REGISTER,
    REQUESTS_IN_FLIGHT_MAX,
    RESCHEDULE,
    SCHEDULE_DELETE,
    SCHEDULE_LIST,
    SCHEDULE_PAUSE,
    SCHEDULE_PUT,
    SCHEDULE_RESUME,
    SCHEDULE_RUN,
    SCHEDULE_SHOW,
    STATUS,
    STEP_DOWN,
    STEP_DOWN_MAX_S,
)
from .agreeing import drain
from .callers import ConnectedCaller
from .ports import Clock, ClockPort, GroupPort, Page, PoliciesPort, StepDown, WheelPort
from .scheduling import ScheduleActions

CANCELS_MAX = 10_000
CANCEL_TIMEOUT_S = 10.0


class Actions:
    """The actions of one node. Thread-safe. A node with peers gives ``group`` and ``step_down``.
    ``facts`` returns what the node adds to its ``status``. ``policies`` are the group's, and
    ``operated_clock`` is the clock of the action ``clock``; None: there is none. ``acknowledge``
    forgets the notes on unread records of delay topics. ``pages``: metrics and health, by path.
    ``schedules``: the actions on schedules; None: there are none."""

    def __init__(
        self,
        wheel: WheelPort,
        clock: Clock,
        *,
        group: GroupPort | None,
        step_down: StepDown | None,
        facts: Callable[[], dict[str, Any]],
        policies: PoliciesPort | None,
        operated_clock: ClockPort | None,
        acknowledge: Callable[[], None],
        pages: Mapping[str, Page],
        schedules: ScheduleActions | None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._group = group
        self._hand_over = step_down
        self._facts = facts
        self._policies = policies
        self._operated_clock = operated_clock
        self._acknowledge = acknowledge
        self._pages = pages
        self._schedules = schedules
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            HELLO: lambda _fields: self.hello(),  # on a connection whose welcome may be old
            STATUS: self._status,
            STEP_DOWN: self._step_down,
            PAGE: self._page,
            POLICIES: self._show_policies,
            CLOCK: self._operate_clock,
            ACKNOWLEDGE: self._acknowledge_unread,
            DRAIN: self._drain,
        }
        self._changes: dict[str, Callable[[ConnectedCaller, dict[str, Any]], dict[str, Any]]] = {
            CANCEL: self._cancel,
            RESCHEDULE: self._reschedule,
            NAMED: self._find_named,
            REGISTER: self._register,
            FORGET: self._forget,
            SCHEDULE_PUT: lambda *asked: self._scheduling().put(*asked),
            SCHEDULE_LIST: lambda *asked: self._scheduling().list(*asked),
            SCHEDULE_SHOW: lambda *asked: self._scheduling().show(*asked),
            SCHEDULE_PAUSE: lambda *asked: self._scheduling().pause(*asked),
            SCHEDULE_RESUME: lambda *asked: self._scheduling().resume(*asked),
            SCHEDULE_RUN: lambda *asked: self._scheduling().run(*asked),
            SCHEDULE_DELETE: lambda *asked: self._scheduling().delete(*asked),
        }

    def permitted(self, name: str, fields: dict[str, Any], caller: ConnectedCaller) -> Operation:
        """The operation that the action ``name`` is. It waits for nothing, so the server's thread
        asks first: whoever asks again and again for what he may not do would else keep thirty
        threads at it, and the interpreter from everybody else.

        Errors: ``InvalidBatch``: there is no such action; ``Forbidden``: its caller may not."""
        if name not in ACTIONS:
            raise InvalidBatch("unknown action", got=repr(name)[:80], limit=", ".join(ACTIONS))
        operation = operation_of(name, fields)
        if not caller.rights.may(operation):
            caller.check(operation)
        return operation

    def carry_out(
        self, name: str, fields: dict[str, Any], caller: ConnectedCaller
    ) -> dict[str, Any]:
        """Do the action ``name`` for a caller. Returns the fields of the answer.

        Errors: ``SlotwheelError``; ``Forbidden`` when it may not; ``OverQuota``: it asks too many
        questions at once."""
        operation = self.permitted(name, fields, caller)
        caller.check(operation)
        with caller.identity.doing(operation):
            if (change := self._changes.get(name)) is not None:
                return change(caller, fields)
            return self._answers[name](fields)

    def hello(self) -> dict[str, Any]:
        """The fields with which a node greets a client that connects."""
        config = self._wheel.config
        return {
            "group": config.group,
            "now_ms": self._clock(),
            "draining": bool(self._wheel.draining),
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
        """This peer's role, and the master, if it is known; empty without peers."""
        if self._group is None:
            return {}
        seen = self._group()
        place = {name: seen.get(name) for name in ("role", "epoch", "master", "master_address")}
        return {**place, "serving": self._wheel.serving}

    def _cancel(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        may = caller.topics_for(Right.CANCEL, fields)
        if (place := _name_of(fields, "ids")) is not None:
            self.check_master()
            answer, message_id = CancelAnswer.UNKNOWN, None
            if may is None or may(place[0]):
                with _done_once("cancelled"):
                    answer, message_id = self._wheel.cancel_named(
                        *place, self._clock(), CANCEL_TIMEOUT_S
                    )
            return {"answers": [str(answer.value)], "ids": [_text_of(message_id)]}
        texts = fields.get("ids")
        if not isinstance(texts, list) or not 1 <= len(texts) <= CANCELS_MAX:
            raise InvalidMessage(
                "'ids' is not a list of ids", limit=f"1 to {CANCELS_MAX}", got=type(texts).__name__
            )
        self.check_master()
        ids = [str(text) for text in texts]
        answers = self._wheel.cancel(ids, self._clock(), CANCEL_TIMEOUT_S, may=may)
        return {"answers": [str(answer.value) for answer in answers]}

    def _reschedule(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        place = _name_of(fields, "id")
        message_id = None if place is not None else MessageId.parse(str(fields.get("id")))
        now_ms = self._clock()
        due_ms = _new_due_ms(fields, now_ms)
        may = caller.topics_for(Right.CANCEL, fields)
        self.check_master()
        answer, moved = CancelAnswer.UNKNOWN, None
        with _done_once("moved"):
            if message_id is not None:
                answer, moved = self._wheel.reschedule(
                    message_id, due_ms, now_ms, CANCEL_TIMEOUT_S, may=may
                )
            elif place is not None and (may is None or may(place[0])):
                answer, message_id, moved = self._wheel.reschedule_named(
                    *place, due_ms, now_ms, CANCEL_TIMEOUT_S
                )
        return {
            "answer": str(answer.value),
            "id": _text_of(moved),
            "old_id": _text_of(message_id),
        }

    def _find_named(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        place = _name_of(fields, None)
        assert place is not None
        may = caller.topics_for(Right.READ, fields)
        self.check_master()
        visible = may is None or may(place[0])
        return {"id": _text_of(self._wheel.named(*place) if visible else None)}

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
        self.check_master()
        return {"done": self._hand_over(float(timeout_s)), **self._place()}

    def _drain(self, fields: dict[str, Any]) -> dict[str, Any]:
        on = fields.get("on")
        if not isinstance(on, bool):
            raise InvalidMessage(
                "no usable 'on'", got=repr(on)[:80], limit="true, to be emptied, or false"
            )
        self.check_master()
        drain(self._wheel, self._clock(), on=on)
        return {"draining": bool(self._wheel.draining)}

    def _page(self, fields: dict[str, Any]) -> dict[str, Any]:
        page = self._pages.get(str(fields.get("path")))
        if page is None:
            raise InvalidMessage(
                "no such page", got=repr(fields.get("path"))[:80], limit=", ".join(self._pages)
            )
        status, kind, body = page()
        return {"status": status, "type": kind, "body": body.decode()}

    def _show_policies(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self.check_master()
        return {"policies": self._port().current.to_dict()}

    def _register(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        rule = None if fields.get("rule") is None else parse_rule(fields["rule"])
        self.check_master()
        settings = self._port().register(_group_of(fields), rule, caller.host)
        return {"policies": settings.to_dict()}

    def _forget(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        self.check_master()
        return {"policies": self._port().forget(_group_of(fields), caller.host).to_dict()}

    def _operate_clock(self, fields: dict[str, Any]) -> dict[str, Any]:
        port, do = self._operated_clock, fields.get("do", CLOCK_SHOW)
        if port is None:
            raise NotRunning("this server has no clock of its own", remedy="Ask a slotwheel node")
        if do == CLOCK_ACCEPT:
            port.accept()
        elif do == CLOCK_SET_BACK:
            self.check_master()
            port.set_back()
        return {"clock": port.show()}

    def _acknowledge_unread(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self.check_master()
        self._acknowledge()
        return {}

    def _port(self) -> PoliciesPort:
        if self._policies is None:
            raise NotRunning("this server has no policies", remedy="Ask a slotwheel node")
        return self._policies

    def _scheduling(self) -> ScheduleActions:
        """Only the master's table is the newest. Errors: ``NotMaster``, ``NotRunning``."""
        if self._schedules is None:
            raise NotRunning("this server has no schedules", remedy="Ask a slotwheel node")
        self.check_master()
        return self._schedules

    def check_master(self) -> None:
        """Errors: ``NotMaster``, with the master's address if it is known."""
        if self._group is not None and not self._wheel.serving:
            raise self.not_master()

    def not_master(self) -> NotMaster:
        master = "" if self._group is None else self._group().get("master_address")
        return NotMaster(master=str(master or ""))


def operation_of(name: str, fields: dict[str, Any]) -> Operation:
    """The operation that an action is, by which its caller's rights are checked. The action
    ``clock`` is one for each of its commands. Errors: ``InvalidMessage`` for a command that there
    is not."""
    if name == CLOCK:
        do = fields.get("do", CLOCK_SHOW)
        if do not in CLOCK_COMMANDS:
            every = ", ".join(CLOCK_COMMANDS)
            raise InvalidMessage("no usable 'do'", got=repr(do)[:80], limit=every)
        name = f"{CLOCK}-{do}"
    operation = Operation.named(name)
    assert operation is not None, f"the action {name} has no right"
    return operation


@contextmanager
def _done_once(what: str) -> Iterator[None]:
    """A request that does something else when it is repeated ends with an unknown outcome where the
    master is deposed meanwhile. After ``NotMaster`` its client would ask the next master, and move
    a message twice, or cancel the one that has got the name since. Errors: ``NotRunning``."""
    try:
        yield
    except NotMaster as error:
        raise NotRunning(
            f"the master was deposed; whether the message was {what} is not known",
            remedy="Cancel the old id at the new master: it says what became of it",
            uncertain=True,
        ) from error


def _name_of(fields: dict[str, Any], instead: str | None) -> tuple[str, str] | None:
    """The topic and the name of a request about one message; None: it names the message by the
    field ``instead``. With both, two messages could be meant. Errors: ``InvalidMessage``."""
    if instead is not None and "name" not in fields and "topic" not in fields:
        return None
    topic, name = fields.get("topic"), fields.get("name")
    if not isinstance(topic, str) or not isinstance(name, str):
        raise InvalidMessage(
            "a name needs its topic, and a topic a name",
            got=f"topic {topic!r}, name {name!r}"[:200],
            limit="both, as texts",
            remedy="Give 'topic' and 'name': a name is unique within its topic only",
        )
    if instead is not None and fields.get(instead) is not None:
        raise InvalidMessage(
            f"both '{instead}' and 'name'",
            got=repr(fields[instead])[:80],
            limit="one of them",
            remedy=f"Name the message by its id in '{instead}', or by 'topic' and 'name'",
        )
    check_topic(topic)
    check_name(name)
    return topic, name


def _text_of(message_id: MessageId | None) -> str | None:
    return None if message_id is None else str(message_id)


def _new_due_ms(fields: dict[str, Any], now_ms: int) -> int:
    """The due time to which a message is moved: ``due_ms``, or ``delay_ms`` from now. Errors:
    ``InvalidMessage``."""
    name = "due_ms" if fields.get("delay_ms") is None else "delay_ms"
    ms = fields.get(name)
    if type(ms) is not int or not -DELAY_LIMIT_MS <= ms < 1 << 62:
        raise InvalidMessage(f"no usable '{name}'", got=repr(ms)[:80], limit="ms")
    return ms if name == "due_ms" else now_ms + ms


def _group_of(fields: dict[str, Any]) -> str:
    """A request's consumer group, whose name has to make a topic's. Errors: ``InvalidMessage``."""
    group = str(fields.get("group") or "")
    check_topic(retry_topic(group) if group else "")
    return group
