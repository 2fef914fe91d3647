"""slotwheel holds messages that must reach a Kafka topic later, and hands each one over on time."""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from slotwheel.client.asyncclient import AsyncClient
    from slotwheel.consumer import Consumer, Received

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Consumer",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidMessage",
    "Message",
    "NodeUnreachable",
    "NotRunning",
    "Overloaded",
    "Receipt",
    "Receipts",
    "Received",
    "SequenceTooOld",
    "SlotwheelError",
    "UnknownId",
    "UnsupportedVersion",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Loaded when it is first used: who only sends, and a node, needs nothing of it."""
    if name in ("Consumer", "Received"):
        return getattr(import_module("slotwheel.consumer"), name)
    if name == "AsyncClient":
        return getattr(import_module("slotwheel.client.asyncclient"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
