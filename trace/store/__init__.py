"""The trace store: events of all senders on disk, found by id, key, tag, or time.

In: values of the trace topic (``StoreWriter``). Out: events (``TraceReader``), from any process.
"""

from .query import TraceKey, TraceQuery
from .reader import TracePage, TraceReader
from .writer import StoreCounts, StoreWriter

__all__ = ["StoreCounts", "StoreWriter", "TraceKey", "TracePage", "TraceQuery", "TraceReader"]
