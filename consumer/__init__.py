"""What an application receives with: ``Consumer``, the sources it reads from, and what becomes of
messages that could not be processed. In: records of Kafka or embedded topics. Out: messages for the
application, committed positions, retries and dead letters.
"""

from typing import TYPE_CHECKING

from ..wheel.late import late

if TYPE_CHECKING:
    from .consumer import Consumer
    from .message import Received
else:
    # Who only observes consumers needs no client of Kafka.
    __getattr__ = late(__name__, {"Consumer": "consumer", "Received": "message"})

__all__ = ["Consumer", "Received"]
