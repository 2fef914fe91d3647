"""Traces producers and consumers of kafka-python and confluent-kafka.

    producer = traced_producer(KafkaProducer(bootstrap_servers="localhost:9092"), tracer)
    consumer = traced_consumer(KafkaConsumer("orders", group_id="billing"), tracer, "billing")

They are used as before: every other call is passed on. A library does not know when a program is
done with a record, so the program calls ``consumer.processed``.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, Self

from ..broker.header_names import headers_of
from ..wheel.texts import error_text
from .events import EventKind
from .making import TracedRecord
from .recorder import Recorder

P = ParamSpec("P")
_UNKNOWN = -1
_PRODUCE = ("topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers")
"""The arguments of ``Producer.produce`` in their order; an extension in C has no signature."""
_log = logging.getLogger("slotwheel.trace")


class _Wrapper:
    """Stands in for an object of a library: the same methods with the same signatures, ``len``,
    ``with``, attributes, ``isinstance``. ``observed``: methods in the place of the library's.

    Rules: arguments go to the library as they came, and before anything is observed; an error of
    observing is logged, and does not reach the program.
    """

    def __init__(
        self, wrapped: Any, tracer: Recorder, observed: dict[str, Callable[..., Any]]
    ) -> None:
        own = {"_wrapped": wrapped, "_tracer": tracer}
        methods = {
            name: _like(getattr(wrapped, name), method)
            for name, method in observed.items()
            if hasattr(wrapped, name)
        }
        for name, value in {**own, **methods}.items():
            object.__setattr__(self, name, value)

    def __new__(cls, wrapped: Any, *_: Any, **_named: Any) -> Self:
        # Python looks for special methods at the class.
        special = {
            name: _passed_on(name)
            for name in dir(type(wrapped))
            if name.startswith("__") and not (hasattr(object, name) or hasattr(cls, name))
        }
        del_, slots = "__del__", {"__dict__", "__weakref__", "__module__"}
        kept = {name: method for name, method in special.items() if name not in {del_, *slots}}
        return object.__new__(type(cls.__name__, (cls,), kept))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_wrapped"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._wrapped, name)

    def __dir__(self) -> list[str]:
        return [*dir(self._wrapped)]


def _like(library_method: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """``method`` with name, signature and docstring of the library's."""

    @functools.wraps(library_method)
    def called(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named)

    return called


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        wrapped = self._wrapped
        answer = getattr(wrapped, name)(*arguments, **named)
        return self if answer is wrapped else answer

    return method


