"""Each way in which a message can leave is kept, before the mark can pass it; nothing stops it."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel.delivery import departures as module
from slotwheel.delivery.semantics import AtMostOnce
from slotwheel.delivery.sink import Answer
from slotwheel.reading.departures import DepartureQuery, DepartureReader
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.departurefile import path_of
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.files import OsHandle
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import times
from support.handrig import Rig
from support.onehand import T0, one_hand

REFUSED, LATER, GOOD = "refused", "later", "good"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def sent(rig: Rig, topic: str, due_in_ms: int = 0, headers: Any = ()) -> MessageId:
    """One message, with its topic as key."""
    now = rig.clock()
    rows = from_columns([now + due_in_ms], [topic], [None], [topic], [b"value"], [headers])
    receipt = rig.wheel.append(rows, now).result(60)
    return rig.wheel.mint.one(int(receipt.due[0]), receipt.base_offset)


def seen(rig: Rig, *ids: MessageId) -> list[list[tuple[str, str]]]:
    """How each of them left, and for which topic; in the order of time."""
    reader = DepartureReader(Path(rig.files.root))
    found = reader.find([(one.due, one.offset) for one in ids])
    assert not reader.problems
    return [
        [(one.state, one.topic) for one in found.get((each.due, each.offset), [])] for each in ids
    ]


def test_every_way_to_leave(rig: Rig) -> None:
    answers = {REFUSED: Answer.REFUSED}
    rig.scripted.script = lambda topic, _: answers.get(topic, Answer.ACCEPTED)
    now = rig.clock()
    good, refused = sent(rig, GOOD), sent(rig, REFUSED)
    soon = [(EXPIRES_HEADER, str(now + 50_000).encode())]
    expired = sent(rig, GOOD, 30_500, soon)
    early = sent(rig, GOOD, 30_000)
    late = sent(rig, GOOD, 20_000)
    assert rig.wheel.cancel([str(early)], rig.clock()) == ["cancelled"]
    assert rig.wheel.cancel([str(late)], rig.clock()) == ["cancelled"]
    rig.clock.offset_ms += 60_000
    rig.start()
    rig.wait(lambda: all(seen(rig, good, refused, expired, early, late)))
    rig.stop_hand()
    assert seen(rig, good, refused, expired, early, late) == [
        [("delivered", GOOD)],
        [("dead", REFUSED)],
        [("expired", GOOD)],
        [("cancelled", GOOD)],
        [("cancelled", GOOD)],
    ]
    [[found]] = DepartureReader(Path(rig.files.root)).find([(good.due, good.offset)]).values()
    assert now <= found.created_ms <= found.left_ms <= rig.clock()


def test_a_topic_that_is_held_back(rig: Rig) -> None:
    """Its rows are there when they have left, and its cancelled row once."""
    answers = {LATER: Answer.NOT_NOW}
    rig.scripted.script = lambda topic, _: answers.get(topic, Answer.ACCEPTED)
    held, cancelled, last = (sent(rig, LATER, after) for after in (0, 200, 200))
    good = sent(rig, GOOD, 200)
    assert rig.wheel.cancel([str(cancelled)], rig.clock()) == ["cancelled"]
    rig.start()
    rig.wait(lambda: seen(rig, good) == [[("delivered", GOOD)]])
    assert seen(rig, held, last) == [[], []]
    answers.clear()
    rig.wait(lambda: rig.wheel.status().pending == 0)
    delivered = [("delivered", LATER)]
    rig.wait(lambda: seen(rig, held, last) == [delivered, delivered])
    rig.wait(lambda: seen(rig, cancelled) == [[("cancelled", LATER)]])


def test_a_topic_that_is_held_back_behind_its_cancelled_row(rig: Rig) -> None:
    """The chunk that the sink did not take had the row, and the topic's own line reads it again."""
    answers = {LATER: Answer.NOT_NOW}
    rig.scripted.script = lambda topic, _: answers.get(topic, Answer.ACCEPTED)
    held, cancelled, good = (sent(rig, topic) for topic in (LATER, LATER, GOOD))
    assert rig.wheel.cancel([str(cancelled)], rig.clock()) == ["cancelled"]
    rig.start()
    rig.wait(lambda: seen(rig, good) == [[("delivered", GOOD)]])
    answers.clear()
    rig.wait(lambda: rig.wheel.status().pending == 0)
    rig.wait(lambda: seen(rig, held) == [[("delivered", LATER)]])
    assert seen(rig, cancelled) == [[("cancelled", LATER)]]


