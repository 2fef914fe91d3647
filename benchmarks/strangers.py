"""How late is a good topic beside thousands that do not exist?

Two runs on one node, each with a paced client of its own topic, whose messages are due 2 to 12 s
ahead. In the second run another client sends one message to each of ``--topics`` others: half of
them are due at once, half some seconds later. Kafka has none of these topics, and the node is told
to take messages for them, so each has to be asked for, found missing and buried. With ``--sink
embedded`` they are new topics, which have to be made.

    python -m benchmarks.strangers [--sink kafka-python|confluent|embedded] [--topics 2000]
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from slotwheel.client import Client
from slotwheel.client.message import Message
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.schema import Int64s

from ._node import BenchNode
from .harness import Report, data_directory, options, warm_memory
from .lateness import (
    CONFLUENT,
    EMBEDDED,
    SINKS,
    accepted_times,
    create_topic,
    kafka_lateness,
    send_paced,
    start_broker,
)

_ESTIMATE = (
    "one request asks for 1,000 topics, 20 to 40 ms; a topic that was missing 0.1 s before is"
    " missing: the letters of 1,000 are one chunk, 50 ms. An embedded topic is two files and a"
    " folder, 0.5 ms, made ahead; a row in each of 1,000 is 0.1 ms, and two syncs for all of them"
)
_GOOD = ("alone", "beside")
_DONE_S = 120.0


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=SINKS, default=CONFLUENT)
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second of the good one")
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds, chosen.topics = min(chosen.seconds, 4.0), min(chosen.topics, 300)
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"beside {chosen.topics:,} topics, {chosen.sink}", _ESTIMATE, directory)
        report.begin()
        warm_memory(1.0 if chosen.warm_gib is None else chosen.warm_gib)
        node_options, broker = ["--sink", chosen.sink], None
        if chosen.sink != EMBEDDED:
            broker = stack.enter_context(start_broker())
            for topic in (*_GOOD, DEAD_LETTER_TOPIC):
                create_topic(broker, topic)
            node_options += ["--bootstrap", broker.bootstrap, "--unknown-topics", "accept"]
        with BenchNode(directory / "data", *node_options) as node:
            late = [_run(node, broker, topic, chosen) for topic in _GOOD]
            others = node.metrics()["slotwheel_dead_total"] if broker is not None else chosen.topics
        if others != chosen.topics:
            raise RuntimeError(f"{others} of {chosen.topics} messages to others became letters")
        for topic, found in zip(_GOOD, late, strict=True):
            for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
                value = float(np.percentile(found, share))
                goal = "<= 100" if name == "p99" else ""
                report.figure(f"lateness {name} {topic}, ms", value, f"{value:.0f}", goal)
        report.end(chosen.json)
    return 0


def _run(node: BenchNode, broker: Any, topic: str, chosen: Any) -> Int64s:
    """How late each message of ``topic`` was, ms."""
    strangers = threading.Thread(target=_send_others, args=(node, chosen))
    if topic != _GOOD[0]:
        strangers.start()
    sent = send_paced(node, chosen.rate, chosen.seconds, topic)
    if topic != _GOOD[0]:
        strangers.join()
    deadline = time.monotonic() + _DONE_S
    with Client(node.address) as client:
        while (status := client.status())["pending"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not delivered in time: {status}")
            time.sleep(0.2)
    if broker is not None:
        return kafka_lateness(broker.bootstrap, topic, sent)
    accepted, delivered = accepted_times(node.data, topic)
    return delivered - accepted


def _send_others(node: BenchNode, chosen: Any) -> None:
    time.sleep(chosen.seconds / 2)
    with Client(node.address) as client:
        delays = (0.0, 5.0)
        messages = [
            Message(f"stranger-{number}", b"value", delay=delays[number % 2])
            for number in range(chosen.topics)
        ]
        client.send_many(messages).result(60)


if __name__ == "__main__":
    sys.exit(main())
