"""Messages with names: what receipts and ids say of the message before, and in which order they are
stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from slotwheel import AsyncClient, Client, InvalidMessage, Message, Overloaded
from slotwheel.client import message
from slotwheel.client.predecessor import NamedId, Predecessor
from slotwheel.wheel.errors import NameTaken
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER
from slotwheel.wheel.schema import HEADERS
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms


def reminder(value: bytes = b"x", name: str = "n", if_exists: str | None = None) -> Message:
    return Message("t", value, delay=60, name=name, if_exists=if_exists)


def test_a_name_and_its_rule_are_headers_of_the_message(client: Client, wheel: FakeWheel) -> None:
    client.send(Message("t", b"x", delay=60, headers={"a": "b"}, name="ünï/ n", if_exists="keep"))
    client.send("t", b"y", delay=60, name="m", ttl=5)
    client.flush(20)
    first, second = (row["headers"] for row in wheel.rows)
    assert [(header["key"], header["value"]) for header in first] == [
        ("a", b"b"),
        (NAME_HEADER, "ünï/ n".encode()),
        (IF_EXISTS_HEADER, b"keep"),
    ]
    assert [header["key"] for header in second] == ["slotwheel-expires-ms", NAME_HEADER]


def test_good_names_are_checked_without_arrow_which_may_import_pandas(
    client: Client, wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unused(_: object) -> pa.Array:
        raise AssertionError("a good name was made a column")

    monkeypatch.setattr(message, "header_column", unused)
    client.send("t", b"x", delay=60, name="ünï/ n", if_exists="refuse").result()
    client.send("t", b"y", due=now_ms() + 60_000, name="m", expires=now_ms() + 90_000).result()
    assert len(wheel.rows) == 2


def test_the_receipt_says_what_became_of_the_message_before(
    client: Client, wheel: FakeWheel
) -> None:
    first = client.send(reminder(b"1"))
    assert first.before is None
    second = client.send(reminder(b"2"))
    assert second.before == Predecessor("replaced", first.id)
    assert second.id != first.id
    third = client.send(reminder(b"3", if_exists="keep"))
    assert third.before is not None
    assert (third.before.what, third.before.id) == ("kept", second.id)
    assert third.id == second.id == third.ids[0] == third.result()
    assert third.before.dropped_id not in (None, first.id, second.id)
    refused = client.send(reminder(b"4", if_exists="refuse"))
    assert isinstance(refused.error(20), NameTaken)
    with pytest.raises(NameTaken, match="'n'"):
        _ = refused.before
    assert wheel.values() == [b"1", b"2", b"3"]
    assert client.cancel(third) == ["cancelled"]  # the one that is there


def test_a_message_that_has_left_does_not_stop_the_next_one(client: Client) -> None:
    gone = client.send(Message("t", b"1", due=now_ms() - 1000, name="n"))
    gone.result(20)
    after = client.send(reminder(if_exists="refuse"))
    assert after.before == Predecessor("already delivered", gone.id)
    assert after.id != gone.id


@pytest.mark.parametrize("way", ["records", "arrow"])
def test_of_a_batch_each_row_has_its_own_predecessor(
    client: Client, wheel: FakeWheel, way: str
) -> None:
    padding = b"x" * (0 if way == "records" else 4000)
    messages = [
        reminder(b"0" + padding),
        Message("t", b"1" + padding, delay=60),
        reminder(b"2" + padding),
        reminder(b"3" + padding, "m"),
        reminder(b"4" + padding, if_exists="keep"),
        *(Message("t", padding, delay=60) for _ in range(20)),
    ]
    receipts = client.send_many(messages)
    ids = receipts.result(20)
    assert [receipt.id for receipt in receipts] == ids == receipts.outcomes()
    assert ids[4] == ids[2]
    assert [receipt.before for receipt in receipts][:4] == [
        None,
        None,
        Predecessor("replaced", ids[0]),
        None,
    ]
    befores = receipts.befores()
    assert [*befores] == [2, 4]
    assert (befores[4].what, befores[4].id) == ("kept", ids[2])
    assert len(set(ids)) == len(ids) - 1
    assert wheel.cancelled == {0, 4}


def test_a_table_names_its_rows_by_the_header(client: Client) -> None:
    headers: list[list[tuple[str, bytes]]] = [[(NAME_HEADER, b"n")], [], [(NAME_HEADER, b"n")]]
    table = pa.table(
        {
            "due": pa.array([now_ms() + 60_000] * 3, pa.timestamp("ms", "UTC")),
            "topic": ["t"] * 3,
            "value": pa.array([b"1", b"2", b"3"], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )
    receipts = client.send_table(table)
    ids = receipts.result(20)
    assert receipts.befores() == {2: Predecessor("replaced", ids[0])}


def test_a_row_that_is_refused_keeps_none_of_the_others(client: Client, wheel: FakeWheel) -> None:
    messages = [reminder(b"1"), reminder(b"2", if_exists="refuse"), reminder(b"3")]
    receipts = client.send_many(messages)
    assert isinstance(receipts.errors(20)[1], NameTaken)
    assert [*receipts.errors()] == [1]
    assert receipts[2].before == Predecessor("replaced", receipts[0].id)
    assert wheel.values() == [b"1", b"3"]


def taken_at(*rows: int) -> Callable[[pa.RecordBatch], None]:
    """Refuses the first batch: the names of some rows are taken."""
    batches: list[int] = []

    def refuse(batch: pa.RecordBatch) -> None:
        batches.append(batch.num_rows)
        if len(batches) == 1:
            first, *others = rows
            error = NameTaken("taken", got=f"id {first}", row=first)
            raise error.naming([(row, f"id {row}") for row in others])

    return refuse


def test_many_rows_that_are_refused_are_left_out_at_once(client: Client, wheel: FakeWheel) -> None:
    wheel.before_append = taken_at(1, 2, 4)
    receipts = client.send_many([reminder(b"%d" % at, f"n{at}") for at in range(6)])
    errors = receipts.errors(20)
    assert {row: (error.got, error.row) for row, error in errors.items()} == {
        row: (f"id {row}", None) for row in (1, 2, 4)
    }
    assert wheel.values() == [b"0", b"3", b"5"]


def test_many_tasks_are_refused_at_once(address: str, wheel: FakeWheel) -> None:
    async def course() -> None:
        async with AsyncClient(address, timeout_s=20) as client:
            await client.send(reminder(b"first", "first"))  # the others go together then
            wheel.before_append = taken_at(1, 2)
            sent = (client.send(reminder(b"%d" % at, f"n{at}")) for at in range(3))
            stored, *refused = await asyncio.gather(*sent, return_exceptions=True)
            assert isinstance(stored, NamedId)
            assert [error.got for error in refused if isinstance(error, NameTaken)] == [
                "id 1",
                "id 2",
            ]

    asyncio.run(course())
    assert wheel.values() == [b"first", b"0"]


def test_whoever_waits_gets_an_id_that_says_the_same(client: Client) -> None:
    first = client.store(reminder(b"1"))
    assert isinstance(first, NamedId)
    assert first.before is None
    second = client.store("t", b"2", delay=60, name="n")
    assert isinstance(second, NamedId)
    assert second.before == Predecessor("replaced", first)
    third = client.store("t", b"3", delay=60, name="n", if_exists="keep")
    assert isinstance(third, NamedId)
    assert third.before is not None
    assert third == second == third.before.id
    with pytest.raises(NameTaken):
        client.store("t", b"4", delay=60, name="n", if_exists="refuse")
    assert not isinstance(client.store("t", b"5", delay=60), NamedId)


def test_the_client_for_asyncio_does_the_same(address: str) -> None:
    async def course() -> None:
        async with AsyncClient(address, timeout_s=20) as client:
            first, second = await asyncio.gather(
                client.send(reminder(b"1")), client.send(reminder(b"2"))
            )
            assert isinstance(second, NamedId)
            assert second.before == Predecessor("replaced", first)
            with pytest.raises(NameTaken):
                await client.send(reminder(b"3", if_exists="refuse"))
            assert await client.get(topic="t", name="n") == second
            answer, moved = await client.reschedule(topic="t", name="n", delay=120)
            assert (answer, await client.get(topic="t", name="n")) == ("cancelled", moved)
            assert await client.cancel(topic="t", name="n") == ("cancelled", moved)
            assert await client.cancel([first]) == ["cancelled"]

    asyncio.run(course())


def test_a_message_is_found_moved_and_cancelled_by_its_name(client: Client) -> None:
    assert client.get(topic="t", name="n") is None
    assert client.cancel(topic="t", name="n") == ("unknown", None)
    assert client.reschedule(topic="t", name="n", delay=5) == ("unknown", None)
    message_id = client.send(reminder()).id
    assert client.get(topic="t", name="n") == message_id
    assert client.get(topic="u", name="n") is None
    assert client.get(topic="t", name="n", topics=["u*"]) is None
    assert client.cancel(topic="t", name="n", topics=["u*"]) == ("unknown", None)
    answer, moved = client.reschedule(topic="t", name="n", delay=120)
    assert answer == "cancelled"
    assert client.get(topic="t", name="n") == moved != message_id
    assert client.cancel(topic="t", name="n") == ("cancelled", moved)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({}, "id None, topic None, name None"),
        ({"topic": "t"}, "topic 't', name None"),
        ({"name": "n"}, "topic None, name 'n'"),
        ({"ids": "a.1.2.3", "topic": "t", "name": "n"}, "id 'a.1.2.3'"),
        ({"topic": "t", "name": "x" * 201}, "201 bytes"),
        ({"topic": "t", "name": ""}, "got nothing"),
        ({"topic": "no/topic", "name": "n"}, "'no/topic'"),
    ],
)
def test_a_request_by_a_name_that_cannot_be_meant_is_refused(
    client: Client, given: dict[str, Any], got: str
) -> None:
    with pytest.raises(InvalidMessage, match=got) as raised:
        client.cancel(**given)
    assert raised.value.remedy


def refusing(wheel: FakeWheel) -> list[bytes]:
    """Let a wheel refuse messages with the value 0 for now, ten times. Returns their values, and
    those that it has stored."""
    seen: list[bytes] = []

    def refuse(rows: pa.RecordBatch) -> None:
        values = rows.column("value").to_pylist()
        if values[0] == b"0" and seen.count(b"refused") < 10:
            seen.append(b"refused")
            raise Overloaded("its message is just leaving")
        seen.extend(values)

    wheel.before_append = refuse
    return seen


def test_messages_with_names_keep_their_order_when_one_is_refused_for_now(
    client: Client, wheel: FakeWheel
) -> None:
    """If the later one were taken while the message before is leaving, the earlier one would
    replace it then."""
    seen = refusing(wheel)
    earlier = client.send_many([reminder(b"0") for _ in range(100)])
    eventually(lambda: seen)  # it is on its way, so that the later ones are another batch
    later = client.send_many([reminder(b"1") for _ in range(100)])
    earlier.result(20)
    assert client.get(topic="t", name="n") == later.result(20)[-1]
    assert seen == [b"refused"] * 10 + [b"0"] * 100 + [b"1"] * 100


def test_tasks_keep_the_order_of_messages_with_names(address: str, wheel: FakeWheel) -> None:
    seen = refusing(wheel)

    async def course() -> None:
        async with AsyncClient(address, timeout_s=20) as client:
            earlier = client.send(reminder(b"0"))
            while not seen:
                await asyncio.sleep(0.001)
            later = client.send(reminder(b"1"))
            assert (await later) == await client.get(topic="t", name="n") != await earlier

    asyncio.run(course())
    assert seen == [b"refused"] * 10 + [b"0", b"1"]


def leaving(wheel: FakeWheel, name: bytes) -> threading.Event:
    """Let the message that has a name be with a sink that does not answer, until the event."""
    left = threading.Event()

    def refuse(rows: pa.RecordBatch) -> None:
        for row, headers in enumerate(rows.column("headers").to_pylist()):
            if name in [header["value"] for header in headers] and not left.is_set():
                raise Overloaded("its message is just leaving", row=row)

    wheel.before_append = refuse
    return left


def test_a_name_whose_message_is_leaving_stops_nobody_else(
    client: Client, wheel: FakeWheel
) -> None:
    """Its sequence must not stand behind all others until the sink answers."""
    left = leaving(wheel, b"n")
    held = client.send(reminder(b"held"))
    others = [client.send("t", b"%d" % number, delay=60) for number in range(20)]
    assert [receipt.error(20) for receipt in others] == [None] * 20
    assert client.send(reminder(b"other", "m")).error(20) is None
    later = client.send(reminder(b"later"))
    for number in range(20, 40):
        client.send("t", b"%d" % number, delay=60)
    assert not held.done()
    left.set()
    assert later.before == Predecessor("replaced", held.id)
    client.flush(20)
    texts = [b"held", b"later", b"other", *(b"%d" % number for number in range(40))]
    assert sorted(wheel.values()) == sorted(texts)


def test_a_batch_whose_name_does_not_get_free_in_time_says_so(
    address: str, wheel: FakeWheel
) -> None:
    leaving(wheel, b"n")
    with Client(address, timeout_s=1) as client:

        def is_certain() -> bool:  # or the time was over while the last try was on its way
            error = client.send_many([reminder(), Message("t", b"x", delay=60)])[0].error(20)
            assert isinstance(error, Overloaded)
            assert str(error).startswith("its message is just leaving")
            return not error.uncertain

        eventually(is_certain)
    assert wheel.rows == []


def test_tasks_send_what_was_joined_with_a_name_that_is_held(
    address: str, wheel: FakeWheel
) -> None:
    left = leaving(wheel, b"n")

    async def course() -> None:
        async with AsyncClient(address, timeout_s=20) as client:
            held = client.send(reminder(b"held"))
            others = [client.send("t", b"%d" % number, delay=60) for number in range(50)]
            named = [client.send(reminder(b"x", f"m{number}")) for number in range(50)]
            later = client.send(reminder(b"later"))
            await asyncio.gather(*others, *named)
            assert not held.done()
            assert not later.done()
            left.set()
            first, second = await held, await later
            assert isinstance(second, NamedId)
            assert second.before == Predecessor("replaced", first)

    asyncio.run(course())
    assert len(wheel.values()) == len(set(wheel.values())) + 49 == 102


def test_tasks_give_up_a_name_that_does_not_get_free(address: str, wheel: FakeWheel) -> None:
    leaving(wheel, b"n")

    async def course() -> None:
        async with AsyncClient(address, timeout_s=1) as client:
            results = await asyncio.gather(
                client.send(reminder()), client.send(reminder()), return_exceptions=True
            )
            for error in results:
                assert isinstance(error, Overloaded)
                assert str(error).startswith("its message is just leaving")

    asyncio.run(course())
    assert wheel.rows == []
