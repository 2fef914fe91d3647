"""Another slot file in the place of a damaged one, in one go."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa

from slotwheel.wheel.mark import Marks
from slotwheel.wheel.peers.heal import DamagedRange, SlotRows
from slotwheel.wheel.slots.mend import stage
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.storage import Storage
from slotwheel.wheel.state import StateUpdate
from support.damage import flip
from support.handpeer import Peer


def put_in_place(
    storage: Storage, slot: int, blocks: Sequence[pa.RecordBatch], damaged: Sequence[int] = ()
) -> None:
    """A file of these blocks in the place of a slot's, or of those of ``damaged``."""
    fresh = stage(storage._files, slot, blocks)
    gone = [each for each in damaged if each != slot]
    update = StateUpdate(slots={slot: fresh}, slots_deleted=gone)
    storage.replace([slot, *gone], update, Marks())


def find_damage(peer: Peer, *slots: int) -> DamagedRange:
    """Damage the slots' files, and let the scrubber find it; what has to be made anew, as one."""
    for slot in slots:
        flip(peer.path / path_of(slot))
    for _ in range(2):  # a pass may have ended behind it
        while not peer.wheel.scrubber.turn(1 << 20).passed:
            pass
    [damaged] = peer.wheel.damaged_ranges()
    return damaged


def heal(peer: Peer, damaged: DamagedRange, rows: SlotRows) -> bool:
    with closing(peer.wheel.mending(damaged)) as mending:
        for block in rows.blocks:
            mending.add(block)
        return peer.wheel.heal(mending, rows.losses)
