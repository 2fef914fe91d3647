"""Whether a request that is tried again may have been stored already.

Who is told that a message was not stored may send it once more. So an error says so only if each
try was refused clearly, or never left.

    sent, no answer, sent again, refused as too large: may be stored, by the first try
    sent, refused as too large: is not stored
"""

from __future__ import annotations

from dataclasses import dataclass

from ..wheel.errors import NotRunning, SlotwheelError


@dataclass(slots=True)
class Tries:
    """Of one request. ``open``: its last try is not answered. ``unclear``: an earlier one never
    was, or not clearly."""

    open: bool = False
    unclear: bool = False

    def sent(self) -> None:
        """Another try begins; what is answered to it says nothing of the one before."""
        self.unclear |= self.open
        self.open = True

    def refused(self, error: SlotwheelError) -> None:
        """The last try was answered. A node that ends, or is the master no longer, may have stored
        what it refuses: the next master goes on with it."""
        self.open = False
        self.unclear |= error.uncertain or isinstance(error, NotRunning)

    @property
    def in_doubt(self) -> bool:
        return self.open or self.unclear
