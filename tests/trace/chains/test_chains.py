"""Chains of made events and fates: states, steps, latency, anomalies, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.policy.deadletters import EXPIRED
from slotwheel.reading.search.fate import NOT_VISIBLE, MessageFate, MessageState
from slotwheel.reading.visible import MayTopic
from slotwheel.trace.chains import finding
from slotwheel.trace.chains.anomalies import AnomalyKind
from slotwheel.trace.chains.chain import Chain, ChainState, StepKind
from slotwheel.trace.chains.finding import find_chain
from slotwheel.trace.events import EVENT, STORED, EventKind, EventSender, with_sender
from slotwheel.trace.store import TracePage
from slotwheel.wheel.errors import UnknownId
from slotwheel.wheel.ids import MessageId

_DUE = 1_000_000
_NOW = 2_000_000


def _id(offset: int, due: int = _DUE) -> MessageId:
    return MessageId("g", due, offset, 7)


def _parts(one: MessageId | None) -> dict[str, Any] | None:
    if one is None:
        return None
    at = datetime.fromtimestamp(one.due / 1000, UTC)
    return {"group": one.group, "due": at, "offset": one.offset, "check": one.check}


class _Events:
    """Events of a sender each, in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def note(
        self,
        kind: EventKind,
        at: int,
        message: MessageId | None,
        origin: MessageId | None = None,
        sender: str = "s",
        **more: Any,
    ) -> None:
        rows = self.rows.setdefault(sender, [])
        parts = {"id": _parts(message), "origin": _parts(origin)}
        rows.append({"number": len(rows), "at": at, "kind": kind, "topic": "orders"} | parts | more)

    @property
    def table(self) -> pa.Table:
        batches = [
            with_sender(
                EventSender(name, client=name), pa.RecordBatch.from_pylist(rows, schema=EVENT)
            )
            for name, rows in self.rows.items()
        ]
        return pa.Table.from_batches(batches, STORED).unify_dictionaries()

    def of_id(self, message: MessageId, may: MayTopic | None = None) -> TracePage:
        wanted = _parts(message)
        rows = self.table.to_pylist()
        kept = [
            at
            for at, row in enumerate(rows)
            if wanted in (row["id"], row["origin"]) and (may is None or may(row["topic"]))
        ]
        return TracePage(self.table.take(pa.array(kept, pa.int64())), None)


def _delivered(one: MessageId, left: int, created: int = 900_000) -> MessageFate:
    due = one.due
    return MessageFate(str(one), MessageState.DELIVERED, "here", due, None, created, left)


class _Fates:
    def __init__(self, *known: MessageFate) -> None:
        self._known = {one.id: one for one in known}

    def __call__(self, ids: Sequence[str]) -> list[MessageFate]:
        unknown = MessageFate("", MessageState.UNKNOWN, "nobody knows")
        return [self._known.get(one, MessageFate(one, unknown.state, unknown.why)) for one in ids]


def _kinds(chain: Chain, *left_out: StepKind) -> list[str]:
    return [one.kind + "!" * one.failed for one in chain.steps if one.kind not in left_out]


def _anomalies(chain: Chain) -> set[AnomalyKind]:
    return {one.kind for one in chain.anomalies}


def _processed(events: _Events, at: int, one: MessageId, **more: Any) -> None:
    columns: dict[str, Any] = {"took_us": 2_000, "group": "billing"}
    events.note(EventKind.PROCESSED, at, one, **columns | more)


def test_a_message_that_went_well() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=9_500, key=b"k")
    _processed(events, 1_000_100, _id(1), sender="c", attempt=1)
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_000_004)), _NOW)
    assert _kinds(chain) == ["produced", "accepted", "due", "delivered", "processed"]
    assert (chain.state, chain.outcomes) == ("processed", {"billing": ChainState.PROCESSED})
    assert chain.latency_ms == {
        "send": 9.5,
        "wheel": 4,
        "broker": 96,
        "arrival": 100,
        "consumer": 2,
    }
    assert not chain.anomalies
    assert not chain.missing
    assert [one.client for one in chain.steps] == ["s", "", "", "", "c"]


