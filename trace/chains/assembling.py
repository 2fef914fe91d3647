"""Makes a chain of the events of its messages and of what the wheel knows of each. Pure: nothing is
read here, and the time is an argument."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import Any

import pyarrow as pa

from ...account.limits import ready_ms
from ...policy.deadletters import EXPIRED
from ...reading.search.fate import MessageFate, MessageState
from ...wheel.ids import MessageId
from ...wheel.texts import span_text
from ..events import EventKind
from .anomalies import AnomalyKind, AnomalyLimits, anomalies, anomaly_text
from .chain import Anomaly, Chain, ChainMessage, ChainState, ChainStep, StepKind, Witness
from .departures import LEFT, Departures
from .latency import LatencyStep
from .order import Contradiction, in_order

_ORDER = {kind: number for number, kind in enumerate(StepKind)}
_SAME = (
    *("topic", "partition", "offset", "key", "group", "attempt"),
    *("client", "address", "tag", "traceparent"),
)
_WORST = {state: number for number, state in enumerate(ChainState)}
_ENDS = {
    MessageState.DELIVERED: StepKind.DELIVERED,
    MessageState.CANCELLED: StepKind.CANCELLED,
    MessageState.EXPIRED: StepKind.EXPIRED,
    MessageState.DEAD: StepKind.DEAD,
}


def assemble(
    asked: str,
    events: pa.Table,
    fates: Sequence[MessageFate],
    now_ms: int,
    limits: AnomalyLimits,
    missing: Iterable[str] = (),
    unread: Collection[str] = (),
) -> Chain:
    """The chain of the message ``asked``, an id. ``events``: of all its messages (schema
    ``STORED``); ``fates``: of these. ``missing``: what is known to be incomplete; ``unread``:
    topics that no consumer is expected to read."""
    rows = events.to_pylist()
    steps = sorted((_of_event(row) for row in rows), key=_time)
    parents = _parents(rows, {one.id for one in fates})
    topics = {step.id: step.topic for step in reversed(steps) if step.kind is StepKind.PRODUCED}
    messages = [_message(one, parents.get(one.id), topics.get(one.id)) for one in fates]
    messages.sort(key=lambda one: (one.comes_from is not None, one.due_ms or 0, one.id))
    every = sorted([*steps, *_of_wheel(messages, now_ms)], key=_time)
    steps, contradictions = in_order(every, messages, _depths(messages))
    outcomes = _outcomes(steps, messages)
    first = messages[0].id if messages else asked
    return Chain(
        asked,
        _state(outcomes, messages),
        outcomes,
        tuple(messages),
        tuple(steps),
        _latencies([one for one in steps if one.id == first]),
        (*map(_of_clocks, contradictions), *_anomalies(events, messages, now_ms, limits)),
        (*missing, *_missing(steps, messages, unread)),
    )


def _parents(rows: Iterable[Mapping[str, Any]], ids: Set[str]) -> dict[str, str]:
    """Which of these messages comes from which."""
    links = ((str(id_of(row["id"])), str(id_of(row["origin"]))) for row in rows)
    return {child: parent for child, parent in links if child != parent and {child, parent} <= ids}


def id_of(parts: Mapping[str, Any] | None) -> MessageId | None:
    """A message's id of the parts that an event has."""
    if parts is None:
        return None
    due_ms = round(parts["due"].timestamp() * 1000)
    return MessageId(parts["group"], due_ms, parts["offset"], parts["check"])


def _of_clocks(found: Contradiction) -> Anomaly:
    step, cause = found.step, found.cause
    before = "it left the wheel" if cause is None else f"{cause.kind} by {_who(cause)}"
    text = (
        f"{step.kind} by {_who(step)} is dated {span_text(found.ms)} before {before}, which came"
        " first: their clocks differ by at least that"
    )
    return Anomaly(AnomalyKind.CLOCKS, step.at_ms, step.id, text, step.topic, step.group)


def _who(step: ChainStep) -> str:
    return step.group or step.client or f"the {step.tier}"


def _time(step: ChainStep) -> tuple[bool, int, int]:
    return step.at_ms is None, step.at_ms or 0, _ORDER[step.kind]


