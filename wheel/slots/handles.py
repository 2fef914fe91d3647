"""A bounded set of open slot files, opened lazily, the longest unused closed first.

Theory: 7200 slots must not mean 7200 descriptors, yet the slots in use must not be reopened for
every block. A handle in use is *pinned*: eviction takes it out of the set at once, but closes it
only when its last user is done. So an append to a slot that is being read is safe even with a
capacity of one.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

from cachetools import LRUCache

from ..files import Files, Handle


@dataclass(slots=True, eq=False)
class _Pinned:
    """An open handle, and a context in which it stays open."""

    handle: Handle
    lock: threading.Lock
    users: int = 0
    evicted: bool = False

    def __enter__(self) -> Handle:
        return self.handle

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.evicted and self.users == 0:
                self.handle.close()


class _Cache(LRUCache[str, _Pinned]):
    # cachetools 8: __delitem__ sees eviction, del and pop; we never overwrite or clear.
    def __delitem__(self, path: str) -> None:
        entry = self[path]
        super().__delitem__(path)
        entry.evicted = True
        if entry.users == 0:
            entry.handle.close()


class HandleCache:
    """Open handles by path, at most ``capacity`` of them kept. Thread-safe."""

    def __init__(self, files: Files, capacity: int) -> None:
        self._files = files
        self._cache = _Cache(maxsize=max(1, capacity))
        self._lock = threading.Lock()
        self._closed = False

    def use(self, path: str, *, create: bool = False) -> AbstractContextManager[Handle]:
        """For a ``with`` statement: a handle that stays open for the length of the block."""
        with self._lock:
            entry = self._cache.get(path)
            if entry is None:
                handle = self._files.open(path, create=create)
                entry = _Pinned(handle, self._lock, evicted=self._closed)
                if not self._closed:
                    self._cache[path] = entry
            entry.users += 1
            return entry

    def forget(self, path: str) -> None:
        """Drop a path, because its file is about to be deleted or renamed."""
        with self._lock:
            if path in self._cache:
                del self._cache[path]

    def __len__(self) -> int:
        return len(self._cache)

    def close(self) -> None:
        """Close all handles, and from now on each one after its use: a reader may still come to a
        storage that a snapshot has replaced."""
        with self._lock:
            self._closed = True
            for path in list(self._cache):
                del self._cache[path]