def _retried() -> tuple[_Events, _Fates]:
    """1 fails, its retry 2 fails, its letter is 3; 4 is that sent again, and is processed."""
    events = _Events()
    retry, letter, again = (_id(number, _DUE + number * 1000) for number in (2, 3, 4))
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=10)
    _processed(events, 1_000_100, _id(1), error="not now", attempt=1)
    events.note(EventKind.RETRIED, 1_000_101, _id(1), group="billing", attempt=1)
    events.note(EventKind.PRODUCED, 1_000_102, retry, _id(1), took_us=10)
    _processed(events, 1_002_001, retry, origin=_id(1), error="never", attempt=2)
    events.note(EventKind.DEAD, 1_002_002, retry, _id(1), group="billing", error="used up")
    events.note(EventKind.PRODUCED, 1_002_003, letter, _id(1), took_us=10)
    events.note(EventKind.PRODUCED, 1_003_900, again, letter, "redrive", took_us=10)
    _processed(events, 1_004_100, again, origin=letter, attempt=1)
    ids = (_id(1), retry, letter, again)
    return events, _Fates(*(_delivered(one, one.due + 2, one.due - 100) for one in ids))


@pytest.mark.parametrize("asked", range(1, 5))
def test_a_chain_goes_over_retries_and_what_was_sent_again_whichever_id_is_asked_for(
    asked: int,
) -> None:
    events, fates = _retried()
    due = _DUE + (asked * 1000 if asked > 1 else 0)
    chain = find_chain(str(_id(asked, due)), events, fates, _NOW)
    assert chain.state is ChainState.PROCESSED
    assert [MessageId.parse(one.id).offset for one in chain.messages] == [1, 2, 3, 4]
    assert [one.comes_from for one in chain.messages] == [
        *(None, str(_id(1)), str(_id(1)), chain.messages[2].id)
    ]
    consumer = [one.kind + "!" * one.failed for one in chain.steps if one.tier == "consumer"]
    assert consumer == ["processed!", "retried", "processed!", "dead!", "processed"]
    assert _anomalies(chain) == {AnomalyKind.RETRY, AnomalyKind.DEAD}
    assert len([one for one in chain.steps if one.kind is StepKind.PRODUCED]) == 4


def test_that_nobody_reads_a_topic_of_dead_letters_is_no_gap_in_what_is_known() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=10, topic="letters")
    fates = _Fates(_delivered(_id(1), 1_000_001))
    assert not find_chain(str(_id(1)), events, fates, _NOW, unread={"letters"}).missing
    (line,) = find_chain(str(_id(1)), events, fates, _NOW, unread={"others"}).missing
    assert "no event of a consumer" in line


def test_each_group_has_its_own_outcome_and_the_worst_is_the_state() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=10)
    _processed(events, 1_000_010, _id(1))
    _processed(events, 1_000_020, _id(1), group="mail", error="no")
    events.note(EventKind.DEAD, 1_000_021, _id(1), group="mail", error=EXPIRED)
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_000_001)), _NOW)
    assert chain.outcomes == {"billing": "processed", "mail": "expired"}
    assert chain.state is ChainState.EXPIRED
    assert _anomalies(chain) == {AnomalyKind.EXPIRED}


def test_what_is_not_in_order_is_named() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=10)
    _processed(events, 1_200_000, _id(1))
    _processed(events, 1_200_100, _id(1))
    events.note(EventKind.RECEIVED, 1_200_200, _id(1), group="mail")
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_002_500)), _NOW)
    assert _anomalies(chain) == {
        *(AnomalyKind.REPEAT, AnomalyKind.LATE, AnomalyKind.BACKLOG, AnomalyKind.STUCK)
    }
    assert chain.outcomes == {"billing": "processed", "mail": "received"}


