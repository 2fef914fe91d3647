"""A fleet is used as one wheel: who gets which message, and what is asked of which wheel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel import InvalidMessage, Message, UnknownId
from slotwheel.client.cancels import UNREACHABLE
from slotwheel.client.receiptfile import RECEIPTS
from slotwheel.fleet.fleet import Fleet
from slotwheel.fleet.routing import Routing
from slotwheel.wheel.errors import NodeUnreachable
from slotwheel.wheel.ids import MessageId
from support.fakefleet import NAMES, fake_wheel
from support.fakewheel import FakeWheel, served
from support.waiting import eventually, now_ms

ROUTING = Routing(NAMES)


def values(wheels: dict[str, FakeWheel], name: str) -> list[bytes]:
    return [row["value"] for row in wheels[name].rows]


def group_of(message_id: str) -> str:
    return MessageId.parse(message_id).group


def test_equal_keys_go_to_one_wheel_by_each_way(fleet: Fleet, wheels: dict[str, FakeWheel]) -> None:
    keys = [f"order-{number}" for number in range(60)]
    table = pa.table(
        {
            "due": pa.array([now_ms() + 60_000] * 60),
            "topic": ["t"] * 60,
            "key": [key.encode() for key in keys],
            "value": [key.encode() for key in keys],
        }
    )
    ids: dict[str, list[str]] = {key: [] for key in keys}
    for key in keys:
        ids[key].append(fleet.send("t", key, key=key, delay=60).id)
        ids[key].append(fleet.store("t", key, key=key.encode(), delay=60))
    for sent in (
        fleet.send_many([Message("t", key, key=key, delay=60) for key in keys]),
        fleet.send_table(table),
    ):
        for key, message_id in zip(keys, sent.result(20), strict=True):
            ids[key].append(message_id)
    for key, found in ids.items():
        assert {group_of(text) for text in found} == {ROUTING.wheel_of(key.encode())}
    for name in NAMES:
        stored = Counter(values(wheels, name))
        assert stored
        assert set(stored.values()) == {4}


def test_a_batch_chooses_as_a_single_message_does(fleet: Fleet) -> None:
    places: list[dict[str, Any]] = [
        {"key": kind(f"k{number}".encode())}
        for number in range(20)
        for kind in (bytes, bytes.decode, bytearray, memoryview)
    ]
    places += [{"key": b"k", "name": f"name {number}"} for number in range(20)]
    messages = [Message("t", b"x", delay=60, **place) for place in places]
    bad: Any = Message("t", b"x", key=5, delay=60)  # type: ignore[arg-type]
    alone = [group_of(fleet.store(message)) for message in messages]
    whole = fleet.send_many(messages).result(20)
    assert [group_of(text) for text in whole] == alone
    beside = fleet.send_many([bad, *messages]).wait(20)
    assert list(beside.errors()) == [0]
    assert [group_of(receipt.id) for receipt in list(beside)[1:]] == alone
    assert not len(fleet.send_many([]))
    assert not len(fleet.send_table(pa.table({"due": [0], "topic": ["t"], "value": ["x"]})[:0]))


def test_receipts_are_in_the_order_of_the_messages(fleet: Fleet) -> None:
    messages = [
        Message("t", b"x", key=f"k{number}", due=now_ms() + 60_000 + number)
        if number % 7
        else Message("t" if number % 2 else "", b"x", key=f"k{number}", due=now_ms() + 60_000)
        for number in range(12_000)
    ]
    receipts = fleet.send_many(iter(messages)).wait(20)
    bad = [number for number in range(12_000) if not number % 14]
    assert list(receipts.errors()) == bad
    assert receipts.due_ms.tolist() == [message.due for message in messages]
    outcomes, offsets = receipts.outcomes(), receipts.offsets()
    for number, receipt in enumerate(receipts):
        if number % 14:
            parsed = MessageId.parse(receipt.id)
            assert parsed.group == ROUTING.wheel_of(f"k{number}".encode())
            assert (parsed.due, parsed.offset) == (messages[number].due, offsets[number])
            assert outcomes[number] == receipt.id == receipts[number].id
        else:
            assert isinstance(outcomes[number], InvalidMessage)
            assert receipts[number].error() is outcomes[number]


def test_messages_without_a_key_go_to_all_wheels_in_turn(
    fleet: Fleet, wheels: dict[str, FakeWheel]
) -> None:
    for _ in range(4):
        for _ in NAMES:
            fleet.store("t", b"x", delay=60)
    assert {name: len(values(wheels, name)) for name in NAMES} == dict.fromkeys(NAMES, 4)
    fleet.send_many([Message("t", b"many", delay=60) for _ in range(100)]).result(20)
    assert sorted(Counter(values(wheels, name))[b"many"] for name in NAMES) == [0, 0, 100]


def test_a_name_decides_before_the_key(fleet: Fleet, wheels: dict[str, FakeWheel]) -> None:
    for number in range(40):
        first = fleet.send("t", b"1", key=f"a{number}", name=f"n{number}", delay=60)
        [second] = fleet.send_many([Message("t", b"2", key="b", name=f"n{number}", delay=60)])
        assert second.before is not None
        assert second.before.id == first.id
        assert group_of(second.id) == ROUTING.wheel_of(f"n{number}".encode())
        assert fleet.get(topic="t", name=f"n{number}") == second.id
    assert all(values(wheels, name) for name in NAMES)


def test_what_is_bad_is_refused_as_by_a_single_wheel(fleet: Fleet) -> None:
    for bad in (
        {"key": 3},
        {"key": "\ud800"},
        {"name": "\ud800"},
        {"name": 3},
        {"name": ""},
        {"topic": None},
    ):
        fields: dict[str, Any] = {"topic": "t", "value": b"x", "delay": 60} | bad
        with pytest.raises(InvalidMessage):
            fleet.send(Message(**fields)).result()
        assert isinstance(fleet.send_many([Message(**fields)])[0].error(), InvalidMessage)
    with pytest.raises(InvalidMessage, match="north, south, west"):
        fleet.wheel("east")
    with pytest.raises(UnknownId):
        fleet.cancel(["no id"])
    with pytest.raises(InvalidMessage):
        fleet.cancel(["a.1.2.00000000"], topic="t", name="n")  # type: ignore[call-overload]


def test_ids_are_cancelled_and_moved_at_their_wheels(fleet: Fleet) -> None:
    ids = [fleet.store("t", b"x", key=str(number), delay=60) for number in range(30)]
    assert {group_of(text) for text in ids} == set(NAMES)
    elsewhere = "east.1.2.00000000"
    assert fleet.cancel([*ids[:10], elsewhere]) == ["cancelled"] * 10 + ["unknown"]
    _, moved = fleet.reschedule(ids[20], delay=90)
    assert moved is not None
    assert group_of(moved) == group_of(ids[20])
    assert fleet.reschedule(elsewhere, delay=90) == ("unknown", None)
    assert fleet.cancel(fleet.send("t", b"x", key="0", delay=60)) == ["cancelled"]


def test_a_name_is_found_at_whichever_wheel_has_it(
    fleet: Fleet, wheels: dict[str, FakeWheel]
) -> None:
    """As after the fleet has grown: the name leads to another wheel than before."""
    for number in range(12):
        name = f"n{number}"
        other = ROUTING.ranked(name.encode())[2]
        message_id = fleet.wheel(other).store("t", b"x", name=name, delay=60)
        assert fleet.get(topic="t", name=name) == message_id
        _, moved = fleet.reschedule(topic="t", name=name, delay=90)
        assert moved is not None
        assert fleet.cancel(topic="t", name=name) == ("cancelled", moved)
        assert fleet.get(topic="t", name="none") is None
        assert fleet.cancel(topic="t", name="none") == ("unknown", None)


AWAY = "south"


@pytest.fixture
def parted(wheels: dict[str, FakeWheel]) -> Iterator[Fleet]:
    """A fleet whose wheel ``AWAY`` has ended."""
    with ExitStack() as serving:
        ended = ExitStack()
        addresses = {
            name: (ended if name == AWAY else serving).enter_context(served(wheel))
            for name, wheel in wheels.items()
        }
        fleet = serving.enter_context(Fleet(addresses, timeout_s=1.5))
        fleet.store("t", b"x", key="first", delay=60)
        ended.close()
        eventually(lambda: fleet.status()["wheels"][AWAY]["state"] == "away")
        yield fleet


def test_a_wheel_that_is_away_is_named_and_passed_by(parted: Fleet) -> None:
    fleet = parted
    eventually(lambda: "south" not in fleet.turns)
    ids = [fleet.store("t", b"unkeyed", delay=60) for _ in range(12)]
    assert Counter(map(group_of, ids)) == {"north": 6, "west": 6}
    status = fleet.status()
    assert status["complete"] is False
    assert status["wheels"]["south"]["status"] is None
    assert status["wheels"]["south"]["problem"]
    assert status["wheels"]["north"]["state"] == "there"
    south_id = "south.1000.0.00000000"
    assert fleet.cancel([ids[0], south_id]) == ["cancelled", UNREACHABLE]
    with pytest.raises(NodeUnreachable):
        fleet.reschedule(south_id, delay=3)


def test_keys_wait_for_their_wheel_and_names_are_not_said_to_be_unknown(parted: Fleet) -> None:
    fleet = parted
    key = next(key for key in map(str, range(100)) if ROUTING.wheel_of(key.encode()) == AWAY)
    with pytest.raises(NodeUnreachable):
        fleet.store("t", b"x", key=key, delay=60)
    with pytest.raises(NodeUnreachable, match="the wheel south"):
        fleet.get(topic="t", name="none")
    other = next(name for name in map(str, range(100)) if ROUTING.wheel_of(name.encode()) != AWAY)
    message_id = fleet.store("t", b"x", name=other, delay=60)
    assert fleet.get(topic="t", name=other) == message_id


def test_a_wheel_of_another_name_gets_nothing(wheels: dict[str, FakeWheel]) -> None:
    wheels["south"] = fake_wheel("someone-else")
    with ExitStack() as serving:
        addresses = {name: serving.enter_context(served(wheel)) for name, wheel in wheels.items()}
        fleet = serving.enter_context(Fleet(addresses, timeout_s=2))
        ids = [fleet.store("t", b"x", key=str(number), delay=60) for number in range(40)]
        assert Counter(map(group_of, ids)).keys() == {"north", "west"}
        entry = fleet.status()["wheels"]["south"]
        assert entry["state"] == "misnamed"
        assert "'someone-else'" in entry["problem"]
        assert "'south'" in entry["problem"]


def test_each_wheel_has_a_file_of_receipts(addresses: dict[str, str], tmp_path: Path) -> None:
    with Fleet(addresses, timeout_s=20, receipts=tmp_path / "sent.arrows") as fleet:
        ids = fleet.send_many(
            [Message("t", b"x", key=str(number), delay=60) for number in range(30)]
        ).result(20)
    files = {name: tmp_path / f"sent.{name}.arrows" for name in NAMES}
    rows = {name: pa.ipc.open_stream(path.read_bytes()).read_all() for name, path in files.items()}
    assert all(table.schema.equals(RECEIPTS) for table in rows.values())
    assert {name: table.num_rows for name, table in rows.items()} == Counter(map(group_of, ids))


def test_a_message_to_a_fleet_of_one_wheel_is_sent_as_by_its_client(
    addresses: dict[str, str],
) -> None:
    with Fleet({"north": addresses["north"]}, timeout_s=20) as fleet:
        ids = fleet.send_many([Message("t", b"x", key=str(at), delay=60) for at in range(9)])
        assert {group_of(text) for text in ids.result(20)} == {"north"}
        fleet.flush(20)
