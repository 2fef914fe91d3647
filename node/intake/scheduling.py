"""The actions on schedules: put, list, show, pause, resume, run now, delete.

Theory: what a schedule is says ``policy/schedules``, and the engine keeps it as bytes. Here a
caller's request becomes a change of the engine's table, with the version that it was made for, and
a schedule becomes what a caller sees: its specification, how far it has come, when it is due next.

Rules
- Who changes a schedule has the right ``schedule`` for the topic that it sends to, and for that of
  the schedule in whose place it comes. Otherwise a schedule would be a way around the rights.
- Who may not read a topic does not learn of its schedules: they look *unknown*.
- A schedule for a topic that Kafka does not have is refused when it is put, as a message to it is
  when it is sent (``door.py``). Otherwise each of its runs would become a dead letter, the first
  one perhaps in a year.
- A schedule that this node cannot read, as its machine has another table of time zones, is listed
  and deleted like any other, and hides no other one.
- A run that somebody asks for is a message of theirs, and counts for their quota. A schedule's own
  runs are nobody's: a quota that is full stops none of them, and they count among what is pending.
- While the clock is in doubt nothing that fires is put or resumed, for a schedule begins *now*.
  *Example.* A machine begins with a clock of last week, and a schedule of each minute is put that
  makes up ``all``. Once the clock is right, a day of runs would be missed, and made up, which were
  due before there was such a schedule.
- An answer tells of what is committed, and one to a change of that very change: its version is what
  the caller names next time. Otherwise he would replace what somebody else has put meanwhile.
- ``changed`` gets the name of each schedule that was changed, for the thread that fires them: a
  schedule with a first run in ten seconds must not wait until somebody looks again.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from ...policy.schedules.missed import AHEAD_MS, ScheduledRun, ScheduleProgress, open_from, run_now
from ...policy.schedules.runheaders import run_headers
from ...policy.schedules.spec import Missed, Schedule
from ...policy.schedules.successor import check_fires, next_runs
from ...security.rights import Operation, Right, TopicList
from ...wheel.arrowbytes import PlainRow
from ...wheel.config import WheelConfig
from ...wheel.errors import (
    InvalidMessage,
    NotRunning,
    Overloaded,
    ScheduleChanged,
    SlotwheelError,
    UnknownSchedule,
)
from ...wheel.ids import IdMint
from ...wheel.schedules import FiredRun, ScheduleDelete, SchedulePut, StoredSchedule
from .amounts import amounts_of_plain
from .callers import ConnectedCaller
from .door import Door
from .ports import Clock

Result = TypeVar("Result")
CHANGE_S = 10.0
LISTED_MAX = 1000
"""The most schedules of one page of a list."""
_PAGE_BYTES = 512 << 10
_LOOKED_MAX = 5000
_ASKED_WAIT_S = 0.02
_NEXT_LISTED, _NEXT_SHOWN = 1, 10
_TRIES = 5
_SETTLE_S = 0.001
_NAMED_EVERY_MS, _NAMED_JITTER_MS = 2 * AHEAD_MS, AHEAD_MS - 5_000
"""Limits for a template whose messages have a name; rows are made ``AHEAD_MS`` ahead."""


class ScheduleEngine(Protocol):
    """The part of the engine that keeps and fires schedules."""

    @property
    def config(self) -> WheelConfig: ...
    @property
    def mint(self) -> IdMint: ...
    def check_clock(self, now_ms: int) -> None: ...
    def schedule(self, name: str) -> StoredSchedule | None: ...
    def schedule_names(self, after: str = "", least: str = "") -> list[str]: ...
    def change_schedules(
        self, changes: list[tuple[SchedulePut | ScheduleDelete, int | None]], now_ms: int
    ) -> Future[list[StoredSchedule | None]]: ...
    def settled_schedules(self, names: Sequence[str]) -> Future[list[StoredSchedule | None]]: ...
    def fire(
        self,
        runs: list[FiredRun],
        rows: list[PlainRow],
        now_ms: int,
        done: Callable[[SlotwheelError | None], None],
    ) -> list[FiredRun]: ...


@lru_cache(maxsize=1024)
def schedule_of(spec: bytes) -> Schedule:
    """The schedule that the engine keeps as these bytes."""
    return Schedule.decoded(spec)


def row_of(
    schedule: Schedule, state: StoredSchedule, run: ScheduledRun, decided_ms: int
) -> tuple[FiredRun, PlainRow]:
    """A run of a schedule as the engine stores it: what it is, and its row. ``decided_ms``: up to
    where all runs are decided with it."""
    template = schedule.template
    headers = [(name.encode(), value) for name, value in run_headers(schedule, run)]
    row: PlainRow = (
        *(run.due_ms, template.topic.encode(), template.partition),
        *(template.key, template.value, headers),
    )
    fired = FiredRun(
        *(schedule.name, state.version, run.number, run.nominal_ms, decided_ms),
        *(run.passed_over, run.due_ms),
    )
    return fired, row


class ScheduleActions:
    """The actions of one node. Thread-safe. ``changed`` gets the names of changed schedules.
    ``door``: of the node; None: schedules may send to any topic."""

    def __init__(
        self,
        engine: ScheduleEngine,
        clock: Clock,
        changed: deque[str],
        door: Door | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._changed = changed
        self._door = door

    def put(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """Put a schedule, new or in another's place; ``version``: of the one that it replaces, 0:
        there must be none. Errors: ``InvalidMessage``, ``UnknownTopic``, ``ScheduleChanged``,
        ``Forbidden``; ``Overloaded``: the clock is in doubt."""
        version = _version_of(fields)
        schedule = Schedule.from_json(fields.get("schedule"))
        now_ms = self._clock()
        check_fires(schedule, now_ms)
        self._check_jitter(schedule)
        _check_message_name(schedule)
        caller.check(Operation.SCHEDULE_PUT, schedule.template.topic)
        before = self._engine.schedule(schedule.name)
        if before is not None:
            caller.check(Operation.SCHEDULE_PUT, _topic_of(before))
            if before.spec == schedule.encoded():  # so a client may ask again
                [settled] = self._settled(schedule.name)
                if settled is not None and settled.spec == before.spec:
                    return self._shown(settled)
            check_fires(schedule, now_ms, before.runs)
            version = before.version if version is None else version
        else:
            version = version or 0
        self._check_topic(schedule.template.topic)
        return self._shown(self._store(schedule, version, now_ms))

    def list(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """A page of schedules in the order of their names, behind the name ``after``. The answer's
        ``after`` is where the next page begins, null at the end. ``topics``: only those that send
        to these. ``prefix``: only those whose names begin with it; ``topic``: only those that send
        to it, a name or the begin of names and a ``*``. A page may be empty and yet have a next
        one: ``_LOOKED_MAX`` schedules are looked at for one page, as the node must go on firing."""
        may = caller.topics_for(Right.READ, fields)
        prefix, topic = _text_of(fields, "prefix"), _text_of(fields, "topic")
        is_wanted = TopicList([topic]).has if topic else None
        after, limit = fields.get("after") or "", fields.get("limit", LISTED_MAX)
        if type(limit) is not int or not 1 <= limit <= LISTED_MAX or not isinstance(after, str):
            raise InvalidMessage(
                "no usable 'limit' or 'after'",
                got=repr((limit, after))[:80],
                limit=f"1 to {LISTED_MAX}, and a name",
            )
        shown: list[dict[str, Any]] = []
        nbytes, passed = 0, ""
        names = self._engine.schedule_names(after, prefix)
        for looked, (name, state) in enumerate(
            zip(names, self._settled_in_turn(names), strict=False)
        ):
            if not name.startswith(prefix):
                break
            if state is None:  # deleted meanwhile
                continue
            sends_to = _topic_of(state)
            if may is not None and not may(sends_to):
                continue
            if len(shown) == limit or nbytes > _PAGE_BYTES or (looked >= _LOOKED_MAX and passed):
                return {"schedules": shown, "after": passed}
            passed = name  # one that the caller may see: where a page ends is no secret then
            if is_wanted is None or is_wanted(sends_to):
                shown.append(self._view(state, _NEXT_LISTED))
                nbytes += 2 * len(state.spec) + 200
        return {"schedules": shown, "after": None}

    def show(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """One schedule, with its next runs. Errors: ``UnknownSchedule``."""
        name = _name_of(fields)
        [state] = self._settled(name)
        if state is None or not _may_read(caller, state):
            raise UnknownSchedule.of(name)
        return self._shown(state)

    def pause(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        return self._set_paused(caller, fields, Operation.SCHEDULE_PAUSE, paused=True)

    def resume(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """Go on with what is due from now on. Errors: as of ``put``."""
        return self._set_paused(caller, fields, Operation.SCHEDULE_RESUME, paused=False)

    def delete(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """Remove a schedule. Errors: ``UnknownSchedule``, ``ScheduleChanged``."""
        state = self._permitted(caller, fields, Operation.SCHEDULE_DELETE)
        name = _name_of(fields)
        self._change(ScheduleDelete(name), state.version, self._clock())
        return {}

    def run(self, caller: ConnectedCaller, fields: dict[str, Any]) -> dict[str, Any]:
        """Fire a schedule once, now, besides its other runs; also one that is paused. Returns the
        message's id and the number of the run. Errors: ``UnknownSchedule``, ``UnknownTopic``,
        ``OverQuota``, ``Overloaded``."""
        name = _name_of(fields)
        for _ in range(_TRIES):
            state = self._permitted(caller, fields, Operation.SCHEDULE_RUN)
            started = self._run_once(caller, state)
            if started is not None:
                return started
        raise Overloaded(
            f"schedule {name!r} is just firing, or the message that has the template's name is"
            " leaving",
            remedy="Nothing was stored. Try again in a moment",
        )

    def _run_once(self, caller: ConnectedCaller, state: StoredSchedule) -> dict[str, Any] | None:
        """Fire a schedule once, now; None: nothing was stored, as another run came between, or as
        the message that has the template's name is just leaving."""
        schedule = schedule_of(state.spec)
        self._check_topic(schedule.template.topic)
        now_ms = self._clock()
        run, _ = run_now(ScheduleProgress(state.decided_ms, state.runs), now_ms)
        fired, row = row_of(schedule, state, run, state.decided_ms)
        offer = caller.charge(1, schedule.template.nbytes, partial(amounts_of_plain, [row]))
        position = -1
        try:
            outcome: Future[SlotwheelError | None] = Future()
            taken = self._engine.fire([fired], [row], now_ms, outcome.set_result)
            if not taken:
                return None
            self._changed.append(schedule.name)
            if (error := _result(outcome)) is not None:
                raise error
            position = taken[0].offset + 1
        finally:
            if offer is not None:
                offer.settle(position)
        message_id = self._engine.mint.one(run.due_ms, taken[0].offset)
        return {"run": run.number, "id": str(message_id)}

    def _check_topic(self, topic: str) -> None:
        """Wait until Kafka has said whether there is such a topic. Errors: ``UnknownTopic``;
        ``Overloaded``: there is no answer."""
        if self._door is None:
            return
        began_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - began_s
            try:
                self._door.check_topic(topic, waited_s)
            except Overloaded:
                if waited_s > CHANGE_S:
                    raise
                time.sleep(_ASKED_WAIT_S)
            else:
                return

    def _set_paused(
        self,
        caller: ConnectedCaller,
        fields: dict[str, Any],
        operation: Operation,
        *,
        paused: bool,
    ) -> dict[str, Any]:
        name = _name_of(fields)
        for attempt in range(_TRIES):
            state = self._permitted(caller, fields, operation)
            schedule = schedule_of(state.spec)
            try:
                if schedule.paused != paused:
                    changed = self._store(schedule.pausing(paused), state.version, self._clock())
                    return self._shown(changed)
                [settled] = self._settled(name)
                if settled is not None and settled.version == state.version:
                    return self._shown(settled)
                there = 0 if settled is None else settled.version
                raise ScheduleChanged.of(name, there, state.version)
            except ScheduleChanged:
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last try returns or raises")

    def _permitted(
        self, caller: ConnectedCaller, fields: dict[str, Any], operation: Operation
    ) -> StoredSchedule:
        """The schedule that a caller names, which he may change. Errors: ``UnknownSchedule``;
        ``Forbidden``: he may see it, but not change it; ``ScheduleChanged``: it has not the
        ``version`` that he names."""
        name, version = _name_of(fields), _version_of(fields)
        state = self._engine.schedule(name)
        if state is None:
            [state] = self._settled(name)  # it may have been deleted, and not be yet
        if state is None:
            raise UnknownSchedule.of(name)
        topic = _topic_of(state)
        if not caller.rights.may(operation, topic) and not _may_read(caller, state):
            raise UnknownSchedule.of(name)
        caller.check(operation, topic)
        if version is not None and version != state.version:
            raise ScheduleChanged.of(name, state.version, version)
        return state

    def _store(self, schedule: Schedule, version: int | None, now_ms: int) -> StoredSchedule:
        if not schedule.paused:
            self._engine.check_clock(now_ms)
        change = SchedulePut(schedule.name, schedule.encoded(), now_ms)
        state = self._change(change, version, now_ms)
        assert state is not None
        return state

    def _change(
        self, change: SchedulePut | ScheduleDelete, version: int | None, now_ms: int
    ) -> StoredSchedule | None:
        """The schedule by this very change, once it is committed."""
        future = self._engine.change_schedules([(change, version)], now_ms)
        [state] = _result(future)
        self._changed.append(change.name)
        return state

    def _settled(self, *names: str) -> Sequence[StoredSchedule | None]:
        """What these are, once that is committed."""
        deadline = time.monotonic() + CHANGE_S
        while True:
            try:
                return _result(self._engine.settled_schedules(names))
            except Overloaded:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_SETTLE_S)

    def _settled_in_turn(self, names: Sequence[str]) -> Iterator[StoredSchedule | None]:
        for start in range(0, len(names), LISTED_MAX):
            yield from self._settled(*names[start : start + LISTED_MAX])

    def _check_jitter(self, schedule: Schedule) -> None:
        limit_ms = self._engine.config.horizon_ms - AHEAD_MS
        if limit_ms < 0:
            raise InvalidMessage(
                f"schedule {schedule.name!r}: messages are made {AHEAD_MS} ms before they are due",
                got=f"a horizon of {self._engine.config.horizon_ms} ms",
                limit=f"{AHEAD_MS} ms at least",
                remedy="Start the nodes with --slots 30 or more",
            )
        if schedule.jitter_ms > limit_ms:
            raise InvalidMessage(
                f"schedule {schedule.name!r}, jitter_ms",
                got=schedule.jitter_ms,
                limit=f"{limit_ms} ms: a message is due within the node's horizon",
                remedy="Write it shorter, or start the nodes with a longer --horizon",
            )

    def _shown(self, state: StoredSchedule) -> dict[str, Any]:
        return {"schedule": self._view(state, _NEXT_SHOWN)}

    def _view(self, state: StoredSchedule, count: int) -> dict[str, Any]:
        schedule = _readable(state)
        last = None
        if state.runs:
            last = {
                "run": state.runs,
                "nominal_ms": state.nominal_ms,
                "due_ms": state.due_ms,
                "id": str(self._engine.mint.one(state.due_ms, state.offset)),
            }
        return {
            "schedule": json.loads(state.spec),
            "version": state.version,
            "runs": state.runs,
            "missed": state.missed,
            "last": last,
            "next_ms": [] if schedule is None else self._coming(schedule, state, count),
        }

    def _coming(self, schedule: Schedule, state: StoredSchedule, count: int) -> Sequence[int]:
        if schedule.paused:
            return []
        progress = ScheduleProgress(state.decided_ms, state.runs)
        from_ms = open_from(schedule, progress, self._clock())
        return [*islice(next_runs(schedule, from_ms, state.runs), count)]