@pytest.mark.parametrize(
    ("state", "due", "kinds", "anomalies"),
    [
        (MessageState.PENDING, _NOW + 500, ["accepted", "due"], set()),
        (MessageState.PENDING, _DUE, ["accepted", "due"], {AnomalyKind.STUCK}),
        (MessageState.CANCELLED, _DUE, ["accepted", "cancelled", "due"], set()),
        (MessageState.EXPIRED, _DUE, ["accepted", "due", "expired!"], {AnomalyKind.EXPIRED}),
        (MessageState.DEAD, _DUE, ["accepted", "due", "dead!"], {AnomalyKind.DEAD}),
        (MessageState.DELIVERED, _DUE, ["accepted", "due", "delivered"], set()),
    ],
)
def test_without_events_the_wheel_says_what_it_knows(
    state: MessageState, due: int, kinds: list[str], anomalies: Iterable[AnomalyKind]
) -> None:
    left = {MessageState.PENDING: None, MessageState.CANCELLED: 950_000}.get(state, 1_000_010)
    fate = MessageFate(str(_id(1, due)), state, "so", due, None, 900_000, left)
    chain = find_chain(fate.id, None, _Fates(fate), _NOW)
    assert (str(chain.state), _kinds(chain), _anomalies(chain)) == (state, kinds, anomalies)
    assert "there is no store of events" in chain.missing[0]


def test_the_topic_of_a_message_without_an_event_is_the_one_that_the_wheel_knows() -> None:
    fate = MessageFate(str(_id(1)), MessageState.DELIVERED, "so", _DUE, None, 1, 2, "orders")
    chain = find_chain(fate.id, _Events(), _Fates(fate), _NOW)
    assert [one.topic for one in chain.messages] == ["orders"]
    assert [one.topic for one in chain.steps] == ["orders"] * 3


def test_of_what_nobody_knows_nothing_is_said() -> None:
    chain = find_chain(str(_id(1)), _Events(), _Fates(), _NOW)
    assert (chain.state, chain.steps, chain.latency_ms) == (ChainState.UNKNOWN, (), {})
    assert f"{_id(1)}: nobody knows" in chain.missing
    with pytest.raises(UnknownId):
        find_chain("<script>", _Events(), _Fates(), _NOW)


def test_events_of_others_and_events_without_ids_are_in_no_chain() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=10)
    stranger = MessageId("other", _DUE, 1, 7)
    events.note(EventKind.PRODUCED, 899_991, stranger, took_us=10)
    events.note(EventKind.PRODUCED, 899_992, None, error="refused")
    forged = MessageId("g", _DUE, 1, 8)
    _processed(events, 1_000_000, forged)
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_000_001)), _NOW)
    assert [one.at_ms for one in chain.steps if one.tier != "wheel"] == [899_990]


def test_a_chain_of_very_many_messages_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MESSAGES_MAX", 3)
    events = _Events()
    for number in range(1, 10):
        events.note(EventKind.PRODUCED, 899_990, _id(number), _id(number - 1), took_us=1)
    chain = find_chain(str(_id(0)), events, _Fates(), _NOW)
    assert "more than 3 messages" in chain.missing[0]


def test_what_is_no_id_in_forged_events_is_not_followed() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 899_990, _id(1), took_us=10)
    for forged in (
        MessageId("g", _DUE, -5, 7),
        MessageId("a.b", _DUE, 5, 7),
        MessageId("\u00e9", _DUE, 5, 7),
        _id(1),
    ):
        _processed(events, 1_000_000, _id(1), origin=forged)
        _processed(events, 1_000_000, forged, origin=_id(1))
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_000_001)), _NOW)
    assert [(one.id, one.comes_from) for one in chain.messages] == [(str(_id(1)), None)]


def test_however_many_messages_forged_events_lead_to_a_chain_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "MESSAGES_MAX", 3)
    events = _Events()
    for number in range(1, 10):
        events.note(EventKind.PRODUCED, 899_990, _id(number), _id(0), took_us=1)
    chain = find_chain(str(_id(0)), events, _Fates(), _NOW)
    assert len(chain.messages) == 3
    assert [one for one in chain.missing if "more than" in one] == [
        "more than 3 messages: these are the first found"
    ]


