"""Messages on their whole way through a real Kafka: what the trace says of each is what this test
saw happen to it.

Clients send; a node is killed while messages are due, so that some expire; a consumer fails some
once, some always, and gives some up; dead letters are sent again; others are cancelled, or too
large for the broker. Beside it the test keeps an account of its own, of receipts and of what its
handler was given.

The long run, 50 000 messages: ``python -m pytest -m soak tests/trace/test_whole_way.py``
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import KafkaProducer

from slotwheel import Client, Consumer, Message, Received
from slotwheel.client.message import clock_ms
from slotwheel.policy.deadletters import notes_topic
from slotwheel.trace import KafkaPythonTarget, Tracer
from slotwheel.trace.chains.chain import Chain, StepKind, Witness
from slotwheel.trace.chains.lookup import STORE_DIRECTORY, TraceLookup
from slotwheel.trace.store import TraceReader
from support.broker import Cluster, TopicFactory
from support.consumerprocess import QUICK
from support.gatewayprocess import GatewayProcess
from support.kafkaread import read_all
from support.nodeprocess import NodeProcess, run_cli
from support.ports import free_port
from support.waiting import eventually

PLANS = ("well", "once", "never", "buried", "cancelled", "expired", "large")
WEIGHTS = (70, 10, 5, 3, 6, 4, 2)
ENDS = {"cancelled": "cancelled", "expired": "expired", "large": "dead"}
"""What no consumer gets, and what becomes of it."""
LARGE_BYTES, LIMIT_BYTES = 40_000, 20_000
RETRY, ATTEMPTS = "300ms 600ms", 3


@dataclass
class Account:
    """What happened, as the sender and the handler saw it. By number of a message."""

    plans: dict[int, str]
    ids: dict[int, str] = field(default_factory=dict)
    handled: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """``ok``, ``failed``, ``used up`` (the last attempt), ``buried``: in their order."""
    again: bool = False
    """Whether dead letters are being sent again: then everything goes well."""

    def handle(self, consumer: Consumer, message: Received) -> None:
        number = int(message.value or b"")
        plan, handled = self.plans[number], self.handled[number]
        if not self.again and plan == "buried":
            handled.append("buried")
            consumer.dead(message, "useless")
        elif not self.again and (plan == "never" or (plan == "once" and not handled)):
            handled.append("used up" if message.attempt == ATTEMPTS else "failed")
            consumer.retry(message, ValueError("not now"))
        else:
            handled.append("ok")
            consumer.done(message)

    def take_all(self, consumer: Consumer) -> None:
        """Until there is nothing more to come."""
        deadline = time.monotonic() + 400
        while not all(map(self.ended, self.plans)):
            assert time.monotonic() < deadline
            for message in consumer.take(1_000, 0.2):
                self.handle(consumer, message)

    def ended(self, number: int) -> bool:
        """Whether there is nothing more to come of a message."""
        plan, handled = self.plans[number], self.handled[number]
        if plan in ENDS:
            return True
        lives = handled.count("buried") + handled.count("used up") + handled.count("ok")
        return lives > 0 and not (self.again and plan == "never" and "ok" not in handled)

    def letters(self) -> int:
        """How many dead letters the consumer has sent."""
        return sum(each.count("buried") + each.count("used up") for each in self.handled.values())

    def wanted(self, number: int) -> tuple[str, Counter[str]]:
        """The state of a message's chain, and how often each thing happened to it."""
        plan, handled = self.plans[number], self.handled[number]
        if plan in ENDS:
            assert not handled
            return ENDS[plan], Counter({"produced": 1, f"wheel {ENDS[plan]}": 1})
        letters = handled.count("buried") + handled.count("used up")
        sent_again = handled.count("used up")
        steps = Counter(processed=len(handled), retried=handled.count("failed"), dead=letters)
        # The message, its retries and its letters have a sender that is traced.
        steps["produced"] = 1 + steps["retried"] + letters
        steps["wheel delivered"] = steps["produced"] + sent_again
        return "dead" if plan == "buried" else "processed", +steps


def seen(chain: Chain) -> tuple[str, Counter[str]]:
    """The same of a chain. What everything has, or nobody counts, is left out."""
    left_out = (StepKind.ACCEPTED, StepKind.DUE, StepKind.RECEIVED, StepKind.COMMITTED)
    steps = Counter(
        f"wheel {one.kind}" if one.tier is Witness.WHEEL else str(one.kind)
        for one in chain.steps
        if one.kind not in left_out
    )
    return str(chain.state), steps


