"""A state store in memory whose commit is one atomic step of a crash sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slotwheel.wheel.state import StateUpdate, StoredState

_WHOLE = (
    *("store_id", "epoch", "vote", "checkpoint", "group_key", "voter", "incoming", "losses"),
    *("cancelled_floor", "deleted_floor", "clock", "names"),
)
"""Fields that an update leaves as they are, or replaces."""


def _copied(state: StoredState) -> StoredState:
    """With containers of its own; what is in them never changes."""
    producers = {producer: list(sent) for producer, sent in state.producers.items()}
    losses = list(state.losses)
    return replace(
        state,
        slots=dict(state.slots),
        producers=producers,
        losses=losses,
        cancelled=dict(state.cancelled),
        schedules=dict(state.schedules),
    )


class MemoryState:
    """``durable`` is what survives; a commit replaces it whole or not at all.

    ``step`` is called before a commit takes effect and may raise a power cut.
    """

    def __init__(
        self, durable: StoredState | None = None, step: Callable[[str], None] | None = None
    ) -> None:
        self.durable = durable if durable is not None else StoredState()
        self._step = step
        self.fail_next: Exception | None = None

    def load(self) -> StoredState:
        return _copied(self.durable)

    def commit(self, update: StateUpdate) -> None:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        if self._step is not None:
            self._step("state commit")
        new = _copied(self.durable)
        for name in _WHOLE:
            if (value := getattr(update, name)) is not None:
                setattr(new, name, value)
        if update.replace:
            new.slots.clear()
            new.producers.clear()
            new.cancelled.clear()
            new.schedules.clear()
            new.names = update.names
        new.slots.update(update.slots)
        for second in update.slots_deleted:
            new.slots.pop(second, None)
        for producer, sent in update.producers.items():
            new.producers[producer] = list(sent)
        for producer in update.producers_deleted:
            new.producers.pop(producer, None)
        new.cancelled.update(update.cancelled)
        for second in update.cancelled_deleted:
            new.cancelled.pop(second, None)
        new.schedules.update(update.schedules)
        for name in update.schedules_deleted:
            new.schedules.pop(name, None)
        self.durable = _copied(new)

    def cancelled(self, second: int) -> bytes | None:
        return self.durable.cancelled.get(second)

    def close(self) -> None:
        pass
