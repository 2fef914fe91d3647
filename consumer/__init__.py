"""What an application receives with: ``Consumer``, the sources it reads from, and what becomes of
messages that could not be processed. In: records of Kafka or embedded topics. Out: messages for the
application, committed positions, retries and dead letters.
"""

from .consumer import Consumer
from .message import Received

__all__ = ["Consumer", "Received"]
