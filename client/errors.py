"""The errors an application can meet, under the client's own roof."""

from ..wheel.errors import (
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

__all__ = [
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidMessage",
    "NodeUnreachable",
    "NotRunning",
    "Overloaded",
    "SequenceTooOld",
    "SlotwheelError",
    "UnknownId",
    "UnsupportedVersion",
]