def test_it_is_kept_before_the_wheel_hears_of_it(rig: Rig) -> None:
    """As a mark may be written at once behind the answer."""
    master: Any = rig.hand._wheel
    answer = master.answer
    before: list[bool] = []

    def look(chunk: Any, answered: Any, *rest: Any, **more: Any) -> None:
        rows = chunk.rows
        columns = (times(rows, "due").tolist(), times(rows, "offset").tolist(), answered.tolist())
        keys = {(due, offset) for due, offset, done in zip(*columns, strict=True) if done}
        before.append(DepartureReader(Path(rig.files.root)).find(keys).keys() == keys)
        answer(chunk, answered, *rest, **more)

    master.answer = look
    sent(rig, GOOD)
    cancelled = sent(rig, GOOD)
    rig.wheel.cancel([str(cancelled)], rig.clock())
    rig.start()
    rig.wait(lambda: rig.wheel.status().pending == 0)
    rig.wait(lambda: all(seen(rig, cancelled)))
    rig.stop_hand()
    assert before
    assert all(before)


def test_a_chunk_that_comes_again_says_once_what_was_cancelled(rig: Rig) -> None:
    rig.scripted.up = False
    first, cancelled = sent(rig, GOOD), sent(rig, GOOD)
    assert rig.wheel.cancel([str(cancelled)], rig.clock()) == ["cancelled"]
    rig.start()
    rig.wait(lambda: rig.scripted.calls >= 1 and rig.events.count("down") >= 1)
    rig.scripted.up = True
    rig.wait(lambda: all(seen(rig, first, cancelled)))
    rig.stop_hand()
    assert seen(rig, first, cancelled) == [[("delivered", GOOD)], [("cancelled", GOOD)]]


def test_what_may_be_lost_under_at_most_once_is_unclear(tmp_path: Path) -> None:
    rig = Rig(tmp_path, semantics=AtMostOnce)
    rig.scripted.script = lambda topic, _: Answer.UNKNOWN if topic == LATER else Answer.ACCEPTED
    ids = [sent(rig, GOOD), sent(rig, LATER)]
    rig.start()
    rig.wait(lambda: rig.wheel.status().pending == 0)
    rig.stop_hand()
    assert seen(rig, *ids) == [[("delivered", GOOD)], [("unknown", LATER)]]
    rig.close()


def test_exactly_once_into_kafka(tmp_path: Path) -> None:
    """What leaves in a transaction that fails has not left."""
    with one_hand(tmp_path, WheelConfig(mark_interval_ms=1)) as rig:
        rig.broker.blocked = {"b"}
        rig.node.send([(T0 + n, topic, topic.encode()) for n, topic in enumerate("abc")], T0)
        rig.now_ms = T0 + 10
        rig.turn(20)
        reader = DepartureReader(tmp_path)
        keys = [(T0 + n, n) for n in range(3)]
        assert reader.find(keys).keys() == {keys[0], keys[2]}
        rig.broker.blocked = set()
        while not rig.got[b"b"]:
            rig.turn()
        rig.turn()
        assert {key: len(found) for key, found in reader.find(keys).items()} == dict.fromkeys(
            keys, 1
        )
        assert rig.got == Counter([b"a", b"b", b"c"])


