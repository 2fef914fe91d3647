"""Reading many records of confluent-kafka without the collector of circles in the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Records become millions of objects, none of which refers back to another: looking for circles
    among them would take as long as all else. Only for what takes milliseconds: it is off for the
    whole process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
