"""Rights at the wire: who is let in, which rows and actions are, and who is out at their loss."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.node.intake.actions import Actions, operation_of
from slotwheel.node.intake.amounts import amounts_of
from slotwheel.node.intake.callers import Callers, ConnectedCaller, TopicColumn
from slotwheel.node.intake.wire import ClientSession
from slotwheel.security.accesslog import AccessLog
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.rights import Operation
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.errors import (
    Forbidden,
    InvalidMessage,
    Overloaded,
    OverQuota,
    SlotwheelError,
    Unauthenticated,
)
from slotwheel.wheel.protocol import (
    ACTIONS,
    CLOCK,
    CLOCK_COMMANDS,
    PEER_COMMAND,
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    encode_json,
    encode_sequence,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.rows import from_columns
from slotwheel.wire.frames import Kind, encode_hello
from support.denying import (
    ALLOWED,
    FIELDS,
    FILE,
    ROLES,
    TOPICS,
    hello,
    operations,
    plain,
    plain_answer,
    to,
    wrong_answers,
)
from support.events import ToldEvents
from support.exchange import Exchange, RawClient, action_frame, batch_frame
from support.fakewheel import FakeWheel
from support.mutating import AMOUNTS, mutated
from support.securing import parsed
from support.served import ServedIntake
from support.waiting import eventually, now_ms


@pytest.fixture
def events() -> ToldEvents:
    return ToldEvents()


@pytest.fixture
def authenticator() -> Authenticator:
    return Authenticator(parsed(FILE))


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def server(
    wheel: FakeWheel, events: ToldEvents, authenticator: Authenticator, access_log: Path
) -> Iterator[ServedIntake]:
    callers = Callers(authenticator, AccessLog(str(access_log)), events)
    made = ServedIntake(
        wheel,
        "127.0.0.1:0",
        events=events,
        room_timeout_s=0.3,
        commit=wheel.commit,
        callers=callers,
    )
    yield made
    made.close()


def lines(access_log: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in access_log.read_text().splitlines()]
    return [line for line in found if line["event"] == event]


# Who is let in


@pytest.mark.parametrize("role", ["", "expired", "made-up"])
def test_a_stranger_is_refused_and_told_nothing(
    server: ServedIntake, events: ToldEvents, role: str, access_log: Path
) -> None:
    with pytest.raises(Unauthenticated) as refused:
        Exchange(server, hello(role))
    assert str(refused.value) == str(Unauthenticated())
    [line] = lines(access_log, "stranger")
    assert line["reason"]
    assert "swt_" not in access_log.read_text()


def test_a_peer_does_not_come_in_where_clients_do(server: ServedIntake) -> None:
    with RawClient(server, encode_hello(PEER_COMMAND + b"{}")) as peer:
        assert isinstance(peer.error(), Unauthenticated)


def test_a_hello_with_a_token_that_is_no_text_does_not_show_it(server: ServedIntake) -> None:
    body = encode_json({"producer": "7", "token": ["swt_planted"]})
    with RawClient(server, encode_hello(body)) as client:
        assert "swt_planted" not in str(client.error())
    body = encode_json({"producer": "no number", "token": "swt_planted"})
    with RawClient(server, encode_hello(body)) as client:
        assert "swt_planted" not in str(client.error())
    assert "swt_planted" not in repr(AppendCommand(7, token="swt_planted"))


# What they may do


def test_every_action_and_every_frame_of_a_client_has_one_right(server: ServedIntake) -> None:
    """The other operations are the gateway's."""
    assert {*server.actions._answers, *server.actions._changes} == ACTIONS.keys()
    found = [operation for operation, _, _ in operations()]
    assert len(found) == len(set(found)) == len(ACTIONS) - 1 + len(CLOCK_COMMANDS)
    with pytest.raises(InvalidMessage, match="no usable 'do'"):
        operation_of(CLOCK, {"do": "stop"})
    with Exchange(server, hello("gateway")) as exchange:
        assert {Kind.BATCH, Kind.ROWS, Kind.ACTION} == server.server.sessions()[0].limits.keys()
        exchange.send(to("orders"), 0)
        exchange.stored()


@pytest.mark.parametrize("role", [role for role in ROLES if role != "expired"])
def test_the_deny_matrix(server: ServedIntake, wheel: FakeWheel, role: str) -> None:
    """Each operation of the wire, by each role: refused for its right, or let in."""
    with Exchange(server, hello(role)) as exchange:
        assert not wrong_answers(exchange, role)


