"""A wrapped producer or consumer is what it wraps: each public method, each way to call it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock, call

import confluent_kafka
import kafka
import pytest

from slotwheel.trace import EventKind, traced_consumer, traced_producer


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say what it is")


class Noted:
    """A recorder that keeps what it is told, and may fail."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.fails = False

    def note_records(self, kind: EventKind, group: Any, records: Any, error: Any) -> None:
        if self.fails:
            raise Mute
        for record in records:
            self.events.append((kind.value, record.topic, record.key, record.headers, error))


def plain_of(name: str) -> Any:
    if name == "confluent-producer":
        return confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "logger": _Quiet()})
    if name == "confluent-consumer":
        config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "logger": _Quiet()}
        return confluent_kafka.Consumer(config)
    return PythonProducer() if name == "python-producer" else PythonConsumer()


class PythonProducer(kafka.KafkaProducer):  # type: ignore[misc]
    """Without a network; it keeps how it was called."""

    def __init__(self) -> None:
        self.sent = MagicMock()
        self.exits: list[Any] = []

    def send(
        self,
        topic: Any,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: Any = None,
        timestamp_ms: Any = None,
    ) -> Any:
        return self.sent(topic, value, key, headers, partition, timestamp_ms)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.exits.append(error)

    def __del__(self) -> None: ...