def _result(future: Future[Result]) -> Result:
    try:
        return future.result(CHANGE_S)
    except TimeoutError:
        raise NotRunning(
            "the change is not committed; whether it will be is not known",
            limit=f"{CHANGE_S:.0f} s",
            remedy="'slotwheel schedule list' shows what holds; try again",
            uncertain=True,
        ) from None


def _check_message_name(schedule: Schedule) -> None:
    """Errors: ``InvalidMessage``: each message would be replaced by the next one before it leaves.
    *Example.* One of each second becomes a row half a minute ahead, with the name of the 30 rows
    that are not due yet."""
    if schedule.template.name is None:
        return
    if schedule.missed == Missed.ALL:
        raise InvalidMessage(
            f"schedule {schedule.name!r}, missed: runs that are made up together would replace each"
            " other, as their messages have one name",
            got=schedule.missed.value,
            limit="last or skip, where the template has a name",
            remedy="Leave the template's name out, or make up the last run alone",
        )
    every_ms, jitter_ms = schedule.every_ms or _NAMED_EVERY_MS, schedule.jitter_ms
    if every_ms < _NAMED_EVERY_MS or jitter_ms > _NAMED_JITTER_MS:
        raise InvalidMessage(
            f"schedule {schedule.name!r}, template, name: the next message would replace the one"
            " before it, which has the same name and is not due yet",
            got=f"every_ms {every_ms}, jitter_ms {jitter_ms}",
            limit=f"every_ms from {_NAMED_EVERY_MS} on, jitter_ms up to {_NAMED_JITTER_MS}",
            remedy="Leave the template's name out, or let it fire less often",
        )


