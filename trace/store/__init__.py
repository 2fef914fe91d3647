"""The trace store: events of all senders on disk, found by id, key, tag, or time. One
``StoreWriter`` adds values of the trace topic; any process reads events by a ``TraceReader``."""

from .query import TraceKey, TraceQuery
from .reader import TracePage, TraceReader
from .writer import StoreCounts, StoreWriter

__all__ = ["StoreCounts", "StoreWriter", "TraceKey", "TracePage", "TraceQuery", "TraceReader"]