class PythonConsumer(kafka.KafkaConsumer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.polled: Any = {}

    def poll(self, timeout_ms: Any = 0, max_records: Any = None, update_offsets: Any = True) -> Any:
        return self.polled


class _Quiet:
    def log(self, *_: Any, **__: Any) -> None: ...


NAMES = ["python-producer", "python-consumer", "confluent-producer", "confluent-consumer"]


@pytest.fixture
def noted() -> Noted:
    return Noted()


def wrapped(name: str, noted: Any) -> tuple[Any, Any]:
    plain = plain_of(name)
    if name.endswith("producer"):
        return plain, traced_producer(plain, noted)
    return plain, traced_consumer(plain, noted, "billing")


def signature(method: Any) -> Any:
    try:
        return inspect.signature(method)
    except ValueError:
        return "of an extension in C"


@pytest.mark.parametrize("name", NAMES)
def test_each_public_method_has_the_librarys_own_signature(name: str, noted: Noted) -> None:
    plain, traced = wrapped(name, noted)
    public = [one for one in dir(type(plain)) if not one.startswith("_")]
    if name.startswith("python"):
        kind = kafka.KafkaProducer if name == "python-producer" else kafka.KafkaConsumer
        public = [one for one in dir(kind) if not one.startswith("_")]
    assert len(public) > 8
    for one in public:
        theirs, ours = getattr(plain, one), getattr(traced, one)
        assert callable(theirs) == callable(ours), one
        if callable(theirs):
            assert signature(theirs) == signature(ours), one
            assert theirs.__doc__ == ours.__doc__, one
    assert set(public) <= set(dir(traced))
    assert isinstance(traced, type(plain))
    special = {one for one in dir(type(plain)) if one.startswith("__")}
    assert not {one for one in special & {"__len__", "__bool__"} if not hasattr(type(traced), one)}
    if "__len__" in special and name.startswith("confluent"):
        assert (len(traced), bool(traced)) == (len(plain), bool(plain))


@pytest.mark.parametrize("name", ["python-producer", "confluent-producer", "confluent-consumer"])
def test_with_gives_the_wrapper_and_closes_what_is_wrapped(name: str, noted: Noted) -> None:
    plain, traced = wrapped(name, noted)
    with traced as entered:
        assert entered is traced
    if name == "python-producer":
        assert plain.exits == [(None, None, None)]


def test_attributes_are_those_of_what_is_wrapped(noted: Noted) -> None:
    plain, traced = wrapped("python-producer", noted)
    traced.config = {"acks": 1}
    assert plain.config == {"acks": 1}
    del traced.config
    with pytest.raises(AttributeError):
        _ = traced.nothing_of_that_name


def error_of(method: Any, *arguments: Any, **named: Any) -> str:
    try:
        method(*arguments, **named)
    except TypeError as error:
        return str(error)
    return ""


def headers() -> Iterator[tuple[str, bytes]]:
    yield "h", b"1"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *((("t",), {}), (("t", b"v"), {}), (("t", b"v", b"k", [("h", b"1")], 0, 17), {})),
        *(((), {"topic": "t", "value": b"v", "key": b"k"}), (("t",), {"timestamp_ms": 5})),
        *((("t", {"an": "object"}, 5), {}), (("t", None, "text", None, None), {})),
        *(((), {}), (("t",), {"topic": "t"}), (("t",), {"no_such": 1})),
    ],
)
def test_kafka_python_gets_the_arguments_as_they_came(
    noted: Noted, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    plain, traced = wrapped("python-producer", noted)
    refused = error_of(plain.send, *arguments, **named)
    plain.sent.reset_mock()
    if refused:
        assert error_of(traced.send, *arguments, **named) == refused
        return
    bound = inspect.signature(plain.send).bind(*arguments, **named)
    bound.apply_defaults()
    assert traced.send(*arguments, **named) is plain.sent.return_value
    assert plain.sent.mock_calls[0] == call(*bound.args)
    given = headers()
    traced.send("t", headers=given)
    assert next(given) == ("h", b"1"), "an iterator is the library's"


def test_confluent_takes_each_way_to_call_it(noted: Noted) -> None:
    plain, traced = wrapped("confluent-producer", noted)
    told: list[Any] = []

    def report(error: Any, _sent: Any) -> None:
        told.append(error.name())

    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *((("t",), {}), (("t", b"v", b"k"), {}), (("t", b"v", b"k", -1), {})),
        *((("t", b"v", b"k", -1, report), {}), (("t", b"v", b"k", -1, None, report), {})),
        (("t", b"v", b"k", -1, None, None, 1), {}),
        (("t", b"v", b"k", -1, report, None, 1, [("h", b"1")]), {}),
        *((("t", "v"), {"callback": report}), (("t",), {"on_delivery": report, "key": "k"})),
        ((), {"topic": "t", "headers": {"h": b"1"}, "callback": None, "on_delivery": report}),
    ]
    for arguments, named in ways:
        assert traced.produce(*arguments, **named) is None
    for arguments, named in ((), {}), (("t",), {"no_such": 1}), (("t", b"", b"", "x"), {}):
        refused = error_of(plain.produce, *arguments, **named)
        assert refused
        assert error_of(traced.produce, *arguments, **named) == refused
    failed = len(noted.events)
    assert len(traced) >= len(ways)  # and what the library logs
    traced.purge()
    traced.flush(60)
    assert told == ["_PURGE_QUEUE"] * 6
    events = noted.events[failed:]
    assert len(events) == len(ways)
    assert {event[:2] for event in events} == {("produced", "t")}
    assert [event[2] for event in events].count(b"k") == 7
    assert [event[3] for event in events if event[3]] == [[("h", b"1")]] * 2


def test_an_error_that_cannot_say_what_it_is_is_the_programs_alone(noted: Noted) -> None:
    plain, traced = wrapped("python-producer", noted)
    plain.sent.side_effect = Mute
    with pytest.raises(Mute):
        traced.send("t", b"v")
    assert noted.events[0][-1] == "Mute"
    _, consumer = wrapped("python-consumer", noted)
    record = MagicMock(topic="t", partition=0, offset=1, key=None, headers=[])
    consumer.processed(record, began_s=0.0, error=Mute())
    assert noted.events[1][-1] == "Mute"


def test_what_fails_while_it_is_observed_fails_nothing_else(noted: Noted) -> None:
    noted.fails = True
    plain, traced = wrapped("python-producer", noted)
    future = traced.send("t", b"v")
    [told] = [one.args[0] for one in plain.sent.return_value.add_callback.mock_calls]
    told(MagicMock(partition=0, offset=1))
    plain.sent.return_value.add_callback.side_effect = Mute
    assert traced.send("t", b"v") is future
    plain, consumer = wrapped("python-consumer", noted)
    plain.polled = {"tp": [object()]}
    assert consumer.poll(5) is plain.polled
    consumer.processed(object(), began_s=0.0)