@pytest.mark.parametrize("count", [600, pytest.param(50_000, marks=pytest.mark.soak)])
def test_the_chain_of_each_message_is_what_happened_to_it(
    tmp_path: Path,
    broker: Cluster,
    topic: TopicFactory,
    figure: Callable[[str], None],
    count: int,
) -> None:
    work, dead = topic("work", 2, max_message_bytes=LIMIT_BYTES), topic("dead")
    events, letters, notes = topic("trace"), topic("letters"), notes_topic(dead)
    group = f"{work}-group"
    own = [broker.create_topic(name) for name in (f"{group}-retry", notes)]
    address = f"127.0.0.1:{free_port()}"
    options = (
        *("--sink", "confluent", "--bootstrap", broker.bootstrap, "--listen", address),
        *("--trace-retain", "1h", "--dead-letter-topic", letters),
    )
    account = Account(dict(enumerate(random.Random(17).choices(PLANS, WEIGHTS, k=count))))
    with ExitStack() as stack:
        for name in own:
            stack.callback(broker.delete_topic, name)
        node = stack.enter_context(NodeProcess(tmp_path / "data", *options))
        stack.enter_context(
            GatewayProcess(
                *(node, "--bootstrap", broker.bootstrap),
                *("--trace-retain", "1h", "--trace-topic", events),
            )
        )
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        stack.callback(producer.close)
        tracer = Tracer(KafkaPythonTarget(producer, events), client="shop", events_max=1_000_000)
        outage_ms = clock_ms() + 6_000 + count // 5
        with Client(address, observer=tracer) as client:
            send(client, account, work, outage_ms)
            cancelled = [
                account.ids[one] for one, plan in account.plans.items() if plan == "cancelled"
            ]
            assert set(client.cancel(cancelled)) == {"cancelled"}
            assert clock_ms() < outage_ms, "sending took too long"
            time.sleep((outage_ms - clock_ms()) / 1000)
            node.kill()
            time.sleep(2.5)
            node.start()
        consumer = Consumer(
            *(work, group),
            bootstrap=broker.bootstrap,
            wheel=address,
            retry=RETRY,
            dead_letter_topic=dead,
            observer=tracer,
            kafka=QUICK["kafka-python"],
        )
        with consumer:
            account.take_all(consumer)
            consumer.commit()
            # A letter that has not arrived yet would not be sent again.
            read_all(broker.bootstrap, [dead], account.letters())
            account.again = True
            where = ("--bootstrap", broker.bootstrap, "--topic", dead, "--node", address)
            redriven = run_cli(*("dead", "redrive", *where, "--reason", "retries-used-up", "--yes"))
            assert redriven.returncode == 0, redriven.stderr
            account.take_all(consumer)
            consumer.commit()
        tracer.close(60)
        assert tracer.dropped == 0
        store = node.data / STORE_DIRECTORY
        eventually(lambda: stored(store) == tracer.sent)
        eventually(lambda: node.metric("slotwheel_pending") == 0)
        with TraceLookup(store, node.data, letters) as lookup:
            took_s = []
            for number, message_id in account.ids.items():
                began_s = time.perf_counter()
                chain = lookup.chain(message_id, clock_ms())
                took_s.append(time.perf_counter() - began_s)
                assert seen(chain) == account.wanted(number), (account.plans[number], chain)
    handled = sum(map(len, account.handled.values()))
    took_s.sort()
    figure(
        f"{count} chains as they happened, {handled} attempts, {tracer.sent} events; a chain is"
        f" found in {took_s[count // 2] * 1000:.1f} ms, p99 {took_s[count * 99 // 100] * 1000:.1f}"
    )


def send(client: Client, account: Account, topic: str, outage_ms: int) -> None:
    """All messages, due from a second before the outage until two behind it; those that shall
    expire while it lasts, and those that are cancelled in an hour."""
    messages = []
    for number, plan in account.plans.items():
        due = outage_ms - 1_000 + number % 3_000
        value, expires = b"%d" % number, None
        if plan == "expired":
            due, expires = outage_ms + 1_000, outage_ms + 1_200
        elif plan == "cancelled":
            due = outage_ms + 3_600_000
        elif plan == "large":
            value = value.rjust(LARGE_BYTES)
        messages.append(Message(topic, value, b"k%d" % (number % 50), due=due, expires=expires))
    for start in range(0, len(messages), 1_000):
        receipts = client.send_many(messages[start : start + 1_000])
        receipts.wait(60)
        account.ids |= {start + at: one.id for at, one in enumerate(receipts)}


def stored(store: Path) -> int:
    """Events in the store."""
    return sum(one.rows for one in TraceReader(store).segments())
