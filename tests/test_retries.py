"""Retries: by our consumer, and in any language by a plain Kafka producer, consumer, and headers.

Message i fails at its first i % 5 attempts; the policy has three delays. So four of five messages
are processed in the end, and each fifth is buried. Every attempt says which one it is, where the
message came from, and why the first and the last one failed; none comes before its time.

20 000 messages, 1000 a second: ``python -m pytest -m soak tests/test_retries.py``. The
goal there: attempts at the topic within 5 ms of their time in the middle, within 50 ms for 99 of
100.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from support.broker import Cluster, TopicFactory
from support.kafkaread import Reader
from support.nodeprocess import NodeProcess
from support.plainworker import LibraryWorker, PlainWorker, Seen, error_of, send
from support.waiting import eventually

POLICY = "500ms 1s 2s"
DELAYS_MS = (500, 1000, 2000)
FAILURES = 5
"""Message i fails at its first i % FAILURES attempts."""


@pytest.mark.parametrize("make", [PlainWorker, LibraryWorker])
@pytest.mark.parametrize(
    ("count", "rate"), [(300, 300.0), pytest.param(20_000, 1000.0, marks=pytest.mark.soak)]
)
def test_attempts_come_at_their_times_and_say_what_they_are(
    broker: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    figure: Callable[[str], None],
    count: int,
    rate: float,
    make: type[PlainWorker],
) -> None:
    work, delays = topic("work", 2), topic("delays", 1, message_timestamp_type="CreateTime")
    group, dead = work, topic("dead")
    retries = broker.create_topic(f"{group}-retry", 2)
    options = ("--sink", "confluent", "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    buried = {number for number in range(count) if number % FAILURES > len(DELAYS_MS)}
    try:
        with (
            NodeProcess(tmp_path / "data", *options, "--delay-topic", delays) as node,
            make(
                *(broker.bootstrap, work, group, delays, POLICY),
                fails=lambda number, attempt: attempt <= number % FAILURES,
                dead_topic=dead,
                wheel=node.address,
            ) as worker,
        ):
            send(broker.bootstrap, work, count, rate)
            eventually(lambda: len(worker.done) >= count - len(buried) or worker.error)
            letters = Reader(broker.bootstrap, [dead])
            found = letters.read(len(buried))
            letters.close()
            # The mark moves behind what Kafka has.
            eventually(lambda: node.metric("slotwheel_pending") == 0)
            assert node.signal() < 10
    finally:
        broker.delete_topic(retries)

    assert set(range(count)) - worker.done == buried
    late: list[list[int]] = [[] for _ in DELAYS_MS]
    for number, attempts in worker.seen.items():
        assert len(attempts) == min(number % FAILURES, len(DELAYS_MS)) + 1, number
        first = attempts[0]
        assert first.topic == work
        for failed, (before, one) in enumerate(pairwise(attempts), 1):
            assert_retry(number, failed, first, before, one, retries)
            due_ms = before.retried_ms + DELAYS_MS[failed - 1]
            said_ms = int(one.said["slotwheel-due-ms"] or b"")
            # The delay begins when our consumer, or the node, looks at the clock, a moment later.
            assert due_ms <= said_ms <= due_ms + 10_000
            due_ms = said_ms
            assert one.appended_ms >= due_ms, "early"
            late[failed - 1].append(one.appended_ms - due_ms)

    assert {int(letter.value or b"") for letter in found} == buried
    assert len(found) == len(buried)
    for letter in found:
        number = int(letter.value or b"")
        last = worker.seen[number][-1]
        said = dict(letter.headers)
        assert letter.headers[:3] == last.headers[:3]
        assert said["slotwheel-dead-reason"] == b"retries-used-up"
        assert said["slotwheel-dead-topic"] == retries.encode()
        assert said["slotwheel-dead-group"] == group.encode()
        source = delays if make is PlainWorker else retries
        assert (said["slotwheel-dead-source"] or b"").startswith(source.encode() + b"/")
        assert said["slotwheel-dead-attempts"] == b"4"
        assert said["slotwheel-retry-first-error"] == error_of(number, 1).encode()
        assert said["slotwheel-retry-last-error"] == error_of(number, 4).encode()
        assert said["slotwheel-dead-error"] == error_of(number, 4).encode()
        assert said["slotwheel-origin-offset"] == b"%d" % worker.seen[number][0].offset

    for level, some in zip(POLICY.split(), late, strict=True):
        figure(f"retries, {make.__name__}, {count} messages, level {level}: {lateness(some)}")
    both = [one for some in late for one in some]
    figure(f"retries, {make.__name__}, {count} messages, all levels: {lateness(both)}")


def assert_retry(
    number: int, failed: int, first: Seen, before: Seen, one: Seen, retries: str
) -> None:
    """``one`` is the attempt after the failed one of that number."""
    said = one.said
    assert one.topic == retries
    assert one.key == first.key
    assert one.headers[:3] == first.headers == before.headers[:3]
    assert len(one.headers) == len(set(one.headers)), "a header stands there twice"
    assert said["slotwheel-retry-attempt"] == b"%d" % (failed + 1)
    assert said["slotwheel-retry-policy"] == POLICY.encode()
    assert said["slotwheel-origin-topic"] == first.topic.encode()
    assert said["slotwheel-origin-partition"] == b"%d" % first.partition
    assert said["slotwheel-origin-offset"] == b"%d" % first.offset
    assert "slotwheel-origin-id" not in said, "the first record had none"
    assert said["slotwheel-retry-first-error"] == error_of(number, 1).encode()
    assert said["slotwheel-retry-last-error"] == error_of(number, failed).encode()
    assert said["slotwheel-id"] != before.said.get("slotwheel-id")
    assert "slotwheel-retry" not in said
    assert "slotwheel-error" not in said


def lateness(some: list[int]) -> str:
    p50, p99 = np.percentile(some, [50, 99])
    return f"{len(some)} attempts, p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {max(some)} ms late"
