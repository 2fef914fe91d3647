"""Producers and consumers of kafka-python and confluent-kafka that tell a tracer what they do.

    producer = traced_producer(KafkaProducer(bootstrap_servers="localhost:9092"), tracer)
    consumer = traced_consumer(KafkaConsumer("orders", group_id="billing"), tracer, "billing")

They are used as before: everything that is not about a message is passed on as it is. A library
does not know when a program is done with a record, so the program says it: ``consumer.processed``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..delivery.kafka.header_names import headers_of
from ..wheel.rows import Header
from .events import EventKind
from .making import TracedRecord
from .recorder import Recorder

_UNKNOWN = -1


class _Wrapper:
    """Passes on what it does not know itself."""

    def __init__(self, wrapped: Any, tracer: Recorder) -> None:
        self._wrapped, self._tracer = wrapped, tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class _TracedProducer(_Wrapper):
    def _produced(
        self,
        record: TracedRecord,
        partition: int = _UNKNOWN,
        offset: int = _UNKNOWN,
        error: object = None,
    ) -> None:
        placed = record._replace(
            partition=None if partition < 0 else partition, offset=None if offset < 0 else offset
        )
        text = None if error is None else str(error)
        self._tracer.note_records(EventKind.PRODUCED, None, [placed], text)


class TracedKafkaPythonProducer(_TracedProducer):
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[Header] | None = None,
        **more: Any,
    ) -> Any:
        """As ``KafkaProducer.send``."""
        record = _record(topic, key, headers or ())
        try:
            future = self._wrapped.send(topic, value, key=key, headers=headers, **more)
        except Exception as error:
            self._produced(record, error=error)
            raise
        future.add_callback(lambda sent: self._produced(record, sent.partition, sent.offset))
        future.add_errback(lambda error: self._produced(record, error=error))
        return future


class TracedConfluentProducer(_TracedProducer):
    def produce(self, topic: str, value: Any = None, key: Any = None, **more: Any) -> None:
        """As ``Producer.produce``."""
        headers = more.get("headers") or ()
        pairs = list(headers.items()) if isinstance(headers, dict) else headers
        record = _record(topic, key, pairs)
        theirs: Callable[[Any, Any], None] | None
        theirs = more.pop("on_delivery", None) or more.pop("callback", None)

        def told(error: Any, sent: Any) -> None:
            place = _UNKNOWN, _UNKNOWN
            if error is None and sent.offset() is not None:
                place = sent.partition(), sent.offset()
            self._produced(record, *place, error=error)
            if theirs is not None:
                theirs(error, sent)

        try:
            self._wrapped.produce(topic, value, key, on_delivery=told, **more)
        except Exception as error:
            self._produced(record, error=error)
            raise


class _TracedConsumer(_Wrapper):
    def __init__(self, wrapped: Any, tracer: Recorder, group: str) -> None:
        super().__init__(wrapped, tracer)
        self._group = group

    def processed(self, record: Any, *, began_s: float, error: object = None) -> None:
        """The program is done with a record; ``began_s``: since when it had it, by
        ``time.monotonic``; ``error``: why it failed."""
        text = None if error is None else str(error)
        seen = self._seen(record, began_s)
        self._tracer.note_records(EventKind.PROCESSED, self._group, [seen], text)

    def _received(self, records: Iterable[Any]) -> None:
        now_s = time.monotonic()
        seen = [self._seen(one, now_s) for one in records]
        self._tracer.note_records(EventKind.RECEIVED, self._group, seen)

    def _seen(self, record: Any, began_s: float) -> TracedRecord:
        raise NotImplementedError


class TracedKafkaPythonConsumer(_TracedConsumer):
    def poll(self, *arguments: Any, **named: Any) -> Any:
        """As ``KafkaConsumer.poll``."""
        found = self._wrapped.poll(*arguments, **named)
        self._received(record for records in found.values() for record in records)
        return found

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        record = next(self._wrapped)
        self._received([record])
        return record

    def _seen(self, record: Any, began_s: float) -> TracedRecord:
        place = record.topic, record.partition, record.offset
        return TracedRecord(*place, record.key, record.headers, began_s)


class TracedConfluentConsumer(_TracedConsumer):
    def poll(self, *arguments: Any, **named: Any) -> Any:
        """As ``Consumer.poll``."""
        message = self._wrapped.poll(*arguments, **named)
        if message is not None and message.error() is None:
            self._received([message])
        return message

    def consume(self, *arguments: Any, **named: Any) -> Any:
        """As ``Consumer.consume``."""
        found = self._wrapped.consume(*arguments, **named)
        self._received(message for message in found if message.error() is None)
        return found

    def _seen(self, record: Any, began_s: float) -> TracedRecord:
        place = record.topic(), record.partition(), record.offset()
        return TracedRecord(*place, record.key(), headers_of(record), began_s)


def traced_producer(producer: Any, tracer: Recorder) -> Any:
    """A ``KafkaProducer`` of kafka-python, or a ``Producer`` of confluent-kafka, that is traced."""
    made = TracedKafkaPythonProducer if hasattr(producer, "send") else TracedConfluentProducer
    return made(producer, tracer)


def traced_consumer(consumer: Any, tracer: Recorder, group: str) -> Any:
    """A ``KafkaConsumer`` of kafka-python, or a ``Consumer`` of confluent-kafka, that is traced."""
    made = TracedConfluentConsumer if hasattr(consumer, "consume") else TracedKafkaPythonConsumer
    return made(consumer, tracer, group)


def _record(topic: str, key: Any, headers: Iterable[tuple[str, Any]]) -> TracedRecord:
    """What is to be sent now; a key that only a serializer understands is left out."""
    shown = key.encode() if isinstance(key, str) else key
    texts = ((name, one.encode() if isinstance(one, str) else one) for name, one in headers)
    pairs = [(name, one if isinstance(one, bytes) else None) for name, one in texts]
    known = shown if isinstance(shown, bytes) else None
    return TracedRecord(topic, None, None, known, pairs, time.monotonic())