def test_a_full_disk_stops_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be kept is counted; a while later it is tried again, in a file of its own."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.2)
    pwrite, full = OsHandle.pwrite, [True]

    def write(self: OsHandle, parts: Any, position: int) -> int:
        if full[0] and ".departures" in self._path:
            pwrite(self, [b"".join(parts)[:7]], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(self, parts, position)

    monkeypatch.setattr(OsHandle, "pwrite", write)
    lost = [sent(rig, GOOD), sent(rig, GOOD, 20)]
    rig.start()
    rig.wait(lambda: rig.wheel.status().delivered == 2)
    assert rig.events.count("not kept") == 2
    assert "No space left" in dict(rig.events.notes)["not kept"] or len(rig.events.notes) == 2
    full[0] = False
    kept: list[MessageId] = []

    def is_kept() -> bool:
        kept.append(sent(rig, GOOD))
        rig.wait(lambda: rig.wheel.status().pending == 0)
        return rig.events.count("not kept") < 1 + len(kept)

    rig.wait(is_kept)
    rig.stop_hand()
    assert seen(rig, *lost) == [[], []]
    assert seen(rig, kept[-1]) == [[("delivered", GOOD)]]


def test_the_reserve_of_the_disk_is_left_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.departures._reserve_bytes = 1 << 62
    sent(rig, GOOD)
    rig.start()
    rig.wait(lambda: rig.wheel.status().delivered == 1)
    rig.stop_hand()
    assert ("not kept", "the disk has no more free than its reserve") in rig.events.notes
    assert not (tmp_path / "departures").exists()
    rig.close()


def test_files_are_of_an_hour_and_go_when_they_are_old(rig: Rig) -> None:
    folder = Path(rig.files.root) / "departures"
    rig.start()
    ids = []
    for _ in range(3):
        ids.append(sent(rig, GOOD))
        rig.wait(lambda: rig.wheel.status().pending == 0)
        rig.clock.offset_ms += 3_600_001
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 3
    stranger = folder / "notes.txt"
    stranger.touch()
    assert rig.departures.clean(rig.clock() - 3_600_001) == 1
    assert sorted(path.name for path in folder.glob("*.departures")) == names[1:]
    assert stranger.exists()
    assert rig.departures.clean(rig.clock() + 100_000_000) == 1, "the one that is written stays"
    rig.stop_hand()
    assert seen(rig, *ids) == [[], [], [("delivered", GOOD)]]


def test_a_clock_that_is_set_back_begins_no_file_before_another(rig: Rig) -> None:
    rig.start()
    folder = Path(rig.files.root) / "departures"
    first = sent(rig, GOOD)
    rig.wait(lambda: rig.wheel.status().pending == 0)
    [name] = [path.name for path in folder.iterdir()]
    rig.departures.close()
    later = int(name.partition(".")[0]) + 1_000_000
    (folder / name).rename(Path(rig.files.root) / path_of(later))
    second = sent(rig, GOOD)
    rig.wait(lambda: rig.wheel.status().pending == 0)
    rig.stop_hand()
    assert [path.name for path in sorted(folder.iterdir())][1] == path_of(later + 1)[11:]
    assert seen(rig, first, second) == [[("delivered", GOOD)]] * 2


def test_search_by_topic_key_state_and_time(rig: Rig) -> None:
    rig.scripted.script = lambda topic, _: Answer.REFUSED if topic == REFUSED else Answer.ACCEPTED
    rig.start()
    begun = rig.clock()
    for topic in (GOOD, REFUSED, LATER, GOOD):
        sent(rig, topic)
        rig.wait(lambda: rig.wheel.status().pending == 0)
    rig.stop_hand()
    reader = DepartureReader(Path(rig.files.root))

    def offsets(limit: int = 100, **conditions: Any) -> list[int]:
        found = reader.search(DepartureQuery(**conditions), limit=limit)
        return list(found.column("offset").to_pylist())

    first, refused, later, last = offsets()
    assert offsets(topics=[GOOD]) == [first, last]
    assert offsets(topics=[GOOD], limit=1) == [first]
    # The key of a letter is that of its message.
    assert offsets(key=LATER.encode()) == [later]
    assert offsets(states=["dead"]) == [refused]
    assert offsets(start_ms=begun, end_ms=rig.clock() + 1) == [first, refused, later, last]
    assert offsets(end_ms=begun) == []
    assert offsets(topics=["none"]) == []
