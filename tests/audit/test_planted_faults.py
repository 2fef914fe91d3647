"""Faults planted at each boundary beside a real node, with embedded topics and with Kafka: each is
found in its bucket, at its boundary, and nothing else is blamed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Consumer, Message, Received
from slotwheel.account.vocabulary import AuditVerdict, Boundary
from slotwheel.audit import AUDIT_TOPIC, Auditor
from slotwheel.audit.comparing import Comparison
from slotwheel.audit.watch.watching import AuditReport, AuditSettings, AuditWatch
from slotwheel.trace import Observers, WheelTarget
from support.broker import Broker
from support.fakewheel import FakeWheel, served
from support.lossynode import LOST, SLOW, SLOW_S, TWICE, LossyNode
from support.ports import free_address
from support.proxy import Proxy
from support.waiting import PATIENCE_S, eventually, now_ms

_MESSAGES = 10
_INTERVAL_S, _GRACE_S = 1.0, 3.0
_LOOK_S = 0.2
_LATE_MS = 4_000
"""Less than what is planted, and more than a busy machine is late by itself."""
_CLIENT, _WHEEL, _CONSUMER = Boundary
_PLANTED = {
    "client-lost": (_CLIENT, AuditVerdict.LOST),
    "client-twice": (_CLIENT, AuditVerdict.REPEATED),
    "client-slow": (_CLIENT, AuditVerdict.LATE),
    "wheel-lost": (_WHEEL, AuditVerdict.LOST),
    "wheel-twice": (_WHEEL, AuditVerdict.REPEATED),
    "wheel-slow": (_WHEEL, AuditVerdict.LATE),
    "consumer-lost": (_CONSUMER, AuditVerdict.LOST),
    "consumer-twice": (_CONSUMER, AuditVerdict.REPEATED),
    "consumer-slow": (_CONSUMER, AuditVerdict.LATE),
    "fine": None,
}


class _Forgetful(Observers):
    """The application never got one message, and answered twice for another."""

    def processed(self, group: str, messages: Sequence[Received], error: str | None) -> None:
        for one in messages:
            if one.value != b"forget":
                super().processed(group, [one], error)
            if one.value == b"again":
                super().processed(group, [one], error)


@dataclass
class _Side:
    """One way in which topics are there."""

    node: LossyNode
    consumer: Mapping[str, Any]
    settings: Mapping[str, Any]
    late_ms: int = _LATE_MS

    @contextmanager
    def watching(self) -> Iterator[AuditWatch]:
        settings = AuditSettings(
            self.node.data,
            interval_ms=int(_INTERVAL_S * 1000),
            grace_ms=int(_GRACE_S * 1000),
            late_ms=self.late_ms,
            **self.settings,
        )
        with AuditWatch(settings) as watch:
            yield watch

    def auditor(self) -> Auditor:
        target = WheelTarget(self.node.address, AUDIT_TOPIC)
        return Auditor(target, interval_s=_INTERVAL_S, every_s=0.5)


@pytest.fixture(params=["embedded", "kafka"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Side]:
    if request.param == "embedded":
        with LossyNode(tmp_path / "data") as node:
            yield _Side(node, {"data": node.data}, {})
        return
    broker: Broker = request.getfixturevalue("broker")
    made = [*_PLANTED, AUDIT_TOPIC, "billing-retry", "dead-letters", "orders"]
    for name in made:
        broker.create_topic(name)
    at = ("--sink", "kafka-python", "--bootstrap", broker.bootstrap)
    try:
        with LossyNode(tmp_path / "data", *at, "--dead-letter-topic", "dead-letters") as node:
            more = {"bootstrap": broker.bootstrap, "dead_letter_topic": "dead-letters"}
            yield _Side(node, more, more)
    finally:
        for name in made:
            broker.delete_topic(name)


def _seen(watch: AuditWatch) -> AuditReport:
    report = watch.step()
    assert report.problem == ""
    return report


def _verdicts(report: AuditReport) -> dict[str, list[Comparison]]:
    return {cell.topic: cell.comparisons for cell in report.cells}


def _handle(consumer: Consumer) -> None:
    for message in consumer:
        if message.value == b"hold":  # and nothing behind it
            threading.Timer(SLOW_S, consumer.done, [message]).start()
        else:
            consumer.done(message)


def test_each_fault_is_found_at_its_boundary_and_nothing_else_is_blamed(side: _Side) -> None:
    node = side.node
    with ExitStack() as undo:
        watch = undo.enter_context(side.watching())
        auditor = side.auditor()
        undo.callback(auditor.close)
        consumer = Consumer(
            *(list(_PLANTED), "billing"),
            **side.consumer,
            wheel=node.address,
            retry="1s",
            observer=_Forgetful(auditor),
        )
        undo.callback(consumer.close)
        threading.Thread(target=_handle, args=(consumer,), daemon=True).start()
        client = undo.enter_context(Client(node.address, observer=auditor))
        due_ms = (now_ms() // 1000 + 12) * 1000 + 100
        later_ms = due_ms + 3_000
        odd = {
            "wheel-lost": LOST,
            "wheel-twice": TWICE,
            "wheel-slow": SLOW,
            "consumer-lost": b"forget",
            "consumer-twice": b"again",
            "consumer-slow": b"hold",
        }
        slow = {"wheel-slow": later_ms, "consumer-slow": due_ms}
        for topic in _PLANTED:
            if topic != "client-slow":
                at_ms = slow.get(topic, due_ms)
                values = [odd.get(topic, b"v")] + [b"v"] * (_MESSAGES - 1)
                client.send_many(Message(topic, one, due=at_ms) for one in values).result(60)
        cancelled = client.send("fine", b"v", due=due_ms)
        assert client.cancel(cancelled) == ["cancelled"]
        fake = undo.enter_context(served(FakeWheel()))
        undo.enter_context(Client(fake, observer=auditor)).send(
            "client-lost", b"v", due=due_ms
        ).result(60)
        undo.enter_context(Client(node.address)).send("client-twice", b"v", due=due_ms).result(60)
        host, _, port = node.address.rpartition(":")
        proxy = undo.enter_context(Proxy(int(port), host))
        far = undo.enter_context(Client(proxy.address, observer=auditor))
        far.send("orders", b"v", delay=1).result(60)
        proxy.stall()
        receipts = far.send_many(Message("client-slow", b"v", due=due_ms) for _ in range(_MESSAGES))
        time.sleep(SLOW_S)
        proxy.go_on()
        receipts.result(60)
        expected: dict[str, Any] = {
            topic: [] if planted is None else [planted] for topic, planted in _PLANTED.items()
        }
        found: dict[str, Any] = {}

        def is_found() -> bool:
            nonlocal found
            reports = _verdicts(_seen(watch))
            verdicts = [one for each in reports.values() for one in each]
            found = {
                topic: [
                    (one.boundary, one.verdict)
                    for one in reports.get(topic, ())
                    if one.verdict is not AuditVerdict.EQUAL
                ]
                for topic in _PLANTED
            }
            counts = {one.count for one in verdicts if one.fault}
            return found == expected and counts == {1}

        try:
            eventually(is_found, every_s=_LOOK_S)
        finally:
            print(found)
        assert now_ms() < later_ms + (SLOW_S + _INTERVAL_S + 3 * _GRACE_S + PATIENCE_S) * 1000


def test_a_consumer_that_was_down_and_a_killed_node_are_no_loss(tmp_path: Path) -> None:
    at = free_address()
    # A busy machine takes long to start a node, and its messages are not late yet.
    late_ms = 20_000
    with LossyNode(tmp_path / "data", "--listen", at) as node, ExitStack() as undo:
        side = _Side(node, {"data": node.data}, {}, late_ms)
        watch = undo.enter_context(side.watching())
        auditor = side.auditor()
        undo.callback(auditor.close)
        listen = node.address
        client = undo.enter_context(Client(listen, observer=auditor))

        def consume(count: int) -> None:
            with Consumer(
                "orders", "billing", data=node.data, wheel=listen, observer=auditor
            ) as consumer:
                taken = 0
                while taken < count:
                    messages = consumer.take(100, 20)
                    consumer.done(*messages)
                    taken += len(messages)
                consumer.commit()

        client.send("orders", b"v", delay=0).result(60)
        consume(1)
        due_ms = (now_ms() // 1000 + 9) * 1000
        client.send_many(Message("orders", b"v", due=due_ms) for _ in range(50)).result(60)
        while now_ms() < due_ms - 4_000:
            _seen(watch)
            time.sleep(0.2)
        node.kill()
        node.start()

        def said() -> list[tuple[Boundary, AuditVerdict, str]]:
            cells = _verdicts(_seen(watch)).get("orders", [])
            assert not any(one.fault for one in cells), cells
            return [(one.boundary, one.verdict, one.why) for one in cells]

        behind = [
            (_CLIENT, AuditVerdict.EQUAL, ""),
            (_WHEEL, AuditVerdict.EQUAL, ""),
            (_CONSUMER, AuditVerdict.OPEN, "the group is catching up"),
        ]
        eventually(lambda: said() == behind, every_s=_LOOK_S, otherwise=said)
        time.sleep(max(0, due_ms + late_ms + 1_000 - now_ms()) / 1000)
        consume(50)
        eventually(
            lambda: [one[1] for one in said()][2] is AuditVerdict.LATE,
            every_s=_LOOK_S,
            otherwise=said,
        )
