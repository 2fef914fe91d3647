"""What the departures add to what is known of an id. The node's sink is not looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from slotwheel.reading.search.fate import MessageFate
from slotwheel.wheel.departurefile import How, encode, file_header, path_of
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.state import StateUpdate
from support.datadirs import START_MS, SinkNode, messages

from .conftest import Searching

SOON, FAR = START_MS + 1_000, START_MS + 60_000
LEFT = SOON + 500
LONG_AGO = 1_700_000_000_000


class ForgettingNode(SinkNode):
    """Delivers to nowhere; ``left``: writes a file with one departure, as the hand would."""

    def left(self, text: str, how: How, at_ms: int = LEFT) -> None:
        one = MessageId.parse(text)
        due, offset, created = np.array([[one.due], [one.offset], [START_MS]], np.int64)
        hows, hashes = np.array([how], np.uint8), np.zeros(1, np.uint64)
        frame = encode(due, offset, created, hows, pa.array(["orders"]), hashes, at_ms)
        path = self.path / path_of(at_ms)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(file_header() + frame)

    def forget(self, cancelled: str) -> None:
        """Nothing is left of what is due soon; a cancel keeps the counters from knowing it."""
        assert self.blocking(lambda: self.wheel.cancel([cancelled], self.now)) == ["cancelled"]
        self.deliver(SOON + 2_000)
        self.spill()
        self.wheel.clean(self.now)
        self.state.commit(StateUpdate(cancelled_floor=SOON + 2_000))
        for path in (self.path / "topics").rglob("*.*"):
            path.unlink()


def fates(searching: Searching, node: ForgettingNode, ids: list[str]) -> list[MessageFate]:
    found = searching(node.path).find(ids).result()
    node.close()
    return found


def test_a_message_that_left_is_known_by_its_departures(
    tmp_path: Path, searching: Searching
) -> None:
    node = ForgettingNode(tmp_path)
    ids = node.append(messages([SOON] * 7, topic="orders"))
    *gone, cancelled = ids
    node.forget(cancelled)
    ways = [How.DELIVERED, How.DEAD, How.EXPIRED, How.UNCLEAR]
    for at, (one, how) in enumerate(zip(gone, ways, strict=False)):
        node.left(one, how, LEFT + at)
    node.left(gone[4], How.DEAD, LEFT + 10)
    node.left(gone[4], How.DELIVERED, LEFT + 11)
    node.left(cancelled, How.CANCELLED, LEFT + 12)
    *found, nothing, last = fates(searching, node, ids)
    states = ["delivered", "dead", "expired", "unknown", "delivered"]
    assert [one.state for one in found] == states
    assert [one.left_ms for one in found] == [LEFT, LEFT + 1, LEFT + 2, LEFT + 3, LEFT + 11]
    assert {(one.topic, one.created_ms) for one in found} == {("orders", START_MS)}
    assert "leave for the topic orders" in found[0].why
    assert found[1].why.endswith("dead letter; it was to go to the topic orders")
    assert found[2].why.endswith("expire; it was to go to the topic orders")
    assert "no clear answer" in found[3].why
    assert found[4].why.endswith("orders, 2 times")
    assert (nothing.state, nothing.left_ms, nothing.topic) == ("unknown", None, None)
    assert "nothing here says which" in nothing.why
    assert (last.state, last.left_ms) == ("cancelled", LEFT + 12)


def test_what_left_and_is_not_covered_may_leave_again(tmp_path: Path, searching: Searching) -> None:
    """The node was killed between the answer and the mark."""
    node = ForgettingNode(tmp_path)
    soon, far = node.append(messages([LONG_AGO, FAR], topic="orders"))
    node.left(soon, How.DELIVERED)
    first, second = fates(searching, node, [soon, far])
    assert (first.state, first.left_ms) == ("pending", LEFT)
    assert "no mark covers that" in first.why
    assert (second.state, second.left_ms, second.created_ms) == ("pending", None, START_MS)


def test_a_cancel_in_the_slot_has_the_last_word(tmp_path: Path, searching: Searching) -> None:
    node = ForgettingNode(tmp_path)
    [one] = node.append(messages([SOON], topic="orders"))
    node.blocking(lambda: node.wheel.cancel([one], node.now))
    node.left(one, How.CANCELLED)
    [found] = fates(searching, node, [one])
    assert (found.state, found.why, found.left_ms) == ("cancelled", "a cancel names it", LEFT)


def test_damaged_departures_are_not_believed(tmp_path: Path, searching: Searching) -> None:
    node = ForgettingNode(tmp_path)
    one, cancelled = node.append(messages([SOON, SOON], topic="orders"))
    node.left(one, How.DELIVERED)
    node.forget(cancelled)
    path = tmp_path / path_of(LEFT)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    [found] = fates(searching, node, [one])
    assert (found.state, found.left_ms) == ("unknown", None)
