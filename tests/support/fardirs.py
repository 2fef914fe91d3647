"""Data directories with messages of one second in three files: of its day, its hour and its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, slots_with

from .handpeer import Peer
from .wheels import NOW, Node, batch

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


@dataclass(frozen=True)
class FarGroup:
    """``count`` messages with the values 0, 1, 2, …, due in turns within two seconds of each of the
    times ``due_ms``, one of which is in each day."""

    due_ms: Sequence[int]
    count: int

    def message(self, number: int) -> tuple[int, str, bytes]:
        """Due time, topic and value of a message, also of one that the group does not have yet."""
        due_ms = self.due_ms[number % len(self.due_ms)]
        return due_ms + number * 37 % 2_000, "t", b"%d" % number


_AGO_MS = (5 * DAY_MS, 3 * DAY_MS, 20 * HOUR_MS, HOUR_MS, HOUR_MS // 2 + 60_000)
"""How long before the first of them are due each part of the messages is sent."""
_PART_ROWS = 240
_SPILLS = {"a": (0, 1, 2, 3), "b": (1, 3), "c": (3,)}
"""The parts after which each peer spills; the last part stays in the tails."""


def far_group(root: Path, due_ms: int, days: int) -> FarGroup:
    """Directories ``a``, ``b``, ``c`` of three peers that have ended, as after five days.

    They have spilled at different times. So of the messages due at ``due_ms`` one has files of the
    day, of the hour and of seconds, one of the day and of seconds, one of seconds alone; those of
    the next day lie in files of the day and the hour, and with the third in that of the hour alone;
    later ones in files of days, of different blocks.
    """
    group = FarGroup([due_ms + day * DAY_MS for day in range(days)], len(_AGO_MS) * _PART_ROWS)
    with ExitStack() as stack:
        peers = {
            name: stack.enter_context(closing(Peer(root, name, CONFIG, due_ms - _AGO_MS[0])))
            for name in _SPILLS
        }
        for peer in peers.values():
            peer.wheel.promise(1, "a", True)
        master = peers["a"]
        master.lead(1, {name: peer.wheel.store_id for name, peer in peers.items()})
        for part, ago_ms in enumerate(_AGO_MS):
            numbers = range(part * _PART_ROWS, (part + 1) * _PART_ROWS)
            rows = [group.message(number) for number in numbers]
            master.wheel.append(batch(rows), due_ms - ago_ms)
            master.commit()
            for name, peer in peers.items():
                if peer is not master:
                    master.ship(peer)
                if part in _SPILLS[name]:
                    peer.wheel.spill(due_ms - ago_ms, everything=True)
    return group
