"""slotwheel holds messages that must reach a Kafka topic later, and hands each one over on time."""

from typing import TYPE_CHECKING

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
from slotwheel.wheel.lazy import late

if TYPE_CHECKING:
    from slotwheel.client import Client, Message, Receipt, Receipts
    from slotwheel.client.addresses import Nodes
    from slotwheel.client.asyncclient import AsyncClient
    from slotwheel.consumer import Consumer, Received
    from slotwheel.fleet.fleet import Fleet
    from slotwheel.security.tls import Tls
else:
    # An application loads what it uses of these, and a command and a node none of it.
    __getattr__ = late(
        __name__,
        {
            "AsyncClient": "client.asyncclient",
            "Client": "client.client",
            "Consumer": "consumer",
            "Fleet": "fleet.fleet",
            "Message": "client.message",
            "Nodes": "client.addresses",
            "Receipt": "client.receipts",
            "Receipts": "client.receipts",
            "Received": "consumer",
            "Tls": "security.tls",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Consumer",
    "Fleet",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidMessage",
    "Message",
    "NodeUnreachable",
    "Nodes",
    "NotRunning",
    "Overloaded",
    "Receipt",
    "Receipts",
    "Received",
    "SequenceTooOld",
    "SlotwheelError",
    "Tls",
    "UnknownId",
    "UnsupportedVersion",
    "__version__",
]
