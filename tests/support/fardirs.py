"""A data directory with messages of one second in three files: of its day, its hour and its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, slots_with

from .wheels import NOW, Node

HOUR_MS, DAY_MS = HOUR_S * TICK_MS, DAY_S * TICK_MS
DAY = NOW - NOW % DAY_MS + 5 * DAY_MS
DUE = DAY + 10 * HOUR_MS + 500
SECOND = DUE // TICK_MS
OF_SECOND, OF_HOUR, OF_DAY = slots_with(SECOND)
LAST = DAY + DAY_MS - 1
SENT = (DAY - 4 * DAY_MS, DUE - 20 * HOUR_MS, DUE - 60_000)
"""When messages of that second are sent: to the file of its day, of its hour, and of its own."""
CONFIG = WheelConfig(disk_reserve_bytes=0, far_horizon_ms=60 * DAY_MS)
ROWS = {OF_DAY: 6, OF_HOUR: 5, OF_SECOND: 6}
"""Rows of each file; there is another one in the tail."""


@dataclass(frozen=True)
class FarDirectory:
    """``kept``, ``cancelled``: the ids of its messages, in due order."""

    root: Path
    kept: list[str]
    cancelled: list[str]


def far_directory(root: Path) -> FarDirectory:
    """Made by a node that has ended. Of three cancelled messages, two were cancelled when their
    second was so near that the cancels are in the file of that; one cancel is in that of the hour,
    and its target in that of the day."""
    node = Node(root, CONFIG, SENT[0])
    node.sync()
    ids = []
    for now in SENT:
        rows = [(DUE + at, f"t{at % 2}", b"%d" % at) for at in range(4)]
        rows += [(DAY, "begin", b""), (LAST, "end", b"")] if now == SENT[0] else []
        ids += node.ids_of(node.send(rows, now))
        if now == SENT[1]:
            answers = node.blocking(partial(node.wheel.cancel, ids[:1], now))
            assert answers == [CancelAnswer.CANCELLED]
        node.wheel.spill(now, everything=True)
    cancelled = [ids[0], ids[1], ids[6]]
    answers = node.blocking(partial(node.wheel.cancel, cancelled[1:], SENT[2]))
    assert answers == [CancelAnswer.CANCELLED] * 2
    node.wheel.spill(SENT[2], everything=True)
    ids += node.ids_of(node.send([(DUE, "t0", b"tail")], SENT[2]))
    catalog = node.wheel.stock_point().catalog
    assert {slot: info.rows for slot, info in catalog.items()} == ROWS
    node.close()
    kept = [id_ for id_ in ids if id_ not in cancelled]
    kept.sort(key=lambda id_: (id_.due, id_.offset))
    return FarDirectory(root, [str(id_) for id_ in kept], [str(id_) for id_ in cancelled])
