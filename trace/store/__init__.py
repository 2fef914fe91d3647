"""The trace store: events of all senders on disk, found by id, key, tag, or time.

In: values of the trace topic (``StoreWriter``). Out: events (``TraceReader``), from any process.
"""

from .query import TraceKey, TraceQuery
from .reader import TracePage, TraceReader

__all__ = ["TraceKey", "TracePage", "TraceQuery", "TraceReader"]
