"""The threads of a master: the hand, the prefetcher, the delay topics' reader, the schedules.

Theory: a node alone is the master from its start to its end. Among peers these threads start when
the wheel serves and end when it does not; no answer of one epoch counts in the next, as each has a
``Dispatcher`` of its own. The rules in ``replication/rules/`` decide who is master. Only the sink
is shared: a new hand waits until the old one has released it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from ..delivery.hand import Hand
from ..security.principals import Authenticator
from ..wheel.dispatcher import Dispatcher
from ..wheel.errors import SlotwheelError
from ..wheel.wheel import Wheel
from . import work
from .config import NodeConfig
from .events import NodeEvents
from .intake.ports import Clock
from .policies import GroupPolicies
from .schedulerunner import ScheduleRunner
from .sinks import WaysOut, delay_topics
from .threads import Threads

_BUSY_POLL_S = 0.001


class MasterThreads:
    """The threads of one epoch's master; they start on construction. ``schedules`` gets the names
    of schedules that were changed; ``authenticator`` knows the rights and quotas of delay topics;
    ``allowed`` returns True while the hand may deliver."""

    def __init__(
        self,
        config: NodeConfig,
        wheel: Wheel,
        dispatcher: Dispatcher,
        out: WaysOut,
        policies: GroupPolicies,
        clock: Clock,
        events: NodeEvents,
        on_fatal: Callable[[BaseException], None],
        schedules: deque[str],
        *,
        authenticator: Authenticator,
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.dispatcher = dispatcher
        self.stopping = False
        """True once the threads were asked to end."""
        self._threads = Threads(events.failed, on_fatal)
        self.sources = delay_topics(config, wheel, policies, out.door, clock, events, authenticator)
        self._hand = hand = Hand(
            dispatcher,
            out.semantics,
            clock,
            allowed=allowed,
            events=events,
            departures=out.departures,
            on_fatal=on_fatal,
        )
        self._threads.loop("prefetcher", lambda: work.prepare(dispatcher, out.sink, clock))
        self._threads.run("hand", hand.run, lambda: hand.silent_s)
        self._threads.watch(lambda: _named("delivery", hand.failing))
        if self.sources is not None:
            source = self.sources

            def read(stop: threading.Event) -> None:
                with contextlib.suppress(SlotwheelError):  # the loop "policies" reports it
                    policies.settle(stop)
                source.run(stop)

            self._threads.run("delay-topic", read)
        self._threads.loop("policies", policies.turn)
        self._threads.loop("schedules", ScheduleRunner(wheel, clock, events, schedules).turn)

    def unhealthy(self) -> list[str]:
        return self._threads.unhealthy()

    def failing(self) -> list[str]:
        """A text for each duty that fails again and again."""
        return self._threads.failing()

    def wait_for_chunk(self, timeout_s: float) -> bool:
        """Wait until no chunk is being delivered. Returns False when the time is over."""
        deadline = time.monotonic() + timeout_s
        while self._hand.busy and time.monotonic() < deadline:
            time.sleep(_BUSY_POLL_S)
        return not self._hand.busy

    def request_stop(self) -> None:
        """Ask the threads to end, without waiting."""
        self.stopping = True
        self._threads.request_stop("delay-topic", "hand", "prefetcher", "policies", "schedules")

    def stop(self, within_s: float) -> list[str]:
        """Stop the threads. Returns the names of those still alive. May be called again."""
        return self._threads.stop(time.monotonic() + within_s, last="")


def _named(duty: str, reason: str) -> str | None:
    return f"{duty} fails and is tried again: {reason}" if reason else None
