"""Sets up how the node's process allocates memory.

Hundreds of megabytes of batches are allocated and freed a second. An allocator that returns freed
pages to the kernel at once pays a page fault for each of them again; measured, that was a third of
the cost of a spill. So Arrow allocates with jemalloc where pyarrow has it, which keeps freed pages
for a few seconds and then returns them by itself. All other memory is the C library's, which would
give each busy thread a heap of its own, each with pages that a few small objects keep: two heaps
take 10 to 40 MB less at rest, and are as fast.

Rules: Python also looks for cycles of objects seldom. A node at rest keeps no free pages: jemalloc
returns them only while it is called, so ``release`` does it then.
"""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa

_libc = ctypes.CDLL(None)
_DECAY_MS = 3_000
_DECAY_SCARCE_MS = 100
_HEAPS = 2
_M_ARENA_MAX = -8
"""From glibc's malloc.h."""
_GC_THRESHOLDS = (50_000, 20, 20)
"""Few objects here are in reference cycles; by default Python looks for some every 700 objects."""


def set_up(*, scarce: bool = False) -> str:
    """Choose the allocator for the life of the process. Returns its name. ``scarce``: free pages
    are returned sooner, of which 100 MB of batches a second leave 300 MB in the usual 3 s."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_DECAY_SCARCE_MS if scarce else _DECAY_MS)
    if hasattr(_libc, "mallopt"):  # glibc
        _libc.mallopt(_M_ARENA_MAX, _HEAPS)
    gc.set_threshold(*_GC_THRESHOLDS)
    return str(pa.default_memory_pool().backend_name)


def release() -> None:
    """Return free pages to the kernel now. Takes some milliseconds; call it when idle."""
    pa.default_memory_pool().release_unused()
    _libc.malloc_trim(0)