def test_a_chain_of_very_many_events_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "EVENTS_MAX", 5)
    events = _Events()
    for number in range(1, 4):
        events.note(EventKind.PRODUCED, 899_990, _id(number), _id(0), took_us=1)
        _processed(events, 1_000_000, _id(number))
    chain = find_chain(str(_id(0)), events, _Fates(), _NOW)
    assert "5 events and more: those of 2 messages are not looked for" in chain.missing


def test_an_anomaly_is_of_the_message_that_has_it_and_not_of_one_at_the_same_place() -> None:
    events = _Events()
    other, forged = MessageId("a", _DUE, 1, 7), MessageId("g", _DUE, 1, 8)
    events.note(EventKind.PRODUCED, 899_990, _id(1), other, took_us=10)
    events.note(EventKind.RETRIED, 1_000_000, other, group="billing", attempt=1)
    events.note(EventKind.RETRIED, 1_000_001, forged, _id(1), group="billing", attempt=1)
    _processed(events, 1_200_000, _id(1))
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_002_500)), _NOW)
    assert {(one.kind, one.id) for one in chain.anomalies} == {
        (AnomalyKind.RETRY, str(other)),
        (AnomalyKind.RETRY, str(forged)),
        (AnomalyKind.LATE, str(_id(1))),
        (AnomalyKind.BACKLOG, str(_id(1))),
        # By times that contradict each other: nothing was retried before it was delivered.
        *((AnomalyKind.CLOCKS, str(one)) for one in (_id(1), forged)),
    }


def test_the_last_word_of_a_group_is_that_of_the_last_attempt_whatever_its_clock_says() -> None:
    events, fates = _retried()
    for row in (one for rows in events.rows.values() for one in rows):
        if row["origin"] is None:
            row["at"] += 900_000
    chain = find_chain(str(_id(1)), events, fates, _NOW)
    assert chain.outcomes == {"billing": "processed"}


def test_messages_that_come_from_each_other_by_forged_events_are_one_chain() -> None:
    events = _Events()
    _processed(events, 1_000_000, _id(1), origin=_id(2))
    _processed(events, 1_000_001, _id(2), origin=_id(1))
    chain = find_chain(str(_id(1)), events, _Fates(), _NOW)
    assert (len(chain.messages), chain.state) == (2, "processed")


def test_a_consumer_without_a_group_has_a_word_too() -> None:
    events = _Events()
    for at in (1_000_002, 1_000_003):
        _processed(events, at, _id(1), group=None)
    chain = find_chain(str(_id(1)), events, _Fates(_delivered(_id(1), 1_000_001)), _NOW)
    assert (chain.state, chain.outcomes) == ("processed", {"": "processed"})
    assert [one.text for one in chain.anomalies] == [
        "a consumer without a group has answered for it 2 times"
    ]


def _dead(one: MessageId) -> MessageFate:
    return MessageFate(str(one), MessageState.DEAD, "no", one.due, None, 900_000, one.due + 1)


def test_a_retry_that_became_a_dead_letter_in_the_wheel_is_not_retrying() -> None:
    events = _Events()
    _processed(events, 1_000_100, _id(1), error="not now", attempt=1)
    events.note(EventKind.RETRIED, 1_000_101, _id(1), group="billing", attempt=1)
    events.note(EventKind.PRODUCED, 1_000_102, _id(2), _id(1), took_us=10)
    fates = _Fates(_delivered(_id(1), 1_000_004), _dead(_id(2)))
    assert find_chain(str(_id(1)), events, fates, _NOW).state is ChainState.DEAD


def test_a_dead_letter_that_was_sent_again_is_where_that_is() -> None:
    events = _Events()
    events.note(EventKind.PRODUCED, 1_000_102, _id(2), _id(1), took_us=10)
    fates = _Fates(_dead(_id(1)), _delivered(_id(2), 1_000_204))
    assert find_chain(str(_id(1)), events, fates, _NOW).state is ChainState.DELIVERED
    _processed(events, 1_000_300, _id(2))
    assert find_chain(str(_id(1)), events, fates, _NOW).state is ChainState.PROCESSED


