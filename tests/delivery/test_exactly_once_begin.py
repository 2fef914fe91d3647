"""When exactly-once into Kafka begins, and when it refuses to: no broker, a scripted one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from slotwheel.delivery.kafka.exactly_once import KafkaExactlyOnce
from slotwheel.delivery.kafka.plan import KafkaSettings, SendFailure, SendPlan
from slotwheel.delivery.kafka.sink import KafkaSink
from slotwheel.delivery.kafka.sinkmark import (
    ForeignMark,
    NamesMissing,
    decode,
    encode,
    group_print,
)
from slotwheel.delivery.kafka.topicbook import Found, NotYet, TopicInfo, Unreachable
from slotwheel.delivery.kafka.transactions import (
    Aborted,
    Fenced,
    Refused,
    StoredMark,
    Transactions,
    Unclear,
)
from slotwheel.delivery.semantics import NotReady
from slotwheel.wheel.errors import Overloaded
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.mark import BY_KAFKA, Mark, Marks, TopicMark
from support.deliveries import MINT
from support.handrig import Recorder

GROUP = group_print(MINT)
OTHER = group_print(IdMint("default", b"another 16 bytes"))
KNOWN = Marks(Mark(5_000, 7, 9), 3, {"held": TopicMark(Mark(4_000, 1, 9), 2)}, 11, 1, 9, 1, 2)
"""What the journal has."""
FORMER = (Mark(9_000, 4, 9),)
SET_BACK = replace(
    KNOWN,
    main=replace(KNOWN.main, former=FORMER),
    copies={"held": TopicMark(Mark(4_000, 1, 9, FORMER), 2)},
    resets=1,
)
NEWER = replace(KNOWN, main=Mark(5_100, 20, 22), epoch=2, delivered=20, exact=BY_KAFKA)


class ScriptedTransactions(Transactions):
    """Answers by script; ``told``: what was asked, in order."""

    def __init__(self) -> None:
        super().__init__(KafkaSettings("nowhere:1"), "group", "dead")
        self.stored: StoredMark | None = None
        self.fails: dict[str, Exception] = {}
        self.told: list[str] = []
        self.committed: list[tuple[int, str]] = []

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what in self.fails:
            raise self.fails[what]

    def start(self) -> StoredMark | None:
        self._tell("start")
        return self.stored

    def begin(self) -> None:
        self._tell("begin")

    def send(self, plan: SendPlan, *, singly: bool = False) -> dict[int, SendFailure]:
        self._tell("send")
        return {}

    def commit(self, offset: int, metadata: str) -> None:
        self._tell("commit")
        self.committed.append((offset, metadata))

    def abort(self) -> None:
        self._tell("abort")

    def close(self) -> None:
        self._tell("close")


class NoSink(KafkaSink):
    """``topic``: what is known of the dead-letter topic."""

    topic: Found | Unreachable = TopicInfo(1)

    @staticmethod
    def make_transactions(settings: KafkaSettings, group: str, topic: str) -> Transactions:
        raise NotImplementedError

    def _fetch(self, topics: Sequence[str]) -> dict[str, Found]:
        if isinstance(self.topic, Unreachable):
            raise self.topic
        return dict.fromkeys(topics, self.topic)

    def _send(self, plan: SendPlan, timeout_s: float, *, trial: bool) -> dict[int, SendFailure]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Journal:
    """The part of a dispatcher that ``begin`` asks."""

    def __init__(self, marks: Marks = KNOWN) -> None:
        self.marks = marks
        self.settled = True
        self.certain = False
        self.left = True
        self.set_back = False
        self.end_offset = 1 << 40
        self.resumed: list[Marks] = []

    def settle(self, _now_ms: int) -> bool:
        return self.settled

    def may_have_left(self) -> bool:
        return self.left

    def resume(self, _now_ms: int, marks: Marks, *, exact: int, certain: bool) -> None:
        assert exact == BY_KAFKA
        if self.set_back:
            raise Overloaded("it was set back meanwhile")
        self.resumed.append(marks)
        self.certain = certain


class Stage:
    def __init__(self, *, accept_repeats: bool = False, alone: bool = True) -> None:
        self.transactions = ScriptedTransactions()
        settings = KafkaSettings("nowhere:1", unknown_topic_after_s=0.0)
        self.sink = NoSink(MINT, settings, self.transactions)
        self.events = Recorder()
        self.once = KafkaExactlyOnce(
            self.sink, "dead", self.events, alone=alone, accept_repeats=accept_repeats
        )

    def begin(self, journal: Journal) -> None:
        wheel: Any = journal
        self.once.begin(wheel, 0)

    def stores(self, marks: Marks, group: bytes = GROUP, members: int = 0) -> None:
        self.transactions.stored = StoredMark(marks.answered, encode(marks, group), members)


def test_the_order_of_a_beginning() -> None:
    stage, journal = Stage(), Journal()
    stage.stores(NEWER)
    stage.begin(journal)
    assert stage.transactions.told == ["start", "begin", "commit"]
    ((offset, text),) = stage.transactions.committed
    own = decode(text, GROUP, ["held"])
    assert own == replace(NEWER, epoch=KNOWN.epoch), "this epoch's own"
    assert offset == NEWER.delivered + NEWER.dead + NEWER.expired
    assert journal.resumed == [NEWER]
    assert journal.certain


@pytest.mark.parametrize(
    ("kafka", "journal", "goes_on_from"),
    [
        (None, KNOWN, "journal"),
        (replace(KNOWN, main=Mark(4_900, 0, 9)), KNOWN, "journal"),
        (NEWER, KNOWN, "kafka"),
        (replace(KNOWN, delivered=8), KNOWN, "kafka"),
        (replace(KNOWN, copies={"released since": TopicMark(Mark())}), KNOWN, "journal"),
        (NEWER, replace(KNOWN, exact=BY_KAFKA), "kafka"),
        (NEWER, replace(KNOWN, resets=1), "journal"),  # set back since
        (replace(NEWER, resets=1), replace(KNOWN, resets=1), "kafka"),
        (replace(NEWER, resets=1), SET_BACK, "kafka, with former marks"),
    ],
)
def test_which_mark_it_goes_on_from(kafka: Marks | None, journal: Marks, goes_on_from: str) -> None:
    stage, wheel = Stage(), Journal(journal)
    if kafka is not None:
        stage.stores(kafka)
    stage.begin(wheel)
    expected = journal if goes_on_from == "journal" else replace(kafka or KNOWN, exact=BY_KAFKA)
    if "former" in goes_on_from:
        main = replace(NEWER.main, former=FORMER)
        expected = replace(NEWER, main=main, copies=SET_BACK.copies, resets=1)
    assert wheel.resumed == [expected]


FLAGGED = replace(KNOWN, exact=BY_KAFKA)


def test_a_mark_that_was_set_back_more_often_than_the_journals() -> None:
    stage = Stage()
    stage.stores(replace(NEWER, resets=1))
    with pytest.raises(NotReady, match="old copy"):
        stage.begin(Journal())


def test_a_mark_that_is_set_back_while_it_begins_is_asked_for_again() -> None:
    stage, journal = Stage(accept_repeats=True), Journal(FLAGGED)
    journal.set_back = True
    with pytest.raises(NotReady, match="set back meanwhile"):
        stage.begin(journal)
    journal.set_back = False
    stage.begin(journal)
    assert journal.resumed == [FLAGGED]


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (None, "holds no mark of this group any more"),
        (StoredMark(1, encode(KNOWN, OTHER)), "another data directory"),
        (StoredMark(1, "somebody's note"), "somebody else has committed it"),
        (StoredMark(1, ""), "somebody else has committed it"),
        (StoredMark(1, encode(replace(KNOWN, epoch=4), GROUP)), "is of epoch 4, this node is in 3"),
    ],
)
def test_nobody_knows_what_has_left(stored: StoredMark | None, says: str) -> None:
    """Nothing is delivered by guessing, until a person accepts repeats, once."""
    stage, journal = Stage(), Journal(FLAGGED)
    stage.transactions.stored = stored
    with pytest.raises(NotReady, match=says):
        stage.begin(journal)
    assert stage.transactions.told == ["start"]
    assert not journal.resumed
    told = Stage(accept_repeats=True)
    told.transactions.stored = stored
    told.begin(journal)
    assert journal.resumed == [FLAGGED]
    assert not journal.certain
    assert told.events.count("repeats-accepted") == 1
    told.transactions.in_doubt = True
    with pytest.raises(NotReady, match=says):
        told.begin(journal)


def test_without_a_mark_it_goes_on_where_nothing_else_can_have_left() -> None:
    """By the journal; later in the epoch, as each commit was seen to end."""
    stage, journal = Stage(), Journal(FLAGGED)
    journal.left = False
    stage.begin(journal)
    assert journal.resumed == [FLAGGED]
    assert journal.certain
    journal.left = True
    stage.begin(journal)
    assert journal.resumed == [FLAGGED] * 2
    stage.transactions.in_doubt = True
    with pytest.raises(NotReady, match="dead purge"):
        stage.begin(journal)


def test_marks_that_contradict_each_other() -> None:
    stage = Stage()
    stage.stores(replace(KNOWN, main=Mark(6_000, 0, 3)))
    with pytest.raises(NotReady, match="contradict"):
        stage.begin(Journal())


def test_a_journal_that_is_older_than_kafkas_mark() -> None:
    """Its next messages would get numbers that the mark covers already."""
    stage, journal = Stage(), Journal()
    journal.end_offset = NEWER.main.L
    stage.stores(NEWER)
    with pytest.raises(NotReady, match="is an old copy"):
        stage.begin(journal)


def test_a_later_epoch_is_not_overridden_where_another_peer_may_be_the_master() -> None:
    stage, journal = Stage(accept_repeats=True, alone=False), Journal()
    stage.stores(replace(NEWER, epoch=KNOWN.epoch + 1))
    with pytest.raises(NotReady, match="is of epoch"):
        stage.begin(journal)


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        (None, "dead-letter topic dead does not exist"),
        (NotYet("topic dead: 1 partitions without a leader"), "without a leader"),
        (Unreachable("Kafka at nowhere:1: no answer"), "no answer"),
    ],
)
def test_without_the_dead_letter_topic_no_id_is_taken_over(
    topic: Found | Unreachable, says: str
) -> None:
    stage = Stage()
    stage.sink.topic = topic
    with pytest.raises(NotReady, match=says):
        stage.begin(Journal())
    assert stage.transactions.told == []


@pytest.mark.parametrize("step", ["start", "begin", "commit"])
@pytest.mark.parametrize(
    "error",
    [
        Fenced("another master"),
        Unclear("no answer"),
        Aborted("a row"),
        Unreachable("away"),
        Refused.rights("id", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_each_step_may_fail_and_is_tried_again(step: str, error: Exception) -> None:
    stage, journal = Stage(), Journal()
    stage.transactions.fails[step] = error
    with pytest.raises(NotReady):
        stage.begin(journal)
    assert not journal.resumed
    stage.transactions.fails.clear()
    stage.begin(journal)
    assert journal.resumed == [KNOWN]


def test_what_is_not_in_the_journal_yet_is_waited_for() -> None:
    stage, journal = Stage(), Journal()
    journal.settled = False
    with pytest.raises(NotReady, match="not committed yet"):
        stage.begin(journal)
    assert stage.transactions.told == []


def test_members_of_the_group_are_an_alarm() -> None:
    stage, journal = Stage(), Journal()
    stage.stores(NEWER, members=2)
    stage.begin(journal)
    assert stage.events.count("group-has-members") == 1


def test_64_topics_with_the_longest_names_fit() -> None:
    names = [f"{n:03d}".ljust(249, "x") for n in range(64)]
    copies = {name: TopicMark(Mark(1 << 60, (1 << 62) + n, n), n) for n, name in enumerate(names)}
    marks = replace(NEWER, copies=copies)
    text = encode(marks, GROUP)
    assert len(text) == 3_532
    assert decode(text, GROUP, names) == marks
    with pytest.raises(NamesMissing):
        decode(text, GROUP, names[1:])
    for bad in (text[:-4], "B" + text[1:], text + "AAAA", "é"):
        with pytest.raises(ForeignMark):
            decode(bad, GROUP, names)