def _of_event(row: Mapping[str, Any]) -> ChainStep:
    produced = row["kind"] == EventKind.PRODUCED
    return ChainStep(
        StepKind(row["kind"]),
        Witness.CLIENT if produced else Witness.CONSUMER,
        round(row["at"].timestamp() * 1000),
        str(id_of(row["id"]) or ""),
        row["took_us"],
        row["error"] is not None,
        row["error"] or "",
        **{name: row[name] for name in _SAME},
    )


def _message(fate: MessageFate, comes_from: str | None, topic: str | None) -> ChainMessage:
    return ChainMessage(
        id=fate.id,
        comes_from=comes_from,
        topic=fate.topic if topic is None else topic,
        state=fate.state,
        why=fate.why,
        due_ms=fate.due_ms,
        created_ms=fate.created_ms,
        left_ms=fate.left_ms,
    )


def _of_wheel(messages: Sequence[ChainMessage], now_ms: int) -> Iterator[ChainStep]:
    for one in messages:
        if one.created_ms is not None:
            kind = StepKind.ACCEPTED
            yield ChainStep(kind, Witness.WHEEL, one.created_ms, one.id, topic=one.topic)
        known = one.created_ms is not None or one.state != MessageState.UNKNOWN
        waits = one.state == MessageState.PENDING
        if one.due_ms is not None and known and (waits or one.due_ms <= now_ms):
            yield ChainStep(StepKind.DUE, Witness.WHEEL, one.due_ms, one.id, topic=one.topic)
        if one.state in _ENDS:
            kind = _ENDS[MessageState(one.state)]
            failed = kind in (StepKind.EXPIRED, StepKind.DEAD)
            yield ChainStep(
                kind=kind,
                tier=Witness.WHEEL,
                at_ms=one.left_ms,
                id=one.id,
                failed=failed,
                why=one.why,
                topic=one.topic,
            )


def _outcomes(
    steps: Sequence[ChainStep], messages: Sequence[ChainMessage]
) -> dict[str, ChainState]:
    """The state that each group of consumers has left its last message and attempt in. Their order
    decides and not the clocks, which differ from consumer to consumer."""
    depths = _depths(messages)
    words = [one for one in steps if one.tier is Witness.CONSUMER]
    words.sort(key=lambda one: (depths.get(one.id, 0), one.attempt or 0, *_time(one)))
    found: dict[str, ChainState] = {}
    for one in words:
        group = one.group or ""
        if one.kind is StepKind.PROCESSED:
            found[group] = ChainState.FAILED if one.failed else ChainState.PROCESSED
        elif one.kind is StepKind.RETRIED:
            found[group] = ChainState.RETRYING
        elif one.kind is StepKind.DEAD:
            found[group] = ChainState.EXPIRED if one.why == EXPIRED else ChainState.DEAD
        elif one.kind is StepKind.RECEIVED:
            found[group] = ChainState.RECEIVED
    return found


def _depths(messages: Sequence[ChainMessage]) -> dict[str, int]:
    """How many messages each comes from."""
    parents = {one.id: one.comes_from for one in messages}
    found: dict[str, int] = {}
    for one in messages:
        way: dict[str, None] = {}
        at: str | None = one.id
        while at is not None and at not in way:  # forged events may lead in a circle
            way[at] = None
            at = parents.get(at)
        found[one.id] = len(way) - 1
    return found


def _state(outcomes: Mapping[str, ChainState], messages: Sequence[ChainMessage]) -> ChainState:
    """The worst of what groups said and of how what came last ended in the wheel."""
    before = {one.comes_from for one in messages}
    last = [one.state for one in messages if one.id not in before] or [messages[0].state]
    if outcomes:
        died = [one for one in last if one in (MessageState.DEAD, MessageState.EXPIRED)]
        return min([*outcomes.values(), *map(ChainState, died)], key=_WORST.__getitem__)
    known = [one for one in last if one != MessageState.UNKNOWN] or [messages[0].state]
    return min(map(ChainState, known), key=_WORST.__getitem__)


