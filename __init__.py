"""slotwheel holds messages that must reach a Kafka topic later, and hands each one over on time."""

from slotwheel.client import Client, Message, Receipt, Receipts
from slotwheel.wheel.errors import (
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    NodeUnreachable,
    NotRunning,
    Overloaded,
    SequenceTooOld,
    SlotwheelError,
    UnknownId,
    UnsupportedVersion,
)

__version__ = "0.1.0"

__all__ = [
    "Client",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidMessage",
    "Message",
    "NodeUnreachable",
    "NotRunning",
    "Overloaded",
    "Receipt",
    "Receipts",
    "SequenceTooOld",
    "SlotwheelError",
    "UnknownId",
    "UnsupportedVersion",
    "__version__",
]
