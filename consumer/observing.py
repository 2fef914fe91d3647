"""What a consumer tells an observer, such as a tracer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..client.batch import ClientObserver
from ..wheel.rows import Header
from .message import Received, SourcePartition

HELD_S = 0.5


class ConsumerObserver(ClientObserver, Protocol):
    """Is told what becomes of a group's messages, by the threads in which it happens: each method
    must return at once, and not raise. A consumer is a client, too: it sends retries and dead
    letters, but for those that are part of a transaction of Kafka."""

    def received(self, group: str, messages: Sequence[Received]) -> None:
        """The application gets them next, each from its ``received_s`` on, but for those that
        become dead letters before. What it does not take after all is told again."""

    def held(self, group: str, messages: Sequence[Received]) -> None:
        """The application has them for ``HELD_S``, or the consumer ends, and it has not answered;
        told once."""

    def processed(self, group: str, messages: Sequence[Received], error: str | None) -> None:
        """The application has answered for them for the first time; ``error``: it failed.
        ``received_s`` of each says since when it had them."""

    def retried(self, group: str, message: Received) -> None:
        """Another attempt is asked for."""

    def buried(self, group: str, message: Received, reason: str) -> None:
        """It becomes a dead letter."""

    def left_out(self, group: str, topic: str, headers: Sequence[Header]) -> None:
        """The group's rule leaves a record out: the application does not get it."""

    def committed(self, group: str, positions: Mapping[SourcePartition, int]) -> None:
        """The positions of partitions, up to which all is committed."""
