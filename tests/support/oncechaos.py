"""Trouble for a node that delivers exactly once into Kafka, and the account of what came out.

Between the node and the broker stands the proxy of ``support.kafkafaults``. The node is killed, and
stopped for longer than a transaction may take; the broker is killed and comes back; one topic takes
nothing for a while, and others refuse single messages. What was sent is held against everything
that a reader of committed records finds, in the topics and in the dead-letter topic.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)

from slotwheel.delivery.kafka.alternating import TRANSACTION_TIMEOUT_S
from slotwheel.wheel.rows import from_columns
from support.broker import Broker
from support.kafkafaults import Api, KafkaFaults, Rates
from support.kafkaread import Arrived, Reader
from support.load import Load, When
from support.nodeprocess import NodeProcess
from support.ports import free_address
from support.waiting import now_ms

PARTITIONS = 3
LARGE = 2_000
"""The most bytes that a message of the topic ``small`` may have."""
LARGE_EVERY = 300
"""Of so many messages of the topic ``small`` one is too large."""
DUE_AHEAD_MS = 3_000
_ROWS = 50
_SMALL = ("--segment-bytes", "1M", "--tail-age", "1500ms", "--tail-keep", "500ms")


class OnceLoad(Load):
    """Messages in turn for each of ``topics``, with keys. The second one takes none that is large;
    now and then one is."""

    def __init__(self, address: str, topics: Sequence[str], when: When, rate: float) -> None:
        self.refused: set[int] = set()
        self.keyless = 0
        """How many of the next messages for the first topic, which takes none without a key, have
        none."""
        super().__init__(address, topics, when, rows=_ROWS, every_s=_ROWS / rate)

    def _send(self) -> None:
        numbers = range(len(self.due), len(self.due) + self._rows)
        due = list(self._when(numbers))
        names = [self._topics[number % len(self._topics)] for number in numbers]
        keys: list[bytes | None] = [b"%d" % number for number in numbers]
        values = [b"%d" % number for number in numbers]
        for at, number in enumerate(numbers):
            if self.keyless and names[at] == self._topics[0]:
                keys[at] = None
                self.keyless -= 1
            elif number % (LARGE_EVERY * len(self._topics)) == 1:
                values[at] = values[at].ljust(LARGE + 500)
            else:
                continue
            self.refused.add(number)
        nothing = [None] * len(due)
        rows = from_columns(due, names, nothing, keys, values, [()] * len(due))
        self.receipts.append(self._client.send_table(rows))
        self.due += due


@dataclass
class OnceReport:
    sent: int
    lost: list[int] = field(default_factory=list)
    repeated: list[tuple[Arrived, Arrived]] = field(default_factory=list)
    early: list[Arrived] = field(default_factory=list)
    strangers: list[Arrived] = field(default_factory=list)
    """Never sent, or under another due time, or at a topic where they do not belong."""
    dead: int = 0
    done: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, Api]] = field(default_factory=Counter)
    seconds: float = 0.0

    def line(self) -> str:
        done = ", ".join(f"{count} x {what}" for what, count in sorted(self.done.items()))
        return (
            f"{self.sent} with a receipt, {self.faults.total()} accidents with requests, {done},"
            f" in {self.seconds:.0f} s: {len(self.lost)} lost, {len(self.repeated)} repeated,"
            f" {len(self.early)} early, {len(self.strangers)} never sent, {self.dead} dead letters"
        )

    def violations(self) -> dict[str, object]:
        found: dict[str, list[object]] = {
            "lost": list(self.lost),
            "repeated": list(self.repeated),
            "early": list(self.early),
            "strangers": list(self.strangers),
        }
        return {name: (len(many), many[:5]) for name, many in found.items() if many}


class OnceChaos:
    """A node with ``sink`` on ``path``, that delivers to topics of its own through the proxy."""

    def __init__(
        self, path: Path, broker: Broker, faults: KafkaFaults, sink: str, seed: int
    ) -> None:
        self.rng = Random(seed)
        self.done: Counter[str] = Counter()
        self._load: OnceLoad | None = None
        self._broker, self._faults = broker, faults
        own = path.name
        keyed = broker.create_topic(f"keyed-{own}", PARTITIONS, cleanup_policy="compact")
        small = broker.create_topic(f"small-{own}", PARTITIONS, max_message_bytes=LARGE)
        self._closed = broker.create_topic(f"closed-{own}", PARTITIONS)
        others = [broker.create_topic(f"other-{number}-{own}", 2) for number in range(3)]
        self.topics = [keyed, small, self._closed, *others]
        self.dead = broker.create_topic(f"dead-{own}", PARTITIONS)
        self._address = free_address()
        options = ["--sink", sink, "--bootstrap", faults.address, "--delivery", "exactly-once"]
        options += ["--group", own, "--dead-letter-topic", self.dead, "--listen", self._address]
        self.node = NodeProcess(path / "data", *_SMALL, *options)

    # What is done

    def kill_node(self) -> None:
        self.node.kill()
        self.node.start()

    def pause_node(self) -> None:
        """For longer than the broker lets a transaction be open."""
        self.node.running.send_signal(signal.SIGSTOP)
        time.sleep(TRANSACTION_TIMEOUT_S + 1.5)
        self.node.running.send_signal(signal.SIGCONT)

    def kill_broker(self) -> None:
        self._broker.kill()
        time.sleep(self.rng.uniform(0.0, 1.0))
        self._broker.start()

    def refuse(self) -> None:
        """The broker will refuse two messages. Until it is known which, and for a minute then, all
        of that topic are sent one by one."""
        assert self._load is not None
        self._load.keyless = 2

    def close_topic(self) -> None:
        """From now on nobody may write to it."""
        pattern = ResourcePattern(ResourceType.TOPIC, self._closed)
        allow, deny = ACLPermissionType.ALLOW, ACLPermissionType.DENY
        wanted = {ACLOperation.READ: allow, ACLOperation.DESCRIBE: allow, ACLOperation.WRITE: deny}
        with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
            admin.create_acls([ACL("User:*", "*", op, may, pattern) for op, may in wanted.items()])

    def open_topic(self) -> None:
        pattern = ResourcePattern(ResourceType.TOPIC, self._closed)
        every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)
        with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
            admin.delete_acls([every])

    def run(
        self,
        steps: Sequence[Callable[[], None]],
        *,
        rate: float,
        rates: dict[Api, Rates],
        between_s: tuple[float, float] = (0.2, 1.2),
        enough: int = 0,
        wait_s: float = 120.0,
    ) -> OnceReport:
        """Do the ``steps`` under load, and send ``enough`` messages at least."""
        began = time.monotonic()
        before = self._faults.counts.copy()
        for api, often in rates.items():
            self._faults.set([api], often)
        with self.node:
            self._load = load = OnceLoad(self._address, self.topics, self._soon, rate)
            with self._faults.happening():
                for step in steps:
                    time.sleep(self.rng.uniform(*between_s))
                    self._revive()
                    step()
                    self.done[step.__name__.replace("_", " ")] += 1
                while len(load.due) < enough:
                    time.sleep(0.1)
                    self._revive()
                time.sleep(0.5)
            self._revive()
            load.stop()
            found = self._wait(load, wait_s)
            self.node.signal()
        report = self._account(load, found)
        report.done = self.done
        report.faults = self._faults.counts - before
        report.seconds = time.monotonic() - began
        return report

    def _revive(self) -> None:
        """As a supervisor does. librdkafka itself ends a process now and then, by an assertion."""
        code = self.node.running.poll()
        if code is not None:
            assert code == -signal.SIGABRT, (code, self.node.log_text()[-2000:])
            self.done["end by librdkafka"] += 1
            self.node.start()

    def _soon(self, numbers: range) -> list[int]:
        now = now_ms()
        return [now + self.rng.randint(0, DUE_AHEAD_MS) for _ in numbers]

    def _wait(self, load: Load, wait_s: float) -> list[Arrived]:
        """Until nothing is missing, and a moment more for what must not come."""
        reader = Reader(self._broker.bootstrap, [*self.topics, self.dead])
        deadline = time.monotonic() + DUE_AHEAD_MS / 1000 + wait_s
        found: list[Arrived] = []
        try:
            while len({one.value for one in found}) < len(load.due):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
                found += reader.new()
            time.sleep(0.5)
            return found + reader.new()
        finally:
            reader.close()

    def _account(self, load: OnceLoad, found: list[Arrived]) -> OnceReport:
        report = OnceReport(len(load.due))
        seen: dict[int, Arrived] = {}
        for one in found:
            number = int(one.value or b"-1")
            if not self._belongs(load, number, one):
                report.strangers.append(one)
                continue
            if number in seen:
                report.repeated.append((seen[number], one))
            seen[number] = one
            if one.appended_ms < one.due_ms:
                report.early.append(one)
        report.lost = sorted(set(range(len(load.due))) - set(seen))
        report.dead = sum(one.topic == self.dead for one in seen.values())
        return report

    def _belongs(self, load: OnceLoad, number: int, one: Arrived) -> bool:
        if not 0 <= number < len(load.due) or one.due_ms != load.due[number]:
            return False
        due_topic = self.topics[number % len(self.topics)]
        return one.topic == (self.dead if number in load.refused else due_topic)
