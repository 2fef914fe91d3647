"""Random histories of a wheel, and after each step the same questions to a model of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slotwheel.reading.search.pending import PendingPage
from slotwheel.reading.search.query import Query
from slotwheel.reading.search.worker import SearchProcess
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.rows import from_columns
from support.wheels import NOW, Node, master_of

from .conftest import Searching

TOPICS = ("orders", "mails", "calls")
STEPS = 30
LATE_MS, AHEAD_MS = 1_500, 40_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FAR_MS = (0, 300_000, 2 * DAY_MS, 4 * DAY_MS, 4 * DAY_MS + 300_000)
"""Messages are due at these times and shortly after, counted from the first full day ahead. What is
due in one second is sent from days to seconds before, so it comes to lie in files of three widths.
"""


@dataclass
class Row:
    id: str
    due: int
    offset: int
    topic: str
    key: bytes | None
    header: bytes | None
    state: str = "pending"


@dataclass
class Modelled:
    """A wheel, and what should be pending in it."""

    node: Node
    chance: random.Random
    rows: dict[str, Row] = field(default_factory=dict)
    now: int = NOW
    held: set[str] = field(default_factory=set)
    is_far: bool = False
    """Messages are due days ahead, and time passes in leaps of hours."""

    def step(self) -> str:
        """One thing that happens to a wheel; its name."""
        kinds = ["append", "append", "append", "spill", "deliver", "deliver", "cancel", "clean"]
        kinds += ["leap", "leap", "spill"] if self.is_far else []
        kind = self.chance.choice((*kinds, "hold", "restart", "set_back"))
        getattr(self, f"_{kind}")()
        self.node.sync()
        return kind

    def pending(self) -> list[Row]:
        left = [row for row in self.rows.values() if row.state == "pending"]
        return sorted(left, key=lambda row: (row.due, row.offset))

    def _append(self) -> None:
        chance, count = self.chance, self.chance.randint(1, 60)
        spread = chance.choice((0, 900, AHEAD_MS))
        base = self.now + chance.randint(-LATE_MS, AHEAD_MS)
        if self.is_far:
            first_day = NOW - NOW % DAY_MS + DAY_MS
            base = first_day + chance.choice(FAR_MS) + chance.randint(0, 1_500)
        due = [base + chance.randint(0, spread) for _ in range(count)]
        topics = [chance.choice(TOPICS) for _ in due]
        keys = [chance.choice((None, b"", b"a", b"b")) for _ in due]
        headers = [chance.choice((None, b"", b"web")) for _ in due]
        values = [b"%d" % number for number in range(count)]
        lists = [[("x", b"web"), ("source", one)] if one is not None else [] for one in headers]
        batch = from_columns(due, topics, [None] * count, keys, values, lists)
        future = self.node.wheel.append(batch, self.now)
        self.node.sync()
        ids = self.node.ids_of(future.result(0))
        for one, topic, key, header in zip(ids, topics, keys, headers, strict=True):
            self.rows[str(one)] = Row(str(one), one.due, one.offset, topic, key, header)

    def _spill(self) -> None:
        self.node.wheel.spill(self.now, everything=self.chance.random() < 0.8)

    def _clean(self) -> None:
        self.node.wheel.clean(self.now)

    def _hold(self) -> None:
        self.held = {topic for topic in TOPICS if self.chance.random() < 0.3}

    def _deliver(self) -> None:
        self.now += self.chance.randint(0, 6_000)
        self.node.delivered(self.now, lambda row: row[0] not in self.held)
        while self.is_far and self.node.wheel.status().mark_c < self.now:
            # Over a leap of days, nothing is handed out for a while.
            self.node.delivered(self.now, lambda row: row[0] not in self.held)
        master_of(self.node.wheel).append_mark(self.now, at_once=True)
        held = {topic for topic in self.held if topic in master_of(self.node.wheel).held_topics()}
        for row in self.rows.values():
            if row.state == "pending" and row.due <= self.now and row.topic not in held:
                row.state = "delivered"

    def _leap(self) -> None:
        """Time passes to some moments before a message is due, or past it."""
        due = [row.due for row in self.pending() if row.due > self.now]
        if due:
            before = self.chance.choice((-1_000, 500, 60_000, 3 * HOUR_MS, 30 * HOUR_MS))
            self.now = max(self.now, self.chance.choice((min(due), max(due))) - before)
        self._deliver()

    def _set_back(self) -> None:
        """The clock was ahead, and is right now."""
        now = self.now
        self._deliver()
        self.now = now
        assert master_of(self.node.wheel).set_back(now)

    def _cancel(self) -> None:
        count = min(len(self.rows), self.chance.randint(1, 40))
        wanted = self.chance.sample(sorted(self.rows), count)
        answers = self.node.blocking(lambda: self.node.wheel.cancel(wanted, self.now))
        for one, answer in zip(wanted, answers, strict=True):
            if answer == "cancelled":
                assert self.rows[one].state in ("pending", "cancelled")
                self.rows[one].state = "cancelled"

    def _restart(self) -> None:
        self.node.reopen(self.now)


@pytest.fixture(params=range(5))
def modelled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Modelled]:
    is_far = request.param >= 2
    config = WheelConfig(
        disk_reserve_bytes=0, segment_bytes=20_000, far_horizon_ms=10 * DAY_MS if is_far else 0
    )
    node = Node(tmp_path, config, NOW)
    node.sync()
    yield Modelled(node, random.Random(request.param), is_far=is_far)
    node.close()


def pages(search: SearchProcess, query: Query, limit: int, rows_max: int) -> list[PendingPage]:
    """All pages, one behind the other."""
    found = [search.page(query, limit=limit, rows_max=rows_max).result()]
    while found[-1].next is not None:
        found.append(search.page(query, found[-1].next, limit=limit, rows_max=rows_max).result())
    return found


def a_query(modelled: Modelled) -> Query:
    chance, now = modelled.chance, modelled.now
    start = now + chance.randint(-2_000, AHEAD_MS)
    if modelled.is_far and modelled.rows:
        start = chance.choice(list(modelled.rows.values())).due - chance.choice((0, 700, HOUR_MS))
    return Query(
        topics=tuple(chance.sample(TOPICS, chance.randint(0, 2))),
        keys=chance.choice(((), (), (b"a",), (b"", b"b"))),
        headers=chance.choice(((), (), (("source", b"web"),), (("source", b""), ("x", b"web")))),
        from_ms=chance.choice((None, start)),
        to_ms=chance.choice((None, start + 1_100, start + 15_000)),
    )


def is_match(row: Row, query: Query) -> bool:
    present = [] if row.header is None else [("source", row.header), ("x", b"web")]
    return (
        (not query.topics or row.topic in query.topics)
        and (not query.keys or row.key in query.keys)
        and all(header in present for header in query.headers)
        and (query.from_ms is None or row.due >= query.from_ms)
        and (query.to_ms is None or row.due < query.to_ms)
    )


def expected_by_slot(pending: list[Row], counted: Iterable[range]) -> dict[range, int]:
    """The messages by those hours and days that were counted, and else by second."""
    wide = {second: slot for slot in counted if len(slot) > 1 for second in slot}
    seconds = (row.due // 1000 for row in pending)
    return Counter(wide.get(second, range(second, second + 1)) for second in seconds)


def test_every_answer_is_that_of_a_model(modelled: Modelled, searching: Searching) -> None:
    search, chance = searching(modelled.node.path), modelled.chance
    done = []
    for _ in range(STEPS):
        done.append(modelled.step())
        pending = modelled.pending()
        count = search.count(by_slot=True).result()
        assert count.complete, (done, count.problems)
        assert count.by_slot == expected_by_slot(pending, count.by_slot), done
        assert count.total == len(pending) == modelled.node.wheel.status().pending, done
        query = a_query(modelled)
        expected = [row for row in pending if is_match(row, query)]
        found = pages(search, query, chance.choice((3, 50)), chance.choice((1, 20, 10_000)))
        assert all(page.complete for page in found)
        assert [one for page in found for one in page.ids] == [row.id for row in expected], done
        by_topic = search.count(query, by_topic=True).result().by_topic
        assert by_topic == Counter(row.topic for row in expected), done
        assert found[-1].point.next_offset >= len(modelled.rows)
    asked = list(modelled.rows.values())
    for row, fate in zip(asked, search.find(list(modelled.rows)).result(), strict=True):
        assert fate.state == row.state or (fate.state == "unknown" and row.state != "pending")
