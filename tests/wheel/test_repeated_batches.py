"""A batch that is sent again is stored once; every message that is stored has an id of its own."""

from __future__ import annotations

from pathlib import Path

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.ids import MessageId
from support.wheels import NOW, batch, opened

CONFIG = WheelConfig(slots=60)


def test_no_id_is_given_out_twice(tmp_path: Path) -> None:
    """The same key to two topics; a batch that is sent twice, with a sequence and without."""
    rows = [(NOW + 5, "a", b"same"), (NOW + 5, "b", b"same")]
    seen: set[MessageId] = set()
    with opened(tmp_path, CONFIG, NOW) as node:
        for producer, sequence, fresh in ((0, -1, 2), (0, -1, 2), (9, 1, 2), (9, 1, 0), (9, 2, 2)):
            ids = set(node.ids_of(node.send(rows, NOW, producer=producer, sequence=sequence)))
            assert len(ids) == 2
            assert len(ids - seen) == fresh
            seen |= ids
        node.reopen(NOW)
        assert node.send(rows, NOW).base_offset >= len(seen)
        assert len(node.delivered(NOW + 5)) == len(seen) + 2


def test_a_repeated_batch_is_judged_by_its_first_clock(tmp_path: Path) -> None:
    """The clock steps back between the two: what is stored is not refused as beyond the horizon."""
    rows = batch([(NOW + 60_000, "t", b"")])
    with opened(tmp_path, CONFIG, NOW) as node:
        first = node.wheel.append(rows, NOW, producer=1, sequence=1)
        again = node.wheel.append(rows, NOW - 2_000, producer=1, sequence=1)
        node.sync()
        assert again.result(0).base_offset == first.result(0).base_offset
        assert node.wheel.status().pending == 1