def _readable(state: StoredSchedule) -> Schedule | None:
    """A schedule; None: this node does not know what it says."""
    try:
        return schedule_of(state.spec)
    except InvalidMessage:
        return None


@lru_cache(maxsize=1024)
def _topic_in(spec: bytes) -> str:
    return str(json.loads(spec)["template"]["topic"])


def _topic_of(state: StoredSchedule) -> str:
    """The topic of a schedule, also of one that this node cannot read otherwise. Without that
    nobody could delete it, or put another one in its place."""
    return _topic_in(state.spec)


def _may_read(caller: ConnectedCaller, state: StoredSchedule) -> bool:
    rights = caller.rights
    return rights.is_unlimited or rights.topics(Right.READ).has(_topic_of(state))


def _name_of(fields: dict[str, Any]) -> str:
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidMessage(
            "no usable 'name'", got=repr(name)[:80], limit="the name of a schedule"
        )
    return name


def _text_of(fields: dict[str, Any], field: str) -> str:
    text = fields.get(field) or ""
    if not isinstance(text, str):
        raise InvalidMessage(f"no usable {field!r}", got=repr(text)[:80], limit="a text")
    return text


def _version_of(fields: dict[str, Any]) -> int | None:
    version = fields.get("version")
    if version is not None and (type(version) is not int or version < 0):
        raise InvalidMessage(
            "no usable 'version'",
            got=repr(version)[:80],
            limit="the version that the schedule has, or 0: there is none",
        )
    return version
