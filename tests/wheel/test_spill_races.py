"""What is committed while a spill runs, or spilled while a reader looks: every row once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.reader import SlotCursor
from slotwheel.wheel.due.runs import OFFSET_END
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.storage import Storage
from slotwheel.wheel.tail.tail import _FAN
from support.crashlife import START_MS, Steps, World
from support.waiting import PATIENCE_S
from support.wheels import Node, batch, master_of

SECOND = START_MS // 1000 + 5
ALL = SECOND * 1000 + 999, OFFSET_END


def opened() -> World:
    world = World(Steps(), embedded=False)
    world.open()
    return world


def send(world: World, name: str) -> None:
    world.append(name, [("x", 5100), ("y", 5200)])
    world.commit()


def during_the_spill(world: World, act: Callable[[], None]) -> None:
    """``act`` happens when the slot files are written and the catalog does not know it yet."""
    storage: Any = world.wheel._storage
    make_durable = storage._make_durable

    def and_act(*arguments: Any) -> None:
        make_durable(*arguments)
        act()

    storage._make_durable = and_act
    world.spill(everything=True)
    storage._make_durable = make_durable


def test_rows_joined_with_spilled_ones_are_not_spilled_twice() -> None:
    for before in range(1, 8):
        world = opened()
        for number in range(before):
            send(world, f"before {number}")

        def more(world: World = world) -> None:
            for number in range(_FAN):  # so many make the tail join its pieces
                send(world, f"during {number}")

        during_the_spill(world, more)
        spilled = world.wheel._storage.spilled
        assert all(piece.base_offset >= spilled for piece in world.wheel._storage.tail.pieces)
        assert len(world.stored()) == 2 * (before + _FAN)
        world.spill(everything=True)
        assert len(world.stored()) == 2 * (before + _FAN)
        world.check_disk()
        world.restart()
        world.finish()
        assert len(world.book.answered) == 2 * (before + _FAN)


def keys(cursor: SlotCursor) -> list[int]:
    rows = cursor.peek((SECOND * 1000 - 1, OFFSET_END), ALL, 1000, 1 << 20)
    offsets: list[int] = times(rows, "offset").tolist()
    return sorted(offsets)


def test_rows_spilled_between_the_look_at_the_mark_and_at_the_file_are_not_overlooked() -> None:
    world = opened()
    storage: Storage = world.wheel._storage
    send(world, "first")
    send(world, "second")
    world.spill(everything=True)
    cursor = SlotCursor(storage, SECOND, 1 << 20, world.wheel.mint)
    cursor.load((SECOND * 1000 - 1, OFFSET_END), 1)  # asked before "second" was committed
    assert keys(cursor) == [0, 1]
    cursor.refresh((SECOND * 1000 - 1, OFFSET_END), 2)
    assert keys(cursor) == [0, 1, 2]
    send(world, "third")
    world.spill(everything=True)
    cursor.refresh((SECOND * 1000 - 1, OFFSET_END), 4)
    assert keys(cursor) == [0, 1, 2, 3, 4]
    cursor.refresh((SECOND * 1000 - 1, OFFSET_END), 5)
    assert keys(cursor) == [0, 1, 2, 3, 4, 5]
    world.finish()


def test_append_and_spill_while_the_slot_drains(tmp_path: Path) -> None:
    """In threads, across slots' edges, with a single handle that is evicted again and again."""
    config = WheelConfig(
        chunk_rows_max=7, window_bytes_max=900, open_handles_max=1, segment_bytes=4000, slots=60
    )
    node = Node(tmp_path, config, START_MS)
    wheel = node.wheel
    stop, clock = threading.Event(), [START_MS]
    taken: Counter[bytes] = Counter()
    failed: list[BaseException] = []

    def loop(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
                    time.sleep(0)
            except BaseException as error:
                failed.append(error)
                stop.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def take() -> None:
        now = clock[0]
        while (chunk := master_of(wheel).next_chunk(now)) is not None:
            assert int(times(chunk.rows, "due").max(initial=0)) <= now
            taken.update(chunk.rows.column("value").to_pylist())
            master_of(wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))

    threads = [
        loop(lambda: wheel.write_pending(0.001)),
        loop(take),
        loop(lambda: wheel.spill(clock[0], everything=True)),
        loop(lambda: wheel.clean(clock[0])),
        loop(lambda: master_of(wheel).prepare(clock[0])),
    ]
    sent = 0
    until = time.monotonic() + 1.0
    while (time.monotonic() < until or sent <= 100) and not failed:
        now = clock[0]
        rows = [
            (now + ms, "t", b"%d" % (sent + at)) for at, ms in enumerate((-2, 0, 1, 3, 997, 999))
        ]
        sent += len(rows)
        wheel.append(batch(rows), now).result(60)
        clock[0] += 7
    clock[0] += 2000
    until = time.monotonic() + PATIENCE_S
    while len(taken) < sent and time.monotonic() < until and not failed:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    assert taken == Counter(b"%d" % n for n in range(sent))
    node.stored()
    node.close()
