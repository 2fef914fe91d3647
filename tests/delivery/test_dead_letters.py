"""Dead letters: the row as it was, the reason, and a last resort that always takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.handover import hand_over
from slotwheel.delivery.sink import Answer, Answers
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.reading.topicreader import TopicReader, ids
from slotwheel.wheel.errors import InvalidMessage
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.files import OsFiles
from support.deliveries import MINT, NOW_MS, Sent, id_of, odd, rows_of
from support.handrig import ScriptedSink


@pytest.fixture
def local(tmp_path: Path) -> Iterator[EmbeddedSink]:
    sink = EmbeddedSink(OsFiles(tmp_path), MINT, lambda: NOW_MS)
    yield sink
    sink.close()


@pytest.fixture
def scripted() -> ScriptedSink:
    return ScriptedSink(lambda: NOW_MS)


def letters(path: Path, topic: str = DEAD_LETTER_TOPIC) -> list[dict[str, object]]:
    reader = TopicReader(OsFiles(path), topic)
    found: list[dict[str, object]] = []
    for batch in reader.batches():
        for row, id_ in zip(batch.to_pylist(), ids(batch), strict=True):
            headers = [(h["key"], h["value"]) for h in row["headers"]]
            found.append({**row, "headers": headers, "id": id_})
    reader.close()
    return found


def test_a_letter_is_the_row_and_the_reason(local: EmbeddedSink, tmp_path: Path) -> None:
    sent = [*odd("target"), Sent("target", b"p", partition=3)]
    buried = DeadLetters(local, None).bury(
        rows_of(sent, 9), [f"why {n}" for n in range(len(sent))], []
    )
    assert buried.which(Answer.ACCEPTED).all()
    found = letters(tmp_path)
    assert [(f["key"], f["value"]) for f in found] == [(s.key, s.value) for s in sent]
    assert [f["id"] for f in found] == [id_of(s, 9 + n) for n, s in enumerate(sent)]
    for number, (letter, row) in enumerate(zip(found, sent, strict=True)):
        asked = [("slotwheel-dead-partition", b"3")] if row.partition is not None else []
        connect = [("__connect.errors.partition", b"3")] if row.partition is not None else []
        assert letter["headers"] == [
            *row.headers,
            ("slotwheel-dead-stage", b"delivery"),
            ("slotwheel-dead-reason", b"refused"),
            ("slotwheel-dead-error", b"why %d" % number),
            ("slotwheel-dead-topic", b"target"),
            *asked,
            ("__connect.errors.topic", b"target"),
            *connect,
            ("__connect.errors.connector.name", b"slotwheel"),
            ("__connect.errors.stage", b"delivery"),
            ("__connect.errors.exception.class.name", b"refused"),
            ("__connect.errors.exception.message", b"why %d" % number),
        ]
        assert letter["partition"] is None


def test_what_the_dead_letter_topic_refuses_goes_to_the_data_directory(
    scripted: ScriptedSink, local: EmbeddedSink, tmp_path: Path
) -> None:
    scripted.script = lambda _, value: Answer.REFUSED if value == b"huge" else Answer.ACCEPTED
    buried = DeadLetters(scripted, local).bury(
        rows_of([Sent("t", b"1"), Sent("t", b"huge"), Sent("t", b"3")]), ["a", "b", "c"], []
    )
    assert buried.which(Answer.ACCEPTED).all()
    assert scripted.values(DEAD_LETTER_TOPIC) == [b"1", b"3"]
    assert [f["value"] for f in letters(tmp_path)] == [b"huge"]


def test_a_row_for_the_dead_letter_topic_itself(
    scripted: ScriptedSink, local: EmbeddedSink, tmp_path: Path
) -> None:
    scripted.script = lambda *_: Answer.REFUSED
    rows = rows_of([Sent(DEAD_LETTER_TOPIC, b"x")])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.complete
    assert scripted.calls == 1
    assert [f["value"] for f in letters(tmp_path)] == [b"x"]


def test_not_now_for_the_letter_leaves_the_row_unanswered(
    scripted: ScriptedSink, local: EmbeddedSink
) -> None:
    def script(topic: str, value: bytes | None) -> Answer:
        if topic == DEAD_LETTER_TOPIC:
            return Answer.NOT_NOW
        return Answer.REFUSED if value == b"bad" else Answer.ACCEPTED

    scripted.script = script
    rows = rows_of([Sent("t", b"good"), Sent("t", b"bad"), Sent("u", b"good")])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.answered.tolist() == [True, False, True]
    assert outcome.accepted.tolist() == [True, False, True]
    assert outcome.dead == {}
    assert outcome.why_not == "NOT_NOW by script"


def test_a_sink_that_raises_for_the_letter(scripted: ScriptedSink, local: EmbeddedSink) -> None:
    def choke(rows: pa.RecordBatch, _trial: bool) -> None:
        if rows.column("topic")[0].as_py() == DEAD_LETTER_TOPIC:
            raise ValueError("cannot encode")

    scripted.before = choke
    scripted.script = lambda topic, _: Answer.REFUSED if topic == "bad" else Answer.ACCEPTED
    rows = rows_of([Sent("bad"), Sent("good")])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.answered.tolist() == [False, True]
    assert outcome.errors == ["ValueError: cannot encode"]
    assert outcome.why_not == "ValueError: cannot encode"


def test_reasons_are_counted(scripted: ScriptedSink, local: EmbeddedSink) -> None:
    scripted.script = lambda topic, _: Answer.REFUSED if topic == "bad" else Answer.ACCEPTED
    rows = rows_of([Sent("bad"), Sent("good"), Sent("bad")])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.complete
    assert outcome.dead == {"REFUSED by script": 2}
    assert outcome.dead.total() == 2
    assert outcome.accepted.tolist() == [False, True, False]


def test_a_long_text_is_cut(local: EmbeddedSink, tmp_path: Path) -> None:
    DeadLetters(local, None).bury(rows_of([Sent("t")]), ["é" * 5000], [])
    (letter,) = letters(tmp_path)
    headers = letter["headers"]
    assert isinstance(headers, list)
    assert dict(headers)["slotwheel-dead-error"] == "é".encode() * 500


def test_an_illegal_dead_letter_topic_is_refused_at_once(scripted: ScriptedSink) -> None:
    with pytest.raises(InvalidMessage, match="illegal topic name"):
        DeadLetters(scripted, None, "not a topic")


class FaultySink(ScriptedSink):
    """Takes the first topic and raises; from then on it cannot be reached."""

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("a fault behind the first topic")
        return Answers.same(rows.num_rows, Answer.NOT_NOW, "unreachable", down=True)


def test_what_may_have_been_sent_before_a_sink_raised_is_unknown() -> None:
    sink = FaultySink(lambda: NOW_MS)
    outcome = hand_over(sink, DeadLetters(sink, None), rows_of([Sent("a"), Sent("b")]), NOW_MS)
    assert outcome.unknown.tolist() == [True, True]
    assert not outcome.answered.any()


def expiring(value: bytes, in_ms: int, topic: str = "t") -> Sent:
    return Sent(topic, value, headers=((EXPIRES_HEADER, b"%d" % (NOW_MS + in_ms)),))


def test_a_row_expires_with_its_millisecond(scripted: ScriptedSink, local: EmbeddedSink) -> None:
    rows = rows_of([expiring(b"over", 0), Sent("t", b"lasting"), expiring(b"last ms", 1)])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.complete
    assert outcome.accepted.tolist() == [False, True, True]
    assert (outcome.expired, outcome.dead.total()) == (1, 0)
    assert scripted.values("t") == [b"lasting", b"last ms"]
    assert scripted.values(DEAD_LETTER_TOPIC) == [b"over"]


def test_an_expired_row_for_the_dead_letters_gets_there(
    scripted: ScriptedSink, local: EmbeddedSink
) -> None:
    outcome = hand_over(
        scripted,
        DeadLetters(scripted, local),
        rows_of([expiring(b"over", 0, DEAD_LETTER_TOPIC)]),
        NOW_MS,
    )
    assert outcome.complete
    assert scripted.values(DEAD_LETTER_TOPIC) == [b"over"]


def test_an_expired_row_whose_letter_is_not_taken_is_not_answered(
    scripted: ScriptedSink, local: EmbeddedSink
) -> None:
    scripted.script = lambda topic, _: (
        Answer.NOT_NOW if topic == DEAD_LETTER_TOPIC else Answer.ACCEPTED
    )
    rows = rows_of([expiring(b"over", 0), Sent("u", b"good")])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.answered.tolist() == [False, True]
    assert outcome.expired == 0
    assert outcome.why_not == "NOT_NOW by script"


def test_a_row_that_has_expired_and_one_that_is_refused_are_told_apart(
    scripted: ScriptedSink, local: EmbeddedSink, tmp_path: Path
) -> None:
    scripted.script = lambda topic, _: Answer.REFUSED if topic == "bad" else Answer.ACCEPTED
    rows = rows_of([Sent("bad", b"1"), expiring(b"2", 0), Sent("good", b"3")])
    outcome = hand_over(scripted, DeadLetters(scripted, local), rows, NOW_MS)
    assert outcome.complete
    assert outcome.dead == {"REFUSED by script": 1}
    assert outcome.expired == 1
    assert scripted.values(DEAD_LETTER_TOPIC) == [b"1", b"2"]
