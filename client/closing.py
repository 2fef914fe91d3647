"""The ``with`` block of a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ClosedByBlock(ABC):
    """Is closed at the end of its ``with`` block."""

    @abstractmethod
    def close(self, timeout_s: float | None = None) -> None:
        """Flush for at most ``timeout_s`` (None: until each message is stored or given up), and
        end. Errors: ``OSError``: the file of receipts is not complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # On Ctrl-C, do not wait for a node that is away.
        impatient = kind is not None and not issubclass(kind, Exception)
        try:
            self.close(1.0 if impatient else None)
        except OSError:  # of receipts; it is logged, and the block's own exception comes first
            if error is None:
                raise
