"""Whose work the loop does next: a piece of each party's, and then it looks at all connections.

Theory: an event loop does all that has come before it looks again. So what four hundred connections
of one caller ask for at once would be done before the first request of anybody else is even read.
Here each piece of work (a handshake of TLS, a request that begins) belongs to a *party*: a
principal, an address while nobody knows who calls, or all who shake hands. A turn of the loop does
one piece of each party; what waits comes in its order.

    loop:  | look | handshake, a of one, b of two | look | handshake, a' of one | look | ...

Single messages do not come here (``direct.py``): they wait for the node, and cost a tenth.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Belongs to the thread of the running loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._had: set[str] = set()
        """Parties of which a piece was done in this turn."""

    def take(self, party: str, do: Callable[[], None]) -> None:
        """Do a piece of a party's work: now, if it is the first one in this turn of the loop, and
        else when those before it are done. ``do`` must not raise."""
        if party in self._had:
            self._waiting.setdefault(party, deque()).append(do)
            return
        if not self._had:
            asyncio.get_running_loop().call_soon(self._next)
        self._had.add(party)
        do()

    def _next(self) -> None:
        self._had.clear()
        for party, waiting in list(self._waiting.items()):
            do = waiting.popleft()
            if not waiting:
                del self._waiting[party]
            self.take(party, do)
