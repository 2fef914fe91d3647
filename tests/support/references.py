"""What is freed as soon as nobody needs it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """What is freed in here is freed by its last reference. A garbage collection, which also frees
    what refers to itself, may come minutes later in a node."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
