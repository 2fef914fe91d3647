"""``Consumer``, by which an application receives messages, and the sources that it reads.

Comes in: records of Kafka or embedded topics. Goes out: messages for the application, committed
positions, retries and dead letters.
"""

from typing import TYPE_CHECKING

from ..wheel.lazy import late

if TYPE_CHECKING:
    from .consumer import Consumer
    from .message import Received
else:
    # A program that only observes consumers needs no client of Kafka.
    __getattr__ = late(__name__, {"Consumer": "consumer", "Received": "message"})

__all__ = ["Consumer", "Received"]
