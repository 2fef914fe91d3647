"""What happened to each message at both ends of the wheel, as clients and consumers report it.
Start at ``Tracer`` (tracer.py)."""

from typing import TYPE_CHECKING

from ..wheel.lazy import late
from .events import TRACE_TOPIC, EventKind, EventSender

if TYPE_CHECKING:
    from .batches import decode
    from .recorder import Recorder
    from .several import Observers
    from .targets import ConfluentTarget, KafkaPythonTarget, WheelTarget
    from .tracer import Tracer
    from .wrapping import traced_consumer, traced_producer
else:
    # Who only reads events, as Spark's tasks, needs no clients.
    __getattr__ = late(
        __name__,
        {
            "ConfluentTarget": "targets",
            "KafkaPythonTarget": "targets",
            "Observers": "several",
            "Recorder": "recorder",
            "Tracer": "tracer",
            "WheelTarget": "targets",
            "decode": "batches",
            "traced_consumer": "wrapping",
            "traced_producer": "wrapping",
        },
    )

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
