"""The protocols by which a client reaches a group, over the wire or over HTTP.

The wire to a node (``link.py``) and HTTP to a gateway (``http.py``) are used in the same way:
batches go over a link, which lives until its first error; other requests are calls. Neither
decides on retries, batches or receipts: the sender does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from ..wheel.errors import SlotwheelError
from ..wheel.protocol import AppendCommand, RefusedBatch, StoredBatch
from ..wheel.request import RequestKey
from .columns import Limits

OnAnswer = Callable[[StoredBatch | RefusedBatch], None]
ReadInThread = Callable[[Callable[[], None]], None]


class LinkPort(Protocol):
    """An open link. ``group`` is known at least from the first receipt on. ``error``: the reason
    for which it was lost; None: it is not. ``epoch``: the epoch of its master; 0 without peers, and
    over HTTP."""

    group: str
    limits: Limits
    epoch: int
    error: SlotwheelError | None

    def write(
        self,
        rows: pa.RecordBatch,
        sequence: int,
        request: RequestKey | None = None,
        *,
        read: bool = True,
    ) -> None:
        """Send a batch. ``read`` False: the caller will wait for the answer in ``read_while``.
        Errors: ``SlotwheelError``: the link is lost."""

    takes_records: bool
    """True when it takes plain rows."""

    def write_records(
        self, records: bytes, count: int, sequence: int, request: RequestKey | None, *, read: bool
    ) -> None:
        """Send a batch as ``count`` plain rows (``wheel/plain.py``). Errors: as of ``write``."""

    def read_while(self, waiting: Callable[[], bool], timeout_s: float | None) -> None:  # noqa: ARG002
        """Handle answers in this thread while ``waiting()``, if no other thread does. Does nothing
        unless a link overrides it: then only the reader's thread reads."""
        return  # not abstract

    def cut(self) -> None:
        """End the link at once; from any thread."""

    def close(self) -> None:
        """End the link, and free everything."""


OnLost = Callable[[Any, SlotwheelError], None]
"""Called once, with the link and the reason of its loss, unless it was closed first."""
OpenLink = Callable[[str, AppendCommand, float, OnAnswer, OnLost, ReadInThread], LinkPort]
"""Opens a link to an address, within a time in seconds. Its answers, and the call of ``OnLost``,
come from a function that it has run by ``ReadInThread``. Errors: ``SlotwheelError``."""


class ClientTransport(Protocol):
    """Links, and calls over connections of their own."""

    @property
    def open_link(self) -> OpenLink: ...

    def connect(self, address: str) -> Any:
        """A connection for calls, which several threads may use. Errors: ``NodeUnreachable``."""

    def greet(self, connection: Any, timeout_s: float, *, of_master: bool) -> None:
        """Find out that the node answers, and with ``of_master`` that it is the master. Errors:
        ``NodeUnreachable``, ``NotMaster``."""

    def call(
        self, connection: Any, action: str, fields: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """Send a request. Returns the answer's fields. Errors: the node's; ``NodeUnreachable``."""

    def epoch_of_master(self, address: str, timeout_s: float) -> int:
        """The epoch of the master that a node knows; 0: it knows none."""

    def end(self, connection: Any) -> None:
        """Close a connection."""
