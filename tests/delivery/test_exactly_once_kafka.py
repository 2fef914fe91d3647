"""Exactly once into Kafka, over the model of a broker: single stories that are worth telling."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from slotwheel.wheel.config import WheelConfig
from support.onehand import T0, OneHand, one_hand

ONE_BY_ONE = WheelConfig(chunk_rows_max=1, mark_interval_ms=1)


def test_a_topic_is_not_released_while_an_outcome_is_unclear(tmp_path: Path) -> None:
    """Kafka's mark still names a topic that caught up in the same turn in which the answer to
    another one's commit was lost. The mark must be understood all the same."""
    with one_hand(tmp_path, ONE_BY_ONE) as rig:
        rig.broker.blocked = {"a", "b"}
        rows = [("a", b"a0"), ("b", b"b0"), ("a", b"a1"), ("a", b"a2")]
        rig.node.send([(T0 + n, *row) for n, row in enumerate(rows)], T0)
        rig.now_ms = T0 + 10
        rig.turn(20)
        assert rig.held == ["a", "b"]
        rig.broker.blocked = set()
        while not rig.got[b"b0"]:
            rig.turn()
        rig.net.lose.add("commit")
        rig.turn(20)
        assert not rig.net.lose
        assert rig.got == Counter([b"a0", b"a1", b"a2", b"b0"])
        assert rig.held == []


def test_a_mark_that_kafka_has_lost_is_noticed(tmp_path: Path) -> None:
    """For the journal said that there is one, before the first row left."""
    with one_hand(tmp_path, WheelConfig(mark_interval_ms=3_600_000)) as rig:
        rig.node.send([(T0, "a", b"a0")], T0)
        while not rig.got:
            rig.turn()
        rig.node.reopen(T0)
        while rig.broker.progress():
            pass
        rig.broker.mark = None
        again = OneHand(rig.node, rig.broker)
        again.turn(5)
        assert not again.got
        assert "--accept-repeats" in again.events.notes[-1][1]
        accepting = OneHand(rig.node, rig.broker, accept_repeats=True)
        accepting.turn(5)
        assert accepting.got == Counter([b"a0"])


def test_delivery_goes_on_without_a_mark_where_the_journal_proves_that_nothing_else_left(
    tmp_path: Path,
) -> None:
    """The dead-letter topic, which has the mark, was deleted and made anew while nobody looked."""
    with one_hand(tmp_path, WheelConfig(mark_interval_ms=1)) as rig:
        rows = [(T0 + n % 7, "ab"[n % 2], b"%d" % n) for n in range(50)]
        far = [(T0 + 3_600_000, "a", b"far")]
        rig.node.send([*rows, *far], T0)
        rig.now_ms = T0 + 10
        while rig.got.total() < len(rows):
            rig.turn()
        rig.now_ms += 1000
        rig.turn(5)
        rig.node.reopen(rig.now_ms)
        while rig.broker.progress():
            pass
        rig.broker.mark = None
        rig.node.send([(rig.now_ms, "b", b"later")], rig.now_ms)
        again = OneHand(rig.node, rig.broker)
        again.now_ms = rig.now_ms + 10
        again.turn(5)
        assert again.got == Counter([b"later"])
        while rig.broker.progress():  # and once more, in the same epoch
            pass
        rig.broker.mark = None
        rig.node.send([(again.now_ms, "b", b"last")], again.now_ms)
        again.net.lose.add("produce")
        again.turn(20)
        assert again.got == Counter([b"later", b"last"])
