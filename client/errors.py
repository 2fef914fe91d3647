"""The errors of the client, for applications to import."""

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