def _observing(observe: Callable[P, object]) -> Callable[P, None]:
    @functools.wraps(observe)
    def safely(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            observe(*arguments, **named)
        except Exception as error:
            _log.warning("slotwheel trace: not observed: %s", error_text(error))

    return safely


class _TracedProducer(_Wrapper):
    @_observing
    def _produced(
        self,
        record: TracedRecord | None,
        partition: int | None = _UNKNOWN,
        offset: int | None = _UNKNOWN,
        error: object = None,
    ) -> None:
        if record is None:  # the call's arguments could not be read
            return
        place = [None if at is None or at < 0 else at for at in (partition, offset)]
        placed = record._replace(partition=place[0], offset=place[1])
        text = None if error is None else error_text(error)
        self._tracer.note_records(EventKind.PRODUCED, None, [placed], text)


class TracedKafkaPythonProducer(_TracedProducer):
    """``send`` is as ``KafkaProducer.send``."""

    def __init__(self, wrapped: Any, tracer: Recorder) -> None:
        super().__init__(wrapped, tracer, {"send": self._send})
        object.__setattr__(self, "_signature", inspect.signature(wrapped.send))

    def _send(self, *arguments: Any, **named: Any) -> Any:
        record = _record(self._named, arguments, named)
        try:
            future = self._wrapped.send(*arguments, **named)
        except Exception as error:
            self._produced(record, error=error)
            raise
        self._await(future, record)
        return future

    def _named(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        bound: dict[str, Any] = self._signature.bind(*arguments, **named).arguments
        return bound

    @_observing
    def _await(self, future: Any, record: TracedRecord | None) -> None:
        future.add_callback(lambda sent: self._produced(record, sent.partition, sent.offset))
        future.add_errback(lambda error: self._produced(record, error=error))


class TracedConfluentProducer(_TracedProducer):
    """``produce`` is as ``Producer.produce``. Records of ``produce_batch`` have no events: the
    library does not say where they are."""

    def __init__(self, wrapped: Any, tracer: Recorder) -> None:
        super().__init__(wrapped, tracer, {"produce": self._produce})

    def _produce(self, *arguments: Any, **named: Any) -> Any:
        record = _record(_named_produce, arguments, named)
        given = [*arguments]
        at = next((at for at in (5, 4) if len(given) > at and given[at] is not None), None)
        callback: Any = named.get("on_delivery") or named.get("callback")
        if at is not None:
            callback = given[at]

        def told(error: Any, sent: Any) -> None:
            self._delivered(record, error, sent)
            if callback is not None:
                callback(error, sent)

        if record is not None and (callback is None or callable(callback)):
            if len(given) > 4:
                given[4:6] = [told, told][: len(given[4:6])]
            else:
                named = {**named, "on_delivery": told}
                named.pop("callback", None)
        try:
            return self._wrapped.produce(*given, **named)
        except Exception as error:
            self._produced(record, error=error)
            raise

    @_observing
    def _delivered(self, record: TracedRecord | None, error: Any, sent: Any) -> None:
        placed = error is None and sent.offset() is not None
        place = (sent.partition(), sent.offset()) if placed else (_UNKNOWN, _UNKNOWN)
        self._produced(record, place[0], place[1], error=error)


def _named_produce(*arguments: Any, **named: Any) -> dict[str, Any]:
    return {**dict(zip(_PRODUCE, arguments, strict=False)), **named}


class _TracedConsumer(_Wrapper):
    def __init__(
        self, wrapped: Any, tracer: Recorder, group: str, observed: dict[str, Callable[..., Any]]
    ) -> None:
        super().__init__(wrapped, tracer, observed)
        object.__setattr__(self, "_group", group)

    @_observing
    def processed(self, record: Any, *, began_s: float, error: object = None) -> None:
        """Call it when the program is done with a record. ``began_s``: when it got the record, by
        ``time.monotonic``; ``error``: why it failed."""
        text = None if error is None else error_text(error)
        seen = self._seen(record, began_s)
        self._tracer.note_records(EventKind.PROCESSED, self._group, [seen], text)

    @_observing
    def _received(self, records: Iterable[Any]) -> None:
        now_s = time.monotonic()
        seen = [self._seen(record, now_s) for record in records]
        self._tracer.note_records(EventKind.RECEIVED, self._group, seen)

    def _seen(self, record: Any, began_s: float) -> TracedRecord:
        raise NotImplementedError


class TracedKafkaPythonConsumer(_TracedConsumer):
    """``poll`` and iteration are as of ``KafkaConsumer``."""

    def __init__(self, wrapped: Any, tracer: Recorder, group: str) -> None:
        super().__init__(wrapped, tracer, group, {"poll": self._poll})

    def _poll(self, *arguments: Any, **named: Any) -> Any:
        by_partition = self._wrapped.poll(*arguments, **named)
        self._received(record for records in by_partition.values() for record in records)
        return by_partition

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        record = next(self._wrapped)
        self._received([record])
        return record

    def _seen(self, record: Any, began_s: float) -> TracedRecord:
        return TracedRecord(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            headers=record.headers,
            received_s=began_s,
        )


class TracedConfluentConsumer(_TracedConsumer):
    """``poll`` and ``consume`` are as of ``Consumer``."""

    def __init__(self, wrapped: Any, tracer: Recorder, group: str) -> None:
        observed = {"poll": self._poll, "consume": self._consume}
        super().__init__(wrapped, tracer, group, observed)

    def _poll(self, *arguments: Any, **named: Any) -> Any:
        message = self._wrapped.poll(*arguments, **named)
        if message is not None and message.error() is None:
            self._received([message])
        return message

    def _consume(self, *arguments: Any, **named: Any) -> Any:
        messages = self._wrapped.consume(*arguments, **named)
        self._received(message for message in messages if message.error() is None)
        return messages

    def _seen(self, record: Any, began_s: float) -> TracedRecord:
        return TracedRecord(
            topic=record.topic(),
            partition=record.partition(),
            offset=record.offset(),
            key=record.key(),
            headers=headers_of(record),
            received_s=began_s,
        )


def traced_producer(producer: Any, tracer: Recorder) -> Any:
    """A ``KafkaProducer`` of kafka-python, or a ``Producer`` of confluent-kafka, that is traced."""
    made = TracedKafkaPythonProducer if hasattr(producer, "send") else TracedConfluentProducer
    return made(producer, tracer)


def traced_consumer(consumer: Any, tracer: Recorder, group: str) -> Any:
    """A ``KafkaConsumer`` of kafka-python, or a ``Consumer`` of confluent-kafka, that is traced."""
    made = TracedConfluentConsumer if hasattr(consumer, "consume") else TracedKafkaPythonConsumer
    return made(consumer, tracer, group)


def _record(
    named_of: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], named: dict[str, Any]
) -> TracedRecord | None:
    """The record that a call sends; None: its arguments cannot be read. A key that only a
    serializer understands is left out."""
    try:
        given = named_of(*arguments, **named)
        key, headers = given.get("key"), given.get("headers")
        pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
        if not isinstance(pairs, list | tuple):  # an iterator is for the library alone
            pairs = ()
        shown = key.encode() if isinstance(key, str) else key
        texts = (
            (name, value.encode() if isinstance(value, str) else value) for name, value in pairs
        )
        pairs_read = [
            (str(name), value if isinstance(value, bytes) else None) for name, value in texts
        ]
        known = shown if isinstance(shown, bytes) else None
        return TracedRecord(str(given["topic"]), None, None, known, pairs_read, time.monotonic())
    except Exception:
        return None
