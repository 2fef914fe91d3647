"""A search by name finds the pending message of that name alone, in whatever file it lies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slotwheel.reading.search.pending import PendingReader
from slotwheel.reading.search.query import Query
from slotwheel.wheel.answers import Before
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.slots.slot import width_s
from support.fardirs import CONFIG
from support.wheels import NOW, Node

NAMES = 5_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
AHEAD_MS = (90_000, HOUR_MS, 5 * HOUR_MS, 30 * HOUR_MS, 3 * DAY_MS, 9 * DAY_MS)
"""How far ahead messages are due: in files of seconds, hours and days."""


class Sent(NamedTuple):
    number: int
    ahead_ms: int
    mode: IfExists = IfExists.REPLACE

    @property
    def name(self) -> str:
        return f"order-{self.number}"


def send(node: Node, rows: Sequence[Sent]) -> list[str]:
    """The id of the message that each name stands for then."""
    none = [None] * len(rows)
    due = [NOW + row.ahead_ms + row.number % 7 for row in rows]
    headers = [
        [(NAME_HEADER, row.name.encode()), (IF_EXISTS_HEADER, row.mode.encode())] for row in rows
    ]
    topics = [f"t{row.number % 2}" for row in rows]
    batch = from_columns(due, topics, none, none, [b""] * len(due), headers)
    future = node.wheel.append(batch, NOW)
    node.sync()
    receipt = future.result(0)
    ids = [str(message_id) for message_id in node.ids_of(receipt)]
    for answer in receipt.named:
        if answer.before is Before.KEPT:
            ids[answer.row] = str(node.wheel.mint.one(answer.due, answer.offset))
    return ids


def test_five_thousand_names_over_seconds_hours_and_days(tmp_path: Path) -> None:
    chance = np.random.default_rng(17)
    node = Node(tmp_path, CONFIG, NOW)
    expected: dict[str, str] = {}

    def sent(rows: Sequence[Sent]) -> None:
        for first in range(0, len(rows), 1_000):
            part = rows[first : first + 1_000]
            expected.update(zip((row.name for row in part), send(node, part), strict=True))

    def ahead() -> int:
        return int(chance.choice(AHEAD_MS))

    sent([Sent(number, ahead()) for number in range(4_000)])
    node.wheel.spill(NOW, everything=True)
    widths = {width_s(slot) for slot in node.wheel.stock_point().catalog}
    assert widths == {1, 3_600, 86_400}
    sent([Sent(number, ahead()) for number in range(1_000)])  # replaced in another file
    sent([Sent(number, ahead(), IfExists.KEEP) for number in range(500, 1_500)])
    node.wheel.spill(NOW, everything=True)
    sent([Sent(number, ahead()) for number in range(900, 1_100)])  # replaced by the tail
    sent([Sent(number, ahead()) for number in range(4_000, NAMES)])
    for number in range(1_050, 1_060):
        topic, name = f"t{number % 2}", f"order-{number}"
        node.blocking(partial(node.wheel.cancel_named, topic, name, NOW))
        del expected[name]
    node.close()
    names = [f"order-{number}" for number in range(NAMES)]
    with PendingReader(tmp_path) as reader:
        whole = Query(names=tuple(names))
        count = reader.count(whole)
        assert (count.total, count.complete) == (len(expected), True)
        found: list[str] = []
        page = reader.page(whole, limit=1_000)
        while True:
            found += page.ids
            if page.next is None:
                break
            page = reader.page(whole, page.next, limit=1_000)
        assert sorted(found) == sorted(expected.values())
        for name in [*chance.choice(names, 40).tolist(), *names[1_050:1_052]]:
            ids = reader.page(Query(names=(name,))).ids
            assert ids == ([expected[name]] if name in expected else [])
        assert reader.page(Query(names=("order-1",), topics=("t0",))).ids == []
        assert reader.count(Query(names=("order", "order-", "ORDER-1"))).total == 0
