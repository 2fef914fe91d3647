"""Trace: what happened to each message at both ends of the wheel, told by clients and consumers.

Start at ``Tracer`` (tracer.py).
"""

from .events import TRACE_TOPIC, EventKind, EventSender, decode
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
