"""How the node's process holds memory.

Batches come and go by the hundred megabytes a second. An allocator that hands freed pages back to
the kernel at once pays a page fault for each of them again; measured, that was a third of what a
spill cost. So Arrow's memory comes from jemalloc where pyarrow has it, which keeps freed pages for
a few seconds and then gives them back by itself, at rest as well. What is not Arrow's comes from
the C library, which would give each busy thread a heap of its own, each with pages that a few
small objects keep: two heaps hold 10 to 40 MB less at rest, and are as fast.

Rules: nothing here changes what is kept, only how long free pages stay with the process. A node at
rest holds none: jemalloc gives pages back only while it is called, so ``release`` does it then.
"""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa

_libc = ctypes.CDLL(None)
_DECAY_MS = 3_000
_HEAPS = 2
_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""
_GC_THRESHOLDS = (50_000, 20, 20)
"""Few of our objects are in cycles; a collection every 700 of them would look at all of them."""


def set_up() -> str:
    """Choose the allocator for the life of the process; its name."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_DECAY_MS)
    if hasattr(_libc, "mallopt"):  # glibc
        _libc.mallopt(_M_ARENA_MAX, _HEAPS)
    gc.set_threshold(*_GC_THRESHOLDS)
    return str(pa.default_memory_pool().backend_name)


def release() -> None:
    """Give free pages back to the kernel now. Takes some milliseconds; for a quiet moment."""
    pa.default_memory_pool().release_unused()
    _libc.malloc_trim(0)
