"""Makes a chain of the events of its messages and of their fates in the wheel. Pure: nothing is
read here, and the time is an argument."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
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
    """The chain of the message with the id ``asked``. ``events`` (schema ``STORED``) and ``fates``:
    of all messages of the chain. ``missing``: lines that say what could not be read; ``unread``:
    topics that no consumer is expected to read."""
    rows = events.to_pylist()
    steps = sorted((_of_event(row) for row in rows), key=_time)
    parents = _parents(rows, {fate.id for fate in fates})
    topics = {step.id: step.topic for step in reversed(steps) if step.kind is StepKind.PRODUCED}
    messages = [_message(fate, parents.get(fate.id), topics.get(fate.id)) for fate in fates]
    messages.sort(
        key=lambda message: (message.comes_from is not None, message.due_ms or 0, message.id)
    )
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
        _latencies([step for step in steps if step.id == first]),
        (*map(_of_clocks, contradictions), *_anomalies(events, messages, now_ms, limits)),
        (*missing, *_missing(steps, messages, unread)),
    )


def _parents(rows: Iterable[Mapping[str, Any]], ids: Set[str]) -> dict[str, str]:
    """The parent of each message that comes from another one of ``ids``, by its id."""
    links = ((str(id_of(row["id"])), str(id_of(row["origin"]))) for row in rows)
    return {child: parent for child, parent in links if child != parent and {child, parent} <= ids}


def id_of(parts: Mapping[str, Any] | None) -> MessageId | None:
    """The id with these parts; None for None."""
    if parts is None:
        return None
    due_ms = round(parts["due"].timestamp() * 1000)
    return MessageId(parts["group"], due_ms, parts["offset"], parts["check"])


def _of_clocks(contradiction: Contradiction) -> Anomaly:
    step, cause = contradiction.step, contradiction.cause
    before = "it left the wheel" if cause is None else f"{cause.kind} by {_actor(cause)}"
    text = (
        f"{step.kind} by {_actor(step)} is dated {span_text(contradiction.ms)} before {before},"
        " which came first: their clocks differ by at least that"
    )
    return Anomaly(AnomalyKind.CLOCKS, step.at_ms, step.id, text, step.topic, step.group)


def _actor(step: ChainStep) -> str:
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
        before=fate.before,
        replaced_by=fate.replaced_by,
    )


def _of_wheel(messages: Sequence[ChainMessage], now_ms: int) -> Iterator[ChainStep]:
    for message in messages:
        if message.created_ms is not None:
            before = message.before
            yield ChainStep(
                kind=StepKind.ACCEPTED,
                tier=Witness.WHEEL,
                at_ms=message.created_ms,
                id=message.id,
                why="" if before is None else f"{before.what}: {before.id}",
                topic=message.topic,
            )
        known = message.created_ms is not None or message.state != MessageState.UNKNOWN
        waits = message.state == MessageState.PENDING
        if message.due_ms is not None and known and (waits or message.due_ms <= now_ms):
            yield ChainStep(
                StepKind.DUE, Witness.WHEEL, message.due_ms, message.id, topic=message.topic
            )
        if message.state in _ENDS:
            kind = _ENDS[MessageState(message.state)]
            failed = kind in (StepKind.EXPIRED, StepKind.DEAD)
            yield ChainStep(
                kind=kind,
                tier=Witness.WHEEL,
                at_ms=message.left_ms,
                id=message.id,
                failed=failed,
                why=message.why,
                topic=message.topic,
            )


def _outcomes(
    steps: Sequence[ChainStep], messages: Sequence[ChainMessage]
) -> dict[str, ChainState]:
    """The state in which each group of consumers has left its last message and attempt. Links and
    attempts decide which is the last one, as clocks differ from consumer to consumer."""
    depths = _depths(messages)
    words = [step for step in steps if step.tier is Witness.CONSUMER]
    words.sort(key=lambda step: (depths.get(step.id, 0), step.attempt or 0, *_time(step)))
    outcomes: dict[str, ChainState] = {}
    for step in words:
        group = step.group or ""
        if step.kind is StepKind.PROCESSED:
            outcomes[group] = ChainState.FAILED if step.failed else ChainState.PROCESSED
        elif step.kind is StepKind.RETRIED:
            outcomes[group] = ChainState.RETRYING
        elif step.kind is StepKind.DEAD:
            outcomes[group] = ChainState.EXPIRED if step.why == EXPIRED else ChainState.DEAD
        elif step.kind is StepKind.RECEIVED:
            outcomes[group] = ChainState.RECEIVED
    return outcomes


def _depths(messages: Sequence[ChainMessage]) -> dict[str, int]:
    """The number of ancestors of each message."""
    parents = {message.id: message.comes_from for message in messages}
    depths: dict[str, int] = {}
    for message in messages:
        way: dict[str, None] = {}
        at: str | None = message.id
        while at is not None and at not in way:  # forged events may lead in a circle
            way[at] = None
            at = parents.get(at)
        depths[message.id] = len(way) - 1
    return depths


def _state(outcomes: Mapping[str, ChainState], messages: Sequence[ChainMessage]) -> ChainState:
    """The worst of the groups' outcomes and of dead letters that the wheel made of the last
    messages; without outcomes the worst state of these."""
    before = {message.comes_from for message in messages}
    last = [message.state for message in messages if message.id not in before] or [
        messages[0].state
    ]
    if outcomes:
        died = [state for state in last if state in (MessageState.DEAD, MessageState.EXPIRED)]
        return min([*outcomes.values(), *map(ChainState, died)], key=_WORST.__getitem__)
    known = [state for state in last if state != MessageState.UNKNOWN] or [messages[0].state]
    return min(map(ChainState, known), key=_WORST.__getitem__)


def _latencies(steps: Sequence[ChainStep]) -> dict[str, float]:
    """How long each step of one message took, ms. A time below zero is left out: two clocks
    contradict each other, or the application had the message before the node had its answer."""
    first: dict[StepKind, ChainStep] = {}
    for step in steps:
        if step.at_ms is not None and not (step.kind is StepKind.PRODUCED and step.failed):
            first.setdefault(step.kind, step)
    at = {kind: step.at_ms for kind, step in first.items() if step.at_ms is not None}
    latencies: dict[str, float] = {}
    produced, processed = first.get(StepKind.PRODUCED), first.get(StepKind.PROCESSED)
    if produced is not None and produced.took_us is not None:
        latencies[LatencyStep.SEND] = produced.took_us / 1000
    ready = ready_ms(at.get(StepKind.DUE, 0), at.get(StepKind.ACCEPTED, 0))
    left = at.get(StepKind.DELIVERED)
    if left is not None and ready:
        latencies[LatencyStep.WHEEL] = left - ready
    if processed is not None and processed.at_ms is not None:
        if left is not None:
            latencies[LatencyStep.BROKER] = processed.at_ms - left
        if ready:
            latencies[LatencyStep.ARRIVAL] = processed.at_ms - ready
        if processed.took_us is not None:
            latencies[LatencyStep.CONSUMER] = processed.took_us / 1000
    return {step: ms for step, ms in latencies.items() if ms >= 0}


def _anomalies(
    events: pa.Table, messages: Sequence[ChainMessage], now_ms: int, limits: AnomalyLimits
) -> Iterator[Anomaly]:
    known = {message.id for message in messages}
    # Only what is in the files of one wheel group has left.
    gone = [(MessageId.parse(m.id), m) for m in messages if m.left_ms is not None]
    left: list[dict[str, Any]] = [
        {
            "due": message.due_ms,
            "offset": of_id.offset,
            "created": message.created_ms,
            "at": message.left_ms,
            "state": message.state,
            "topic": message.topic,
        }
        for of_id, message in gone
    ]
    texts = {(of_id.group, of_id.due, of_id.offset): str(of_id) for of_id, _ in gone}
    group = gone[0][0].group if gone else ""
    departures = Departures(group, [pa.RecordBatch.from_pylist(left, schema=LEFT)])
    for row in anomalies(events, departures, now_ms, limits).to_pylist():
        kind, row_id = AnomalyKind(row["kind"]), id_of(row["id"])
        if kind is AnomalyKind.CLOCKS:  # the order of the steps says it of each pair of clocks
            continue
        text = anomaly_text(kind, row["amount"], row["group"], row["why"])
        where = "" if row_id is None else str(row_id)
        if row_id is not None and where not in known:  # of a departure, which has no check
            where = texts.get((row_id.group, row_id.due, row_id.offset), where)
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
    """A line for each step that must have happened, by those that are known, and that nothing
    shows."""
    kinds: dict[str, set[tuple[StepKind, Witness]]] = defaultdict(set)
    for step in steps:
        kinds[step.id].add((step.kind, step.tier))
    for message in messages:
        has = kinds[message.id]
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
