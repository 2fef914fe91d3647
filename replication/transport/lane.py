"""A lane: the thread that keeps one exchange to one peer open, and writes a queue's messages to it.

Theory: two lanes lead to each peer, on connections of their own: *control* for small and urgent
messages, *bulk* for entries. So four megabytes on a slow network hold up no heartbeat, and a peer
whose journal stands still for a second is not assumed dead. The bulk lane opens when the control
lane is up, or one refusal would be reported twice; from then on each fails alone.

Every failure of a connection is handled in one way, by cutting it and making a new one:

    refused, unreachable      again after 0.1 to 0.5 s
    silent for 2 s            cut (also a write that blocks and does not move), then again at once
    refused by the peer       again after 5 s; a person has to fix it; an alarm names the node

Rules: at most ``WINDOW_BYTES`` are written without a beat; nothing here blocks another thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ...wheel.backoff import Backoff
from ...wheel.errors import NodeUnreachable, SlotwheelError
from .exchange import Exchange
from .handshake import is_refusal
from .outbox import SendQueue

ASK_S = 0.5
LINK_SILENT_S = 2.0
"""Without a beat, and without TCP moving, for so long, s, the link is dead. A peer whose machine
still acknowledges gets more time, by the bytes it has received."""
SLOW_BYTES_PER_S = 1 << 20
WINDOW_BYTES = 32 << 20
PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 0.5
REFUSED_PAUSE_S = 5.0


class LaneEvents(Protocol):
    """Called in the lane's thread."""

    def up(self, lane: Lane) -> None: ...
    def down(self, lane: Lane, error: SlotwheelError) -> None:
        """The exchange ended."""

    def failed(self, lane: Lane, error: SlotwheelError) -> None:
        """No exchange could be opened."""


class Lane:
    """Keeps one exchange open, made by ``open_exchange(on_change)`` once ``may_open()`` agrees."""

    def __init__(
        self,
        peer: str,
        name: str,
        box: SendQueue,
        open_exchange: Callable[[Callable[[], None]], Exchange],
        events: LaneEvents,
        may_open: Callable[[], bool] = lambda: True,
        *,
        refused_pause_s: float = REFUSED_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.peer = peer
        self.name = name
        self.error: SlotwheelError | None = None
        """The error for which the lane is not up; None while it is."""
        self.instance = ""
        """The process that answered last."""
        self.sent_bytes = 0
        self.sent_messages = 0
        self.opened = 0
        self._box = box
        self._open = open_exchange
        self._events = events
        self._may_open = may_open
        self._refused_pause_s = refused_pause_s
        self._clock = clock
        self._changed = threading.Condition()
        self._exchange: Exchange | None = None
        self._wants_room = False
        self._written = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"peer-{name}-{peer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.cut()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of its thread. It has none when a node's start failed before that, as by
        an address that is taken, whose error would else be hidden behind another one."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    @property
    def is_up(self) -> bool:
        return self._exchange is not None

    @property
    def exchange(self) -> Exchange | None:
        return self._exchange

    def wake(self) -> None:
        """There is something to send, or a reason to try to connect."""
        with self._changed:
            self._changed.notify()

    def cut(self) -> None:
        """End the connection; the thread makes a new one."""
        exchange = self._exchange
        if exchange is not None:
            exchange.cut()

    def is_silent(self) -> bool:
        """True if a beat for what was written is overdue."""
        exchange = self._exchange
        if exchange is None:
            return False
        silent_s, unacknowledged_s = exchange.silence()
        # The peer may still be working on what its machine has acknowledged.
        busy_s = (
            exchange.unbeaten_bytes / SLOW_BYTES_PER_S if unacknowledged_s < LINK_SILENT_S else 0.0
        )
        return silent_s > LINK_SILENT_S + busy_s

    # -- the lane's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(2 * PAUSE_MIN_S, PAUSE_MAX_S)
        while not self._stopping:
            if not self._may_open():
                self._rest(PAUSE_MAX_S, or_woken=True)
                continue
            try:
                exchange = self._open(self._on_beat)
            except Exception as error:
                self.error = ours = _as_ours(error)
                self._events.failed(self, ours)
                # Peers that lost each other at one moment should not reconnect at one moment.
                pause_s = backoff.failed() * random.uniform(0.5, 1.0)
                self._rest(self._refused_pause_s if is_refusal(ours) else pause_s)
                continue
            backoff.worked()
            self._serve(exchange)
            if not self._stopping:
                self._rest(PAUSE_MIN_S)

    def _serve(self, exchange: Exchange) -> None:
        self.opened += 1
        self.instance = exchange.peer.instance
        self.error = None
        self._written = self._clock()
        self._exchange = exchange
        self._events.up(self)
        error: SlotwheelError | None = None
        try:
            while not self._stopping and not exchange.ended:
                self._turn(exchange)
        except Exception as raised:
            error = _as_ours(raised)
        self._exchange = None
        exchange.end()
        self._box.clear()
        self.error = exchange.error or error
        if not self._stopping:
            self._events.down(self, self.error or NodeUnreachable("the exchange was cut"))

    def _turn(self, exchange: Exchange) -> None:
        with self._changed:
            if not self._ready(exchange):
                self._changed.wait(ASK_S)
            if self._stopping or exchange.ended:
                return
            ready = self._ready(exchange)
        now = self._clock()
        parcel = self._box.pop(now) if ready else None
        if parcel is not None:
            self._written = now
            self.sent_bytes += exchange.write(*parcel)
            self.sent_messages += 1
        elif now - self._written >= ASK_S:
            self._written = now
            exchange.ask()

    def _ready(self, exchange: Exchange) -> bool:
        self._wants_room = exchange.unbeaten_bytes >= WINDOW_BYTES
        return bool(len(self._box)) and not self._wants_room

    def _on_beat(self) -> None:
        exchange = self._exchange
        if self._wants_room or exchange is None or exchange.ended:
            self.wake()

    def _rest(self, seconds: float, *, or_woken: bool = False) -> None:
        deadline = self._clock() + seconds
        with self._changed:
            while not self._stopping and (left := deadline - self._clock()) > 0:
                if self._changed.wait(left) and or_woken:
                    return


def _as_ours(error: Exception) -> SlotwheelError:
    """Any error as ours: a lane outlives every error, also a bug."""
    if isinstance(error, SlotwheelError):
        return error
    return SlotwheelError(f"the link failed: {type(error).__name__}: {error}"[:300])
