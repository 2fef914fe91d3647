"""At most once: the mark is durable before a row leaves; what may have left is not sent again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.delivery import semantics
from slotwheel.delivery.semantics import AtMostOnce
from slotwheel.delivery.sink import Answer
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.answers import CancelAnswer
from support.handrig import Rig
from support.wheels import batch


def test_the_mark_is_committed_before_the_sink_is_asked(tmp_path: Path) -> None:
    rig = Rig(tmp_path, semantics=AtMostOnce)
    behind: list[int] = []

    def look(rows: pa.RecordBatch, _trial: bool) -> None:
        marks = rig.wheel._committed_marks
        covered = marks.all_covered(
            rows.column("due").cast(pa.int64()).to_numpy(), rows.column("offset").to_numpy()
        )
        behind.append(int((~covered).sum()))

    rig.scripted.before = look
    rig.start()
    rig.send([("t", b"%d" % n) for n in range(500)], [n % 200 for n in range(500)])
    rig.wait(lambda: len(rig.scripted.taken) == 500)
    assert sum(behind) == 0
    rig.wait(lambda: rig.wheel.status().delivered == 500)
    rig.close()


def test_a_row_without_an_answer_is_not_sent_again_and_its_cancel_is_unknown(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, semantics=AtMostOnce)
    asked: Counter[bytes | None] = Counter()

    def script(_topic: str, value: bytes | None) -> Answer:
        asked[value] += 1
        return Answer.UNKNOWN if value == b"lost" else Answer.ACCEPTED

    rig.scripted.script = script
    rig.start()
    now = rig.clock()
    receipt = rig.wheel.append(batch([(now, "t", b"lost"), (now, "t", b"kept")]), now).result(60)
    rig.wait(lambda: rig.wheel.status().pending == 0)
    ids = [rig.wheel.mint.one(now, receipt.base_offset + n) for n in range(2)]
    answers = rig.wheel.cancel(ids, rig.clock())
    assert answers == [CancelAnswer.UNKNOWN, CancelAnswer.DELIVERED]
    assert asked == Counter({b"lost": 1, b"kept": 1})
    rig.close()


def test_a_row_that_was_not_sent_is_tried_again_and_then_becomes_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that takes nothing does not hold up the others for ever."""
    monkeypatch.setattr(semantics, "_NOT_NOW_S", 2.0)
    rig = Rig(tmp_path, semantics=AtMostOnce)
    tries: Counter[bytes | None] = Counter()

    def script(topic: str, value: bytes | None) -> Answer:
        tries[value] += 1
        if topic == DEAD_LETTER_TOPIC:
            return Answer.ACCEPTED
        if value == b"soon":
            return Answer.NOT_NOW if tries[value] < 3 else Answer.ACCEPTED
        return Answer.NOT_NOW if topic == "away" else Answer.ACCEPTED

    rig.scripted.script = script
    rig.start()
    rig.send([("away", b"never"), ("t", b"soon"), ("t", b"other")])
    rig.wait(lambda: rig.wheel.status().pending == 0)
    taken = {(topic, value) for topic, value, _, _ in rig.scripted.taken}
    assert taken == {(DEAD_LETTER_TOPIC, b"never"), ("t", b"soon"), ("t", b"other")}
    status = rig.wheel.status()
    assert (status.delivered, status.dead, status.held_topics) == (2, 1, [])
    rig.close()


def test_letters_tell_their_own_reasons_and_nothing_dies_of_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semantics, "_NOT_NOW_S", 0.1)
    rig = Rig(tmp_path, semantics=AtMostOnce)
    tries: Counter[str] = Counter()

    def script(topic: str, _value: bytes | None) -> Answer:
        tries[topic] += 1
        away = topic in ("a", "b") or (topic == "clock" and tries[topic] < 10)
        return Answer.NOT_NOW if away else Answer.ACCEPTED

    rig.scripted.script = script
    rig.scripted.reason = lambda _, topic: f"{topic} is away"
    rig.scripted.waits_for_clock = {"clock": "clocks differ"}
    rig.start()
    rig.send([("a", b"1"), ("b", b"2"), ("clock", b"3")])
    deaths = {f"not taken within 0 s: {topic} is away": 1 for topic in ("a", "b")}
    rig.wait(lambda: rig.wheel.status().pending == 0 and rig.events.deaths == deaths)
    assert rig.scripted.values("clock") == [b"3"]
    rig.close()


def test_a_sink_that_is_down_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No topic is at fault, so nothing becomes a dead letter."""
    monkeypatch.setattr(semantics, "_NOT_NOW_S", 0.1)
    rig = Rig(tmp_path, semantics=AtMostOnce)
    rig.scripted.up = False
    rig.start()
    rig.send([("t", b"%d" % n) for n in range(10)])
    rig.wait(lambda: rig.events.count("down") == 1)
    rig.scripted.up = True
    rig.wait(lambda: rig.wheel.status().delivered == 10)
    assert len(rig.scripted.taken) == 10
    rig.close()