def _latencies(steps: Sequence[ChainStep]) -> dict[str, float]:
    """How long each step of one message took, ms. A time that is below zero is none: two clocks
    contradict each other, or the application had the message before the node had its answer."""
    first: dict[StepKind, ChainStep] = {}
    for one in steps:
        if one.at_ms is not None and not (one.kind is StepKind.PRODUCED and one.failed):
            first.setdefault(one.kind, one)
    at = {kind: one.at_ms for kind, one in first.items() if one.at_ms is not None}
    found: dict[str, float] = {}
    produced, processed = first.get(StepKind.PRODUCED), first.get(StepKind.PROCESSED)
    if produced is not None and produced.took_us is not None:
        found[LatencyStep.SEND] = produced.took_us / 1000
    ready = ready_ms(at.get(StepKind.DUE, 0), at.get(StepKind.ACCEPTED, 0))
    left = at.get(StepKind.DELIVERED)
    if left is not None and ready:
        found[LatencyStep.WHEEL] = left - ready
    if processed is not None and processed.at_ms is not None:
        if left is not None:
            found[LatencyStep.BROKER] = processed.at_ms - left
        if ready:
            found[LatencyStep.ARRIVAL] = processed.at_ms - ready
        if processed.took_us is not None:
            found[LatencyStep.CONSUMER] = processed.took_us / 1000
    return {step: ms for step, ms in found.items() if ms >= 0}


def _anomalies(
    events: pa.Table, messages: Sequence[ChainMessage], now_ms: int, limits: AnomalyLimits
) -> Iterator[Anomaly]:
    ids = [MessageId.parse(one.id) for one in messages]
    known = {one.id for one in messages}
    left: list[dict[str, Any]] = [
        {
            "due": one.due_ms,
            "offset": of_id.offset,
            "created": one.created_ms,
            "at": one.left_ms,
            "state": one.state,
            "topic": one.topic,
        }
        for of_id, one in zip(ids, messages, strict=True)
        if one.left_ms is not None
    ]
    # Only what is in the files of one wheel group has left.
    gone = [of_id for of_id, one in zip(ids, messages, strict=True) if one.left_ms is not None]
    texts = {(one.group, one.due, one.offset): str(one) for one in gone}
    group = gone[0].group if gone else ""
    departures = Departures(group, [pa.RecordBatch.from_pylist(left, schema=LEFT)])
    for row in anomalies(events, departures, now_ms, limits).to_pylist():
        kind, found = AnomalyKind(row["kind"]), id_of(row["id"])
        if kind is AnomalyKind.CLOCKS:  # the order of the steps says it of each pair of clocks
            continue
        text = anomaly_text(kind, row["amount"], row["group"], row["why"])
        where = "" if found is None else str(found)
        if found is not None and where not in known:  # of a departure, which has no check
            where = texts.get((found.group, found.due, found.offset), where)
        yield Anomaly(kind, row["at"], where, text, row["topic"], row["group"])
    for message in messages:
        if message.state == MessageState.PENDING and message.due_ms is not None:
            waits_ms = now_ms - ready_ms(message.due_ms, message.created_ms or message.due_ms)
            if waits_ms > limits.late_ms:
                text = f"due for {span_text(waits_ms)}, and not delivered"
                kind = AnomalyKind.STUCK
                yield Anomaly(kind, message.due_ms, message.id, text, message.topic)


def _missing(
    steps: Sequence[ChainStep], messages: Sequence[ChainMessage], unread: Collection[str]
) -> Iterator[str]:
    """Steps that must have happened, by those that are known, and that nothing shows; a line
    each."""
    by_id = groupby(sorted(steps, key=lambda one: one.id), key=lambda one: one.id)
    kinds = {one: {(step.kind, step.tier) for step in found} for one, found in by_id}
    for message in messages:
        has = kinds.get(message.id, set())
        if (StepKind.PRODUCED, Witness.CLIENT) not in has:
            yield f"{message.id}: no event of its sender; it may not be traced"
        if message.state == MessageState.UNKNOWN:
            yield f"{message.id}: {message.why}"
        elif message.state == MessageState.DELIVERED:
            if message.left_ms is None:
                yield f"{message.id}: nothing says when it was delivered"
            read = any(tier is Witness.CONSUMER for _, tier in has)
            if not read and message.topic not in unread:
                yield f"{message.id}: no event of a consumer; it may wait there, or not be traced"
