"""The hand of the wheel on a real wheel: punctual, never early, and never stuck."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.delivery import hand
from slotwheel.delivery.pace import Pace
from slotwheel.delivery.sink import Answer
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC, EXPIRED
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import Damaged, SyncFailed
from slotwheel.wheel.mark import Mark
from slotwheel.wheel.schema import ROW
from support.handrig import Rig, Script
from support.waiting import PATIENCE_S
from support.wheels import batch, master_of


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()
    assert not rig.fatal
    assert rig.scripted.early() == 0


def refuse(*topics: str, answer: Answer = Answer.NOT_NOW) -> Script:
    return lambda topic, _: answer if topic in topics else Answer.ACCEPTED


def asleep(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how many seconds the hand wants to sleep, each time; 0 behind them while it is awake."""
    sleeps = [0.0]
    wait_for_due = master_of(rig.wheel).wait_for_due

    def note(until_ms: int | None, now_ms: int, timeout_s: float) -> None:
        until_s = timeout_s if until_ms is None else (until_ms - now_ms) / 1000
        sleeps.append(min(timeout_s, until_s))
        wait_for_due(until_ms, now_ms, timeout_s)
        sleeps.append(0.0)

    monkeypatch.setattr(master_of(rig.wheel), "wait_for_due", note)
    return sleeps


def numbered(topic: str, count: int, first: int = 0) -> list[tuple[str, bytes]]:
    return [(topic, b"%d" % n) for n in range(first, first + count)]


