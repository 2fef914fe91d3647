"""Consumers that are killed: nothing is lost, and with transactions nothing is put out twice."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.broker import Cluster, TopicFactory
from support.consumerprocess import ConsumerProcess, Job, processed
from support.consuming import Group, MakeGroup, Wheel, committed, fill, numbers
from support.kafkaread import read_committed
from support.stopwatch import Stopwatch
from support.waiting import eventually

both_clients = pytest.mark.parametrize("client", ["kafka-python", "confluent"])


STATIC = {"kafka-python": "group_instance_id", "confluent": "group.instance.id"}
"""The setting of a member that has its place again as soon as it is back."""


def more_than(count: int, progress: Callable[[], int]) -> Callable[[], bool]:
    return lambda: progress() > count


def kill_again_and_again(
    process: ConsumerProcess, kills: int, rng: random.Random, progress: Callable[[], int]
) -> None:
    """Kill it each time that it has done something, and start it again."""
    for _ in range(kills):
        eventually(more_than(progress(), progress))
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.start()


@both_clients
def test_a_killed_consumer_loses_nothing(
    broker: Cluster, group: MakeGroup, wheel: Wheel, tmp_path: Path, client: str
) -> None:
    own, lines, count = group(2), tmp_path / "lines", 300
    static = {"kafka": {STATIC[client]: "one"}}
    job = job_of(broker, own, wheel, client, lines=str(lines), sleep_s=0.005, **static)
    fill(broker.bootstrap, own.topic, numbers(count))
    with ConsumerProcess(job, tmp_path / "log") as process:
        kill_again_and_again(process, 2, random.Random(1), lambda: len(processed(lines)))
        eventually(lambda: len({one for one, _ in processed(lines)}) == count)
    done = processed(lines)
    assert {attempt for number, attempt in done if not number % 5} == {2}
    assert {attempt for number, attempt in done if number % 5} == {1}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_with_everything_committed(
    broker: Cluster, group: MakeGroup, wheel: Wheel, tmp_path: Path, number: int
) -> None:
    own, lines = group(1), tmp_path / "lines"
    job = job_of(broker, own, wheel, "kafka-python", lines=str(lines), sleep_s=0.01, every=0)
    fill(broker.bootstrap, own.topic, numbers(1000))
    with ConsumerProcess(job, tmp_path / "log") as process:
        eventually(lambda: len(processed(lines)) > 20)
        watch = Stopwatch()
        process.running.send_signal(number)
        code = process.running.wait(60)
        assert watch.seconds < 2.5, "two seconds, and the interpreter's own end"
        assert code == 0
    assert committed(broker.bootstrap, own.name, own.topic) == len(processed(lines))


@both_clients
def test_a_killed_transactional_consumer_puts_out_each_result_once(
    broker: Cluster,
    group: MakeGroup,
    wheel: Wheel,
    topic: TopicFactory,
    tmp_path: Path,
    client: str,
) -> None:
    own, out, count = group(2), topic("out"), 300
    lines = tmp_path / "lines"
    more: dict[str, Any] = {"delay_topic": wheel.delays, "transactional_id": own.name}
    more |= {"kafka": {STATIC[client]: "one"}}
    job = job_of(broker, own, wheel, client, out=out, lines=str(lines), sleep_s=0.005, **more)
    fill(broker.bootstrap, own.topic, numbers(count))
    with ConsumerProcess(job, tmp_path / "log") as process:
        kill_again_and_again(process, 2, random.Random(2), lambda: len(processed(lines)))
        got = read_committed(broker.bootstrap, out, count, settle_s=1.0, within_s=120)
    assert Counter(int(one.value or b"") for one in got) == Counter(range(count))
    assert all((one.key == b"2") == (int(one.value or b"") % 5 == 0) for one in got)


@pytest.mark.soak
@both_clients
@pytest.mark.parametrize("transactional", [False, True])
def test_20_kills_and_10_rebalances(
    broker: Cluster,
    group: MakeGroup,
    wheel: Wheel,
    topic: TopicFactory,
    tmp_path: Path,
    client: str,
    transactional: bool,
) -> None:
    """Two members, each killed ten times; a third comes and goes five times."""
    own, out, count = group(6), topic("out", 3), 30_000
    rng = random.Random(3)
    members = []
    for number in range(3):
        more: dict[str, Any] = {"lines": str(tmp_path / f"lines{number}"), "sleep_s": 0.01}
        if transactional:
            name = f"{own.name}-{number}"
            more |= {"out": out, "delay_topic": wheel.delays, "transactional_id": name}
        job = job_of(broker, own, wheel, client, **more)
        members.append(ConsumerProcess(job, tmp_path / f"log{number}"))
    fill(broker.bootstrap, own.topic, numbers(count))

    def done() -> set[int]:
        return {number for member in members for number, _ in processed(Path(member.job.lines))}

    with members[0] as first, members[1] as second:
        for round_ in range(10):
            for member in (first, second):
                eventually(more_than(min(len(done()), count - 1), lambda: len(done())))
                time.sleep(rng.uniform(0, 1))
                member.kill()
                member.start()
            if round_ % 2:
                with members[2].start() as third:
                    time.sleep(rng.uniform(3, 8))
                    third.running.terminate()
                    third.running.wait(60)
        if transactional:
            got = read_committed(broker.bootstrap, out, count, settle_s=15.0, within_s=600)
        else:
            eventually(lambda: len(done()) == count, 600)
    if transactional:
        assert Counter(int(one.value or b"") for one in got) == Counter(range(count))
    assert done() == set(range(count))


@pytest.mark.soak
@both_clients
def test_a_member_that_stands_still_past_its_session_puts_out_nothing_twice(
    broker: Cluster,
    group: MakeGroup,
    wheel: Wheel,
    topic: TopicFactory,
    tmp_path: Path,
    client: str,
) -> None:
    """Two members, each stopped four times for about as long as a session (6 s)."""
    own, out, count = group(4), topic("out"), 30_000
    rng = random.Random(4)
    members = []
    for number in range(2):
        more: dict[str, Any] = {"out": out, "delay_topic": wheel.delays, "sleep_s": 0.01}
        more |= {"transactional_id": f"{own.name}-{number}", "every": 500}
        job = job_of(broker, own, wheel, client, **more)
        members.append(ConsumerProcess(job, tmp_path / f"log{number}"))
    fill(broker.bootstrap, own.topic, numbers(count))
    with members[0], members[1]:
        for round_ in range(8):
            time.sleep(rng.uniform(2, 4))
            process = members[round_ % 2].running
            process.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(5.5, 8))
            process.send_signal(signal.SIGCONT)
        got = read_committed(broker.bootstrap, out, count, settle_s=15.0, within_s=300)
    assert Counter(int(one.value or b"") for one in got) == Counter(range(count))


def job_of(broker: Cluster, own: Group, wheel: Wheel, client: str, **more: Any) -> Job:
    return Job(broker.bootstrap, own.topic, own.name, wheel.address, client, dead=own.dead, **more)
