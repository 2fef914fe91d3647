"""Far messages of real nodes in a real Kafka, read by another client, while the clock steps.

Messages are due in seconds, in hours and up to sixty days ahead, so that they lie in slots of all
widths. Around the spills the wall clock steps by an hour, three hours and two days, either way; the
node is killed and stays away for three days. In the end each message is in Kafka once, in its time,
as it was sent (``support.farlife``).

The long run: ``python -m pytest -m soak tests/test_far_kafka.py``
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.broker import Cluster, TopicFactory
from support.farlife import BEGIN_MS, DAY_MS, HORIZON_MS, HOUR_MS, KEEPS_TIMES, FarLife
from support.promises import Account

PARTITIONS = 2
SECOND_MS = 1_000
NEAR_MS = [50, 100, 150]
AHEAD_MS = [*NEAR_MS, 40 * 60_000, 3 * HOUR_MS, 30 * HOUR_MS, 2 * DAY_MS + 1, 9 * DAY_MS]
"""Ahead of a spill, in ms: what goes to slots of a second, of an hour, and of a day."""
Figure = Callable[[str], None]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_each_second_is_as_it_was_sent(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, figure: Figure, delivery: str
) -> None:
    with begun(broker, topic, tmp_path, delivery) as life:
        # A second whose messages lie in the files of its day, of its hour, and its own.
        far_ms = BEGIN_MS + 10 * DAY_MS + 5 * HOUR_MS
        seconds = [far_ms + at for at in (-1, 0, 1, 999, 1_000, 2_500)]
        life.send(60, AHEAD_MS)
        of_day = life.send_due(24, seconds)
        life.arrive(NEAR_MS[-1])
        life.spill()
        assert life.widths == {1, 3_600, 86_400}
        around_spills(life)
        life.sleep_until(far_ms - 20 * HOUR_MS)
        of_hour = life.send_due(24, seconds)
        assert life.cancel(of_day[:3]) == ["cancelled"] * 3
        life.spill()
        life.sleep_until(far_ms - HOUR_MS)
        life.send_due(24, seconds)
        assert life.cancel([*of_day[3:6], *of_hour[:3]]) == ["cancelled"] * 6
        life.spill()
        life.kill()  # from now on a cancel is known from the file that it is in
        life.send_due(24, seconds)
        life.sleep_until(far_ms - SECOND_MS)
        life.arrive(4 * SECOND_MS)
        life.assert_in_order(seconds)
        around_a_kill(life)
        found = life.finish()
        tell(life, found, figure, delivery)
    assert found.violations() == {}
    assert found.cancelled >= 9


def around_spills(life: FarLife) -> None:
    """The clock steps there and back: before a spill, between two of them, and behind one."""
    for step_ms in (HOUR_MS - SECOND_MS, 3 * HOUR_MS, 2 * DAY_MS):
        life.send(16, AHEAD_MS)
        life.step(-step_ms)
        life.send(16, AHEAD_MS)
        life.spill()
        life.step(step_ms)
        life.arrive(NEAR_MS[-1])
        # Ahead: up to an hour is believed, the rest is not until somebody says so.
        life.spill()
        life.send(16, AHEAD_MS)
        life.step(step_ms, believed=step_ms < HOUR_MS)
        life.arrive(NEAR_MS[-1])
        if step_ms > HOUR_MS:
            life.accept()
        life.send(16, AHEAD_MS)
        life.arrive(NEAR_MS[-1])
        life.spill()
        life.cancel(life.pending[::7])
        # Back: it was wrong. What has left stays so, and what has not leaves in its time.
        life.step(-step_ms)
        life.send(16, AHEAD_MS)
        life.spill()
        life.set_back()
        life.arrive(NEAR_MS[-1])


def around_a_kill(life: FarLife) -> None:
    """The node is killed while messages leave, and is away for three days."""
    life.send(40, [at * 30 for at in range(40)] + AHEAD_MS)
    life.spill()
    life.arrive(600)
    life.kill(down_ms=3 * DAY_MS)
    life.arrive()


@pytest.mark.soak
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_any_life(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, figure: Figure, seed: int, delivery: str
) -> None:
    """What may happen, in any order: thousands of messages, and at each step some hundred more."""
    with begun(broker, topic, tmp_path, delivery, seed) as life:
        for _ in range(40):
            send_any(life)
            life.rng.choice([there_and_back, ahead, asleep, killed])(life)
        found = life.finish()
        tell(life, found, figure, f"{delivery}, seed {seed}")
    assert found.violations() == {}
    assert found.cancelled > 50


def send_any(life: FarLife) -> None:
    rng = life.rng
    spans = [*NEAR_MS, HOUR_MS, 6 * HOUR_MS, 3 * DAY_MS, HORIZON_MS]
    ahead_ms = [rng.randrange(1 + rng.choice(spans)) for _ in range(60)]
    of_one_second = [rng.choice(ahead_ms)] * 20
    life.send(80, [*ahead_ms, *of_one_second])


def meddle(life: FarLife) -> None:
    """Around a step of the clock, in which messages may be taken."""
    rng = life.rng
    for _ in range(rng.randrange(3)):
        match rng.randrange(3):
            case 0:
                life.spill()
            case 1:
                send_any(life)
            case _:
                cancel_any(life)


def cancel_any(life: FarLife) -> None:
    """Five messages, one of them has left or was cancelled before."""
    pending = life.pending
    life.cancel([*life.rng.sample(pending, min(4, len(pending))), life.rng.randrange(life.sent)])


def any_step_ms(life: FarLife) -> int:
    return life.rng.choice([HOUR_MS - SECOND_MS, 3 * HOUR_MS, 2 * DAY_MS])


def there_and_back(life: FarLife) -> None:
    """The clock steps back, and comes back to where it was, or the mark is set back to it."""
    step_ms = any_step_ms(life)
    meddle(life)
    life.step(-step_ms)
    meddle(life)
    if life.rng.random() < 0.4:
        life.set_back()
    else:
        if life.rng.random() < 0.3:
            life.kill()
        life.step(step_ms)
    life.arrive(NEAR_MS[-1])


def ahead(life: FarLife) -> None:
    """The clock jumps ahead, so long after a step back that it cannot be a return from it. It is
    set right, or believed; and then it may have been wrong all the same."""
    rng, step_ms = life.rng, any_step_ms(life)
    life.sleep(7 * HOUR_MS)
    meddle(life)
    life.wait_for_note()
    life.step(step_ms, believed=step_ms < HOUR_MS)
    if step_ms > HOUR_MS:
        cancel_any(life)
        if rng.random() < 0.3:
            life.kill()
        if rng.random() < 0.3:
            life.step(-step_ms)
            return
        life.accept()
    meddle(life)
    life.arrive(NEAR_MS[-1])
    if rng.random() < 0.5:
        life.step(-step_ms)
        meddle(life)
        life.set_back()
        life.arrive(NEAR_MS[-1])


def asleep(life: FarLife) -> None:
    """The machine sleeps for hours or days, until just before something is due."""
    meddle(life)
    life.sleep(life.rng.randrange(3 * DAY_MS))
    if life.pending:
        life.sleep_until(min(map(life.due_ms, life.pending)) - SECOND_MS // 2)
    life.arrive(SECOND_MS)


def killed(life: FarLife) -> None:
    meddle(life)
    life.send(40, [at * 30 for at in range(40)])
    life.arrive(life.rng.randrange(1_000))
    life.kill(down_ms=life.rng.choice([0, 3 * DAY_MS]))
    life.arrive()


def begun(
    broker: Cluster, topic: TopicFactory, path: Path, delivery: str, seed: int = 1
) -> FarLife:
    targets = [topic(f"far-{at}", PARTITIONS, **KEEPS_TIMES) for at in range(2)]
    dead = topic("dead", **KEEPS_TIMES)
    exact = delivery == "exactly-once"
    return FarLife(
        path, broker.bootstrap, targets, dead, partitions=PARTITIONS, exact=exact, seed=seed
    )


def tell(life: FarLife, found: Account, figure: Figure, what: str) -> None:
    late = life.lateness_ms()
    figure(
        f"far, real Kafka, {what}: {found.line()}; lateness p50 {late[len(late) // 2]} ms,"
        f" max {late[-1]} ms of {len(late)} that were due while the clock was let alone"
    )