def test_a_chunk_begins_no_earlier_than_its_pace_says(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row each millisecond, and chunks 5 ms apart."""
    began: list[float] = []

    def note(_pace: Pace, began_s: float, _rows: int, _cost_s: float) -> float:
        began.append(began_s)
        return began_s + 0.005

    monkeypatch.setattr(Pace, "next_s", note)
    rig.start()
    rig.send(numbered("t", 400), range(200, 600))
    rig.wait(lambda: len(rig.scripted.taken) == 400)
    assert all(later - earlier >= 0.005 for earlier, later in itertools.pairwise(began))


def test_old_rows_are_caught_up_with_without_a_pause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "next_s", lambda *_: time.monotonic() + 3600)
    rig.send(numbered("t", 50), range(1_000, 51_000, 1_000))
    rig.clock.offset_ms += 60_000
    rig.start()
    rig.wait(lambda: len(rig.scripted.taken) == 50)


def test_rows_leave_at_their_millisecond(rig: Rig) -> None:
    rig.start()
    due = np.sort(np.random.default_rng(1).integers(-5, 1200, 2000)).tolist()
    rig.send(numbered("t", 2000), due)
    rig.wait(lambda: len(rig.scripted.taken) == 2000)
    assert rig.scripted.values("t") == [b"%d" % n for n in range(2000)]
    rig.wait(lambda: len(rig.events.late) == 2000)
    assert min(rig.events.late) >= 0
    assert rig.scripted.calls > 2, "not only at the edge of a second"


def test_a_row_that_comes_in_wakes_the_hand(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand, "WAIT_MAX_S", 600.0)  # nothing else wakes it
    sleeps = asleep(rig, monkeypatch)
    rig.send([("t", b"far")], 600_000)
    rig.start()
    rig.wait(lambda: sleeps[-1] > 100)
    rig.send([("t", b"near")], 30)
    rig.wait(lambda: rig.scripted.values("t") == [b"near"])
    monkeypatch.undo()  # or stopping would take as long
    rig.send([("t", b"last")])


def test_one_exception_is_an_alarm_and_the_next_rows_go_out(rig: Rig) -> None:
    failures = iter([RuntimeError("once"), OSError("twice")])

    def fail(_rows: pa.RecordBatch, _trial: bool) -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    rig.scripted.before = fail
    rig.start()
    rig.send(numbered("t", 10))
    rig.send(numbered("t", 10, 10), 1100)  # the next slot
    rig.wait(lambda: len(rig.scripted.taken) == 20)
    assert rig.scripted.values("t") == [b"%d" % n for n in range(20)]
    alarms = [text for kind, text in rig.events.notes if kind == "delivery-error"]
    assert alarms == ["RuntimeError: once", "OSError: twice"]


def test_a_sink_that_chokes_on_one_topic(rig: Rig) -> None:
    """Messages of the other topics leave."""

    def choke(rows: pa.RecordBatch, _trial: bool) -> None:
        if "poison" in rows.column("topic").to_pylist():
            raise ValueError("cannot encode")

    rig.scripted.before = choke
    rig.start()
    rig.send([("poison" if n == 50 else f"t{n % 3}", b"%d" % n) for n in range(100)])
    rig.send(numbered("t0", 10, 100), 50)
    rig.wait(lambda: len(rig.scripted.taken) == 109)
    assert master_of(rig.wheel).held_topics() == ["poison"]
    assert ("delivery-error", "ValueError: cannot encode") in rig.events.notes
    rig.scripted.before = lambda _rows, _trial: None
    rig.wait(lambda: rig.scripted.values("poison") == [b"50"])
    assert len(rig.scripted.taken) == 110


def test_a_topic_with_too_many_bytes_in_a_second_keeps_none_waiting(rig: Rig) -> None:
    """Its rows leave one after the other beside the others, and none of them is *held back*."""
    ready = threading.Event()

    def slow(rows: pa.RecordBatch, _trial: bool) -> None:
        if "large" in rows.column("topic").to_pylist():
            ready.wait(60)

    rig.scripted.before = slow
    second_ms = (rig.clock() // 1_000 + 4) * 1_000
    rows = [(second_ms + 900, "large", b"%d" % n + bytes(900_000)) for n in range(42)]
    rows += [(second_ms + 10 * n, "small", b"%d" % n) for n in range(90)]
    for part in range(0, len(rows), 16):  # a batch is smaller than that
        rig.wheel.append(batch(rows[part : part + 16]), rig.clock()).result(60)
    rig.start()
    rig.wait(lambda: len(rig.scripted.taken) == 90)
    assert rig.scripted.values("small") == [b"%d" % n for n in range(90)]
    ready.set()
    rig.wait(lambda: ("released", "large") in rig.events.notes)
    values = rig.scripted.values("large")
    assert [value.rstrip(b"\0") for value in values if value] == [b"%d" % n for n in range(42)]
    assert rig.events.notes == [("set aside", "large"), ("released", "large")]
    assert not rig.scripted.probes
    assert rig.scripted.early() == 0


def test_an_exception_outside_the_sink(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    next_chunk = master_of(rig.wheel).next_chunk
    failures = iter([RuntimeError("once")])

    def fail(now_ms: int) -> object:
        for error in failures:
            raise error
        return next_chunk(now_ms)

    monkeypatch.setattr(master_of(rig.wheel), "next_chunk", fail)
    rig.start()
    rig.send(numbered("t", 10))
    rig.wait(lambda: len(rig.scripted.taken) == 10)
    assert rig.events.notes == [("delivery-error", "RuntimeError: once")]


def test_a_failed_sync_ends_the_process(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    def fail(_rows: pa.RecordBatch, _trial: bool) -> None:
        raise SyncFailed("no disk")

    rig.scripted.before = fail
    rig.start()
    rig.send([("t", b"x")])
    deadline = time.monotonic() + PATIENCE_S
    while not rig.fatal and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [type(error) for error in rig.fatal] == [SyncFailed]
    assert rig.scripted.calls == 1
    rig.close()


def test_one_topic_is_held_back_and_the_others_go_on(rig: Rig) -> None:
    rig.scripted.script = refuse("bad")
    rig.start()
    rows = [("bad" if n % 3 == 0 else "good", b"%d" % n) for n in range(300)]
    rig.send(rows)
    rig.wait(lambda: len(rig.scripted.values("good")) == 200)
    rig.send([("good", b"later"), ("bad", b"last")], 50)
    rig.wait(lambda: len(rig.scripted.values("good")) == 201)
    assert master_of(rig.wheel).held_topics() == ["bad"]
    assert ("held", "bad") in rig.events.notes
    rig.scripted.script = refuse()
    rig.wait(lambda: len(rig.scripted.values("bad")) == 101)
    rig.wait(lambda: ("released", "bad") in rig.events.notes)
    wanted = [b"%d" % n for n in range(0, 300, 3)] + [b"last"]
    assert rig.scripted.values("bad") == wanted
    assert rig.scripted.probes["bad"] >= 1
    assert master_of(rig.wheel).held_topics() == []


def test_each_held_topic_tells_its_own_reason(rig: Rig) -> None:
    answers = {
        "away": Answer.NOT_NOW,
        "unclear": Answer.UNKNOWN,
        "refused": Answer.REFUSED,  # and its dead letters are not taken now
        DEAD_LETTER_TOPIC: Answer.NOT_NOW,
    }
    rig.scripted.script = lambda topic, _: answers.get(topic, Answer.ACCEPTED)
    rig.scripted.reason = lambda answer, topic: f"{answer.name} for {topic}"
    rig.send([(topic, b"%d" % n) for n in range(5) for topic in (*answers, "good")])
    rig.start()
    rig.wait(lambda: len(rig.events.why_held) == len(answers))
    assert rig.events.why_held == {
        "away": "NOT_NOW for away",
        "unclear": "UNKNOWN for unclear",
        "refused": f"NOT_NOW for {DEAD_LETTER_TOPIC}",
        DEAD_LETTER_TOPIC: f"NOT_NOW for {DEAD_LETTER_TOPIC}",
    }


@pytest.mark.parametrize("answer", [Answer.NOT_NOW, Answer.UNKNOWN])
def test_what_expires_in_a_topic_that_is_held_back_is_not_delivered(
    rig: Rig, answer: Answer
) -> None:
    rig.scripted.script = refuse("bad", answer=answer)
    rig.start()
    now = rig.clock()
    rows = [(now, "bad", b"%d" % number) for number in range(6)]
    times = [now + 300 if number % 2 else now + 600_000 for number in range(6)]
    rig.wheel.append(batch(rows, times), now).result(60)
    rig.wait(lambda: master_of(rig.wheel).held_topics() == ["bad"])
    rig.wait(lambda: rig.clock() >= now + 300)
    rig.scripted.script = refuse()
    rig.wait(lambda: ("released", "bad") in rig.events.notes)
    assert rig.scripted.values("bad") == [b"0", b"2", b"4"]
    assert rig.scripted.values(DEAD_LETTER_TOPIC) == [b"1", b"3", b"5"]
    assert rig.events.deaths == {EXPIRED: 3}
    status = rig.wheel.status()
    assert (status.delivered, status.dead, status.expired, status.pending) == (3, 0, 3, 0)


def test_a_topic_that_hangs_delays_nobody(rig: Rig) -> None:
    hangs, let_go = threading.Event(), threading.Event()

    def hang(rows: pa.RecordBatch, trial: bool) -> None:
        if trial and rows.column("topic")[0].as_py() == "hangs":
            hangs.set()
            let_go.wait(60)

    rig.scripted.script = refuse("hangs")
    rig.scripted.before = hang
    rig.start()
    rig.send([("hangs", b"1")])
    assert hangs.wait(60)
    rig.send(numbered("good", 500), list(range(500)))
    rig.wait(lambda: len(rig.scripted.values("good")) == 500)
    rig.scripted.script = refuse()
    let_go.set()
    rig.wait(lambda: rig.scripted.values("hangs") == [b"1"])


def test_a_held_topic_is_tried_less_and_less_often(rig: Rig) -> None:
    rig.scripted.script = refuse("bad")
    rig.start()
    began = time.monotonic()
    rig.send([("bad", b"1")])
    rig.wait(lambda: rig.scripted.probes["bad"] >= 5)
    # Each try after a probe, and before the five 50, 100, 200, 400, 800 ms.
    assert time.monotonic() - began >= 1.5
    rig.scripted.script = refuse()
    rig.wait(lambda: rig.scripted.values("bad") == [b"1"])


def test_a_held_topic_whose_slot_is_damaged_is_tried_less_and_less_often(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_topic: str, _now_ms: int) -> object:
        raise Damaged("slots/1.arrows", 0, expected="a", found="b")

    rig.scripted.script = refuse("bad")
    rig.start()
    with monkeypatch.context() as patched:
        patched.setattr(master_of(rig.wheel), "next_topic_chunk", fail)
        began = time.monotonic()
        rig.send([("bad", b"1")])
        rig.wait(lambda: rig.events.count("held-topic-error") >= 1)
        time.sleep(1)
        # 50, 100, 200, 400 and 800 ms after one another; the machine may make it fewer.
        tried = rig.events.count("held-topic-error")
        assert 0.05 * (2 ** (tried - 1) - 1) <= time.monotonic() - began
        rig.send([("good", b"2")])
        rig.wait(lambda: rig.scripted.values("good") == [b"2"])
    rig.scripted.script = refuse()
    rig.wait(lambda: rig.scripted.values("bad") == [b"1"])
    assert not caplog.records, "the alarm has all there is to tell"


def test_more_topics_than_can_be_held_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, WheelConfig(held_topics_max=8))
    bad = {f"bad-{n}" for n in range(12)}
    rig.scripted.script = refuse(*bad)
    rig.start()
    rows = [(topic, b"%d" % n) for n in range(20) for topic in sorted(bad)]
    for start in range(0, len(rows), 60):
        rig.send(rows[start : start + 60])
    time.sleep(0.5)
    assert len(master_of(rig.wheel).held_topics()) <= 8
    busy, began = rig.scripted.calls, time.monotonic()
    time.sleep(0.3)
    calls = rig.scripted.calls - busy
    assert calls < 130 * (time.monotonic() - began), "it must not spin"
    rig.scripted.script = refuse()
    rig.wait(lambda: len(rig.scripted.taken) == len(rows))
    for topic in bad:
        assert rig.scripted.values(topic) == [b"%d" % n for n in range(20)]
    rig.wait(lambda: not master_of(rig.wheel).held_topics())
    rig.close()
    assert not rig.fatal


def test_seventy_topics_held_back_one_after_the_other(rig: Rig) -> None:
    bad = [f"bad-{n}" for n in range(70)]
    rig.scripted.script = refuse(*bad)
    rig.start()
    for topic in bad:
        rig.send([(topic, b"1"), (topic, b"2"), ("good", b"g")])
        # One by one: a chunk with more new ones than there is room for holds back none of them.
        held = min(64, 1 + bad.index(topic))
        rig.wait(lambda held=held: len(master_of(rig.wheel).held_topics()) == held)  # type: ignore[misc]
    assert len(master_of(rig.wheel).held_topics()) == 64
    rig.scripted.script = refuse()
    rig.wait(lambda: len(rig.scripted.taken) == 210)
    assert all(rig.scripted.values(topic) == [b"1", b"2"] for topic in bad)
    assert len(rig.scripted.values("good")) == 70


def test_held_back_topics_leave_turns_to_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their chunks are taken in the hand's thread, however many topics there are."""
    bad = [f"bad-{n}" for n in range(30)]
    rig.scripted.script = refuse(*bad)
    rig.start()
    rig.send([(topic, b"1") for topic in bad])
    wheel = master_of(rig.wheel)
    rig.wait(lambda: len(wheel.held_topics()) == len(bad))
    taken: list[str] = []
    next_topic_chunk, next_chunk = wheel.next_topic_chunk, wheel.next_chunk

    def of_topic(topic: str, now_ms: int) -> Chunk | None:
        taken.append(topic)
        time.sleep(0.03)
        return next_topic_chunk(topic, now_ms)

    def of_others(now_ms: int) -> Chunk | None:
        taken.append("")
        return next_chunk(now_ms)

    monkeypatch.setattr(wheel, "next_topic_chunk", of_topic)
    monkeypatch.setattr(wheel, "next_chunk", of_others)
    rig.scripted.script = refuse()
    rig.wait(lambda: len(rig.scripted.taken) == len(bad))
    in_a_row = [len(list(group)) for held, group in itertools.groupby(taken, bool) if held]
    assert max(in_a_row) <= 3


def test_a_sink_that_is_down_loses_nothing(rig: Rig) -> None:
    """It is away across the due time, and however often it was tried."""

    def go_down(_rows: pa.RecordBatch, _trial: bool) -> None:
        if not rig.events.count("down"):
            rig.scripted.up = False

    rig.send(numbered("t", 10))
    rig.start()
    rig.wait(lambda: len(rig.scripted.taken) == 10)
    rig.scripted.before = go_down
    rig.send(numbered("t", 90, 10), list(range(500, 1220, 8)))
    rig.wait(lambda: rig.events.count("down") == 1)
    time.sleep(1.0)
    assert len(rig.scripted.taken) < 100
    rig.scripted.up = True
    rig.wait(lambda: len(rig.scripted.taken) == 100)
    assert rig.scripted.values("t") == [b"%d" % n for n in range(100)]
    assert rig.events.count("down") == rig.events.count("up") == 1
    assert master_of(rig.wheel).held_topics() == []


def test_one_bad_row_among_many_is_a_dead_letter(rig: Rig) -> None:
    """Its neighbours arrive, once each."""
    rig.scripted.script = lambda topic, value: (
        Answer.REFUSED if (topic, value) == ("t", b"50") else Answer.ACCEPTED
    )
    rig.start()
    rig.send(numbered("t", 100))
    rig.wait(lambda: len(rig.scripted.taken) == 100)
    assert rig.scripted.values("t") == [b"%d" % n for n in range(100) if n != 50]
    assert rig.scripted.values("slotwheel-dead-letters") == [b"50"]
    rig.wait(lambda: bool(rig.events.deaths))
    assert rig.events.deaths == {"REFUSED by script": 1}


def test_nothing_is_early_when_the_clock_steps(rig: Rig) -> None:
    """The fixture checks each row's due time against the clock at delivery."""
    rig.start()
    rig.send(numbered("t", 400), list(range(0, 1600, 4)))
    for step in (-2000, 1500, -300, 2000, -1200):
        time.sleep(0.15)
        rig.clock.offset_ms += step
    rig.wait(lambda: len(rig.scripted.taken) == 400)
    assert sorted(v or b"" for v in rig.scripted.values("t")) == sorted(
        b"%d" % n for n in range(400)
    )


def test_a_clock_that_stepped_back_is_one_alarm(rig: Rig) -> None:
    rig.start()
    rig.send([("t", b"1")])
    rig.wait(lambda: len(rig.scripted.taken) == 1)
    rig.clock.offset_ms = -60_000
    rig.wait(lambda: rig.events.count("clock-behind") > 0)
    time.sleep(0.3)
    assert rig.events.count("clock-behind") == 1
    rig.clock.offset_ms = 0
    rig.send([("t", b"2")])
    rig.wait(lambda: len(rig.scripted.taken) == 2)


def test_a_step_back_between_taking_and_handing_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.send([("t", b"1")], 300)
    next_chunk = master_of(rig.wheel).next_chunk
    stepped: list[int] = []

    def step_after(now_ms: int) -> object:
        chunk = next_chunk(now_ms)
        if chunk is not None and chunk.rows.num_rows and not stepped:
            stepped.append(rig.scripted.calls)
            rig.clock.offset_ms -= 400
        return chunk

    monkeypatch.setattr(master_of(rig.wheel), "next_chunk", step_after)
    rig.start()
    rig.wait(lambda: len(rig.scripted.taken) == 1)
    assert stepped == [0], "the clock stepped back with a chunk in hand"


def test_it_stops_at_once(rig: Rig) -> None:
    rig.send([("t", b"far")], 3_000_000)
    rig.start()
    rig.stop_hand()  # fails when it sleeps until then


def test_who_may_not_deliver_hands_nothing_over(rig: Rig) -> None:
    """A lease may end at every moment: also after a chunk was taken, also for held-back topics."""
    answers = iter([True, False] * 20)
    rig.hand._allowed = lambda: next(answers, False)
    rig.send([("t", b"x")])
    rig.start()
    time.sleep(0.3)
    assert rig.scripted.taken == []
    assert rig.wheel.status().delivered == 0
    rig.hand._allowed = lambda: False
    none = np.empty(0, np.int64)
    chunk = Chunk(OLD_ROW, "t", Mark(), Mark(), none, OLD_ROW, none)
    outcome = rig.hand._deliver_held(chunk)
    assert not outcome.answered.any()
    assert rig.scripted.taken == []
    rig.hand._allowed = lambda: True
    rig.wait(lambda: len(rig.scripted.taken) == 1)
    assert rig.hand._deliver_held(chunk).answered.all()


OLD_ROW = pa.RecordBatch.from_pylist(
    [
        {
            "offset": 9,
            "due": datetime.fromtimestamp(0, UTC),
            "created": datetime.fromtimestamp(0, UTC),
            "topic": "t",
            "headers": [],
        }
    ],
    schema=ROW,
)
