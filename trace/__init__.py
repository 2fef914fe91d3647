"""Trace: what happened to each message at both ends of the wheel, told by clients and consumers.

Start at ``Tracer`` (tracer.py).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .batches import decode
from .events import TRACE_TOPIC, EventKind, EventSender

if TYPE_CHECKING:
    from .recorder import Recorder
    from .several import Observers
    from .targets import ConfluentTarget, KafkaPythonTarget, WheelTarget
    from .tracer import Tracer
    from .wrapping import traced_consumer, traced_producer

__all__ = [
    "TRACE_TOPIC",
    "ConfluentTarget",
    "EventKind",
    "EventSender",
    "KafkaPythonTarget",
    "Observers",
    "Recorder",
    "Tracer",
    "WheelTarget",
    "decode",
    "traced_consumer",
    "traced_producer",
]
_MODULES = {
    "Recorder": "recorder",
    "Observers": "several",
    "ConfluentTarget": "targets",
    "KafkaPythonTarget": "targets",
    "WheelTarget": "targets",
    "Tracer": "tracer",
    "traced_consumer": "wrapping",
    "traced_producer": "wrapping",
}


def __getattr__(name: str) -> object:
    """Loaded when it is first used: who only reads events, as Spark's tasks, needs no clients."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
