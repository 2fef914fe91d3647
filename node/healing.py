"""Damaged slot files of a peer, made anew from the rows of the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Set
from contextlib import ExitStack, closing

from ..replication.driver import Driver
from ..wheel.errors import Damaged, DamagedThere, SlotwheelError
from ..wheel.peers.heal import DamagedRange
from ..wheel.peers.peer import PeerWheel
from ..wheel.slots.slot import stem_of
from .logs import event

log = logging.getLogger("slotwheel.node")

AGAIN_S = 5.0
"""A range that no peer has sound now is tried again after this time, s."""
TURN_S = 1.0
"""After so long, s, a turn leaves the rest of a large range to the next one: the thread that calls
it also finds and reports damage, and has to end with the node."""


class Healing:
    """Asks the peers ``others`` in turn, until one has all rows of a damaged range. Rows that a
    repair gave up on one peer are lost only when each of the others has answered: a peer that is
    away for a minute may have them."""

    def __init__(self, wheel: PeerWheel, driver: Driver, others: Iterable[str]) -> None:
        self._wheel = wheel
        self._driver = driver
        self._others = tuple(others)
        self._not_before: dict[int, float] = {}
        self._under_way: Iterator[None] | None = None

    def turn(self, reported: Set[str]) -> None:
        """Repair a damaged range all of whose paths are in ``reported``, or a part of it: the first
        in the order of time that is not waiting for its next try.

        Errors: ``OSError``, ``SyncFailed``.
        """
        if self._under_way is None:
            self._under_way = self._next(reported)
        end = time.monotonic() + TURN_S
        under_way, self._under_way = self._under_way, None  # an error ends it
        for _ in under_way:
            if time.monotonic() >= end:
                self._under_way = under_way
                return

    def _next(self, reported: Set[str]) -> Iterator[None]:
        now, ranges = time.monotonic(), self._wheel.damaged_ranges()
        slots = {damaged.slot for damaged in ranges}
        self._not_before = {slot: at for slot, at in self._not_before.items() if slot in slots}
        for damaged in ranges:
            is_due = self._not_before.get(damaged.slot, now) <= now
            if is_due and reported >= set(damaged.paths):
                if not (yield from self._heal(damaged)):
                    self._not_before[damaged.slot] = time.monotonic() + AGAIN_S
                return

    def _heal(self, damaged: DamagedRange) -> Generator[None, None, bool]:
        incomplete, silent = [], False
        for peer in self._others:
            try:
                done = yield from self._heal_from(peer, damaged, lossy=False)
            except SlotwheelError as error:
                silent = silent or not isinstance(error, DamagedThere | Damaged)
                _log_failure(peer, damaged, error)
                continue
            if done is not None:
                return done
            incomplete.append(peer)
        for peer in () if silent else incomplete:
            try:
                return bool((yield from self._heal_from(peer, damaged, lossy=True)))
            except SlotwheelError as error:
                _log_failure(peer, damaged, error)
        return False

    def _heal_from(
        self, peer: str, damaged: DamagedRange, *, lossy: bool
    ) -> Generator[None, None, bool | None]:
        """Returns True if it is mended; False if it is another range by now; None if that peer has
        lost rows of it, and must not have (``lossy``). Errors: ``SlotwheelError``."""
        yield
        rows = self._driver.fetch_slot(peer, damaged.slot, damaged.upto)
        with ExitStack() as stack:
            stack.callback(rows.close)
            if rows.losses and not lossy:
                return None
            mending = stack.enter_context(closing(self._wheel.mending(damaged)))
            for block in rows.blocks:
                mending.add(block)
                yield
            done = self._wheel.heal(mending, rows.losses)
        if done:
            slot = stem_of(damaged.slot)
            event(log, logging.INFO, "slot file mended", slot=slot, rows_of=peer)
        return done


def _log_failure(peer: str, damaged: DamagedRange, error: SlotwheelError) -> None:
    slot = stem_of(damaged.slot)
    event(log, logging.WARNING, "no sound slot", slot=slot, peer=peer, error=str(error))
