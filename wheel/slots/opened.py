"""What was read of slot files and is kept, so that it is read once for all who want it.

Theory: several threads want the same file: delivery, held-back topics, questions about cancels. The
first of them reads it, the others wait for that and find it read; nobody waits for another file,
as a large one is read for seconds ahead of its time, and meanwhile others are due. What is kept
belongs to one committed length of its file, and is read on when the file has grown. A reader who
needs the file as it was before takes the rows up to that length.

A file that is replaced or deleted is forgotten. Who was reading it at that moment keeps nothing of
what it read: it may be of the old file, and would be taken for the new one's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from ..state import SlotInfo


class Opened:
    """What was read of a slot file up to one committed length, that of ``info``."""

    __slots__ = ()
    info: SlotInfo

    @property
    def weight(self) -> int:
        """The cost of keeping it, in bytes, or in whatever its owner counts."""
        raise NotImplementedError

    def has(self, info: SlotInfo) -> bool:
        """True if it has all that is wanted of the file up to ``info``."""
        return self.info.length >= info.length


T = TypeVar("T", bound=Opened)


class SlotTurns:
    """A lock for each slot that somebody is busy with. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = WeakValueDictionary[int, threading.Lock]()

    def of(self, slot: int) -> AbstractContextManager[object]:
        """For a ``with`` statement: nobody else has this slot's turn meanwhile."""
        with self._lock:
            return self._turns.setdefault(slot, threading.Lock())

    def __len__(self) -> int:
        return len(self._turns)


class Kept(Generic[T]):
    """What was read of slot files, the longest unused first. ``read``: reads a file up to a
    committed length, or goes on from what was read before; ``close_oldest``: drops what is too
    much (``drop``), called under the lock."""

    def __init__(
        self,
        read: Callable[[int, SlotInfo, T | None], T],
        close_oldest: Callable[[OrderedDict[int, T]], None],
    ) -> None:
        self._read = read
        self._close_oldest = close_oldest
        self._opened: OrderedDict[int, T] = OrderedDict()
        self._lock = threading.Lock()  # guards what is kept, and is never held while reading
        self._forgotten = 0
        self.weight = 0
        """Of all that is kept."""
        self.turns = SlotTurns()

    def upto(self, slot: int, info: SlotInfo) -> T:
        """What was read of a file, up to ``info`` or further. Errors: those of ``read``."""
        with self.turns.of(slot):
            with self._lock:
                opened, forgotten = self._opened.get(slot), self._forgotten
            if opened is None or not opened.has(info):
                opened = self._read(slot, info, opened)
            with self._lock:
                if forgotten == self._forgotten:
                    self.drop(slot)
                    self._opened[slot] = opened
                    self.weight += opened.weight
                    self._close_oldest(self._opened)
        return opened

    def get(self, slot: int, info: SlotInfo) -> T | None:
        """What was read of a file, if that is all up to ``info``."""
        with self._lock:
            opened = self._opened.get(slot)
            if opened is None or not opened.has(info):
                return None
            self._opened.move_to_end(slot)
        return opened

    def forget(self, slot: int) -> None:
        """Drop what was read of a file that is deleted, replaced or damaged."""
        with self._lock:
            self._forgotten += 1
            self.drop(slot)

    def drop(self, slot: int) -> None:
        """Under the lock: what was read of a file is not kept any longer."""
        opened = self._opened.pop(slot, None)
        self.weight -= 0 if opened is None else opened.weight