@pytest.mark.parametrize("many", [3, 200])
def test_a_batch_with_one_foreign_topic_is_refused_whole(
    server: ServedIntake, wheel: FakeWheel, access_log: Path, many: int
) -> None:
    with Exchange(server, hello("scheduler")) as exchange:
        exchange.send(to(*["orders"] * many, "other-x", "pay-eu"), 0)
        error = exchange.refused().error
        assert isinstance(error, Forbidden)
        assert error.row == many
        assert "append for topic 'other-x'" in str(error)
        exchange.send_bytes(plain(1, *["orders"] * many, "other-x"))
        refused = plain_answer(exchange)
        assert isinstance(refused, RefusedBatch)
        assert refused.error.row == many
        exchange.send(to(*["orders"] * many, "pay-eu"), 2)
        exchange.stored()
    assert len(wheel.values()) == many + 1
    assert [line["topic"] for line in lines(access_log, "denied")] == ["other-x"] * 2
    assert {line["principal"] for line in lines(access_log, "denied")} == {"token:scheduler"}


def test_a_key_of_a_request_is_not_used_up_by_who_may_schedule_elsewhere(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    """Each caller numbers its requests from 1 on; its own repeat is found, however it comes."""
    for role, topic in (("other", "other-x"), ("scheduler", "orders"), ("gateway", "orders")):
        key = RequestKey.of("1", role.encode())
        with Exchange(server, hello(role)) as exchange:
            exchange.send(to(topic), 0, key)
            first = exchange.stored()
            exchange.send_bytes(plain(1, topic, key=key))
            again = plain_answer(exchange)
            assert isinstance(again, StoredBatch)
            assert again.base_offset == first.base_offset
            exchange.send(to(topic), 2, RequestKey.of("1", b"another"))
            assert "was used" in str(exchange.refused().error)
    assert len(wheel.values()) == 3


def test_topics_that_cannot_be_read_are_not_let_in_unchecked(server: ServedIntake) -> None:
    """A forged offset must neither crash the node nor pass."""
    good = to("orders", "pay-eu").serialize().to_pybytes()
    offsets, forged = struct.pack("<iii", 0, 6, 12), struct.pack("<iii", 0, 1 << 30, 1 << 30)
    assert good.count(offsets) == 1
    with Exchange(server, hello("scheduler")) as exchange:
        exchange.send_bytes(batch_frame(good.replace(offsets, forged), encode_sequence(0)))
        assert exchange.refused().error.code == "invalid-batch"
        exchange.send(to("orders"), 1)
        exchange.stored()


def test_a_fleet_that_is_joined_in_one_entry_keeps_its_rights_apart(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    """Rows of allowed and forbidden callers come in the same turn."""
    roles = [role for role in ROLES if role != "expired"]
    exchanges = {role: Exchange(server, hello(role, 1 + n)) for n, role in enumerate(roles)}
    with server.alone:
        for exchange in exchanges.values():
            for number, topic in enumerate(TOPICS):
                exchange.send_bytes(plain(number, topic))
    stored: list[tuple[str, str]] = []
    for role, exchange in exchanges.items():
        for _ in TOPICS:
            answer = plain_answer(exchange)
            if isinstance(answer, StoredBatch):
                stored.append((role, TOPICS[answer.sequence]))
        exchange.close()
    assert sorted(stored) == sorted(ALLOWED)
    assert len(wheel.values()) == len(ALLOWED)


def test_what_may_not_be_cancelled_is_passed_to_the_wheel_as_topics(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    asked: list[Any] = []

    def cancel(*given: Any, may: Any = None) -> list[CancelAnswer]:
        asked.append(may)
        return [CancelAnswer.UNKNOWN]

    wheel.cancel = cancel  # type: ignore[method-assign,assignment]
    for role in ("canceller", "gateway"):
        with Exchange(server, hello(role)) as exchange:
            exchange.ask("cancel", encode_json(FIELDS["cancel"]))
    by_topic, everything = asked
    assert by_topic("orders")
    assert not by_topic("pay-eu")
    assert everything is None


def test_what_a_caller_may_not_do_takes_no_thread(
    server: ServedIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried: list[str] = []
    carry_out = server.actions.carry_out

    def carry(name: str, *given: Any) -> dict[str, Any]:
        carried.append(name)
        return carry_out(name, *given)

    monkeypatch.setattr(server.actions, "carry_out", carry)
    with Exchange(server, hello("scheduler")) as exchange:
        names = "status", "cancel", "none", "hello"
        answers = [exchange.ask(name, encode_json({})) for name in names]
    assert [answer.get("code") for answer in answers[:2]] == ["forbidden"] * 2
    assert answers[2]["code"] == "invalid-batch"
    assert carried == ["hello"]


def test_of_what_is_refused_at_once_a_turn_reads_a_little(
    server: ServedIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends a thousand small requests in one write keeps nobody waiting for all of them."""
    waiting: list[int] = []
    answers = ClientSession.answers

    def counted(session: ClientSession) -> list[bytes]:
        waiting.append(len(session._results) + len(session._receipts))
        return answers(session)

    monkeypatch.setattr(ClientSession, "answers", counted)
    with Exchange(server, hello("scheduler")) as exchange:
        exchange.send_bytes(action_frame("none", b"{}") * 500)
        assert {exchange.frame().kind for _ in range(500)} == {Kind.ERROR}
        exchange.send_bytes(b"".join(plain(number, "other-x") for number in range(500)))
        assert all(isinstance(plain_answer(exchange), RefusedBatch) for _ in range(500))
    assert 1 <= max(waiting) <= 8


def test_connections_of_one_principal_are_one_party(server: ServedIntake) -> None:
    """Where nobody proves who he is, those of one address are."""
    with (
        Exchange(server, hello("scheduler", 1)),
        Exchange(server, hello("scheduler", 2)),
        Exchange(server, hello("observer")),
    ):
        parties = [session.party for session in server.server.sessions()]
    assert parties == ["token:scheduler", "token:scheduler", "token:observer"]
    callers, proof = Callers(), IdentityProof()
    identity = callers.authenticator.authenticate(proof)
    assert ConnectedCaller(callers, identity, proof, "10.0.0.7").party == "10.0.0.7"


# How much


def test_a_quota_is_shared_by_all_connections_and_a_repeat_of_a_try_is_free(
    wheel: FakeWheel, events: ToldEvents
) -> None:
    quota = "\n[quotas.'token:scheduler']\nrows-per-second = 10\nconnections = 2\n"
    callers = Callers(Authenticator(parsed(FILE + quota)))
    with (
        ServedAgain(wheel, events, callers) as server,
        Exchange(server, hello("scheduler", 1)) as first,
        Exchange(server, hello("scheduler", 2)) as second,
    ):
        first.send(to(*["orders"] * 500), 0)
        first.stored()
        second.send_bytes(plain(1, "orders"))
        refused = plain_answer(second)
        assert isinstance(refused, RefusedBatch)
        assert isinstance(refused.error, OverQuota)
        assert 10_000 < refused.error.retry_after_ms <= 49_100
        with pytest.raises(OverQuota):
            Exchange(server, hello("scheduler", 3))
        second.close()
        eventually(lambda: len(server.server.sessions()) == 1)
        Exchange(server, hello("scheduler", 3)).close()
    assert len(wheel.values()) == 500


def test_a_question_counts_while_it_is_answered(wheel: FakeWheel) -> None:
    quota = "\n[quotas.'token:observer']\nquestions = 1\n"
    callers = Callers(Authenticator(parsed(FILE + quota)))
    proof = IdentityProof.of((), "swt_observer")
    caller = ConnectedCaller(callers, callers.authenticator.authenticate(proof), proof, "")
    refused: list[int] = []

    def facts() -> dict[str, Any]:
        """The first question is being answered."""
        actions.carry_out("hello", {}, caller)  # which is none
        with pytest.raises(OverQuota, match="questions; limit 1") as second:
            actions.carry_out("status", {}, caller)
        refused.append(second.value.retry_after_ms)
        return {}

    actions = Actions(
        wheel,
        now_ms,
        group=None,
        step_down=None,
        facts=facts,
        policies=None,
        operated_clock=None,
        acknowledge=lambda: None,
        pages={},
        schedules=None,
    )
    for _ in range(2):
        assert "status" in actions.carry_out("status", {}, caller)
    assert refused == [1000, 1000]


def test_what_is_pending_is_limited_on_each_way_and_a_refusal_counts_nothing(
    wheel: FakeWheel, events: ToldEvents
) -> None:
    quota = "\n[quotas.'token:scheduler'.pending.'ord*']\nrows = 40\n"
    callers = Callers(Authenticator(parsed(FILE + quota)))
    ledger = callers.authenticator.pending
    with (
        ServedAgain(wheel, events, callers) as server,
        Exchange(server, hello("scheduler", 1)) as first,
    ):
        first.send(to(*["orders"] * 30), 0)
        first.stored()
        assert ledger.pending() == {"ord*": (30, 30)}  # of a value of one byte each
        first.send(to(*["orders"] * 11), 1)
        refused = first.answer()
        assert isinstance(refused, RefusedBatch)
        assert isinstance(refused.error, OverQuota)
        assert "30 pending, and 11 in this batch" in str(refused.error)
        first.send(to(*["orders"] * 9), 2)
        first.stored()
        first.send_bytes(plain(10, "orders", "orders"))
        refused = plain_answer(first)
        assert isinstance(refused, RefusedBatch)
        assert "39 pending, and 2 in this batch" in str(refused.error)
        first.send_bytes(plain(11, "orders"))
        assert isinstance(plain_answer(first), StoredBatch)
        eventually(lambda: ledger.pending()["ord*"][0] == 40)
        ledger.counted(ledger.patterns, [(1, 1)], len(wheel.values()))  # the others have left
        first.send(to(*["orders"] * 39), 3)
        first.stored()
    assert len(wheel.values()) == 79


def test_the_amounts_of_a_batch_are_those_of_its_rows_and_of_a_forged_one_nothing() -> None:
    rows = from_columns(
        [1, 2, 3, 4],
        ["a", "a", "b", "a"],
        [None] * 4,
        [b"k", None, b"kk", None],
        [b"value", b"", None, b"v"],
        [[], [("name", b"x"), ("n", None)], [], [("n", b"yy")]],
    )
    assert amounts_of(rows) == {"a": (3, 16), "b": (1, 2)}
    assert amounts_of(rows.slice(1, 1)) == {"a": (1, 6)}
    assert amounts_of(rows.slice(1, 3)) == {"a": (2, 10), "b": (1, 2)}
    one_topic = rows.take([0, 1, 3])
    assert amounts_of(one_topic) == {"a": (3, 16)} == amounts_of(one_topic.slice(0, 3))
    far = pa.py_buffer(np.array([0, 1 << 30, 5], np.int32))
    value = pa.Array.from_buffers(pa.binary(), 2, [None, far, pa.py_buffer(b"value")])
    two = from_columns([1, 2], ["a", "b"], [None] * 2, [None] * 2, [b"", b""], [[], []])
    assert amounts_of(two.set_column(4, "value", value)) == {}
    assert amounts_of(two.drop_columns(["headers"])) == {}


class ServedAgain(ServedIntake):
    def __init__(self, wheel: FakeWheel, events: ToldEvents, callers: Callers) -> None:
        super().__init__(wheel, "127.0.0.1:0", events=events, commit=wheel.commit, callers=callers)

    def __enter__(self) -> ServedAgain:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# When they are lost


def test_who_lost_his_token_is_out_and_others_go_on(
    server: ServedIntake, authenticator: Authenticator, wheel: FakeWheel
) -> None:
    with (
        Exchange(server, hello("scheduler", 1)) as gone,
        Exchange(server, hello("gateway", 2)) as on,
    ):
        gone.send(to("orders"), 0)
        gone.stored()
        authenticator.change(parsed(FILE.replace(digest_of("swt_scheduler"), "0" * 64)))
        server.renew_callers()
        with pytest.raises(Unauthenticated):
            gone.answer()
        on.send(to("orders"), 0)
        on.stored()
    with pytest.raises(Unauthenticated):
        Exchange(server, hello("scheduler", 3))


def test_a_lost_caller_may_not_even_ask_what_everybody_may(authenticator: Authenticator) -> None:
    callers = Callers(authenticator)
    proof = IdentityProof.of((), "swt_operator")
    caller = ConnectedCaller(callers, authenticator.authenticate(proof), proof, "127.0.0.1")
    caller.check(Operation.POLICIES)
    authenticator.change(parsed(FILE.replace(digest_of("swt_operator"), "0" * 64)))
    assert isinstance(caller.renew(), Unauthenticated)
    for operation in Operation:
        with pytest.raises(Unauthenticated):
            caller.check(operation)
    with pytest.raises(Unauthenticated):
        caller.check_rows(to("orders"))


def test_rights_are_exchanged_on_a_connection_that_lives(
    server: ServedIntake, authenticator: Authenticator
) -> None:
    with Exchange(server, hello("scheduler")) as exchange:
        exchange.send(to("orders"), 0)
        exchange.stored()
        authenticator.change(parsed(FILE.replace("['orders', 'pay-*']", "['pay-*', 'new']")))
        server.renew_callers()
        for number, topic in enumerate(("orders", "new"), 1):
            exchange.send(to(topic), number)
        refused, stored = exchange.answer(), exchange.answer()
        assert isinstance(refused, RefusedBatch)
        assert isinstance(refused.error, Forbidden)
        assert isinstance(stored, StoredBatch)


def test_what_waits_for_room_is_not_stored_after_the_right_was_lost(
    server: ServedIntake, authenticator: Authenticator, wheel: FakeWheel
) -> None:
    refusing = [True]

    def full(_rows: pa.RecordBatch) -> None:
        if refusing[0]:
            raise Overloaded("full")

    wheel.before_append = full
    with Exchange(server, hello("scheduler")) as exchange:
        exchange.send(to("orders"), 0)
        eventually(lambda: bool(server._blocked))
        authenticator.change(parsed(FILE.replace("schedule = ['orders', 'pay-*']", "")))
        server.renew_callers()
        refusing[0] = False
        refused = exchange.answer()
        assert isinstance(refused, RefusedBatch)
        assert isinstance(refused.error, Forbidden)
    assert not wheel.values()


def test_the_log_has_logins_reads_and_administration(
    server: ServedIntake, access_log: Path
) -> None:
    with Exchange(server, hello("observer")) as exchange:
        exchange.ask("status", encode_json({}))
    with Exchange(server, hello("operator")) as exchange:
        exchange.ask("acknowledge", encode_json({}))
        exchange.ask("status", encode_json({}))
    assert [one["principal"] for one in lines(access_log, "login")] == [
        "token:observer",
        "token:operator",
    ]
    assert [one["operation"] for one in lines(access_log, "read")] == ["status"]
    assert [one["operation"] for one in lines(access_log, "admin")] == ["acknowledge"]
    [denied] = lines(access_log, "denied")
    assert (denied["principal"], denied["operation"]) == ("token:operator", "status")
    assert denied["host"] == "127.0.0.1"


@pytest.mark.parametrize("amount", AMOUNTS)
def test_fuzzed_hellos_let_nobody_in(
    server: ServedIntake, authenticator: Authenticator, amount: int
) -> None:
    """Of a good hello, bytes changed, cut and added. A tenth of them goes over connections."""
    rng = random.Random(amount)
    good = hello("scheduler").encode()
    bodies = [mutated(good, rng) or b"{" for _ in range(amount)]

    def over_the_wire(body: bytes) -> bool:
        with RawClient(server, encode_hello(body)) as client:
            frame = client.frame()
            assert frame.kind in (Kind.WELCOME, Kind.ERROR)
            return frame.kind == Kind.WELCOME

    def alone(body: bytes) -> bool:
        try:
            authenticator.authenticate(IdentityProof.of((), AppendCommand.decode(body).token))
        except SlotwheelError:
            return False
        return True

    let_in = [alone(body) for body in bodies]
    for body, was in zip(bodies, let_in, strict=True):
        assert not was or json.loads(body)["token"] == "swt_scheduler"
    assert 0 < sum(let_in) < len(bodies) / 2
    with ThreadPoolExecutor(4) as pool:
        few = amount // 10
        assert [*pool.map(over_the_wire, bodies[:few])] == let_in[:few]
    with Exchange(server, hello("scheduler")) as exchange:
        exchange.send(to("orders"), 0)
        exchange.stored()


@given(
    st.lists(st.sampled_from(["a", "aa", "b", "ab", "", "ä", "x" * 20]), min_size=1, max_size=200),
    st.integers(0, 5),
)
def test_the_topics_of_a_batch_are_those_that_arrow_reads(topics: list[str], start: int) -> None:
    """Also of a part of a batch, and where other topics have the same bytes together."""
    whole = to(*topics)
    part = whole.slice(min(start, len(topics) - 1))
    expected = part.column("topic").to_pylist()
    read = TopicColumn.of(part)
    assert read is not None
    assert [text.decode() for text in read.distinct()] == list(dict.fromkeys(expected))
    for text in dict.fromkeys(expected):
        assert read.index(text.encode()) == expected.index(text)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize(("at", "forged"), [(0, -1), (-1, 1 << 30), (2, 5), (2, -6)])
def test_forged_offsets_read_nothing_outside(rows: int, at: int, forged: int) -> None:
    good = pa.RecordBatch.from_arrays([pa.array(["orders"] * rows)], names=["topic"])
    offsets = np.arange(0, 6 * rows + 1, 6, dtype=np.int32)
    changed = offsets.copy()
    changed[at] = forged
    data = good.serialize().to_pybytes()
    assert data.count(offsets.tobytes()) == 1
    forgery = pa.py_buffer(data.replace(offsets.tobytes(), changed.tobytes()))
    assert TopicColumn.of(pa.ipc.read_record_batch(forgery, good.schema)) is None
    assert TopicColumn.of(good) is not None
