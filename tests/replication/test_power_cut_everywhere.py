"""The power fails on every peer at the same instant: what was not synced is lost everywhere.

Had they acknowledged anything before its sync, one power cut would lose it on all of them. The
referee of the simulation holds every committed entry against the disks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.messages import EntryMeta
from support.simpeer import SimPeer
from support.simreferee import Violation
from support.simulation import Scene, World

SCENE = Scene(seconds=4.0, power=1.5, slow_disk=0.4, propose=20.0, restart_s=0.5)
SCHEDULES = 150


class Blackouts(World):
    """``power`` hits all of them."""

    blackouts = 0
    committed_before = 0

    def _do_power(self, peer: SimPeer) -> None:
        self.blackouts += 1
        self.committed_before += len(self.referee.committed)
        for one in self.peers.values():
            if one.up:
                self.crash(one, power=True)


class Hasty(Core):
    """A master that counts itself once an entry is written, and not yet synced."""

    def appended(self, index: int, meta: EntryMeta, now: float) -> None:
        super().appended(index, meta, now)
        self.persisted(index, now)


def test_what_was_committed_survives_a_power_cut_on_every_peer_at_once(
    figure: Callable[[str], None],
) -> None:
    blackouts = committed = 0
    for seed in range(SCHEDULES):
        world = Blackouts(seed, SCENE)
        world.run()
        blackouts += world.blackouts
        committed += world.committed_before
    figure(f"power cut on every peer at once: {blackouts} times in {SCHEDULES} schedules, 0 lost")
    assert blackouts > SCHEDULES
    assert committed > blackouts, "there was something to lose"


def test_a_receipt_before_the_sync_would_be_found() -> None:
    with pytest.raises(Violation, match="committed with 1 of 3"):
        Blackouts(0, SCENE, Hasty).run()