@pytest.mark.parametrize("sender_ms", [-7_000, 0, 7_000])
@pytest.mark.parametrize("consumer_ms", [-3_000, 0, 3_000])
def test_clocks_that_contradict_the_order_change_nothing_of_it(
    sender_ms: int, consumer_ms: int
) -> None:
    """Two attempts: the steps stand as they must have happened, and it is said by how much clocks
    differ; no time between two of them is a latency that is negative."""
    events, retry = _Events(), _id(2, _DUE + 1_000)
    events.note(EventKind.PRODUCED, 899_990 + sender_ms, _id(1), took_us=9_500)
    at = _DUE + 10 + consumer_ms
    common: dict[str, Any] = {"sender": "c", "group": "billing"}
    events.note(EventKind.RECEIVED, at, _id(1), attempt=1, took_us=0, **common)
    failed = {**common, "attempt": 1, "took_us": 100_000, "error": "no"}
    events.note(EventKind.PROCESSED, at + 1, _id(1), **failed)
    events.note(EventKind.RETRIED, at + 102, _id(1), attempt=1, **common)
    events.note(EventKind.PRODUCED, at + 103, retry, _id(1), sender="c", took_us=1_000)
    again = {**common, "attempt": 2, "took_us": 50}
    events.note(EventKind.PROCESSED, _DUE + 1_020 + consumer_ms, retry, _id(1), **again)
    fates = _Fates(
        _delivered(_id(1), _DUE + 4), _delivered(retry, retry.due + 4, created=_DUE + 120)
    )
    chain = find_chain(str(_id(1)), events, fates, _NOW)
    assert _kinds(chain, StepKind.DUE) == [
        *("produced", "accepted", "delivered", "received", "processed!", "retried"),
        *("produced", "accepted", "delivered", "processed"),
    ]
    said = [one.text for one in chain.anomalies if one.kind is AnomalyKind.CLOCKS]
    assert bool(said) == (sender_ms > 0 or consumer_ms != 0)
    if sender_ms > 0:
        assert "accepted by the wheel is dated 7.0 s before produced by s" in said[0]
    if consumer_ms < 0:
        assert any("received by billing is dated 3.0 s before it left the wheel" in t for t in said)
    if consumer_ms > 0:
        assert any("accepted by the wheel is dated 3.0 s before produced by c" in t for t in said)
    assert all(ms >= 0 for ms in chain.latency_ms.values())


def test_a_forged_link_shows_no_message_of_a_topic_that_may_not_be_read() -> None:
    """Events are texts of whoever sends them: one says that a message of others comes from mine,
    another one that it is for my topic."""
    events, [mine, others] = _Events(), [_id(1), _id(2)]
    events.note(EventKind.PRODUCED, 899_990, mine)
    events.note(EventKind.PRODUCED, 899_991, others, topic="payments", key=b"secret")
    events.note(EventKind.PRODUCED, 899_992, others, mine, sender="forger")
    kept = [replace(_delivered(others, 1_000_004), topic="payments")]
    kept.append(replace(_delivered(mine, 1_000_004), topic="orders"))
    for asked in (mine, others):
        chain = find_chain(str(asked), events, _Fates(*kept), _NOW, may="orders".__eq__)
        shown = {message.id: message for message in chain.messages}
        assert shown[str(mine)].state == "delivered"
        hidden = shown[str(others)]
        assert (hidden.state, hidden.why, hidden.due_ms) == ("unknown", NOT_VISIBLE, None)
        assert not [step for step in chain.steps if step.topic == "payments" or step.key]
        assert not [step for step in chain.steps if step.id == str(others) and step.tier == "wheel"]
    alone = find_chain(str(others), _Events(), _Fates(*kept), _NOW, may="orders".__eq__)
    nobodys = find_chain(str(_id(9)), _Events(), _Fates(), _NOW, may="orders".__eq__)
    assert repr(alone).replace(str(others), "") == repr(nobodys).replace(str(_id(9)), "")
