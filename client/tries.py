"""Keeps track of the tries of a request, to know if one of them may have been stored.

A caller that gets an error may send the message once more. So an error is certain only if each try
was refused clearly, or never left; otherwise it is in doubt.

    sent, no answer, sent again, refused as too large: may be stored, by the first try
    sent, refused as too large: is not stored
"""

from __future__ import annotations

from dataclasses import dataclass

from ..wheel.errors import NotRunning, SlotwheelError


@dataclass(slots=True)
class Tries:
    """The tries of one request. ``open``: the last one is not answered. ``unclear``: an earlier one
    was not, or not clearly."""

    open: bool = False
    unclear: bool = False

    def sent(self) -> None:
        """Note that another try begins; its answer will say nothing of the one before."""
        self.unclear |= self.open
        self.open = True

    def refused(self, error: SlotwheelError) -> None:
        """Note the error that answers the last try. A node that ends, or is no longer the master,
        may have stored the request that it refuses: the next master goes on with it."""
        self.open = False
        self.unclear |= error.uncertain or isinstance(error, NotRunning)

    @property
    def in_doubt(self) -> bool:
        return self.open or self.unclear
