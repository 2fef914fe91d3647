"""The events of a consumer for an observer, such as a tracer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..client.batch import ClientObserver
from ..wheel.rows import Header
from .message import Received, SourcePartition

HELD_S = 0.5


class ConsumerObserver(ClientObserver, Protocol):
    """Gets the events of a group's messages, in the threads in which they happen: each method must
    return at once, and not raise. A consumer is a client, too, when it sends retries and dead
    letters, unless they are part of a transaction of Kafka."""

    def received(self, group: str, messages: Sequence[Received]) -> None:
        """The application gets ``messages`` next, each from its ``received_s`` on, except those
        that become dead letters first. A message that it puts back is reported again."""

    def held(self, group: str, messages: Sequence[Received]) -> None:
        """The application has had ``messages`` for ``HELD_S``, or until the end, without an answer.
        Each is reported once."""

    def processed(self, group: str, messages: Sequence[Received], error: str | None) -> None:
        """The application has answered for ``messages``, which it had from ``received_s`` on. Only
        the first answer is reported. ``error``: the text, if processing failed."""

    def retried(self, group: str, message: Received) -> None:
        """The message gets another attempt."""

    def buried(self, group: str, message: Received, reason: str) -> None:
        """The message becomes a dead letter."""

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        """The group's rule leaves a record out: the application does not get it."""

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        """The group has committed ``positions``: all messages below them are finished."""
