"""What became of an id: true, or unknown with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.policy.deadletters import EXPIRED
from slotwheel.wheel.state import StateUpdate
from support.datadirs import START_MS, SinkNode, messages
from support.wheels import master_of, next_chunk

from .conftest import Searching

SOON, FAR = START_MS + 1_000, START_MS + 60_000


class BuryingNode(SinkNode):
    """Messages to the topic "refused" are dead letters, those to "expired" expire."""

    def bury(self, until_ms: int) -> None:
        self.now = until_ms
        letters = DeadLetters(self.sink, None)
        while (chunk := next_chunk(self.wheel, self.now, self.sync)) is not None:
            topic = chunk.rows.column("topic")
            refused, expired = (pc.equal(topic, name) for name in ("refused", "expired"))
            good = chunk.rows.filter(pc.invert(pc.or_(refused, expired)))
            self.sink.deliver(good)
            for which, reason in ((refused, "no such topic"), (expired, EXPIRED)):
                rows = chunk.rows.filter(which)
                if rows.num_rows:
                    letters.bury(rows, [reason] * rows.num_rows, [])
            dead, past = (pc.sum(one).as_py() or 0 for one in (refused, expired))
            every = np.ones(chunk.rows.num_rows, np.bool_)
            master_of(self.wheel).answer(chunk, every, dead, expired=past)
        self.mark(self.now)


def leave(node: BuryingNode) -> None:
    """Rows that have left are gone from slot files and from the journal."""
    node.bury(SOON + 2_000)
    node.spill()
    node.wheel.clean(node.now)
    assert node.wheel.status().tail_rows == 0


def test_every_fate(tmp_path: Path, searching: Searching) -> None:
    node = BuryingNode(tmp_path)
    gone = [
        *node.append(messages([SOON], topic="orders")),
        *node.append(messages([SOON], topic="refused")),
        *node.append(messages([SOON], topic="expired")),
    ]
    [cancelled, far] = node.append(messages([FAR, FAR]))
    assert node.blocking(lambda: node.wheel.cancel([cancelled], node.now)) == ["cancelled"]
    ids = [*gone, cancelled, far]
    search = searching(tmp_path)
    states = [one.state for one in search.find(ids).result()]
    assert states == ["pending", "pending", "pending", "cancelled", "pending"]
    leave(node)
    [*left, last, pending] = search.find(ids).result()
    assert [one.state for one in left] == ["delivered", "dead", "expired"]
    assert "topic orders" in left[0].why
    assert last.state == "cancelled"
    assert pending.state == "pending"
    assert pending.row is not None
    assert pending.row.column("value")[0].as_py() == b"value-1"
    assert [(one.created_ms, one.left_ms) for one in left] == [(START_MS, SOON + 2_000)] * 3
    assert [one.topic for one in left] == ["orders", None, None]
    assert [(one.created_ms, one.left_ms) for one in (last, pending)] == [(START_MS, None)] * 2
    node.close()


def test_without_traces_the_counters_decide_or_nothing_does(
    tmp_path: Path, searching: Searching
) -> None:
    node = BuryingNode(tmp_path)
    [first] = node.append(messages([SOON], topic="orders"))
    search = searching(tmp_path)
    leave(node)
    for path in (tmp_path / "topics/orders").iterdir():
        path.unlink()
    [fate] = search.find([first]).result()
    assert fate.state == "delivered"
    assert "no cancel names it" in fate.why
    [soon] = node.append(messages([SOON], topic="refused"))
    leave(node)
    fates = search.find([first, soon]).result()
    assert [one.state for one in fates] == ["unknown", "dead"]
    assert "delivered or a dead letter; nothing here says which" in fates[0].why
    assert "--trace-retain" in fates[0].why
    node.close()


def test_what_was_cancelled_is_known_without_its_slot(tmp_path: Path, searching: Searching) -> None:
    """As with a Kafka sink: no topic is there to look at. With records that are gone the archive
    says it, if there is one."""
    node = BuryingNode(tmp_path, retain_bytes=1 << 30)
    [early, late, other] = node.append(messages([SOON] * 3, topic="orders"))
    node.blocking(lambda: node.wheel.cancel([early], node.now))
    node.spill()
    node.blocking(lambda: node.wheel.cancel([late], node.now))
    leave(node)
    node.spill()
    for path in (tmp_path / "topics/orders").iterdir():
        path.unlink()
    search = searching(tmp_path)
    fates = search.find([early, late, other]).result()
    assert [one.state for one in fates] == ["cancelled", "cancelled", "delivered"]
    assert [one.why for one in fates[:2]] == ["a cancel names it"] * 2
    update = StateUpdate(cancelled_deleted=[SOON // 1000], cancelled_floor=SOON + 999)
    node.state.commit(update)
    fates = search.find([early, late, other]).result()
    assert [one.state for one in fates] == ["cancelled", "unknown", "unknown"]
    assert "archive" in fates[0].why
    node.close()


def test_texts_that_are_no_ids_of_this_directory(tmp_path: Path, searching: Searching) -> None:
    node = BuryingNode(tmp_path)
    [known] = node.append(messages([FAR]))
    forged = known[:-1] + ("0" if known[-1] != "0" else "1")
    beyond = str(node.wheel.mint.one(FAR, 1_000))
    before = str(node.wheel.mint.one(FAR, 0)) if not known.startswith("x") else known
    fates = searching(tmp_path).find(["nonsense", forged, beyond, before, "nonsense"]).result()
    assert [one.state for one in fates] == ["unknown"] * 3 + ["pending", "unknown"]
    assert fates[0].why == "not a message id"
    assert "no id of the group" in fates[1].why
    assert "up to offset" in fates[2].why
    node.close()
